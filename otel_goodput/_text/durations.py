"""Parse durations and times such as ``90s``, ``1h30m``, ``2026-11-22T11:25:00Z`` and ``1h ago`` to ns."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Final, NamedTuple

NS: Final = 1_000_000_000

_UNITS: Final = {
    "ms": 10**6, "s": NS, "m": 60 * NS, "min": 60 * NS, "h": 3600 * NS, "d": 86_400 * NS, "w": 604_800 * NS
}  # fmt: skip
_NAMED: Final = ((3_600, "h"), (60, "m"), (1, "s"))  # units of a window's name, in seconds
_PART: Final = r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])\s*"
_LENGTH: Final = re.compile(f"(?:{_PART})+")
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(?::(\d\d)(?:\.(\d+))?)?\s*(Z|z|[+-]\d\d:\d\d)?", re.ASCII
)
_BOUND: Final = 9_200_000_000 * NS  # the largest time accepted; it fits into 64 bits
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _length(text: str) -> int | None:
    """Parse a duration written with units; return ns, or None if `text` is something else."""
    if not _LENGTH.fullmatch(text):
        return None
    length = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))
    return round(min(length, 2.0 * _BOUND))  # hundreds of digits are infinity


def parse_duration(text: str) -> int:
    """Parse a duration such as ``90s``, ``1.5h``, ``1h30m``, ``350ms``, ``2d`` or plain seconds; return ns.

    Raises:
        ValueError: `text` is not a duration, or not above 0 and below 1e9 seconds.
    """
    length = _length(text.strip())
    seconds = float(text) if length is None else length / NS
    if not 0 < seconds < 1e9:
        raise ValueError(f"not a duration: {text!r} (expected 90s, 10m, 1h, 24h)")
    return round(seconds * NS) if length is None else length


def window_name(span: int) -> str:
    """Return the name of a rolling window of `span` ns: ``1h``, ``24h``, ``90s``, ``1.5s``; no two have the same."""
    for size, letter in _NAMED:
        if span % (size * NS) == 0:
            return f"{span // (size * NS)}{letter}"
    seconds, rest = divmod(span, NS)
    return f"{seconds}.{rest:09}".rstrip("0") + "s"


def parse_moment(text: str) -> int:
    """Parse Unix seconds or an RFC 3339 time; return ns since the epoch.

    Raises:
        ValueError: `text` is neither, has no time zone, or is too far from the epoch for 64 bits.
    """
    match = _RFC_3339.fullmatch(text.strip())
    if match is None:
        try:
            seconds = float(text)
        except ValueError:
            raise ValueError(f"not a time: {text!r}") from None
        if abs(seconds) < _BOUND / NS:
            return round(seconds * NS)
    else:
        day, minute, second, fraction, zone = match.groups()
        if zone is None:
            raise ValueError(f"{text!r} needs a time zone, such as Z")
        zone = "+00:00" if zone in "Zz" else zone
        since = datetime.fromisoformat(f"{day}T{minute}:{second or '00'}{zone}") - _EPOCH
        ns = since // timedelta(seconds=1) * NS + int((fraction or "0")[:9].ljust(9, "0"))
        if abs(ns) < _BOUND:
            return ns
    raise ValueError(f"not a time: {text!r}")


class Moment(NamedTuple):
    """A point in time: `ns` since the epoch, or since the start of a run if `relative`."""

    ns: int
    relative: bool = False

    def since(self, start: int | None) -> int:
        """Return ns since the epoch, for a run that began at `start` (ns; None: it has not begun)."""
        return self.ns + (start or 0) if self.relative else self.ns


def parse_requested_moment(text: str) -> Moment:
    """Parse a time given by a user: Unix seconds, RFC 3339, ``now``, ``1h ago``, or ``1h`` (after the run's start).

    Raises:
        ValueError: `text` has none of these forms, or is out of range.
    """
    plain = text.strip().lower()
    if plain == "now":
        return Moment(time.time_ns())
    before = plain.removesuffix("ago")
    length = _length(before.strip())
    if length is None:
        return Moment(parse_moment(text))
    if length >= _BOUND:
        raise ValueError(f"not a time: {text!r}")
    return Moment(time.time_ns() - length) if before != plain else Moment(length, relative=True)
