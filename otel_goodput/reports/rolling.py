"""Rolling windows in a report: the last hour, the last day, and others of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_goodput._accounting.totals import Partition
from otel_goodput._journal.facts import Facts
from otel_goodput._settings.options import Settings, parse_share, parse_windows, with_objective
from otel_goodput._text.durations import NS, window_name

_UNITS: Final = {"h": "h", "m": "min", "s": "s"}


def rolling_of(facts: Facts | None) -> Sequence[int]:
    """Return the lengths (ns) of the rolling windows that an attempt was configured with; the usual ones if unknown."""
    usual, settings = Settings.windows.usual, {} if facts is None else facts.settings
    text, _ = settings.get(Settings.windows.variable, (usual, ""))
    objective, _ = settings.get(Settings.objective.variable, ("", ""))
    try:
        return with_objective(parse_windows(text), parse_share(objective) if objective else None)
    except (ValueError, OverflowError):  # anybody may have changed the file
        return parse_windows(usual)


def to_json(recent: Sequence[tuple[int, int, Partition]]) -> list[dict[str, Any]]:
    """Return the field ``rolling`` of a report: windows as (begin, end, account)."""
    return [
        {"window": window_name(end - begin), "start": begin / NS, "end": end / NS, **partition.to_json()}
        for begin, end, partition in recent
    ]


def length_of(name: str) -> str:
    """Return the length of a window for people, by its name: ``1 h`` for ``1h``."""
    return f"{name[:-1]} {_UNITS[name[-1]]}"


def shorter(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rolling windows of a report (as JSON) that are shorter than the run, the shortest first."""
    began = report.get("started_at")
    some = [one for one in report.get("rolling", ()) if began is not None and one["start"] > began]
    return sorted(some, key=lambda one: one["end"] - one["start"])
