"""Jobs of ranks that end and begin again in the same processes: why, as a single process has it (R6)."""

from __future__ import annotations

import random

import pytest

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import FAILED, NO_STEP, Event
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rules import DATA_LOADING, JOB, STEP
from otel_goodput.semconv import Reason

from .saving_ranks import MS, Events, live, merged, own_accounts


def recorded(begin: int, jobs: str) -> list[Event]:
    """What a rank records of one job after the other, of three steps each: it ends cleanly (`.`), or fails (`x`)."""
    at, key, events = begin * MS, 0, [Event(begin * MS, ev.ATTEMPT)._replace(step=0)]
    for place, how in enumerate(jobs):
        key += 1
        job = key
        events.append(Event(at, ev.START, JOB, job))
        for step in range(3 * place, 3 * place + 3):
            for phase, length in ((DATA_LOADING, 2), (STEP, 10)):
                key += 1
                events.append(Event(at, ev.START, phase, key, step if phase == STEP else NO_STEP))
                at += length * MS
                failed = FAILED if how == "x" and step == 3 * place + 2 and phase == STEP else 0
                events.append(Event(at, ev.END, phase, key, flags=failed))
        events.append(Event(at, ev.END, JOB, job, flags=FAILED if how == "x" else 0))
        at += 50 * MS
    return events


@pytest.mark.parametrize(
    ("jobs", "reasons"),
    [
        (("...", "...", "..."), [Reason.RESTART, Reason.RESTART]),
        (("x..", "x..", "x.."), [Reason.CRASH, Reason.RESTART]),
        (("..", "x.", ".."), [Reason.CRASH]),
        (("...",), [Reason.RESTART, Reason.RESTART]),
    ],
    ids=["all end", "all fail at first", "one fails", "one rank"],
)
def test_a_job_that_ended_cleanly_on_all_ranks_was_restarted(jobs: tuple[str, ...], reasons: list[str]) -> None:
    events: Events = {rank: [recorded(rank, one)] for rank, one in enumerate(jobs)}

    def why(account: JobAccount) -> list[str]:
        return [one.reason for one in account.totals().history]

    assert why(merged(events)) == reasons
    for every in (5, 20, 200):  # with the end of one job and the begin of the next in one update, too
        assert why(live(events, random.Random(every), every=every * MS)) == reasons
    if len(jobs) == 1:
        assert [one.reason for one in own_accounts(events)[0].totals().history] == reasons
