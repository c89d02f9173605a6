"""Lists files of OTLP JSON lines, reads their complete lines, and parses each into a request."""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from otel_goodput._runtime import files
from otel_goodput.errors import ConfigurationError

TRACES: Final = "traces"
METRICS: Final = "metrics"

_SIGNALS: Final = {"resourceSpans": TRACES, "resourceMetrics": METRICS}
_REQUESTS: Final = {
    TRACES: ("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "ExportTraceServiceRequest"),
    METRICS: ("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", "ExportMetricsServiceRequest"),
}
# Fields of bytes are base64 in protobuf's JSON; OTLP's JSON has these in hex.
_IDS: Final = ("traceId", "spanId", "parentSpanId")
# Files of the exporter 'file', which have one signal; any other file may have both.
_EXPORTERS_OWN: Final = re.compile(rf"({TRACES}|{METRICS})-.*\.jsonl")
_COLLECTORS: Final = "goodput.otlp*.json"
_PATTERNS: Final = (f"{TRACES}-*.jsonl", f"{METRICS}-*.jsonl", _COLLECTORS)
# If none of the first lines, this many, is OTLP JSON, the file holds something else. Later bad lines are damaged.
_NEIGHBORS: Final = 16
_BLOCK: Final = files.MIB


class Request(NamedTuple):
    """The request in a line: its signal, the protobuf message, and its number of spans or points."""

    signal: str
    message: Any
    items: int


def sources(names: Sequence[Path]) -> list[Path]:
    """Return the files to send, oldest first and without duplicates. Raises ConfigurationError if a name holds none.

    Each name is a file, a run's folder, a folder of runs, or a collector's folder. It may be a link; links inside
    folders are skipped, because other users may have put them there.
    """
    paths: dict[Path, None] = {}
    for name in names:
        if not name.exists():
            raise ConfigurationError(f"{name} does not exist")
        here = [name]
        if name.is_dir():
            folders = (name, *(run for run in name.iterdir() if run.is_dir() and not run.is_symlink()))
            listed = (path for folder in folders for pattern in _PATTERNS for path in folder.glob(pattern))
            here = [path for path in listed if not path.is_symlink()]
        if not here:
            raise ConfigurationError(f"{name} holds no traces-*.jsonl, metrics-*.jsonl or {_COLLECTORS}")
        paths.update(dict.fromkeys(path.resolve() for path in sorted(here, key=_place)))
    return list(paths)


def _place(path: Path) -> tuple[str, str, int]:
    """Return a sort key: part 10 comes after part 9, and the part without a number comes first.

    A collector names its files by the time of their rotation, and the one without a time is the newest.
    """
    if path.match(_COLLECTORS):
        return (str(path.parent), path.name, 0)  # "-" comes before "."
    stem, _, part = path.stem.rpartition(".")
    numbered = stem and re.fullmatch(r"[0-9]+", part)
    return (str(path.parent), stem, int(part)) if numbered else (str(path.parent), path.stem, 0)


def signals_of(path: Path) -> tuple[str, ...]:
    """Return the signals that the file may contain, now or later; raises ConfigurationError if it holds none."""
    if not path.is_file():
        raise ConfigurationError(f"{path} is not a file")
    first = None  # the signal of the first line that can be parsed
    with files.open_named(path) as file:
        wrong = file.read(1) not in (b"", b"{", b"\0")
        for _, _, data in islice(whole_lines(file), 0 if wrong else _NEIGHBORS):
            try:
                first = read(data).signal
                break
            except ValueError:
                wrong = True
    if wrong and first is None:
        raise ConfigurationError(f"{path} holds no OTLP JSON lines of traces or metrics")
    named = _EXPORTERS_OWN.fullmatch(path.name)
    return (named[1],) if named and first in (None, named[1]) else (TRACES, METRICS)


def whole_lines(file: BinaryIO, offset: int = 0, number: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield the complete lines after the byte `offset`, before which there are `number` lines.

    Each has its number, from 1, the offset of its end, and its content. Lines appended meanwhile are included, and the
    caller may move the file's position between two lines. A line longer than ``LONGEST_LINE`` is truncated, so that
    :func:`read` refuses it.
    """
    while True:
        file.seek(offset)
        data = block = file.readline(files.LONGEST_LINE + 1)
        offset += len(data)
        while len(data) > files.LONGEST_LINE and block and not block.endswith(b"\n"):
            block = file.readline(_BLOCK)
            offset += len(block)
        if not block.endswith(b"\n"):  # the line has no end yet
            return
        number += 1
        yield number, offset, data


def left(file: BinaryIO, offset: int) -> int:
    """Return the number of complete lines after the byte `offset`."""
    file.seek(offset)
    return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def read(data: bytes) -> Request:
    """Parse a line. Raises ValueError if it is not a request for spans or metrics."""
    if len(data) > files.LONGEST_LINE:
        raise ValueError(f"longer than {files.LONGEST_LINE // files.MIB} MiB")
    json_format = importlib.import_module("google.protobuf.json_format")
    try:
        content = json.loads(data, object_hook=_binary_ids)
        signal = next(_SIGNALS[key] for key in _SIGNALS if key in content)
        module, name = _REQUESTS[signal]
        # Ignore fields of later versions of the protocol, as receivers do.
        message = getattr(importlib.import_module(module), name)()
        json_format.ParseDict(content, message, ignore_unknown_fields=True)
    except (ValueError, TypeError, StopIteration, RecursionError, json_format.Error) as error:
        raise ValueError(f"not an OTLP JSON line ({type(error).__name__})") from error
    return Request(signal, message, sum(1 for _ in _items(signal, message)))


def _binary_ids(fields: dict[str, Any]) -> dict[str, Any]:
    for name in _IDS:
        if name in fields:
            fields[name] = base64.b64encode(bytes.fromhex(fields[name])).decode("ascii")
    return fields


def _items(signal: str, message: Any) -> Iterator[Any]:
    if signal == TRACES:
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans
        return
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is not None:
                    yield from getattr(metric, kind).data_points
