"""Profiles as text and as JSON: the functions that took the time, and what grew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from otel_goodput._journal.profiles import NO_INCIDENT, Function, Grown, OfAttempt, Profile
from otel_goodput._text.quantities import aligned, format_moment, percent
from otel_goodput._text.redact import shown
from otel_goodput.semconv import INCIDENT_SPAN

SHOWN: Final = 20  # functions of a profile
LISTED: Final = 10  # profiles of a report
_MILLION: Final = 1_000_000


def table(profile: Profile, most: int = SHOWN) -> Iterator[str]:
    """Yield the lines of a table of the functions with the most time, by their own time."""
    rows = [
        (_share(one.own, profile), _share(one.total, profile), shown(one.name), shown(place(one)))
        for one in profile.functions[:most]
    ]
    yield from aligned([("own", "total", "function", "line"), *rows], right={0, 1})


def _share(samples: int, profile: Profile) -> str:
    return percent(samples, profile.samples) if profile.samples else ""


def place(function: Function | Grown) -> str:
    """Return the file, with its innermost folder, and the line of a function."""
    return f"{'/'.join(Path(function.file).parts[-2:])}:{function.line}"


def growth(profile: Profile) -> str:
    """Return a sentence on what grew; empty if nothing did."""
    if not profile.grown:
        return ""
    one = profile.grown[0]
    inner = f", in {shown(one.inner)}" if one.inner else ""
    share, before = percent(one.share, _MILLION), percent(one.before, _MILLION)
    return f"{shown(one.name)} ({shown(place(one))}) takes {share} of the time{inner}; before it took {before}."


def lines(profiles: Sequence[OfAttempt], *, processes: bool) -> Iterator[str]:
    """Yield a line for each of the latest profiles of a run; `processes`: also say of which process it is."""
    for process, attempt, profile in sorted(profiles, key=lambda one: -one.profile.began)[:LISTED]:
        whose = f"rank {process}, " if processes else ""
        text = growth(profile) or _most(profile)
        trace = f" Trace: {shown(profile.trace)}" if profile.trace else ""
        when = format_moment(profile.began / 1e9)
        yield f"{when}, {whose}attempt {attempt} ({shown(profile.cause)}): {text}{trace}"


def _most(profile: Profile) -> str:
    if not profile.functions:
        return "no samples."
    one = profile.functions[0]
    return f"no function's share is known to have grown; most time is spent in {shown(one.name)} ({shown(place(one))})."


def to_json(process: int, attempt: int, profile: Profile, most: int = SHOWN) -> dict[str, Any]:
    """Return what a report has of a profile; times in seconds, shares from 0 to 1."""
    samples = max(1, profile.samples)
    return {
        "process": process,
        "attempt": attempt,
        "number": profile.number,
        "cause": profile.cause,
        INCIDENT_SPAN: None if profile.incident == NO_INCIDENT else profile.incident,
        "began_at": profile.began / 1e9,
        "seconds": profile.span / 1e9,
        "steps": profile.steps,
        "samples": profile.samples,
        "grown": [
            {
                "function": one.name,
                "file": one.file,
                "line": one.line,
                "inner": one.inner or None,
                "share": one.share / _MILLION,
                "before": one.before / _MILLION,
            }
            for one in profile.grown
        ],
        "functions": [
            {
                "function": one.name,
                "file": one.file,
                "line": one.line,
                "own": round(one.own / samples, 6),
                "total": round(one.total / samples, 6),
            }
            for one in profile.functions[:most]
        ],
        "trace": profile.trace or None,
        "note": profile.note,
    }
