"""Arithmetic with columns of times by numpy, if it is installed: with the same results as the plain one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from otel_goodput._accounting.arithmetic import PLAIN, WHOLE, Arithmetic, Common, Dispatched, Lengths
from otel_goodput._accounting.events import UNSTRIDE, Column, TurnColumns, key_behind

MANY: Final = 100_000  # records: with so many, it pays to load numpy
KEY: Final = "Q"  # of arrays of keys
_SHORT: Final = "I"
_HALF: Final = 1 << 31


class NumpyArithmetic(Arithmetic):
    """Arithmetic by `numpy`, a module. Columns that it returns hold integers of Python."""

    def __init__(self, numpy: Any) -> None:
        self.numpy = numpy

    def packed(self, column: Any, code: str = WHOLE) -> array[int]:
        """Return numbers of numpy as an array."""
        made = array(code)
        made.frombytes(column.tobytes())
        return made

    def _read(self, column: Column) -> Any:
        """Return a column for numpy, which does not change it; an array is not copied."""
        if isinstance(column, array) and column.typecode == WHOLE:
            return self.numpy.frombuffer(column, self.numpy.int64)
        return self.numpy.array(column, self.numpy.int64)

    def moved(self, times: Column, by: int) -> Column:
        return self.packed(self._read(times) + by)

    def sum_and_least(self, column: Column) -> tuple[int, int]:
        read = self.numpy.asarray(column)
        return int(read.sum()), int(read.min())

    def lengths(self, begins: Column, ends: Column) -> Lengths:
        begun, ended = self._read(begins), self._read(ends)
        steps = ended - begun
        shortest, longest = int(steps.min()), int(steps.max())
        load = int((begun[1:] - ended[:-1]).min()) if len(steps) > 1 else shortest
        short = shortest >= 0 and not longest >> 32
        packed = self.packed(steps.astype(self.numpy.uint32), _SHORT) if short else self.packed(steps)
        return Lengths(packed, int(steps.sum()), shortest, longest, load)

    def left(self, turns: TurnColumns) -> tuple[array[int], dict[int, int]]:
        numpy, device, count = self.numpy, turns.device, len(turns.numbers)
        if device is None or not len(device.keys):
            return super().left(turns)
        keys = numpy.frombuffer(array(KEY, device.keys), numpy.uint64)
        times = numpy.maximum(self._read(device.times), 1)
        places = (keys - numpy.uint64(key_behind(turns.key, 2))) * numpy.uint64(UNSTRIDE)
        inside = (places < 2 * count) & (places % 2 == 0)
        left = numpy.zeros(count, numpy.int64)
        left[places[inside] // 2] = times[inside]
        return self.packed(left), dict(zip(keys[~inside].tolist(), times[~inside].tolist(), strict=True))

    def dispatched(
        self, now: int, freed: Sequence[int], begins: Column, ends: Column, left: Column, limit: int
    ) -> Dispatched | None:
        numpy, gone = self.numpy, self._read(left)
        begun, ended, frees = self._read(begins), self._read(ends), numpy.array(freed, numpy.int64)
        waiting = numpy.full(len(freed) - 1, now, numpy.int64)
        free = numpy.concatenate((frees, gone))
        overs = numpy.maximum(numpy.concatenate((waiting, ended)), free[1:])
        owned = numpy.maximum(numpy.concatenate((waiting, begun)), numpy.concatenate(([now], overs[:-1])))
        lengths = overs - owned
        unsound = (free[:-1] > free[1:]) | (lengths > limit)
        unsound[len(waiting) :] |= begun > gone
        sound = int(unsound.argmax()) if unsound.any() else len(unsound)
        short = bool(len(lengths)) and lengths.min() >= 0 and not int(lengths.max()) >> 32
        packed = self.packed(lengths.astype(numpy.uint32), _SHORT) if short else self.packed(lengths)
        return Dispatched(self.packed(owned), self.packed(overs), packed, sound)

    def common(self, begins: Sequence[Column], ends: Sequence[Column], middle: int) -> Common:
        numpy = self.numpy
        begun = numpy.array([self._read(column) for column in begins])
        ended = numpy.array([self._read(column) for column in ends])
        last = len(begins) - 1 - begun[::-1].argmax(axis=0)
        latest = begun.max(axis=0)
        # In rows, and as small numbers if they are, they are sorted in a third of the time.
        first, rows = begun[0].copy(), numpy.ascontiguousarray((begun - begun[0]).T)
        if rows.min() >= -_HALF and rows.max() < _HALF:
            rows = rows.astype(numpy.int32)
        rows.partition(middle, axis=1)
        columns = latest, last, rows[:, middle] + first, ended.min(axis=0), ended.max(axis=0)
        return Common(*(column.tolist() for column in columns))


def arithmetic(records: int) -> Arithmetic:
    """Return what to compute with, where there are so many records."""
    return PLAIN if records < MANY else _quick()


@cache
def _quick() -> Arithmetic:
    try:
        import numpy as np
    except Exception:  # there is none, or it is broken
        return PLAIN
    return NumpyArithmetic(np)
