"""Waiting for a receiver that does not listen yet when the job ends: a collector that starts more slowly than it."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput.deadline import ShutdownSignal
from otel_goodput.guard import report_once

YOUNG_S: Final = 60.0  # a collector that has not been seen for so long is not on its way
PAUSE_S: Final = 0.1
CONNECT_S: Final = 1.0
LAST_WORD_S: Final = 0.2  # kept at the end for telling what was not delivered

Address = tuple[str, int]


class Listener:
    """Who takes what is exported to an address, and whether it is there.

    Only at the end of the process anybody waits for it: before, there is a next export. It has to be on its way, as far
    as that can be told: it was reached before, or the process is young. And only a refused connection is waited for;
    whoever accepts it and says nothing has the exporter's own timeout.

    Args:
        address: host and port.
        stopping: tells when the process stops, and for how long there is time to wait.
        young_s: for how long (s) one that was not reached yet may be on its way.
    """

    def __init__(self, address: Address, stopping: ShutdownSignal, young_s: float = YOUNG_S) -> None:
        self._address = address
        self._stopping = stopping
        self._young_until = time.monotonic() + young_s
        self._reached = False
        self._young: bool | None = None  # whether the process was, when it began to stop

    def deliver(self, send: Callable[[], bool]) -> bool:
        """Call `send` until it goes well, or there is nobody to wait for. Returns whether it went well."""
        while True:
            awaited = self._awaited()
            if awaited and not self._there():
                return False
            if send():
                self._reached = True
                return True
            # What was under way when the process began to stop has another try; and who is gone again may come back.
            if not self._awaited() or (awaited and not self._refuses()):
                return False

    def _awaited(self) -> bool:
        if not self._stopping.begun:
            return False
        if self._young is None:
            self._young = time.monotonic() < self._young_until
        return self._reached or self._young

    def _there(self) -> bool:
        """Wait until the address takes connections. False if it has refused them as long as there was time."""
        began = time.monotonic()
        while self._refuses():
            if self._stopping.left(math.inf) <= LAST_WORD_S + PAUSE_S:
                host, port = self._address
                waited = time.monotonic() - began
                report_once(
                    f"listener {host}:{port}",
                    "nothing listens at %s:%d; shutdown waited %.1f s for a listener",
                    *(host, port, waited),
                )
                return False
            self._stopping.wait(PAUSE_S)
        return True

    def _refuses(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=max(self._stopping.left(CONNECT_S), 0.01)).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


class AwaitingSpanExporter(SpanExporter):
    """A span exporter that waits for its listener at the end."""

    def __init__(self, exporter: SpanExporter, listener: Listener) -> None:
        self._exporter = exporter
        self._listener = listener

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        well = self._listener.deliver(lambda: self._exporter.export(spans) is SpanExportResult.SUCCESS)
        return SpanExportResult.SUCCESS if well else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._exporter.shutdown()


class AwaitingMetricExporter(MetricExporter):
    """A metric exporter that waits for its listener at the end."""

    def __init__(self, exporter: MetricExporter, listener: Listener) -> None:
        # The reader asks its exporter for these two under just these names.
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._listener = listener

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        def send() -> bool:
            result = self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
            return result is MetricExportResult.SUCCESS

        return MetricExportResult.SUCCESS if self._listener.deliver(send) else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)
