"""Something that may hang, given so many seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Attempt(Generic[T]):
    """An action under way in a daemon thread of its own; one that is stuck is left behind."""

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
        """What the action returned, waited for so many seconds at most.

        Raises:
            TimeoutError: it is still under way.
            Exception: what the action raised.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        if not self._results:
            raise TimeoutError(f"no answer within {seconds:g} s")
        return self._results[0]


def within(seconds: float, action: Callable[[], T]) -> T:
    """As :meth:`Attempt.result`."""
    return Attempt(action).result(seconds)
