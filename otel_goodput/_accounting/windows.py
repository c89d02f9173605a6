"""Windows: parts of the timeline with an exact account of their own, in addition to that of the whole run.

The time in an exclusion (rule R7) is subtracted from the run; the time in an exact window (rule R8) is reported. A
window is open or closed at any moment. Time that passes while it is open is also counted in it.

The overlay has facts that hold along the timeline whoever owns the time, each as a weight on the time that passes: the
shares of slices, and whether the ends of steps are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_goodput._accounting import codec
from otel_goodput._accounting.codec import Each, Optional, Pairs, Row, State, Weight, field
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.rules import EXCLUDED, STALLED_KEPT, WASTED_PROGRESS

Shares = tuple[float, float]
Weighted = Sequence[float]  # ns: [slices known, stepping, available, clock unknown]

NOTHING: Final[Weighted] = (0, 0, 0, 0)
WEIGHTED: Final = Row(*[Weight()] * len(NOTHING), make=list)
_SHARES: Final = Row(Weight(), Weight())


class Overlay(State):
    """Shares of slices and the state of the steps' clock, weighted by the time for which they held.

    Attributes:
        shares: current shares (0 to 1) of all slices that are stepping and that are available; None until reported.
        unknown: nobody knows when the latest step ended on the device.
        weights: the current weight of a nanosecond in each of the sums; None if all are 0.
        time: the sums, weighted ns.
        between: slice shares reported since the last job ended, each with its time (ns).
    """

    shares: Shares | None = field(Optional(_SHARES), key="slice_shares")
    unknown: bool = field(codec.FLAG, False, key="clock_unknown")
    time: list[float] = field(WEIGHTED, make=lambda: [*NOTHING], key="weighted_times")
    between: list[tuple[int, Shares]] = field(Each(Row(codec.NUMBER, _SHARES)), make=list, key="shares_between_jobs")
    weights: tuple[float, ...] | None = None

    def share(self, shares: Shares) -> None:
        """Use these shares of stepping and available slices from now on."""
        self.shares = shares
        self._weigh_anew()

    def blur(self, unknown: bool) -> None:
        """Set whether the ends of steps are unknown from now on."""
        self.unknown = unknown
        self._weigh_anew()

    def _weigh_anew(self) -> None:
        known = self.shares is not None
        stepping, available = self.shares or (0, 0)
        self.weights = (int(known), stepping, available, int(self.unknown)) if known or self.unknown else None

    def weigh(self, into: list[float], spent: int) -> None:
        """Add `spent` ns, weighted, to the sums `into` (laid out like `time`)."""
        if self.weights is not None:
            for at, weight in enumerate(self.weights):
                into[at] += weight * spent

    def loaded(self) -> None:
        self._weigh_anew()


def shares_of(active: int, available: int, total: int) -> Shares:
    """Shares of slices that are stepping and available; both are 0 if `total` is 0."""
    return (active / total, available / total) if total > 0 else (0.0, 0.0)


Edge = tuple[int, int, bool]


class Window(State):
    """Time that passed while the window was open.

    Attributes:
        bit: the window's bit in the mask of open windows.
        elapsed: ns that the window was open while a job ran.
        totals: ns by category number, without steps.
        kept: ns by index in the kept stack, for the entries with own time in the window.
        kept_total: sum of `kept`.
        discarded: ns of executions that are not kept, by the category that gets it.
        weighted: the overlay's sums for that time, weighted ns as in ``Overlay.time``.
    """

    bit: int = field(codec.MASK)
    elapsed: int = field(codec.COUNT, 0)
    totals: dict[int, int] = field(codec.BY_CATEGORY, make=dict)
    kept: dict[int, int] = field(Pairs(codec.COUNT, codec.NUMBER), make=dict)
    kept_total: int = field(codec.NUMBER, 0)
    discarded: dict[int, int] = field(codec.BY_CATEGORY, make=dict)
    weighted: list[float] = field(WEIGHTED, make=lambda: [*NOTHING], key="weighted_times")

    def __init__(self, bit: int) -> None:
        super().__init__()
        self.bit = bit

    def loaded(self) -> None:
        if self.kept_total != sum(self.kept.values()):
            raise ValueError("it does not add up")

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        """Follow an execution that is kept at `index` of the stack, `inserted` below others or on top."""
        if inserted:
            self.kept = {at + (at >= index): duration for at, duration in self.kept.items()}
        if duration := execution.shared(self.bit):
            self.kept[index] = duration
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
        self._credit(source, -stall.shared(self.bit))
        self._credit(target, stall.shared(self.bit))

    def lengthen(self, index: int, stall: Execution) -> None:
        """What stalled is time of the kept entry at `index` after all."""
        self.take_back(stall, STALLED_KEPT)
        if duration := stall.shared(self.bit):
            self.kept[index] = self.kept.get(index, 0) + duration
            self.kept_total += duration

    def lose_from(self, index: int, durations: Sequence[int], attempts: object) -> None:
        """Count the kept entries from `index` on, as many as there are `durations`, as wasted."""
        end = index + len(durations)
        for lost in [i for i in self.kept if i >= index] if len(self.kept) < len(durations) else range(index, end):
            duration = self.kept.pop(lost, 0)
            self.kept_total -= duration
            self._credit(WASTED_PROGRESS, duration)

    def kept_from(self, index: int) -> int:
        return sum(duration for i, duration in self.kept.items() if i >= index)


class WindowSet(State):
    """Tracks which windows are open.

    Args:
        edges: (time in ns, window index, opens?) known in advance, in time order; window 0 is the excluded time.
    """

    _next: int = field(codec.COUNT, 0)
    _excluded: int = field(codec.COUNT, 0)  # number of open exclusions
    _opened: int = field(codec.MASK, 0)  # mask of open windows, without exclusions
    exclusions: set[int] = field(Each(codec.KEY, make=set), make=set)  # keys of the open exclusion phases
    _edges: Sequence[Edge] = ()

    def __init__(self, edges: Sequence[Edge] = ()) -> None:
        super().__init__()
        self._edges = tuple(edges)

    @property
    def mask(self) -> int:
        """Bits of the open windows."""
        return EXCLUDED if self._excluded else self._opened

    @property
    def due(self) -> int | None:
        """Time of the next edge known in advance, ns; None if there is none."""
        return self._edges[self._next][0] if self._next < len(self._edges) else None

    def move(self, time: int) -> None:
        """Apply the edges up to `time` (ns)."""
        while self._next < len(self._edges) and self._edges[self._next][0] <= time:
            _, window, opens = self._edges[self._next]
            self._next += 1
            if window == 0:
                self._excluded = max(0, self._excluded + (1 if opens else -1))
            elif opens:
                self._opened |= 1 << window
            else:
                self._opened &= ~(1 << window)

    def exclude(self, key: int) -> None:
        """Begin the exclusion `key`."""
        if key not in self.exclusions:
            self.exclusions.add(key)
            self._excluded += 1

    def include(self, key: int) -> None:
        """End the exclusion `key`."""
        self.exclusions.remove(key)
        self._excluded -= 1

    def forget(self) -> None:
        """End all open exclusion phases, because their process is gone."""
        self._excluded -= len(self.exclusions)
        self.exclusions.clear()


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
