"""What was exported: spans and metrics in the SDK's memory, and spans in the files that the exporter `file` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans(InMemorySpanExporter):
    """Spans that have ended, in memory; a recorder or a provider is given the `processor`."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = SimpleSpanProcessor(self)

    def all(self) -> list[ReadableSpan]:
        """In the order of their ends."""
        return list(self.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]


def spans_of(lines: Iterable[str | bytes]) -> list[dict[str, Any]]:
    """The spans in lines of such a file, as they are written there."""
    return [
        span
        for line in lines
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def written(folder: Path) -> list[dict[str, Any]]:
    """Every span in the files below a folder, in the order of files and lines."""
    paths = sorted(folder.rglob("traces-*.jsonl"))
    return spans_of(line for path in paths for line in path.read_bytes().splitlines())
