"""Record compilations as phases, from the events that a compiler emits while it traces, lowers and compiles.

The stages of one compilation follow each other within microseconds on one thread, and other stages may nest in them.
Their union is recorded as one ``compile`` span. It is open from the first stage on, so that a compilation that never
ends is visible, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final

from opentelemetry import trace as trace_api
from opentelemetry.trace import SpanContext
from opentelemetry.util import types

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal.records import EXPORT, FLOOD, PARENT, signed
from otel_goodput.recording import ids
from otel_goodput.recording.admission import Gate
from otel_goodput.recording.budget import NOTABLE
from otel_goodput.recording.fast_span import current_span
from otel_goodput.recording.finished import PhaseReadableSpan
from otel_goodput.recording.short_span import ShortSpan
from otel_goodput.recording.tracer import PhaseTracer
from otel_goodput.semconv import (
    GOODPUT_BLOCKING,
    GOODPUT_COMPILE_CACHE_HIT,
    GOODPUT_COMPILE_CACHE_RETRIEVAL,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_COMPILE_RECOMPILATION,
    GOODPUT_COMPILE_STAGES,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_TRACE_NUMBER,
    Phase,
)

TRACE, LOWER, BACKEND = range(3)
ADJACENT: Final = 50_000_000  # ns at most between two stages of one compilation
AT_ONCE: Final = 2_000_000  # ns within which the next stage nearly always follows
IDLE: Final = 200_000_000  # ns after which no further stage is expected
FUNCTIONS: Final = 10_000  # names remembered; recompilations of further functions go unnoticed

# Threads that are compiling something of ours, such as a marker.
_unheard: Final[set[int]] = set()


@contextmanager
def unheard() -> Iterator[None]:
    """Do not record what this thread compiles in the ``with`` block: it is not the job's."""
    _unheard.add(get_ident())
    try:
        yield
    finally:
        _unheard.discard(get_ident())


def is_heard() -> bool:
    """Return whether what this thread compiles is the job's."""
    return not _unheard or get_ident() not in _unheard


class Compilation:
    """One compilation in progress."""

    __slots__ = (
        "again",
        "aside",
        "end",
        "function",
        "gate",
        "hit",
        "key",
        "parent",
        "retrieval",
        "since",
        "stages",
        "start",
        "step",
        "taken",
        "titles",
    )

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
        self.titles = (function, f"jit({function})")  # what jax calls it in its stages
        self.start = self.since = self.end = start
        self.parent = parent
        self.step = step
        self.aside = aside
        self.gate = gate
        self.taken = taken  # exported, however short it is
        self.stages = [0, 0, 0]  # ns in each stage
        self.again = False
        self.hit: bool | None = None
        self.retrieval = 0


class _Thread:
    """State of a compiling thread: how many stages are open, and the compilation of the outermost one."""

    __slots__ = ("current", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.current: Compilation | None = None


class Compilations:
    """Follows the compilations of all threads.

    On the compiling threads it only appends records and tuples; spans are built by :meth:`tick`.

    Args:
        tracer: records the compilations.
        theirs: returns whether a function of that name is the compiler's own; its recompilations are not reported.
    """

    def __init__(self, tracer: PhaseTracer, theirs: Callable[[str], bool] = lambda _: False) -> None:
        self._tracer = tracer
        self._theirs = theirs
        self._clock = tracer.clock
        # By ident, cheaper than a threading.local. A thread that reuses the ident of an ended one finds it at depth 0.
        self._threads: defaultdict[int, _Thread] = defaultdict(_Thread)
        # Between two stages, by thread. The thread that pops an entry owns it: no lock that the keeper could hold.
        self._between: dict[int, Compilation] = {}
        self._done: deque[Compilation] = deque()
        self._compiled: set[str] = set()  # names of functions

    # --- on the compiling thread --------------------------------------------------------------------------------------

    def begin(self, title: object) -> None:
        """Begin a stage of the function that jax calls `title`."""
        thread = self._threads[get_ident()]
        thread.depth = depth = thread.depth + 1
        if depth == 1:
            thread.current = self._take_up(title, self._clock())

    def end(self, stage: int, title: object, seconds: float) -> None:
        """End a stage that took `seconds`."""
        thread = self._threads[get_ident()]
        depth = thread.depth
        if depth > 1:
            thread.depth = depth - 1
            return
        now = self._clock()
        if depth:
            thread.depth = 0
            current, thread.current = thread.current, None
            if current is None:
                return
        else:
            # There was no begin event: an older jax, or the listener was installed during the stage.
            current = self._take_up(title, now - round(seconds * 1e9))
        current.end = now
        current.stages[stage] += now - current.since
        if stage != BACKEND:
            self._between[get_ident()] = current
            return
        if not current.aside:
            device = self._tracer.hooks.device
            if device is not None:
                device.compiled(now)
        function = current.function
        current.again = function in self._compiled
        if not current.again and function and len(self._compiled) < FUNCTIONS:
            if self._theirs(function):
                function = ""
            else:
                self._compiled.add(function)
        self._finish(current, function)

    def cached(self, hit: bool | None = None, retrieval: int = 0) -> None:
        """Note what the persistent cache reported in this thread's stage; `retrieval` in ns."""
        thread = self._threads[get_ident()]
        current = thread.current
        if current is not None and thread.depth == 1:
            if hit is not None:
                current.hit = hit
            current.retrieval += retrieval

    def _take_up(self, title: object, start: int) -> Compilation:
        """Return the compilation whose stage began at `start` (ns): the previous one if it goes on, else a new one."""
        current = self._between.pop(get_ident(), None)
        if current is not None:
            if start - current.end <= ADJACENT and title in current.titles:
                current.since = start
                return current
            self._finish(current)
        return self._open(_plain(title), start)

    def _open(self, function: str, start: int) -> Compilation:
        tracer = self._tracer
        around = current_span()
        aside = not tracer.blocks(None)
        gate = tracer.admission.gate(Phase.COMPILE, function, aside)
        step = None if aside else tracer.spans.step
        inside = step.get_span_context() if around is step and step is not None else self._context(around, step)
        taken = gate.take() and tracer.admission.afford(inside.trace_id, tracer.admission.budget.phases)
        if taken:
            tracer.spans.hold(around)
        key = tracer.new_key()
        flags = EXPORT if taken else 0
        if aside:
            flags |= ev.NONBLOCKING
        name = tracer.account.journal.name(function) if function else 0
        number = ev.NO_STEP if step is None else step.step
        tracer.jobs.append(ev.START, rules.COMPILE, flags, name, key, number, start)
        if around is step and step is not None:
            # The usual case. It needs no PARENT record: the journal's reader knows the step by its number.
            return Compilation(key, function, start, step, number, aside, gate, taken)
        parent = self._context(around, step)
        if parent.trace_id != tracer.traces.root(0).trace_id:
            tracer.account.foreign_trace(key, parent.trace_id)
        if parent.span_id != tracer.traces.job_context.span_id:
            tracer.jobs.append(PARENT, 0, 0, 0, key, signed(parent.span_id), start)
        return Compilation(key, function, start, parent, number, aside, gate, taken)

    def _context(self, span: trace_api.Span, step: ShortSpan | None) -> SpanContext:
        """Return the parent of what is compiled in `span`: that span, or our root if `span` is not part of the job."""
        tracer, context = self._tracer, span.get_span_context()
        number = tracer.latest.step if step is None else step.step
        if context.is_valid and not tracer.traces.own and tracer.traces.volumes.number_of(context.trace_id) is None:
            return tracer.traces.root(tracer.traces.volumes.number(number))
        return tracer.traces.parent_of(number, context)

    def _finish(self, done: Compilation, compiled: str = "") -> None:
        """End `done`; `compiled` is the name of its function, empty if it was only traced."""
        account = self._tracer.account
        name = account.journal.name(compiled) if compiled else 0
        exported = self._exports(done)
        flags = EXPORT if exported else FLOOD
        self._tracer.jobs.append(ev.END, rules.COMPILE, flags, name, done.key, ev.NO_STEP, done.end)
        if exported and not self._tracer.closed:
            self._done.append(done)

    def _exports(self, done: Compilation) -> bool:
        """Return whether `done` is exported; if it is not, add it to the gate's summary."""
        gate, parent = done.gate, done.parent
        slow = gate.stands_out(done.end - done.start, failed=False)
        if done.taken:
            return True
        inside = parent.get_span_context() if isinstance(parent, ShortSpan) else parent
        late = isinstance(parent, ShortSpan) and parent.closed
        if slow and not late and self._tracer.admission.afford(inside.trace_id, NOTABLE):
            if isinstance(parent, ShortSpan):
                self._tracer.spans.keep(parent)
            return True
        gate.leave_out(done.start, done.end)
        return False

    # --- in the background --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """End compilations for which no further stage is expected, and export those that are done."""
        idle = self._clock() - IDLE
        self._close_since(idle)
        for _ in range(len(self._done)):
            try:
                done = self._done.popleft()
            except IndexError:  # another thread was quicker
                break
            self._tracer.emitter.emit(self._span(done))

    def settle(self) -> None:
        """Before the account is read: end what was traced and not compiled right after."""
        self._close_since(self._clock() - AT_ONCE)

    def close(self) -> None:
        """End and export all compilations; no further stages are expected."""
        self._close_since(self._clock())
        self.tick()

    def _close_since(self, moment: int) -> None:
        for thread, compilation in self._between.copy().items():
            # The thread may have begun another one meanwhile: then we have popped that one, and must finish it.
            if compilation.end <= moment and (taken := self._between.pop(thread, None)) is not None:
                self._finish(taken)

    def _span(self, done: Compilation) -> PhaseReadableSpan:
        tracer = self._tracer
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: Phase.COMPILE}
        if done.function:
            attributes[GOODPUT_COMPILE_FUNCTION] = done.function
        if done.step >= 0:
            attributes[GOODPUT_STEP] = done.step
        if done.again:
            attributes[GOODPUT_COMPILE_RECOMPILATION] = True
        if done.aside:
            attributes[GOODPUT_BLOCKING] = False
        if done.hit is not None:
            attributes[GOODPUT_COMPILE_CACHE_HIT] = done.hit
        if done.retrieval:
            attributes[GOODPUT_COMPILE_CACHE_RETRIEVAL] = done.retrieval
        parent = self._context(done.parent, done.parent) if isinstance(done.parent, ShortSpan) else done.parent
        if number := tracer.traces.volumes.number_of(parent.trace_id):
            attributes[GOODPUT_TRACE_NUMBER] = number
        stages = zip(GOODPUT_COMPILE_STAGES, done.stages, strict=True)
        attributes |= {name: duration for name, duration in stages if duration}
        return PhaseReadableSpan(
            Phase.COMPILE,
            SpanContext(parent.trace_id, done.key, False, ids.SAMPLED),
            parent,
            tracer.emitter.resource,
            attributes,
            start_time=done.start,
            end_time=done.end,
            instrumentation_scope=tracer.emitter.scope,
        )


def _plain(title: object) -> str:
    """Return the function's name: ``train_step`` for ``jit(train_step)``."""
    name = str(title or "")
    return name[4:-1] if name.startswith("jit(") and name.endswith(")") else name
