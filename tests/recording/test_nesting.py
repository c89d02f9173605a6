"""Who is whose parent: nested phases, the user's spans, asyncio tasks, threads; and nothing gets lost among threads."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections import Counter

import pytest
from exported import Spans
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from recorded import NS, Recording, attributes, identity, orphans, parent, sum_ns, trace_of

import otel_goodput as goodput
from otel_goodput._accounting import events as ev


def test_nested_phases(recording: Recording) -> None:
    with goodput.job():
        with goodput.training_prep():
            with goodput.checkpoint_restore(3):
                pass
            with goodput.custom("warm-up"), goodput.custom("tokenize"):
                pass
        with goodput.step(4):
            with goodput.data_loading():
                pass
            with goodput.custom("eval"), goodput.data_loading():
                pass
        with goodput.data_loading():
            pass
    tree = {identity(span): span.name for span in recording.spans()}
    parents = [(span.name, tree.get(parent(span) or 0)) for span in recording.spans()]
    assert parents == [
        ("checkpoint_restore", "training_prep"),
        ("tokenize", "warm-up"),
        ("warm-up", "training_prep"),
        ("training_prep", "job"),
        ("data_loading", "step"),
        ("data_loading", "eval"),
        ("eval", "step"),
        ("step", "job"),
        ("data_loading", "job"),
        ("job", None),
    ]
    steps = [attributes(span).get("goodput.step") for span in recording.spans("data_loading")]
    assert steps == [4, 4, 5], "of the step that they are in, or else of the next one"
    assert attributes(recording.span("eval"))["goodput.step"] == 4
    assert len({trace_of(span) for span in recording.spans()}) == 1


def test_phases_before_any_job_belong_to_it_already(recording: Recording) -> None:
    with goodput.accelerator_init(), goodput.custom("probe"):
        pass
    with goodput.data_loading():
        pass
    with goodput.job():
        pass
    assert not orphans(recording.exported())
    assert {trace_of(span) for span in recording.spans()} == {trace_of(recording.span("job"))}
    assert parent(recording.span("data_loading")) == identity(recording.span("job"))


def test_spans_of_our_provider_nest_with_ours(recording: Recording) -> None:
    tracer = recording.recorder.tracer_provider.get_tracer("user")
    with tracer.start_as_current_span("main"), goodput.job():
        with goodput.step(0), tracer.start_as_current_span("forward"), goodput.custom("eval"):
            pass
        with goodput.step(1) as step, tracer.start_as_current_span("backward"):
            assert trace.get_current_span() is not step
    job, main = recording.span("job"), recording.span("main")
    assert parent(job) == identity(recording.root()), "the job's parent is the root of the attempt's trace"
    assert [link.context.span_id for link in job.links] == [identity(main)], "and linked to what is around it"
    steps = recording.spans("step")
    assert parent(recording.span("forward")) == identity(steps[0])
    assert parent(recording.span("eval")) == identity(recording.span("forward"))
    assert parent(recording.span("backward")) == identity(steps[1])


def test_spans_of_a_separate_provider_have_a_tree_of_their_own(recording: Recording) -> None:
    """The two go to different places, where the parents of the other tree never arrive."""
    own = Spans()
    provider = TracerProvider()
    provider.add_span_processor(own.processor)
    tracer = provider.get_tracer("user")
    with tracer.start_as_current_span("main") as main, goodput.job():
        with goodput.step(0), tracer.start_as_current_span("forward"), goodput.custom("eval"):
            assert trace.get_current_span().get_span_context() != main.get_span_context()
        with goodput.step(1):
            assert trace.get_current_span() is main
    with goodput.job() as job:
        with goodput.step(2) as step:
            assert trace.get_current_span() is step, "nothing of theirs is current"
            with tracer.start_as_current_span("alone"), goodput.custom("eval"), goodput.part("x"):
                pass
        assert trace.get_current_span() is job
    provider.shutdown()
    theirs = {identity(span): span.name for span in own.all()}
    assert {(span.name, theirs.get(parent(span) or 0)) for span in own.all()} == {
        ("main", None),
        ("forward", "main"),
        ("alone", None),
    }
    assert not orphans(own.all()) and not orphans(recording.exported())
    names = {identity(span): span.name for span in recording.exported()}
    tree = [(span.name, names.get(parent(span) or 0)) for span in recording.spans()]
    assert tree == [
        *[("eval", "step"), ("step", "job"), ("step", "job"), ("job", "attempt")],
        *[("x", "eval"), ("eval", "step"), ("step", "job"), ("job", "attempt")],
    ]
    assert [link.context.span_id for link in recording.spans("job")[0].links] == [
        identity(span) for span in own.named("main")
    ]


def test_the_context_is_the_same_after_as_before(recording: Recording) -> None:
    key = context.create_key("mine")
    token = context.attach(context.set_value(key, "kept"))
    before = context.get_current()
    with goodput.job(), goodput.step(0), goodput.data_loading(), goodput.custom("x"):
        assert context.get_value(key) == "kept"
    for _, _ in goodput.steps(range(3)):
        assert context.get_value(key) == "kept"
    assert context.get_current() is before
    context.detach(token)


def test_asking_a_span_for_its_identity_where_nothing_is_around_it(recording: Recording) -> None:
    """In a thread of its own, and before any job, no span is current: what opens is the job's child all the same."""
    seen: list[tuple[int, int]] = []

    def ask() -> None:
        for phase in (goodput.data_loading(), goodput.step(3), goodput.custom("x")):
            with phase:
                current = trace.get_current_span().get_span_context()
                seen.append((current.trace_id, current.span_id))

    thread = threading.Thread(target=contextvars.Context().run, args=(ask,))
    thread.start()
    thread.join()
    contextvars.Context().run(ask)
    with goodput.job():
        pass
    assert len(seen) == 6
    assert seen == [(trace_of(span), identity(span)) for span in recording.spans() if span.name != "job"]
    assert {parent(span) for span in recording.spans() if span.name != "job"} == {identity(recording.span("job"))}


def test_metrics_of_the_users_own_inside_a_phase_of_another_thread(recording: Recording) -> None:
    """A histogram asks the current span whether it is sampled, for its exemplars."""
    histogram = recording.recorder.meter_provider.get_meter("user").create_histogram("user.batch")

    def prefetch() -> None:
        with goodput.data_loading():
            histogram.record(5)

    thread = threading.Thread(target=contextvars.Context().run, args=(prefetch,))
    thread.start()
    thread.join()
    assert recording.metrics()["user.batch"].data.data_points[0].count == 1  # type: ignore[union-attr]


def test_asyncio_tasks_have_their_own_stacks(recording: Recording) -> None:
    async def evaluate(name: str, turns: int) -> None:
        with goodput.custom(name):
            for _ in range(turns):
                with goodput.data_loading() as load:
                    await asyncio.sleep(0)
                    assert trace.get_current_span() is load

    async def main() -> None:
        with goodput.step(0) as step:
            await asyncio.gather(*(evaluate(f"eval {number}", 3 + number) for number in range(5)))
            assert trace.get_current_span() is step

    with goodput.job():
        asyncio.run(main())
    step = recording.span("step")
    evals = {identity(span): span for span in recording.spans() if span.name.startswith("eval")}
    assert len(evals) == 5 and {parent(span) for span in evals.values()} == {identity(step)}
    loads = Counter(parent(span) for span in recording.spans("data_loading"))
    assert loads == {identity: 3 + int(span.name[-1]) for identity, span in evals.items()}
    report = recording.report()
    assert sum_ns(report) == round(report["elapsed_s"] * NS)


def test_a_task_that_is_cancelled_closes_what_it_opened(recording: Recording) -> None:
    async def main() -> None:
        opened = asyncio.Event()

        async def load() -> None:
            with goodput.data_loading(), goodput.custom("shard"):
                opened.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(load())
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [span.name for span in recording.spans()] == ["shard", "data_loading"]


def test_a_phase_may_be_closed_in_another_context(recording: Recording) -> None:
    """Opened in one task's context and closed in another's, as fixtures and callbacks do."""
    step, custom = goodput.step(0), goodput.custom("x")
    with goodput.job():
        other = contextvars.Context()
        for phase in (step, custom):
            other.run(phase.__enter__)
            phase.__exit__(None, None, None)
    assert [span.name for span in recording.spans()] == ["step", "x", "job"]
    assert trace.get_current_span() is trace.INVALID_SPAN


THREADS = 8
EACH = 400


def test_threads_at_once_lose_nothing(recording: Recording) -> None:
    """Eight threads open phases as fast as they can: all are in the ledger, the journal, the spans, the metrics."""
    gate = threading.Barrier(THREADS + 1)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        source = random.Random(number)
        try:
            gate.wait()
            for turn in range(EACH):
                with goodput.custom(f"work {number}", blocking=source.random() < 0.5):
                    if turn % 2:
                        with goodput.data_loading():
                            pass
        except BaseException as error:
            failures.append(error)
            raise

    with goodput.job():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        gate.wait()
        for step in range(EACH):
            with goodput.step(step):
                pass
        for thread in threads:
            thread.join()
    assert not failures
    goodput.flush()

    starts = Counter(event.phase for event in recording.events() if event.kind == ev.START)
    ends = Counter(event.key for event in recording.events() if event.kind == ev.END)
    names = Counter(event.name for event in recording.events() if event.kind == ev.START and event.name)
    assert names == {f"work {number}": EACH for number in range(THREADS)}
    assert starts.total() == THREADS * EACH * 3 // 2 + EACH + 1
    assert ends.total() == starts.total() and set(ends.values()) == {1}

    assert len({identity(span) for span in recording.spans()}) == len(recording.spans())
    loads = recording.spans("data_loading")
    assert not [span for span in loads if parent(span) == identity(recording.span("job"))]

    points = recording.metrics()["goodput.phase.duration"].data.data_points
    counts: Counter[str] = Counter()
    for point in points:
        assert point.attributes is not None
        counts[str(point.attributes["goodput.phase"])] += point.count  # type: ignore[union-attr]
    assert counts == {"custom": THREADS * EACH, "data_loading": THREADS * EACH // 2, "job": 1}

    for report in (recording.report(), recording.report_on_disk()):
        assert report["steps"] == {"executed": EACH, "kept": EACH, "lost": 0}
        assert sum_ns(report) == round(report["elapsed_s"] * NS)

    goodput.shutdown()
    spans = Counter(span.name for span in recording.spans() if span.name.startswith("work"))
    for summary in recording.spans("phases"):
        summed_up = attributes(summary)
        spans[str(summed_up["goodput.phases.name"])] += summed_up["goodput.phases.count"]
    assert {name: spans[name] for name in names} == names


def test_names_recorded_by_many_threads_at_once(recording: Recording) -> None:
    gate = threading.Barrier(THREADS)

    def work(number: int) -> None:
        gate.wait()
        for turn in range(50):
            with goodput.custom(f"shared {turn}"):
                pass
            with goodput.custom(f"naïve 名前 {number}.{turn} " + "long " * 20):
                pass

    with goodput.job():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = Counter(event.name for event in recording.events() if event.kind == ev.START and event.name)
    expected = {f"shared {turn}": THREADS for turn in range(50)}
    expected |= {f"naïve 名前 {number}.{turn} " + "long " * 20: 1 for number in range(THREADS) for turn in range(50)}
    assert names == {name.strip(): count for name, count in expected.items()}
