"""Who is slow inside the steps of a job, for a report: as JSON, in words, and as evidence of an incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._accounting.incidents import STEP, Incident
from otel_goodput._accounting.own_time import CHRONIC, ONCE, RECURRING, WANDERING, OwnTimes
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._accounting.stragglers import merged
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import aligned, format_duration, format_moment, percent
from otel_goodput.reports.fields import OwnTimesFields
from otel_goodput.semconv import Category, IncidentKind

WINDOWS: Final = 30  # in JSON; of more, neighbors are merged
SLOW: Final = 64  # ranks in JSON,
SHOWN: Final = 8  # and in text,
WORDS: Final = 3  # with a sentence each
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
                "compared": one.compared,
                "bands_s": [own / NS for own in one.bands],
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


def sentences(report: Mapping[str, Any]) -> list[str]:
    """Return who is slow inside of steps, and in which pattern, from a report as JSON; empty if that is not known."""
    own = (report.get("ranks") or {}).get("own")
    if not own:
        return []
    slow = own["slow"]
    if not slow:
        return ["No rank is certainly slower inside of its steps than the others."]
    if own["pattern"] == WANDERING:
        which = ", ".join(str(one["rank"]) for one in slow[:SHOWN])
        many = f"{len(slow)} ranks so far, such as {which}" if len(slow) > SHOWN else f"so far ranks {which}"
        return [f"Wandering: a different rank is slow at each time ({many}). No single one of them is the cause."]
    texts = [_sentence(one) for one in slow[:WORDS]]
    if len(slow) > WORDS:
        more = len(slow) - WORDS
        texts.append(f"{more} other {'ranks were' if more > 1 else 'rank was'} slow at times.")
    return texts


def _sentence(one: Mapping[str, Any]) -> str:
    host = f" on {one['host']}" if one["host"] else ""
    rank = f"rank {one['rank']}{host}"
    itself, others = format_duration(one["own_s"]), format_duration(one["usual_s"])
    text = {
        ONCE: f"Once: {rank} was slow from {format_moment(one['since'])} to {format_moment(one['until'])}",
        RECURRING: f"Recurring: {rank} was slow {one['windows']} of {one['seen']} times since",
        CHRONIC: f"Chronic: {rank} is slow most of the time, {one['windows']} of {one['seen']} times since",
    }.get(one["pattern"], f"{one['pattern']}: {rank} was slow {one['windows']} of {one['seen']} times since")
    since = "" if one["pattern"] == ONCE else f" {format_moment(one['since'])}"
    return (
        f"{text}{since}. It took {itself} of its own in a turn, others {others}; without it, the job would have been "
        f"{percent(one['gain_without'], 1)} faster in these times."
    )


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
        f"{format_duration(latest.usual / NS)}, and they wait {format_duration(latest.waiting / NS)}; without it, the "
        f"job would be {percent(latest.gain(rank), 1)} faster"
    )
    if incident.source.rank == NOBODY:
        incident = incident._replace(source=incident.source._replace(rank=rank))
    return incident._replace(evidence=(*others, text))
