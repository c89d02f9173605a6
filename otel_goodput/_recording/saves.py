"""Checkpoint saves: phases that may end before their checkpoint is durable."""

from __future__ import annotations

import operator

from opentelemetry import trace as trace_api

from otel_goodput._recording.contexts import PhaseContext
from otel_goodput._recording.departure import clean_exit
from otel_goodput._recording.phase_span import PhaseSpan
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain
from otel_goodput.semconv import GOODPUT_CHECKPOINT_DURABLE


class SaveContext(PhaseContext):
    """The context manager of a checkpoint save; yields a :class:`Save`."""

    __slots__ = ()

    def _begin(self, tracer: PhaseTracer, start: int) -> trace_api.Span:
        span = super()._begin(tracer, start)
        line = tracer.line
        if line.admission.budget.detailed and span.get_span_context().span_id not in line.admission.left_out:
            line.thinner.cut()
        span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, bool(self._arguments["durable"]))
        blocking, label = tracer.blocks(None), self._arguments.get("step")
        line.saves(None if label is None else operator.index(label), blocking=blocking)
        step = line.spans.step if blocking else None
        if step is not None:
            step.saved = step.touched = True
        return span

    def _finish(self, tracer: PhaseTracer, span: trace_api.Span, error: BaseException | None) -> None:
        if error is not None and not clean_exit(error):
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)

    def _phase_span(self, tracer: PhaseTracer | None, span: trace_api.Span) -> PhaseSpan:
        return Save(tracer, span)

    def _yielded(self, phase: PhaseSpan) -> trace_api.Span:
        return phase


class Save(PhaseSpan):
    """The span of a checkpoint save; :meth:`durable` marks the checkpoint as durable."""

    def __init__(self, tracer: PhaseTracer | None, span: trace_api.Span) -> None:
        super().__init__(None if tracer is None else tracer.line, span)
        self._tracer = tracer

    def durable(self) -> None:
        """Mark the checkpoint as safely stored: the steps it covers are no longer at risk.

        Needed only after ``checkpoint_save(step, durable=False)``, for saves that continue in the background.
        """
        try:
            if self.is_recording():
                self.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
            elif self._tracer is not None:
                self._tracer.account.durable(self.identity.span_id, self._tracer.clock())
        except Exception as error:
            contain("checkpoint durable", error)
