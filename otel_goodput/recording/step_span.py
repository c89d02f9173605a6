"""Spans that cost little: steps and data loads come by the million and take a short way past the SDK.

A :class:`FastSpan` is the context manager, the current span and the record of one phase at once. What is dear,
identity, parent, attributes, the span to export, is made when somebody asks for it; most steps are never asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput.accounting import events as ev
from otel_goodput.accounting.rules import DATA_LOADING, STEP
from otel_goodput.guard import contain, report_once
from otel_goodput.journal.account import EndedPhase
from otel_goodput.journal.records import ERRED, EXPORT, FLOOD, INTERRUPTED, OUTLIER
from otel_goodput.recording.decorators import F, decorate
from otel_goodput.recording.finished import PhaseReadableSpan
from otel_goodput.recording.ids import SAMPLED, UNSAMPLED
from otel_goodput.recording.observation import Observation
from otel_goodput.semconv import (
    ERROR_TYPE,
    GOODPUT_BLOCKING,
    GOODPUT_INTERRUPTED,
    GOODPUT_PART_NAME,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    GOODPUT_STEP_COMPLETED,
    GOODPUT_STEP_DEVICE_DURATION,
    GOODPUT_STEP_OUTLIER,
    GOODPUT_TRACE_NUMBER,
    PHASES,
)

if TYPE_CHECKING:
    from otel_goodput.recording.admission import Gate
    from otel_goodput.recording.tracer import PhaseTracer

# Of the fast spans those whose random id has none of these bits are timed, to estimate what we take of the thread.
TIMED: Final = 63

# Attributes that say what a phase is, from its begin on.
_SETTLED: Final = frozenset({GOODPUT_PHASE, GOODPUT_STEP, GOODPUT_PART_NAME})

_NO_CONTEXT = context_api.Context()
_UNSET = Status(StatusCode.UNSET)
_ended_phase = tuple.__new__  # without the call of its constructor
_attach = context_api.attach
_detach = context_api.detach
_current = context_api.get_current
# Where a context keeps its span: what set_span_in_context() does, with one copy less.
(_SPAN_KEY,) = trace_api.set_span_in_context(trace_api.INVALID_SPAN, _NO_CONTEXT)


def current_span() -> trace_api.Span:
    """What ``opentelemetry.trace.get_current_span()`` gives, for less."""
    span: trace_api.Span = _current().get(_SPAN_KEY, trace_api.INVALID_SPAN)  # type: ignore[assignment]
    return span


def error_name(error: type[BaseException] | BaseException) -> str:
    """`error.type` as the semantic conventions have it: the qualified name of the exception's class."""
    kind = error if isinstance(error, type) else type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def clean_exit(error: BaseException) -> bool:
    """Leaving by ``sys.exit(0)``, or because a generator was closed, is no failure."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


def alive(context: context_api.Context) -> context_api.Context:
    """`context`, or where its step has ended meanwhile what was around that."""
    while isinstance(span := context.get(_SPAN_KEY), FastSpan) and span.closed:
        context = span.within
    return context


class FastSpan(trace_api.Span):
    """One step or data load; enter it as a context manager, use it as a span.

    Setters follow OpenTelemetry's contract: they never raise and do nothing after the end.
    """

    # What most spans never have stays with the class: an instance stores only what is its own.
    _start = 0
    _start_at: int | None = None
    _end_at: int | None = None
    _ended = True  # until it is entered
    _sampled = False
    _keep = False
    _key = 0
    _name: str | None = None
    label = 0  # the journal's number of its user's name
    title = ""  # its user's name, of a part
    gate: Gate | None = None  # of a load or part that is left out for there are too many
    thread = 0  # where it was opened, of one that is exported whatever happens
    _twins: Sequence[FastSpan] = ()  # open at the same time, by the same object
    _attributes: BoundedAttributes | None = None
    _events: list[SpanEvent] | None = None
    _links: list[Link] | None = None
    _status = _UNSET
    _context: SpanContext | None = None
    _parent: SpanContext | None = None  # once it is certain
    _within: context_api.Context = _NO_CONTEXT
    _token: Any = None
    _annotation: Any = None
    observation: Observation | None = None
    in_loop = False  # a step of `steps()`
    saved = False  # a checkpoint was saved in it
    undone = False  # it ended without having been done: its number may be used again

    def __init__(
        self, tracer: PhaseTracer, phase: int, step: int, blocking: bool | None, start: int | None, end: int | None
    ) -> None:
        self._tracer = tracer
        self._phase = phase
        self.step = step
        self._blocking = blocking
        if start is not None:
            self._start_at = start
        if end is not None:
            self._end_at = end

    def unfold(self) -> None:
        """Have as one's own what most never have.

        The interpreter lays the attributes out by the first objects of a class; one that comes later costs a
        microsecond for each object that has it.
        """
        names = (
            "in_loop", "title", "label", "gate", "thread", "saved", "undone", "observation",
            "_keep", "_context", "_parent",
        )  # fmt: skip
        for name in names:
            setattr(self, name, getattr(self, name))

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> FastSpan:
        if not self._ended:
            return self._enter_twin()
        try:
            self.open(self._tracer.clock() if self._start_at is None else self._start_at)
            return self
        except Exception as error:
            contain("phase start", error)
        except BaseException:
            self.abandon(self._tracer.clock())
            raise
        return self

    def open(self, start: int) -> None:
        """Begin at `start` (ns) and become the current span."""
        tracer = self._tracer
        if self._key:
            # Used again: what the first use has left behind is not the second's.
            self._keep, self._status, self._context, self.saved, self.undone = False, _UNSET, None, False, False
            self._parent = None
            self._attributes = self._events = self._links = self.observation = None
            self.gate = None
        flags = 0
        if self._phase == STEP and (tracer.blocks(self._blocking) or tracer.thread.moves(self._blocking)):
            if tracer.open_spans:
                tracer.sweep(start)
            if tracer.unsure:
                tracer.number_loads(self.step)
            if self.step <= tracer.latest.step and self._start_at is None:
                tracer.go_back(self.step)
            tracer.latest = self
        elif not tracer.blocks(self._blocking):
            flags = ev.NONBLOCKING
            self._blocking = False
        self._start = start
        self._key = key = tracer.new_key()
        self._within = within = _current()
        self._sampled = sampled = tracer.takes(self)
        if sampled:
            flags |= EXPORT
        # Known as open before anybody is told: whatever interrupts us from here on, it will be ended.
        self._ended = False
        tracer.open_spans[key] = self
        device = tracer.device
        if device is not None and device.awake and self._blocking is not False and self._start_at is None:
            if self._phase == STEP:
                device.begin(key, STEP, start)
            elif self._phase == DATA_LOADING:
                device.load(start)
        tracer.append(ev.START, self._phase, flags, self.label, key, self.step, start)
        self._token = _attach(context_api.Context({**within, _SPAN_KEY: self}))
        if sampled:
            self.thread = get_ident()
            if self._phase == STEP and not flags & ev.NONBLOCKING:
                tracer.thread.stepped = True
            tracer.announce(self, within)
        if tracer.annotate is not None and self._phase == STEP:
            self._annotation = tracer.annotate("step", step_num=self.step)
            self._annotation.__enter__()
        if not key & TIMED and self._start_at is None:
            tracer.sample_overhead(tracer.clock() - start)

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
            self.close(self._tracer.clock() if end is None else end, failed)
        except Exception as trouble:
            contain("phase end", trouble)
        except BaseException:
            self.abandon(self._tracer.clock(), failed=kind is not None)
            raise

    def _enter_twin(self) -> FastSpan:
        """It is entered while it is open, by another thread perhaps: that is one like it."""
        twin = self._tracer.again(self)
        if not isinstance(twin, FastSpan):
            return self
        self._twins = [*self._twins, twin]
        return twin.__enter__()

    def _left_twin(self) -> FastSpan | None:
        """The twin that is being left here and now; None: it is this one itself that is."""
        current = current_span()
        twin = next((twin for twin in reversed(self._twins) if twin is current), None)
        if twin is None and current is not self:
            twin = next((twin for twin in reversed(self._twins) if twin.thread == get_ident()), None)
        if twin is not None:
            self._twins = [other for other in self._twins if other is not twin]
        return twin

    def _fail(self, kind: type[BaseException], error: BaseException) -> None:
        self.undone = not self.saved
        if isinstance(error, Exception):
            self.record_exception(error)
            self._status = Status(StatusCode.ERROR, f"{kind.__name__}: {error}")
        self.set_attribute(ERROR_TYPE, error_name(kind))

    def close(self, end: int, failed: bool = False, flags: int = 0) -> int:
        """End at `end` (ns), or behind the mark of a step, and give the context back; `failed`: left early.

        Returns when it ended, ns.
        """
        if self._ended:
            return end
        tracer = self._tracer
        if end < self._start:
            end = tracer.check_end(self._start, end)
        began = end
        key = self._key
        exported, outlier = tracer.exports(self, end - self._start, failed)
        if failed:
            flags |= ev.FAILED
        if self._status.status_code is StatusCode.ERROR:
            flags |= ERRED
        if outlier:
            flags |= OUTLIER
        observation = self.observation
        device = tracer.device
        if device is not None and device.awake and self._blocking is not False and self._start_at is None:
            if self._phase == STEP and not flags & INTERRUPTED:
                observation = device.end_step(self, end, begun=not flags & ev.IDLE)
                if observation is not self.observation and self._end_at is None:
                    end = tracer.clock()
            elif self._phase == DATA_LOADING:
                device.loaded(end)
        if observation is not None:
            observation.told = True
            flags |= ev.ON_DEVICE
        if self.gate is not None and not exported:
            flags |= FLOOD
            self.gate.leave_out(self._start, end)
        tracer.append(ev.END, self._phase, flags | EXPORT if exported else flags, 0, key, self.step, end)
        # Only now: who is interrupted before ends it once more, which says nothing new.
        self._ended = True
        # The context next; while it is known as open somebody will look after that too.
        token, self._token = self._token, None
        if token is not None:
            if self._sampled and self.thread != get_ident():
                tracer.misused.elsewhere(PHASES[self._phase])
            else:
                _detach(token)
        tracer.open_spans.pop(key, None)
        if self._phase == STEP:
            if tracer.open_spans and self._blocking is not False:
                tracer.sweep(end)
            if self._annotation is not None:
                self._annotation.__exit__(None, None, None)
                self._annotation = None
            if not exported:
                tracer.thinner.add(self.step, self._start, end)
        elif failed and tracer.account.on_phases is not None:  # of the others the journal tells
            error = str(self._attributes.get(ERROR_TYPE, "")) if self._attributes else ""
            blocking = self._blocking is not False
            tracer.account.phases.append(
                _ended_phase(EndedPhase, (self._phase, self.title, blocking, error, end - self._start))
            )
        if not key & TIMED and self._end_at is None:
            tracer.sample_overhead(tracer.clock() - began)
        if exported:
            interrupted = bool(flags & INTERRUPTED)
            if self.step < 0 and self._phase == DATA_LOADING and not failed:
                tracer.keep_back(self, lambda: tracer.emit(self.readable(end, failed, outlier, interrupted)))
            elif observation is None:
                tracer.emit(self.readable(end, failed, outlier, interrupted))
            else:
                observation.then(
                    lambda device: tracer.emit(self.readable(end, failed, outlier, interrupted, device))
                )
        return end

    def abandon(
        self, end: int, flags: int = 0, *, failed: bool = True, left: bool = False, took: int | None = None
    ) -> None:
        """End it at `end` (ns) without its owner, from wherever we are, and however far its begin or its end has got.

        Args:
            flags: ``INTERRUPTED``, or 0.
            failed: it has not been done.
            left: its loop was left by a break; the account decides whether it was done.
            took: of a step that was left, ns that were its user's; by default all. 0: nothing was done in it.
        """
        try:
            self._abandon(end, flags, failed, left, took)
        except BaseException:
            self._abandon(end, flags, failed, left, took)
            raise

    def _abandon(self, end: int, flags: int, failed: bool, left: bool, took: int | None) -> None:
        tracer = self._tracer
        if self._ended and self._key not in tracer.open_spans:
            return
        if current_span() is self:
            # The token may belong to a context that is gone; going back to what was current before needs none.
            _attach(alive(self._within))
        self._token = None
        if flags & INTERRUPTED:
            self._status = Status(StatusCode.ERROR, "interrupted by shutdown")
        if left:
            idle = took == 0 or tracer.sampler.fleeting(end - self._start if took is None else took)
            # Of one that was observed its user has said that it was done; and where steps are so short that the device
            # clock cannot tell one from the next, that something was done in it says as much.
            brief = tracer.device is not None and tracer.device.brief
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
        if tracer.open_step is self:
            tracer.open_step = None
        tracer.open_spans.pop(self._key, None)

    def __call__(self, function: F) -> F:
        """As a decorator: a new span of the same kind at every call."""
        return decorate(lambda: self._tracer.again(self), function)

    # --- identity -----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> int:
        """Its span id."""
        return self._key

    @property
    def phase(self) -> int:
        """Index into ``semconv.PHASES``."""
        return self._phase

    @property
    def start_time(self) -> int:
        """ns since the epoch."""
        return self._start

    @property
    def said(self) -> tuple[bool | None, int | None, int | None]:
        """What its user said: blocking, start and end (ns)."""
        return self._blocking, self._start_at, self._end_at

    @property
    def sampled(self) -> bool:
        """Whether it goes to the exporters whatever happens in it."""
        return self._sampled or self._keep

    @property
    def closed(self) -> bool:
        """Whether it has ended; or has not begun."""
        return self._ended

    @property
    def blocks(self) -> bool:
        """Whether it holds up training, once it has begun."""
        return self._blocking is not False

    @property
    def within(self) -> context_api.Context:
        """What was current when it was opened."""
        return self._within

    @property
    def around(self) -> trace_api.Span:
        """The span that it was opened in."""
        return trace_api.get_current_span(self._within)

    def keep(self, *, paid: bool = False) -> None:
        """Export it: something worth seeing happens in it. `paid`: room for it is taken."""
        if not self._keep:
            if not self._sampled and not paid:
                self._tracer.spend(self)
            self._keep = True
            context = self._context
            if context is not None:  # it said that it is not exported; its trace stays, others are in it by now
                self._context = SpanContext(context.trace_id, self._key, False, SAMPLED)

    def parent(self) -> SpanContext | None:
        """The span around it; the job where there is none. None where it is a root, in the trace of its step.

        Where steps have traces of their own, loads are in them, too: else the attempt's trace would be full of loads.
        """
        if self._parent is not None:
            return self._parent
        tracer = self._tracer
        if tracer.own_traces and self._phase == STEP:
            return None
        around = self._within.get(_SPAN_KEY, trace_api.INVALID_SPAN).get_span_context()  # type: ignore[attr-defined]
        if tracer.own_traces and (not around.is_valid or tracer.volumes.number_of(around.trace_id) is not None):
            return None
        parent = tracer.parent_of(self.step, around)
        if tracer.job_span is not None:  # before there is one, its identity may not be known
            self._parent = parent
        return parent

    def renumber(self, step: int) -> None:
        """Its step is known by now."""
        self.step, self._parent = step, None

    def get_span_context(self) -> SpanContext:
        if self._context is None:
            parent = self.parent()
            trace = self._tracer.step_trace(self.step) if parent is None else parent.trace_id
            self._context = SpanContext(trace, self._key, False, SAMPLED if self._sampled or self._keep else UNSAMPLED)
        return self._context

    # --- the setters of a span ----------------------------------------------------------------------------------------

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        if key in _SETTLED:
            self._tracer.misused.changed(key)
            return
        if self._attributes is None:
            self._attributes = BoundedAttributes(128, immutable=False)
        self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        if self._events is None:
            self._events = []
        if len(self._events) < 128:
            self._events.append(
                SpanEvent(
                    name, BoundedAttributes(128, attributes), self._tracer.clock() if timestamp is None else timestamp
                )
            )

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        if self._links is None:
            self._links = []
        self._links.append(Link(context, attributes))

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        import traceback

        described: dict[str, types.AttributeValue] = {
            "exception.type": error_name(exception),
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
        }
        self.add_event("exception", {**described, **(attributes or {})}, timestamp)

    def update_name(self, name: str) -> None:
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._status = status if isinstance(status, Status) else Status(status, description)

    def is_recording(self) -> bool:
        return not self._ended

    def end(self, end_time: int | None = None) -> None:
        self.close(self._tracer.clock() if end_time is None else end_time)

    # --- export -------------------------------------------------------------------------------------------------------

    def observe(self, output: Any) -> None:
        """The step has left the device when `output` is ready: an array of jax, or a tree whose smallest one counts.

        Hand over what the next step does not take over (no donated state), such as the loss. Costs about a
        microsecond; never waits.
        """
        try:
            if self._ended or self._phase != STEP:
                report_once("observe ended", "observe() is for a step that is open; nothing is observed")
            elif self._tracer.observe is not None:
                self._tracer.observe(self, output)
        except Exception as error:
            contain("observe", error)

    def readable(
        self, end: int, failed: bool, outlier: bool, interrupted: bool, device: int | None = None
    ) -> ReadableSpan:
        """The finished span as exporters want it; `device`: ns that the step was on the device."""
        tracer = self._tracer
        phase = PHASES[self._phase]
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: phase}
        if self.step >= 0:
            attributes[GOODPUT_STEP] = self.step
        if self.title:
            attributes[GOODPUT_PART_NAME] = self.title
        if failed and self._phase == STEP:
            attributes[GOODPUT_STEP_COMPLETED] = False
        if outlier:
            attributes[GOODPUT_STEP_OUTLIER] = True
        if device is not None:
            attributes[GOODPUT_STEP_DEVICE_DURATION] = device
        if self._blocking is False:
            attributes[GOODPUT_BLOCKING] = False
        if interrupted:
            attributes[GOODPUT_INTERRUPTED] = True
        if self._attributes:
            attributes.update(self._attributes)
        if not (self._sampled or self._keep):
            self.keep()
        parent = self.parent()
        links = self._links or ()
        if parent is not None and (number := tracer.volumes.number_of(parent.trace_id)):
            attributes[GOODPUT_TRACE_NUMBER] = number
        if parent is None:
            links = (Link(tracer.job_context), *links)
        return PhaseReadableSpan(
            self._name or self.title or phase,
            self.get_span_context(),
            parent,
            tracer.resource,
            attributes,
            self._events or (),
            links,
            status=self._status,
            start_time=self._start,
            end_time=end,
            instrumentation_scope=tracer.scope,
        )

