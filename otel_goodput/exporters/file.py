"""The `file` exporter: OTLP JSON, one export request per line, as the collector's `otlp_json_file` receiver reads it.

There is one file for each attempt, process and signal, in parts: `traces-attempt0000-p0000.jsonl`, then `….1.jsonl`,
`….2.jsonl`. The SDK's spans and metrics are encoded without protobuf, as the OTLP specification maps them: proto3 JSON
with lowerCamelCase names, but ids are hex and enums integers. Fields with their default value are omitted.
"""

from __future__ import annotations

import base64
import json
import math
import numbers
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.options import Settings
from otel_goodput.exporters import spec
from otel_goodput.exporters.fitting import EXPONENTIAL, INT64_MAX, INT64_MIN
from otel_goodput.exporters.wrappers import SpacedExporter

DEFAULT_MAX_BYTES: Final = 64 * 2**20
_BLOCK: Final = 64 * 2**10


def open_file(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter; the first export creates the file. Raises ExporterUnavailable if no directory is known."""
    directory = context.directory
    if directory is None:
        raise spec.ExporterUnavailable("file", "no local directory is known", "set OTEL_GOODPUT_DIR to a local path")
    suffix = f"attempt{context.attempt:04d}-p{context.process_index:04d}"
    # The file may later be sent to Cloud Monitoring, which rejects points too close together.
    metrics = SpacedExporter(FileMetricExporter(directory, f"metrics-{suffix}"), context.stopping)
    return spec.Exporters("file", FileSpanExporter(directory, f"traces-{suffix}"), metrics)


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
                fd = self._opened()
                size = os.fstat(fd).st_size
                if size and size + len(line) > self._max_bytes:
                    self._close()
                    self._part = (self._part or 0) + 1
                    fd = self._opened()
                files.append_whole(fd, line)
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

    def _opened(self) -> int:
        # A file without links has been deleted while open: what is written to it would be lost.
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            self._close()
        if self._fd is None:
            files.make_folders(self._directory, self._directory.parent)  # a run's folder: as the journal checks it
            if self._part is None:
                # An earlier process of this attempt may have written parts.
                pattern = re.compile(re.escape(self._stem) + r"\.(\d{1,9})\.jsonl")
                parts = (pattern.fullmatch(name) for name in files.names(self._directory))
                self._part = max((int(part[1]) for part in parts if part), default=0)
            path = self._directory / (f"{self._stem}.{self._part}.jsonl" if self._part else f"{self._stem}.jsonl")
            self._fd = files.descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            _cut_torn_tail(self._fd)
        return self._fd

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
        super().__init__(directory, stem, preferred_aggregation=EXPONENTIAL)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        written = self._write(encode_metrics(metrics_data))
        return MetricExportResult.SUCCESS if written else MetricExportResult.FAILURE


Json = dict[str, Any]

# SpanFlags: whether it is known that the parent (or linked) context is remote, and whether it is.
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200

_UINT64_MAX: Final = 2**64 - 1


def encode_value(value: object) -> Json:
    """Encode an AnyValue. A value that it cannot hold (an int beyond 64 bits, an object) becomes text."""
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        # Not `in range(…)`: with an int subclass (IntEnum) that compares the numbers of the range one by one.
        kind = "intValue" if INT64_MIN <= value <= INT64_MAX else "stringValue"
        return {kind: _decimal(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytesValue": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": [{"key": str(key), "value": encode_value(v)} for key, v in value.items()]}}
    if isinstance(value, (Sequence, Set)):
        return {"arrayValue": {"values": [encode_value(item) for item in value]}}
    if isinstance(value, numbers.Real):  # scalars of array libraries are not instances of int and float
        return encode_value(int(value) if isinstance(value, numbers.Integral) else float(value))
    return {"stringValue": str(value)}


def _decimal(value: int) -> str:
    return format(int(value), "d")  # not str(), which gives the name of an IntEnum on Python 3.10


def _double(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _attributes(attributes: Mapping[str, Any] | None) -> list[Json]:
    return [{"key": key, "value": encode_value(value)} for key, value in attributes.items()] if attributes else []


def _unsigned(value: int | None) -> str:
    """Encode a fixed64 or uint64; a value out of range (a clock before 1970) is clamped."""
    return _decimal(min(max(value or 0, 0), _UINT64_MAX))


def _trimmed(message: Json) -> Json:
    """Return `message` without default values. Not for a `oneof` or optional fields: there 0 differs from absent."""
    return {key: value for key, value in message.items() if value not in (None, "", 0, [])}


def encode_spans(spans: Iterable[ReadableSpan]) -> tuple[Json, list[Exception]]:
    """Return an ExportTraceServiceRequest, and the errors of the spans that could not be encoded and are not in it."""
    errors: list[Exception] = []
    # Grouped by identity: the SDK's hash of a resource calls json.dumps on its attributes, for each span.
    groups: dict[int, tuple[Resource, dict[int, _Scope]]] = {}
    for span in spans:
        try:
            encoded = _span(span)
        except Exception as error:  # one bad span must not cost the batch
            errors.append(error)
            continue
        _, scopes = groups.setdefault(id(span.resource), (span.resource, {}))
        scope = span.instrumentation_scope
        url = scope.schema_url if scope else ""
        scopes.setdefault(id(scope), (scope, url, []))[2].append(encoded)
    by_resource = [(resource, resource.schema_url, scopes.values()) for resource, scopes in groups.values()]
    return _request("Spans", by_resource), errors


_Scope = tuple["InstrumentationScope | None", "str | None", list[Json]]
"""A scope, its schema URL, and the spans or metrics in it."""


def _request(kind: str, groups: Iterable[tuple[Resource, str | None, Iterable[_Scope]]]) -> Json:
    """Return a request for ``Spans`` or ``Metrics``, by resource, its schema URL, and scope."""
    request = []
    for resource, resource_url, scopes in groups:
        about = _trimmed({"attributes": _attributes(resource.attributes)})
        within = [
            _trimmed({"scope": _scope(scope), kind.lower(): items, "schemaUrl": url}) for scope, url, items in scopes
        ]
        request.append(_trimmed({"resource": about, f"scope{kind}": within, "schemaUrl": resource_url}))
    return {f"resource{kind}": request}


def _span(span: ReadableSpan) -> Json:
    context = span.context
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return _trimmed(
        {
            **_context(context),
            "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
            "flags": _flags(span.parent),
            "name": str(span.name),
            "kind": span.kind.value + 1,  # the protocol's kinds start at 1 (0 is "unspecified")
            "startTimeUnixNano": _unsigned(span.start_time),
            "endTimeUnixNano": _unsigned(span.end_time),
            "attributes": _attributes(span.attributes),
            "droppedAttributesCount": span.dropped_attributes,
            "events": [_event(event) for event in span.events],
            "droppedEventsCount": span.dropped_events,
            "links": [_link(link) for link in span.links],
            "droppedLinksCount": span.dropped_links,
            "status": _trimmed({"code": span.status.status_code.value, "message": span.status.description}),
        }
    )


def _context(context: SpanContext) -> Json:
    state = context.trace_state.to_header() if context.trace_state else ""
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}", "traceState": state}


def _flags(context: SpanContext | None) -> int:
    return _HAS_IS_REMOTE | (_IS_REMOTE if context is not None and context.is_remote else 0)


def _dropping(part: Event | Link) -> Json:
    """Return the attributes of an event or a link, and how many of them the SDK has dropped."""
    return {"attributes": _attributes(part.attributes), "droppedAttributesCount": part.dropped_attributes}


def _event(event: Event) -> Json:
    return _trimmed({"timeUnixNano": _unsigned(event.timestamp), "name": event.name, **_dropping(event)})


def _link(link: Link) -> Json:
    return _trimmed({**_context(link.context), **_dropping(link), "flags": _flags(link.context)})


def _scope(scope: InstrumentationScope | None) -> Json:
    if scope is None:
        return {}
    return _trimmed({"name": scope.name, "version": scope.version, "attributes": _attributes(scope.attributes)})


def encode_metrics(data: MetricsData) -> Json:
    """Return an ExportMetricsServiceRequest. Metrics of kinds that a future SDK may add are omitted."""
    groups = []
    for group in data.resource_metrics:
        scopes = [
            (scope.scope, scope.schema_url, [each for metric in scope.metrics if (each := _metric(metric))])
            for scope in group.scope_metrics
        ]
        groups.append((group.resource, group.schema_url, scopes))
    return _request("Metrics", groups)


_DATA: Final = {Gauge: "gauge", Sum: "sum", Histogram: "histogram", ExponentialHistogram: "exponentialHistogram"}


def _metric(metric: Metric) -> Json | None:
    data: Any = metric.data
    kind = _DATA.get(type(data))
    if kind is None:
        return None
    body: Json = {"dataPoints": [_point(point, start=kind != "gauge") for point in data.data_points]}
    if isinstance(data, Sum) and data.is_monotonic:
        body["isMonotonic"] = True
    if not isinstance(data, Gauge):
        body["aggregationTemporality"] = int(data.aggregation_temporality)
    return {**_trimmed({"name": metric.name, "description": metric.description, "unit": metric.unit}), kind: body}


def _number(value: float) -> Json:
    return {"asInt": _decimal(value)} if isinstance(value, int) else {"asDouble": _double(value)}


def _point(point: Any, *, start: bool) -> Json:
    message = _trimmed(
        {
            "attributes": _attributes(point.attributes),
            "startTimeUnixNano": _unsigned(point.start_time_unix_nano) if start else "",
            "timeUnixNano": _unsigned(point.time_unix_nano),
            "exemplars": [_exemplar(exemplar) for exemplar in point.exemplars],
        }
    )
    if isinstance(point, NumberDataPoint):
        return {**message, **_number(point.value)}
    message["count"] = _unsigned(point.count)
    # sum, min and max are optional fields: 0 differs from absent.
    for name in ("sum", "min", "max"):
        if getattr(point, name) is not None:
            message[name] = _double(getattr(point, name))
    if isinstance(point, HistogramDataPoint):
        counts, bounds = map(_unsigned, point.bucket_counts), map(_double, point.explicit_bounds)
        return {**message, "bucketCounts": list(counts), "explicitBounds": list(bounds)}
    message |= {"scale": point.scale, "zeroCount": _unsigned(point.zero_count)}
    if point.flags:
        message["flags"] = point.flags
    for side, half in (("positive", point.positive), ("negative", point.negative)):
        if half.bucket_counts:
            message[side] = {"offset": half.offset, "bucketCounts": list(map(_unsigned, half.bucket_counts))}
    return message


def _exemplar(exemplar: Exemplar) -> Json:
    attributes, time = _attributes(exemplar.filtered_attributes), _unsigned(exemplar.time_unix_nano)
    message = _trimmed({"filteredAttributes": attributes, "timeUnixNano": time})
    if exemplar.span_id is not None and exemplar.trace_id is not None:
        message |= {"spanId": f"{exemplar.span_id:016x}", "traceId": f"{exemplar.trace_id:032x}"}
    return {**message, **_number(exemplar.value)}
