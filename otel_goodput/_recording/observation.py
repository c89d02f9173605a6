"""Observed device work: when it leaves the device, and the exports that wait for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ALONE = (1, 0)  # the `place` of an output that is not a tree


class Observation:
    """Work in flight: `mark` becomes ready when all that was dispatched for `keys` has left the device.

    Attributes:
        keys: ids of the steps, in order, or of one mark.
        starts: when dispatching each began, ns.
        ends: when each ended on the host, ns; shorter than `keys` for what users observe.
        phase: index into ``semconv.PHASES``.
        mark: the mark, or the user's array, to watch; None: more steps may join, or the next observation's counts.
        place: (number of leaves, index of the array) in the observed output.
        own: `mark` is one of the device clock, or will be; not an array of the user.
        exclusive: nobody else holds `mark`, so that a thread may wait for it.
        announced: the journal has a record of this observation.
        regular: the steps have a mark of the device clock, and none of them waited for a compilation.
        busy_at: when it was last seen not to be ready, ns; 0: never looked at.
        ready_at: when the training thread saw it to be ready, ns; 0: not yet.
        idle_by: a mark that is ready by then (ns) had no work in front of it; the work ended by the host's clock.
        results: outputs that must be ready no later than `mark`; used to check the order of marks.
    """

    __slots__ = (
        "_last", "_latest", "_settled", "_waiting", "announced", "busy_at", "ends", "exclusive", "idle_by", "keys",
        "mark", "own", "phase", "place", "ready_at", "regular", "results", "starts",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        phase: int,
        start: int,
        mark: Any,
        place: tuple[int, int] = ALONE,
        *,
        own: bool = False,
        exclusive: bool = False,
        announced: bool = False,
    ) -> None:
        self.keys = [key]
        self.starts = [start]
        self.ends: list[int] = []
        self.phase = phase
        self.mark = mark
        self.place = place
        self.own = self.regular = own
        self.exclusive = exclusive
        self.announced = announced
        self.busy_at = self.ready_at = self.idle_by = 0
        self.results: Any = ()
        self._latest = key
        self._settled = False
        self._last: int | None = None  # duration of the step that joined last, ns
        self._waiting: dict[int, Callable[[int | None], None]] = {}

    @property
    def start(self) -> int:
        """When dispatching began, ns."""
        return self.starts[0]

    def join(self, key: int, start: int, end: int) -> None:
        """Add another step, whose work is on the device before `mark` is ready."""
        self._latest, self._settled = key, False
        self.starts.append(start)
        self.ends.append(end)
        self.keys.append(key)  # last: the watching thread counts keys

    def then(self, export: Callable[[int | None], None]) -> None:
        """Call `export` with the duration on the device of the step that joined last (ns; None: unknown)."""
        self._waiting[self._latest] = export
        if self._settled:
            self._call(self._latest, self._last)

    def settle(self, durations: Sequence[int | None]) -> None:
        """Set the durations on the device of the first steps, which leave this, ns; None if one will never be known."""
        count = len(durations)
        keys = self.keys[:count]
        del self.keys[:count], self.starts[:count], self.ends[:count]
        if not self.keys:
            self.mark = None
            self.results = ()
            if count:
                self._last, self._settled = durations[-1], True
        for key in tuple(self._waiting):  # few of many
            if key in keys:
                self._call(key, durations[keys.index(key)])

    def _call(self, key: int, duration: int | None) -> None:
        # then() and settle() may run in any order and on different threads; pop() lets only one of them call.
        export = self._waiting.pop(key, None)
        if export is not None:
            export(duration)
