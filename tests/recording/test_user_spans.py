"""Spans of the user's own inside steps and phases that are not exported: they arrive, and their parents do.

Longer than other files: all of them ask the same of different spans: that they and their parents arrive.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from exported import Spans
from opentelemetry import context, propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from recorded import attributes, identity, orphans, trace_of

from otel_goodput import Recorder

STEPS = 250  # after the first hundred, one in a hundred is exported


@dataclass
class Job:
    """A recorder, a tracer of the user's, and where the spans of the two go."""

    recorder: Recorder
    tracer: trace.Tracer
    ours: Spans
    theirs: Spans

    def user_spans(self) -> list[Any]:
        return [span for span in self.theirs.all() if span.name == "user"]


Make = Callable[..., Job]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    recorders: list[Recorder] = []

    def job(provider: str, **options: Any) -> Job:
        ours, theirs = Spans(), Spans()
        if provider == "ours":
            theirs = ours
            options["span_processors"] = [ours.processor]
        own = TracerProvider(shutdown_on_exit=False)
        own.add_span_processor(theirs.processor)
        if provider == "shared":
            ours = theirs
            options["tracer_provider"] = own
        if provider == "separate":
            options["span_processors"] = [ours.processor]
        recorder = Recorder("job", directory=tmp_path, exporters="none", integrations="none", **options)
        recorders.append(recorder)
        used = own if provider == "separate" else recorder.tracer_provider
        return Job(recorder, used.get_tracer("user"), ours, theirs)

    yield job
    for each in recorders:
        each.shutdown()


def requests_of(job: Job) -> list[int]:
    """The exported steps, but those that are sampled, and those that a busy machine made slow."""
    steps = [attributes(span) for span in job.ours.named("step")]
    numbers = [each["goodput.step"] for each in steps if not each.get("goodput.step.outlier")]
    return [number for number in numbers if number >= 100 and number % 100]


PROVIDERS = pytest.mark.parametrize("provider", ["ours", "shared", "separate"])


@PROVIDERS
@pytest.mark.parametrize("where", ["step", "part", "load", "phase", "part in a phase"])
def test_every_span_arrives_and_its_parent_does(provider: str, where: str, make: Make) -> None:
    job = make(provider)
    recorder = job.recorder
    inside: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "step": nullcontext,
        "part": lambda: recorder.part("forward"),
        "load": lambda: recorder.data_loading(),
        "phase": lambda: recorder.custom("eval"),
        "part in a phase": lambda: recorder.custom("eval"),
    }
    with recorder.job():
        for _ in recorder.steps(range(STEPS)):
            with inside[where]():
                within = recorder.part("batch") if where == "part in a phase" else nullcontext()
                with within, job.tracer.start_as_current_span("user"):
                    pass
    recorder.shutdown()
    assert len(job.user_spans()) == STEPS
    assert not orphans(job.theirs.all()) and not orphans(job.ours.all())
    if provider == "separate":
        assert all(span.parent is None for span in job.user_spans())


@PROVIDERS
def test_a_trace_that_is_full(provider: str, make: Make) -> None:
    """Then what is inside hangs on the span around the step."""
    job = make(provider, trace_spans=120, step_sampling=10_000)
    with job.recorder.job():
        for number, _ in job.recorder.steps(range(STEPS)):
            if number % 2:
                with job.tracer.start_as_current_span("user"):
                    pass
            else:
                outer, user = (job.tracer.start_as_current_span(name) for name in ("outer", "user"))
                with outer, job.recorder.part("x"), user:
                    pass
    job.recorder.shutdown()
    assert len(job.user_spans()) == STEPS
    assert not orphans(job.theirs.all()) and not orphans(job.ours.all())
    assert len([span for span in job.ours.all() if span.name not in ("user", "outer")]) <= 120


@PROVIDERS
def test_a_step_in_a_span_of_the_users(provider: str, make: Make) -> None:
    job = make(provider, trace_spans=120, step_sampling=10_000)
    with job.recorder.job():
        for _ in job.recorder.steps(range(STEPS)):
            pass
        for number in range(STEPS, 2 * STEPS):
            with job.tracer.start_as_current_span("epoch") as epoch, job.recorder.step(number):
                if provider == "separate":
                    assert trace.get_current_span() is epoch
                with job.tracer.start_as_current_span("user") as user:
                    user.set_attribute("epoch", epoch.get_span_context().span_id)
    job.recorder.shutdown()
    assert len(job.user_spans()) == STEPS
    assert not orphans(job.theirs.all()) and not orphans(job.ours.all())
    around = [span.parent.span_id == attributes(span)["epoch"] for span in job.user_spans()]
    assert all(around) if provider == "separate" else any(around), "with no room for the step, the span around it"


@pytest.mark.parametrize("provider", ["ours", "shared"])
def test_requests_sent_from_steps_carry_a_span_that_arrives(provider: str, make: Make) -> None:
    job, sent = make(provider), []
    with job.recorder.job():
        for _ in job.recorder.steps(range(STEPS)):
            headers: dict[str, str] = {}
            propagate.inject(headers)
            sent.append(headers["traceparent"].split("-")[1:])
    arrived = {(f"{trace_of(span):032x}", f"{identity(span):016x}") for span in job.ours.all()}
    assert {flags for *_, flags in sent} == {"01"}
    assert {(trace_id, span_id) for trace_id, span_id, _ in sent} <= arrived


def test_a_step_nobody_asks_for_is_not_exported(make: Make) -> None:
    job = make("ours")
    with job.recorder.job():
        for _ in job.recorder.steps(range(STEPS)):
            trace.get_current_span().set_attribute("loss", 1.0)
    assert not requests_of(job)


class Correlating(logging.Handler):
    """As OpenTelemetry's logging instrumentation: reads the identity of the current span for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        context = trace.get_current_span().get_span_context()
        self.seen.append((context.trace_id, context.span_id))


@PROVIDERS
def test_log_records_and_measurements_correlate_and_export_nothing(provider: str, make: Make) -> None:
    job, handler = make(provider), Correlating()
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    histogram = meters.get_meter("user").create_histogram("user.batch")
    logger = logging.getLogger("user.training")
    logger.addHandler(handler)
    try:
        with job.recorder.job():
            for number, _ in job.recorder.steps(range(STEPS)):
                logger.warning("step %d", number)
                histogram.record(number)
    finally:
        logger.removeHandler(handler)
        meters.shutdown()
    assert not requests_of(job)
    assert {trace_id for trace_id, _ in handler.seen} == {trace_of(job.ours.named("job")[0])}
    assert len({span_id for _, span_id in handler.seen}) == STEPS
    for span in job.ours.named("step"):
        assert handler.seen[attributes(span)["goodput.step"]][1] == identity(span)


@pytest.mark.parametrize("provider", ["ours", "shared"])
def test_a_handler_that_opens_spans_is_no_log_record(provider: str, make: Make) -> None:
    job = make(provider)

    class Sending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with job.tracer.start_as_current_span("user"):
                pass

    handler, logger = Sending(), logging.getLogger("user.sending")
    logger.addHandler(handler)
    try:
        with job.recorder.job():
            for number, _ in job.recorder.steps(range(STEPS)):
                logger.warning("step %d", number)
    finally:
        logger.removeHandler(handler)
    assert len(job.user_spans()) == STEPS and not orphans(job.theirs.all())


@PROVIDERS
def test_what_goes_on_after_the_step_whose_context_it_has(provider: str, make: Make) -> None:
    """Threads and asyncio tasks: the step has ended, and will not be exported any more."""
    job = make(provider)

    def work() -> None:
        with job.tracer.start_as_current_span("user"), job.recorder.part("late"):
            pass

    async def late(gate: asyncio.Event) -> None:
        await gate.wait()
        work()

    async def train() -> None:
        gate, tasks = asyncio.Event(), []
        for number in range(150, STEPS):
            with job.recorder.step(number):
                tasks.append(asyncio.create_task(late(gate)))
        gate.set()
        await asyncio.gather(*tasks)

    captured: list[contextvars.Context] = []
    attached: list[context.Context] = []
    with job.recorder.job():
        for number, _ in job.recorder.steps(range(150)):
            if number >= 100:
                captured.append(contextvars.copy_context())
                attached.append(context.get_current())
        asyncio.run(train())

        def run() -> None:
            for each in captured:
                each.run(work)
            for other in attached:
                token = context.attach(other)
                work()
                context.detach(token)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    job.recorder.shutdown()
    assert len(job.user_spans()) == 200
    assert not orphans(job.theirs.all()) and not orphans(job.ours.all())


def test_an_identity_stays_the_same(make: Make) -> None:
    job = make("ours", trace_spans=100, step_sampling=10_000)
    seen: list[list[object]] = []
    with job.recorder.job():
        for number in range(300):
            with job.recorder.step(number) as step, job.recorder.custom("eval", blocking=False) as phase:
                before = step.get_span_context(), phase.get_span_context()
                with job.recorder.checkpoint_save(number) if number == 299 else nullcontext():
                    pass
                again = step.get_span_context(), phase.get_span_context()
            after = step.get_span_context(), phase.get_span_context()
            seen.append([before, again, after])
    assert all(before == again == after for before, again, after in seen)


SEPARATE = """
import sys
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, SamplingResult, Decision

sampled = []
class Root(Sampler):
    def should_sample(self, parent_context, trace_id, name, *arguments, **more):
        sampled.append(name)
        return SamplingResult(Decision.DROP if name == "dropped" else Decision.RECORD_AND_SAMPLE)
    def get_description(self):
        return "root"

memory = InMemorySpanExporter()
theirs = TracerProvider(sampler=ParentBased(Root()))
theirs.add_span_processor(SimpleSpanProcessor(memory))
when = sys.argv[1]
if when == "before":
    trace.set_tracer_provider(theirs)
import otel_goodput as goodput
goodput.configure("separate", exporters="file", directory=sys.argv[2], integrations="none")
if when == "after":
    trace.set_tracer_provider(theirs)
tracer = trace.get_tracer("user")
with goodput.job():
    for step, _ in goodput.steps(range(150)):
        headers = {}
        propagate.inject(headers)
        assert not headers, headers
        trace.get_current_span().set_attribute("loss", step)  # nothing of theirs is current: the step's
        with tracer.start_as_current_span("root"):
            with goodput.custom("eval"), tracer.start_as_current_span("inner"):
                pass
    with tracer.start_as_current_span("dropped") as dropped:
        with goodput.step(150):
            assert trace.get_current_span() is dropped
            with tracer.start_as_current_span("never"):
                pass
    with tracer.start_as_current_span("epoch") as epoch:
        with goodput.step(151), goodput.part("forward"):
            trace.get_current_span().set_attribute("mine", True)
            headers = {}
            propagate.inject(headers)
            assert headers["traceparent"].split("-")[2] == f"{epoch.get_span_context().span_id:016x}"
goodput.shutdown()
spans = {span.context.span_id: span for span in memory.get_finished_spans()}
names = [span.name for span in spans.values()]
assert names.count("root") == names.count("inner") == 150 and names.count("epoch") == 1 and len(names) == 301, names
assert sampled == ["root"] * 150 + ["dropped", "epoch"], "their sampler decides about roots"
for span in spans.values():
    around = spans[span.parent.span_id].name if span.parent else None
    assert around == {"root": None, "inner": "root", "epoch": None}[span.name]
assert next(span for span in spans.values() if span.name == "epoch").attributes["mine"]
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_separate_global_provider(when: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SEPARATE, when, str(tmp_path)]
    done = warm.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_step_that_another_thread_has_ended_is_not_around_the_next_one(make: Make) -> None:
    job = make("ours")
    with job.recorder.job():
        for number, _ in job.recorder.steps(range(5)):
            with job.tracer.start_as_current_span("user"):
                pass
            if number == 2:
                step = trace.get_current_span()
                thread = threading.Thread(target=step.end)
                thread.start()
                thread.join()
    names = {identity(span): span.name for span in job.ours.all()}
    assert [names[span.parent.span_id] for span in job.ours.named("step") if span.parent] == ["job"] * 5
