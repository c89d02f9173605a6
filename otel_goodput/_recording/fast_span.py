"""Low-overhead spans for steps, parts and data loads, of which there may be millions; they bypass the SDK's tracer.

A :class:`FastSpan` is the context manager, the current span and the record of one phase at once. Expensive parts
(identity, parent, attributes, the span to export) are created on first use; most steps never need them.
An interrupt may come between any two lines of a begin or an end: read the code that cleans up after it with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import get_ident
from types import MappingProxyType, TracebackType
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util import types

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.rules import DATA_LOADING, PART, STEP
from otel_goodput._journal.records import ERRED, EXPORT, INTERRUPTED, OUTLIER, SUMMARIZED
from otel_goodput._recording import misuse, nesting, plain
from otel_goodput._recording.decorators import F, decorate
from otel_goodput._recording.departure import clean_exit
from otel_goodput._recording.finished import SCOPE, UNSET, PhaseReadableSpan, phase_attributes
from otel_goodput._recording.ids import SAMPLED, UNSAMPLED, step_trace_id
from otel_goodput._recording.nesting import PHASE, PHASE_KEY, SPAN_KEY, TOUCHED, UNTOUCHED, Nested
from otel_goodput._recording.plain import error_name
from otel_goodput._recording.short_span import ShortSpan, alive
from otel_goodput._recording.step_line import EXPORTED, KEPT, SLOW, THINNED, TIMED, StepLine
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput.semconv import ERROR_TYPE, GOODPUT_STEP_DEVICE_DURATION, PHASES


class FastSpan(ShortSpan):
    """One step, data load or part of a step: a context manager and a span.

    `phase` is an index into ``semconv.PHASES``; `blocking`, `start` and `end` (ns) are the user's, None if not given.
    """

    # Defaults are class attributes, so that an instance stores only values that differ.
    _line: StepLine
    _start_at: int | None = None
    _end_at: int | None = None
    _twins: Sequence[FastSpan] = ()  # spans opened by entering this object again
    _context: SpanContext | None = None
    _parent: SpanContext | None = None  # None until it is final
    _token: Any = None
    _entry = 0  # where it is among the open spans: its key, or that of the first step of its loop
    numbered = True  # the user gave the number of the step; False: it continues the count
    _outermost = False  # it is noted in PHASE
    _annotation: Any = None
    _overlapping = False  # opened in another task than the steps
    _end_flags = 0  # of its END, in an undisturbed turn

    def __init__(
        self, line: StepLine, phase: int, step: int, blocking: bool | None, start: int | None, end: int | None
    ) -> None:
        self._line = line
        self._phase = phase
        self.step = step
        self._blocking = blocking
        if start is not None:
            self._start_at = start
        if end is not None:
            self._end_at = end

    @classmethod
    def of_part(cls, line: StepLine, name: str) -> FastSpan:
        """Return a part of the open step, not begun yet."""
        step = line.spans.step
        if step is None and line.blocks(None):
            line.misused.warn(misuse.PART_OUTSIDE, name=name)
        span = cls(line, PART, ev.NO_STEP if step is None else step.step, None, None, None)
        span.title, span.label = name, line.account.journal.name(name)
        return span

    @classmethod
    def of(cls, line: StepLine, phase: int, title: str | None, step: int | None, *how: Any) -> FastSpan:
        """Return a span, not begun yet; `how`: blocking, start, end. A step without a number gets the next one."""
        if title:
            return cls.of_part(line, title)
        if phase != STEP:
            step = line.load_number()
        return cls(line, phase, line.next_number() if step is None else step, *how)

    def unfold(self) -> None:
        """Set on this instance the attributes that usually stay at their class default.

        CPython derives the attribute layout from the first instances of a class; an attribute that first appears later
        costs a microsecond for each object that has it.
        """
        for name in (
            "loop", "title", "label", "gate", "thread", "saved", "undone", "observation", "outer", "_keep", "_context",
            "_parent", "_end"
        ):  # fmt: skip
            setattr(self, name, getattr(self, name))

    # --- in a loop that is undisturbed; see turns.py ------------------------------------------------------------------

    def next_in_loop(self, phase: int, step: int, key: int, start: int) -> FastSpan:
        """Return the span that begins where this one ends, at `start` (ns), in the same place."""
        # A constructor takes as long as all this. `touched` is set because every turn reads it, and CPython 3.11 finds
        # the default of the class later.
        span = FastSpan.__new__(FastSpan)
        span._line, span._phase, span.step, span._blocking = self._line, phase, step, None
        span._start, span._key, span.within, span.outer = start, key, self.within, self.outer
        span._outermost, span.thread, span.loop, span._ended = self._outermost, self.thread, self.loop, False
        span._entry, span.touched = self._entry, UNTOUCHED
        return span

    def renew(self, phase: int, step: int, key: int, start: int) -> None:
        """Begin anew as that span: it was exported, and nobody holds it."""
        self._phase, self.step, self._key, self._start, self._ended = phase, step, key, start, False
        self._sampled, self.touched, self._parent, self._end = False, UNTOUCHED, None, None
        if self._end_flags:
            self._end_flags = 0

    def copied(self, end: int) -> Callable[[], ReadableSpan]:
        """Return what makes the span that ended in an undisturbed turn, which nobody has touched, without this one."""
        parent = self._parent
        assert parent is not None
        return partial(
            _finished, self._line, self._phase, self.step, self._key, parent, self._start, end, self._end_flags
        )

    def finished(self) -> ReadableSpan:
        """Return the span that ended in an undisturbed turn, for exporters."""
        return self.readable(self._end or self._start, self._end_flags)

    def export(self, end: int, flags: int, device: int | None = None) -> None:
        """Have :meth:`readable` called, and the span passed to the span processors, in the background."""
        self._line.emitter.postpone(partial(self.readable, end, flags, device))

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> FastSpan:
        if self._key:
            return self._enter_twin()
        try:
            self.open(self._line.clock() if self._start_at is None else self._start_at)
        except Exception as error:
            contain("phase start", error)
        except BaseException:
            self.abandon(self._line.clock())
            raise
        return self

    def open(self, start: int) -> None:
        line = self._line
        line.thread.latest_change = object()
        flags = 0
        if self._phase == STEP and (line.blocks(self._blocking) or line.thread.moves(self._blocking)):
            if line.spans.short:
                line.sweep(start)
            if self.step <= line.latest.step and self._start_at is None:
                line.go_back(self.step)
            if line.unsure:
                line.begin_first(self.step)
                if self.numbered:
                    flags = ev.NUMBERED
            line.latest = self
            if line.thread.tasks:
                line.thread.note_task()
        elif not line.blocks(self._blocking):
            flags = ev.NONBLOCKING
            self._blocking = False
        elif self._phase == DATA_LOADING and self._blocking is None and line.thread.in_another_task():
            flags = ev.OVERLAPPING
            self._overlapping = True
        self._start = start
        self._key = key = line.new_key()
        self.within = within = line.current()
        place = line.place
        if place.context is not within:
            place = line.place = line.nesting.place(within)
        if self._phase == STEP and type(place.span) is FastSpan and place.span._ended:
            # Another thread has ended the step before, and could not restore the context of this one.
            self.within = within = alive(within)
            line.attach(within)
            place = line.place = line.nesting.place(within)
        self.outer = place.phase
        self.thread = get_ident()  # before others find it among the open spans
        spans = line.spans
        if self._phase == STEP:
            spans.step = self
            sampled = line.policy.at_begin(self, self, self)
        else:
            sampled = line.policy.at_begin(self, spans.step, line.latest)
        self._sampled = sampled != THINNED
        if sampled:
            flags |= EXPORT
        # Registered as open before anything is recorded, so that it will be ended even if an interrupt comes now.
        self._ended = False
        self._entry = key
        spans.short[key] = self
        device = line.hooks.device
        if device is not None and device.awake and self._blocking is not False and self._start_at is None:
            if self._phase == STEP:
                device.begin(key, STEP, start)
            elif self._phase == DATA_LOADING and not self._overlapping:
                device.load(start)
        line.jobs.append(ev.START, self._phase, flags, self.label, key, self.step, start)
        if place.covered:
            self._token = line.attach(context_api.Context({**within, PHASE_KEY: self, SPAN_KEY: self}))
        else:
            self._token = line.attach(context_api.Context({**within, PHASE_KEY: self}))
        if place.context is None:
            self._outermost = True
            PHASE.set(self)
        if sampled:
            if self._phase == STEP and not flags & ev.NONBLOCKING:
                line.thread.stepped = True
                line.thread.note_task()
            line.announce(self)
        annotate = line.hooks.annotate
        if annotate is not None and self._phase == STEP and line.hooks.profiling():
            self._annotation = annotate("step", step_num=self.step)
            self._annotation.__enter__()
        if not key & TIMED and self._start_at is None:
            line.sample_overhead(line.clock() - start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._twins and (twin := self._left_twin()) is not None:
            twin.__exit__(kind, error, traceback)
            return
        try:
            failed = kind is not None and not issubclass(kind, GeneratorExit)
            if failed and error is not None and kind is not None:
                self._fail(kind, error)
            end = self._end_at
            self.close(self._line.clock() if end is None else end, failed)
        except Exception as trouble:
            contain("phase end", trouble)
        except BaseException:
            self.abandon(self._line.clock(), failed=kind is not None)
            raise

    def until(self, end: int) -> None:
        """Have it end at `end` (ns) when it is left."""
        self._end_at = end

    def _enter_twin(self) -> FastSpan:
        """Enter a new span like this one, because this one was entered before, perhaps by another thread."""
        twin = self._repeat()()
        if not isinstance(twin, FastSpan):
            return self
        self._twins = [*self._twins, twin]
        self.touched = TOUCHED
        return twin.__enter__()

    def _left_twin(self) -> FastSpan | None:
        """Return the twin that is being left, and forget it; None if this span itself is being left."""
        current = nesting.innermost()
        twin = next((twin for twin in reversed(self._twins) if twin is current), None)
        if twin is None and current is not self:
            twin = next((twin for twin in reversed(self._twins) if twin.thread == get_ident()), None)
        if twin is not None:
            self._twins = [other for other in self._twins if other is not twin]
        return twin

    def _fail(self, kind: type[BaseException], error: BaseException) -> None:
        self.undone = not self.saved
        if clean_exit(error):
            return
        if isinstance(error, Exception):
            self.record_exception(error)
        self._status = Status(StatusCode.ERROR, f"{kind.__name__}: {plain.message(error)}")
        self.set_attribute(ERROR_TYPE, error_name(kind))

    def close(self, end: int, failed: bool = False, flags: int = 0) -> int:
        """End at `end` (ns) and restore the context; `failed`: left early.

        Returns the time at which it ended, ns: `end`, or after the device mark if one was dispatched for a step.
        """
        if self._ended:
            if self.lapsed and self.loop is not None:
                self.loop.reliable = False  # its loop goes on after all
            return end
        line = self._line
        line.thread.latest_change = object()
        if end < self._start:
            end = line.check_end(self._start, end)
        began, key, spans = end, self._key, line.spans
        if spans.step is self:
            spans.step = None
        decision = line.policy.at_end(self, end - self._start, failed=failed)
        exported = decision & EXPORTED
        if exported:
            if decision & KEPT:
                self.keep(paid=True)
            if failed and self._phase != STEP:
                spans.hold(self.around)
            elif line.left_out:
                spans.keep(self.around)
        if failed:
            flags |= ev.FAILED
        if self._status.status_code is StatusCode.ERROR:
            flags |= ERRED
        if decision & SLOW:
            flags |= OUTLIER
        observation, device = self.observation, line.hooks.device
        if device is not None and device.awake and self._blocking is not False and self._start_at is None:
            if self._phase == STEP and not flags & INTERRUPTED:
                observation = device.end_step(self, end, begun=not flags & ev.IDLE)
                if observation is not self.observation and self._end_at is None and not self.lapsed:
                    end = line.clock()
            elif self._phase == DATA_LOADING and not self._overlapping:
                device.loaded(end)
        if observation is not None:
            observation.announced = True
            flags |= ev.ON_DEVICE
        if self.gate is not None and not exported:
            flags |= SUMMARIZED
            self.gate.leave_out(self._start, end)
        if failed and self._phase != STEP and (error := self.error):
            line.account.error(self._phase, key, error, end)
        line.jobs.append(ev.END, self._phase, flags | EXPORT if exported else flags, 0, key, self.step, end)
        # Only now, so that it is ended again if an interrupt came before; a second END record is harmless.
        self._ended = True
        # Restore the context before unregistering: while it is registered as open, an interrupt is cleaned up after.
        token, self._token = self._token, None
        if token is not None:
            if self.thread == get_ident():
                nesting.detach(token)
            elif self.loop is None:  # else it is said what to write for such a loop
                line.misused.warn(misuse.ELSEWHERE, phase=PHASES[self._phase])
        elif line.current().get(PHASE_KEY) is self:
            line.attach(self.within)  # it was begun by the loop, see next_in_loop()
        if self._outermost:
            nesting.leave(self)
        spans.forget(self, self._entry)
        if self._phase == STEP:
            if spans.short and self._blocking is not False:
                line.sweep(end)
            if self._annotation is not None:
                self._annotation.__exit__(None, None, None)
                self._annotation = None
            if not exported:
                line.thinner.add(self.step, self._start, end)
        if not key & TIMED and self._end_at is None:
            line.sample_overhead(line.clock() - began)
        if exported:
            self._end = end
            # partial() and not a lambda, which would make every access to a variable of this function slower.
            if self.step < 0 and self._phase == DATA_LOADING and not failed:
                line.keep_back(self, partial(self.export, end, flags))
            elif observation is None:
                self.export(end, flags)
            else:
                observation.then(partial(self.export, end, flags))
        return end

    def abandon(
        self, end: int, flags: int = 0, *, failed: bool = True, left: bool = False, took: int | None = None
    ) -> None:
        """End it at `end` (ns) in place of its owner, from anywhere, even if its begin or its end was interrupted.

        Args:
            end, flags: when it ends, ns, and ``INTERRUPTED`` or 0.
            failed: it was not completed.
            left: its loop was left by a break; the account decides whether it was completed.
            took: ns spent in the loop's body before the break, by default all of the step. 0: it did no work.
        """
        try:
            self._abandon(end, flags, failed, left, took)
        except BaseException:
            self._abandon(end, flags, failed, left, took)
            raise

    def _abandon(self, end: int, flags: int, failed: bool, left: bool, took: int | None) -> None:
        line = self._line
        if self._ended and line.spans.short.get(self._entry) is not self:
            return
        line.thread.latest_change = object()
        if nesting.current_span() is self:
            # The token may belong to a context that no longer exists; attaching the previous context needs no token.
            line.attach(alive(self.within))
        nesting.leave(self)
        self._token = None
        if flags & INTERRUPTED:
            self._status = Status(StatusCode.ERROR, "interrupted by shutdown")
        if left:
            idle = took == 0 or line.policy.sampler.fleeting(end - self._start if took is None else took)
            # An observed step counts as completed: its user said so. If steps are too short for the device clock to
            # tell them apart, so does a step that did some work.
            brief = line.hooks.device is not None and line.hooks.device.brief
            failed = self.observation is None and (idle or not brief)
            self.undone = failed and idle
            flags |= failed and ev.LEFT | (ev.IDLE if idle else 0)
        else:
            self.undone = failed and not self.saved
        if not self._ended:
            self.close(end, failed, flags)
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None
        if line.spans.step is self:
            line.spans.step = None
        line.spans.forget(self, self._entry)

    def lapse(self, now: int, *, failed: bool = False) -> None:
        """End it where its work ended, because it is open at `now` (ns) although it is over.

        Its loop was left, but is still referenced, or whoever was to end it was passed over by an exception. It took as
        long as steps usually do, unless it was seen to take longer; what followed is no part of it (rule R4). `failed`:
        an exception left its loop; used if the loop does not tell.
        """
        raised = True if self.loop is None else self.loop.raised(self.thread)
        usual = self._line.policy.sampler.usual()
        self.lapsed = True
        end = now if usual is None else min(now, max(self._start + usual, self.seen))
        self.abandon(end, left=not (failed if raised is None else raised))

    def _repeat(self) -> Callable[[], AbstractContextManager[trace_api.Span]]:
        """Return a function that makes spans like this one. It holds nothing that cannot be sent to another process."""
        return partial(
            _like, self._line.find, self._phase, self.title, self.step, self._blocking, self._start_at, self._end_at
        )

    def __call__(self, function: F) -> F:
        """Decorate `function`: each call is a new span like this one."""
        return decorate(self._repeat(), function)

    # --- identity -----------------------------------------------------------------------------------------------------

    def keep(self, *, paid: bool = False) -> None:
        """Export it, because something worth seeing happens in it. `paid`: room for it is reserved already."""
        if not self._keep:
            if not self._sampled and not paid:
                self._line.policy.spend(self)
            self._keep, self.touched = True, TOUCHED
            if not self._sampled and not self._ended:
                self._line.note_parent(self)
            if (context := self._context) is not None:  # given out as not sampled; its trace may have other spans
                self._context = SpanContext(context.trace_id, self._key, False, SAMPLED)

    @property
    def parent(self) -> SpanContext | None:
        """Its parent: the span around it, else the job. None if it is a root, in the trace of its step.

        If steps have traces of their own, so have loads; else the attempt's trace would be full of loads.
        """
        if self._parent is not None:
            return self._parent
        line = self._line
        traces = line.traces
        if traces.own and self._phase == STEP:
            return None
        around = nesting.identity(self.around)
        if traces.own and (not around.is_valid or traces.layout.number_of(around.trace_id) is not None):
            return None
        parent = traces.parent_of(self.step, around)
        if traces.job_span is not None:  # before the job begins, its identity may still change
            self._parent, self.touched = parent, TOUCHED
        return parent

    @property
    def resource(self) -> Resource:
        return self._line.emitter.resource

    @property
    def instrumentation_scope(self) -> InstrumentationScope:
        return SCOPE

    @property
    def attributes(self) -> Mapping[str, types.AttributeValue]:
        return MappingProxyType(self._described(0, self.parent) | dict(self._attributes or {}))

    @property
    def links(self) -> Sequence[Link]:
        """Those that the user added; of a root, behind a link to the job."""
        links = tuple(self._links or ())
        return (Link(self._line.traces.job_context), *links) if self.parent is None else links

    def _described(self, end_flags: int, parent: SpanContext | None) -> dict[str, types.AttributeValue]:
        """Return the attributes that follow from its records."""
        number = 0 if parent is None else self._line.traces.layout.number_of(parent.trace_id) or 0
        flags = ev.NONBLOCKING if self._blocking is False else 0
        return phase_attributes(self._phase, self.title, self.step, flags, end_flags, number)

    def renumber(self, step: int) -> None:
        self.step, self._parent = step, None

    @property
    def identity(self) -> SpanContext:
        if self._context is None:
            parent = self.parent
            # If the step is not known yet, the next number is the best guess.
            step = self.step if self.step >= 0 else self._line.next_number()
            trace = step_trace_id(*self._line.traces.identity[:2], step) if parent is None else parent.trace_id
            self.touched = TOUCHED
            self._context = SpanContext(trace, self._key, False, SAMPLED if self._sampled or self._keep else UNSAMPLED)
        return self._context

    def _claim(self) -> bool:
        claimed = self._line.policy.claim(self)
        if claimed:
            self.keep(paid=True)
        return claimed

    def enclosing(self) -> SpanContext:
        around = self.around
        context = around.shown() if isinstance(around, Nested) else around.get_span_context()
        return self._line.traces.parent_of(self.step, context)

    def now(self) -> int:
        return self._line.clock()

    def refuse(self, key: str) -> None:
        self._line.misused.warn(misuse.CHANGED, key=key)

    def end(self, end_time: int | None = None) -> None:
        self.close(self._line.clock() if end_time is None else end_time)

    # --- export -------------------------------------------------------------------------------------------------------

    def observe(self, output: Any) -> None:
        """Declare that the step has left the device when `output` is ready.

        Costs about a microsecond; never blocks.

        Args:
            output: a jax array, or a tree, of which the smallest array is watched. It must not be donated to the next
                step; the loss is a good choice.
        """
        try:
            if self._ended or self._phase != STEP:
                why = "observe() was called on a span that is not an open step; the call is ignored"
                report_once("observe ended", why)
            elif (device := self._line.hooks.device) is not None:
                device.observe(self, output)
        except Exception as error:
            contain("observe", error)

    def readable(self, end: int, flags: int, device: int | None = None) -> ReadableSpan:
        """Return the span for exporters: it ended at `end` with these `flags`, and was `device` ns on the device."""
        if not (self._sampled or self._keep):
            self.keep()
        line, parent, context = self._line, self._parent or self.parent, self._context
        events: Sequence[Event] = self._events or ()
        links: Sequence[Link] = self._links or ()
        attributes = self._described(flags, parent)
        if parent is None:
            context, links = context or self.identity, self.links
        elif context is None:
            context = SpanContext(parent.trace_id, self._key, False, SAMPLED)
        if self._phase == STEP and (profiled := line.hooks.profiled) is not None:
            links = (*links, *profiled.links(context, self._start, end))
        if device is not None:
            attributes[GOODPUT_STEP_DEVICE_DURATION] = device
        if self._attributes:
            attributes.update(self._attributes)
        name = self._name or self.title or PHASES[self._phase]
        what = (name, context, parent, line.emitter.resource, attributes, events, links, SpanKind.INTERNAL, None)
        return PhaseReadableSpan(*what, self._status, self._start, end, SCOPE)  # by position, which is quicker


def _finished(
    line: StepLine, phase: int, step: int, key: int, parent: SpanContext, start: int, end: int, flags: int
) -> ReadableSpan:
    """As :meth:`FastSpan.readable`, of a span on which nobody has set anything."""
    trace = parent.trace_id
    attributes = phase_attributes(phase, "", step, 0, flags, line.traces.layout.number_of(trace) or 0)
    context, resource = SpanContext(trace, key, False, SAMPLED), line.emitter.resource
    profiled = line.hooks.profiled if phase == STEP else None
    links = () if profiled is None else profiled.links(context, start, end)
    what = (PHASES[phase], context, parent, resource, attributes, (), links, SpanKind.INTERNAL, None, UNSET)
    return PhaseReadableSpan(*what, start, end, SCOPE)


def _like(find: Callable[[], StepLine | None], *span: Any) -> AbstractContextManager[trace_api.Span]:
    """Return a new span, made by the recorder that records now; a null context if nothing records."""
    line = find()
    return nullcontext(trace_api.INVALID_SPAN) if line is None else FastSpan.of(line, *span)
