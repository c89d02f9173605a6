"""What arrived, for people: spans as a tree with times, series as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from emulators.records import Point, SeriesKey, nanoseconds
from emulators.series_case import braced
from otel_goodput import semconv

# A run of more such spans than this is folded: so many of its first and of its last are shown.
LONGEST_RUN, FIRST, LAST = 8, 4, 2
# A name that so many siblings have makes a run.
OFTEN = 6


@dataclass
class _Node:
    trace: str
    id: str
    parent: str
    name: str
    step: int | None
    start: int
    end: int
    error: bool
    children: list[_Node] = field(default_factory=list)


def tree(spans: Iterable[Any]) -> str:
    """Spans of Cloud Trace or of OTLP, trace by trace: offset, duration, name. Long runs of like spans are folded."""
    traces: dict[str, list[_Node]] = {}
    for node in sorted(map(_node, list(spans)), key=lambda node: (node.start, -node.end)):
        traces.setdefault(node.trace, []).append(node)
    lines = []
    for trace, nodes in traces.items():
        first = min(node.start for node in nodes)
        extent = max(node.end for node in nodes) - first
        lines.append(f"trace {trace}: {len(nodes)} span{'s' * (len(nodes) > 1)}, {_seconds(extent)}")
        lines += _branches(_roots(nodes), first, "")
    return "\n".join(lines) or "no spans"


def table(series: Mapping[SeriesKey, Sequence[Point]]) -> str:
    """A part for each resource, in it one row a series: metric, labels that are not empty, points, last value."""
    parts: dict[str, list[tuple[str, ...]]] = {}
    for key, points in sorted(series.items(), key=lambda item: (item[0].type, sorted(item[0].labels))):
        resource = key.resource + braced(dict(key.resource_labels))
        labels = braced({label: text for label, text in key.labels if text})
        parts.setdefault(resource, []).append((key.type, labels, str(len(points)), _value(points[-1].value)))
    return "\n\n".join(f"{resource}\n{_aligned(rows)}" for resource, rows in sorted(parts.items())) or "no series"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    rows = [("METRIC", "LABELS", "POINTS", "LAST VALUE"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join(f"  {'  '.join(row)}".rstrip() for row in aligned)


def _node(span: Any) -> _Node:
    if isinstance(span, OtlpSpan):
        steps = [pair.value.int_value for pair in span.attributes if pair.key == semconv.GOODPUT_STEP]
        return _Node(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            steps[0] if steps else None,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code == Status.STATUS_CODE_ERROR,
        )
    attributes = span.attributes.attribute_map
    step = attributes[semconv.GOODPUT_STEP].int_value if semconv.GOODPUT_STEP in attributes else None
    return _Node(
        span.name.split("/")[3],
        span.span_id,
        span.parent_span_id,
        span.display_name.value.removesuffix(f" {step}"),
        step,
        nanoseconds(span.start_time),
        nanoseconds(span.end_time),
        span.status.code != 0,
    )


def _roots(nodes: Sequence[_Node]) -> list[_Node]:
    """Hang each under its parent; those whose parent did not arrive are left."""
    by_id = {node.id: node for node in nodes}
    roots: list[_Node] = []
    for node in nodes:
        parent = by_id.get(node.parent)
        (parent.children if parent and parent is not node else roots).append(node)
    return roots


def _branches(nodes: Sequence[_Node], first: int, indent: str) -> list[str]:
    often = {name for name, count in Counter(node.name for node in nodes).items() if count >= OFTEN}
    lines: list[str] = []
    run: list[_Node] = []
    for node in nodes:
        if node.name in often and not node.children and not node.error:
            run.append(node)
            continue
        lines += _run(run, first, indent)
        run = []
        lines.append(_line(node, first, indent))
        lines += _branches(node.children, first, indent + "  ")
    return lines + _run(run, first, indent)


def _run(run: Sequence[_Node], first: int, indent: str) -> list[str]:
    if len(run) <= LONGEST_RUN:
        return [_line(node, first, indent) for node in run]
    folded = Counter(node.name for node in run[FIRST:-LAST])
    name, count = max(folded.items(), key=lambda item: (item[0] == semconv.Phase.STEP, item[1]))
    return [
        *(_line(node, first, indent) for node in run[:FIRST]),
        f"{'':24}{indent}… {count} more {name}{'s' * (count > 1)}",
        *(_line(node, first, indent) for node in run[-LAST:]),
    ]


def _line(node: _Node, first: int, indent: str) -> str:
    number = "" if node.step is None else f" {node.step}"
    times = f"+{_seconds(node.start - first)}".rjust(11) + _seconds(node.end - node.start).rjust(11)
    return f"{times}  {indent}{node.name}{number}{'  ERROR' if node.error else ''}"


def _seconds(duration: int) -> str:
    """ns as `12.345 s`."""
    return f"{duration / 1e9:.3f} s"


def _value(value: Any) -> str:
    if hasattr(value, "bucket_counts"):
        return f"{value.count} values, mean {value.mean:.6g}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
