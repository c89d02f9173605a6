"""Which phase the caller is in, and what the spans of others see of our phases.

With a separate provider of the user's, OpenTelemetry's current span is the user's own, so the innermost phase has a key
of its own; and as another tracer's runtime context drops all keys, a ``ContextVar``. What others see depends on who
reads a span's identity, a tracer, a propagator or a log record, which only the frames of the callers tell.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import lru_cache
from typing import Any, Final

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import INVALID_SPAN, INVALID_SPAN_CONTEXT, SpanContext
from opentelemetry.util import types

from otel_goodput._recording import plain
from otel_goodput._runtime.guard import guarded

# Who asks: a log record or a measurement, which only notes the identity; a tracer or a processor of the recorder's
# provider; a tracer of another provider; a propagator, or code of the user's.
_NOTE, _OURS, _THEIRS, _OTHER = range(4)
_DEPTH: Final = 24  # frames looked at
# Whether somebody has asked for the identity of a span, or set anything on it. RESERVED: nobody has, but the span is
# exported, and its trace has room for it.
UNTOUCHED, TOUCHED, RESERVED = range(3)
# By the module of a frame, and modules inside it. The innermost of these frames decides.
_MODULES: Final = {
    "logging": _NOTE,
    "structlog": _NOTE,
    "loguru": _NOTE,
    "opentelemetry._logs": _NOTE,
    "opentelemetry.sdk._logs": _NOTE,
    "opentelemetry.sdk.metrics": _NOTE,  # whether an exemplar is kept
    "opentelemetry.instrumentation.logging": _NOTE,
    "opentelemetry.propagate": _OTHER,
    "opentelemetry.propagators": _OTHER,
    "opentelemetry.trace.propagation": _OTHER,
    "otel_goodput._recording.emitter": _OURS,
}
_SDK: Final = "opentelemetry.sdk.trace"


@lru_cache(maxsize=4096)
def _by_module(name: str) -> int | None:
    while name:
        if name in _MODULES:
            return _MODULES[name]
        name = name.rpartition(".")[0]
    return None


def _requester(resource: Resource) -> int:
    """Return who asks the caller's caller; `resource` is that of the recorder's provider, and of its tracers."""
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        name = frame.f_globals.get("__name__")
        if name == _SDK and frame.f_code.co_name == "start_span":
            tracer = frame.f_locals.get("self")
            return _OURS if getattr(tracer, "resource", None) is resource else _THEIRS
        who = _by_module(name) if type(name) is str else None
        if who is not None:
            return who
        if frame.f_back is None:
            break
        frame = frame.f_back
    return _OTHER


# The key under which a context holds its span. Using it directly saves set_span_in_context()'s copy of the context.
(SPAN_KEY,) = trace_api.set_span_in_context(INVALID_SPAN, context_api.Context())
PHASE_KEY = context_api.create_key("otel-goodput-phase")  # the innermost phase in a context
_current = context_api.get_current


def runtime_context() -> tuple[Callable[[], context_api.Context], Callable[[context_api.Context], object]]:
    """Return ``get_current`` and ``attach`` of the runtime context in use.

    Those of the API go through two functions in Python, which a loop notices that runs 10,000 times a second. They are
    those of the API if another runtime context is in use, or if the API keeps its context elsewhere one day.
    """
    try:
        runtime = context_api._RUNTIME_CONTEXT
        if type(runtime) is ContextVarsRuntimeContext:
            variable: ContextVar[context_api.Context] = runtime._current_context
            return variable.get, variable.set
    except AttributeError:
        pass
    return context_api.get_current, context_api.attach


class Nested(trace_api.Span):
    """The span of a phase, which knows what it is in.

    Its identity is only shown to others (:meth:`get_span_context`) if it is exported. Whether it is, is decided at the
    first request, or at its end if there is none before.
    """

    within: context_api.Context = context_api.Context()  # that was current when it was opened
    outer: Nested | None = None  # the phase that the caller was in when it was opened
    _shown: SpanContext | None = None
    touched: int = UNTOUCHED
    _line: Any  # records it

    @property
    def nesting(self) -> Nesting:
        nesting: Nesting = self._line.nesting
        return nesting

    @property
    @abstractmethod
    def identity(self) -> SpanContext:
        """Its identity, whether or not it is exported. Reading it decides nothing."""

    @property
    @abstractmethod
    def sampled(self) -> bool:
        """Whether it is exported whatever happens in it."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it has ended, or has not begun."""

    def claim(self) -> bool:
        """Return whether it is exported; while it is open, it is if there is room for it and for the phases around."""
        if self.sampled:
            return True
        around = self.around
        if self.closed or self._line.closed or (isinstance(around, Nested) and not around.claim()):
            return False
        return self._claim()

    @abstractmethod
    def _claim(self) -> bool: ...

    @abstractmethod
    def enclosing(self) -> SpanContext:
        """Return what is shown in place of its identity if it is not exported: that of the span around it."""

    @property
    def around(self) -> trace_api.Span:
        """The span that it was opened in: a phase, or a span of the user's that is exported with ours."""
        return self.nesting.around(self.within, self.outer)

    def shown(self) -> SpanContext:
        """Return the identity that others see; the same at every call."""
        if self._shown is None:
            self._shown = self.identity if self.claim() else self.enclosing()
            self.touched = TOUCHED
        return self._shown

    def get_span_context(self) -> SpanContext:
        return self.nesting.answer(self)

    @property
    def context(self) -> SpanContext:
        return self.get_span_context()

    @guarded(None)
    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        more = {"exception.escaped": str(escaped is True), **plain.attributes(attributes)}
        self.add_event("exception", {**plain.described(exception), **more}, timestamp)


PHASE: ContextVar[Nested | None] = ContextVar("otel_goodput_phase", default=None)
"""The innermost phase of the caller, of those that are noted here: a step inside a phase is in the context only."""


def current_span() -> trace_api.Span:
    """Same as ``opentelemetry.trace.get_current_span()``, but faster."""
    span: trace_api.Span = _current().get(SPAN_KEY, INVALID_SPAN)  # type: ignore[assignment]
    return span


def innermost() -> Nested | None:
    """Return the innermost phase of any recorder that the caller is in, which may have ended; None if it is in none."""
    context = _current()
    span = context.get(SPAN_KEY)
    return span if isinstance(span, Nested) else _noted(context)


def _noted(context: context_api.Context) -> Nested | None:
    phase: Nested | None = context.get(PHASE_KEY)  # type: ignore[assignment]
    return PHASE.get() if phase is None else phase


def leave(phase: Nested) -> None:
    """Restore ``PHASE``, because `phase` has ended."""
    if PHASE.get() is phase:
        PHASE.set(opened(phase.outer))


def detach(token: Token[context_api.Context]) -> None:
    """Restore OpenTelemetry's context as it was when a phase was entered, perhaps in another context than this one.

    Where tasks or the threads of a pool ask for the items of ``steps()``, there is nothing to restore here, and
    ``context.detach()`` would log a traceback.
    """
    known: object = token  # another runtime context may give something else
    if isinstance(known, Token):
        try:  # suppress() costs more than all the rest
            known.var.reset(known)
        except (ValueError, RuntimeError):
            pass
    else:
        context_api.detach(token)


def identity(span: trace_api.Span) -> SpanContext:
    """Return the identity of `span`, which decides nothing about a phase."""
    return span.identity if isinstance(span, Nested) else span.get_span_context()


def opened(phase: Nested | None) -> Nested | None:
    """Return `phase`, or if it has ended the nearest around it that has not."""
    while phase is not None and phase.closed:
        phase = phase.outer
    return phase


class Place:
    """Where a phase is opened; the same for all phases that are opened in one context.

    Attributes:
        context: None if it does not have a phase: the new one is the outermost, or the runtime context keeps no keys.
        span: its current span, if there is one.
        phase: the innermost phase.
        covered: the phase becomes the current span.
    """

    __slots__ = ("context", "covered", "phase", "span")

    def __init__(
        self,
        context: context_api.Context | None = None,
        span: trace_api.Span | None = None,
        phase: Nested | None = None,
        covered: bool = True,
    ) -> None:
        self.context, self.span, self.phase, self.covered = context, span, phase, covered


class Nesting:
    """How the phases of one recorder and the spans of others are nested.

    `resource` is that of the recorder's provider, which is the user's own if `shared`; `ours` returns whether a trace
    (by id) is one of the attempt's.
    """

    def __init__(self, resource: Resource, *, shared: bool, ours: Callable[[int], bool]) -> None:
        self._resource = resource
        self.shared = shared
        self._ours = ours
        self._separate = False if shared else None

    @property
    def separate(self) -> bool:
        """Whether OpenTelemetry's global provider is one of the user's, and phases are recorded with another one."""
        if self._separate is None:
            provider = trace_api.get_tracer_provider()
            if isinstance(provider, trace_api.ProxyTracerProvider):
                return False  # none is set yet
            nothing = isinstance(provider, trace_api.NoOpTracerProvider)
            self._separate = not nothing and getattr(provider, "resource", None) is not self._resource
        return self._separate

    def foreign(self, span: trace_api.Span) -> bool:
        """Whether `span`, which is not a phase of a recorder, goes to a separate provider of the user's."""
        if self.shared:
            return False
        resource = getattr(span, "resource", None)
        if resource is not None:
            return resource is not self._resource
        if not self.separate:
            return False
        context = span.get_span_context()
        return context.is_valid and not self._ours(context.trace_id)

    def place(self, context: context_api.Context) -> Place:
        """Return what is opened in `context`, the current one, needs to know of it."""
        span: trace_api.Span | None = context.get(SPAN_KEY)  # type: ignore[assignment]
        return Place(context if PHASE_KEY in context else None, span, opened(_noted(context)), self.covers(span))

    def covers(self, span: trace_api.Span | None) -> bool:
        """Whether a phase that is opened in `span` becomes the current span."""
        return self.shared or span is None or isinstance(span, Nested) or not self.foreign(span)

    def enter(self, phase: Nested, span: trace_api.Span) -> context_api.Context:
        """Return the context inside `phase`, in which `span` is current unless a span of a separate provider is."""
        if self.covers(current_span()):
            return context_api.set_value(PHASE_KEY, phase, trace_api.set_span_in_context(span))
        return context_api.set_value(PHASE_KEY, phase)

    def here(self) -> trace_api.Span:
        context = _current()
        return self.around(context, _noted(context))

    def around(self, within: context_api.Context, outer: Nested | None) -> trace_api.Span:
        """Return the span around what is opened in the context `within` and in the phase `outer`.

        It is the current one, but for the spans of a separate provider, and for those that are not exported.
        """
        span: trace_api.Span = within.get(SPAN_KEY, INVALID_SPAN)  # type: ignore[assignment]
        while isinstance(span, Nested):
            if not span.closed or span.sampled:
                return span
            span = span.around  # its context was kept beyond its end, and it is not exported
        foreign = self.foreign(span)
        outer = opened(outer)
        if outer is not None and (foreign or not span.is_recording()):
            context = span.get_span_context()
            if foreign or not context.is_valid or self._ours(context.trace_id):
                return outer
        return INVALID_SPAN if foreign else span

    def answer(self, phase: Nested) -> SpanContext:
        """Return the identity of `phase` that is shown to whoever asks the caller for it."""
        if self.shared and phase.sampled:
            return phase.shown()
        who = _requester(self._resource)
        if who is _NOTE:
            return phase.identity
        if not self.shared and (who is _THEIRS or (who is _OTHER and self.separate)):
            return self._theirs(phase)
        return phase.shown()

    def _theirs(self, phase: Nested) -> SpanContext:
        """Return the identity of the user's span around `phase`; an invalid one if there is none."""
        span: trace_api.Span = phase
        while isinstance(span, Nested):
            span = trace_api.get_current_span(span.within)
        context = span.get_span_context()
        theirs = getattr(span, "resource", None) is not self._resource and not self._ours(context.trace_id)
        return context if theirs else INVALID_SPAN_CONTEXT
