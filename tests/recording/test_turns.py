"""The short way through a loop: fewer records, and the same account, spans and contexts as phase by phase."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from recorded import Record, Recording, attributes, identity, parent
from waits import until

import otel_goodput as goodput
from otel_goodput import testing
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory, runs
from otel_goodput._recording.trace_layout import steps_in_a_trace
from otel_goodput._timeline.recovery import restore
from otel_goodput._timeline.time_index import TimeIndex
from otel_goodput.reports.run import RecordedRun


def kinds(recording: Recording) -> list[int]:
    """The kinds of the records in the journal."""
    (segment,) = RunDirectory(recording.folder).segments(0)
    data = segment.contents()[0]
    return [data[at] for at in range(records.HEADER_SIZE, len(data), records.SIZE) if data[at]]


def test_a_turn_is_one_record(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(10)):
            pass
        before = len(kinds(recording))
        for _ in goodput.steps(range(1000), start=10):
            pass
    assert kinds(recording).count(records.TURN) >= 500, "until the first hundred, they are exported"
    assert len(kinds(recording)) - before <= 1000 + 2 * kinds(recording).count(records.STEPPING) + 10
    assert recording.report()["steps"] == {"executed": 1010, "kept": 1010, "lost": 0}


def walk(disturb: bool, sampling: int = 1) -> tuple[Any, list[Any]]:
    """The account and the spans of a loop by the short way, or with an annotation, which only the long way can open."""
    with testing.run(step_sampling=sampling) as run:
        line = run.recorder.tracer  # type: ignore[union-attr]
        with goodput.job():
            if disturb:
                line.hooks.profile(lambda name, step_num: threading.Lock())
            for step, seconds in goodput.steps(_batches(run), start=3):
                if step % 7 == 0:
                    goodput.current_step().set_attribute("loss", float(step))
                if step % 11 == 0:
                    with goodput.custom("log"):
                        run.advance(0.25)
                run.advance(seconds)
                if step == 150:
                    break
            for _ in goodput.steps(range(3)):
                run.advance(2)
    began = {identity(span): (span.name, span.start_time) for span in run.exported()}
    shown = [
        (
            span.name,
            {key: value for key, value in attributes(span).items() if key != "goodput.job.stopped"},
            span.start_time,
            span.end_time,
            len(span.links),
            None if span.parent is None else began.get(span.parent.span_id),
        )
        for span in run.exported()
    ]
    return run.report().to_json(), sorted(shown, key=repr)


def _batches(run: testing.Recording) -> Iterator[float]:
    for number in itertools.count():
        run.advance(0.125 if number % 5 else 0.0)
        if number == 40:
            with trace.get_tracer("theirs").start_as_current_span("download"):
                run.advance(1.5)
        if number % 13 == 5:
            with goodput.custom("decode"):
                run.advance(0.5)
        yield 1.0 if number % 60 else 9.0


@pytest.mark.parametrize("sampling", [1, 16])
def test_the_account_and_the_spans_are_those_of_the_long_way(sampling: int) -> None:
    assert walk(False, sampling) == walk(True, sampling)


def test_an_annotation_comes_into_use_in_the_midst_of_a_loop() -> None:
    annotated: list[int] = []
    with testing.run() as run:
        line = run.recorder.tracer  # type: ignore[union-attr]

        def annotate(_: str, step_num: int) -> contextlib.AbstractContextManager[None]:
            annotated.append(step_num)
            return contextlib.nullcontext()

        with goodput.job():
            for step, _ in goodput.steps(range(200)):
                run.advance(1)
                if step == 150:
                    line.hooks.profile(annotate)
    assert annotated == list(range(151, 200))


def test_a_task_keeps_the_step_in_which_it_was_made(recording: Recording) -> None:
    captured = {}
    tracer = recording.recorder.tracer_provider.get_tracer("theirs")
    with goodput.job():
        for step, _ in goodput.steps(range(12)):
            if step == 5:
                captured["step"] = contextvars.copy_context()
                shown = goodput.current_step().get_span_context()
            if step == 9:
                captured["step"].run(lambda: tracer.start_span("late").end())
                assert captured["step"].run(trace.get_current_span).get_span_context() == shown
    (late,) = recording.spans("late")
    assert parent(late) == shown.span_id == identity(recording.spans("step")[5])


@pytest.mark.parametrize("sampling", [1, 100])
def test_whoever_holds_a_step_keeps_that_step(record: Record, sampling: int) -> None:
    """Objects of undisturbed turns are used again, but none that somebody can still see."""
    recording = record(step_sampling=sampling)
    loads: dict[int, Any] = {}

    def batches() -> Iterator[int]:
        for number in range(400):
            if number % 50 == 5:
                loads[number] = trace.get_current_span()
            yield number

    spans: dict[int, Any] = {}
    inside: dict[int, contextvars.Context] = {}
    with goodput.job():
        for step, _ in goodput.steps(batches()):
            if step % 50 == 10:
                spans[step] = goodput.current_step()
            if step % 50 == 20:
                inside[step] = contextvars.copy_context()
            if step % 50 == 30:
                goodput.current_step().set_attribute("theirs", step)
            if step % 50 == 40:
                goodput.current_step().add_event("seen")
    assert {step: span.step for step, span in spans.items()} == {step: step for step in range(10, 400, 50)}
    assert all(span.closed for span in spans.values())
    if sampling == 1:
        kept = {(span.name, span.step, span.sampled) for span in loads.values()}
        assert kept == {("data_loading", step, True) for step in range(5, 400, 50)}
    seen: dict[int, Any] = {step: copied.run(trace.get_current_span) for step, copied in inside.items()}
    assert {step: span.step for step, span in seen.items()} == {step: step for step in range(20, 400, 50)}
    exported = {attributes(span)["goodput.step"]: span for span in recording.spans("step")}
    for step, span in exported.items():
        assert attributes(span).get("theirs") == (step if step % 50 == 30 else None)
        assert bool(span.events) == (step % 50 == 40)
    assert exported.keys() >= {30, 40, 80, 90}
    assert sampling > 1 or len(exported) == 400


def test_a_step_without_room_in_its_trace_leaves_nothing_to_the_next_trace() -> None:
    """A loop uses the span of a step that is not exported again, for steps of the next trace."""
    steps = steps_in_a_trace(200, 100)
    with testing.run(step_sampling=100, trace_spans=200) as run, goodput.job():
        for step, _ in goodput.steps(range(steps + 20)):
            run.advance(9 if step in (steps + 10, steps + 11) else 1)
    numbers = {
        attributes(one)["goodput.step"]: attributes(one).get("goodput.trace.number") for one in run.spans("step")
    }
    assert 99 not in numbers, "the first 100 steps are sampled, and there is no room for all"
    assert (numbers[steps + 10], numbers[steps + 11]) == (1, 1)


def test_a_load_keeps_the_identity_that_was_read(recording: Recording) -> None:
    spans = []

    def batches() -> Iterator[int]:
        for number in range(150):
            if number == 120:
                spans.append(trace.get_current_span())
                spans.append(spans[0].get_span_context())
            yield number

    with goodput.job():
        for step, _ in goodput.steps(batches()):
            if step == 120:
                assert goodput.current_step() is not spans[0]
                assert goodput.current_step().get_span_context() != spans[1]
    assert spans[0].get_span_context() == spans[1]
    assert spans[1].span_id in [identity(span) for span in recording.spans("data_loading")]


def leave_by_exhaustion() -> None:
    for _ in goodput.steps(range(5)):
        pass


def leave_by_break() -> None:
    for step, _ in goodput.steps(range(5)):
        if step == 3:
            break


def leave_by_return() -> None:
    for step, _ in goodput.steps(range(5)):
        if step == 3:
            return


def leave_by_exception() -> None:
    for step, _ in goodput.steps(range(5)):
        if step == 3:
            raise ZeroDivisionError


def leave_in_the_loader() -> None:
    for _ in goodput.steps(1 // (3 - number) for number in range(5)):
        pass


def leave_by_close() -> None:
    steps = goodput.steps(range(5))
    for step, _ in steps:
        if step == 3:
            steps.close()
            break


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_exhaustion,
        leave_by_break,
        leave_by_return,
        leave_by_exception,
        leave_in_the_loader,
        leave_by_close,
    ],
)
def test_the_context_that_was_found_is_restored(recording: Recording, leave: Any) -> None:
    with goodput.job():
        before = context.get_current()
        try:
            leave()
        except ZeroDivisionError:
            pass
        assert context.get_current() is before
        with goodput.custom("after"):
            pass
    assert [parent(span) for span in recording.spans("after")] == [identity(recording.span("job"))]
    outside = context.get_current()
    try:
        leave()  # without a job
    except ZeroDivisionError:
        pass
    assert context.get_current() is outside


def test_a_context_that_a_user_has_attached_stays_theirs(recording: Recording) -> None:
    with goodput.job():
        for step, _ in goodput.steps(range(8)):
            if step == 4:
                token = context.attach(context.set_value("theirs", 1))
            if step == 5:
                context.detach(token)
    assert [attributes(span)["goodput.step"] for span in recording.spans("step")] == list(range(8))
    assert recording.report()["steps"] == {"executed": 8, "kept": 8, "lost": 0}


def test_spans_reach_a_processor_in_the_background_and_in_order(recording: Recording) -> None:
    with goodput.job():
        for _ in goodput.steps(range(50)):
            pass
        with goodput.step(50):
            pass
        assert recording.recorder.flush()
    assert [attributes(span)["goodput.step"] for span in recording.spans("step")] == list(range(51))


class _Opens(SpanProcessor):
    """Opens a phase for each step that ends."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == "step":
            with goodput.custom("seen", blocking=False):
                pass


def test_a_processor_that_opens_phases_itself() -> None:
    with testing.run(span_processors=[_Opens()]) as run, goodput.job():
        for _ in goodput.steps(range(20)):
            run.advance(1)
    assert [attributes(span)["goodput.step"] for span in run.spans("step")] == list(range(20))
    assert len(run.spans("seen")) == 20


class _Hangs(SpanProcessor):
    """Does not return from the first span of a step until a test lets it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.reached = threading.Event()
        self.took: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == "step" and not self.reached.is_set():
            self.reached.set()
            self.go_on.wait(30)
        self.took.append(span.name)


def test_a_processor_that_hangs_in_the_background_holds_up_nobody(record: Record) -> None:
    hangs = _Hangs()
    run = record(span_processors=[hangs], step_sampling=1)
    with goodput.job():
        loop = goodput.steps(range(400))
        for step, _ in loop:
            if step == 200:
                assert hangs.reached.wait(30), "the background emits without being asked"
                for _ in range(50):
                    with goodput.custom("eval"):
                        pass
                assert "eval" not in hangs.took, "the background still has its first span"
                hangs.go_on.set()
    until(lambda: hangs.took.count("step") == 400)
    assert [attributes(span)["goodput.step"] for span in run.spans("step")] == list(range(400))
    assert hangs.took.count("step") == 400 and hangs.took.count("eval") == 50


@pytest.mark.parametrize("start", [2**31 - 150, 2**32 - 150])
def test_large_numbers(recording: Recording, start: int) -> None:
    """As of a loop that counts samples or tokens: all steps are kept, here and in the journal."""
    with goodput.job():
        for _ in goodput.steps(range(300), start=start):
            pass
    assert recording.report()["steps"] == {"executed": 300, "kept": 300, "lost": 0}
    assert recording.report_on_disk()["steps"] == recording.report()["steps"]


@pytest.mark.parametrize("recorded", [False, True])
def test_an_interrupt_while_a_load_becomes_a_step(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    line = recording.recorder.tracer  # type: ignore[union-attr]
    turn, interrupts = line.account.journal.turn, []

    def interrupted(*fields: int) -> None:
        if recorded or not interrupts:
            turn(*fields)
        if interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(line.account.journal, "turn", interrupted)
    with goodput.job():
        before = context.get_current()
        with pytest.raises(KeyboardInterrupt):
            for step, _ in goodput.steps(range(200)):
                if step == 150:
                    interrupts.append(KeyboardInterrupt())
        assert context.get_current() is before and not line.spans.short and line.spans.step is None
        recording.recorder.totals()
        assert [event.phase for event in line.account.ledger.opened] == [rules.JOB]
    assert step >= 150  # if one is slow, it is recorded otherwise, and the next one is interrupted
    assert recording.report()["steps"]["kept"] == step + 1


KILLED = """
import os, signal, sys
import otel_goodput as goodput

goodput.configure("killed", directory=sys.argv[1], run_id="run", exporters="none", integrations="none")

def batches(last):
    for number in range(last):
        yield number
    os.kill(os.getpid(), signal.SIGKILL)

with goodput.job():
    for step, _ in goodput.steps(batches(int(sys.argv[2]))):
        pass
"""


@pytest.mark.parametrize(
    "lasts",
    [
        *(pytest.param((last, last), id=f"{last}") for last in (1, 2, 150, 151)),
        pytest.param((records.CAPACITY + 200, 151), id="in the second segment", marks=pytest.mark.release),
    ],
)
def test_killed_in_a_data_load(tmp_path: Path, lasts: tuple[int, int]) -> None:
    """The step before it was complete, although its record is written after the load."""
    before = 0
    for last in lasts:
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(last)]
        assert warm.run(command, timeout=120).returncode == -signal.SIGKILL
        (run,) = runs(tmp_path)
        recorded = RecordedRun(run)
        report = recorded.report().to_json()
        assert report["steps"] == {"executed": before + last, "kept": last, "lost": before}
        totals = restore(run).ledger.totals(dead=True)
        assert totals.executed == before + last
        entries = TimeIndex(run).between(0, time.time_ns(), 10**6).parts[-1].records
        last_two = [(one.kind, one.phase, one.step) for one in entries if one.kind in (ev.START, ev.END)][-2:]
        assert last_two == [(ev.END, rules.STEP, last - 1), (ev.START, rules.DATA_LOADING, last)]
        before += last


def test_whatever_interrupts_a_load_comes_after_its_begin(recording: Recording) -> None:
    line = recording.recorder.tracer  # type: ignore[union-attr]
    during: list[list[int]] = []

    def batches() -> Iterator[int]:
        for number in range(200):
            if number == 150:
                with goodput.custom("index"):
                    pass
            elif number == 160:
                recording.recorder.totals()
            elif number == 170:
                other = threading.Thread(target=lambda: line.account.slice_counts(1, 1, 1, line.clock()))
                other.start()
                other.join()
            if number in (150, 160, 170):
                during.append(kinds(recording))
            yield number

    with goodput.job():
        for _ in goodput.steps(batches()):
            pass
    custom, totals, others = during
    begun = [kind for kind in custom if kind in (records.TURN, records.LOADING, ev.START)]
    assert begun[-3:] == [records.TURN, records.LOADING, ev.START]
    assert totals[-1] == records.LOADING and others[-2:] == [records.LOADING, ev.SLICES]
    assert recording.report()["steps"] == {"executed": 200, "kept": 200, "lost": 0}
    assert recording.report_on_disk()["steps"] == recording.report()["steps"]
