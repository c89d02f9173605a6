"""Anybody's objects as plain values under flat names, without secrets, for people to read."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, Final

from otel_goodput.text.redact import HIDDEN, encodable, redact, shown

Value = str | int | float | bool | None

LONGEST: Final = 1024  # characters of a value
LONGEST_NAME: Final = 256
_LOOKED_AT: Final = 2 * LONGEST  # characters in which secrets are looked for: what is cut may not end inside of one
_DEEPEST: Final = 16
_SHORT_LIST: Final = 64  # scalars: a list of so few is one value
_LARGEST: Final = 1 << 63

# The last words of names of secrets, whatever the value; and of names of which a text is one, and a number is not.
_SECRET_NAME: Final = re.compile(
    r"(?:passw(?:or)?d|passphrase|passcode|secrets?|credentials?|api_?keys?|connection_string|"
    r"(?:access|private|account|shared|signing|encryption|ssh|service)_?keys?(?:_id)?)$"
)
_SECRET_TEXT: Final = re.compile(r"(?:^|_)(?:pass|pwd|auth|authorization|cookies?|jwt|headers?|dsn|\w*tokens?)$")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
# Names of attributes that hold the whole command line, which may hold anything.
_COMMAND: Final = re.compile(r"(?:^|\.)(?:command|command_line|command_args)$")
# Secrets by their form, beside those that `redact` knows.
_FORMS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*|\b(?:gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|"
    r"sk-(?=[\w-]*\d)[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|npm_\w{30,}|"
    r"pypi-[\w-]{16,})",
    re.DOTALL,
)
# password='…' and "token": "…" inside of a longer text.
_QUOTED: Final = re.compile(
    r"""((?:passw(?:or)?d|passphrase|secret|token|credentials?|api[-_]?key|[a-z]{1,32}[-_]key|authorization)["']?\s*[:=]\s*)"""
    r"""(b?)(["'])(?:\\.|(?!\3).)*(?:\3|$)""",
    re.IGNORECASE | re.DOTALL,
)


def flat(given: Mapping[Any, Any], most: int) -> tuple[dict[str, Value], int]:
    """The values of a mapping by names: those of nested mappings, lists, data classes and namespaces joined by dots.

    Values that are neither text nor number are described in a few words; that of an array does not wait for its
    device. Returns at most `most` entries, and how many more there were, as far as they were counted.
    """
    found: dict[str, Value] = {}
    left_out = 0
    waiting: list[tuple[str, Any, int]] = [("", given, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        inner = _inner(value) if depth < _DEEPEST else None
        if inner is None or (not inner and name):
            if len(found) < most:
                found[_name(name)] = _plain(value)
            else:
                left_out += 1
            continue
        room = 2 * most - len(waiting) - len(found)
        left_out += max(0, len(inner) - max(0, room))
        entries = [(f"{name}.{key}" if name else str(key), one, depth + 1) for key, one in inner[: max(0, room)]]
        waiting += reversed(entries)
    return found, left_out


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


def secret_name(name: str, value: Value) -> bool:
    """Whether what is called so must not be shown."""
    words = _WORDS.sub("_", name.rpartition(".")[2]).lower().strip("_")
    if isinstance(value, bool):
        return False
    return bool(_SECRET_NAME.search(words) or (isinstance(value, str) and _SECRET_TEXT.search(words)))


def safe(name: str, value: Value, hidden: Collection[str] = ()) -> Value:
    """A value without secrets, not too long; `hidden` are texts that are secret wherever they stand."""
    if value is None or value == "":
        return value
    inside = any(secret_name(part, value) for part in name.split(".")[:-1])
    if inside or secret_name(name, value) or _COMMAND.search(name):
        return HIDDEN
    if not isinstance(value, str):
        return value
    text = encodable(value[:_LOOKED_AT])
    text = redact(_QUOTED.sub(rf"\1\2{HIDDEN}", _FORMS.sub(HIDDEN, text)), hidden)
    return text if max(len(text), len(value)) <= LONGEST else f"{text[:LONGEST]}… ({len(value)} characters)"
