"""What a job did when it died, as its leader knew it: that is not in the job's own records, because it was not over."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import NO_STEP, Event
from otel_goodput._accounting.job import Costs
from otel_goodput._accounting.job_events import JobEvents
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.ranks import NOBODY, OPEN, STEP_TIME, JobStep, Stretch
from otel_goodput._accounting.rules import OTHER, RECOVERY
from otel_goodput._journal.job_now import JobNow


class LastKnown(NamedTuple):
    """The account of a job up to the last sign of life of its leader, `at` (ns).

    `events`: those that are not in its own records.
    """

    at: int
    ledger: Ledger
    costs: Costs
    events: list[Event]


def gone_on(ledger: Ledger, costs: Costs, now: JobNow, begun: int, last_sign: int) -> LastKnown | None:
    """Return the account of a job with what it did last; None if that is not known.

    Args:
        ledger, costs: what its own records have.
        now: what its ranks did when its leader looked at them last.
        begun, last_sign: when the leader's latest job began, and its last sign of life, ns: nothing has changed up to
            then, as far as is known.
    """
    settled = ledger.settled
    reached = begun if settled.begin is None else max(settled.now, begun)
    end = max(now.at, last_sign)
    if now.at < reached or (settled.begin is not None and not settled.alive and begun <= settled.now):
        return None
    items = [*_doing(now, reached, end)]
    if not items:
        return None
    if settled.begin is None or settled.now < begun:  # nothing of this attempt was decided
        items.insert(0, Stretch(begun, items[0].begin, OTHER, "", NOBODY, False))
        if settled.begin is not None:
            items.insert(0, Stretch(settled.now, begun, RECOVERY, "", NOBODY, False))
    events = [*JobEvents(ledger).events(items), Event(end, ev.HEARTBEAT)]
    ledger, costs = ledger.clone(), deepcopy(costs)
    ledger.feed(events)
    for item in items:
        if isinstance(item, Stretch) and item.waits:
            costs.add(item)
    return LastKnown(end, ledger, costs, events)


def _doing(now: JobNow, reached: int, end: int) -> Iterator[Stretch | JobStep]:
    """Yield what the job does from `reached` or later to `end` (ns): it waits for a rank, or all are in one step."""
    opened = {one.rank: one.opened for one in now.ranks}
    if (cause := now.cause) is None:
        steps = [one for one in opened.values() if one is not None and one.category == STEP_TIME]
        if len(steps) == now.expected and len({one.number for one in steps}) == 1:
            yield _step(steps[0].number, max(reached, *(one.since for one in steps)), end)
        return
    doing = opened.get(cause.rank)
    if cause.category == STEP_TIME:
        if doing is not None and doing.number != NO_STEP:
            yield _step(doing.number, max(reached, doing.since), end)
    elif cause.category != RECOVERY:
        since = begin = max(reached, now.since)
        if doing is not None and (doing.category, doing.name) == (cause.category, cause.name):
            begin = min(since, max(reached, doing.since))
        if begin < since:
            yield Stretch(begin, since, cause.category, cause.name, cause.rank, False)
        yield Stretch(since, end, cause.category, cause.name, cause.rank, True)


def _step(number: int, begin: int, end: int) -> JobStep:
    return JobStep(number, begin, end, OPEN, (Stretch(begin, end, STEP_TIME, "", NOBODY, False),))
