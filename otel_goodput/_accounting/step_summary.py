"""What is remembered of all executions of steps in bounded space: bins, histograms, and those that stand out.

A rollback changes the fate of kept executions (rule R4). The histograms follow, because of each kept execution its
*profile* is remembered: the buckets in which it is counted. Only of those behind the latest million none is; they stay
counted as kept.

Nearly all executions are kept on top of the stack. These are only noted when they are over, and taken in batches.

Bins are at most 1,024, of equal count, in order of completion. The first 1,024 executions are a bin each. When bins do
not reach any more, neighbors become one: first every sixteen, since small bins cost the most, then every two. They
follow a rollback by the length of the kept stack when each began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from otel_goodput._accounting import codec, overview
from otel_goodput._accounting.codec import Blobs, Each, Optional, Pairs, Part, State, Whole, field
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import BINS, NOT_KNOWN, STEPS_KEPT, Spread, StepBin, StepEntry, bucket_of
from otel_goodput._accounting.progress import Profiles
from otel_goodput._accounting.rules import DATA_LOADING_TIME
from otel_goodput._accounting.stats import median

# --- histograms -------------------------------------------------------------------------------------------------------

ATTEMPTS: Final = 200  # with histograms of their own; older ones are counted with the oldest of these
MEASURES: Final = (overview.NET, overview.WALL, overview.DEVICE)

BITS: Final = 10
_FIELD: Final = (1 << BITS) - 1
Counts = dict[int, int]  # by (fate, measure, bucket), packed


def profile_of(execution: Execution) -> int:
    """The buckets of its net time, wall time and time on the device, packed; 0 in each place that is not known."""
    profile = bucket_of(execution.net) + 1
    if execution.wall >= 0:
        profile |= bucket_of(execution.wall) + 1 << BITS
    if execution.timed:
        profile |= bucket_of(execution.busy) + 1 << 2 * BITS
    return profile


class Tallies(State):
    """Counts of executions by their profiles."""

    # By attempt; clones share those that are not in `_own`.
    _counts: dict[int, Counts] = field(
        Pairs(codec.COUNT, Pairs(codec.COUNT, codec.COUNT, replaced=True), ATTEMPTS + 1), make=dict, key="histogram"
    )
    _oldest: int = field(codec.COUNT, 0, key="oldest_attempt")
    _own: frozenset[int] = frozenset()

    def clone(self) -> Tallies:
        self._own = frozenset()
        return super().clone()

    def add(self, attempt: int, fate: int, profile: int, count: int) -> None:
        """Count `count` more executions of `attempt` with this fate and profile."""
        attempt = max(attempt, self._oldest)
        counts = self._counts.get(attempt)
        if counts is None:
            counts = self._counts[attempt] = {}
            self._own |= {attempt}
            if len(self._counts) > ATTEMPTS:
                self._fold()
        elif attempt not in self._own:
            counts = self._counts[attempt] = counts.copy()
            self._own |= {attempt}
        base = fate << 2 * BITS
        while profile:
            field = profile & _FIELD
            if field:
                key = base | field - 1
                counts[key] = max(0, counts.get(key, 0) + count)  # below 0: a snapshot was forged
            base += 1 << BITS
            profile >>= BITS

    def _fold(self) -> None:
        """Count the oldest attempt with the one after it."""
        oldest, after = sorted(self._counts)[:2]
        counts = self._counts[after].copy()
        for key, count in self._counts.pop(oldest).items():
            counts[key] = counts.get(key, 0) + count
        self._counts[after] = counts
        self._own |= {after}
        self._own -= {oldest}
        self._oldest = after

    def answer(self, running: Iterable[Execution]) -> dict[tuple[int, int, int, int], int]:
        """Executions by (measure, attempt, fate, bucket), those that are `running` included."""
        counts_by = {
            (key >> BITS & 3, attempt, key >> 2 * BITS, key & _FIELD): count
            for attempt, counts in self._counts.items()
            for key, count in counts.items()
            if count
        }
        for execution in running:
            profile = profile_of(execution)
            for measure in MEASURES:
                if field := profile >> measure * BITS & _FIELD:
                    key = measure, max(execution.attempt, self._oldest), overview.IN_FLIGHT, field - 1
                    counts_by[key] = counts_by.get(key, 0) + 1
        return counts_by


# --- bins -------------------------------------------------------------------------------------------------------------

LEAF: Final = 64  # executions with an exact median; medians of bins of more are means of theirs
COLUMNS: Final = 5
FIRST: Final = 4  # of the bins that are made of single executions: the power of two

# Of executions, in order: numbers, starts, net times, times outside, times on the device; -1 where one is not known.
Columns: TypeAlias = "Sequence[list[int]]"


class StepBins(State):
    """All executions of the steps of a run that are over and did a step.

    The open bin is made of `_open`, which is merged from leaves, and of `_raw`, which holds all while bins are single
    executions.

    Attributes:
        count: how many there are; an execution's ordinal is the count before it.
    """

    count: int = field(codec.COUNT, 0)
    _power: int = field(Whole(0, 65), 0, key="size_log2")  # a bin is full with 2**_power executions
    _bins: list[StepBin] = field(Each(overview.STEP_BIN), make=list)  # full; `lost` is in `_losts`
    _losts: list[int] = field(Each(codec.COUNT), make=list, key="lost")  # of each bin, the open one included
    # Length of the kept stack when each bin began.
    _lows: list[int] = field(Each(codec.COUNT), make=list, key="kept_before")
    _open: StepBin | None = field(Optional(overview.STEP_BIN), key="open_bin")
    _raw: list[list[int]] = field(
        Each(Each(codec.NUMBER), COLUMNS), make=lambda: [[] for _ in range(COLUMNS)], key="executions"
    )
    # Kept index -> ordinal, for those that are not in the bin that `_lows` tells.
    _stray: dict[int, int] = field(Pairs(codec.COUNT, codec.COUNT), make=dict, key="displaced")

    def loaded(self) -> None:
        full, raw = len(self._bins), len(self._raw[0]) if self._raw else 0
        if full > BINS or raw >= (LEAF if self._power else BINS + 1):
            raise ValueError("there are more step bins than there should be")
        if [len(column) for column in self._raw] != COLUMNS * [raw]:
            raise ValueError("executions without all that is known of one")
        if any(one.count != 1 << self._power for one in self._bins):
            raise ValueError("the step bins contradict each other")
        held = (full << self._power) + raw + (self._open.count if self._open else 0)
        begun = full + bool(raw or self._open) if self._power else raw
        if not (held == self.count and begun == len(self._lows) == len(self._losts)):
            raise ValueError("the step bins contradict each other")
        if max((*self._stray.values(), 0)) >> self._power > begun:
            raise ValueError("the step bins contradict each other")

    def add(self, columns: Columns, length: int) -> None:
        """Take executions; `length` is that of the kept stack before the first, and all others are kept."""
        at, count = 0, len(columns[0])
        while at < count:
            full = (1 << self._power) - 1
            if not self.count & full and len(self._lows) >= BINS:
                self._widen()
                continue
            if not self._power:
                taken = min(count - at, BINS - self.count)
                self._lows += range(length + at, length + at + taken)
                self._losts += bytes(taken)
            else:
                if not self.count & full:
                    self._lows.append(length + at)
                    self._losts.append(0)
                taken = min(count - at, LEAF - len(self._raw[0]), full + 1 - (self.count & full))
            for raw, column in zip(self._raw, columns, strict=True):
                raw += column[at : at + taken]
            at += taken
            self.count += taken
            if self._power and (len(self._raw[0]) == LEAF or not self.count & full):
                self._close_leaf(full)

    def _close_leaf(self, full: int) -> None:
        leaf = _leaf(self._raw)
        self._raw = [[] for _ in range(COLUMNS)]
        self._open = leaf if self._open is None else _merged(self._open, leaf)
        if self._open.count > full:
            self._bins.append(self._open)
            self._open = None

    def lose(self, ordinal: int, count: int = 1) -> None:
        """Count that execution as lost; `count` -1 takes that back."""
        self._losts[ordinal >> self._power] += count

    def keep(self, index: int, ordinal: int, *, inserted: bool) -> None:
        """That execution is kept at `index` of the stack, `inserted` below others or on top."""
        if self._stray and max(self._stray) >= index:
            self._stray = {at + (at >= index): one for at, one in self._stray.items()}
        if inserted:
            self._lows = [low + (low > index) for low in self._lows]
        if bisect_right(self._lows, index) - 1 != ordinal >> self._power:
            self._stray[index] = ordinal

    def lose_from(self, index: int, end: int) -> None:
        """Count the kept entries from `index` up to `end`, the length of the stack, as lost."""
        for at in [at for at in self._stray if at >= index]:
            self._losts[bisect_right(self._lows, at) - 1] -= 1
            self._losts[self._stray.pop(at) >> self._power] += 1
        for at in range(len(self._lows) - 1, -1, -1):
            begin = max(self._lows[at], index)
            self._losts[at] += end - begin
            end = begin
            if self._lows[at] <= index:
                break
            self._lows[at] = index

    def _widen(self) -> None:
        """Join neighbors. The open bin is empty; the number of bins is a multiple of how many become one."""
        if self._power:
            self._power += 1
            step = 2
            self._bins = [_merged(*pair) for pair in zip(self._bins[::2], self._bins[1::2], strict=True)]
        else:
            self._power = FIRST
            step = 1 << FIRST
            self._bins = [_leaf([column[at : at + step] for column in self._raw]) for at in range(0, self.count, step)]
            self._raw = [[] for _ in range(COLUMNS)]
        self._losts = [sum(self._losts[at : at + step]) for at in range(0, len(self._losts), step)]
        self._lows = self._lows[::step]
        self._stray = {
            index: ordinal
            for index, ordinal in self._stray.items()
            if bisect_right(self._lows, index) - 1 != ordinal >> self._power
        }

    def answer(self) -> list[StepBin]:
        """All bins; the last may hold fewer executions than the others."""
        bins = self._bins.copy()
        if not self._power:
            bins = [_leaf([[number] for number in row]) for row in zip(*self._raw, strict=True)]
        elif self._raw[0]:
            leaf = _leaf(self._raw)
            bins.append(leaf if self._open is None else _merged(self._open, leaf))
        elif self._open is not None:
            bins.append(self._open)
        return [one._replace(lost=lost) for one, lost in zip(bins, self._losts, strict=True)]


def _spread(lengths: list[int]) -> Spread | None:
    known = sorted(lengths)
    if known[0] < 0:
        del known[: bisect_right(known, -1)]
    return Spread(known[0], median(known, ordered=True), known[-1]) if known else None


def _leaf(columns: Columns) -> StepBin:
    numbers, starts, nets, outsides, devices = columns
    spreads = _spread(nets), _spread(outsides), _spread(devices) if max(devices) >= 0 else None
    return StepBin(min(numbers), max(numbers), starts[0], len(numbers), 0, *spreads)


def _merged(one: StepBin, other: StepBin) -> StepBin:
    first, last, begin, count, lost, net, outside, device = one
    least, greatest, _, more, others, *theirs = other
    return StepBin(
        first if first < least else least,
        last if last > greatest else greatest,
        begin,
        count + more,
        lost + others,
        _joined(net, theirs[0], count, more),
        _joined(outside, theirs[1], count, more),
        _joined(device, theirs[2], count, more),
    )


def _joined(mine: Spread | None, theirs: Spread | None, count: int, more: int) -> Spread | None:
    """Merge the spreads of `count` executions and of `more` others."""
    if mine is None or theirs is None:
        return mine or theirs
    low, middle, high = mine
    lower, other, higher = theirs
    middle = (middle * count + other * more) // (count + more)
    return Spread(low if low < lower else lower, middle, high if high > higher else higher)


# --- all of it --------------------------------------------------------------------------------------------------------

SLOW: Final = 1.5  # an execution stands out if it takes so many times the median of some before it
SAMPLE: Final = 64  # that many
FEW: Final = 8  # of them, to begin with
BATCH: Final = 256

Steps: TypeAlias = "tuple[list[int], ...]"
"""Of executions, in order: numbers, starts, net times, wall times, times outside, times on the device, keys."""


def no_steps() -> Steps:
    return [], [], [], [], [], [], []


class StepSummary(State):
    """All executions of the steps of a run that are over."""

    _profiles: Profiles = field(Part(lambda: Profiles), make=Profiles)  # of the kept executions
    _tallies: Tallies = field(Part(lambda: Tallies), make=Tallies)
    _bins: StepBins = field(Part(lambda: StepBins), make=StepBins)
    # By ordinal.
    _notable: dict[int, StepEntry] = field(
        Pairs(codec.COUNT, overview.STEP_ENTRY, STEPS_KEPT), make=dict, key="outliers"
    )
    # Kept index -> ordinal, of those that stand out: as bounded as `_notable`, which holds each ordinal here.
    _kept: dict[int, int] = field(Pairs(codec.NUMBER, codec.NUMBER, STEPS_KEPT), make=dict, key="kept_outliers")
    _recent: list[int] = field(Each(codec.COUNT, max(SAMPLE, FEW) - 1), make=list, key="recent_net_times")
    _usual: int = field(codec.COUNT, 0, key="usual_net_time")  # ns; 0 while not known
    _fresh: Steps  # executions pushed and not taken yet, all of one attempt
    _attempt = 0  # theirs

    def __init__(self) -> None:
        super().__init__()
        self._fresh = no_steps()

    def loaded(self) -> None:
        self._fresh = no_steps()
        if not self._notable.keys() >= set(self._kept.values()):
            raise ValueError("steps that stand out are not there")

    def to_plain(self, blobs: Blobs) -> dict[str, Any]:
        self.flush()
        return super().to_plain(blobs)

    def clone(self) -> StepSummary:
        twin = super().clone()
        twin._fresh = tuple(map(list.copy, self._fresh))
        return twin

    # --- what happens -------------------------------------------------------------------------------------------------

    def push(self, attempt: int, steps: Steps) -> None:
        """Take executions of `attempt` that did not fail and are kept on top of the stack."""
        self._attempt = attempt
        for fresh, more in zip(self._fresh, steps, strict=True):
            fresh += more
        if len(self._fresh[0]) >= BATCH:
            self.flush()

    def discard(self, execution: Execution, fate: int) -> None:
        """Take an execution that is over and not kept: the category `fate` gets its time."""
        if fate != DATA_LOADING_TIME:  # a batch that the loop skipped is no step
            self._settle(execution, overview.FATES[fate])

    def _settle(self, execution: Execution, fate: int) -> None:
        self.flush()
        profile = execution.profile = profile_of(execution)
        attempt = execution.attempt
        self._tallies.add(attempt, fate, profile, 1)
        if fate == overview.NO_STEP_DONE:
            return
        ordinal = execution.ordinal
        if ordinal < 0:
            ordinal = execution.ordinal = self._bins.count
            numbers, starts, nets, _, outsides, devices, _ = rows_of((execution,))
            self._bins.add([numbers, starts, nets, outsides, devices], len(self._profiles))
            failed = execution.failed and not execution.left
            if failed or (self._usual and execution.own > SLOW * self._usual):
                self._note(ordinal, _entry(execution, fate, attempt))
        elif ordinal in self._notable:
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=fate)
        if fate == overview.LOST:
            self._bins.lose(ordinal)

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        """Take an execution that is kept at `index` of the stack, `inserted` below others or on top."""
        if not inserted and not execution.failed and execution.ordinal < 0:
            self.push(execution.attempt, rows_of((execution,)))
            return
        self._settle(execution, overview.KEPT)
        ordinal = execution.ordinal
        if self._kept and max(self._kept) >= index:
            self._kept = {at + (at >= index): one for at, one in self._kept.items()}
        self._bins.keep(index, ordinal, inserted=index < len(self._profiles))
        self._profiles.insert(index, execution.profile)
        if ordinal in self._notable:
            self._kept[index] = ordinal

    def take_back(self, execution: Execution, fate: int) -> None:
        """Undo :meth:`discard`: the execution is going to be taken anew."""
        self.flush()
        self._tallies.add(execution.attempt, overview.FATES[fate], execution.profile, -1)
        if overview.FATES[fate] == overview.LOST:
            self._bins.lose(execution.ordinal, -1)

    def move(self, stall: Execution, source: int, target: int) -> None:
        """What stalled is counted with its step."""

    def lengthen(self, index: int, stall: Execution) -> None:
        """What stalled is counted with its step all along."""

    def lose_from(self, index: int, durations: object, attempts: Iterable[tuple[int, int, int]]) -> None:
        """Count the kept entries from `index` on as lost.

        `attempts`: number of an attempt, and begin and end of its entries in the stack.
        """
        self.flush()
        for at in [at for at in self._kept if at >= index]:
            ordinal = self._kept.pop(at)
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=overview.LOST)
        self._bins.lose_from(index, len(self._profiles))
        profiles = self._profiles.pop_from(index)
        for attempt, begin, end in attempts:
            for profile, count in Counter(profiles[begin - index : end - index]).items():
                self._tallies.add(attempt, overview.KEPT, profile, -count)
                self._tallies.add(attempt, overview.LOST, profile, count)

    def flush(self) -> None:
        """Take the executions that were pushed."""
        numbers, starts, nets, walls, outsides, devices, keys = self._fresh
        if not numbers:
            return
        self._fresh = no_steps()
        length, attempt = len(self._profiles), self._attempt
        profiles = own = fields = _fields(nets)
        for measure, lengths in zip(MEASURES, (nets, walls, devices), strict=True):
            if max(lengths) < 0:
                continue
            shift = measure * BITS
            if measure:
                fields = own if lengths == nets else _fields(lengths)
                profiles = [one | part << shift for one, part in zip(profiles, fields, strict=True)]
            for part, count in Counter(fields).items():
                self._tallies.add(attempt, overview.KEPT, part << shift, count)
        for place in self._watch(nets):
            self._kept[length + place] = self._bins.count + place
            columns = attempt, numbers[place], starts[place], walls[place], nets[place], devices[place]
            self._note(self._bins.count + place, StepEntry(*columns, overview.KEPT, keys[place]))
        self._bins.add([numbers, starts, nets, outsides, devices], length)
        self._profiles.extend(profiles)

    def __len__(self) -> int:
        """Number of kept executions."""
        return len(self._profiles) + len(self._fresh[0])

    # --- what stands out ----------------------------------------------------------------------------------------------

    def _watch(self, nets: list[int]) -> list[int]:
        """Places of those among successive net times that stand out."""
        at = 0
        places: list[int] = []
        while at < len(nets):
            part = nets[at : at + (SAMPLE if self._usual else FEW) - len(self._recent)]
            if self._usual and max(part) > SLOW * self._usual:
                places += [place for place, net in enumerate(part, at) if net > SLOW * self._usual]
            at += len(part)
            self._recent += part
            if len(self._recent) >= (SAMPLE if self._usual else FEW):
                self._usual = median(self._recent)
                self._recent = []
        return places

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
        return self._bins.answer()

    def histogram(self, running: Iterable[Execution]) -> dict[tuple[int, int, int, int], int]:
        """Executions by (measure, attempt, fate, bucket)."""
        self.flush()
        return self._tallies.answer(running)

    def notable(self, running: Iterable[Execution]) -> list[StepEntry]:
        """Executions that stand out, in order of their start."""
        self.flush()
        slow = [one for one in running if self._usual and one.own > SLOW * self._usual]
        late = [_entry(one, overview.IN_FLIGHT, one.attempt) for one in slow]
        return sorted((*self._notable.values(), *late), key=lambda entry: entry.begin)


def rows_of(executions: Sequence[Execution]) -> Steps:
    """Executions in order."""
    return (
        [each.number for each in executions],
        [each.start for each in executions],
        [each.own for each in executions],
        [each.wall for each in executions],
        [each.outside for each in executions],
        [_device(each) for each in executions],
        [each.key for each in executions],
    )


def _device(execution: Execution) -> int:
    return execution.busy if execution.timed else NOT_KNOWN


def _entry(execution: Execution, fate: int, attempt: int) -> StepEntry:
    number, start, wall, net = execution.number, execution.start, execution.wall, execution.own
    return StepEntry(attempt, number, start, wall, net, _device(execution), fate, execution.key)


def _fields(lengths: list[int]) -> list[int]:
    """As bucket_of, inlined, and one more; 0 where the length is not known."""
    return [bisect_right(overview.BEGINS, length) for length in lengths]
