"""Writes protocol buffers, as protobuf.dev/programming-guides/encoding says: the kinds of field that a trace needs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final

_DOUBLE: Final = struct.Struct("<d")
_FIXED64: Final = struct.Struct("<Q")
_VARINT, _I64, _LENGTH = 0, 1, 2
_MASK: Final = (1 << 64) - 1
_LOWER: Final = 42  # bits of a time in three pairs of bytes; those above change every 73 minutes


def varint(value: int) -> bytes:
    """Encode an integer; a negative one takes ten bytes, as int32 and int64 do."""
    value &= _MASK
    if value < 0x80:
        return bytes((value,))
    parts = []
    pairs = _pairs()
    while value > 0x3FFF:
        parts.append(pairs[value & 0x3FFF])
        value >>= 14
    parts.append(bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7)))
    return b"".join(parts)


@cache
def _pairs() -> list[bytes]:
    """All two bytes of a varint that goes on behind them: a trace has millions, and a table is faster."""
    return [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]


def moments(field: int) -> Callable[[int], bytes]:
    """Return what encodes a field as :func:`integer` does, faster where the upper bits are mostly the same: times."""
    tag, pairs = _tag(field, _VARINT), _pairs()
    upper: dict[int, bytes] = {}

    def encoded(value: int) -> bytes:
        above = value >> _LOWER
        high = upper.get(above)
        if high is None:
            if above <= 0:
                return tag + varint(value)
            if len(upper) > 1000:
                upper.clear()
            high = upper[above] = varint(above)
        return tag + pairs[value & 0x3FFF] + pairs[value >> 14 & 0x3FFF] + pairs[value >> 28 & 0x3FFF] + high

    return encoded


@cache
def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


@lru_cache(1 << 12)
def head(field: int, length: int) -> bytes:
    """What comes before the bytes of a message, or before other bytes."""
    return _tag(field, _LENGTH) + varint(length)


def integer(field: int, value: int) -> bytes:
    """A field of the types int32, int64, uint32, uint64, bool or enum."""
    return _tag(field, _VARINT) + varint(value)


@lru_cache(1 << 12)
def constant(field: int, value: int) -> bytes:
    """As :func:`integer`, for a value that is written often."""
    return integer(field, value)


def double(field: int, value: float) -> bytes:
    return _tag(field, _I64) + _DOUBLE.pack(value)


def fixed64(field: int, value: int) -> bytes:
    return _tag(field, _I64) + _FIXED64.pack(value)


def message(field: int, *parts: bytes) -> bytes:
    """A field of bytes, or of a message that consists of encoded fields."""
    body = b"".join(parts)
    return head(field, len(body)) + body


def string(field: int, text: str) -> bytes:
    return message(field, text.encode("utf-8", "replace"))
