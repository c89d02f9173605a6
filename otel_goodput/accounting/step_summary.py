"""What is remembered of all executions of steps in bounded space: bins, histograms, and those that stand out.

A rollback changes the fate of kept executions (rule R4). The histograms follow, because of each kept execution its
*profile* is remembered: the buckets in which it is counted. Only of those behind the latest million none is; they stay
counted as kept. The bins follow by the length of the kept stack when each began.

Nearly all executions are kept on top of the stack. These are only noted when they are over, and taken in batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from math import log2
from typing import Any, Final

from otel_goodput.accounting import proof
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.overview import (
    BINS,
    BUCKETS_AN_OCTAVE,
    DEVICE,
    IN_FLIGHT,
    KEPT,
    LOST,
    NET,
    NO_STEP_DONE,
    NOT_KNOWN,
    STEPS_KEPT,
    WALL,
    Spread,
    StepBin,
    StepEntry,
    bucket_of,
)
from otel_goodput.accounting.profiles import Blob, Profiles
from otel_goodput.accounting.stats import median

LEAF: Final = 64  # executions with an exact median; medians of bins of more are means of theirs
SLOW: Final = 1.5  # an execution stands out if it takes so many times the median of some before it
FEW: Final = 8  # of them, to begin with
BATCH: Final = 256
ATTEMPTS: Final = 200  # with histograms of their own; older ones are counted with the oldest of these

_BITS: Final = 10
_FIELD: Final = (1 << _BITS) - 1
_MEASURES: Final = (NET, WALL, DEVICE)
Counts = dict[int, int]  # by (fate, measure, bucket), packed
Row = tuple[int, int, int, int, int]  # of an execution: number, start, net, outside, device; -1: not known


def profile_of(execution: Execution) -> int:
    """The buckets of its net time, wall time and time on the device, packed; 0 in each place that is not known."""
    profile = bucket_of(execution.net) + 1
    if execution.wall >= 0:
        profile |= bucket_of(execution.wall) + 1 << _BITS
    if execution.timed:
        profile |= bucket_of(execution.busy) + 1 << 2 * _BITS
    return profile


class StepSummary:
    """All executions of the steps of a run that are over."""

    __slots__ = (
        "_bins", "_counts", "_fresh", "_kept", "_losts", "_lows", "_notable", "_oldest", "_open", "_own", "_power",
        "_profiles", "_raw", "_recent", "_stray", "_usual", "count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0  # executions over, but for those that did no step
        self._fresh: list[Execution] = []  # pushed and not taken yet: all of one attempt, and final
        self._profiles = Profiles()  # of the kept executions
        self._counts: dict[int, Counts] = {}  # by attempt; clones share those that are not in `_own`
        self._own: set[int] = set()
        self._oldest = 0  # attempt
        # Bins, in order of completion, of 2**_power executions each; the open one is made of `_open`, which is merged
        # from leaves, and of `_raw`.
        self._power = 0
        self._bins: list[StepBin] = []  # full; `lost` is in `_losts`
        self._losts: list[int] = []  # of each bin, the open one included
        self._lows: list[int] = []  # length of the kept stack when each bin began
        self._open: StepBin | None = None
        self._raw: list[Row] = []
        self._stray: dict[int, int] = {}  # kept index -> ordinal, for those that are not in the bin that `_lows` tells
        self._notable: dict[int, StepEntry] = {}  # by ordinal
        self._kept: dict[int, int] = {}  # kept index -> ordinal, of those that stand out
        self._recent: list[int] = []
        self._usual = 0  # ns; 0 while not known

    def clone(self) -> StepSummary:
        twin = StepSummary.__new__(StepSummary)
        for name in ("count", "_oldest", "_power", "_open", "_usual"):
            setattr(twin, name, getattr(self, name))
        for name in ("_counts", "_bins", "_losts", "_lows", "_raw", "_stray", "_notable", "_kept", "_recent", "_fresh"):
            setattr(twin, name, getattr(self, name).copy())
        twin._profiles = self._profiles.clone()
        self._own, twin._own = set(), set()
        return twin

    # --- what happens -------------------------------------------------------------------------------------------------

    def push(self, execution: Execution) -> None:
        """Take an execution that did not fail and is kept on top of the stack."""
        self._fresh.append(execution)
        if len(self._fresh) >= BATCH:
            self.flush()

    def settle(self, execution: Execution, fate: int, length: int) -> None:
        """Take any other execution that is over, or that turned out to be of another `fate`.

        `length` is that of the kept stack before it.
        """
        self.flush()
        profile = execution.profile = profile_of(execution)
        attempt = execution.step_segment.life.number
        self._add(attempt, fate, profile, 1)
        if fate == NO_STEP_DONE:
            return
        ordinal = execution.ordinal
        if ordinal < 0:
            ordinal = execution.ordinal = self.count
            self._bin([_row(execution)], length)
            failed = execution.failed and not execution.left
            if failed or (self._usual and execution.net > SLOW * self._usual):
                self._note(ordinal, _entry(execution, fate, attempt))
        elif ordinal in self._notable:
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=fate)
        if fate == LOST:
            self._losts[ordinal >> self._power] += 1

    def keep(self, index: int, execution: Execution) -> None:
        """An execution that was settled is kept at `index` of the stack."""
        ordinal = execution.ordinal
        for held in (self._stray, self._kept):
            if held and max(held) >= index:
                moved = {at + (at >= index): one for at, one in held.items()}
                held.clear()
                held.update(moved)
        if index < len(self._profiles):
            self._lows = [low + (low > index) for low in self._lows]
        self._profiles.insert(index, execution.profile)
        if bisect_right(self._lows, index) - 1 != ordinal >> self._power:
            self._stray[index] = ordinal
        if ordinal in self._notable:
            self._kept[index] = ordinal

    def take_back(self, execution: Execution, fate: int) -> None:
        """The execution was settled with this `fate`, and is going to be settled anew."""
        self.flush()
        self._add(execution.step_segment.life.number, fate, execution.profile, -1)
        if fate == LOST:
            self._losts[execution.ordinal >> self._power] -= 1

    def lose_from(self, index: int) -> list[int]:
        """Count the kept entries from `index` on as lost in the bins; returns their profiles, for :meth:`lose`."""
        self.flush()
        for at in [at for at in self._stray if at >= index]:
            self._losts[bisect_right(self._lows, at) - 1] -= 1
            self._losts[self._stray.pop(at) >> self._power] += 1
        for at in [at for at in self._kept if at >= index]:
            ordinal = self._kept.pop(at)
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=LOST)
        end = len(self._profiles)
        for at in range(len(self._lows) - 1, -1, -1):
            begin = max(self._lows[at], index)
            self._losts[at] += end - begin
            end = begin
            if self._lows[at] <= index:
                break
            self._lows[at] = index
        return self._profiles.pop_from(index)

    def lose(self, attempt: int, profiles: Iterable[int]) -> None:
        """Count kept executions of `attempt` with these profiles as lost in the histograms."""
        for profile, count in Counter(profiles).items():
            self._add(attempt, KEPT, profile, -count)
            self._add(attempt, LOST, profile, count)

    def flush(self) -> None:
        """Take the executions that were pushed."""
        fresh = self._fresh
        if not fresh:
            return
        self._fresh = []
        length = len(self._profiles)
        rows = [(one.number, one.start, one.net, one.outside, one.busy if one.timed else NOT_KNOWN) for one in fresh]
        attempt = fresh[0].step_segment.life.number
        profiles = [0] * len(rows)
        lengths = [row[2] for row in rows], [one.wall for one in fresh], [row[4] for row in rows]
        own: list[int] = []  # of the net times: nearly always those of the wall times, too
        for measure, known in zip(_MEASURES, lengths, strict=True):
            if max(known) < 0:
                continue
            if own and known == lengths[NET]:
                fields = own
            else:
                # As bucket_of, inlined, and one more; 0 where the length is not known.
                fields = [int(log2(ns) * BUCKETS_AN_OCTAVE) + 1 if ns > 1 else int(ns >= 0) for ns in known]
                own = own or fields
            shift = measure * _BITS
            profiles = [profile | field << shift for profile, field in zip(profiles, fields, strict=True)]
            for field, count in Counter(fields).items():
                self._add(attempt, KEPT, field << shift, count)
        self._watch(fresh, lengths[0], attempt, length)
        self._bin(rows, length)
        self._profiles.extend(profiles)

    def __len__(self) -> int:
        """Number of kept executions."""
        return len(self._profiles) + len(self._fresh)

    # --- histograms ---------------------------------------------------------------------------------------------------

    def _add(self, attempt: int, fate: int, profile: int, sign: int) -> None:
        attempt = max(attempt, self._oldest)
        counts = self._counts.get(attempt)
        if counts is None:
            counts = self._counts[attempt] = {}
            self._own.add(attempt)
            if len(self._counts) > ATTEMPTS:
                self._fold()
        elif attempt not in self._own:
            counts = self._counts[attempt] = counts.copy()
            self._own.add(attempt)
        base = fate << 2 * _BITS
        while profile:
            field = profile & _FIELD
            if field:
                key = base | field - 1
                counts[key] = counts.get(key, 0) + sign
            base += 1 << _BITS
            profile >>= _BITS

    def _fold(self) -> None:
        """Count the oldest attempt with the one after it."""
        oldest, after = sorted(self._counts)[:2]
        counts = self._counts[after].copy()
        for key, count in self._counts.pop(oldest).items():
            counts[key] = counts.get(key, 0) + count
        self._counts[after] = counts
        self._own.add(after)
        self._own.discard(oldest)
        self._oldest = after

    # --- bins ---------------------------------------------------------------------------------------------------------

    def _bin(self, rows: list[Row], length: int) -> None:
        """Put executions into bins; `length` is that of the kept stack before the first, and all others are kept."""
        at = 0
        while at < len(rows):
            begun = self.count & (1 << self._power) - 1
            if not begun:
                if len(self._bins) >= BINS:
                    self._widen()
                    begun = self.count & (1 << self._power) - 1
                self._lows.append(length + at)
                self._losts.append(0)
            part = rows[at : at + min(LEAF - len(self._raw), (1 << self._power) - begun)]
            at += len(part)
            self._raw += part
            self.count += len(part)
            if len(self._raw) == LEAF or not self.count & (1 << self._power) - 1:
                leaf = _leaf(self._raw)
                self._raw = []
                self._open = leaf if self._open is None else _merged(self._open, leaf)
                if self._open.count == 1 << self._power:
                    self._bins.append(self._open)
                    self._open = None

    def _widen(self) -> None:
        """Join every two bins. The open one is empty; their number is even."""
        self._bins = [_merged(*pair) for pair in zip(self._bins[::2], self._bins[1::2], strict=True)]
        self._losts = [one + other for one, other in zip(self._losts[::2], self._losts[1::2], strict=True)]
        self._lows = self._lows[::2]
        self._power += 1
        self._stray = {
            index: ordinal
            for index, ordinal in self._stray.items()
            if bisect_right(self._lows, index) - 1 != ordinal >> self._power
        }

    # --- what stands out ----------------------------------------------------------------------------------------------

    def _watch(self, fresh: list[Execution], nets: list[int], attempt: int, length: int) -> None:
        """Note those that took long among kept ones, the first of which is at `length` of the stack."""
        at = 0
        while at < len(nets):
            part = nets[at : at + (LEAF if self._usual else FEW) - len(self._recent)]
            if self._usual and max(part) > SLOW * self._usual:
                for place, net in enumerate(part, at):
                    if net > SLOW * self._usual:
                        self._kept[length + place] = self.count + place
                        self._note(self.count + place, _entry(fresh[place], KEPT, attempt))
            at += len(part)
            self._recent += part
            if len(self._recent) >= (LEAF if self._usual else FEW):
                self._usual = median(self._recent)
                self._recent = []

    def _note(self, ordinal: int, entry: StepEntry) -> None:
        self._notable[ordinal] = entry
        if len(self._notable) > STEPS_KEPT:
            self._thin()

    def _thin(self) -> None:
        """Forget the shorter half."""
        longest = sorted(self._notable, key=lambda ordinal: -self._notable[ordinal].net)[: STEPS_KEPT // 2]
        self._notable = {ordinal: self._notable[ordinal] for ordinal in sorted(longest)}
        self._kept = {index: ordinal for index, ordinal in self._kept.items() if ordinal in self._notable}

    # --- the answer ---------------------------------------------------------------------------------------------------

    def bins(self) -> list[StepBin]:
        """All bins; the last may hold fewer executions than the others."""
        self.flush()
        bins = self._bins.copy()
        if self._raw:
            leaf = _leaf(self._raw)
            bins.append(leaf if self._open is None else _merged(self._open, leaf))
        elif self._open is not None:
            bins.append(self._open)
        return [one._replace(lost=lost) for one, lost in zip(bins, self._losts, strict=True)]

    def histogram(self, running: Iterable[Execution]) -> dict[tuple[int, int, int, int], int]:
        """Executions by (measure, attempt, fate, bucket)."""
        self.flush()
        found = {
            (key >> _BITS & 3, attempt, key >> 2 * _BITS, key & _FIELD): count
            for attempt, counts in self._counts.items()
            for key, count in counts.items()
            if count
        }
        for execution in running:
            profile = profile_of(execution)
            for measure in _MEASURES:
                if field := profile >> measure * _BITS & _FIELD:
                    key = measure, max(execution.step_segment.life.number, self._oldest), IN_FLIGHT, field - 1
                    found[key] = found.get(key, 0) + 1
        return found

    def notable(self, running: Iterable[Execution]) -> list[StepEntry]:
        """Executions that stand out, in order of their start."""
        self.flush()
        slow = [one for one in running if self._usual and one.net > SLOW * self._usual]
        late = [_entry(one, IN_FLIGHT, one.step_segment.life.number) for one in slow]
        return sorted((*self._notable.values(), *late), key=lambda entry: entry.begin)

    def dump(self) -> tuple[dict[str, Any], list[Blob]]:
        """All of it as (plain data, blobs)."""
        self.flush()
        profiles, blobs = self._profiles.dump()
        state = {
            "profiles": profiles,
            "count": self.count,
            "oldest": self._oldest,
            "counts": [[attempt, list(counts.items())] for attempt, counts in self._counts.items()],
            "power": self._power,
            "bins": self._bins,
            "losts": self._losts,
            "lows": self._lows,
            "open": self._open,
            "raw": self._raw,
            "stray": list(self._stray.items()),
            "notable": list(self._notable.items()),
            "kept": list(self._kept.items()),
            "recent": self._recent,
            "usual": self._usual,
        }
        return state, blobs

    @classmethod
    def load(cls, state: dict[str, Any], blobs: bytes) -> StepSummary:
        """Rebuild it from what :meth:`dump` returned, with the blobs at the end of `blobs`.

        Raises:
            ValueError: it contradicts itself.
        """
        summary = cls()
        summary._profiles = Profiles.load(state["profiles"], blobs)
        summary.count, summary._oldest, summary._power = state["count"], state["oldest"], state["power"]
        summary._counts = {attempt: dict(map(tuple, counts)) for attempt, counts in state["counts"]}
        summary._bins = [_step_bin(one) for one in state["bins"]]
        summary._losts, summary._lows = state["losts"], state["lows"]
        summary._open = None if state["open"] is None else _step_bin(state["open"])
        summary._raw = [(number, start, net, outside, device) for number, start, net, outside, device in state["raw"]]
        summary._stray, summary._kept = dict(map(tuple, state["stray"])), dict(map(tuple, state["kept"]))
        summary._notable = {ordinal: StepEntry(*entry) for ordinal, entry in state["notable"]}
        summary._recent, summary._usual = state["recent"], state["usual"]
        full = len(summary._bins)
        held = (full << summary._power) + len(summary._raw) + (summary._open.count if summary._open else 0)
        begun = full + bool(summary._raw or summary._open)
        if not (held == summary.count and begun == len(summary._lows) == len(summary._losts) and full <= BINS):
            raise ValueError("the step bins of a snapshot contradict each other")
        if len(summary._raw) >= LEAF or len(summary._notable) > STEPS_KEPT or len(summary._recent) >= max(LEAF, FEW):
            raise ValueError("a snapshot holds more steps than it should")
        summary._prove()
        return summary

    def _prove(self) -> None:
        proof.whole((self.count, self._oldest, self._power, self._usual, *self._losts, *self._lows, *self._recent), 0)
        for attempt, counts in self._counts.items():
            proof.whole((attempt, *counts, *counts.values()), 0)
        for one in (*self._bins, *([self._open] if self._open else [])):
            proof.whole((*one[:5], *(number for spread in one[5:] if spread for number in spread)))
        for row in (*self._raw, *self._stray.items(), *self._kept.items(), *self._notable.values()):
            proof.whole(row)
        lowest, begun = min((*self._stray.values(), 0)), len(self._lows)
        if lowest < 0 or max((*self._stray.values(), 0)) >> self._power > begun or self._power > 64:
            raise ValueError("the step bins of a snapshot contradict each other")
        if not self._notable.keys() >= set(self._kept.values()) or len(self._counts) > ATTEMPTS + 1:
            raise ValueError("the steps of a snapshot contradict each other")


def _row(execution: Execution) -> Row:
    device = execution.busy if execution.timed else NOT_KNOWN
    return execution.number, execution.start, execution.net, execution.outside, device


def _entry(execution: Execution, fate: int, attempt: int) -> StepEntry:
    device = execution.busy if execution.timed else NOT_KNOWN
    number, start, wall, net = execution.number, execution.start, execution.wall, execution.net
    return StepEntry(attempt, number, start, wall, net, device, fate, execution.key)


def _step_bin(state: Sequence[Any]) -> StepBin:
    spreads = (None if one is None else Spread(*one) for one in state[5:])
    return StepBin(*state[:5], *spreads)


def _spread(lengths: list[int]) -> Spread | None:
    known = sorted(length for length in lengths if length >= 0)
    return Spread(known[0], median(known, ordered=True), known[-1]) if known else None


def _leaf(raw: list[Row]) -> StepBin:
    numbers, starts, nets, outsides, devices = map(list, zip(*raw, strict=True))
    spreads = _spread(nets), _spread(outsides), _spread(devices)
    return StepBin(min(numbers), max(numbers), starts[0], len(raw), 0, *spreads)


def _merged(one: StepBin, other: StepBin) -> StepBin:
    def joined(mine: Spread | None, theirs: Spread | None) -> Spread | None:
        if mine is None or theirs is None:
            return mine or theirs
        middle = (mine.median * one.count + theirs.median * other.count) // (one.count + other.count)
        return Spread(min(mine.min, theirs.min), middle, max(mine.max, theirs.max))

    first, last = min(one.first, other.first), max(one.last, other.last)
    count, lost = one.count + other.count, one.lost + other.lost
    spreads = joined(one.net, other.net), joined(one.outside, other.outside), joined(one.device, other.device)
    return StepBin(first, last, one.begin, count, lost, *spreads)
