"""Google's own goodput series, written for a monitor: with what its ``GCPOptions`` say of the labels."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._accounting.totals import Totals
from otel_goodput._metrics import instruments
from otel_goodput._resources import process
from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.compat.goodput_utils import GCPOptions
from otel_goodput.exporters.google import open_workload
from otel_goodput.exporters.google.connection import on_google_cloud
from otel_goodput.exporters.spec import ExporterContext

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


class GoogleSeries:
    """Writes the series of one job.

    Args:
        job_name: the workload's id.
        options: overrides of what is found out from the machine.
    """

    def __init__(self, job_name: str, options: GCPOptions) -> None:
        self._job_name = job_name
        self._options = options

    @property
    def wanted(self) -> bool:
        """Whether there is a place to write to: a project is named, or this is Google Cloud."""
        if self._options.project_id or on_google_cloud(os.environ):
            return True
        report_once(
            "compat project",
            "nothing is written to Cloud Monitoring: this is not Google Cloud, and GCPOptions names no project_id",
        )
        return False

    def write(self, totals: Totals, metrics: tuple[semconv.Metric, ...]) -> bool:
        """Write the series made of `metrics`; returns whether they were written or will be tried again."""
        from otel_goodput.exporters.google.workload import rows

        now = time.time_ns()
        points: dict[str, list[tuple[Mapping[str, Any], float, int]]] = {
            metric.name: [(attributes, value, now) for value, attributes in of(totals)]
            for metric, of in instruments.ROWS
            if metric in metrics
        }
        return bool(self._exporter.write_rows(rows(points), self._resource, WRITE_S))

    def close(self) -> None:
        """Send the points that are held: a series takes one in five seconds. A later write opens the exporter again."""
        exporter = self.__dict__.pop("_exporter", None)
        if exporter is not None:
            exporter.shutdown(WRITE_S * 1000)

    @cached_property
    def _exporter(self) -> Any:
        environ = dict(os.environ)
        if self._options.project_id:
            environ[OTEL_GOODPUT_GCP_PROJECT.name] = self._options.project_id
        context = ExporterContext(self._job_name, self._job_name, environ=environ)
        return open_workload(context).metric_exporter

    @cached_property
    def _resource(self) -> Resource:
        options = self._options
        named = {
            semconv.CLOUD_AVAILABILITY_ZONE: options.location,
            semconv.ACCELERATOR_TYPE: options.acc_type,
            semconv.K8S_CLUSTER_NAME: options.cluster_name,
            semconv.REPLICA_ID: options.replica_id,
        }
        overrides = {name: value for name, value in named.items() if value}
        return process.describe(self._job_name, self._job_name, 0, 0, 1, overrides, traced=False)
