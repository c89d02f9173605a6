"""Files of OTLP JSON lines: which there are, their whole lines, and each as the request that it is."""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from otel_goodput import files
from otel_goodput.errors import ConfigurationError

TRACES: Final = "traces"
METRICS: Final = "metrics"

_SIGNALS: Final = {"resourceSpans": TRACES, "resourceMetrics": METRICS}
_REQUESTS: Final = {
    TRACES: ("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "ExportTraceServiceRequest"),
    METRICS: ("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", "ExportMetricsServiceRequest"),
}
# protobuf's own JSON has bytes in base64, OTLP's has these in hex.
_IDS: Final = ("traceId", "spanId", "parentSpanId")
# What the exporter 'file' names so has one signal; any other file may have both.
_EXPORTERS_OWN: Final = re.compile(rf"({TRACES}|{METRICS})-.*\.jsonl")
_COLLECTORS: Final = "goodput.otlp*.json"
# A damaged line is told from a file of something else by its neighbours.
_NEIGHBOURS: Final = 16
_BLOCK: Final = files.MIB


class Line(NamedTuple):
    """A whole line: its number from 1, the offset after it, its bytes."""

    number: int
    end: int
    data: bytes


class Request(NamedTuple):
    """What a line says: its signal, the protobuf message, and how many spans or points are in it."""

    signal: str
    message: Any
    items: int


def sources(names: Sequence[Path]) -> list[Path]:
    """The files that are meant, the oldest first and each once: files, run folders, folders of runs or a collector's.

    A name may be a link; what is found in a folder may not, for others may have put it there.

    Raises:
        ConfigurationError: one is not there, or a folder holds none.
    """
    found: dict[Path, None] = {}
    for name in names:
        if not name.exists():
            raise ConfigurationError(f"{name} does not exist")
        here = [name]
        if name.is_dir():
            folders = (name, *(run for run in name.iterdir() if run.is_dir() and not run.is_symlink()))
            here = [path for folder in folders for path in _within(folder)]
        if not here:
            raise ConfigurationError(f"{name} holds no traces-*.jsonl, metrics-*.jsonl or {_COLLECTORS}")
        found.update(dict.fromkeys(path.resolve() for path in sorted(here, key=_place)))
    return list(found)


def _within(folder: Path) -> list[Path]:
    patterns = (f"{TRACES}-*.jsonl", f"{METRICS}-*.jsonl", _COLLECTORS)
    return [path for pattern in patterns for path in folder.glob(pattern) if not path.is_symlink()]


def _place(path: Path) -> tuple[str, str, int]:
    """Part 10 comes after part 9, and the one without a number before all.

    A collector's files are named by when they were put away, and the one without a time is the newest.
    """
    if path.match(_COLLECTORS):
        return (str(path.parent), path.name, 0)  # "-" comes before "."
    stem, _, part = path.stem.rpartition(".")
    numbered = stem and re.fullmatch(r"[0-9]+", part)
    return (str(path.parent), stem, int(part)) if numbered else (str(path.parent), path.stem, 0)


def signals_of(path: Path) -> tuple[str, ...]:
    """What may be in the file, now or later.

    Raises:
        ConfigurationError: it holds something else.
        OSError: it cannot be read.
    """
    first = _first(path)
    named = _EXPORTERS_OWN.fullmatch(path.name)
    return (named[1],) if named and first in (None, named[1]) else (TRACES, METRICS)


def _first(path: Path) -> str | None:
    """The signal of the first line that can be read, None where there is no line yet.

    Raises:
        ConfigurationError: it holds something else.
        OSError: it cannot be read.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path} is no file")
    wrong = ConfigurationError(f"{path} holds no OTLP JSON lines of traces or metrics")
    with files.open_named(path) as file:
        if file.read(1) not in (b"", b"{", b"\0"):
            raise wrong
        seen = 0
        for line in whole_lines(file):
            try:
                return read(line.data).signal
            except ValueError:
                seen += 1
                if seen == _NEIGHBOURS:
                    break
    if seen:
        raise wrong
    return None


def whole_lines(file: BinaryIO, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """The lines after `offset`, of which `number` came before, up to the last that has its end. Raises OSError.

    What is appended meanwhile is read too, and the file may be read elsewhere between two lines. Of a line that is too
    long there is the beginning, which :func:`read` refuses.
    """
    while True:
        file.seek(offset)
        data = file.readline(files.LONGEST_LINE + 1)
        more = _rest(file, data)
        if more is None:
            return
        offset += len(data) + more
        number += 1
        yield Line(number, offset, data)


def _rest(file: BinaryIO, beginning: bytes) -> int | None:
    """How many bytes of a line follow its `beginning`, which is too long then; None where it has no end yet."""
    if beginning.endswith(b"\n"):
        return 0
    size = 0
    while len(beginning) > files.LONGEST_LINE and (block := file.readline(_BLOCK)):
        size += len(block)
        if block.endswith(b"\n"):
            return size
    return None


def left(file: BinaryIO, offset: int) -> int:
    """How many whole lines there are after `offset`. Raises OSError."""
    file.seek(offset)
    return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def read(data: bytes) -> Request:
    """Raises ValueError where the line is no request for spans or metrics."""
    if len(data) > files.LONGEST_LINE:
        raise ValueError(f"longer than {files.LONGEST_LINE // files.MIB} MiB")
    json_format = importlib.import_module("google.protobuf.json_format")
    try:
        content = json.loads(data, object_hook=_binary_ids)
        signal = next(_SIGNALS[key] for key in _SIGNALS if key in content)
        module, name = _REQUESTS[signal]
        # A receiver ignores what a later version of the protocol added; so do we.
        message = getattr(importlib.import_module(module), name)()
        json_format.ParseDict(content, message, ignore_unknown_fields=True)
    except (ValueError, TypeError, StopIteration, RecursionError, json_format.Error) as error:
        raise ValueError(f"not a line of OTLP JSON ({type(error).__name__})") from error
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
