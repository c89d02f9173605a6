"""The open phases, the thread that trains, and the export of phases that contain an exported span."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any
from weakref import ref

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanContext

from otel_goodput._accounting.rules import DATA_LOADING
from otel_goodput._journal.account import nothing
from otel_goodput._recording.attempt_traces import AttemptTraces
from otel_goodput._recording.nesting import Nesting, identity
from otel_goodput._recording.sampling import Admission
from otel_goodput._recording.short_span import ShortSpan


def in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    # While another thread imports asyncio, the module is there and its functions are not.
    return asyncio is not None and getattr(asyncio, "_get_running_loop", nothing)() is not None


def _current_task() -> Any:
    return sys.modules["asyncio"].current_task() if in_event_loop() else None


class JobThread:
    """The training thread: the one that opened the job, until another thread opens steps (see :meth:`moves`).

    Attributes:
        stepped: the thread has opened a step.
        tasks: the job or a step was opened in an asyncio task.
        latest_change: replaced whenever a phase begins or ends, or something else changes that the short way of a loop
            takes for given, but not by that short way itself.
    """

    __slots__ = ("_task", "identity", "latest_change", "stepped", "tasks")

    def __init__(self) -> None:
        self.identity = threading.main_thread().ident
        self.stepped = False
        self.tasks = False
        self.latest_change = object()
        self._task: Any = nothing  # a weak reference to the task of the latest step, or of the job; or to none

    def change(self) -> None:
        """Have the loop look around before it goes on the short way."""
        self.latest_change = object()

    def take(self) -> None:
        """Make the current thread the training thread, because it begins the job."""
        self.identity = threading.get_ident()
        self.change()
        self.stepped = False
        self.note_task()

    def note_task(self) -> None:
        """Take note that the running task trains."""
        task = _current_task()
        if task is not self._task():
            self._task = nothing if task is None else ref(task)
            self.tasks |= task is not None
            self.latest_change = object()

    def in_another_task(self) -> bool:
        """Whether the training thread runs another task than the one that trains."""
        if not self.tasks:
            return False
        trains = self._task()
        return trains is not None and _current_task() is not trains

    def blocks(self, blocking: bool | None) -> bool:
        """Return whether a phase opened now by this thread holds up training; `blocking` is the user's argument."""
        return threading.get_ident() == self.identity if blocking is None else blocking

    def moves(self, blocking: bool | None) -> bool:
        """Make the current thread, which opens a step, the training thread; return whether that was done.

        Not if the user says whether the step is `blocking`, or if the previous one has opened a step and is alive.
        """
        if blocking is not None:
            return False
        if self.stepped and any(thread.ident == self.identity for thread in threading.enumerate()):
            return False
        self.identity = threading.get_ident()
        return True


@dataclass(eq=False)
class OpenSpans:
    """The open phases of one recorder.

    Attributes:
        short: open steps, loads and parts, in the order of their begin, by an id each; the phases of a loop share one.
        phases: spans of all other open phases, by span id, in the order of their begin.
        step: the open step that began last, on any thread.
    """

    thread: JobThread
    admission: Admission
    traces: AttemptTraces
    nesting: Nesting
    short: dict[int, ShortSpan] = field(default_factory=dict)
    phases: dict[int, Span] = field(default_factory=dict)
    step: ShortSpan | None = None

    def find(self, key: int) -> trace_api.Span | None:
        short = (span for span in tuple(self.short.values()) if span.key == key)
        return next(short, None) or self.phases.get(key)

    def forget(self, span: ShortSpan, entry: int) -> None:
        if self.short.get(entry) is span:
            del self.short[entry]

    def loading(self) -> bool:
        here = get_ident()
        return any(span.phase == DATA_LOADING and span.thread == here for span in tuple(self.short.values()))

    def begun_at(self, start: int) -> Span | None:
        """Return the latest of `phases` that began at `start` (ns), if its opener was interrupted before it had it."""
        return next((span for span in reversed(list(self.phases.values())) if span.start_time == start), None)

    def hold(self, around: trace_api.Span) -> None:
        """Export the open step and the phases around a span that is exported on this thread inside `around`."""
        if self.admission.budget.small:
            return
        if self.step is not None and self.thread.blocks(None):
            self.step.keep()
        self.keep(around)

    def keep(self, span: trace_api.Span) -> None:
        """Export `span` and the unsampled phases around it, because a span inside `span` is exported."""
        admission = self.admission
        if admission.budget.small:
            return
        if isinstance(span, ShortSpan):
            span.keep()
        around: trace_api.Span | None = span
        while around is not None and admission.left_out:
            if isinstance(around, ShortSpan):
                if not around.closed:
                    around.keep()
                around = around.around
                continue
            admission.keep(identity(around))
            parent = getattr(around, "parent", None)
            around = None if parent is None else self.find(parent.span_id)

    def adopt(self, span: ReadableSpan) -> SpanContext | None:
        """Export the phases around `span`, which was not sampled and is exported after all; return its parent."""
        parent = span.parent
        if parent is None:
            return None
        if not self.admission.budget.small:
            if parent.trace_flags.sampled:
                return parent
            around = self.find(parent.span_id)
            if around is not None:
                self.keep(around)
                return parent
        # Its parent has ended, or this process does not export it. A trace that is not ours counts as the first.
        return self.traces.root(self.traces.layout.number_of(parent.trace_id) or 0)
