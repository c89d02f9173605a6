"""What ranks do themselves inside of steps, as series: the slowest of the latest window, and a usual one."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_goodput import testing
from otel_goodput._accounting.own_time import OwnTimes, OwnWindow, RankTime, SlowRank
from otel_goodput._accounting.rules import NS
from otel_goodput._metrics.instruments import register_own_times
from otel_goodput._metrics.rank_waits import MOST


def test_of_the_latest_window_and_of_few_ranks() -> None:
    own, reader = [OwnTimes()], InMemoryMetricReader()
    register_own_times(MeterProvider([reader]).get_meter("own"), lambda: own[0])

    def series(name: str = "goodput.rank.own.time") -> dict[str, float]:
        metric = testing.metrics(reader).get(name)
        return {
            str((one.attributes or {})["goodput.rank"]): one.value
            for one in ([] if metric is None else metric.data.data_points)
        }

    assert series() == {}, "nothing is known yet"
    ranks = tuple(RankTime(rank, NS * (100 - rank), 0) for rank in range(64))
    window = OwnWindow(0, 30 * NS, 100, 200 * NS, 70 * NS, 30 * NS, 90 * NS, (40,), ranks)
    own[0] = OwnTimes("once", (), (window._replace(usual=1), window))
    assert series() == {"40": 60, **{str(rank): 100 - rank for rank in range(MOST - 1)}, "other": 70}
    assert series("goodput.rank.gain") == {"40": 0}, "the next slowest one takes as long"
    slow = SlowRank(9, 1, 1, "once", 1, 2, NS, NS, NS, 0.1)
    window = OwnWindow(
        0,
        30 * NS,
        100,
        25 * NS,
        20 * NS,
        5 * NS,
        20 * NS,
        (2,),
        (RankTime(1, 20 * NS, 5 * NS), RankTime(2, 25 * NS, 0)),
    )
    own[0] = OwnTimes("once", (slow,), (window,))
    assert series("goodput.rank.gain") == {"2": 0.25, "9": 0}, "9 was slow, and is not now"
