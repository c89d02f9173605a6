"""The metrics of the `gcp` exporter: Google's exporter translates them, and we deliver what it would send.

Theirs neither retries nor keeps what it could not send. Its translation is kept by Google as its terms change:
descriptors with kind, type and unit; keys of labels; the monitored resource; histograms as distributions.

Metric descriptors, with units and descriptions for readers, are created without holding up the points. Without our
descriptor Cloud Monitoring makes one from the first point, which has neither unit nor description. If our role may not
create descriptors, or the method does not answer, nothing else is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput.exporters.fitting import converted_metrics
from otel_goodput.exporters.google.connection import MONITORING, hide_deprecations, stock_exporter
from otel_goodput.exporters.google.delivery import Delivery, Outcome, short
from otel_goodput.exporters.google.series import Labels, Series, TimeSeriesExporter, fitting_metric, location, series_of

_MONITORING: Final = "opentelemetry.exporter.cloud_monitoring"
HEAD_START_S: Final = 1.0  # how long the first points wait for their descriptors
BUDGET_S: Final = 30.0  # for one descriptor


class Descriptions:
    """Creates metric descriptors in a thread of its own, until it is closed.

    The thread starts with the object: the first points may be sent at exit, where Python 3.12+ starts no threads.
    `delivery` makes the delivery of requests, given the function to which it reports failures.
    """

    def __init__(
        self, delivery: Callable[[Callable[..., object]], Delivery], create: Callable[[Any, float], object]
    ) -> None:
        self._delivery = delivery(self._remember)
        self._create = create
        self._lock = threading.Lock()
        self._wanted: dict[str, Any] = {}
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: there is something to do; False: end
        self._idle = threading.Event()
        self._idle.set()
        self._prompt = True  # whether to wait; not after they were late, until all are created
        self._trouble: tuple[object, ...] | None = None
        with suppress(RuntimeError):  # no more threads: there will be no descriptions
            threading.Thread(target=self._work, name="otel-goodput-descriptions", daemon=True).start()

    def want(self, requests: Iterable[Any]) -> None:
        """Have these created, and the missing ones of earlier calls; wait for them for `HEAD_START_S` at most."""
        with self._lock:
            self._wanted |= {request.metric_descriptor.type: request for request in requests}
            if not self._wanted:
                return
            if self._idle.is_set():
                self._idle.clear()
                self._calls.put(True)
        if self._prompt:
            self.wait(HEAD_START_S)
            self._prompt = not self._wanted

    def wait(self, seconds: float) -> None:
        """Wait until all are created or nothing more can be done now, for `seconds` and `HEAD_START_S` at most."""
        self._idle.wait(min(max(0.0, seconds), HEAD_START_S))

    def close(self) -> None:
        """End the thread."""
        self._calls.put(False)

    def report(self) -> None:
        """Report a failure, once. Called when points were accepted, so that the failure concerns descriptors alone."""
        tried = self._idle.is_set()  # else the failure may be over by now
        if tried and self._trouble is not None:
            site, message, *arguments = self._trouble
            report_once(f"descriptions {site}", f"{message}. Points are written without it", *arguments)

    def _remember(self, *trouble: object) -> None:
        self._trouble = trouble

    def _work(self) -> None:
        while self._calls.get():
            try:
                self._send()
            except Exception as error:
                contain("descriptions of metrics", error)
            finally:
                self._idle.set()

    def _send(self) -> None:
        while True:
            with self._lock:
                name, request = next(iter(self._wanted.items()), (None, None))
            if name is None:
                self._prompt = True
                return
            self._trouble = None  # what an earlier try met may be over, and a circuit that is open tries nothing
            answer = self._delivery(partial(self._create, request), BUDGET_S)
            if answer.outcome in (Outcome.TIMED_OUT, Outcome.CIRCUIT_OPEN):
                return
            if answer.outcome is Outcome.REFUSED:
                report_once(f"descriptor {name}", "the description of %s is not accepted: %s", name, short(answer.text))
            with self._lock:
                self._wanted.pop(name, None)


class MetricTranslation:
    """Translates metrics for Cloud Monitoring."""

    def __init__(self, project: str) -> None:
        self._descriptors: list[Any] = []
        self._series: list[Any] = []
        self._stock = stock_exporter(_MONITORING, "CloudMonitoringMetricsExporter", project, self)

    def __call__(self, data: MetricsData) -> tuple[list[Any], list[Any]]:
        """Return requests for the descriptors that are new, and a ``TimeSeries`` for each point."""
        self._descriptors, self._series = [], []
        hide_deprecations()
        self._stock.export(data)
        return self._descriptors, self._series

    def common_project_path(self, project: str) -> str:
        """Return a path. Google's exporter calls this method of its client, and the next two."""
        return f"projects/{project}"

    def create_metric_descriptor(self, request: Any) -> Any:
        self._descriptors.append(request)
        return request.metric_descriptor

    def create_time_series(self, request: Any) -> None:
        self._series += type(request).pb(request).time_series


class CloudMonitoringExporter(TimeSeriesExporter):
    """Exports metrics to Cloud Monitoring, under ``workload.googleapis.com/``.

    `run_id` and `process_index` identify the series of this process over the attempts of the run; `describing` makes
    the delivery of metric descriptors, given the function to which it reports failures.
    """

    def __init__(
        self,
        delivery: Delivery,
        describing: Callable[[Callable[..., object]], Delivery],
        run_id: str,
        process_index: int,
    ) -> None:
        super().__init__(delivery)
        self._identity = {semconv.SERVICE_NAMESPACE: run_id, semconv.SERVICE_INSTANCE_ID: str(process_index)}
        self._lock = threading.Lock()
        self._labels = Labels()
        self._translation: MetricTranslation | None = None
        self._descriptions = Descriptions(describing, self._create)

    def series(self, data: MetricsData, seconds: float) -> Iterable[Series] | None:
        with self._lock:
            fitted = converted_metrics(data, lambda _, metric: fitting_metric(metric, self._labels), self._task)
            if self._translation is None:
                # This looks up the project and maybe credentials; if that fails, it is a failed delivery.
                lookup = self._delivery(lambda _: self._delivery.connection.project, seconds)
                if lookup.outcome is not Outcome.DELIVERED:
                    return None
                self._translation = MetricTranslation(self._delivery.connection.project)
            descriptors, series = self._translation(fitted)
            if self._well:
                self._descriptions.report()
            self._descriptions.want(descriptors)
        return map(series_of, series)

    def _task(self, resource: Resource) -> Resource:
        """Return the resource of a ``generic_task``: one for each process of a run, the same in all its attempts.

        A ``gce_instance`` would be shared by all processes on a machine, and a pod's name changes with each restart.
        """
        where = location(resource)
        attributes = {semconv.SERVICE_NAME: resource.attributes.get(semconv.SERVICE_NAME, ""), **self._identity}
        return Resource({**attributes, semconv.CLOUD_REGION: where})

    def _create(self, request: Any, seconds: float) -> None:
        self._delivery.connection.client(MONITORING).create_metric_descriptor(
            request=request, timeout=seconds, retry=None
        )

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        until = time.monotonic() + timeout_millis / 1000
        if self._writer.finish(timeout_millis / 1000):
            self._descriptions.wait(until - time.monotonic())
        self._descriptions.close()
