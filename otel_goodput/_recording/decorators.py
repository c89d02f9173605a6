"""Decorators: a phase around each call of a user's function, and leniency for the public functions of this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar, cast

from otel_goodput._runtime.guard import report_once, strict

F = TypeVar("F", bound=Callable[..., Any])


def decorate(again: Callable[[], Any], function: F, done: Callable[[Any, Any], object] | None = None) -> F:
    """Return `function` with each call inside a new context manager from `again`; coroutines and generators as a whole.

    `done` is called inside it with what the context manager binds, and what the function or the coroutine returned.
    """
    wrapped: Any
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again() as bound:
                output = await function(*args, **kwargs)
                if done is not None:
                    done(bound, output)
                return output

    elif inspect.isasyncgenfunction(function):

        @wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again():
                async for item in function(*args, **kwargs):
                    yield item

    elif inspect.isgeneratorfunction(function):

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again():
                return (yield from function(*args, **kwargs))

    else:

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again() as bound:
                output = function(*args, **kwargs)
                if done is not None:
                    done(bound, output)
                return output

    return cast(F, wrapped)


# Without these there is nothing to do: what gives the batches, and what is called.
_INDISPENSABLE: Final = frozenset({"batches", "function"})


def forgiving(function: F) -> F:
    """Decorate a function, or the public methods of a class: what does not fit in a call does not raise.

    Unknown arguments are left out, and required ones that are missing are None. With ``OTEL_GOODPUT_STRICT=true`` the
    TypeError is raised, as always if the batches or the function are missing.
    """
    if inspect.isclass(function):
        for name, method in list(vars(function).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(function, name, forgiving(method))
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # If it was raised inside of the function, its traceback has more than this frame.
            if strict() or error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            fitting, named = _fitted(function, args, kwargs, error)
        return function(*fitting, **named)

    return cast(F, call)


def not_callable(callback: object, decorator: Any) -> Any:
    """Return what ``on_preemption(callback)`` does if that is no function: the `decorator` itself for ``None``."""
    report_once("on_preemption", "on_preemption() needs a function; write `@goodput.on_preemption` above its def")
    return decorator if callback is None else callback


def _fitted(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: TypeError
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    fitting = args[: len(positional)]
    given = positional[: len(fitting)]
    named = {name: value for name, value in kwargs.items() if name in signature.parameters and name not in given}
    missing = [one.name for one in parameters if one.default is one.empty and one.name not in (*given, *named)]
    if _INDISPENSABLE & {*missing}:
        raise error
    takes = [
        one.name if one.default is one.empty else f"{one.name}={one.default!r}"
        for one in parameters
        if one.name != "self"
    ]
    name = function.__name__
    why = str(error).replace(f"{function.__qualname__}()", f"goodput.{name}()")
    text = "%s; the call is made without what does not fit. Write goodput.%s(%s)"
    report_once(f"arguments of {name}", text, why, name, ", ".join(takes))
    return fitting, {**named, **dict.fromkeys(missing)}
