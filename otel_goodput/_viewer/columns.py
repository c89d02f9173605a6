"""The container of the page's document: a JSON head, and columns of integers in few bytes.

::

    b"OGV1"  length of the head (u32, little-endian)  the head: JSON, UTF-8  the columns, one after the other

In the head a column is ``{"at": offset after the head, "length": bytes, "type": T}``: ``int`` holds zigzag LEB128
varints of successive differences (the first against 0), ``u8`` raw bytes, ``id`` raw span ids of 8 bytes, big-endian.
Columns of equal length make a table: ``{"rows": n, "columns": {name: column}}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

MAGIC: Final = b"OGV1"
LENGTH: Final = 4
_PAIR: Final = 1 << 14  # two bytes of a varint at once
_FINAL: Final = [bytes((low,)) if low < 128 else bytes((low & 127 | 128, low >> 7)) for low in range(_PAIR)]
_MORE: Final = [bytes((low & 127 | 128, low >> 7 | 128)) for low in range(_PAIR)]

Column = dict[str, Any]
Table = dict[str, Any]


def packed(values: Iterable[int]) -> bytes:
    """Return integers of any size as zigzag LEB128 varints of their successive differences."""
    pieces: list[bytes] = []
    append, final, more = pieces.append, _FINAL, _MORE
    last = 0
    for value in values:
        step = value - last
        last = value
        step = step << 1 if step >= 0 else ~(step << 1)
        while step >= _PAIR:
            append(more[step & 16383])
            step >>= 14
        append(final[step])
    return b"".join(pieces)


class Columns:
    """Collects columns; each method returns what the head says of one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def _add(self, data: bytes, kind: str) -> Column:
        at = self._length
        self._pieces.append(data)
        self._length += len(data)
        return {"at": at, "length": len(data), "type": kind}

    def integers(self, values: Iterable[int]) -> Column:
        return self._add(packed(values), "int")

    def raw(self, values: bytes) -> Column:
        """Add numbers from 0 to 255."""
        return self._add(values, "u8")

    def ids(self, keys: Sequence[int]) -> Column:
        """Add span ids (unsigned integers of 64 bits)."""
        return self._add(b"".join(key.to_bytes(8, "big") for key in keys), "id")

    def table(self, names: Sequence[str], rows: Iterable[Sequence[int]]) -> Table:
        """Add a table of integers, given row by row."""
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return self.columns(dict(zip(names, columns, strict=True)))

    def columns(self, columns: Mapping[str, Sequence[int]]) -> Table:
        """Add a table of integers, given column by column; all have the same length."""
        rows = len(next(iter(columns.values()), ()))
        if any(len(values) != rows for values in columns.values()):
            raise ValueError("the columns of a table differ in length")
        return {"rows": rows, "columns": {name: self.integers(values) for name, values in columns.items()}}

    def container(self, head: Mapping[str, Any]) -> bytes:
        """Return the document: `head` and all columns.

        Raises:
            ValueError: `head` has a number that JSON cannot express.
        """
        text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
        return b"".join((MAGIC, len(text).to_bytes(LENGTH, "little"), text, *self._pieces))
