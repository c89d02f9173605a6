"""The records of an undisturbed loop, of which a segment has thousands in a row, read together, as columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, repeat
from operator import and_, le, sub
from typing import Final
from zlib import crc32

from otel_goodput._accounting.events import KEYS, TurnColumns
from otel_goodput._journal.records import (
    HEADER_SIZE,
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
    at = 0
    for run in _RUNS.finditer(body[::SIZE]):
        first, behind = run.start() + 1, run.end() - 1
        turns = turn_columns(body[first * SIZE : behind * SIZE])
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
    return TurnColumns(keys[0], ended, times, following)
