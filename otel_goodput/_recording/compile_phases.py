"""Compilations as phases: whoever notices one opens and ends its phase here, as other phases are opened by a tracer.

They bypass the SDK's tracer: one opens within microseconds on the training thread, and its span is made elsewhere.
"""

from __future__ import annotations

from opentelemetry import trace as trace_api
from opentelemetry.trace import SpanContext
from opentelemetry.util import types

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.records import EXPORT, PARENT, SUMMARIZED, signed
from otel_goodput._recording import ids
from otel_goodput._recording.admission import Gate
from otel_goodput._recording.budget import NOTABLE
from otel_goodput._recording.finished import PhaseReadableSpan
from otel_goodput._recording.function_titles import FunctionTitles
from otel_goodput._recording.nesting import identity
from otel_goodput._recording.short_span import ShortSpan
from otel_goodput._recording.step_line import StepLine
from otel_goodput.semconv import (
    GOODPUT_BLOCKING,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_TRACE_NUMBER,
    Phase,
)


class CompilePhase:
    """The phase of one compilation.

    Attributes:
        key: its span id.
        function: what is compiled; empty if not known.
        start: when it began, ns.
        parent: what it is in.
        step: number of the step that it is in; ``NO_STEP`` if it is in none.
        aside: it does not block training.
        gate: decides whether it is exported.
        taken: it is exported, however short it is.
    """

    __slots__ = ("aside", "function", "gate", "key", "parent", "start", "step", "taken")

    def __init__(
        self,
        key: int,
        function: str,
        start: int,
        parent: SpanContext | ShortSpan,
        step: int,
        aside: bool,
        gate: Gate,
        taken: bool,
    ) -> None:
        self.key = key
        self.function = function
        self.start = start
        self.parent = parent
        self.step = step
        self.aside = aside
        self.gate = gate
        self.taken = taken


class CompilePhases:
    """Opens, ends and exports the compile phases of one recorder.

    Args:
        line: the state of that recorder's recording.

    Attributes:
        titles: tells functions of one name apart.
    """

    def __init__(self, line: StepLine) -> None:
        self._line = line
        self.titles = FunctionTitles()

    def begin(self, function: str, start: int, blocking: bool | None = None) -> CompilePhase:
        """Begin the compilation of `function` at `start` (ns), on this thread; writes to the journal only.

        `blocking`: whether it holds up training; by default, whether this is the training thread.
        """
        line = self._line
        around = line.nesting.here()
        aside = not line.blocks(blocking)
        gate = line.admission.gate(Phase.COMPILE, function, aside)
        step = None if aside else line.spans.step
        inside = step.identity if around is step and step is not None else self._context(around, step)
        taken = gate.take() and line.admission.afford(inside.trace_id, line.admission.budget.phases)
        if taken:
            line.spans.hold(around)
        key = line.new_key()
        flags = EXPORT if taken else 0
        if aside:
            flags |= ev.NONBLOCKING
        name = line.account.journal.name(function) if function else 0
        number = ev.NO_STEP if step is None else step.step
        line.jobs.append(ev.START, rules.COMPILE, flags, name, key, number, start)
        if around is step and step is not None:
            # The usual case. It needs no PARENT record: the journal's reader knows the step by its number.
            return CompilePhase(key, function, start, step, number, aside, gate, taken)
        parent = self._context(around, step)
        if parent.trace_id != line.traces.root(0).trace_id:
            line.account.foreign_trace(key, parent.trace_id)
        if parent.span_id != line.traces.job_context.span_id:
            line.jobs.append(PARENT, 0, 0, 0, key, signed(parent.span_id), start)
        return CompilePhase(key, function, start, parent, number, aside, gate, taken)

    def end(self, phase: CompilePhase, end: int, compiled: str = "") -> bool:
        """End `phase` at `end` (ns); `compiled` is the title of its function, empty if it was only traced.

        Returns whether it is to be exported with :meth:`emit`.
        """
        line = self._line
        name = line.account.journal.name(compiled) if compiled else 0
        exported = self._exports(phase, end)
        flags = EXPORT if exported else SUMMARIZED
        line.jobs.append(ev.END, rules.COMPILE, flags, name, phase.key, ev.NO_STEP, end)
        return exported and not line.closed

    def emit(self, phase: CompilePhase, end: int, more: types.Attributes) -> None:
        """Export the span of `phase`, with the attributes `more`. Not called on the training thread."""
        line = self._line
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: Phase.COMPILE}
        if phase.function:
            attributes[GOODPUT_COMPILE_FUNCTION] = phase.function
        if phase.step >= 0:
            attributes[GOODPUT_STEP] = phase.step
        if phase.aside:
            attributes[GOODPUT_BLOCKING] = False
        parent = self._context(phase.parent, phase.parent) if isinstance(phase.parent, ShortSpan) else phase.parent
        if number := line.traces.volumes.number_of(parent.trace_id):
            attributes[GOODPUT_TRACE_NUMBER] = number
        span = PhaseReadableSpan(
            Phase.COMPILE,
            SpanContext(parent.trace_id, phase.key, False, ids.SAMPLED),
            parent,
            line.emitter.resource,
            attributes | dict(more or {}),
            start_time=phase.start,
            end_time=end,
            instrumentation_scope=line.emitter.scope,
        )
        line.emitter.emit(span)

    def _context(self, span: trace_api.Span, step: ShortSpan | None) -> SpanContext:
        """Return the parent of what is compiled in `span`: that span, or our root if `span` is not part of the job."""
        line, context = self._line, identity(span)
        traces = line.traces
        number = line.latest.step if step is None else step.step
        if context.is_valid and not traces.own and traces.volumes.number_of(context.trace_id) is None:
            return traces.root(traces.volumes.number(number))
        return traces.parent_of(number, context)

    def _exports(self, phase: CompilePhase, end: int) -> bool:
        """Return whether `phase` is exported; if it is not, add it to the gate's summary."""
        line, gate, parent = self._line, phase.gate, phase.parent
        slow = gate.stands_out(end - phase.start, failed=False)
        if phase.taken:
            return True
        inside = parent.identity if isinstance(parent, ShortSpan) else parent
        late = isinstance(parent, ShortSpan) and parent.closed
        if slow and not late and line.admission.afford(inside.trace_id, NOTABLE):
            if isinstance(parent, ShortSpan):
                line.spans.keep(parent)
            return True
        gate.leave_out(phase.start, end)
        return False
