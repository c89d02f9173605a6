"""Successive executions of steps in at most 1,024 bins of equal count, in order of completion.

The first 1,024 executions are a bin each. When bins do not reach any more, neighbors become one: first every sixteen,
since small bins cost the most, then every two. A rollback changes the fate of kept executions (rule R4): the bins
follow by the length of the kept stack when each began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, TypeAlias

from otel_goodput._accounting.codec import COUNT, NUMBER, Each, Optional, Pairs, State, Whole, field
from otel_goodput._accounting.overview import BINS, STEP_BIN, Spread, StepBin
from otel_goodput._accounting.stats import median

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

    count: int = field(COUNT, 0)
    _power: int = field(Whole(0, 65), 0, key="size_log2")  # a bin is full with 2**_power executions
    _bins: list[StepBin] = field(Each(STEP_BIN), make=list)  # full; `lost` is in `_losts`
    _losts: list[int] = field(Each(COUNT), make=list, key="lost")  # of each bin, the open one included
    # Length of the kept stack when each bin began.
    _lows: list[int] = field(Each(COUNT), make=list, key="kept_before")
    _open: StepBin | None = field(Optional(STEP_BIN), key="open_bin")
    _raw: list[list[int]] = field(
        Each(Each(NUMBER), COLUMNS), make=lambda: [[] for _ in range(COLUMNS)], key="executions"
    )
    # Kept index -> ordinal, for those that are not in the bin that `_lows` tells.
    _stray: dict[int, int] = field(Pairs(COUNT, COUNT), make=dict, key="displaced")

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
