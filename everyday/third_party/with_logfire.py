"""Logfire around the steps and inside them: on its provider, in its own tree, and in ours."""

import sys

import logfire
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_goodput as goodput
from everyday import chores
from everyday.witness import witness

memory = InMemorySpanExporter()
logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[SimpleSpanProcessor(memory)])
shared = sys.argv[1] == "shared"
goodput.configure("logfire", **({"tracer_provider": trace.get_tracer_provider()} if shared else {}))
with witness.life(), goodput.job():
    with goodput.training_prep():
        chores.prepare()
    for step, batch in goodput.steps(chores.Batches(120)):
        with logfire.span("train {step}", step=step), goodput.part("forward"):
            chores.train(batch)
            logfire.info("trained")
print(goodput.report())
goodput.shutdown()
spans = memory.get_finished_spans()
names = [span.name for span in spans]
known = {span.context.span_id for span in spans}
assert names.count("train {step}") == names.count("trained") == 120
assert names.count("step") == names.count("forward") == (120 if shared else 0)
assert all(span.parent is None or span.parent.span_id in known for span in spans), "every parent arrived"
