"""What a job did when it died, from what its leader had noted: the job's own records do not have it (R11)."""

from __future__ import annotations

from otel_goodput._accounting import Event, Ledger
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.job import Cause, Costs
from otel_goodput._accounting.rank_updates import Opened
from otel_goodput._accounting.ranks import STEP_TIME
from otel_goodput._accounting.rules import CATEGORY_INDEX, JOB, STEP
from otel_goodput._journal.job_now import JobNow, RankDoing
from otel_goodput.reports.last_known import LastKnown, gone_on
from otel_goodput.semconv import Category

SECOND = 10**9
LOAD = CATEGORY_INDEX[Category.DATA_LOADING]


def recorded(steps: int) -> Ledger:
    """A job of so many steps, a second each; of the next one nothing is known."""
    ledger = Ledger()
    ledger.feed([Event(0, ev.ATTEMPT), Event(0, ev.START, JOB, 1)])
    for number in range(steps):
        begin = number * SECOND
        ledger.feed([Event(begin, ev.START, STEP, 9, number), Event(begin + SECOND, ev.END, STEP, 9, number)])
    return ledger


def now(at: int, cause: Cause | None, since: int, *opened: Opened) -> JobNow:
    ranks = [RankDoing(rank, "host", 1, at, False, one) for rank, one in enumerate(opened)]
    return JobNow(at * SECOND, len(opened), ranks, cause, since * SECOND)


def seconds(last: LastKnown | None) -> dict[str, int]:
    assert last is not None
    run = last.ledger.totals(last.at, dead=True).run
    assert sum(run.categories.values()) == run.elapsed
    return {name: spent // SECOND for name, spent in run.categories.items() if spent}


def test_a_rank_that_the_others_waited_for_has_the_time_up_to_the_end() -> None:
    inside, loads = Opened(STEP_TIME, "", 3, 3 * SECOND), Opened(LOAD, "", -1, 4 * SECOND)
    cause = Cause(1, LOAD, "")
    last = gone_on(recorded(3), Costs(), now(20, cause, 6, inside, loads), 0, 25 * SECOND)
    assert seconds(last) == {Category.PRODUCTIVE: 3, Category.OTHER: 1, Category.DATA_LOADING: 21}
    assert last is not None and last.costs.whole == {cause: 19 * SECOND}


def test_the_first_step_of_the_second_attempt() -> None:
    inside, loads = Opened(STEP_TIME, "", 3, 12 * SECOND), Opened(LOAD, "", -1, 11 * SECOND)
    last = gone_on(recorded(3), Costs(), now(20, Cause(1, LOAD, ""), 12, inside, loads), 10 * SECOND, 0)
    assert seconds(last) == {
        Category.PRODUCTIVE: 3,
        Category.INFRASTRUCTURE_RECOVERY: 7,
        Category.OTHER: 1,
        Category.DATA_LOADING: 9,
    }
    assert last is not None and last.ledger.totals(last.at, dead=True).attempts == 2


def test_a_step_in_which_all_were_is_lost() -> None:
    opened = [Opened(STEP_TIME, "", 3, at * SECOND) for at in (3, 5)]
    last = gone_on(recorded(3), Costs(), now(20, None, 0, *opened), 0, 21 * SECOND)
    assert seconds(last) == {Category.PRODUCTIVE: 3, Category.OTHER: 2, Category.WASTED_PROGRESS: 16}


def test_nothing_is_made_up() -> None:
    """One of two is in a step, and nobody was accused; what was noted is older than the records; the job is over."""
    inside, loads = Opened(STEP_TIME, "", 3, 3 * SECOND), Opened(LOAD, "", -1, 3 * SECOND)
    assert gone_on(recorded(3), Costs(), now(20, None, 0, inside, loads), 0, 0) is None
    assert gone_on(recorded(30), Costs(), now(20, Cause(1, LOAD, ""), 4, inside, loads), 0, 0) is None
    over = recorded(3)
    over.feed([Event(4 * SECOND, ev.END, JOB, 1)])
    assert gone_on(over, Costs(), now(20, Cause(1, LOAD, ""), 4, inside, loads), 0, 0) is None
