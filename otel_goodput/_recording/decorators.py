"""Turns context managers into decorators of functions, coroutines and generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def decorate(again: Callable[[], Any], function: F, done: Callable[[Any, Any], object] | None = None) -> F:
    """Return `function` with each call inside a new context manager from `again`.

    Coroutines and generators run inside it until they end. `done` is called inside it with what the context manager
    binds, and what the function or the coroutine returned.
    """
    wrapped: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again() as bound:
                output = await function(*args, **kwargs)
                if done is not None:
                    done(bound, output)
                return output

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again():
                async for item in function(*args, **kwargs):
                    yield item

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again():
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with again() as bound:
                output = function(*args, **kwargs)
                if done is not None:
                    done(bound, output)
                return output

    return cast(F, wrapped)
