"""Anybody's objects as plain values under flat names, without secrets, for people to read."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, Final

from otel_goodput._text.redact import HIDDEN, encodable, names_secret, redact, shown

Value = str | int | float | bool | None

LONGEST: Final = 1024  # characters of a value
LONGEST_NAME: Final = 256
_LOOKED_AT: Final = 2 * LONGEST  # characters in which secrets are looked for: what is cut may not end inside of one
_DEEPEST: Final = 16
_SHORT_LIST: Final = 64  # scalars: a list of so few is one value
_LARGEST: Final = 1 << 63

# Names of attributes that hold the whole command line, which may hold anything.
_COMMAND: Final = re.compile(r"(?:^|\.)(?:command|command_line|command_args)$")


def flat(given: Mapping[Any, Any], most: int) -> tuple[dict[str, Value], int]:
    """The values of a mapping by names: those of nested mappings, lists, data classes and namespaces joined by dots.

    Values that are neither text nor number are described in a few words; that of an array does not wait for its
    device. Returns at most `most` entries, and how many more there were, as far as they were counted.
    """
    values: dict[str, Value] = {}
    left_out = 0
    waiting: list[tuple[str, Any, int]] = [("", given, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        inner = _inner(value) if depth < _DEEPEST else None
        if inner is None or (not inner and name):
            if len(values) < most:
                values[_name(name)] = _plain(value)
            else:
                left_out += 1
            continue
        room = 2 * most - len(waiting) - len(values)
        left_out += max(0, len(inner) - max(0, room))
        entries = [(f"{name}.{key}" if name else str(key), one, depth + 1) for key, one in inner[: max(0, room)]]
        waiting += reversed(entries)
    return values, left_out


def _name(name: str) -> str:
    name = shown(encodable(name))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _inner(value: Any) -> list[tuple[Any, Any]] | None:
    """What a value consists of, by name; None if it stands for itself."""
    if isinstance(value, Mapping):
        return list(value.items())
    argparse = sys.modules.get("argparse")
    if argparse is not None and isinstance(value, argparse.Namespace):
        return list(vars(value).items())
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    if isinstance(value, (list, tuple)) and not (len(value) <= _SHORT_LIST and all(map(_scalar, value))):
        if all(map(_scalar, value)):
            return None
        return list(enumerate(value))
    return None


def _scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, (bool, str)):
        return value if not isinstance(value, str) else str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < _LARGEST else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if isinstance(value, (list, tuple)) and all(map(_scalar, value)):
        more = f", … ({len(value)} in all)" if len(value) > _SHORT_LIST else ""
        return f"[{', '.join(map(repr, value[:_SHORT_LIST]))}{more}]"
    shape, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and kind is not None:
        if type(value).__module__ == "numpy" and shape == ():
            return _plain(value.item())
        return f"{type(value).__name__} {kind} {shape}"  # its contents may be on a device
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__qualname__", None) or type(value).__qualname__)
    return repr(value)


def safe(name: str, value: Value, hidden: Collection[str] = ()) -> Value:
    """A value without secrets, not too long; `hidden` are texts that are secret wherever they stand."""
    if value is None or value == "":
        return value
    if any(names_secret(part, value) for part in name.split(".")) or _COMMAND.search(name):
        return HIDDEN
    if not isinstance(value, str):
        return value
    text = encodable(value[:_LOOKED_AT])
    text = redact(text, hidden)
    return text if max(len(text), len(value)) <= LONGEST else f"{text[:LONGEST]}… ({len(value)} characters)"
