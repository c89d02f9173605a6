"""The `tensorboard` exporter: the figures of a run as TensorBoard's scalars, over the highest step that is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData, NumberDataPoint

from otel_goodput import semconv
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.envvars import OTEL_GOODPUT_TENSORBOARD_DIR
from otel_goodput.exporters import walk
from otel_goodput.exporters.scalars import ScalarWriter
from otel_goodput.exporters.spec import (
    METRICS,
    Destination,
    ExporterContext,
    Exporters,
    ExporterSpec,
    ExporterUnavailable,
    Situation,
)
from otel_goodput.semconv import Metric

FOLDER: Final = "tensorboard"  # in the run's folder

Attributes = Mapping[str, Any]


def _window(group: str, attributes: Attributes) -> str:
    """The group of a window's figures: that of the run has the plain name."""
    window = attributes.get(semconv.GOODPUT_WINDOW, semconv.WINDOW_RUN)
    return group if window == semconv.WINDOW_RUN else f"{group}_{window}"


def _category(attributes: Attributes) -> str:
    name = attributes.get(semconv.GOODPUT_CUSTOM_NAME)
    category = str(attributes[semconv.GOODPUT_CATEGORY])
    return f"{category}/{name}" if name else category


# What a figure of a metric is called, from its attributes. Units are in the name: TensorBoard knows none.
TAGS: Final[Mapping[Metric, Callable[[Attributes], str]]] = {
    semconv.RATIO: lambda a: f"{_window('goodput', a)}/ratio",
    semconv.BADPUT_RATIO: lambda a: f"{_window('badput', a)}/{_category(a)}",
    semconv.TIME: lambda a: f"seconds/{_category(a)}",
    semconv.STEP_COUNT: lambda a: f"steps/{a[semconv.GOODPUT_STEP_STATE]}",
    semconv.STEP_IDEAL: lambda _: "step_time/ideal_s",
    semconv.STEP_DEVIATION: lambda _: "step_time/deviation_s",
    semconv.AT_RISK: lambda _: "checkpoint/at_risk_s",
    semconv.STRAGGLER: lambda _: "processes/straggler_ratio",
    semconv.DISRUPTIONS: lambda a: f"disruptions/{a[semconv.GOODPUT_DISRUPTION_REASON]}",
    semconv.FIRST_STEP: lambda _: "disruptions/first_step_s",
    semconv.REGAINED: lambda _: "disruptions/regained_s",
    semconv.SLICE_EFFICIENCY: lambda a: f"slices/{a[semconv.GOODPUT_SLICE_STATE]}",
    semconv.SCHEDULING_RATIO: lambda _: "goodput/scheduling",
    semconv.PROGRAM_RATIO: lambda _: "goodput/program",
    semconv.PRODUCTIVITY: lambda _: "goodput/productivity",
    semconv.QUEUE_DEPTH: lambda _: "loading/queue_depth",
}
MEAN_STEP_TIME: Final = "step_time/mean_s"  # of the steps since the export before
_BY_NAME: Final = {metric.name: tag for metric, tag in TAGS.items()}


class TensorBoardExporter(MetricExporter):
    """Writes scalars. What was always 0 is not drawn: that a reason or a category exists is no news.

    Args:
        directory: where the event files go, a path or a URL.
        shared, of: as for :class:`~otel_goodput.exporters.scalars.ScalarWriter`.
    """

    def __init__(self, directory: str, *, shared: bool = False, of: Path | None = None) -> None:
        super().__init__()
        self._directory = directory
        self._of = of
        self._shared = shared
        self._writer: ScalarWriter | None = None
        self._lost = 0
        self._drawn: set[str] = set()
        self._counted = 0, 0.0  # steps, and their seconds, that the histogram had at the latest export

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        points = list(_points(metrics_data))
        if not points:
            return MetricExportResult.SUCCESS
        step = max((int(value) for name, _, value, _ in points if name == semconv.STEP_MAX.name), default=0)
        try:
            if self._writer is None:
                self._writer = ScalarWriter(self._directory, shared=self._shared, of=self._of)
            for tag, value, time in self._scalars(points, metrics_data):
                self._writer.write(tag, value, step, time)
            self._writer.flush()
        except (OSError, ExporterUnavailable) as error:
            if self._writer is None:
                self._lost += len(points)
            self._report(error)
            return MetricExportResult.FAILURE
        return MetricExportResult.SUCCESS

    @property
    def dropped(self) -> int:
        """Number of figures that were given up; those that wait for the folder to be writable again are not."""
        return self._lost + (self._writer.lost if self._writer is not None else 0)

    def _report(self, error: Exception) -> None:
        text = "exporter tensorboard cannot write its scalars, will keep trying: %s"
        report_once(f"tensorboard {self._directory}", text, error)

    def _scalars(self, points: list[_Point], data: MetricsData) -> Iterator[tuple[str, float, float]]:
        """Yield tag, value, and seconds since the epoch."""
        for name, attributes, value, time in points:
            if name not in _BY_NAME or not math.isfinite(value):
                continue
            tag = _BY_NAME[name](attributes)
            if value or tag in self._drawn:
                self._drawn.add(tag)
                yield tag, float(value), time
        count, total = _step_times(data)
        before, seconds = self._counted
        if count > before:
            self._counted = count, total
            yield MEAN_STEP_TIME, (total - seconds) / (count - before), points[0][3]

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            self._report(error)
        self._lost += writer.lost + writer.unwritten


_Point = tuple[str, Attributes, float, float]


def _points(data: MetricsData) -> Iterator[_Point]:
    """Yield name, attributes, value and seconds since the epoch of each number of this package's."""
    for metric in walk.own_metrics(data):
        for point in metric.data.data_points:
            if isinstance(point, NumberDataPoint):
                yield metric.name, point.attributes or {}, point.value, point.time_unix_nano / 1e9


def _step_times(data: MetricsData) -> tuple[int, float]:
    """Return how many steps the histogram of step times holds, and their seconds."""
    points: list[Any] = [
        point
        for metric in walk.own_metrics(data)
        if metric.name == semconv.STEP_DURATION.name
        for point in metric.data.data_points
    ]
    return sum(point.count for point in points), sum(point.sum for point in points)


def directory_of(environ: Mapping[str, str], folder: Path | None) -> str:
    """Where scalars go: what the variable says, else into the run's `folder`; empty if neither is known."""
    return environ.get(OTEL_GOODPUT_TENSORBOARD_DIR.name, "").strip() or (str(folder / FOLDER) if folder else "")


def open_tensorboard(context: ExporterContext) -> Exporters:
    """Open the exporter; the first export creates a file. Raises ExporterUnavailable if no directory is known."""
    directory = directory_of(context.environ, context.directory)
    if not directory:
        hint = f"set {OTEL_GOODPUT_TENSORBOARD_DIR.name} to a path or URL"
        raise ExporterUnavailable("tensorboard", "no directory is known", hint)
    chosen = bool(context.environ.get(OTEL_GOODPUT_TENSORBOARD_DIR.name, "").strip())
    if chosen and "://" not in directory:
        directory = str(files.named(directory))  # what the user names may be a link
    # The run's folder is closed to others. A folder of the user's own is often read by another user's TensorBoard.
    of = None if chosen or context.directory is None else context.directory.parent
    return Exporters("tensorboard", None, TensorBoardExporter(directory, shared=chosen, of=of))


def describe(context: ExporterContext) -> list[Destination]:
    return [Destination(METRICS, directory_of(context.environ, context.directory) or "nowhere")]


def auto(situation: Situation) -> str:
    named = situation.environ.get(OTEL_GOODPUT_TENSORBOARD_DIR.name, "").strip()
    return f"{OTEL_GOODPUT_TENSORBOARD_DIR.name} names a directory" if named else ""


TENSORBOARD: Final = ExporterSpec(
    "tensorboard",
    "TensorBoard scalars, in the run's folder or in `OTEL_GOODPUT_TENSORBOARD_DIR`",
    open_tensorboard,
    describe,
    (METRICS,),
    extra="tensorboard",
    packages=lambda _: ("tensorboard",),
    auto=auto,
    number=38,
)
