"""Phases as context managers and decorators: what they yield, record, and do about exceptions.

Longer than other files: it goes through the phases, and what each does about the same exceptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from recorded import NS, Recording, attributes, identity, parent, sum_ns, trace_of

import otel_goodput as goodput
from otel_goodput.semconv import SCOPE_NAME

PHASES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "accelerator_init": goodput.accelerator_init,
    "training_prep": goodput.training_prep,
    "data_loading": goodput.data_loading,
    "step": lambda: goodput.step(7),
    "checkpoint_save": lambda: goodput.checkpoint_save(7),
    "checkpoint_restore": lambda: goodput.checkpoint_restore(7),
    "custom": lambda: goodput.custom("eval"),
    "elastic_wait": lambda: goodput.elastic_wait("slice_down"),
    "elastic_reinit": goodput.elastic_reinit,
    "exclusion": goodput.exclusion,
}
CATEGORY = {"step": "productive", "elastic_wait": "elastic_slice_down", "elastic_reinit": "elastic_reinitialization"}


@pytest.mark.parametrize("phase", PHASES)
def test_span_of_a_phase(phase: str, recording: Recording) -> None:
    with goodput.job(), PHASES[phase]() as span:
        assert trace.get_current_span().get_span_context() == span.get_span_context()
        assert span.is_recording()
        span.set_attribute("mine", 1)
        span.add_event("happened", {"a": "b"})
    assert not span.is_recording()
    job = recording.span("job")
    done = recording.span("eval" if phase == "custom" else phase)
    assert parent(done) == identity(job) and trace_of(done) == trace_of(job)
    assert done.kind is SpanKind.INTERNAL
    assert done.instrumentation_scope is not None and done.instrumentation_scope.name == SCOPE_NAME == "otel_goodput"
    assert done.resource.attributes["service.name"] == "line"
    assert attributes(done)["goodput.phase"] == phase
    assert attributes(done)["mine"] == 1
    assert [(event.name, dict(event.attributes or {})) for event in done.events] == [("happened", {"a": "b"})]
    assert done.status.status_code is StatusCode.UNSET
    assert "goodput.blocking" not in attributes(done), "only where it differs from the default"
    if phase in ("step", "checkpoint_save", "checkpoint_restore"):
        assert attributes(done)["goodput.step"] == 7
    if phase == "custom":
        assert attributes(done)["goodput.custom.name"] == "eval"
    if phase == "elastic_wait":
        assert attributes(done)["goodput.elastic.kind"] == "slice_down"


@pytest.mark.parametrize("phase", PHASES)
def test_time_of_a_phase(phase: str, recording: Recording, base: int) -> None:
    times = {"start_time": base + 2 * NS, "end_time": base + 5 * NS}
    make = {
        "step": lambda: goodput.step(7, **times),
        "checkpoint_save": lambda: goodput.checkpoint_save(7, **times),
        "checkpoint_restore": lambda: goodput.checkpoint_restore(7, **times),
        "custom": lambda: goodput.custom("eval", **times),
        "elastic_wait": lambda: goodput.elastic_wait("slice_down", **times),
    }.get(phase, lambda: getattr(goodput, phase)(**times))
    with goodput.job(start_time=base, end_time=base + 10 * NS), make():
        pass
    done = recording.span("eval" if phase == "custom" else phase)
    assert (done.start_time, done.end_time) == (base + 2 * NS, base + 5 * NS)
    for report in (recording.report(), recording.report_on_disk()):
        if phase == "exclusion":
            assert report["excluded_s"] == 3.0 and report["seconds"] == {"other": 7.0}
        elif phase == "custom":
            assert report["seconds"] == {"other": 7.0, "custom": {"eval": 3.0}}
        else:
            assert report["seconds"] == {"other": 7.0, CATEGORY.get(phase, phase): 3.0}


@pytest.mark.parametrize("phase", PHASES)
def test_exceptions_propagate_and_are_recorded(phase: str, recording: Recording) -> None:
    class LostDeviceError(RuntimeError):
        pass

    error = LostDeviceError("chip 3")
    with pytest.raises(LostDeviceError) as caught, goodput.job(), PHASES[phase]():
        raise error
    assert caught.value is error
    name = f"{__name__}.test_exceptions_propagate_and_are_recorded.<locals>.LostDeviceError"
    for done in recording.spans():
        assert done.status.status_code is StatusCode.ERROR
        assert done.status.description == "LostDeviceError: chip 3"
        assert attributes(done)["error.type"] == name
        (event,) = done.events
        assert event.name == "exception" and event.attributes is not None
        assert event.attributes["exception.type"] == name and event.attributes["exception.message"] == "chip 3"
        assert "chip 3" in str(event.attributes["exception.stacktrace"])
    assert len(recording.spans()) == 2
    assert trace.get_current_span() is trace.INVALID_SPAN
    if phase == "step":
        assert attributes(recording.span("step"))["goodput.step.completed"] is False
        assert recording.report()["steps"] == {"executed": 0, "kept": 0, "lost": 1}


@pytest.mark.parametrize(
    ("error", "failure"), [(KeyboardInterrupt("now"), "KeyboardInterrupt: now"), (SystemExit(0), None)], ids=repr
)
@pytest.mark.parametrize("phase", PHASES)
def test_all_phases_tell_an_interrupt_from_a_clean_exit(
    phase: str, error: BaseException, failure: str | None, recording: Recording
) -> None:
    with contextlib.suppress(KeyboardInterrupt, SystemExit), goodput.job(), PHASES[phase]():
        raise error
    for done in recording.spans():
        assert (done.status.status_code is StatusCode.ERROR) == (failure is not None)
        assert done.status.description == failure and not done.events
        assert ("error.type" in attributes(done)) == (failure is not None)
    assert len(recording.spans()) == 2


@pytest.mark.parametrize("phase", PHASES)
def test_decorator(phase: str, recording: Recording) -> None:
    @PHASES[phase]()  # type: ignore[operator]
    def work(a: int, *, b: int) -> tuple[int, int, int]:
        """What it does."""
        return a, b, trace.get_current_span().get_span_context().span_id

    assert (work.__name__, work.__doc__) == ("work", "What it does.")
    with goodput.job():
        results = [work(1, b=2), work(3, b=4)]
    spans = recording.spans("eval" if phase == "custom" else phase)
    assert [(result[0], result[1]) for result in results] == [(1, 2), (3, 4)]
    assert [result[2] for result in results] == [identity(span) for span in spans], "a new span at every call"
    assert all(attributes(span)["goodput.phase"] == phase for span in spans)


@pytest.mark.parametrize("phase", PHASES)
def test_decorator_applied_before_configure(phase: str, record: Callable[[], Recording]) -> None:
    @PHASES[phase]()  # type: ignore[operator]
    def work() -> int:
        return 5

    assert work() == 5
    recording = record()
    with goodput.job():
        assert work() == 5
    assert len(recording.spans("eval" if phase == "custom" else phase)) == 1


@pytest.mark.parametrize("phase", ["custom", "data_loading", "step"])
def test_decorator_follows_the_recorder(phase: str, record: Callable[..., Recording]) -> None:
    """What was decorated under one recorder records to the next one once that is configured."""
    first = record()

    @PHASES[phase]()  # type: ignore[operator]
    def work() -> None:
        pass

    goodput.shutdown()
    events = len(first.events())
    work()
    assert len(first.events()) == events, "nothing is recorded between the two"
    second = record(run_id="second")
    with goodput.job():
        work()
    assert len(first.events()) == events
    assert len(second.spans("eval" if phase == "custom" else phase)) == 1


def test_decorated_coroutine(recording: Recording) -> None:
    inside = asyncio.Event()

    @goodput.custom("eval")
    async def evaluate(value: int) -> int:
        inside.set()
        await asyncio.sleep(0)
        return value + trace.get_current_span().is_recording()

    async def main() -> None:
        assert asyncio.iscoroutinefunction(evaluate)
        task = asyncio.create_task(evaluate(41))
        await inside.wait()
        assert not recording.spans("eval"), "it is still running"
        assert not trace.get_current_span().is_recording(), "and current only in its own task"
        assert await task == 42

    asyncio.run(main())
    assert recording.span("eval").status.status_code is StatusCode.UNSET


def test_decorated_coroutine_that_fails(recording: Recording) -> None:
    @goodput.data_loading()
    async def fetch() -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        asyncio.run(fetch())
    assert attributes(recording.span("data_loading"))["error.type"] == "ConnectionError"


def test_decorated_generator(recording: Recording) -> None:
    @goodput.custom("warm-up")
    def generate(count: int) -> Iterator[int]:
        sent = 0
        for number in range(count):
            sent = (yield number) or sent
        return sent

    assert not recording.spans()
    generator = generate(3)
    assert next(generator) == 0
    assert not recording.spans("warm-up"), "it is still running"
    assert generator.send(9) == 1 and next(generator) == 2
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == 9
    assert recording.span("warm-up").status.status_code is StatusCode.UNSET
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_decorated_generator_that_is_closed_has_not_failed(recording: Recording) -> None:
    @goodput.custom("warm-up")
    def generate() -> Iterator[int]:
        yield from range(9)

    for number in generate():
        if number == 3:
            break
    assert recording.span("warm-up").status.status_code is StatusCode.UNSET
    assert "error.type" not in attributes(recording.span("warm-up"))


def test_decorated_async_generator(recording: Recording) -> None:
    @goodput.custom("stream")
    async def stream() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    async def main() -> None:
        numbers = []
        async for number in stream():
            assert not recording.spans("stream"), "it is still running"
            numbers.append(number)
        assert numbers == [0, 1, 2]

    asyncio.run(main())
    assert recording.span("stream").status.status_code is StatusCode.UNSET


def test_traced_coroutines_and_generators_are_steps_until_they_end(recording: Recording) -> None:
    def open_steps() -> int:
        tracer = recording.recorder.tracer
        assert tracer is not None
        return len(tracer.spans.short)

    @goodput.traced_step
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return open_steps()

    @goodput.traced_step
    def generator() -> Generator[int, None, None]:
        yield open_steps()

    @goodput.traced_step
    async def generated() -> AsyncGenerator[int, None]:
        yield open_steps()

    async def main() -> list[int]:
        return [await coroutine(), *generator(), *[each async for each in generated()]]

    with goodput.job():
        assert asyncio.run(main()) == [1, 1, 1]
    assert [attributes(span)["goodput.step"] for span in recording.spans("step")] == [0, 1, 2]
    assert recording.report()["steps"]["kept"] == 3


def test_decorated_method_and_recursion(recording: Recording) -> None:
    class Trainer:
        @goodput.custom("eval")
        def evaluate(self, depth: int) -> int:
            return 1 if depth == 0 else 1 + self.evaluate(depth - 1)

    assert Trainer().evaluate(3) == 4
    spans = recording.spans("eval")
    assert len(spans) == 4
    assert [parent(span) for span in spans[:-1]] == [identity(span) for span in spans[1:]]


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_may_be_used_again(phase: str, recording: Recording, base: int) -> None:
    """One object, entered twice one after the other: two intervals of their own."""
    again = PHASES[phase]()
    with goodput.job():
        with again:
            pass
        with goodput.custom("between"):
            pass
        with again:
            pass
    between = recording.span("between")
    first, second = recording.spans("eval" if phase == "custom" else phase)
    assert first.end_time is not None and second.start_time is not None
    assert between.start_time is not None and between.end_time is not None
    assert first.end_time <= between.start_time <= between.end_time <= second.start_time
    assert identity(first) != identity(second)
    assert len(first.events) == len(second.events) == 0


def test_whatever_is_open_in_the_main_thread_blocks_and_what_is_not_does_not(recording: Recording, base: int) -> None:
    def prefetch() -> None:
        with goodput.data_loading(start_time=base + NS, end_time=base + 3 * NS):
            pass
        with goodput.custom("tidy", start_time=base + 3 * NS, end_time=base + 4 * NS):
            pass
        with goodput.custom("urgent", start_time=base + 4 * NS, end_time=base + 6 * NS, blocking=True):
            pass

    with goodput.job(start_time=base, end_time=base + 10 * NS):
        thread = threading.Thread(target=prefetch)
        thread.start()
        thread.join()
        with goodput.custom("aside", start_time=base + 6 * NS, end_time=base + 8 * NS, blocking=False):
            pass
    for report in (recording.report(), recording.report_on_disk()):
        assert report["seconds"] == {"other": 8.0, "custom": {"urgent": 2.0}}
        assert report["overlapped_data_loading_s"] == 2.0
    blocking = {span.name: attributes(span).get("goodput.blocking") for span in recording.spans()}
    assert blocking == {"data_loading": False, "tidy": False, "urgent": True, "aside": False, "job": None}


def test_the_thread_that_opens_the_job_is_the_one_that_blocks(recording: Recording, base: int) -> None:
    def train() -> None:
        with (
            goodput.job(start_time=base, end_time=base + 10 * NS),
            goodput.data_loading(start_time=base + NS, end_time=base + 3 * NS),
        ):
            pass

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert recording.report()["seconds"] == {"other": 8.0, "data_loading": 2.0}


def test_durability_of_a_save(recording: Recording) -> None:
    def at_risk() -> float:
        figure = recording.report()["at_risk_s"]
        assert isinstance(figure, float)
        return figure

    with goodput.job():
        for number in range(4):
            with goodput.step(number):
                pass
        before = at_risk()
        assert before > 0
        with goodput.checkpoint_save(3, durable=False) as save:
            pass
        assert attributes(recording.span("checkpoint_save"))["goodput.checkpoint.durable"] is False
        assert at_risk() == before
        with goodput.step(4):
            pass
        save.durable()
        last = recording.spans("step")[-1]
        assert last.start_time is not None and last.end_time is not None
        assert round(at_risk() * NS) == last.end_time - last.start_time, "what was done since the save began"
        with goodput.checkpoint_save(4, durable=False) as save:
            save.durable()
        assert at_risk() == 0.0
        with goodput.step(5):
            pass
        with goodput.checkpoint_save(5):
            assert at_risk() > 0
        assert at_risk() == 0.0
    assert [attributes(span)["goodput.checkpoint.durable"] for span in recording.spans("checkpoint_save")] == [
        False,
        True,
        True,
    ]
    assert recording.report_on_disk()["at_risk_s"] == 0.0


def test_a_failed_save_saves_nothing(recording: Recording, base: int) -> None:
    with goodput.job():
        with goodput.step(0):
            pass
        with pytest.raises(OSError, match="disk"), goodput.checkpoint_save(0):
            raise OSError("disk")
        report = recording.report()
    assert report["at_risk_s"] > 0
    assert sum_ns(report) == round(report["elapsed_s"] * NS)
