"""Work of which it shall be known when it left the device, and what waits for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALONE = (1, 0)  # the place of what is no tree's leaf


class Observation:
    """Work on its way: `leaf` becomes ready when what was dispatched for `key` since `start` (ns) has left the device.

    `key` is the step's own, or that of a mark. Without a `leaf` the next one's tells. `place` is (how many leaves,
    which of them) in what was observed; `told`: the journal knows of it; `ours`: nobody else has `leaf`, so that it may
    be waited for; `by`: when it was known to be over at the latest, ns; `results` are ready no later than `leaf`.
    A mark that is ready up to `at_once` (ns) had nothing in front of it: the work was over when it `ended` on the host.
    """

    __slots__ = (
        "_duration",
        "_settled",
        "_waiting",
        "at_once",
        "by",
        "ended",
        "key",
        "leaf",
        "ours",
        "phase",
        "place",
        "results",
        "start",
        "told",
    )

    def __init__(
        self,
        key: int,
        phase: int,
        start: int,
        leaf: Any,
        place: tuple[int, int] = ALONE,
        *,
        ours: bool = False,
        told: bool = False,
    ) -> None:
        self.key = key
        self.phase = phase
        self.start = start
        self.leaf = leaf
        self.place = place
        self.ours = ours
        self.told = told
        self.by = 0
        self.at_once = self.ended = 0
        self.results: Any = ()
        self._settled = False
        self._waiting: list[Callable[[int | None], None]] | None = None

    def then(self, export: Callable[[int | None], None]) -> None:
        """Call `export` with the ns on the device (None: they stay unknown), now or when they are known."""
        self._waiting = [export]
        if self._settled:
            self._call()

    def settle(self, duration: int | None) -> None:
        """`duration` (ns) is known, or that it never will be."""
        self.leaf = None
        self.results = ()
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
