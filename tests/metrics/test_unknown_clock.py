"""What metrics say while nobody knows when the device is done with the steps: that, and nothing that rests on it."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, Metric

from otel_goodput import semconv
from otel_goodput._accounting import Event, Ledger, Totals
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.stats import Pace
from otel_goodput._metrics import instruments
from otel_goodput._metrics.productivity import Inputs
from otel_goodput.semconv import Category, ClockState, Phase
from otel_goodput.testing import metrics

from .test_instruments import values

NS = 1_000_000_000
JOB, STEP = (semconv.PHASES.index(phase) for phase in (Phase.JOB, Phase.STEP))
# What has no point while the clock of too many of the run's steps is unknown.
RESTING = {
    "goodput.ratio", "badput.ratio", "goodput.at_risk", "goodput.step.ideal_time", "goodput.step.deviation",
    "goodput.program.ratio", "goodput.productivity", "goodput.straggler.ratio", "goodput.time_to_first_step",
}  # fmt: skip
DELTA: dict[type, AggregationTemporality] = dict.fromkeys(
    (Counter, ObservableCounter, Histogram), AggregationTemporality.DELTA
)


class Run:
    """A run of a step each second, and its metrics as two kinds of readers collect them."""

    def __init__(self) -> None:
        self.ledger = Ledger(spans=(60 * NS,))
        self.ledger.collect()
        self.now = 1000 * NS
        self.ledger.feed([Event(self.now, ev.ATTEMPT, step=0), Event(self.now, ev.START, JOB, key=1)])
        self.number = 0
        self.readers = InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA)
        meter = MeterProvider(self.readers, shutdown_on_exit=False).get_meter("m")
        self.durations = instruments.register(meter, self.totals, lambda: 0, dict)

    def clock(self, state: str) -> None:
        """From now on the steps count by this one, unless their device ends are recorded."""
        self.ledger.feed([Event(self.now, ev.CLOCK, semconv.FALLBACK_CLOCKS.index(state))])

    def steps(self, count: int, *, observed: bool = False) -> None:
        for _ in range(count):
            start, self.now, self.number = self.now, self.now + NS, self.number + 1
            key = 100 + self.number
            flags = ev.ON_DEVICE if observed else 0
            events = [
                Event(start, ev.START, STEP, key, self.number),
                Event(start + NS // 2, ev.END, 0, key, flags=flags),
            ]
            self.ledger.feed(events + [Event(self.now, ev.DEVICE_END, 0, key)] * observed)
        self.durations.take(self.ledger.take_collected()[0], [])

    def totals(self) -> Totals:
        """With all that the ledger alone does not know."""
        inputs = Inputs(submitted_at=900 * NS, flops_per_step=1e9, peak_flops=1e12)
        paces = [Pace(process, self.now, 100, NS * (1 + process), NS, 0) for process in range(2)]
        return replace(inputs.complete(self.ledger.totals(self.now)), paces=paces, processes=2)

    def metrics(self) -> dict[str, Metric]:
        """Both readers see the same names with points, or this fails."""
        whole, delta = (
            {name: metric for name, metric in metrics(reader).items() if metric.data.data_points}
            for reader in self.readers
        )
        assert delta.keys() | {"goodput.step.duration"} == whole.keys() | {"goodput.step.duration"}
        return whole

    def recorded(self) -> int:
        """Steps in the histogram."""
        (point,) = self.metrics()["goodput.step.duration"].data.data_points
        return point.count  # type: ignore[union-attr]


def clock_of(metrics: dict[str, Metric]) -> dict[tuple[str], int]:
    return values(metrics["goodput.clock"])


def test_with_a_clock_every_figure_is_there() -> None:
    run = Run()
    run.steps(120)
    metrics = run.metrics()
    assert metrics.keys() > RESTING
    assert clock_of(metrics) == {("host",): 1}
    run.steps(5, observed=True)
    assert clock_of(run.metrics()) == {("device",): 1}
    assert run.recorded() == 124, "the end of the last one is now, not past"


def test_without_a_clock_time_is_exact_and_its_share_is_left_out() -> None:
    run = Run()
    run.clock(ClockState.UNKNOWN)
    run.steps(120)
    metrics = run.metrics()
    assert metrics.keys() & RESTING == set()
    assert "goodput.step.duration" not in metrics
    assert clock_of(metrics) == {("unknown",): 1}
    seconds = values(metrics["goodput.time"])
    assert sum(seconds.values()) == 120.0
    assert seconds[(Category.PRODUCTIVE, "")] == 60.0
    # Counts are of what was handed to the device.
    assert values(metrics["goodput.step.count"]) == {("kept",): 120, ("lost",): 0}
    assert values(metrics["goodput.step.max_productive"]) == {(): 120}
    # So is what does not rest on steps.
    assert values(metrics["goodput.scheduling.ratio"]) == {(): 120 / 220}


def test_what_had_points_has_none_from_then_on() -> None:
    """Neither the last value nor, with deltas, the last change is exported again."""
    run = Run()
    run.steps(120)
    assert run.metrics().keys() > RESTING
    run.clock(ClockState.UNKNOWN)
    run.steps(60)
    for _ in range(2):
        metrics = run.metrics()
        assert metrics.keys() & RESTING == set()
        assert clock_of(metrics) == {("unknown",): 1}
    assert run.recorded() == 120


def test_each_window_is_judged_by_its_own_steps() -> None:
    """Up to 1 % of the time of a window may be steps of unknown clock."""
    run = Run()
    run.clock(ClockState.UNKNOWN)
    run.steps(10)
    run.clock(ClockState.HOST)
    run.steps(900)
    metrics = run.metrics()
    assert set(values(metrics["goodput.ratio"])) == {("1m",)}, "of the run 10 in 910 s are not known"
    assert {key[-1] for key in values(metrics["badput.ratio"])} == {"1m"}
    assert metrics.keys() & RESTING == {"goodput.ratio", "badput.ratio"}
    run.steps(400)
    metrics = run.metrics()
    assert set(values(metrics["goodput.ratio"])) == {("run",), ("1m",)}
    assert metrics.keys() > RESTING
    run.clock(ClockState.UNKNOWN)
    run.steps(2)
    metrics = run.metrics()
    assert set(values(metrics["goodput.ratio"])) == {("run",)}
    assert {key[-1] for key in values(metrics["badput.ratio"])} == {"run"}


def test_no_clock_is_known_before_the_job() -> None:
    ledger, reader = Ledger(), InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("m")
    instruments.register(meter, lambda: ledger.totals(NS), lambda: 0, dict)
    names = metrics(reader).keys()
    assert "goodput.time" in names and "goodput.clock" not in names
