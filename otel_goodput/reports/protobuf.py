"""Writes protocol buffers, as protobuf.dev/programming-guides/encoding says: the kinds of field that a trace needs."""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from typing import Final

_DOUBLE: Final = struct.Struct("<d")
_FIXED64: Final = struct.Struct("<Q")
_VARINT, _I64, _LENGTH = 0, 1, 2
_MASK: Final = (1 << 64) - 1


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


@cache
def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


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
    return _tag(field, _LENGTH) + varint(len(body)) + body


def string(field: int, text: str) -> bytes:
    return message(field, text.encode("utf-8", "replace"))
