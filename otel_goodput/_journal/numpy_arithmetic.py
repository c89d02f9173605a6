"""Arithmetic with columns of times by numpy, if it is installed: with the same results as the plain one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from otel_goodput._accounting.arithmetic import PLAIN, WHOLE, Arithmetic, Common, Lengths
from otel_goodput._accounting.events import Column

MANY: Final = 100_000  # records: with so many, it pays to load numpy
_SHORT: Final = "I"


class NumpyArithmetic(Arithmetic):
    """Arithmetic by `numpy`, a module. Columns that it returns hold integers of Python."""

    def __init__(self, numpy: Any) -> None:
        self.numpy = numpy

    def array(self, column: Any, code: str = WHOLE) -> array[int]:
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
        return self.array(self._read(times) + by)

    def lengths(self, begins: Column, ends: Column) -> Lengths:
        begun, ended = self._read(begins), self._read(ends)
        steps = ended - begun
        shortest, longest = int(steps.min()), int(steps.max())
        load = int((begun[1:] - ended[:-1]).min()) if len(steps) > 1 else shortest
        short = shortest >= 0 and not longest >> 32
        packed = self.array(steps.astype(self.numpy.uint32), _SHORT) if short else self.array(steps)
        return Lengths(packed, int(steps.sum()), shortest, longest, load)

    def common(self, begins: Sequence[Column], ends: Sequence[Column], middle: int) -> Common:
        numpy = self.numpy
        begun = numpy.array([self._read(column) for column in begins])
        ended = numpy.array([self._read(column) for column in ends])
        last = len(begins) - 1 - begun[::-1].argmax(axis=0)
        latest = begun.max(axis=0)
        begun.partition(middle, axis=0)
        columns = latest, last, begun[middle], ended.min(axis=0), ended.max(axis=0)
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
