"""Reads back what the `file` exporter wrote: the spans of a run, and what must hold of them whatever happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_goodput._recording import ids

from .witness import Edge, Life

ERROR = 2  # the protocol's code
FIRST = 100  # steps of an attempt that are exported in full


@dataclass(frozen=True)
class Span:
    trace: str
    key: str
    parent: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    status: int
    resource: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        return bool(self.attributes.get("goodput.interrupted"))

    @property
    def content(self) -> tuple[Any, ...]:
        """All that two exports of one span must agree in."""
        return (
            self.parent,
            self.name,
            self.start,
            self.end,
            sorted(self.attributes.items(), key=str),
            self.links,
            self.status,
        )


def _value(value: dict[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)


def _attributes(pairs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def read_spans(folder: Path) -> list[Span]:
    """All spans in a run's folder, in the order of files and lines.

    A SIGKILL may cut a write short: what has no newline is no line, and the next attempt exports its spans.
    """
    spans = []
    for path in sorted(folder.glob("traces-*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            for resource in json.loads(line)["resourceSpans"]:
                about = _attributes(resource["resource"]["attributes"])
                for scope in resource["scopeSpans"]:
                    spans += [_span(span, about) for span in scope["spans"]]
    return spans


def _span(span: dict[str, Any], resource: dict[str, Any]) -> Span:
    return Span(
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        span["name"],
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        _attributes(span.get("attributes", ())),
        tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())),
        span.get("status", {}).get("code", 0),
        resource,
    )


def job_identity(run_id: str, attempt: int, process: int = 0) -> tuple[str, str]:
    context = ids.job_span_context(run_id, attempt, process)
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def root_identity(run_id: str, attempt: int) -> tuple[str, str]:
    context = ids.attempt_span_context(run_id, attempt)
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def check_tree(spans: list[Span]) -> dict[tuple[str, str], Span]:
    """Every parent is there, no id stands for two things; returns the spans by (trace, id)."""
    by_id: dict[tuple[str, str], Span] = {}
    for span in spans:
        known = by_id.setdefault((span.trace, span.key), span)
        assert known.content == span.content, f"one id, two contents:\n{known}\n{span}"
    orphans = [span for span in spans if span.parent and (span.trace, span.parent) not in by_id]
    assert not orphans, f"{len(orphans)} of {len(spans)} spans have no parent, the first is {orphans[0]}"
    return by_id


def check_run(spans: list[Span], run_id: str, lives: list[Life]) -> None:
    """The trace of a run agrees with its jobs' diaries (which must have the spans' ids)."""
    by_id = check_tree(spans)
    for attempt, life in enumerate(lives):
        trace, job = job_identity(run_id, attempt)
        assert (trace, job) in by_id, f"the job span of attempt {attempt} is missing"
        root, span = by_id[root_identity(run_id, attempt)], by_id[trace, job]
        assert root.parent == "" and root.name == "attempt" and root.start == root.end == span.start
        assert not root.interrupted and root.status != ERROR
        assert span.parent == root.key and span.name == "job"
        for each in (root, span) if attempt else ():
            assert root_identity(run_id, attempt - 1) in each.links
        mine = {key: span for (of, key), span in by_id.items() if of == trace}
        assert all(span.resource["goodput.attempt"] == attempt for span in mine.values())
        _check_life(mine, life)


def _check_life(spans: dict[str, Span], life: Life) -> None:
    opened: list[Edge] = []
    steps = 0
    completed: Counter[int] = Counter()
    for edge in life.edges:
        if edge.begins:
            opened.append(edge)
            steps += edge.phase == "step"
            if edge.phase == "step" and steps <= FIRST:
                assert edge.span in spans, f"{edge} is among the first steps"
            elif edge.phase not in ("step", "data_loading"):
                assert edge.span in spans, f"{edge} is no step"
            continue
        begun = next(one for one in reversed(opened) if one.phase == edge.phase)
        opened.remove(begun)
        completed[edge.step] += edge.phase == "step" and not edge.early
        if begun.span in spans:
            span = spans[begun.span]
            _check_start(span, begun)
            assert edge.latest is not None
            assert not span.interrupted, span
            assert edge.earliest - SLEW <= span.end <= edge.latest + SLEW, f"{edge}: {span}"
            assert (span.attributes.get("goodput.step.completed") is False) == (edge.phase == "step" and edge.early)
    ending = {edge.phase for edge in life.amid if not edge.begins}
    for edge in opened:
        assert edge.span in spans, f"{edge} was open and is missing"
        span = spans[edge.span]
        _check_start(span, edge)
        if edge.phase in ending and not span.interrupted:
            continue  # killed while it ended: it may have
        least, most = life.last_sign()
        assert span.interrupted and span.status == ERROR, span
        assert least - SLEW <= span.end <= most + SLEW, span
        assert (span.attributes.get("goodput.step.completed") is False) == (edge.phase == "step")
    _check_thinning(spans, life, completed)


SLEW = 500_000  # ns that the clocks may be slewed apart


def _check_start(span: Span, edge: Edge) -> None:
    assert edge.latest is not None
    assert edge.earliest - SLEW <= span.start <= edge.latest + SLEW, f"{edge}: {span}"
    assert span.name == (edge.name or edge.phase)
    assert span.attributes["goodput.phase"] == edge.phase
    if edge.step >= 0:
        assert span.attributes["goodput.step"] == edge.step


def _check_thinning(spans: dict[str, Span], life: Life, completed: Counter[int]) -> None:
    """Each completed step is there, or in one summary."""
    exports: Counter[int] = Counter()
    for span in spans.values():
        if span.name == "step" and span.attributes.get("goodput.step.completed", True):
            exports[span.attributes["goodput.step"]] += 1
    summarized = sum(span.attributes["goodput.steps.count"] for span in spans.values() if span.name == "steps")
    amid = sum(edge.phase == "step" and not edge.begins and not edge.early for edge in life.amid)
    total = exports.total() + summarized
    assert completed.total() <= total <= completed.total() + amid, (
        f"{total} of {completed.total()} steps are in the trace"
    )
    assert not exports - completed - Counter(edge.step for edge in life.amid)
