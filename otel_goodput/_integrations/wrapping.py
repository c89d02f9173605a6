"""Wrap methods of other packages' classes, so that they do what they did and something of ours is called around it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from otel_goodput._runtime.guard import containing

# Called after a wrapped method with its result or its exception.
Done: TypeAlias = Callable[[Any, "BaseException | None"], None]
# Called before a wrapped method with its object and arguments; returns what to call after it, None for nothing.
Before: TypeAlias = Callable[[Any, "tuple[Any, ...]", "dict[str, Any]"], "Done | None"]


def wrap(owner: Any, name: str, before: Before, site: str) -> Callable[[], None]:
    """Wrap a method: call `before` ahead of it, and after it what `before` returned. Return what unwraps it.

    What the method returns and raises stays the same, whatever `before` does; errors of ours are contained at `site`.

    Args:
        owner: the class, or the object, that has the method.
        name: of the method.
        before: called with the object and the arguments.
        site: what is at work, for the log.
    """
    original, at = getattr(owner, name), f"{site} {name}"

    @functools.wraps(original)
    def wrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
        done: Done | None = None
        with containing(at):
            done = before(this, args, kwargs)
        return _call(original, (this, *args), kwargs, done, at)

    return _put(owner, name, wrapped)


def _put(owner: Any, name: str, wrapped: Callable[..., Any]) -> Callable[[], None]:
    """Put `wrapped` in the place of a method; return what puts it back."""
    inherited, original = name not in vars(owner), getattr(owner, name)

    def unwrap() -> None:
        if vars(owner).get(name) is not wrapped:
            return  # it was wrapped again by others: our wrapper stays in between and does nothing
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    setattr(owner, name, wrapped)
    return unwrap


def wrap_function(modules: Sequence[Any], name: str, before: Before, site: str) -> Callable[[], None]:
    """Wrap a function, as :func:`wrap` does a method, in each of `modules` that has it. Return what unwraps it.

    The first of `modules` is the one that defines it, so that it can be pickled. `before` gets None as the object.
    """
    original, at = getattr(modules[0], name), f"{site} {name}"

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        done: Done | None = None
        with containing(at):
            done = before(None, args, kwargs)
        return _call(original, args, kwargs, done, at)

    holders = [module for module in modules if getattr(module, name, None) is original]

    def unwrap() -> None:
        for module in holders:
            if vars(module).get(name) is wrapped:
                setattr(module, name, original)

    for module in holders:
        setattr(module, name, wrapped)
    return unwrap


def wrap_iterator(owner: type, name: str, within: Callable[[Any, Any], Any], site: str) -> Callable[[], None]:
    """Wrap a method that returns an iterator: callers get what `within` makes of it. Return what unwraps it."""
    original = vars(owner)[name]

    @functools.wraps(original)
    def wrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(this, *args, **kwargs)
        with containing(f"{site} {name}"):
            return within(this, result)
        return result

    def unwrap() -> None:
        if vars(owner).get(name) is wrapped:
            setattr(owner, name, original)

    setattr(owner, name, wrapped)
    return unwrap


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], done: Done | None, at: str
) -> Any:
    if done is None:
        return function(*args, **kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        with containing(at):
            done(None, error)
        raise
    with containing(at):
        done(result, None)
    return result


def within(phase: AbstractContextManager[Any]) -> Done:
    """Enter `phase`; return what leaves it after the wrapped method, with its exception if it raised one."""
    phase.__enter__()

    def done(_: Any, error: BaseException | None) -> None:
        phase.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    return done
