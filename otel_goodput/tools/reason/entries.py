"""What one entry of a log of the cloud or of a cluster tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from otel_goodput.text.durations import parse_moment

_KEY: Final = 200  # characters of one text of an entry


class Tells(NamedTuple):
    """What a kind of entry tells of the reason, and how surely: of several entries the highest `strength` counts.

    `reason` is None for what follows from a disruption, or comes with any of them, and does not tell why. With `prompt`
    it tells why only if it comes when the job ends: a machine may be stopped for lying idle after a crash.
    """

    reason: str | None
    strength: int = 0
    prompt: bool = False


NOTHING: Final = Tells(None)


class Entry(NamedTuple):
    """One entry of a log.

    Attributes:
        times: when it happened, ns since the epoch; an event that was seen again and again has its first and last time.
        tells: what it says of the reason.
        by: what a report says of where the reason is from.
        names: of what it happened to, by name of the resource attribute.
    """

    times: tuple[int, ...]
    tells: Tells
    by: str
    names: Mapping[str, str]


def mapping(found: Any) -> Mapping[str, Any]:
    """Return `found` if it is a JSON object, else an empty one."""
    return found if isinstance(found, dict) else {}


def text(found: Any) -> str:
    """Return `found` if it is a text, cut to a length that a person reads, else an empty one."""
    return found[:_KEY] if isinstance(found, str) else ""


def moment(found: Any) -> int | None:
    """Return an RFC 3339 time in ns since the epoch; None if `found` is none."""
    if not isinstance(found, str) or "T" not in found.upper():
        return None
    try:
        return parse_moment(found)
    except (ValueError, OverflowError):
        return None
