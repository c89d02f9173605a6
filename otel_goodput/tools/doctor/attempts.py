"""Runs calls that may hang, with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Attempt(Generic[T]):
    """Runs an action in its own daemon thread. A thread that hangs is abandoned."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._results: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="goodput-attempt", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._action())
        except Exception as error:
            self._error = error

    def result(self, seconds: float) -> T:
        """Return the action's result, waiting for it at most `seconds`.

        Raises:
            TimeoutError: the action has not finished.
            Exception: the action raised it.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        if not self._results:
            raise TimeoutError(f"no answer within {seconds:g} s")
        return self._results[0]


def within(seconds: float, action: Callable[[], T]) -> T:
    """Run `action` with a time limit in seconds; returns and raises like :meth:`Attempt.result`."""
    return Attempt(action).result(seconds)
