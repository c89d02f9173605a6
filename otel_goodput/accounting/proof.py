"""Checks of numbers and texts that a snapshot holds: anybody can write one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from otel_goodput.semconv import PHASES

_HUGE: Final = 1 << 64


def whole(numbers: Iterable[Any], least: int = -_HUGE) -> None:
    """Raise ValueError if one of `numbers` is no integer (nor is a bool) from `least` on that fits a field."""
    for number in numbers:
        if type(number) is not int or not least <= number < _HUGE:
            raise ValueError(f"{number!r} instead of a whole number")


def flag(value: Any) -> None:
    """Raise ValueError if `value` is no bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} instead of true or false")


def phase(number: Any, name: Any) -> None:
    """Raise ValueError if `number` is none of a phase, or `name` no text."""
    if type(number) is not int or not 0 <= number < len(PHASES) or not isinstance(name, str):
        raise ValueError(f"{number!r}, {name!r} instead of a phase and its name")


def text(name: Any) -> None:
    """Raise ValueError if `name` is no text."""
    if not isinstance(name, str):
        raise ValueError(f"{name!r} instead of text")
