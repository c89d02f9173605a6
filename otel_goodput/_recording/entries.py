"""One entry into a phase: the state needed to end it, even if its begin or its end was interrupted halfway.

A Ctrl-C may come between any two of our instructions. Code that is interrupted calls :meth:`Entry.mend`, which closes
everything. If that was interrupted too, or never called, the context manager's ``__del__`` calls it.
"""

from __future__ import annotations

from opcode import opname
from threading import get_ident
from types import FrameType
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.trace import Status, StatusCode

from otel_goodput._recording.fast_span import alive
from otel_goodput._recording.nesting import PHASE, Nested, current_span, innermost, leave
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain

# The instructions that enter a `with` statement in Python 3.10 to 3.14; after these, `__exit__` is sure to be called.
_WITH = frozenset({"SETUP_WITH", "BEFORE_WITH", "LOAD_SPECIAL"})


class Entry:
    """One entry into a phase.

    Attributes:
        tracer: records the phase.
        start: when it began, ns.
        span: its span; None before it is started.
        thread: id of the thread that opened it.
        in_with: opened by a ``with`` statement, which holds the context manager until it is left.
    """

    __slots__ = ("_phase", "_token", "_within", "in_with", "span", "start", "thread", "tracer")

    def __init__(self, tracer: PhaseTracer, start: int, opener: FrameType) -> None:
        self.tracer = tracer
        self.start = start
        self.span: trace_api.Span | None = None
        self.thread = get_ident()
        self.in_with = opname[opener.f_code.co_code[opener.f_lasti]] in _WITH
        self._within: context_api.Context | None = None
        self._phase: Nested | None = None
        self._token: Any = None

    @property
    def here(self) -> bool:
        """Whether this is the thread that opened it."""
        return self.thread == get_ident()

    @property
    def current(self) -> bool:
        """Whether it is the innermost phase of the caller."""
        return self._phase is not None and innermost() is self._phase

    def attach(self, phase: Nested, context: context_api.Context) -> None:
        """Make `context` the current one, inside `phase`."""
        self._within, self._phase = context_api.get_current(), phase
        PHASE.set(phase)
        self._token = context_api.attach(context)

    def detach(self) -> None:
        """Restore the context that was current before."""
        token, self._token = self._token, None
        if token is not None and self.here:
            context_api.detach(token)
        if self._phase is not None:
            leave(self._phase)

    def mend(self, error: BaseException | None = None) -> None:
        """After an interrupt, or if the phase was never closed: end the span and restore the previous context."""
        try:
            span = self.span or self.tracer.line.spans.begun_at(self.start)
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
                self.tracer.ensure_ended(span)
        except Exception as trouble:
            contain("phase end", trouble)
