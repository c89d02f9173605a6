"""What is remembered of all executions of steps in bounded space: bins, histograms, and those that stand out.

The histograms follow a rollback (rule R4), because of each kept execution its *profile* is remembered: the buckets in
which it is counted. Only of those behind the latest million none is; they stay counted as kept.

Bins are at most 1,024, of equal count, in order of completion; at first, each is one execution. When they do not reach
any more, neighbors become one: first every sixteen, since small bins cost the most, then every two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from otel_goodput._accounting import codec, overview
from otel_goodput._accounting.codec import Blobs, Each, Optional, Pairs, Part, State, Whole, field
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import BINS, NOT_KNOWN, STEPS_KEPT, Spread, StepBin, StepEntry, bucket_of
from otel_goodput._accounting.progress import Profiles
from otel_goodput._accounting.rules import DATA_LOADING_TIME
from otel_goodput._accounting.stats import median

ATTEMPTS: Final = 200  # with histograms of their own; older ones are counted with the oldest of these
MEASURES: Final = (overview.NET, overview.WALL, overview.DEVICE)

BITS: Final = 10
_FIELD: Final = (1 << BITS) - 1


def profile_of(execution: Execution) -> int:
    """The buckets of its net time, wall time and time on the device, packed; 0 in each place that is not known."""
    profile = bucket_of(execution.net) + 1
    if execution.wall >= 0:
        profile |= bucket_of(execution.wall) + 1 << BITS
    if execution.timed:
        profile |= bucket_of(execution.busy) + 1 << 2 * BITS
    return profile


def _keys(profile: int, fate: int) -> Iterator[int]:
    """Where executions with this profile and fate are counted."""
    for measure in MEASURES:
        if field := profile >> measure * BITS & _FIELD:
            yield (fate << BITS | measure) << BITS | field - 1


class Tallies(State):
    """Counts of executions by attempt, and by fate and profile. Counts of an attempt are replaced, never changed."""

    _counts: dict[int, Mapping[int, int]] = field(
        Pairs(codec.COUNT, Pairs(codec.COUNT, codec.COUNT, replaced=True), ATTEMPTS + 1), make=dict, key="histogram"
    )
    _oldest: int = field(codec.COUNT, 0, key="oldest_attempt")

    def add(self, attempt: int, changes: Iterable[tuple[int, int]]) -> None:
        """Count more executions of `attempt`: (key, number) pairs."""
        attempt = max(attempt, self._oldest)
        counts = dict(self._counts.get(attempt, {}))
        for key, count in changes:
            counts[key] = max(0, counts.get(key, 0) + count)  # below 0: a snapshot was forged
        self._counts[attempt] = counts
        if len(self._counts) > ATTEMPTS:  # the oldest attempt is counted with the one after it
            oldest, self._oldest = sorted(self._counts)[:2]
            self.add(self._oldest, self._counts.pop(oldest).items())

    def answer(self, running: Iterable[Execution]) -> dict[tuple[int, int, int, int], int]:
        """Executions by (measure, attempt, fate, bucket), those that are `running` included."""
        tallies = Tallies()
        tallies._counts, tallies._oldest = self._counts.copy(), self._oldest
        for execution in running:
            tallies.add(execution.attempt, ((key, 1) for key in _keys(profile_of(execution), overview.IN_FLIGHT)))
        return {
            (key >> BITS & 3, attempt, key >> 2 * BITS, key & _FIELD): count
            for attempt, counts in tallies._counts.items()
            for key, count in counts.items()
            if count
        }


LEAF: Final = 64  # executions with an exact median; medians of bins of more are means of theirs
COLUMNS: Final = 5
FIRST: Final = 4  # of the bins that are made of single executions: the power of two

# Of executions, in order: numbers, starts, net times, times outside, times on the device; -1 where one is not known.
Columns: TypeAlias = "Sequence[list[int]]"


class StepBins(State):
    """All executions of the steps of a run that are over and did a step. An ordinal is the `count` before it.

    The open bin is made of `_open`, which is merged from leaves, and of `_raw`, which holds all while bins are single
    executions.
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
        held = (full << self._power) + raw + (self._open.count if self._open else 0)
        begun = full + bool(raw or self._open) if self._power else raw
        if (
            any(one.count != 1 << self._power for one in self._bins)
            or not (held == self.count and begun == len(self._lows) == len(self._losts))
            or max((*self._stray.values(), 0)) >> self._power > begun
        ):
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
            bins = [_single(*row) for row in zip(*self._raw, strict=True)]
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


def _single(number: int, start: int, net: int, outside: int, device: int) -> StepBin:
    """Return the same of one execution."""
    spreads = (Spread(length, length, length) if length >= 0 else None for length in (net, outside, device))
    return StepBin(number, number, start, 1, 0, *spreads)


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


SLOW: Final = 1.5  # an execution stands out if it takes so many times the median of some before it
SAMPLE: Final = 64  # that many
FEW: Final = 8  # of them, to begin with
BATCH: Final = 512

Steps: TypeAlias = "tuple[list[int], ...]"
"""Of executions, in order: numbers, starts, net times, wall times, times outside, times on the device, keys."""


class StepSummary(State):
    """All executions of the steps of a run that are over."""

    _profiles: Profiles = field(Part(lambda: Profiles), make=Profiles)  # of the kept executions
    tallies: Tallies = field(Part(lambda: Tallies), make=Tallies)
    bins: StepBins = field(Part(lambda: StepBins), make=StepBins)
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
        self._fresh = rows_of(())

    def loaded(self) -> None:
        self._fresh = rows_of(())
        if not self._notable.keys() >= set(self._kept.values()):
            raise ValueError("steps that stand out are not there")

    def to_plain(self, blobs: Blobs) -> dict[str, Any]:
        self.flush()
        return super().to_plain(blobs)

    def clone(self) -> StepSummary:
        twin = super().clone()
        twin._fresh = tuple(map(list.copy, self._fresh))
        return twin

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
        self.tallies.add(attempt, ((key, 1) for key in _keys(profile, fate)))
        if fate == overview.NO_STEP_DONE:
            return
        ordinal = execution.ordinal
        if ordinal < 0:
            ordinal = execution.ordinal = self.bins.count
            numbers, starts, nets, _, outsides, devices, _ = rows_of((execution,))
            self.bins.add([numbers, starts, nets, outsides, devices], len(self._profiles))
            failed = execution.failed and not execution.left
            if failed or (self._usual and execution.own > SLOW * self._usual):
                self._note(ordinal, _entry(execution, fate))
        elif ordinal in self._notable:
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=fate)
        if fate == overview.LOST:
            self.bins.lose(ordinal)

    def keep(self, index: int, execution: Execution, *, inserted: bool) -> None:
        """Take an execution that is kept at `index` of the stack, `inserted` below others or on top."""
        if not inserted and not execution.failed and execution.ordinal < 0:
            self.push(execution.attempt, rows_of((execution,)))
            return
        self._settle(execution, overview.KEPT)
        ordinal = execution.ordinal
        if self._kept and max(self._kept) >= index:
            self._kept = {at + (at >= index): one for at, one in self._kept.items()}
        self.bins.keep(index, ordinal, inserted=index < len(self._profiles))
        self._profiles.extend([execution.profile, *self._profiles.pop_from(index)])
        if ordinal in self._notable:
            self._kept[index] = ordinal

    def take_back(self, execution: Execution, fate: int) -> None:
        """Undo :meth:`discard`: the execution is going to be taken anew."""
        self.flush()
        counted = _keys(execution.profile, overview.FATES[fate])
        self.tallies.add(execution.attempt, ((key, -1) for key in counted))
        if overview.FATES[fate] == overview.LOST:
            self.bins.lose(execution.ordinal, -1)

    def move(self, stall: Execution, source: int, target: int) -> None:
        """What stalled is counted with its step."""

    def lengthen(self, index: int, stall: Execution) -> None:
        """What stalled is counted with its step all along."""

    def lose_from(self, index: int, durations: object, attempts: Iterable[tuple[int, int, int]]) -> None:
        """Count the kept entries from `index` on as lost; `attempts`: number, and begin and end of its entries."""
        self.flush()
        for at in [at for at in self._kept if at >= index]:
            ordinal = self._kept.pop(at)
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=overview.LOST)
        self.bins.lose_from(index, len(self._profiles))
        profiles = self._profiles.pop_from(index)
        for attempt, begin, end in attempts:
            counts = Counter(profiles[begin - index : end - index]).items()
            for fate, sign in ((overview.KEPT, -1), (overview.LOST, 1)):
                changes = ((key, sign * count) for profile, count in counts for key in _keys(profile, fate))
                self.tallies.add(attempt, changes)

    def flush(self) -> None:
        """Take the executions that were pushed."""
        numbers, starts, nets, walls, outsides, devices, keys = self._fresh
        if not numbers:
            return
        self._fresh = rows_of(())
        length, attempt = len(self._profiles), self._attempt
        profiles = own = _fields(nets)
        changes = [*Counter(own).items()]
        for measure, lengths in ((overview.WALL, walls), (overview.DEVICE, devices)):
            if max(lengths) < 0:
                continue
            shift = measure * BITS
            fields = own if lengths == nets else _fields(lengths)
            profiles = [one | part << shift for one, part in zip(profiles, fields, strict=True)]
            changes += ((part << shift, count) for part, count in Counter(fields).items())
        tally = ((key, count) for part, count in changes for key in _keys(part, overview.KEPT))
        self.tallies.add(attempt, tally)
        for place in self._watch(nets):
            self._kept[length + place] = self.bins.count + place
            columns = attempt, numbers[place], starts[place], walls[place], nets[place], devices[place]
            self._note(self.bins.count + place, StepEntry(*columns, overview.KEPT, keys[place]))
        self.bins.add([numbers, starts, nets, outsides, devices], length)
        self._profiles.extend(profiles)

    def __len__(self) -> int:
        """Number of kept executions."""
        return len(self._profiles) + len(self._fresh[0])

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
        if len(self._notable) > STEPS_KEPT:  # the shorter half is forgotten
            longest = sorted(self._notable, key=lambda ordinal: -self._notable[ordinal].net)[: STEPS_KEPT // 2]
            self._notable = {ordinal: self._notable[ordinal] for ordinal in sorted(longest)}
            self._kept = {index: ordinal for index, ordinal in self._kept.items() if ordinal in self._notable}

    def notable(self, running: Iterable[Execution]) -> list[StepEntry]:
        """Executions that stand out, in order of their start; nothing may be left to flush."""
        slow = [one for one in running if self._usual and one.own > SLOW * self._usual]
        entries = [*self._notable.values(), *(_entry(one, overview.IN_FLIGHT) for one in slow)]
        return sorted(entries, key=lambda entry: entry.begin)


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


def _entry(execution: Execution, fate: int) -> StepEntry:
    attempt, number, start, wall = execution.attempt, execution.number, execution.start, execution.wall
    return StepEntry(attempt, number, start, wall, execution.own, _device(execution), fate, execution.key)


def _fields(lengths: list[int]) -> list[int]:
    """As bucket_of, inlined, and one more; 0 where the length is not known."""
    return [bisect_right(overview.BEGINS, length) for length in lengths]
