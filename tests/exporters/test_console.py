"""The `console` exporter: its line, and where it goes; the terminal is a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from waits import until

from otel_goodput import semconv
from otel_goodput._text.quantities import width
from otel_goodput.exporters.console import ConsoleMetricExporter, Summary, render
from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext

from .telemetry import collect, observed, recorded

OK = MetricExportResult.SUCCESS


def category(name: str, seconds: float, custom: str = "") -> tuple[float, dict[str, str]]:
    attributes = {semconv.GOODPUT_CATEGORY: name}
    if custom:
        attributes[semconv.GOODPUT_CUSTOM_NAME] = custom
    return seconds, attributes


def whole_run(steps: int = 3) -> MetricsData:
    return collect(
        observed(
            "up_down_counter",
            semconv.TIME.name,
            category("productive", 873.0),
            category("data_loading", 62.0),
            category("program_startup", 30.0),
            category("checkpoint_save", 20.0),
            category("custom", 14.8, custom="eval"),
            category("other", 0.2),
        ),
        observed("gauge", semconv.RATIO.name, (0.4, {"goodput.window": "1h"}), (0.873, {"goodput.window": "run"})),
        observed("gauge", semconv.STEP_MAX.name, (1240, {})),
        observed("gauge", semconv.AT_RISK.name, (42.0, {})),
        recorded(semconv.STEP_DURATION.name, *[3.1] * steps),
    )


def lines(*batches: MetricsData) -> list[str]:
    stream = io.StringIO()
    exporter = ConsoleMetricExporter(stream, terminal=False)
    for data in batches:
        assert exporter.export(data) is OK
    exporter.force_flush()
    exporter.shutdown()
    return stream.getvalue().splitlines()


def test_one_line_says_it_all() -> None:
    (line,) = lines(whole_run())
    assert line == (
        "goodput 87.3 % · step 1240 · 3.1 s/step · "
        "badput: data_loading 6.2 %, program_startup 3.0 %, checkpoint_save 2.0 % · at risk 42 s"
    )


def test_without_any_of_our_metrics_there_is_no_line() -> None:
    assert lines(collect(observed("gauge", "other", (1.0, {})))) == []
    assert lines(MetricsData([])) == []


def test_what_is_missing_is_left_out() -> None:
    assert lines(collect(observed("gauge", "goodput.ratio", (0.5, {"goodput.window": "run"})))) == ["goodput 50.0 %"]
    # Nothing has happened yet.
    assert lines(collect(observed("up_down_counter", "goodput.time", category("productive", 0.0)))) == []


def test_what_is_not_known_is_stated_and_no_share_is_made_up() -> None:
    """The run's time is exact where nobody knows when the device was done, what it was spent for is not."""
    seconds = (category("productive", 1.0), category("custom", 3.0, custom="eval"))
    time = observed("up_down_counter", "goodput.time", *seconds)
    step = observed("gauge", "goodput.step.max_productive", (7, {}))
    other = observed("gauge", "goodput.ratio", (0.9, {"goodput.window": "1h"}))
    assert lines(collect(time, step, other)) == ["goodput not known · step 7"]


def test_no_step_time_from_before_the_clock_was_unknown() -> None:
    unknown = observed("gauge", "goodput.clock", (1, {"goodput.clock.state": "unknown"}))
    time = observed("up_down_counter", "goodput.time", category("productive", 1.0))
    step_time = recorded("goodput.step.duration", 3.1)
    assert lines(collect(time, step_time, unknown)) == ["goodput not known"]
    known = observed("gauge", "goodput.clock", (1, {"goodput.clock.state": "device"}))
    assert lines(collect(time, step_time, known)) == ["goodput not known · 3.1 s/step"]


def test_disruptions_are_summed_over_their_reasons() -> None:
    reasons = [(1, {"goodput.disruption.reason": "crash"}), (2, {"goodput.disruption.reason": "rollback"})]
    ratio = observed("gauge", "goodput.ratio", (0.5, {"goodput.window": "run"}))
    assert lines(collect(ratio, observed("counter", "goodput.disruptions", *reasons))) == [
        "goodput 50.0 % · 3 disruptions"
    ]
    assert lines(collect(ratio, observed("counter", "goodput.disruptions", reasons[0]))) == [
        "goodput 50.0 % · 1 disruption"
    ]


@pytest.mark.parametrize("exponential", [False, True])
def test_the_step_time_is_that_of_the_last_steps(exponential: bool) -> None:
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

    reader = InMemoryMetricReader(
        preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()} if exponential else None
    )
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("m")
    observed("gauge", "goodput.ratio", (0.5, {"goodput.window": "run"}))(meter)
    histogram = meter.create_histogram("goodput.step.duration", "s")
    stream = io.StringIO()
    exporter = ConsoleMetricExporter(stream, terminal=False)

    def export(*durations: float, later_s: int) -> str:
        for value in durations:
            histogram.record(value)
        data = reader.get_metrics_data()
        assert data is not None
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:  # as if it were later: nobody waits for a minute in a test
                object.__setattr__(point, "time_unix_nano", point.time_unix_nano + later_s * 10**9)
        stream.seek(0)
        stream.truncate()
        assert exporter.export(data) is OK
        return stream.getvalue().rstrip("\n")

    assert export(later_s=0) == "goodput 50.0 %"
    assert export(20.0, 10.0, later_s=1) == "goodput 50.0 % · 15 s/step"
    assert export(3.0, later_s=2) == "goodput 50.0 % · 11 s/step"  # one window
    assert export(2.0, 4.0, later_s=70) == "goodput 50.0 % · 3.0 s/step"  # the slow ones are out of it
    assert export(later_s=200) == "goodput 50.0 % · 3.0 s/step"  # no step since: still the last known


def test_a_histogram_that_starts_anew_is_no_surprise() -> None:
    assert [line.split(" · ")[2] for line in lines(whole_run(9), whole_run(2))] == ["3.1 s/step"] * 2


FULL = Summary(
    goodput=0.873, step=1240, step_time=3.1, at_risk=42.0, disruptions=2,
    badput=(("data_loading", 0.062), ("program_startup", 0.03), ("checkpoint_save", 0.02), ("other", 0.01)),
)  # fmt: skip


@pytest.mark.parametrize("columns", range(140))
def test_a_line_is_never_wider_than_its_terminal(columns: int) -> None:
    line = render(FULL, columns)
    assert width(line) <= columns
    assert columns < len("goodput 87.3 %") or line.startswith("goodput 87.3 %")


def test_what_a_narrow_terminal_keeps() -> None:
    assert render(FULL, 79) == "goodput 87.3 % · step 1240 · 3.1 s/step · badput: data_loading 6.2 %"
    assert render(FULL, 89).endswith("badput: data_loading 6.2 % · at risk 42 s")


def test_names_cannot_steer_the_terminal() -> None:
    line = render(Summary(goodput=0.5, badput=(("\x1b[2Jevil\n", 0.5),)))
    assert line == "goodput 50.0 % · badput: ?[2Jevil? 50.0 %"


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, int]]:
    """A terminal to write to, and the descriptor on which its screen's input can be read."""
    screen, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(end, "w", encoding="utf-8") as stream:
        try:
            yield stream, screen
        finally:
            os.close(screen)


def test_on_a_terminal_a_line_is_written_every_few_seconds() -> None:
    with terminal(200) as (stream, screen):
        exporter = open_exporter("console", ExporterContext("job", "run", stream=stream))
        assert exporter.span_exporter is None
        assert exporter.interval_ms == 5000.0
        exporter = exporter.metric_exporter
        assert exporter is not None
        assert exporter.export(whole_run()) is OK
        first = os.read(screen, 4096).decode()
        assert first.startswith("goodput 87.3 % · step 1240") and first.count("\n") == 1
        assert exporter.export(collect(observed("gauge", "goodput.ratio", (0.5, {"goodput.window": "run"})))) is OK
        assert os.read(screen, 4096).decode() == "goodput 50.0 %\r\n"
        exporter.shutdown()


def test_a_narrow_terminal_is_not_overrun() -> None:
    with terminal(60) as (stream, screen):
        exporter = open_exporter("console", ExporterContext("job", "run", stream=stream)).metric_exporter
        assert exporter is not None
        assert exporter.export(whole_run()) is OK
        assert os.read(screen, 4096).decode() == "goodput 87.3 % · step 1240 · 3.1 s/step\r\n"


def test_through_a_real_reader_the_last_figures_are_printed_at_the_end() -> None:
    stream = io.StringIO()
    exporter = open_exporter("console", ExporterContext("job", "run", stream=stream))
    assert exporter.interval_ms is None
    assert exporter.metric_exporter is not None
    provider = MeterProvider([PeriodicExportingMetricReader(exporter.metric_exporter, 10)], shutdown_on_exit=False)
    observed("gauge", "goodput.ratio", (0.5, {"goodput.window": "run"}))(provider.get_meter("m"))
    until(lambda: stream.getvalue().count("\n") >= 2)
    before = stream.getvalue().count("\n")
    provider.shutdown()
    assert stream.getvalue().count("\n") > before
    assert set(stream.getvalue().splitlines()) == {"goodput 50.0 %"}


def test_a_stream_that_is_closed_or_cannot_write_dots() -> None:
    closed = io.StringIO()
    closed.close()
    exporter = ConsoleMetricExporter(closed, terminal=False)
    assert exporter.export(whole_run()) is MetricExportResult.FAILURE
    exporter.shutdown()

    buffer = io.BytesIO()
    ascii_only = io.TextIOWrapper(buffer, encoding="ascii")
    assert ConsoleMetricExporter(ascii_only, terminal=False).export(whole_run()) is OK
    assert buffer.getvalue().startswith(b"goodput 87.3 % | step 1240 | 3.1 s/step")


def test_a_pipe_whose_reader_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    assert ConsoleMetricExporter(stream, terminal=False).export(whole_run()) is MetricExportResult.FAILURE
    with pytest.raises(BrokenPipeError):
        stream.close()
