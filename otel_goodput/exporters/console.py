"""The `console` exporter: one line about the run, for people.

Figures that the metrics do not have are omitted; with neither goodput nor time there is no line. If there is time but
no goodput, it is not known when the device finishes the steps, so no shares of the time are shown.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TextIO

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData, NumberDataPoint

from otel_goodput import semconv
from otel_goodput._text.quantities import short_duration, width
from otel_goodput._text.redact import printable
from otel_goodput.exporters import spec
from otel_goodput.exporters.fitting import every_metric

TERMINAL_INTERVAL_MS: Final = 5000.0
DEFAULT_COLUMNS: Final = 80
# The step time shown is the mean of the steps that ended within about this time, so that it does not jump every second.
STEP_TIME_WINDOW_NS: Final = 60 * 10**9
SOURCES_SHOWN: Final = 3
NEGLIGIBLE: Final = 0.0005  # a share below this would be printed as "0.0 %"
SEPARATOR: Final = " · "


def open_console(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter: metrics only. Raises ExporterUnavailable if there is no stderr."""
    stream = context.stream if context.stream is not None else sys.stderr
    if stream is None:
        raise spec.ExporterUnavailable("console", "the process has no stderr")
    terminal = _for_a_terminal(stream)
    interval_ms = TERMINAL_INTERVAL_MS if terminal else None
    return spec.Exporters("console", None, ConsoleMetricExporter(context.stream, terminal=terminal), interval_ms)


def _for_a_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal, and not that of a REPL or a notebook, where lines would be in the way."""
    notebook = hasattr(builtins, "__IPYTHON__") or "ipykernel" in sys.modules
    if stream is None or hasattr(sys, "ps1") or sys.flags.interactive or notebook:
        return False
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def describe(_: spec.ExporterContext) -> list[spec.Destination]:
    return [spec.Destination(spec.METRICS, "stderr")]


def auto(situation: spec.Situation) -> str:
    stream = situation.stream if situation.stream is not None else sys.stderr
    return "stderr is a terminal" if _for_a_terminal(stream) else ""


CONSOLE: Final = spec.ExporterSpec(
    "console",
    "a line about the run on stderr; on a terminal every five seconds, above progress bars of tqdm and rich",
    open_console,
    describe,
    signals=(spec.METRICS,),
    auto=auto,
    number=32,
)


@dataclass(frozen=True)
class Summary:
    """The figures of a line: seconds, and shares (1 = all). One that is None is omitted, but goodput is "not known"."""

    goodput: float | None = None
    step: int | None = None
    step_time: float | None = None
    badput: tuple[tuple[str, float], ...] = ()
    at_risk: float | None = None
    disruptions: int = 0


class ConsoleMetricExporter(MetricExporter):
    """Writes one line per export; on a `terminal` it fits in the width. `stream`: None is the stderr of that time."""

    def __init__(self, stream: TextIO | None, *, terminal: bool) -> None:
        super().__init__()
        self._stream = stream
        self._terminal = terminal
        self._marks = deque([_Mark(0, 0, 0.0)])

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        summary = _summarize(metrics_data, self._marks)
        stream: TextIO | None = sys.stderr if self._stream is None else self._stream
        if summary is None or stream is None:
            return MetricExportResult.SUCCESS
        try:
            _print(summary, stream, terminal=self._terminal)
        except (OSError, ValueError):  # the reader of the pipe has gone, or the stream is closed
            return MetricExportResult.FAILURE
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        pass


def _print(summary: Summary, stream: TextIO, *, terminal: bool) -> None:
    columns = DEFAULT_COLUMNS
    with suppress(OSError, ValueError):
        columns = os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    text = render(summary, columns - 1 if terminal else None)  # the last column stays free: some terminals wrap there
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeError:
        text = text.replace("·", "|").encode(encoding, "replace").decode(encoding)
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if terminal and tqdm is not None and getattr(tqdm, "_instances", None):  # it draws its bars again, below the line
        tqdm.write(text, file=stream)
    else:
        stream.write(f"{text}\n")
    stream.flush()


class _Mark(NamedTuple):
    time_ns: int
    steps: int
    seconds: float


def _mean_step_time(point: Any, marks: deque[_Mark]) -> float | None:
    """Return the mean over the last `STEP_TIME_WINDOW_NS`, s, and note in `marks` what the cumulative histogram has."""
    mark = _Mark(point.time_unix_nano, point.count, point.sum)
    if mark.steps < marks[-1].steps:  # fewer than before: this is a new histogram
        marks.clear()
        marks.append(_Mark(0, 0, 0.0))
    if mark.steps > marks[-1].steps:
        marks.append(mark)
    # The first mark may be older than the window, so that steps longer than the window have a mean too.
    while len(marks) > 2 and marks[1].time_ns <= mark.time_ns - STEP_TIME_WINDOW_NS:
        marks.popleft()
    count = marks[-1].steps - marks[0].steps
    return (marks[-1].seconds - marks[0].seconds) / count if count else None


def _summarize(data: MetricsData, marks: deque[_Mark]) -> Summary | None:
    points: dict[str, list[Any]] = {}
    for _, _, metric in every_metric(data):
        points.setdefault(metric.name, []).extend(metric.data.data_points)

    def numbers(name: str) -> Iterator[tuple[dict[str, object], float]]:
        for point in points.get(name, ()):
            if isinstance(point, NumberDataPoint):
                yield dict(point.attributes or {}), point.value

    elapsed = 0.0
    lost: list[tuple[str, float]] = []
    for attributes, value in numbers(semconv.TIME.name):
        elapsed += value
        category = attributes.get(semconv.GOODPUT_CATEGORY)
        if category != semconv.Category.PRODUCTIVE:
            lost.append((str(attributes.get(semconv.GOODPUT_CUSTOM_NAME) or category), value))

    ratios = {of.get(semconv.GOODPUT_WINDOW): value for of, value in numbers(semconv.RATIO.name)}
    goodput = ratios.get(semconv.WINDOW_RUN)
    if goodput is None and elapsed <= 0:
        return None

    known = goodput is not None
    shares = ((source, value / elapsed) for source, value in lost if known and value >= NEGLIGIBLE * elapsed > 0)
    # While the clock is unknown, the histogram has only steps from before.
    clocks = {attributes.get(semconv.GOODPUT_CLOCK_STATE) for attributes, _ in numbers(semconv.CLOCK.name)}
    histogram = next(iter(points.get(semconv.STEP_DURATION.name, ())), None)
    timed = histogram is not None and semconv.ClockState.UNKNOWN not in clocks
    return Summary(
        goodput=goodput,
        step=next((int(value) for _, value in numbers(semconv.STEP_MAX.name)), None),
        step_time=_mean_step_time(histogram, marks) if timed else None,
        badput=tuple(sorted(shares, key=lambda share: -share[1])),
        at_risk=next((value for _, value in numbers(semconv.AT_RISK.name)), None),
        disruptions=int(sum(value for _, value in numbers(semconv.DISRUPTIONS.name))),
    )


def render(summary: Summary, columns: int | None = None) -> str:
    """Return the line, at most `columns` cells wide: all but one source of badput go first, then parts from the end."""
    head = [f"goodput {'not known' if summary.goodput is None else _percent(summary.goodput)}"]
    if summary.step is not None:
        head.append(f"step {summary.step}")
    if summary.step_time is not None:
        head.append(f"{short_duration(summary.step_time)}/step")
    tail = []
    if summary.at_risk is not None and summary.at_risk > 0:
        tail.append(f"at risk {short_duration(summary.at_risk)}")
    if summary.disruptions:
        tail.append(f"{summary.disruptions} disruption{'s' if summary.disruptions > 1 else ''}")

    sources = [f"{printable(source)} {_percent(share)}" for source, share in summary.badput[:SOURCES_SHOWN]]
    while True:
        badput = [f"badput: {', '.join(sources)}"] if sources else []
        line = SEPARATOR.join([*head, *badput, *tail])
        if columns is None or not line or width(line) <= columns:
            return line
        (sources if len(sources) > 1 else tail or sources or head).pop()


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
