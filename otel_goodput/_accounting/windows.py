"""Windows: parts of the timeline with an exact account of their own, in addition to that of the whole run.

The time in an exclusion (rule R7) is subtracted from the run; the time in an exact window (rule R8) is reported. The
overlay weighs the time that passes by what holds whoever owns it: shares of slices, and unknown ends of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_goodput._accounting import codec
from otel_goodput._accounting.codec import Each, Optional, Pairs, Row, State, Weight, field
from otel_goodput._accounting.device import NEVER
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.rules import EXCLUDED, EXCLUDED_TIME, STALLED_KEPT, SUSPENDED_TIME, WASTED_PROGRESS

Shares = tuple[float, float]
Weighted = Sequence[float]  # ns: [slices known, stepping, available, clock unknown]

NOTHING: Final[Weighted] = (0, 0, 0, 0)
SUSPENSION: Final = -1  # in place of the key of an exclusion
WEIGHTED: Final = Row(*[Weight()] * len(NOTHING), make=list)
_SHARES: Final = Row(Weight(), Weight())


class Overlay(State):
    """Shares of slices and the state of the steps' clock, weighted by the time for which they held.

    Attributes:
        shares: current shares (0 to 1) of all slices that are stepping and that are available; None until reported.
        unknown: nobody knows when the latest step ended on the device.
        time: the sums, weighted ns.
        between: slice shares reported since the last job ended, each with its time (ns).
    """

    shares: Shares | None = field(Optional(_SHARES), key="slice_shares")
    unknown: bool = field(codec.FLAG, False, key="clock_unknown")
    time: list[float] = field(WEIGHTED, make=lambda: [*NOTHING], key="weighted_times")
    between: list[tuple[int, Shares]] = field(Each(Row(codec.NUMBER, _SHARES)), make=list, key="shares_between_jobs")

    def weigh(self, into: list[float], spent: int) -> None:
        """Add `spent` ns, weighted, to the sums `into` (laid out like `time`)."""
        if self.unknown:
            into[3] += spent
        if self.shares is not None:
            into[0] += spent
            into[1] += self.shares[0] * spent
            into[2] += self.shares[1] * spent


Edge = tuple[int, int, bool]


class Window(State):
    """Time that passed while the window was open.

    Attributes:
        bit: the window's bit in the mask of open windows.
        elapsed, weighted: how long it was open while a job ran, ns; the overlay's sums for that time.
        totals: ns by category number, without steps.
        kept, kept_total: ns by index in the kept stack, for the entries with own time in the window; their sum.
        discarded: ns of executions that are not kept, by the category that gets it.
    """

    bit: int = field(codec.MASK)
    elapsed: int = field(codec.COUNT, 0)
    totals: dict[int, int] = field(codec.BY_CATEGORY, make=dict)
    kept: dict[int, int] = field(Pairs(codec.COUNT, codec.NUMBER), make=dict)
    kept_total = 0
    discarded: dict[int, int] = field(codec.BY_CATEGORY, make=dict)
    weighted: list[float] = field(WEIGHTED, make=lambda: [*NOTHING], key="weighted_times")

    def __init__(self, bit: int) -> None:
        super().__init__()
        self.bit = bit

    def loaded(self) -> None:
        self.kept_total = sum(self.kept.values())

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        """Follow an execution that is kept at `index` of the stack, `inserted` below others or on top."""
        if inserted:
            self.kept = {at + (at >= index): duration for at, duration in self.kept.items()}
        self._add(index, execution)

    def _add(self, index: int, execution: Execution) -> None:
        if duration := execution.shared(self.bit):
            self.kept[index] = self.kept.get(index, 0) + duration
            self.kept_total += duration

    def _credit(self, fate: int, duration: int) -> None:
        if duration:
            self.discarded[fate] = self.discarded.get(fate, 0) + duration

    def discard(self, execution: Execution, fate: int) -> None:
        """Follow an execution that is not kept: the category `fate` gets its time."""
        self._credit(fate, execution.shared(self.bit))

    def take_back(self, execution: Execution, fate: int) -> None:
        """Undo :meth:`discard`."""
        self._credit(fate, -execution.shared(self.bit))

    def move(self, stall: Execution, source: int, target: int) -> None:
        """Move stalled time from one category to another."""
        self.take_back(stall, source)
        self.discard(stall, target)

    def lengthen(self, index: int, stall: Execution) -> None:
        """What stalled is time of the kept entry at `index` after all."""
        self.take_back(stall, STALLED_KEPT)
        self._add(index, stall)

    def lose_from(self, index: int, durations: Sequence[int], attempts: object) -> None:
        """Count the kept entries from `index` on, as many as there are `durations`, as wasted."""
        for lost in range(index, index + len(durations)) if self.kept else ():
            duration = self.kept.pop(lost, 0)
            self.kept_total -= duration
            self._credit(WASTED_PROGRESS, duration)


class WindowSet(State):
    """Which windows are open. `edges` are (time in ns, window index, opens?), known in advance and in time order.

    A ledger has none, so what follows from them is not stored. Window 0 is the excluded time.
    """

    exclusions: set[int] = field(Each(codec.KEY, make=set), make=set)  # keys of the open exclusion phases
    _edges: Sequence[Edge] = ()
    _next = 0
    _excluded = 0  # how many exclusions known in advance are open
    _opened = 0  # mask of open windows, without exclusions

    def __init__(self, edges: Sequence[Edge] = ()) -> None:
        super().__init__()
        self._edges = tuple(edges)

    @property
    def mask(self) -> int:
        """Bits of the open windows."""
        return EXCLUDED if self.exclusions or self._excluded else self._opened

    @property
    def cut_out(self) -> int:
        """What excluded time is for a job of several ranks (rule R11)."""
        return SUSPENDED_TIME if SUSPENSION in self.exclusions else EXCLUDED_TIME

    @property
    def due(self) -> int:
        """Time of the next edge known in advance, ns."""
        return self._edges[self._next][0] if self._next < len(self._edges) else NEVER

    def move(self, time: int) -> None:
        """Apply the edges up to `time` (ns)."""
        while self.due <= time:
            _, window, opens = self._edges[self._next]
            self._next += 1
            if window == 0:
                self._excluded += 1 if opens else -1
            elif opens:
                self._opened |= 1 << window
            else:
                self._opened &= ~(1 << window)


def leading(pieces: list[tuple[int, int]], duration: int, bit: int) -> int:
    """How many of the first `duration` ns of `pieces` passed while the window `bit` was open."""
    inside = 0
    for length, mask in pieces:
        if duration <= 0:
            break
        if mask & bit:
            inside += min(length, duration)
        duration -= length
    return inside
