"""Extract attributes, listed in tables, from text that others wrote: environment variables, attributes of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from otel_goodput._settings.placement import LARGEST

LONGEST: Final = 256  # characters of a value at most; names of machines and pods have a quarter of that

Value = str | int


def text(given: object) -> str | None:
    """Return a short printable text, also for an int; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        return None
    stripped = str(given).strip()
    return stripped if stripped.isprintable() and 0 < len(stripped) <= LONGEST else None


def index(given: object) -> int | None:
    """Return a non-negative int, given as int or text; None for anything else."""
    digits = text(given)
    if digits is None or not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        return None
    return int(digits) if int(digits) <= LARGEST else None


class Fact(NamedTuple):
    """An attribute's key, the names that may hold its value (the first valid one counts), and how the value is read."""

    key: str
    names: tuple[str, ...]
    read: Callable[[object], Value | None] = text


def read(facts: Iterable[Fact], source: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes that `source` has values for."""
    attributes: dict[str, Value] = {}
    for fact in facts:
        values = (fact.read(source.get(name)) for name in fact.names)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            attributes[fact.key] = value
    return attributes
