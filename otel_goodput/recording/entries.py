"""One opening of a phase: what it takes to end it, however far its begin or its end has got.

A Ctrl-C may come between any two instructions of ours. Whoever is interrupted calls :meth:`Entry.mend`, which leaves
nothing behind; where that was interrupted too, or never called, the context manager's end as an object does it.
"""

from __future__ import annotations

from opcode import opname
from threading import get_ident
from types import FrameType
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.trace import Status, StatusCode

from otel_goodput.guard import contain
from otel_goodput.recording.fast_span import alive, current_span
from otel_goodput.recording.tracer import PhaseTracer

# The instruction that enters a `with` statement, Python 3.10 to 3.14; there `__exit__` is sure to be called.
_WITH = frozenset({"SETUP_WITH", "BEFORE_WITH", "LOAD_SPECIAL"})


class Entry:
    """One opening.

    Attributes:
        tracer: what records.
        start: when it began, ns.
        span: its span, once it has one.
        thread: where it was opened.
        in_with: a ``with`` statement has opened it, and holds its context manager as long as it is open.
    """

    __slots__ = ("_token", "_within", "in_with", "span", "start", "thread", "tracer")

    def __init__(self, tracer: PhaseTracer, start: int, opener: FrameType) -> None:
        self.tracer = tracer
        self.start = start
        self.span: trace_api.Span | None = None
        self.thread = get_ident()
        self.in_with = opname[opener.f_code.co_code[opener.f_lasti]] in _WITH
        self._within: context_api.Context | None = None
        self._token: Any = None

    @property
    def here(self) -> bool:
        """Whether this is the thread that opened it."""
        return self.thread == get_ident()

    @property
    def current(self) -> bool:
        """Whether its span is the current one."""
        return self.span is not None and current_span() is self.span

    def attach(self, context: context_api.Context) -> None:
        """Make `context` the current one."""
        self._within = context_api.get_current()
        self._token = context_api.attach(context)

    def detach(self) -> None:
        """Go back to what was current before."""
        token, self._token = self._token, None
        if token is not None and self.here:
            context_api.detach(token)

    def mend(self, error: BaseException | None = None) -> None:
        """We were interrupted, or forgotten: end what is open, and go back to what was current before."""
        try:
            span = self.span or self.tracer.spans.begun_at(self.start)
            if span is not None:
                if self.here and self._within is not None and current_span() is span:
                    context_api.attach(alive(self._within))
                self._token = None
                if span.is_recording():
                    if error is not None:
                        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                    span.end(self.tracer.clock())
                # Its end may have got as far as the span, and no further.
                self.tracer.ensure_ended(span)
        except Exception as trouble:
            contain("phase end", trouble)
