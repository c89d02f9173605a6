"""Observed device work: when it leaves the device, and the export that waits for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALONE = (1, 0)  # the `place` of an output that is not a tree


class Observation:
    """Work in flight: `leaf` becomes ready when the work dispatched for `key` since `start` has left the device.

    Attributes:
        key: id of the step or of the mark.
        phase: index into ``semconv.PHASES``.
        start: when dispatching began, ns.
        leaf: the array or mark to watch; None: that of the next observation in the queue.
        place: (number of leaves, index of `leaf`) in the observed output.
        marked: `leaf` is a mark of ours, or will be one; not what a user handed over.
        ours: only we hold `leaf`, so that we may wait for it.
        told: the journal has a record of this observation.
        by: time at which it was seen to be ready, ns; 0: not yet.
        ended, at_once: a mark that is ready by `at_once` had no work in front of it; the work then ended at `ended`,
            by the host's clock. Both in ns.
        results: outputs that must be ready no later than `leaf`; used to check the order of marks.
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
        "marked",
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
        marked: bool = False,
        ours: bool = False,
        told: bool = False,
    ) -> None:
        self.key = key
        self.phase = phase
        self.start = start
        self.leaf = leaf
        self.place = place
        self.marked = marked
        self.ours = ours
        self.told = told
        self.by = 0
        self.at_once = self.ended = 0
        self.results: Any = ()
        self._settled = False
        self._waiting: list[Callable[[int | None], None]] | None = None

    def then(self, export: Callable[[int | None], None]) -> None:
        """Call `export` with the duration on the device (ns; None: unknown), now or when it is known."""
        self._waiting = [export]
        if self._settled:
            self._call()

    def settle(self, duration: int | None) -> None:
        """Set the duration on the device, ns; None if it will never be known."""
        self.leaf = None
        self.results = ()
        self._duration = duration
        self._settled = True
        self._call()

    def _call(self) -> None:
        # then() and settle() may run in any order and on different threads; pop() lets only one of them call.
        if self._waiting is None:
            return
        try:
            export = self._waiting.pop()
        except IndexError:
            return
        export(self._duration)
