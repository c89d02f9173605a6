"""The records of an undisturbed loop, of which a segment has thousands in a row, read together, as columns."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, repeat
from operator import and_, le, sub
from typing import Any, Final
from zlib import crc32

from otel_goodput._accounting.arithmetic import WHOLE, Arithmetic
from otel_goodput._accounting.events import KEYS, TurnColumns
from otel_goodput._journal.numpy_arithmetic import NumpyArithmetic, arithmetic
from otel_goodput._journal.records import (
    BODY,
    HEADER_SIZE,
    LARGEST,
    LOAD,
    SEALED,
    SIZE,
    TURN,
    TURN_FIELDS,
    TURN_STRIDE,
    Names,
    Record,
    Skip,
    beat_of,
    decode_header,
    decode_records,
    used,
)

FEWEST: Final = 64  # turns: fewer are read one by one
_RUNS: Final = re.compile(b"%c{%d,}" % (TURN, FEWEST))
_CHECK: Final = 0xFFFF
_records = 0  # read so far
_EARLIEST: Final = LOAD - LARGEST  # a time from which a load can be subtracted
_STRIDES: Final = frozenset({TURN_STRIDE & KEYS, (TURN_STRIDE & KEYS) - KEYS - 1})


def decode_columns(
    data: bytes, names: Names, skip: int, skipped: list[Skip], columns: list[TurnColumns]
) -> Iterator[Record]:
    """The same as :func:`~otel_goodput._journal.records.decode_segment`, but with most turns in `columns`.

    In their place are records of the kind ``TURN``, whose `step` is the place in `columns`. There are single turns
    before and after each.
    """
    header = decode_header(data)
    body = data[HEADER_SIZE + skip * SIZE : HEADER_SIZE + used(data) * SIZE]
    global _records
    _records += len(body) // SIZE
    read = _reading(arithmetic(_records))
    at = 0
    for run in _RUNS.finditer(body[::SIZE]):
        first, behind = run.start() + 1, run.end() - 1
        turns = read(body[first * SIZE : behind * SIZE])
        if turns is not None:
            yield from decode_records(body[at * SIZE : first * SIZE], names, skip + at, skipped)
            yield Record(TURN, 0, 0, "", turns.key, len(columns), turns.time)
            columns.append(turns)
            at = behind
    yield from decode_records(body[at * SIZE :], names, skip + at, skipped)
    yield from beat_of(header)


def turn_columns(rows: bytes) -> TurnColumns | None:
    """Return what ``TURN`` records stand for; None if one cannot be verified, or they are not those of one loop."""
    bodies, checks = zip(*SEALED.iter_unpack(rows), strict=True)
    if (*map(and_, map(crc32, bodies), repeat(_CHECK)),) != checks or any(rows[1::SIZE]):
        return None
    keys, loads, numbers, times = zip(*TURN_FIELDS.iter_unpack(rows), strict=True)
    following = range(numbers[0], numbers[0] + len(numbers))
    ended = (*map(sub, times, loads),)
    if (
        numbers != (*following,)
        or not _STRIDES.issuperset(map(sub, islice(keys, 1, None), keys))
        or not all(map(le, times, islice(ended, 1, None)))
    ):
        return None
    return TurnColumns(keys[0], array(WHOLE, ended), array(WHOLE, times), following)


def with_numpy(quick: NumpyArithmetic) -> Callable[[bytes], TurnColumns | None]:
    """Return what does the same as :func:`turn_columns` in a tenth of the time."""
    numpy = quick.numpy
    fields = numpy.dtype(
        {
            "names": ["key", "load", "number", "time"],
            "formats": ["<u8", "<u4", "<u4", "<i8"],
            "offsets": [6, 14, 18, 22],
            "itemsize": SIZE,
        }
    )
    # A checksum is the exclusive or of one number for each 16 bits of the body, and of that of a body of zeros.
    empty = crc32(bytes(BODY.size)) & _CHECK
    parts: list[Any] = []
    for place in range(0, BODY.size, 2):
        part = numpy.zeros(1, numpy.uint16)
        for bit in range(16):
            body = bytes(place) + (1 << bit).to_bytes(2, "little") + bytes(BODY.size - place - 2)
            part = numpy.concatenate((part, part ^ numpy.uint16((crc32(body) & _CHECK) ^ empty)))
        parts.append(part)

    def columns(rows: bytes) -> TurnColumns | None:
        words = numpy.ascontiguousarray(numpy.frombuffer(rows, "<u2").reshape(-1, SIZE // 2).T)
        check = words[-1] ^ numpy.uint16(empty)
        for part, column in zip(parts, words, strict=False):
            check ^= part[column[0]] if (column == column[0]).all() else part.take(column)
        if check.any() or any(rows[1::SIZE]):
            return None
        read = numpy.frombuffer(rows, fields)
        times, numbers = read["time"].astype(numpy.int64), read["number"].astype(numpy.int64)
        ended, first = times - read["load"], int(numbers[0])
        if (
            (numpy.diff(read["key"]) != numpy.uint64(TURN_STRIDE & KEYS)).any()
            or (numpy.diff(numbers) != 1).any()
            or (times[:-1] > ended[1:]).any()
            or times.min() < _EARLIEST
        ):
            return None
        following = range(first, first + len(numbers))
        return TurnColumns(int(read["key"][0]), quick.array(ended), quick.array(times), following)

    return columns


@cache
def _reading(quick: Arithmetic) -> Callable[[bytes], TurnColumns | None]:
    return with_numpy(quick) if isinstance(quick, NumpyArithmetic) else turn_columns


def arithmetic_now() -> Arithmetic:
    """Return what to compute with what is read: records may be many by now."""
    return arithmetic(_records)
