"""The exported spans of a run: their attributes, events and status, and in which trace each of them is.

Attributes, events and status are those that the exporter ``file`` wrote. They are read from ``traces-*.jsonl`` beside
the journal, the latest attempt first, and within bounds: a page shows those of the span that is selected, and need
not hold them all.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording import ids
from otel_goodput._recording.trace_layout import TraceLayout
from otel_goodput._runtime import files
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import encodable, shown
from otel_goodput._timeline.span_index import ENDLESS
from otel_goodput.reports import ProgressCallback, no_progress
from otel_goodput.reports.detail import IN_TRACE, UNREAD, Detail, Phase, Step

SPANS: Final = 20_000
BYTES: Final = 1 << 20  # of JSON, all spans together
READ: Final = 64 << 20  # bytes of files
_TEXT: Final = 2_000  # characters of one text: a stack trace is longer, and its end says what happened
_EVENTS: Final = 32  # of one span
_FILE: Final = re.compile(r"traces-attempt(\d{4,10})-p(\d{4,9})(?:\.(\d{1,9}))?\.jsonl")
UNKNOWN: Final = 0  # no trace has this id
_BEGINNING: Final = 1000  # records; what is needed stands right before or after the begin of the first job
_OF_STEPS: Final = frozenset({rules.STEP, rules.DATA_LOADING, rules.PART})  # spans that no SDK tracer makes


class SpanData(NamedTuple):
    """One exported span: attributes by name, events as (time in ns, name, attributes), code and text of the status.

    `trace`: id of its trace, 0 if it has none.
    """

    attributes: dict[str, Any]
    events: list[tuple[int, str, dict[str, Any]]]
    status: int
    message: str
    trace: int = 0

    @property
    def notable(self) -> bool:
        """Whether it has more than the journal has as well."""
        return bool(self.events or self.status or self.message)


@dataclass
class Exported:
    """The exported spans of a process.

    Attributes:
        spans: by span id.
        left_out: spans that were not taken, as there are too many.
        text: what is missing, for people; empty if nothing is.
    """

    spans: dict[int, SpanData] = field(default_factory=dict)
    left_out: int = 0
    text: str = ""


def exported(
    run: RunDirectory, wanted: Collection[int], *, process: int = 0, progress: ProgressCallback = no_progress
) -> Exported:
    """Return the exported spans with the ids in `wanted`. It does not raise, whatever the files hold.

    If there are too many, those with events or an error are taken first, and of the others the latest.
    """
    reading = _Reading(set(wanted))
    try:
        reading.read(run, process, progress)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            reading.problems.append(shown(str(error)))
    return reading.exported()


class _Reading:
    """Reads files, and keeps what there is room for."""

    def __init__(self, wanted: set[int]) -> None:
        self._wanted = wanted
        self._notable: dict[int, SpanData] = {}
        self._plain: dict[int, SpanData] = {}
        self._bytes = 0
        self._left = READ
        self._damaged = 0
        self._left_out = 0
        self.problems: list[str] = []

    def read(self, run: RunDirectory, process: int, progress: ProgressCallback) -> None:
        """Read all files of a process. Raises OSError if the folder cannot be read."""
        if not self._wanted:
            return
        parts = []
        for name in files.names(run.path):
            match = _FILE.fullmatch(name)
            if match and int(match[2]) == process:
                parts.append((int(match[1]), int(match[3] or 0), name))
        for _, _, name in sorted(parts, reverse=True):
            if self._left <= 0:
                self.problems.append(f"{name} and older files are not read: there is too much")
                return
            try:
                self._file(run.path / name, progress)
            except (OSError, ValueError) as error:
                self.problems.append(shown(f"{name}: {error}"))

    def _file(self, path: Path, progress: ProgressCallback) -> None:
        with files.opened(path) as file:
            for lines in files.blocks_of_lines(file, path):
                for line in lines:
                    self._left -= len(line) + 1
                    if line.strip(b"\0 \r"):
                        self._line(line)
                progress(READ - max(0, self._left), READ, "attributes of spans")
                if self._left <= 0:
                    return

    def _line(self, line: bytes) -> None:
        try:
            for span in _spans(json.loads(line)):
                self._span(span)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._damaged += 1

    def _span(self, span: dict[str, Any]) -> None:
        key = int(span["spanId"], 16)
        if key not in self._wanted or key in self._notable or key in self._plain:
            return
        data = _data(span)
        size = len(json.dumps(data))
        room = self._notable if data.notable else self._plain
        while self._plain and data.notable and self._full(size):
            self._bytes -= len(json.dumps(self._plain.popitem()[1]))
            self._left_out += 1
        if self._full(size):
            self._left_out += 1
            return
        room[key] = data
        self._bytes += size

    def _full(self, more: int) -> bool:
        return len(self._notable) + len(self._plain) >= SPANS or self._bytes + more > BYTES

    def exported(self) -> Exported:
        problems = list(self.problems[:3])
        if self._damaged:
            problems.append(f"{plural(self._damaged, 'line')} of the trace files cannot be read")
        if self._left_out:
            problems.append(f"attributes of {plural(self._left_out, 'more span')} are left out, as there are too many")
        return Exported({**self._notable, **self._plain}, self._left_out, "; ".join(problems))


def _spans(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in request["resourceSpans"]:
        for scope in resource.get("scopeSpans", ()):
            yield from scope.get("spans", ())


def _data(span: dict[str, Any]) -> SpanData:
    status = span.get("status") or {}
    events = [
        (int(event.get("timeUnixNano", 0)), _text(event.get("name", "")), _attributes(event))
        for event in span.get("events", ())[:_EVENTS]
    ]
    trace = int(span.get("traceId") or "0", 16)
    return SpanData(_attributes(span), events, int(status.get("code", 0)), _text(status.get("message", "")), trace)


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {_text(one["key"]): _value(one.get("value", {})) for one in holder.get("attributes", ())}


def _value(any_value: dict[str, Any], depth: int = 0) -> Any:
    """Return an AnyValue as plain JSON; integers stay texts, for JavaScript has none of 64 bits."""
    for kind, value in any_value.items():
        if kind == "arrayValue" and depth < 4:
            return [_value(one, depth + 1) for one in value.get("values", ())[:100]]
        if kind == "kvlistValue" and depth < 4:
            return {_text(one["key"]): _value(one.get("value", {}), depth + 1) for one in value.get("values", ())[:100]}
        if isinstance(value, bool) or (isinstance(value, float) and abs(value) < float("inf")):
            return value
        return _text(value)
    return None


def _text(value: object) -> str:
    text = encodable(str(value))
    return text if len(text) <= _TEXT else f"… {text[-_TEXT:]}"


# --- in which trace each of them is, from the journal: their ids derive from run, attempt and step --------------------


@dataclass
class Layout:
    """The traces of one attempt.

    Attributes:
        traces: the attempt's own traces, and which of them a step is in.
        own: each step has a trace of its own.
        rooted: a recorder recorded its root, and so chose the traces of all steps.
        job: the trace of the first job, if another tracer has chosen it.
        begun: the first job's begin was read.
    """

    traces: TraceLayout
    own: bool = False
    rooted: bool = False
    job: int = UNKNOWN
    begun: bool = False

    @property
    def main(self) -> int:
        """The trace of the attempt."""
        return self.job or self.traces.root(0).trace_id

    def of_step(self, number: int) -> int:
        """Return the trace of a step, and of loads and parts that belong to it."""
        if self.own:
            return ids.step_trace_id(self.traces.run_id, self.traces.attempt, number) if number >= 0 else UNKNOWN
        if self.job:
            return self.job
        if number < 0 and self.traces.steps < ENDLESS:
            return UNKNOWN
        return self.traces.root(self.traces.number(number)).trace_id

    def of(self, span: Step | Phase) -> int:
        """Return the trace of an exported span, ``UNKNOWN`` if the journal does not have it."""
        if span.trace > 0:
            return span.trace
        phase, step = rules.STEP if isinstance(span, Step) else span.phase, span.given
        if phase in _OF_STEPS:
            chosen = bool(self.job) or (span.trace == UNREAD and not self.begun)  # perhaps by the code that opened it
            return self.of_step(step) if self.rooted or not chosen else UNKNOWN
        if phase == rules.JOB:
            return self.main
        if span.trace == UNREAD:  # a phase that is not in the attempt's trace has a record that says in which it is
            return UNKNOWN
        if phase == rules.COMPILE and step >= 0 and isinstance(span, Phase) and not span.parent:
            return self.of_step(step)
        return self.traces.root(0).trace_id


class TraceIds:
    """The traces of a process, attempt by attempt.

    Args:
        run: its folder.
        process: its index, one whose steps are exported one by one: it is in the first group of processes.

    Attributes:
        run: its folder.
    """

    def __init__(self, run: RunDirectory, process: int = 0) -> None:
        self.run = run
        self._process = process
        self._identity: str | None = None
        self._layouts: dict[int, Layout] = {}

    def layout(self, attempt: int) -> Layout | None:
        """Return the traces of an attempt, counted from 1; None where the run's id is not known."""
        layout = self._layouts.get(attempt)
        if layout is None or not layout.begun:
            if self._identity is None:
                identity = self.run.identity().get("run_id")
                if not isinstance(identity, str) or not identity:
                    return None
                self._identity = identity
            layout = self._layouts[attempt] = self._read(self._identity, attempt - 1)
        return layout

    def of(self, span: Step | Phase) -> int:
        """Return the id of the trace of an exported span; ``UNKNOWN`` where that is not known."""
        layout = self.layout(span.attempt)
        return UNKNOWN if layout is None else layout.of(span)

    def others(self, detail: Detail, exported: Mapping[int, SpanData], *, whole: bool) -> dict[int, int]:
        """Return the traces of exported spans that are not in that of their attempt's job, by span id.

        Args:
            detail: the spans.
            exported: the spans as they were exported, by span id.
            whole: they are all spans of the run.
        """
        traces = {}
        spans: list[Step | Phase] = [*detail.steps, *detail.phases]
        for span in spans:
            if span.flags & IN_TRACE:
                itself = exported.get(span.key)
                trace = itself.trace if itself is not None else UNKNOWN
                trace = trace or self.of(_numbered(span, detail.steps) if whole else span)
                if trace != self.main(span.attempt):
                    traces[span.key] = trace
        return traces

    def main(self, attempt: int) -> int:
        """Return the id of the trace of an attempt, counted from 1; ``UNKNOWN`` where that is not known."""
        layout = self.layout(attempt)
        return UNKNOWN if layout is None else layout.main

    def _read(self, run_id: str, attempt: int) -> Layout:
        layout = Layout(TraceLayout(run_id, attempt))
        jobs = set[int]()
        with suppress(OSError, EOFError, ValueError):
            [segment] = [one for one in self.run.segments(self._process, attempt, lambda *_: None) if not one.number]
            for kind, phase, flags, _, key, step, time in segment.beginning(_BEGINNING):
                if kind == ev.ATTEMPT:
                    layout.own = bool(flags & records.OWN_TRACES)
                elif kind == records.ROOT:
                    layout.rooted = True
                elif kind == records.CONTINUED and phase == 0:
                    layout.traces = TraceLayout(run_id, attempt, max(1, key))
                elif kind == ev.START and phase == rules.JOB:
                    layout.begun = True
                    jobs.add(key)
                elif kind == records.TRACE and key in jobs and not layout.job:
                    layout.job = records.foreign(step, time)
        return layout


def _numbered(span: Step | Phase, steps: Sequence[Step]) -> Step | Phase:
    """Give a load without a number, as the first one after a restart, that of the step that follows it."""
    if isinstance(span, Phase) and span.phase == rules.DATA_LOADING and span.given < 0:
        at = bisect_left(steps, span.begin, key=lambda step: step.begin)
        if at < len(steps) and steps[at].attempt == span.attempt:
            return replace(span, given=steps[at].given)
    return span
