"""Wait at the end of a job for a receiver that does not listen yet, such as a collector that is slow to start."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._recording.delegating import DelegatingMetricExporter, DelegatingSpanExporter
from otel_goodput._runtime.deadline import LAST_WORD_S, ShutdownSignal
from otel_goodput._runtime.guard import report_once
from otel_goodput.exporters.otlp_answers import Rejections

YOUNG_S: Final = 60.0  # a collector that was not reached for so long is not about to start
PAUSE_S: Final = 0.1
CONNECT_S: Final = 1.0

Address = tuple[str, int]


class Listener:
    """The receiver at an address, which may not listen yet.

    Exports wait for it only while the process stops; before that, a later export can succeed. They wait only if it is
    likely to appear: it was reached before, or the process is young. And they wait only while it refuses connections;
    for a receiver that accepts them and does not answer there is the exporter's own timeout.

    Args:
        address: host and port.
        stopping: tells when the process stops, and how long there is time to wait.
        young_s: how long (s) from now a receiver that was never reached may still be starting.
    """

    def __init__(self, address: Address, stopping: ShutdownSignal, young_s: float = YOUNG_S) -> None:
        self._address = address
        self._stopping = stopping
        self._young_until = time.monotonic() + young_s
        self._reached = False
        self._young: bool | None = None  # whether the process was young when it began to stop; None: not yet

    def deliver(self, send: Callable[[], bool]) -> bool:
        """Call `send` until it returns True or it is no use to wait any longer. Return whether it did."""
        while True:
            awaited = self._awaited()
            if awaited and not self._there():
                return False
            if send():
                self._reached = True
                return True
            # Try again if the process began to stop during `send`, or if the receiver has gone again: it may come back.
            if not self._awaited() or (awaited and not self._refuses()):
                return False

    def _awaited(self) -> bool:
        if not self._stopping.begun:
            return False
        if self._young is None:
            self._young = time.monotonic() < self._young_until
        return self._reached or self._young

    def _there(self) -> bool:
        """Wait until the address accepts connections. Return False if it refused them until time ran out."""
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


class ReceiverSpanExporter(DelegatingSpanExporter):
    """Exports spans to a receiver: waits for it at the end (`listener`; None: never), and counts what it rejects."""

    def __init__(self, exporter: SpanExporter, listener: Listener | None, rejections: Rejections) -> None:
        super().__init__(exporter)
        self._listener = listener
        self._rejections = rejections

    @property
    def refused(self) -> int:
        return self._rejections.refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._listener is None:
            return self._exporter.export(spans)
        well = self._listener.deliver(lambda: self._exporter.export(spans) is SpanExportResult.SUCCESS)
        return SpanExportResult.SUCCESS if well else SpanExportResult.FAILURE


class ReceiverMetricExporter(DelegatingMetricExporter):
    """Exports metrics to a receiver, in the same way."""

    def __init__(self, exporter: MetricExporter, listener: Listener | None, rejections: Rejections) -> None:
        super().__init__(exporter)
        self._listener = listener
        self._rejections = rejections

    @property
    def refused(self) -> int:
        return self._rejections.refused

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        def send() -> bool:
            result = self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
            return result is MetricExportResult.SUCCESS

        well = send() if self._listener is None else self._listener.deliver(send)
        return MetricExportResult.SUCCESS if well else MetricExportResult.FAILURE
