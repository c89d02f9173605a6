"""What a table finds in texts that others wrote: variables of the environment, attributes of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

LONGEST: Final = 256  # characters of a value; names of machines and pods have a quarter of that
_LARGEST: Final = 1 << 40

Value = str | int


def text(given: object) -> str | None:
    """A short text that can be printed, or a number written as one; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        return None
    stripped = str(given).strip()
    return stripped if stripped.isprintable() and 0 < len(stripped) <= LONGEST else None


def index(given: object) -> int | None:
    """A number from 0, as text or not; None for anything else."""
    digits = text(given)
    if digits is None or not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        return None
    return int(digits) if int(digits) <= _LARGEST else None


class Fact(NamedTuple):
    """An attribute's key, the names under which it is told (the first that makes sense counts), and how it is read."""

    key: str
    names: tuple[str, ...]
    read: Callable[[object], Value | None] = text


def told(facts: Iterable[Fact], source: Mapping[str, object]) -> dict[str, Value]:
    """The attributes that `source` tells of."""
    found: dict[str, Value] = {}
    for fact in facts:
        values = (fact.read(source.get(name)) for name in fact.names)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            found[fact.key] = value
    return found
