"""The context managers of phases: each starts a span and ends it; as a decorator, at every call of the function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from opcode import opname
from threading import get_ident
from time import perf_counter_ns
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._accounting.rules import PHASE_INDEX
from otel_goodput._recording import misuse, plain
from otel_goodput._recording.decorators import F, decorate
from otel_goodput._recording.departure import clean_exit
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.nesting import PHASE, TOUCHED, Nested, current_span, innermost, leave
from otel_goodput._recording.plain import error_name
from otel_goodput._recording.short_span import alive
from otel_goodput._recording.tracer import Find, PhaseSpan, PhaseTracer, Save
from otel_goodput._runtime.guard import contain, unrecorded
from otel_goodput.errors import PhaseError
from otel_goodput.semconv import REASONS, Phase, Reason

# The instructions that enter a `with` statement in Python 3.10 to 3.14; after these, `__exit__` is sure to be called.
_WITH = frozenset({"SETUP_WITH", "BEFORE_WITH", "LOAD_SPECIAL"})


class Entry:
    """One entry into a phase, which began at `start` (ns).

    Attributes:
        span: its span; None before it is started.
        in_with: opened by a ``with`` statement, which holds the context manager until it is left.
    """

    __slots__ = ("_phase", "_thread", "_token", "_within", "in_with", "span", "start", "tracer")

    def __init__(self, tracer: PhaseTracer, start: int, opener: FrameType) -> None:
        self.tracer = tracer
        self.start = start
        self.span: trace_api.Span | None = None
        self.in_with = opname[opener.f_code.co_code[opener.f_lasti]] in _WITH
        self._thread = get_ident()
        self._within: context_api.Context | None = None
        self._phase: Nested | None = None
        self._token: Any = None

    @property
    def here(self) -> bool:
        return self._thread == get_ident()

    @property
    def current(self) -> bool:
        return self._phase is not None and innermost() is self._phase

    def attach(self, phase: Nested, shown: trace_api.Span) -> None:
        """Enter `phase`, whose span others see as `shown`."""
        context = self.tracer.nesting.enter(phase, shown)
        self._within, self._phase = context_api.get_current(), phase
        PHASE.set(phase)
        self._token = context_api.attach(context)

    def detach(self) -> None:
        token, self._token = self._token, None
        if token is not None and self.here:
            context_api.detach(token)
        if self._phase is not None:
            leave(self._phase)

    def mend(self, error: BaseException | None = None) -> None:
        """After an interrupt, or if the phase was never closed: end the span and restore the previous context."""
        try:
            span = self.span or self.tracer.spans.begun_at(self.start)
            if span is not None and span is not self.tracer.jobs.implicit:  # begun for the phase, at the same moment
                if self.here and self._within is not None and current_span() in (span, self._phase):
                    context_api.attach(alive(self._within))
                if self._phase is not None:
                    leave(self._phase)
                self._token = None
                if span.is_recording():
                    if error is not None:
                        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                    span.end(self.tracer.clock())
                # The end may have been interrupted after the span ended, but before it was recorded.
                if isinstance(span, ReadableSpan):
                    self.tracer.processor.on_end(span)
        except Exception as trouble:
            contain("phase end", trouble)


def enclosing(phase: str) -> trace_api.Span | None:
    """Return the open save or restore (`phase`) around the caller, the SDK's span; None if there is none."""
    nested = innermost()
    while nested is not None:
        if isinstance(nested, PhaseSpan) and _is_open(nested.span, phase):
            return nested.span
        nested = nested.outer
    span = trace_api.get_current_span()  # a user's own span may be a phase by its attribute
    return span if _is_open(span, phase) else None


def _is_open(span: trace_api.Span, phase: str) -> bool:
    attributes = getattr(span, "attributes", None) or {}
    return bool(attributes.get(semconv.GOODPUT_PHASE) == phase) and span.is_recording()


def _elastic_kind(value: object, phase: str) -> str:
    kind = plain.text(value)
    if kind not in semconv.ELASTIC_WAITS:
        kinds = ", ".join(semconv.ELASTIC_WAITS)
        raise PhaseError(phase, f"{phase}(): kind must be one of {kinds}, not {plain.quoted(value)}")
    return kind


def _number(value: object, phase: str) -> int | None:
    return None if value is None and phase != Phase.STEP else plain.numbered(value, phase)


# How each argument is read, once, when the function is called: nothing of the user's is kept.
_READ: Final[dict[str, Callable[[object, str], Any]]] = {
    "start_time": plain.moment,
    "end_time": plain.moment,
    "blocking": lambda value, phase: plain.flag(value, "blocking", None),
    "durable": lambda value, phase: plain.flag(value, "durable", True),
    "name": lambda value, phase: (_elastic_kind if phase == Phase.ELASTIC_WAIT else plain.name)(value, phase),
    "step": _number,
}


class PhaseContext:
    """One phase: ``with phase as span:``, or a decorator that opens a new one at every call.

    The tracer is looked up on entry, so that decorators may be applied before ``configure()``.
    """

    __slots__ = ("_arguments", "_entries", "_find", "_phase", "_wrong")

    _kind: ClassVar[type[PhaseSpan]] = PhaseSpan  # what others see of its span

    def __init__(self, find: Find, phase: str, **arguments: Any) -> None:
        self._entries: list[Entry] = []
        self._find = find
        self._phase = phase
        self._wrong: PhaseError | None = None  # why it is not recorded
        self._arguments: dict[str, Any] = {}
        for name, value in arguments.items():
            try:
                self._arguments[name] = _READ[name](value, phase)
            except PhaseError as error:
                self._wrong = self._wrong or error

    def __enter__(self) -> Any:
        begin = perf_counter_ns()
        tracer = entry = None
        try:
            tracer = self._find()
            if tracer is not None:
                start = self._arguments.get("start_time")
                tracer.leave_lapsed()
                entry = Entry(tracer, start or tracer.clock(), sys._getframe(1))
                in_job = self._phase not in (Phase.EXCLUSION, Phase.JOB)
                if in_job and tracer.jobs.none_yet and tracer.blocks(self._arguments.get("blocking")):
                    tracer.jobs.begin_implicit(entry.start)
                if self._wrong is not None:
                    raise self._wrong
                self._entries.append(entry)
                entry.span = span = self._begin(tracer, entry.start)
                phase = self._kind(tracer, span)
                shared = tracer.nesting.shared
                entry.attach(phase, span if shared else phase)
                # With a provider of the user's, the `with` statement binds their own kind of span.
                return span if self._kind is not Save and (shared or phase.closed) else phase
        except Exception as error:
            self._forget(entry)
            unrecorded("phase start", error)
        except BaseException as error:
            self._forget(entry, error)
            raise
        finally:
            if tracer is not None:
                tracer.add_overhead(perf_counter_ns() - begin)
        return UNRECORDED if self._kind is Save else INVALID_SPAN

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entry = self._entered()
        if entry is None:
            return
        begin = perf_counter_ns()
        try:
            self._leave(entry, kind, error)
            entry.detach()
            self._entries.remove(entry)
        except Exception as trouble:
            self._forget(entry)
            contain("phase end", trouble)
        except BaseException as interrupt:
            self._forget(entry, error or interrupt)
            raise
        finally:
            entry.tracer.add_overhead(perf_counter_ns() - begin)

    def until(self, end: int) -> None:
        """Have the phase end at `end` (ns) when it is left."""
        self._arguments["end_time"] = end

    def _entered(self) -> Entry | None:
        """Return the entry that is left: whose span is current, else the latest of this thread, else the latest."""
        entries = self._entries
        if not entries:
            return None
        inner = entries[::-1]
        here = next((entry for entry in inner if entry.here), inner[0])
        return next((entry for entry in inner if entry.current), here)

    def _leave(self, entry: Entry, kind: type[BaseException] | None, error: BaseException | None) -> None:
        tracer, span = entry.tracer, entry.span
        if span is None or not span.is_recording():  # a shutdown has ended it
            return
        if kind is not None and error is not None and not clean_exit(error):
            if isinstance(error, Exception):
                span.add_event("exception", plain.described(error))
            span.set_attribute(semconv.ERROR_TYPE, error_name(kind))
            span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {plain.message(error)}"))
        if not entry.here:
            tracer.misused.warn(misuse.ELSEWHERE, phase=self._phase)
        if not tracer.closed:
            self._finish(tracer, span, error)
        end, start = self._arguments.get("end_time"), getattr(span, "start_time", None)
        if end is None:
            end = tracer.clock()
        elif start is not None and end < start:
            end = tracer.check_end(start, end)
        span.end(end)

    def _forget(self, entry: Entry | None, error: BaseException | None = None) -> None:
        """Close and remove an entry whose begin or end was interrupted."""
        if entry is not None:
            entry.mend(error)
            if entry in self._entries:
                self._entries.remove(entry)

    def __del__(self) -> None:
        # A `with` statement holds its context manager until __exit__ has run. An entry that is still open here means
        # that an interrupt came before __exit__ did anything.
        for entry in reversed(self._entries):
            if entry.in_with:
                entry.mend(KeyboardInterrupt())

    def _begin(self, tracer: PhaseTracer, start: int) -> trace_api.Span:
        arguments = self._arguments
        phase = name = self._phase
        attributes: dict[str, types.AttributeValue] = {semconv.GOODPUT_PHASE: phase}
        if phase == Phase.CUSTOM:
            attributes[semconv.GOODPUT_CUSTOM_NAME] = name = arguments["name"]
        elif phase == Phase.ELASTIC_WAIT:
            attributes[semconv.GOODPUT_ELASTIC_KIND] = arguments["name"]
        if arguments.get("step") is not None:
            attributes[semconv.GOODPUT_STEP] = arguments["step"]
        blocking = arguments.get("blocking")
        if blocking is not None or not tracer.blocks(None):
            # Also when the user did not say: a trace does not show which thread it was.
            attributes[semconv.GOODPUT_BLOCKING] = bool(blocking)
        return tracer.start_span(name, attributes, start)

    def _finish(self, tracer: PhaseTracer, span: trace_api.Span, error: BaseException | None) -> None:
        """Do what is due just before the span ends."""

    def __call__(self, function: F) -> F:
        return decorate(self._again, function)

    def _again(self) -> PhaseContext:
        twin = type(self)(self._find, self._phase)
        twin._arguments, twin._wrong = self._arguments, self._wrong
        return twin


class RestoreContext(PhaseContext):
    """A checkpoint restore: steps are numbered on from the last one that the checkpoint stands for."""

    __slots__ = ()

    def _finish(self, tracer: PhaseTracer, span: trace_api.Span, error: BaseException | None) -> None:
        if error is None and self._arguments.get("blocking") is not False:
            tracer.restored(self._arguments.get("step"))


class SaveContext(PhaseContext):
    """The context manager of a checkpoint save; yields a :class:`Save`."""

    __slots__ = ()

    _kind = Save

    def _begin(self, tracer: PhaseTracer, start: int) -> trace_api.Span:
        span = super()._begin(tracer, start)
        admission = tracer.admission
        if admission.budget.detailed and span.get_span_context().span_id not in admission.left_out:
            tracer.thinner.cut()
        span.set_attribute(semconv.GOODPUT_CHECKPOINT_DURABLE, bool(self._arguments["durable"]))
        tracer.saves(self._arguments.get("step"))
        step = tracer.spans.step if tracer.blocks(None) else None
        if step is not None:
            step.saved, step.touched = True, TOUCHED
        return span

    def _finish(self, tracer: PhaseTracer, span: trace_api.Span, error: BaseException | None) -> None:
        if error is not None and not clean_exit(error):
            span.set_attribute(semconv.GOODPUT_CHECKPOINT_DURABLE, False)


class JobContext(PhaseContext):
    """The job: a whole attempt."""

    _used = False

    def __enter__(self) -> Any:
        self._used = True
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        tracer = self._find()
        if tracer is not None:
            tracer.end_job(error if error is not None and not clean_exit(error) else None)

    def __call__(self, function: F) -> F:
        self._used = True
        return super().__call__(function)

    def __del__(self) -> None:
        super().__del__()
        tracer = self._find() if not self._used else None
        if tracer is not None:
            tracer.misused.warn(misuse.NEVER_ENTERED)

    def _begin(self, tracer: PhaseTracer, start: int) -> trace_api.Span:
        tracer.hooks.before_phase()  # the first thing in a job may be a restore, which is no phase yet
        return tracer.jobs.take_over() or tracer.jobs.start(start)

    def _finish(self, tracer: PhaseTracer, span: trace_api.Span, error: BaseException | None) -> None:
        tracer.end_inner(left=error is None or clean_exit(error))
        if isinstance(error, KeyboardInterrupt):
            tracer.account.notice(REASONS.index(Reason.SIGNAL), tracer.clock())


class Unrecorded(trace_api.NonRecordingSpan):
    """Replaces the span of a step or of a save where there is none; has all the methods of theirs."""

    span: Final = INVALID_SPAN

    def observe(self, output: object) -> None:
        """Do nothing, same as :meth:`FastSpan.observe` without a device clock."""

    def durable(self) -> None:
        """Do nothing, same as :meth:`Save.durable` where nothing records."""


_OF_FAST_SPANS: Final = ("name", "step", "blocking", "start_time", "end_time")
UNRECORDED: Final = Unrecorded(trace_api.INVALID_SPAN_CONTEXT)


class FastContext(PhaseContext):
    """A step, part or load off the fast path: made before ``configure()``, with times, or with arguments to check."""

    __slots__ = ("_spans",)

    def __init__(self, find: Find, phase: str, **arguments: Any) -> None:
        super().__init__(find, phase, **arguments)
        self._spans: list[FastSpan] = []

    def __enter__(self) -> Any:
        arguments = self._arguments
        try:
            tracer = self._find()
            if tracer is None:
                return UNRECORDED
            if self._wrong is not None:
                raise self._wrong
            span = FastSpan.of(tracer, PHASE_INDEX[self._phase], *map(arguments.get, _OF_FAST_SPANS))
        except Exception as error:
            unrecorded("phase start", error)
            return UNRECORDED
        self._spans.append(span)
        return span.__enter__()

    def until(self, end: int) -> None:
        super().until(end)
        for span in self._spans:
            span.until(end)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        spans = self._spans
        if spans:
            current = innermost()
            span = next((span for span in spans if span is current), spans[-1])
            spans.remove(span)
            span.__exit__(kind, error, traceback)
