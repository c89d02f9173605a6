"""Uploading goodput while a job runs, in threads instead of processes: ``monitoring`` and ``monitoring_elastic``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any, ClassVar, Final

from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._accounting.totals import Totals
from otel_goodput._metrics import instruments
from otel_goodput._resources import process
from otel_goodput._runtime.guard import contain, report_once, started
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_PROJECT
from otel_goodput._text.durations import NS, window_name
from otel_goodput.compat import goodput, goodput_utils
from otel_goodput.compat.goodput import harmless
from otel_goodput.compat.goodput_utils import BadputType, GCPOptions, MetricType, MonitoringWindowType
from otel_goodput.exporters.google import open_workload
from otel_goodput.exporters.google.connection import on_google_cloud
from otel_goodput.exporters.spec import ExporterContext, ExporterUnavailable
from otel_goodput.exporters.tensorboard import ScalarWriter

__all__ = ["BadputType", "ElasticGoodputMonitor", "GCPOptions", "GoodputMonitor", "MetricType", "MonitoringWindowType"]

LONGEST_S: Final = 60.0  # to wait at a stop, where the user sets no limit: a hanging network must not keep the job


class Uploader:
    """Calls `upload` every `interval` seconds until it is stopped, then `finish`. It can be started again."""

    def __init__(
        self, name: str, interval: float, upload: Callable[[], None], finish: Callable[[], None] = lambda: None
    ) -> None:
        self._name = name
        self._interval = min(max(0.1, float(interval)), threading.TIMEOUT_MAX)
        self._upload = upload
        self._finish = finish
        self._stopping = threading.Event()
        self._once_more = threading.Event()  # at the stop
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()  # never held while anything is waited for

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        with self._changing:
            if not self.running:
                self._begin()

    def _begin(self) -> threading.Thread:
        # Of its own: a thread that was given up at a stop must not go on because another one begins.
        work = self._stopping, self._once_more = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, args=work, name=f"otel-goodput-{self._name}", daemon=True)
        if started(thread, "uploads wait until the end"):
            self._thread = thread
        return thread

    def stop(self, *, last: bool, seconds: float | None) -> None:
        """Stop it, after uploading once more if `last` is true, also if it never ran; wait `seconds` at most."""
        with self._changing:
            thread = self._thread if self.running else None
            if thread is None:
                if not last:
                    return
                thread = self._begin()
            self._thread = None
            if last:
                self._once_more.set()
            self._stopping.set()
        limit = LONGEST_S if seconds is None else max(0.0, seconds)
        thread.join(limit)
        if thread.is_alive():
            text = "the last upload of %s took more than %g s and was given up"
            report_once(f"upload {self._name}", text, self._name, limit)

    def _run(self, stopping: threading.Event, once_more: threading.Event) -> None:
        while not stopping.wait(self._interval):
            self._do(self._upload)
        if once_more.is_set():
            self._do(self._upload)
        self._do(self._finish)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ValueError as error:  # there is nothing to upload yet
            report_once(f"upload {self._name} {error}", "nothing to upload of %s: %s", self._name, error)
        except Exception as error:
            contain(f"upload of {self._name}", error)


# --- Google's own goodput series, with what `GCPOptions` say of their labels ------------------------------------------

WRITE_S: Final = 10.0  # for one round of series

OF_RUN: Final = (
    semconv.TIME,
    semconv.STALLED_RATIO,
    semconv.DISRUPTIONS,
    semconv.STEP_MAX,
    semconv.STEP_DEVIATION,
    semconv.STEP_IDEAL,
)
OF_WINDOWS: Final = (semconv.RATIO, semconv.BADPUT_RATIO, semconv.STALLED_RATIO)
# The same for elastic jobs.
SLICES_OF_RUN: Final = (semconv.SLICE_EFFICIENCY,)
SLICES_OF_WINDOWS: Final = (semconv.SLICE_WINDOW_EFFICIENCY,)


@dataclass(eq=False)
class GoogleSeries:
    """Writes the series of a job, with the workload's id `job_name`; `options` override what the machine says."""

    job_name: str
    options: GCPOptions

    @property
    def wanted(self) -> bool:
        """Whether there is a place to write to: a project is named, or this is Google Cloud."""
        if not self.options.enable_gcp_goodput_metrics:
            return False
        if self.options.project_id or on_google_cloud(os.environ):
            return True
        report_once(
            "compat project",
            "nothing is written to Cloud Monitoring: this is not Google Cloud, and GCPOptions names no project_id",
        )
        return False

    def write(self, totals: Totals, metrics: tuple[semconv.Metric, ...]) -> None:
        from otel_goodput.exporters.google.workload import rows

        now = time.time_ns()
        points: dict[str, list[tuple[Mapping[str, Any], float, int]]] = {
            metric.name: [(attributes, value, now) for value, attributes in instruments.attributed(metric, of(totals))]
            for metric, of in instruments.ROWS
            if metric in metrics
        }
        self._exporter.write_rows(rows(points), self._resource, WRITE_S)

    def close(self) -> None:
        """Send the points that are held: a series takes one in five seconds. A later write opens the exporter again."""
        exporter = self.__dict__.pop("_exporter", None)
        if exporter is not None:
            exporter.shutdown(WRITE_S * 1000)

    @cached_property
    def _exporter(self) -> Any:
        environ = dict(os.environ)
        if self.options.project_id:
            environ[OTEL_GOODPUT_GCP_PROJECT.name] = self.options.project_id
        context = ExporterContext(self.job_name, self.job_name, environ=environ)
        return open_workload(context).metric_exporter

    @cached_property
    def _resource(self) -> Resource:
        options = self.options
        named = {
            semconv.CLOUD_AVAILABILITY_ZONE: options.location,
            semconv.ACCELERATOR_TYPE: options.acc_type,
            semconv.K8S_CLUSTER_NAME: options.cluster_name,
            semconv.REPLICA_ID: options.replica_id,
        }
        overrides = {name: value for name, value in named.items() if value}
        return process.describe(self.job_name, self.job_name, 0, 0, 1, overrides, traced=False)


FOLDER: Final = "goodput"  # below the TensorBoard directory
_GOODPUT, _DEVIATION, _WINDOWS = "goodput", "step deviation", "rolling windows"  # the uploaders


def _switches(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the monitor's methods that start and stop one of its uploaders, if it has it."""

    def start(self: GoodputMonitor) -> None:
        """Upload at the interval."""
        if name in self._uploaders:
            self._uploaders[name].start()

    def stop(self: GoodputMonitor, skip_final_flush: bool | None = None) -> None:
        """Stop that, after a last upload."""
        if name in self._uploaders:
            skip = self._skip if skip_final_flush is None else skip_final_flush
            self._uploaders[name].stop(last=not skip, seconds=self._limit)

    for method in (start, stop):
        method.__name__ += f"_{name.replace(' ', '_')}_uploader"
    return harmless(start), harmless(stop)


class GoodputMonitor:
    """Uploads the goodput of a job to TensorBoard and Cloud Monitoring.

    Args:
        job_name, logger_name: name the account, as for the recorder.
        tensorboard_dir: scalars go to the folder ``goodput`` in it; a path or a URL.
        upload_interval: seconds.
        monitoring_enabled: whether this process uploads.
        pathway_enabled: of no effect here.
        include_badput_breakdown: whether to write badput by type to TensorBoard.
        include_step_deviation: whether there is a step deviation uploader.
        configured_ideal_step_time: seconds, for the step deviation.
        step_deviation_interval_seconds: seconds.
        gcp_options: labels and project of Cloud Monitoring.
        skip_final_flush: whether to stop without a last upload.
        final_flush_timeout_seconds: how long a stop may take; None is a minute.
        gcs_sync_interval_seconds, cache_dir, max_logs_retention_period: of no effect here.
    """

    calculator_class: ClassVar[type[goodput.GoodputCalculator]] = goodput.GoodputCalculator

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str,
        upload_interval: int,
        monitoring_enabled: bool = False,
        pathway_enabled: bool = False,
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        configured_ideal_step_time: float | None = None,
        step_deviation_interval_seconds: int = 10,
        gcp_options: GCPOptions | None = None,
        skip_final_flush: bool = False,
        final_flush_timeout_seconds: float | None = 10,
        gcs_sync_interval_seconds: int = 3600,
        cache_dir: str = "/tmp",
        max_logs_retention_period: timedelta | None = None,
    ) -> None:
        self._uploaders: dict[str, Uploader] = {}
        if not monitoring_enabled:
            return
        self._calculator = self.calculator_class(job_name, logger_name)
        self._breakdown = include_badput_breakdown
        self._ideal = configured_ideal_step_time
        self._skip, self._limit = skip_final_flush, final_flush_timeout_seconds
        options = replace(gcp_options or GCPOptions())
        # One each: at its end a writer sends only those of its series that its latest write still had.
        self._google, self._google_windows = GoogleSeries(job_name, options), GoogleSeries(job_name, options)
        self._folder = f"{str(tensorboard_dir).rstrip('/')}/{FOLDER}" if tensorboard_dir else ""
        self._drawing = threading.Lock()
        self._writer: ScalarWriter | None = None
        self._windows: tuple[int, ...] = ()
        self._drawn = -1  # the highest step whose deviation is written
        self._slices = False
        self._interval, deviations_every = upload_interval, step_deviation_interval_seconds
        self._uploaders[_GOODPUT] = Uploader(_GOODPUT, self._interval, self._upload_goodput, self._google.close)
        if include_step_deviation:
            self._uploaders[_DEVIATION] = Uploader(_DEVIATION, deviations_every, self._upload_step_deviation)

    start_goodput_uploader, stop_goodput_uploader = _switches(_GOODPUT)
    start_step_deviation_uploader, stop_step_deviation_uploader = _switches(_DEVIATION)
    _start_windows, stop_rolling_window_goodput_uploader = _switches(_WINDOWS)

    @harmless
    def start_rolling_window_goodput_uploader(self, rolling_windows_seconds: Sequence[int]) -> None:
        """Upload goodput and badput of windows of these lengths, in seconds."""
        if self._uploaders:
            self._windows = tuple(round(seconds * NS) for seconds in rolling_windows_seconds if seconds >= 1)
            self._add_windows()
            last = self._google_windows.close
            self._uploaders.setdefault(_WINDOWS, Uploader(_WINDOWS, self._interval, self._upload_windows, last))
            self._start_windows()

    # --- uploads, on the uploaders' threads ---------------------------------------------------------------------------

    def _upload_goodput(self) -> None:
        totals = self._calculator.totals()
        step = totals.run.max_productive_step or 0
        shares = [("goodput/goodput", goodput_utils.goodput_percent(totals.run))]
        if self._breakdown:
            overlapped, elastic = totals.overlapped_data_loading, self._calculator.elastic
            shares += _tags(goodput_utils.badput_percent(totals.run, overlapped, elastic=elastic))
        self._draw([(tag, share, step) for tag, share in shares])
        if self._google.wanted:
            self._google.write(totals, OF_RUN + SLICES_OF_RUN if self._slices else OF_RUN)

    def _upload_step_deviation(self) -> None:
        """Draw the steps that are new. (Cloud Monitoring gets the deviation of the run with the other figures.)"""
        deviations = self._calculator.get_step_deviation(self._ideal)
        new = [("step_deviation", seconds, step) for step, seconds in deviations.items() if step > self._drawn]
        self._drawn = max((step for _, _, step in new), default=self._drawn)
        self._draw(new)

    def _upload_windows(self) -> None:
        if self._windows and self._google_windows.wanted:
            self._add_windows()
            metrics = OF_WINDOWS + SLICES_OF_WINDOWS if self._slices else OF_WINDOWS
            self._google_windows.write(self._rolled(), metrics)

    def _add_windows(self) -> None:
        handle = self._calculator.handle
        if handle is not None:
            handle.recorder.add_windows(*map(window_name, self._windows))

    def _rolled(self) -> Totals:
        """The account with this monitor's windows, and no others."""
        totals = self._calculator.totals()
        if self._calculator.handle is not None:
            return replace(totals, rolling=[one for one in totals.rolling if one[0] in self._windows])
        now = datetime.now(timezone.utc)
        since = {span: now - timedelta(seconds=span / NS) for span in self._windows}
        return replace(totals, rolling=[(span, self._calculator.within(at, now)) for span, at in since.items()])

    def _draw(self, scalars: Sequence[tuple[str, float, int]]) -> None:
        """Write tags, values and steps together: at a URL each flush uploads the whole file."""
        if not self._folder:
            return
        try:
            with self._drawing:  # TensorBoard reads one file after the other: there may not be two that grow
                writer = self._writer = self._writer or ScalarWriter(self._folder, shared=True)
            for tag, value, step in scalars:
                writer.write(tag, value, step, time.time())
            writer.flush()
        except ExporterUnavailable as error:
            self._folder = ""
            report_once("compat tensorboard", "nothing is written for TensorBoard: %s", error)
        except OSError as error:
            report_once("compat tensorboard", "scalars for TensorBoard wait until they can be written: %s", error)


class ElasticGoodputMonitor(GoodputMonitor):
    """A monitor of an elastic job, without ``pathway_enabled``, and with the shares of slices if they are included."""

    calculator_class = goodput.ElasticGoodputCalculator

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str,
        upload_interval: int,
        monitoring_enabled: bool = False,
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        include_slice_efficiency: bool = False,
        configured_ideal_step_time: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            job_name,
            logger_name,
            tensorboard_dir,
            upload_interval,
            monitoring_enabled,
            pathway_enabled=True,
            include_badput_breakdown=include_badput_breakdown,
            include_step_deviation=include_step_deviation,
            configured_ideal_step_time=configured_ideal_step_time,
            **options,
        )
        self._slices = include_slice_efficiency


def _tags(badput: goodput_utils.Badput) -> list[tuple[str, float]]:
    """Names of scalars, as dashboards know them."""
    tags: list[tuple[str, float]] = []
    for kind, value in badput.items():
        tag = f"badput/{kind.name.lower()}"
        parts = value if isinstance(value, dict) else {"": value}
        tags += [(f"{tag}/{name.lower()}" if name else tag, share) for name, share in parts.items()]
    return tags
