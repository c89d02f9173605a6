"""Uploading goodput while a job runs, in threads instead of processes: ``monitoring`` and ``monitoring_elastic``."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final

from otel_goodput._accounting.totals import Totals
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.durations import NS, window_name
from otel_goodput.compat import goodput, google_series, handles
from otel_goodput.compat.goodput_utils import (
    Badput,
    BadputType,
    GCPOptions,
    MetricType,
    MonitoringWindowType,
    badput_percent,
    badput_seconds,
    goodput_percent,
)
from otel_goodput.compat.google_series import GoogleSeries
from otel_goodput.compat.handles import harmless
from otel_goodput.compat.uploader import Uploader
from otel_goodput.exporters.spec import ExporterUnavailable
from otel_goodput.exporters.tensorboard import ScalarWriter

__all__ = [
    "BadputType",
    "ElasticGoodputMonitor",
    "GCPOptions",
    "GoodputMonitor",
    "MetricType",
    "MonitoringWindowType",
]

FOLDER: Final = "goodput"  # below the TensorBoard directory


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
        self._initialized = bool(monitoring_enabled)
        if not self._initialized:
            return
        self._names = job_name, logger_name
        self._calculator = self.calculator_class(job_name, logger_name)
        self._breakdown, self._deviation = include_badput_breakdown, include_step_deviation
        self._ideal = configured_ideal_step_time
        self._skip, self._limit = skip_final_flush, final_flush_timeout_seconds
        self._options = replace(gcp_options or GCPOptions())
        # One each: at its end a writer sends only those of its series that its latest write still had.
        self._google = GoogleSeries(job_name, self._options)
        self._google_windows = GoogleSeries(job_name, self._options)
        self._folder = f"{str(tensorboard_dir).rstrip('/')}/{FOLDER}" if tensorboard_dir else ""
        self._drawing = threading.Lock()
        self._writer: ScalarWriter | None = None
        self._windows: tuple[int, ...] = ()
        self._drawn = -1  # the highest step whose deviation is written
        self._slices = False
        self._goodput_uploader = Uploader("goodput", upload_interval, self._upload_goodput, self._google.close)
        self._deviation_uploader = Uploader(
            "step deviation", step_deviation_interval_seconds, self._upload_step_deviation
        )
        self._window_uploader = Uploader(
            "rolling windows", upload_interval, self._upload_windows, self._google_windows.close
        )

    # --- start and stop -----------------------------------------------------------------------------------------------

    @harmless
    def start_goodput_uploader(self) -> None:
        """Upload goodput at the interval."""
        if self._initialized:
            self._goodput_uploader.start()

    @harmless
    def stop_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Stop that, after a last upload."""
        if self._initialized:
            self._stop(self._goodput_uploader, skip_final_flush)

    @harmless
    def start_step_deviation_uploader(self) -> None:
        """Upload the deviation of each step, if the monitor is to."""
        if self._initialized and self._deviation:
            self._deviation_uploader.start()

    @harmless
    def stop_step_deviation_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Stop that, after a last upload."""
        if self._initialized and self._deviation:
            self._stop(self._deviation_uploader, skip_final_flush)

    @harmless
    def start_rolling_window_goodput_uploader(self, rolling_windows_seconds: Sequence[int]) -> None:
        """Upload goodput and badput of windows of these lengths, in seconds."""
        if self._initialized:
            self._windows = tuple(round(seconds * NS) for seconds in rolling_windows_seconds if seconds >= 1)
            self._add_windows()
            self._window_uploader.start()

    @harmless
    def stop_rolling_window_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Stop that, after a last upload."""
        if self._initialized and self._windows:
            self._stop(self._window_uploader, skip_final_flush)

    def _stop(self, uploader: Uploader, skip: bool | None) -> None:
        uploader.stop(last=not (self._skip if skip is None else skip), seconds=self._limit)

    # --- uploads, on the uploaders' threads ---------------------------------------------------------------------------

    def _upload_goodput(self) -> None:
        totals = self._calculator.totals()
        step = totals.run.max_productive_step or 0
        shares = [("goodput/goodput", goodput_percent(totals.run))]
        if self._breakdown:
            seconds = badput_seconds(totals.run, totals.overlapped_data_loading, elastic=self._calculator.elastic)
            shares += _tags(badput_percent(seconds, totals.run.elapsed))
        self._draw([(tag, share, step) for tag, share in shares])
        if self._options.enable_gcp_goodput_metrics and self._google.wanted:
            more = google_series.SLICES_OF_RUN if self._slices else ()
            self._google.write(totals, (*google_series.OF_RUN, *more))

    def _upload_step_deviation(self) -> None:
        """Draw the steps that are new. (Cloud Monitoring gets the deviation of the run with the other figures.)"""
        deviations = self._calculator.get_step_deviation(self._ideal)
        new = [("step_deviation", seconds, step) for step, seconds in deviations.items() if step > self._drawn]
        self._drawn = max((step for _, _, step in new), default=self._drawn)
        self._draw(new)

    def _upload_windows(self) -> None:
        if not (self._options.enable_gcp_goodput_metrics and self._google_windows.wanted):
            return
        self._add_windows()
        more = google_series.SLICES_OF_WINDOWS if self._slices else ()
        self._google_windows.write(self._rolled(), (*google_series.OF_WINDOWS, *more))

    def _add_windows(self) -> None:
        handle = handles.handle_of(*self._names)
        if handle is not None:
            handle.recorder.add_windows(*map(window_name, self._windows))

    def _rolled(self) -> Totals:
        """The account with this monitor's windows, and no others."""
        totals = self._calculator.totals()
        if handles.handle_of(*self._names) is not None:
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
    """A monitor with the elastic types of badput, and with ``include_slice_efficiency`` the shares of slices.

    Its arguments are those of :class:`GoodputMonitor` but for ``pathway_enabled``.
    """

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
            True,
            include_badput_breakdown,
            include_step_deviation,
            configured_ideal_step_time,
            **options,
        )
        self._slices = include_slice_efficiency


def _tags(badput: Badput) -> list[tuple[str, float]]:
    """Names of scalars, as dashboards know them."""
    tags = []
    for kind, value in badput.items():
        tag = f"badput/{kind.name.lower()}"
        if isinstance(value, dict):
            tags += [(f"{tag}/{name.lower()}", share) for name, share in value.items()]
        else:
            tags.append((tag, value))
    return tags
