"""A step of which it shall be known when it left the device, and what waits for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Observation:
    """One step on its way: `leaf` becomes ready when the step `key`, dispatched at `start` (ns), has left the device.

    `place` is (how many leaves, which of them) in what was observed; `told`: the journal knows of it.
    """

    __slots__ = ("_duration", "_settled", "_waiting", "key", "leaf", "place", "start", "told")

    def __init__(self, key: int, start: int, leaf: Any, place: tuple[int, int]) -> None:
        self.key = key
        self.start = start
        self.leaf = leaf
        self.place = place
        self.told = False
        self._settled = False
        self._waiting: list[Callable[[int | None], None]] | None = None

    def then(self, export: Callable[[int | None], None]) -> None:
        """Call `export` with the step's ns on the device (None: they stay unknown), now or when they are known."""
        self._waiting = [export]
        if self._settled:
            self._call()

    def settle(self, duration: int | None) -> None:
        """`duration` (ns) is known, or that it never will be."""
        self.leaf = None
        self._duration = duration
        self._settled = True
        self._call()

    def _call(self) -> None:
        # Both sides come here, in any order: whoever takes it calls it.
        if self._waiting is None:
            return
        try:
            export = self._waiting.pop()
        except IndexError:
            return
        export(self._duration)
