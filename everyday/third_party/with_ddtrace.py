"""ddtrace as OpenTelemetry's provider and runtime context, which keeps the current span and nothing else."""

import os

os.environ |= {"DD_TRACE_OTEL_ENABLED": "true", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"}

from ddtrace.opentelemetry import TracerProvider
from ddtrace.trace import TraceFilter, tracer
from opentelemetry import trace

import otel_goodput as goodput
from everyday import chores
from everyday.witness import witness

seen = []


class Keep(TraceFilter):
    """Keeps what would be sent to an agent."""

    def process_trace(self, trace):
        seen.extend(trace)


tracer.configure(trace_processors=[Keep()])
trace.set_tracer_provider(TracerProvider())
mine = trace.get_tracer("mine")
goodput.configure("ddtrace")
with witness.life(), goodput.job():
    with goodput.training_prep():
        chores.prepare()
    for step, batch in goodput.steps(chores.Batches(120)):
        with mine.start_as_current_span("train"), goodput.part("forward"):
            chores.train(batch)
        if step % 40 == 39:
            with goodput.checkpoint_save(step):
                chores.save(step)
print(goodput.report())
goodput.shutdown()
known = {span.span_id for span in seen}
assert len(seen) == 120 and all(not span.parent_id or span.parent_id in known for span in seen)
