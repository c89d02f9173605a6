"""Runs an action in a thread, so that whoever waits for it can stop waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Runs an action in its own daemon thread. A thread that hangs is abandoned."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="goodput-call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._action())
        except BaseException as error:
            self._error = error

    def over(self, seconds: float = 0) -> bool:
        """Return whether the action has ended, waiting for that at most `seconds`."""
        self._thread.join(seconds)
        return bool(self._results) or self._error is not None

    def result(self, seconds: float = 0) -> T:
        """Return the action's result, waiting for it at most `seconds`.

        Raises:
            TimeoutError: the action has not ended.
            BaseException: the action raised it.
        """
        if not self.over(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._results[0]


def within(seconds: float, action: Callable[[], T]) -> T:
    """Run `action` with a time limit in seconds; returns and raises like :meth:`BackgroundCall.result`."""
    return BackgroundCall(action).result(seconds)
