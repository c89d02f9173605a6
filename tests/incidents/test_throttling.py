"""Clocks that are held down are evidence for a slowdown: of the ranks whose are, and of no others."""

from __future__ import annotations

from otel_goodput._accounting.incidents import Incident, Source
from otel_goodput._incidents.causes import Throttling
from otel_goodput._journal.usage_now import UNKNOWN, UsageNow
from otel_goodput.semconv import Category, IncidentKind

POWER_CAP, THERMAL, BRAKE = 1, 2, 4
SLOW = Incident(1, IncidentKind.SLOWDOWN, Source(Category.STALLED), 1, 2, evidence=("3 recompilations (step)",))


def usages(**bits: int) -> dict[int, tuple[str, UsageNow]]:
    now = UsageNow(*[1] * len(UsageNow._fields))
    return {int(rank[1:]): ("host", now._replace(throttled=held)) for rank, held in bits.items()}


def test_ranks_whose_clocks_are_held_down_are_named_while_it_goes_on() -> None:
    now = usages(r0=0, r1=THERMAL, r2=UNKNOWN)
    explain = Throttling(lambda: now).explain
    hot = "clocks of rank 1's accelerators are held down (thermal)"
    first = explain(SLOW)
    assert first.evidence == (*SLOW.evidence, hot)
    now = usages(r0=0, r1=BRAKE, r2=0)
    second = explain(first)  # it keeps what it was, and is said once
    assert second.evidence == (*SLOW.evidence, hot.replace("thermal", "thermal, power_brake"))
    now = usages(r0=0, r1=0)
    assert explain(second) == second == explain(second)


def test_many_are_counted() -> None:
    evidence = Throttling(lambda: usages(**{f"r{rank}": THERMAL for rank in range(9)})).explain(SLOW).evidence
    assert len(evidence) == 5 and evidence[-1] == "clocks of 6 more ranks' accelerators are held down"


def test_the_power_limit_is_evidence_only_where_few_are_at_it() -> None:
    every = Throttling(lambda: usages(r0=POWER_CAP, r1=POWER_CAP | THERMAL, r2=POWER_CAP, r3=0)).explain(SLOW)
    assert every.evidence[1:] == ("clocks of rank 1's accelerators are held down (thermal)",)
    assert Throttling(lambda: usages(r0=POWER_CAP)).explain(SLOW) == SLOW  # a single one always may be
    one = Throttling(lambda: usages(r0=0, r1=POWER_CAP, r2=0)).explain(SLOW)
    assert one.evidence[1:] == ("clocks of rank 1's accelerators are held down (power_cap)",)


def test_other_incidents_are_left_as_they_are() -> None:
    explain = Throttling(lambda: usages(r0=THERMAL)).explain
    for other in (SLOW._replace(ended=9), SLOW._replace(kind=IncidentKind.HANG)):
        assert explain(other) is other
    assert Throttling(dict).explain(SLOW) == SLOW
