"""The exported spans of a leader: their attributes, events and status, and in which trace each of them is.

Attributes, events and status are read from the ``traces-*.jsonl`` that the exporter ``file`` wrote beside the journal,
the latest attempt first, and within bounds.
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
_FILE: Final = re.compile(r"traces-attempt(\d{4,10})-p0000(?:\.(\d{1,9}))?\.jsonl")
UNKNOWN: Final = 0  # no trace has this id
_BEGINNING: Final = 1000  # records; what is needed stands right before or after the begin of the first job
_OF_STEPS: Final = frozenset({rules.STEP, rules.DATA_LOADING, rules.PART})  # spans that no SDK tracer makes


class SpanData(NamedTuple):
    """One exported span."""

    attributes: dict[str, Any]
    events: list[tuple[int, str, dict[str, Any]]]  # time in ns, name, attributes
    status: int
    message: str
    trace: int = UNKNOWN

    @property
    def notable(self) -> bool:
        """Whether it has more than the journal has as well."""
        return bool(self.events or self.status or self.message)


@dataclass
class Exported:
    """Exported spans by their ids, how many there was no room for, and what is missing, for people."""

    spans: dict[int, SpanData] = field(default_factory=dict)
    left_out: int = 0
    text: str = ""


def exported(run: RunDirectory, wanted: Collection[int], *, progress: ProgressCallback = no_progress) -> Exported:
    """Return the exported spans with the ids in `wanted`. It does not raise, whatever the files hold.

    If there are too many, those with events or an error are taken first, and of the others the latest.
    """
    try:
        names = files.names(run.path) if wanted else []
    except FileNotFoundError:
        return Exported()
    except OSError as error:
        return Exported(text=shown(str(error)))
    parts = [match for name in names if (match := _FILE.fullmatch(name))]
    reading, problems = _Reading(set(wanted)), list[str]()
    for match in sorted(parts, key=lambda match: (int(match[1]), int(match[2] or 0)), reverse=True):
        if reading.left <= 0:
            problems.append(f"{match[0]} and older files are not read: there is too much")
            break
        try:
            reading.read(run.path / match[0], progress)
        except (OSError, ValueError) as error:
            problems.append(shown(f"{match[0]}: {error}"))
    del problems[3:]
    if reading.damaged:
        problems.append(f"{plural(reading.damaged, 'line')} of the trace files cannot be read")
    if reading.left_out:
        more = plural(reading.left_out, "more span")
        problems.append(f"attributes of {more} are left out, as there are too many")
    return Exported({**reading.notable, **reading.plain}, reading.left_out, "; ".join(problems))


class _Reading:
    """Reads files, and keeps what there is room for."""

    def __init__(self, wanted: set[int]) -> None:
        self._wanted = wanted
        self.notable: dict[int, SpanData] = {}
        self.plain: dict[int, SpanData] = {}
        self._bytes = 0
        self.left = READ
        self.damaged = 0
        self.left_out = 0

    def read(self, path: Path, progress: ProgressCallback) -> None:
        with files.opened(path) as file:
            for lines in files.blocks_of_lines(file, path):
                for line in lines:
                    self.left -= len(line) + 1
                    if line.strip(b"\0 \r"):
                        self._line(line)
                progress(READ - max(0, self.left), READ, "attributes of spans")
                if self.left <= 0:
                    return

    def _line(self, line: bytes) -> None:
        try:
            for span in _spans(json.loads(line)):
                self._span(span)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.damaged += 1

    def _span(self, span: dict[str, Any]) -> None:
        key = int(span["spanId"], 16)
        if key not in self._wanted or key in self.notable or key in self.plain:
            return
        data = _data(span)
        size = len(json.dumps(data))
        while self.plain and data.notable and self._full(size):
            self._bytes -= len(json.dumps(self.plain.popitem()[1]))
            self.left_out += 1
        if self._full(size):
            self.left_out += 1
            return
        (self.notable if data.notable else self.plain)[key] = data
        self._bytes += size

    def _full(self, more: int) -> bool:
        return len(self.notable) + len(self.plain) >= SPANS or self._bytes + more > BYTES


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
    """The traces of one attempt."""

    traces: TraceLayout  # its own traces, and which of them a step is in
    own: bool = False  # each step has a trace of its own
    rooted: bool = False  # a recorder recorded its root, and so chose the traces of all steps
    job: int = UNKNOWN  # the trace of the first job, if another tracer has chosen it
    begun: bool = False  # the first job's begin was read

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
    """The traces of the leader of a run, attempt by attempt."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._identity: Any = None
        self._layouts: dict[int, Layout] = {}

    def layout(self, attempt: int) -> Layout | None:
        """Return the traces of an attempt, counted from 1; None where the run's id is not known."""
        layout = self._layouts.get(attempt)
        if layout is None or not layout.begun:
            self._identity = self._identity or self.run.identity().get("run_id")
            if not isinstance(self._identity, str) or not self._identity:
                return None
            layout = self._layouts[attempt] = self._read(self._identity, attempt - 1)
        return layout

    def others(self, detail: Detail, exported: Mapping[int, SpanData], *, whole: bool) -> dict[int, int]:
        """Return the traces of spans not in their job's, by span id; `whole`: `detail` has all spans of the run."""
        traces = {}
        spans: list[Step | Phase] = [*detail.steps, *detail.phases]
        for span in spans:
            if span.flags & IN_TRACE:
                trace = exported[span.key].trace if span.key in exported else UNKNOWN
                layout = self.layout(span.attempt)
                if not trace and layout is not None:
                    trace = layout.of(_numbered(span, detail.steps) if whole else span)
                if trace != (UNKNOWN if layout is None else layout.main):
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
            [segment] = [one for one in self.run.segments(0, attempt, lambda *_: None) if not one.number]
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
