"""Incidents as a report has them: as JSON, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._accounting.incidents import SINGLE, STEP, Incident
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration, format_moment, percent
from otel_goodput.semconv import Category, IncidentKind

SHOWN: Final = 10  # in the text of a report, the latest
SHARES_SHOWN: Final = 3
WORTH: Final = 0.1  # of the cost; a share that is smaller is not shown


def to_json(incident: Incident, attempt: int) -> dict[str, Any]:
    """Return the fields of an incident of an attempt (counted from 0) in a report's JSON."""
    return {
        "attempt": attempt + 1,
        "number": incident.number,
        "kind": incident.kind,
        "cause": incident.source.category,
        "phase": incident.source.name,
        "rank": None if incident.source.rank == NOBODY else incident.source.rank,
        "line": incident.line,
        "began": incident.began / NS,
        "opened": incident.opened / NS,
        "ended": None if incident.ended is None else incident.ended / NS,
        "cost_s": incident.cost / NS,
        "before_s": incident.before / NS if incident.before else None,
        "after_s": incident.after / NS if incident.after else None,
        "shares": [
            {
                "cause": source.category,
                "phase": source.name,
                "rank": None if source.rank == NOBODY else source.rank,
                "seconds": lost / NS,
            }
            for source, lost in incident.shares
        ],
        "evidence": list(incident.evidence),
    }


def sentence(incident: Mapping[str, Any]) -> str:
    """Return in one sentence what is or was wrong, from an incident as JSON, without moments and cost."""
    cause, kind = _cause(incident), incident["kind"]
    at = f", at {incident['line']}" if incident["line"] else ""
    if kind == IncidentKind.HANG:
        over = incident["ended"] is not None
        return (
            f"no step {'was' if over else 'has been'} completed; the time {'went' if over else 'goes'} to {cause}{at}"
        )
    if kind == IncidentKind.RESTART_LOOP:
        return f"attempt after attempt ends without progress ({incident['phase']}){at}"
    before, after = incident["before_s"] or 0.0, incident["after_s"] or 0.0
    what = "a turn of the loop" if len(incident["shares"]) != 1 or incident["cause"] in _IN_TURN else cause
    if what == cause:
        return f"{cause} takes {format_duration(after)} instead of {format_duration(before)}{at}"
    more = f"{100 * (after - before) / before:.0f} % more" if before else "longer"
    return f"{what} takes {more}, {format_duration(after)} instead of {format_duration(before)}: {cause}{at}"


# What is lost in each turn, if it is lost at all.
_IN_TURN: Final = frozenset({STEP, Category.DATA_LOADING, Category.OTHER, Category.STALLED, Category.PROGRAM_STARTUP})


def _cause(one: Mapping[str, Any]) -> str:
    what = _SINGLE.get((one["cause"], one["phase"])) or f"{one['cause']} {one['phase']}".strip()
    return what if one["rank"] is None else f"{what} of rank {one['rank']}"


# By how much single ones take longer than usual.
_SINGLE: Final = {
    (STEP, SINGLE): "single long steps",
    (Category.DATA_LOADING, SINGLE): "single long loads",
    (Category.OTHER, SINGLE): "single long times between steps",
}


def section(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was wrong with the job, the latest last."""
    incidents = report.get("incidents") or ()
    if not incidents:
        return
    still = sum(one["ended"] is None for one in incidents)
    yield f"  incidents    {len(incidents)}{f', {still} of them still open' if still else ''}"
    for one in incidents[-SHOWN:]:
        yield from _incident(one)


def _incident(one: Mapping[str, Any]) -> Iterator[str]:
    ended = one["ended"]
    lasted = "still open" if ended is None else f"for {format_duration(ended - one['began'])}"
    yield f"    {one['kind']} since {format_moment(one['began'])}, {lasted}, cost {format_duration(one['cost_s'])}"
    yield f"      {sentence(one)}"
    shares = [share for share in one["shares"] if share["seconds"] >= WORTH * one["cost_s"]][:SHARES_SHOWN]
    if len(shares) > 1:
        parts = (f"{_cause(share)} {percent(share['seconds'], one['cost_s'])}" for share in shares)
        yield f"      lost to {', '.join(parts)}"
    for text in one["evidence"]:
        yield f"      {text}"
