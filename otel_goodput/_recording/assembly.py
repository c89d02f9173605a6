"""Assembles the parts that record the phases of one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer

from otel_goodput._accounting.resuming import Past
from otel_goodput._journal.account import Account
from otel_goodput._recording.attempt_traces import AttemptTraces
from otel_goodput._recording.emitter import SpanEmitter
from otel_goodput._recording.hooks import Hooks
from otel_goodput._recording.ids import PrivateIdGenerator
from otel_goodput._recording.job_spans import JobSpans
from otel_goodput._recording.labels import CheckpointLabels
from otel_goodput._recording.misuse import Misuse
from otel_goodput._recording.nesting import Nesting
from otel_goodput._recording.open_spans import JobThread, OpenSpans
from otel_goodput._recording.sampling import Admission, StepSampler
from otel_goodput._recording.span_processor import PhaseSpanProcessor, PhaseSpans
from otel_goodput._recording.step_line import StepLine, StepPolicy
from otel_goodput._recording.trace_layout import Budget, TraceLayout, steps_in_a_trace
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import OWN


def assemble(
    config: Config,
    account: Account,
    past: Past,
    attempt: tuple[str, int],
    emitter: SpanEmitter,
    tracer: Tracer,
    other: Callable[[Sampler, Sequence[SpanProcessor]], Tracer],
    generator: PrivateIdGenerator,
    find: Callable[[], StepLine | None],
) -> PhaseTracer:
    """Return what records the phases of one job.

    Args:
        config: how steps are sampled, and which process this is.
        account: receives the records.
        past: what earlier attempts have done.
        attempt: id of the run, and number of the attempt.
        emitter: exports the spans that no tracer starts.
        tracer: of the provider in use; its spans reach the processor of the result.
        other: returns a tracer of a provider that has this sampler and these span processors.
        generator: generates span ids, also for `tracer` unless that is of a provider of the user's.
        find: returns what records now; None if nothing does.
    """
    shared, own = config.tracer_provider is not None, config.step_traces == OWN
    limit, process = config.trace_spans, config.process_index
    thread, hooks, misused = JobThread(), Hooks(), Misuse(account.notes)
    budget = Budget(limit, config.process_count, process, leads=config.leads)
    layout = TraceLayout(*attempt, steps_in_a_trace(limit, config.step_sampling), budget.group)
    admission = Admission(budget, layout)
    policy = StepPolicy(StepSampler(config.step_sampling), admission, own_traces=own)
    traces = AttemptTraces(account, emitter, budget, layout, process, own=own)
    nesting = Nesting(emitter.resource, shared=shared, ours=lambda trace: layout.number_of(trace) is not None)
    spans = OpenSpans(thread, admission, traces, nesting)
    processor = PhaseSpanProcessor(account, thread, hooks, traces, spans, emitter, None if shared else admission)
    starter = PhaseSpans(tracer, other, processor, spans, emitter)
    jobs = JobSpans(account, starter, None if shared else generator, traces, thread, misused)
    labels, new_key = CheckpointLabels(past), generator.new_span_id
    line = StepLine(account, hooks, policy, spans, emitter, jobs, misused, new_key, find, labels)
    return PhaseTracer(line, starter, processor)
