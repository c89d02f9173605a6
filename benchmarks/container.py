"""Reads the container of the page's document, see ``otel_goodput/_viewer/document.py``."""

from __future__ import annotations

import json
from typing import Any

from otel_goodput._viewer.document import LENGTH, MAGIC, Column, Table


def unpacked(data: bytes) -> list[int]:
    """Return the integers that ``packed()`` has packed.

    Raises:
        ValueError: the last one is cut short.
    """
    numbers: list[int] = []
    last = value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            last += ~(value >> 1) if value & 1 else value >> 1
            numbers.append(last)
            value = shift = 0
    if shift:
        raise ValueError("the last number is cut short")
    return numbers


class Container:
    """Reads a container.

    Raises:
        ValueError: it is none.

    Attributes:
        head: its JSON.
    """

    def __init__(self, data: bytes) -> None:
        start = len(MAGIC) + LENGTH
        if data[: len(MAGIC)] != MAGIC or len(data) < start:
            raise ValueError("this is not an otel-goodput page")
        length = int.from_bytes(data[len(MAGIC) : start], "little")
        self.head: dict[str, Any] = json.loads(data[start : start + length])
        self._blob = data[start + length :]

    def raw(self, column: Column) -> bytes:
        return self._blob[column["at"] : column["at"] + column["length"]]

    def integers(self, column: Column) -> list[int]:
        """Return the numbers of an ``int`` or a ``u8`` column."""
        return unpacked(self.raw(column)) if column["type"] == "int" else list(self.raw(column))

    def ids(self, column: Column) -> list[int]:
        data = self.raw(column)
        return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]

    def table(self, table: Table) -> dict[str, list[int]]:
        return {name: self.integers(column) for name, column in table["columns"].items()}
