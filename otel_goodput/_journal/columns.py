"""Tables of integers as bytes: differences of each column, in byte planes, packed. Unpacking is bounded."""

from __future__ import annotations

import sys
import zlib
from array import array
from itertools import accumulate
from operator import sub
from typing import Final

Row = tuple[int, ...]
LARGEST: Final = (1 << 63) - 1  # of the numbers, signed
LEVEL: Final = 6  # of zlib
MASK: Final = (1 << 64) - 1
_HALF: Final = 1 << 63
_WIDTH: Final = 8


def signed(number: int) -> int:
    """The lowest 64 bits as a signed number."""
    return (number + _HALF & MASK) - _HALF


def packed(rows: list[Row]) -> bytes:
    """The columns of the rows, packed. All numbers have 64 bits, signed."""
    planes = []
    for column in zip(*rows, strict=True):
        try:
            array("q", column)
        except OverflowError:  # longer times and higher numbers than that have no meaning
            column = tuple(max(-LARGEST - 1, min(LARGEST, number)) for number in column)
        differences = array("Q", [one & MASK for one in map(sub, column, (0, *column[:-1]))])
        if sys.byteorder == "big":
            differences.byteswap()
        raw = differences.tobytes()
        planes += [raw[plane::_WIDTH] for plane in range(_WIDTH)]
    return zlib.compress(b"".join(planes), LEVEL)


def unpacked(data: bytes, size: int) -> bytes:
    """Unpack `data` to exactly `size` bytes. Raises ValueError."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if len(found) != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError("it unpacks to another size than it says")
    return found


def rows_of(data: bytes, count: int, width: int) -> list[Row]:
    """The `count` rows of `width` numbers that :func:`packed` has made `data` of. Raises ValueError."""
    if not count:
        return []
    raw = unpacked(data, count * width * _WIDTH)
    columns = []
    for at in range(width):
        mixed = bytearray(count * _WIDTH)
        for plane in range(_WIDTH):
            begin = (at * _WIDTH + plane) * count
            mixed[plane::_WIDTH] = raw[begin : begin + count]
        differences = array("q", bytes(mixed))
        if sys.byteorder == "big":
            differences.byteswap()
        column = list(accumulate(differences))
        try:
            array("q", column)
        except OverflowError:  # a difference of more than 63 bits
            column = [signed(one) for one in column]
        columns.append(column)
    return list(zip(*columns, strict=True))
