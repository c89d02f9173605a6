"""The records of an undisturbed loop, of which a segment has thousands in a row, read together, as columns."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice, repeat
from operator import and_, le, sub
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from otel_goodput._accounting.arithmetic import WHOLE, Arithmetic
from otel_goodput._accounting.events import DEVICE_END, KEYS, NO_STEP, ON_DEVICE, STRIDE, EndColumns, TurnColumns
from otel_goodput._accounting.rules import STEP
from otel_goodput._journal.numpy_arithmetic import KEY, NumpyArithmetic, arithmetic
from otel_goodput._journal.records import (
    BODY,
    ERROR,
    EXPORTED,
    HEADER_SIZE,
    LARGEST,
    LOAD,
    LOADING,
    PARENT,
    ROOT,
    SEALED,
    SIZE,
    STEPPING,
    TRACE,
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

Rows: TypeAlias = "bytes | memoryview"  # records

FEWEST: Final = 64  # turns: fewer are read one by one
_DESCRIBING: Final = (PARENT, TRACE, EXPORTED, ROOT, ERROR)  # kinds of records that only describe spans


def _runs(fewest: int) -> re.Pattern[bytes]:
    """Return what finds runs of records, by their kinds: of TURN, or of a loop that is observed on the device."""
    among = bytes((LOADING, STEPPING, DEVICE_END, *_DESCRIBING))
    return re.compile(b"%c{%d,}|[%b]{%d,}" % (TURN, fewest, re.escape(among), 2 * fewest))


_RUNS: Final = _runs(FEWEST)
_PHASES: Final = 2 << 8  # a record of a moment has the phase 0 or 1
_CHECK: Final = 0xFFFF
_records = 0  # read so far
LATEST: Final = 1 << 62  # time of an undisturbed loop, ns
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
    since, until = HEADER_SIZE + skip * SIZE, HEADER_SIZE + used(data) * SIZE
    body = memoryview(data)[since:until]
    global _records
    _records += len(body) // SIZE
    read = _reading(arithmetic(_records))
    at, kinds = 0, data[since:until:SIZE]
    for run in _RUNS.finditer(kinds):
        begin, end = run.span()
        for first, behind, turns in _columns_in(body[begin * SIZE : end * SIZE], read):
            yield from decode_records(bytes(body[at * SIZE : (begin + first) * SIZE]), names, skip + at, skipped)
            yield Record(TURN, 0, 0, "", turns.key, len(columns), turns.time)
            columns.append(turns)
            at = begin + behind
    yield from decode_records(bytes(body[at * SIZE :]), names, skip + at, skipped)
    yield from beat_of(header)


def _columns_in(rows: Rows, read: _Reading) -> Iterator[tuple[int, int, TurnColumns]]:
    """Yield turns in a run of records, without the first and the last, with their first place and that behind them."""
    if rows[0] != TURN:
        yield from read.dispatched(rows)
        return
    first, behind = 1, len(rows) // SIZE - 1
    turns = read.turns(rows[first * SIZE : behind * SIZE])
    if turns is not None:
        yield first, behind, turns


def turn_columns(rows: Rows) -> TurnColumns | None:
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


def with_numpy(quick: NumpyArithmetic) -> Callable[[Rows], TurnColumns | None]:
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
    unsound = checks_with_numpy(numpy)

    def columns(rows: Rows) -> TurnColumns | None:
        if unsound(_words(numpy, rows)).any() or any(rows[1::SIZE]):
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
        return TurnColumns(int(read["key"][0]), quick.packed(ended), quick.packed(times), following)

    return columns


def checks_with_numpy(numpy: Any) -> Callable[[Any], Any]:
    """Return what tells for each record that is not 0 that its checksum is wrong, of records as words of 16 bits."""
    # A checksum is the exclusive or of one number for each 16 bits of the body, and of that of a body of zeros.
    empty = crc32(bytes(BODY.size)) & _CHECK
    parts: list[Any] = []
    for place in range(0, BODY.size, 2):
        part = numpy.zeros(1, numpy.uint16)
        for bit in range(16):
            body = bytes(place) + (1 << bit).to_bytes(2, "little") + bytes(BODY.size - place - 2)
            part = numpy.concatenate((part, part ^ numpy.uint16((crc32(body) & _CHECK) ^ empty)))
        parts.append(part)

    def unsound(words: Any) -> Any:
        check = words[-1] ^ numpy.uint16(empty)
        for part, column in zip(parts, words, strict=False):
            check ^= part[column[0]] if (column == column[0]).all() else part.take(column)
        return check

    return unsound


def _words(numpy: Any, rows: Rows) -> Any:
    """Return records as words: all first ones, all second ones, and so on."""
    return numpy.ascontiguousarray(numpy.frombuffer(rows, "<u2").reshape(-1, SIZE // 2).T)


def dispatched_with_numpy(quick: NumpyArithmetic) -> Callable[[Rows], Iterator[tuple[int, int, TurnColumns]]]:
    """Return what finds turns of an undisturbed loop whose steps end by the device's clock.

    Their records are ``LOADING`` and ``STEPPING`` in turn; DEVICE_END, and what only describes spans, is anywhere. It
    makes no difference which of them are exported.
    """
    numpy = quick.numpy
    fields = numpy.dtype(
        {"names": ["key", "step", "time"], "formats": ["<u8", "<i8", "<i8"], "offsets": [6, 14, 22], "itemsize": SIZE}
    )
    unsound, stride = checks_with_numpy(numpy), numpy.uint64(STRIDE)
    low, end_of_step = numpy.uint16(0xFF), numpy.uint16(DEVICE_END | STEP << 8)

    def dispatched(rows: Rows) -> Iterator[tuple[int, int, TurnColumns]]:
        read, words = numpy.frombuffer(rows, fields), _words(numpy, rows)
        (head, flags, name), kinds, harmed = words[:3], words[0] & low, unsound(words) != 0
        moment, ends = (kinds == LOADING) | (kinds == STEPPING), kinds == DEVICE_END
        places, ended = numpy.flatnonzero(moment), numpy.flatnonzero(ends)
        if len(places) < 2 * FEWEST:
            return
        end_keys, end_times = read["key"][ended], read["time"][ended]
        odd = harmed[ended] | (head[ended] != end_of_step) | ((flags | name)[ended] != 0)
        odd |= (read["step"][ended] != NO_STEP) | (end_times <= -LATEST) | (end_times >= LATEST)
        keys, numbers, times = read["key"][places], read["step"][places], read["time"][places]
        loading = kinds[places] == LOADING
        usual = ~harmed[places] & ((flags[places] & low) == numpy.where(loading, ON_DEVICE, 0)) & (numbers >= 0)
        usual &= (head[places] < _PHASES) & (times > -LATEST) & (times < LATEST)
        # Each moment goes on to the next one; but not over a record that is none of these.
        goes_on = usual[:-1] & usual[1:] & (keys[:-1] + stride == keys[1:]) & (times[:-1] <= times[1:])
        goes_on &= loading[1:] != loading[:-1]
        goes_on &= numbers[1:] - numbers[:-1] == ~loading[:-1]
        others = numpy.concatenate((ended[odd], numpy.flatnonzero(harmed & ~(moment | ends))))
        passed = numpy.searchsorted(places, others) - 1
        goes_on[passed[(passed >= 0) & (passed < len(goes_on))]] = False
        edges = numpy.flatnonzero(numpy.diff(numpy.concatenate(([False], goes_on, [False])))).reshape(-1, 2)
        before = numpy.cumsum(moment)[ended]  # so many moments were recorded before each end
        for begin, end in edges.tolist():  # moments from `begin` to `end`, both included
            begin += 2 + (not loading[begin])  # there are single turns before and after
            count = (end - 1 - begin) // 2
            if count < FEWEST:
                continue
            behind = begin + 2 * count
            first, last = int(places[begin]), int(places[behind - 1]) + 1
            among = slice(*numpy.searchsorted(ended, (first, last)).tolist())
            over = end_times[among]
            device = EndColumns(
                quick.packed(end_keys[among], KEY), quick.packed(over), quick.packed(before[among] - begin),
                (int(over.min()), int(over.max())) if len(over) else (),
            )  # fmt: skip
            number = int(numbers[begin])
            yield first, last, TurnColumns(
                int(keys[begin]), quick.packed(times[begin:behind:2]), quick.packed(times[begin + 1 : behind : 2]),
                range(number, number + count), (), device,
            )  # fmt: skip

    return dispatched


class _Reading(NamedTuple):
    """What reads runs of records.

    `turns` reads ``TURN`` records; `dispatched` those of turns whose steps end by the device's clock, in which it finds
    parts that are undisturbed, with their first place and that behind them.
    """

    turns: Callable[[Rows], TurnColumns | None]
    dispatched: Callable[[Rows], Iterable[tuple[int, int, TurnColumns]]]


@cache
def _reading(quick: Arithmetic) -> _Reading:
    if isinstance(quick, NumpyArithmetic):
        return _Reading(with_numpy(quick), dispatched_with_numpy(quick))
    return _Reading(turn_columns, lambda _: ())


def expect(records: int) -> None:
    """Note that so many records are going to be read."""
    global _records
    _records = max(_records, records)


def arithmetic_now() -> Arithmetic:
    """Return what to compute with what is read: records may be many by now."""
    return arithmetic(_records)
