"""Who is slow inside the steps of a job, for a report: as JSON, in words, and as evidence of an incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._accounting.incidents import STEP, Incident
from otel_goodput._accounting.own_time import WANDERING, OwnTimes
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._accounting.stragglers import merged
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import aligned, format_duration, format_moment, percent
from otel_goodput.reports.fields import OwnTimesFields
from otel_goodput.semconv import Category, IncidentKind

WINDOWS: Final = 30  # in JSON; of more, neighbors are merged
SLOW: Final = 64  # ranks in JSON,
SHOWN: Final = 8  # and in text
MOSTLY: Final = 0.5  # of the windows of an incident in which any rank is slow: one that is in more is its cause
_BEGINNING: Final = "inside of steps, "  # of the sentence of evidence
_INSIDE: Final = frozenset({STEP, Category.STALLED})


def own_to_json(own: OwnTimes, hosts: Mapping[int, str]) -> OwnTimesFields | None:
    """Return the field ``own`` of the ranks; None if nothing is known."""
    if not own.windows:
        return None
    windows = list(own.windows)
    while len(windows) > WINDOWS:
        windows = merged(windows)
    return {
        "pattern": own.pattern,
        "slow": [
            {
                "rank": one.rank,
                "host": hosts.get(one.rank),
                "pattern": one.pattern,
                "windows": one.windows,
                "seen": one.seen,
                "since": one.since / NS,
                "until": one.until / NS,
                "own_s": one.own / NS,
                "usual_s": one.usual / NS,
                "lost_s": one.lost / NS,
                "gain_without": one.gain,
            }
            for one in own.slow[:SLOW]
        ],
        "windows": [
            {
                "begin": one.begin / NS,
                "end": one.end / NS,
                "steps": one.steps,
                "turn_s": one.turn / NS,
                "usual_s": one.usual / NS,
                "waiting_s": one.waiting / NS,
                "without_s": one.without / NS,
                "slow": list(one.slow),
                "ranks": [
                    {"rank": time.rank, "own_s": time.own / NS, "waiting_s": time.waiting / NS} for time in one.ranks
                ],
            }
            for one in windows
        ],
    }


def section(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the ranks that were slow inside of steps."""
    own = (report.get("ranks") or {}).get("own")
    if not own or not own["slow"]:
        return
    rows = [("slow in steps", "", "own time", "others", "time lost", "without it")]
    for one in own["slow"][:SHOWN]:
        host = f" on {one['host']}" if one["host"] else ""
        often = f"{one['pattern']}, {one['windows']} of {one['seen']} times since {format_moment(one['since'])}"
        itself, others, lost = (format_duration(one[name]) for name in ("own_s", "usual_s", "lost_s"))
        rows.append((f"  rank {one['rank']}{host}", often, itself, others, lost, f"+{percent(one['gain_without'], 1)}"))
    yield from (f"  {line}".rstrip() for line in aligned(rows, {2, 3, 4, 5}))
    if own["pattern"] == WANDERING:
        yield "    a different rank at each time: no single one of them is the cause"
    yield ""


def explained(incident: Incident, own: OwnTimes) -> Incident:
    """Return an incident with the rank that is slow inside of steps, if steps are what takes longer."""
    if incident.kind != IncidentKind.SLOWDOWN or incident.source.category not in _INSIDE:
        return incident
    until = incident.ended or incident.opened + (1 << 62)
    windows = [one for one in own.windows if (one.begin + one.end) // 2 >= incident.began and one.begin < until]
    counts = Counter(rank for one in windows for rank in one.slow)
    troubled = sum(bool(one.slow) for one in windows)
    if not troubled:
        return incident
    rank, count = max(counts.items(), key=lambda item: (item[1], -item[0]))
    others = tuple(text for text in incident.evidence if not text.startswith(_BEGINNING))
    if count <= MOSTLY * troubled:
        which = ", ".join(str(one) for one, _ in counts.most_common(SHOWN))
        text = f"{_BEGINNING}a different rank is slow at each time ({which})"
        return incident._replace(evidence=(*others, text))
    latest = next(one for one in reversed(windows) if rank in one.slow)
    times = latest.of[rank]
    text = (
        f"{_BEGINNING}rank {rank} itself takes {format_duration(times.own / NS)} in a turn, others "
        f"{format_duration(latest.usual / NS)}, and they wait {format_duration(latest.waiting / NS)}"
    )
    if incident.source.rank == NOBODY:
        incident = incident._replace(source=incident.source._replace(rank=rank))
    return incident._replace(evidence=(*others, text))
