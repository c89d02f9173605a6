"""The time for which a job waited for its ranks, as series: few, and none of them ever falls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_goodput import testing
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.rules import CUSTOM, DATA_LOADING_TIME, NAMES, NS, STALLED_KEPT, STALLED_LOST
from otel_goodput._metrics.instruments import register_ranks
from otel_goodput._metrics.rank_waits import MOST
from otel_goodput.semconv import CATEGORIES

LOADING = NAMES[DATA_LOADING_TIME]


class Metered:
    """A job whose waits are given, and what its metrics have of them."""

    def __init__(self) -> None:
        self.waits: dict[Cause, int] | None = {}
        self.readers = [InMemoryMetricReader(), InMemoryMetricReader()]
        register_ranks(MeterProvider(self.readers).get_meter("waits"), lambda: self.waits)

    def series(self, reader: int = 0) -> dict[tuple[str, str], float]:
        metric = testing.metrics(self.readers[reader]).get("goodput.rank.wait.time")
        points = [] if metric is None else metric.data.data_points
        return {
            (str((one.attributes or {})["goodput.rank"]), str((one.attributes or {})["goodput.category"])): one.value
            for one in points
        }


def loads(rank: int) -> Cause:
    return Cause(rank, DATA_LOADING_TIME, "")


def test_there_is_none_while_nobody_knows() -> None:
    job = Metered()
    job.waits = None
    assert job.series() == {}
    job.waits = {}
    assert job.series() == {}


def test_by_rank_and_category() -> None:
    job = Metered()
    job.waits = {loads(5): 7 * NS, Cause(5, CUSTOM, "eval"): 2 * NS, Cause(5, CUSTOM, "sweep"): NS}
    assert job.series() == {("5", LOADING): 7, ("5", "custom"): 3}


def test_ranks_that_cost_little_are_others() -> None:
    job = Metered()
    job.waits = {loads(rank): NS // 2 for rank in range(100)}
    assert job.series() == {("other", LOADING): 50}
    job.waits[loads(77)] = 10 * NS
    assert job.series() == {("other", LOADING): 50, ("77", LOADING): 9.5}, "what it cost before stays with the others"
    job.waits |= {loads(rank): 60 * NS for rank in range(40)}
    series = job.series()
    assert len({rank for rank, _ in series}) == MOST + 1 and ("77", LOADING) not in series, "it has cost least"


def test_a_rank_that_becomes_slow_after_many_others_have_cost_something_is_named() -> None:
    """They do when a job starts; it goes on for weeks."""
    job = Metered()
    job.waits = {loads(rank): 2 * NS for rank in range(MOST)}
    before = job.series()
    assert len(before) == MOST
    job.waits[loads(700)] = 3 * NS
    assert job.series() == before | {("other", LOADING): 3}, "that is not much more"
    job.waits[loads(700)] = 30 * NS
    series = job.series()
    assert len({rank for rank, _ in series}) == MOST + 1
    assert series == {key: value for key, value in before.items() if key[0] != "0"} | {
        ("other", LOADING): 3,
        ("700", LOADING): 27,
    }
    job.waits[loads(0)] = 5 * NS  # it has cost more than the others again
    series = job.series()
    assert series["0", LOADING] == 2 + 3 and len({rank for rank, _ in series}) == MOST + 1


def test_a_wait_that_turns_out_to_be_shorter_does_not_let_a_series_fall() -> None:
    job = Metered()
    for seconds, expected in ((5, 5), (3, 5), (6, 6)):
        job.waits = {loads(1): seconds * NS}
        assert job.series() == {("1", LOADING): expected}


CATEGORIES_OF_WAITS = st.sampled_from([DATA_LOADING_TIME, STALLED_KEPT, STALLED_LOST])


@given(st.lists(st.tuples(st.integers(0, 40), CATEGORIES_OF_WAITS, st.integers(0, 20 * NS))))
def test_they_add_up_and_no_series_falls(more: list[tuple[int, int, int]]) -> None:
    """Of each reader, whichever collects when; with those whose series have ended."""
    job = Metered()
    assert job.waits is not None
    before: list[Mapping[tuple[str, str], float]] = [{}, {}]
    shown: dict[tuple[str, str], float] = {}  # by either
    for at, (rank, category, spent) in enumerate(more):
        cause = Cause(rank, category, "")
        job.waits[cause] = job.waits.get(cause, 0) + spent
        reader = at % 3 % 2
        series = job.series(reader)
        shown |= series
        by_category, given = Counter[str](), Counter[str]()
        for (_, name), seconds in shown.items():
            by_category[name] += round(seconds * NS)
        for one, duration in job.waits.items():
            given[NAMES[one.category]] += duration
        assert +by_category == +given and {name for _, name in series} <= {*CATEGORIES}
        assert all(series.get(key, value) >= value for key, value in before[reader].items())
        assert len({name for name, _ in series}) <= MOST + 1
        before[reader] = series
