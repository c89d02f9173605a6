"""Compile phases, and the titles of the functions that are compiled.

Two functions of one name have two titles, so that only the same one counts as compiled again: one with the same code at
the same place, bound to the same. A lambda in the body of a loop, made anew with equal contents, is the same function.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from opentelemetry import trace as trace_api
from opentelemetry.trace import SpanContext
from opentelemetry.util import types

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.records import EXPORT, PARENT, SUMMARIZED, signed
from otel_goodput._recording import ids
from otel_goodput._recording.finished import phase_span
from otel_goodput._recording.nesting import identity
from otel_goodput._recording.sampling import Gate
from otel_goodput._recording.short_span import ShortSpan
from otel_goodput._recording.step_line import StepLine
from otel_goodput._recording.trace_layout import NOTABLE
from otel_goodput._timeline.span_index import SpanEntry
from otel_goodput.semconv import Phase

MOST: Final = 100  # functions of one name with titles of their own; the names in a journal are bounded
DEEPEST: Final = 4  # functions in what a function is bound to, and so on
_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None))


def fingerprint(thing: Any, deep: int = DEEPEST) -> Hashable:
    """Return what is equal for two functions that are the same; holds no reference to what they are bound to."""
    if isinstance(thing, _PLAIN):
        return type(thing), thing
    if isinstance(thing, CodeType):
        return thing.co_filename, thing.co_firstlineno, thing.co_name, hash(thing.co_code)
    if deep:
        deep -= 1
        if isinstance(thing, MethodType):
            return fingerprint(thing.__func__, deep), id(thing.__self__)
        if isinstance(thing, partial):
            bound = (thing.func, *thing.args, *thing.keywords.values())
            return tuple(fingerprint(each, deep) for each in bound)
        if isinstance(thing, FunctionType):
            bound = (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *_cells(thing))
            return fingerprint(thing.__code__), tuple(fingerprint(each, deep) for each in bound)
        if isinstance(thing, tuple):
            return tuple(fingerprint(each, deep) for each in thing)
    return id(thing)


def _cells(function: FunctionType) -> list[object]:
    """Return what the closure of `function` holds; of an empty cell, nothing."""
    held = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            continue
    return held


@dataclass(slots=True, eq=False)
class CompilePhase:
    """The phase of one compilation, of a function that may be unknown (empty)."""

    key: int
    function: str
    start: int
    parent: SpanContext | ShortSpan
    step: int
    aside: bool  # it does not block training
    gate: Gate
    taken: bool  # it is exported, however short it is


class CompilePhases:
    """Opens, ends and exports the compile phases of one recorder, and distinguishes functions of one name."""

    def __init__(self, line: StepLine) -> None:
        self._line = line
        self._known: dict[str, dict[Hashable, str]] = {}
        self._traced: defaultdict[str, deque[str]] = defaultdict(partial(deque, maxlen=MOST))

    def title(self, name: str, function: object) -> str:
        """Return a function's title: its name, and a number where another one had that name before."""
        known = self._known.setdefault(name, {})
        key = fingerprint(function)
        title = known.get(key)
        if title is None:
            number = min(len(known) + 1, MOST)
            title = name if number == 1 else f"{name} #{number}"
            if len(known) < MOST:
                known[key] = title
        return title

    def postpone(self, name: str, title: str) -> None:
        """Keep the title of a function that was traced, and that may be compiled later."""
        self._traced[name].append(title)

    def resume(self, name: str) -> str:
        """Return the title of the function `name` that is compiled now, and was traced before."""
        try:
            return self._traced[name].popleft()
        except IndexError:  # compiled anew without a trace, as for other devices
            return next(reversed(self._known.get(name, {}).values()), name)

    def begin(self, function: str, start: int, blocking: bool | None = None) -> CompilePhase:
        """Begin the compilation of `function` at `start` (ns), on this thread; writes to the journal only.

        `blocking`: by default, whether this is the training thread.
        """
        line = self._line
        around = line.nesting.here()
        aside = not line.blocks(blocking)
        gate = line.admission.gate(Phase.COMPILE, function, aside)
        step = None if aside else line.spans.step
        parent = step if step is not None and around is step else self._context(around, step)
        taken = gate.take() and line.admission.afford(_identity(parent).trace_id, line.admission.budget.phases)
        if taken:
            line.spans.hold(around)
            if not isinstance(parent, ShortSpan):
                parent = self._context(around, step)  # exported by now
        key = line.new_key()
        flags = EXPORT if taken else 0
        if aside:
            flags |= ev.NONBLOCKING
        name = line.account.journal.name(function) if function else 0
        number = ev.NO_STEP if step is None else step.step
        line.jobs.append(ev.START, rules.COMPILE, flags, name, key, number, start)
        if not isinstance(parent, ShortSpan):  # else the journal's reader knows the step by its number
            if parent.trace_id != line.traces.root(0).trace_id:
                line.account.foreign_trace(key, parent.trace_id)
            if parent.span_id != line.traces.job_key:
                line.jobs.append(PARENT, 0, 0, 0, key, signed(parent.span_id), start)
        return CompilePhase(key, function, start, parent, number, aside, gate, taken)

    def end(self, phase: CompilePhase, end: int, compiled: str = "") -> bool:
        """End `phase` at `end` (ns); return whether :meth:`emit` should export it.

        `compiled` is the title of its function, empty if it was only traced.
        """
        line, gate, parent, exported = self._line, phase.gate, phase.parent, phase.taken
        name = line.account.journal.name(compiled) if compiled else 0
        slow = gate.stands_out(end - phase.start, failed=False)
        late = isinstance(parent, ShortSpan) and parent.closed
        if not exported and slow and not late:
            exported = line.admission.afford(_identity(parent).trace_id, NOTABLE)
            if exported and isinstance(parent, ShortSpan):
                line.spans.keep(parent)
        if not exported:
            gate.leave_out(phase.start, end)
        line.jobs.append(ev.END, rules.COMPILE, EXPORT if exported else SUMMARIZED, name, phase.key, ev.NO_STEP, end)
        return exported and not line.closed

    def emit(self, phase: CompilePhase, end: int, more: types.Attributes) -> None:
        """Export the span of `phase`, with the attributes `more`. Not called on the training thread."""
        line = self._line
        parent = self._context(phase.parent, phase.parent) if isinstance(phase.parent, ShortSpan) else phase.parent
        number, flags = line.traces.layout.number_of(parent.trace_id) or 0, ev.NONBLOCKING if phase.aside else 0
        entry = SpanEntry(phase.key, rules.COMPILE, phase.function, phase.step, flags, phase.start, end=end)
        context = SpanContext(parent.trace_id, phase.key, False, ids.SAMPLED)
        line.emitter.emit(phase_span(entry, context, parent, number, line.emitter.resource, more))

    def _context(self, span: trace_api.Span, step: ShortSpan | None) -> SpanContext:
        """Return the parent of what is compiled in `span`: that span, or our root if `span` is not part of the job."""
        line, context = self._line, identity(span)
        traces = line.traces
        number = line.latest.step if step is None else step.step
        if context.is_valid and not traces.own and traces.layout.number_of(context.trace_id) is None:
            return traces.root(traces.layout.number(number))
        return traces.parent_of(number, context)


def _identity(parent: SpanContext | ShortSpan) -> SpanContext:
    return parent.identity if isinstance(parent, ShortSpan) else parent
