"""The `file` exporter: OTLP JSON, one export request per line, as the collector's `otlp_json_file` receiver reads it.

There is one file for each attempt, process and signal, in parts: `traces-attempt0000-p0000.jsonl`, then `….1.jsonl`,
`….2.jsonl`, all matched by `traces-*.jsonl`. Nothing is ever deleted.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.options import Settings
from otel_goodput.exporters import spec
from otel_goodput.exporters.otlp_json import Json, encode_metrics, encode_spans
from otel_goodput.exporters.wrappers import SpacedExporter

DEFAULT_MAX_BYTES: Final = 64 * 2**20
_BLOCK: Final = 64 * 2**10


def open_file(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter; the first export creates the file. Raises ExporterUnavailable if no directory is known."""
    directory = context.directory
    if directory is None:
        raise spec.ExporterUnavailable("file", "no local directory is known", "set OTEL_GOODPUT_DIR to a local path")
    suffix = f"attempt{context.attempt:04d}-p{context.process_index:04d}"
    return spec.Exporters(
        name="file",
        span_exporter=FileSpanExporter(directory, f"traces-{suffix}"),
        # The file may later be sent to Cloud Monitoring, which rejects points too close together.
        metric_exporter=SpacedExporter(FileMetricExporter(directory, f"metrics-{suffix}"), context.stopping),
    )


def describe(context: spec.ExporterContext) -> list[spec.Destination]:
    return [spec.Destination(signal, f"{context.directory}/{signal}-*.jsonl") for signal in spec.SIGNALS]


def auto(situation: spec.Situation) -> str:
    configured = situation.environ.get(Settings.directory.variable, "")
    known = situation.directory is not None or (configured and "://" not in configured)
    return "a local directory is known" if known else ""


FILE: Final = spec.ExporterSpec(
    "file",
    "OTLP JSON lines in the run's folder, readable by the collector's `otlp_json_file` receiver",
    open_file,
    describe,
    auto=auto,
    number=33,
    local=True,
)


class LineFile:
    """Appends whole lines to a file in numbered parts. Thread-safe; only one process may write the file.

    `directory` is a run's folder: it is made if it is missing, and not used if its owner is not trusted.
    """

    def __init__(self, directory: Path, stem: str, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._directory = directory.absolute()
        self._stem = stem
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._part: int | None = None

    def append(self, line: bytes) -> None:
        """Append `line`, newline included, with one write; a partial write is undone. Raises OSError.

        After an error the next call reopens the file, so that a disk that is available again is used.
        """
        with self._lock:
            try:
                self._write(line)
            except OSError:
                self._close()
                raise

    def sync(self) -> None:
        """Write what was appended to the disk (fsync). Raises OSError."""
        with self._lock:
            if self._fd is not None:
                os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        with self._lock:
            self._close()

    def _write(self, line: bytes) -> None:
        fd = self._opened()
        size = os.fstat(fd).st_size
        if size and size + len(line) > self._max_bytes:
            self._close()
            self._part = (self._part or 0) + 1
            fd = self._opened()
        files.append_whole(fd, line)

    def _opened(self) -> int:
        # A file without links has been deleted while open: what is written to it would be lost.
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            self._close()
        if self._fd is None:
            files.make_folders(self._directory, self._directory.parent)  # a run's folder: as the journal checks it
            if self._part is None:
                self._part = self._last_part()
            path = self._directory / (f"{self._stem}.{self._part}.jsonl" if self._part else f"{self._stem}.jsonl")
            self._fd = files.descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            _cut_torn_tail(self._fd)
        return self._fd

    def _last_part(self) -> int:
        """Return the number of the last part that an earlier process of this attempt wrote; 0 if there is none."""
        pattern = re.compile(re.escape(self._stem) + r"\.(\d{1,9})\.jsonl")
        parts = [int(match[1]) for name in files.names(self._directory) if (match := pattern.fullmatch(name))]
        return max(parts, default=0)

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def _cut_torn_tail(fd: int) -> None:
    """Cut the file after its last newline: a process that died while writing may have left half a line."""
    size = end = os.fstat(fd).st_size
    keep = 0
    while end > 0:
        start = max(end - _BLOCK, 0)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        end = start
    if keep != size:
        os.ftruncate(fd, keep)


class _FileExporter:
    """Writes requests as lines to `directory`/`stem`*.jsonl. A part exceeds `max_bytes` only if it is a single line."""

    def __init__(self, directory: Path, stem: str, max_bytes: int = DEFAULT_MAX_BYTES, **preferences: Any) -> None:
        super().__init__(**preferences)
        self._file = LineFile(directory, stem, max_bytes)
        self._place = directory / stem

    def _write(self, request: Json) -> bool:
        text = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # Text from the system may hold lone surrogates, which UTF-8 cannot encode.
        return self._try(lambda: self._file.append(text.encode("utf-8", "replace") + b"\n"))

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            self._report(error)
            return False
        return True

    def _report(self, error: Exception) -> None:
        message = "cannot write telemetry to %s, will keep trying: %s: %s"
        report_once(f"file exporter {self._place}", message, self._place, type(error).__name__, error)

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        return self._try(self._file.sync)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._try(self._file.sync)
        self._try(self._file.close)


class FileSpanExporter(_FileExporter, SpanExporter):
    """Writes spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        request, errors = encode_spans(spans)
        for error in errors:
            self._report(error)
        if not request["resourceSpans"]:  # nothing to write: no spans, or none that could be encoded
            return SpanExportResult.FAILURE if errors else SpanExportResult.SUCCESS
        return SpanExportResult.SUCCESS if self._write(request) else SpanExportResult.FAILURE


class FileMetricExporter(_FileExporter, MetricExporter):
    """Writes metrics, cumulative and with exponential histograms."""

    def __init__(self, directory: Path, stem: str) -> None:
        super().__init__(directory, stem, preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        written = self._write(encode_metrics(metrics_data))
        return MetricExportResult.SUCCESS if written else MetricExportResult.FAILURE
