"""Which steps become spans: the first, one in N, what is slow, failed or holds something; the rest in summaries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from recorded import NS, Recording, attributes, identity, orphans, parent, trace_of

import otel_goodput as goodput

MS = 1_000_000
FIRST = 100


class Clock:
    """Tells steps of given lengths one after the other, from `base` on."""

    def __init__(self, base: int) -> None:
        self.now = base

    def times(self, length: int = 10 * MS, gap: int = 0) -> dict[str, int]:
        start = self.now + gap
        self.now = start + length
        return {"start_time": start, "end_time": self.now}

    def steps(self, first: int, count: int, length: int = 10 * MS) -> None:
        for number in range(first, first + count):
            with goodput.step(number, **self.times(length)):
                pass


@pytest.fixture
def clock(base: int) -> Clock:
    return Clock(base)


def exported(recording: Recording) -> list[int]:
    return [attributes(span)["goodput.step"] for span in recording.spans("step")]


def summaries(recording: Recording) -> list[dict[str, Any]]:
    return [attributes(span) for span in recording.spans("steps")]


def numbers_in(recording: Recording) -> int:
    return sum(summary["goodput.steps.count"] for summary in summaries(recording))


def test_the_first_hundred_then_one_in_a_hundred(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 1050)
    assert exported(recording) == [*range(FIRST), *range(100, 1050, 100)]
    goodput.shutdown()
    assert numbers_in(recording) == 1050 - FIRST - 10, "the others are in summaries"


@pytest.mark.parametrize(("every", "expected"), [(1, range(400)), (7, [*range(FIRST), *range(105, 400, 7)])])
def test_one_in_n(every: int, expected: range, record: Callable[..., Recording], clock: Clock) -> None:
    recording = record(step_sampling=every)
    with goodput.job():
        clock.steps(0, 400)
    goodput.shutdown()
    assert exported(recording) == [*expected]
    assert numbers_in(recording) == 400 - len(expected)


def test_the_first_hundred_of_every_attempt(record: Callable[..., Recording], clock: Clock) -> None:
    record()
    with goodput.job():
        clock.steps(0, 150)
    goodput.shutdown()
    recording = record()
    with goodput.job():
        clock.steps(150, 150)
    assert exported(recording) == list(range(150, 250))


def test_sampled_steps_have_their_children(recording: Recording) -> None:
    """Loads in and before a step, by hand and in the iterator, are exported exactly where their step is."""
    with goodput.job():
        for number in range(350):
            with goodput.step(number), goodput.data_loading():
                pass
        for _ in goodput.steps(range(300), start=350):
            pass
    steps = {attributes(span)["goodput.step"]: span for span in recording.spans("step")}
    loads: dict[int, ReadableSpan] = {}
    for span in recording.spans("data_loading"):
        loads.setdefault(attributes(span)["goodput.step"], span)
    assert {*range(FIRST), 100, 200, 300, 400, 500, 600} <= set(steps)
    slow = {number for number, span in steps.items() if attributes(span).get("goodput.step.outlier")}
    assert set(steps) - slow <= set(loads)
    for number, load in loads.items():
        if number < 350:
            assert parent(load) == identity(steps[number])
    assert not orphans(recording.exported())


def test_slow_steps_are_exported(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 300)
        clock.steps(300, 1, 100 * MS)
        clock.steps(301, 49)
        clock.steps(350, 1, 11 * MS)
        clock.steps(351, 20)
    goodput.shutdown()
    kept = [number for number in exported(recording) if number >= FIRST]
    assert kept == [100, 200, 300]
    assert outliers(recording) == [300]


def test_an_outlier_by_itself(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 333)
        clock.steps(333, 1, 50 * MS)
    (outlier,) = (span for span in recording.spans("step") if attributes(span).get("goodput.step.outlier"))
    assert attributes(outlier)["goodput.step"] == 333
    assert outlier.status.is_unset
    assert parent(outlier) == identity(recording.span("job"))


def outliers(recording: Recording) -> list[int]:
    spans = recording.spans("step")
    return sorted(attributes(span)["goodput.step"] for span in spans if attributes(span).get("goodput.step.outlier"))


def test_a_slow_step_among_the_first(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 9)
        clock.steps(9, 1, 100 * MS)
        clock.steps(10, 30)
    assert outliers(recording) == [9]


def test_steps_that_scatter_are_not_all_slow(recording: Recording, clock: Clock) -> None:
    """One in seven takes up to ten times as long as the others."""
    length = random.Random(1)
    with goodput.job():
        for number in range(20_000):
            slow = length.randrange(7) == 0
            took = 2 * MS + length.randrange(MS // 10) + (length.randrange(20 * MS) if slow else 0)
            with goodput.step(number, **clock.times(took)):
                pass
    assert 20 <= len(outliers(recording)) <= 5 * (1 + 20_000 // 1024)


def test_a_new_pace_is_not_slow_for_ever(recording: Recording, clock: Clock) -> None:
    """When all steps become slower, only the first of them stand out."""
    with goodput.job():
        clock.steps(0, 500, 10 * MS)
        clock.steps(500, 2000, 20 * MS)
    slow = outliers(recording)
    assert slow and max(slow) < 800


def test_noise_is_not_slow(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        for number in range(2000):
            with goodput.step(number, **clock.times(10 * MS + (number * 7919) % 2_000_000)):
                pass
    assert not outliers(recording)


@pytest.mark.parametrize("ending", ["exception", "break", "caught load"])
def test_failed_ones_are_exported(ending: str, recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 150)
        if ending == "exception":
            with pytest.raises(ValueError, match="nan"), goodput.step(150, **clock.times()):
                raise ValueError("nan")
        elif ending == "break":
            for _ in goodput.steps("ab", start=150):
                break
        else:
            # The load fails, the step copes with it.
            with goodput.step(150, **clock.times()):
                try:
                    with goodput.data_loading():
                        raise TimeoutError
                except TimeoutError:
                    pass
    assert 150 in exported(recording)
    step = recording.spans("step")[-1]
    if ending == "caught load":
        assert "goodput.step.completed" not in attributes(step)
        (load,) = recording.spans("data_loading")
        assert attributes(load)["error.type"] == "TimeoutError" and parent(load) == identity(step)
    else:
        assert attributes(step)["goodput.step.completed"] is False
    assert not orphans(recording.exported())


HOLDING: dict[str, Callable[[], Any]] = {
    "evaluation": lambda: goodput.custom("eval"),
    "save": lambda: goodput.checkpoint_save(150),
    "restore": lambda: goodput.checkpoint_restore(150),
    "reinit": goodput.elastic_reinit,
}


@pytest.mark.parametrize("what", HOLDING)
@pytest.mark.parametrize(
    "depth", ["at once", "within a load", "within a user's span", "within a user's span of another provider"]
)
def test_steps_that_hold_something_are_exported(what: str, depth: str, recording: Recording, clock: Clock) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    provider = recording.recorder.tracer_provider if depth == "within a user's span" else TracerProvider()
    tracer = provider.get_tracer("user")
    with goodput.job():
        clock.steps(0, 150)
        with goodput.step(150, **clock.times()):
            if depth == "at once":
                with HOLDING[what]():
                    pass
            elif depth == "within a load":
                with goodput.data_loading(), HOLDING[what]():
                    pass
            else:
                with tracer.start_as_current_span("forward"), HOLDING[what]():
                    pass
        clock.steps(151, 20)
    assert [number for number in exported(recording) if number >= FIRST] == [100, 150]
    step = recording.spans("step")[-1]
    assert step.context is not None and step.context.trace_flags.sampled
    ours = [span for span in recording.spans() if "goodput.phase" in attributes(span)]
    held = next(span for span in ours if attributes(span)["goodput.phase"] not in ("job", "step", "data_loading"))
    assert trace_of(held) == trace_of(step)
    assert not orphans(recording.exported())


def test_a_compilation_seen_by_a_span_keeps_its_step(recording: Recording, clock: Clock) -> None:
    tracer = recording.recorder.tracer_provider.get_tracer("compiler")
    with goodput.job():
        clock.steps(0, 150)
        with (
            goodput.step(150, **clock.times()),
            tracer.start_as_current_span(
                "compile", attributes={"goodput.phase": "compile", "goodput.compile.function": "train_step"}
            ),
        ):
            pass
    assert 150 in exported(recording)
    assert parent(recording.span("compile")) == identity(recording.spans("step")[-1])
    assert not orphans(recording.exported())


def test_summaries(recording: Recording, clock: Clock, base: int) -> None:
    with goodput.job(start_time=base, end_time=base + 100 * NS):
        lengths = [(10 + (number * 37) % 11) * MS for number in range(200)]
        for number, length in enumerate(lengths):
            with goodput.step(number, **clock.times(length)):
                pass
    lengths = lengths[101:]
    end = clock.now
    begin = end - sum(lengths)
    goodput.shutdown()
    (summary,) = recording.spans("steps")
    rising = sorted(lengths)
    assert attributes(summary) == {
        "goodput.steps.first": 101,
        "goodput.steps.last": 199,
        "goodput.steps.count": 99,
        "goodput.steps.duration.sum": sum(lengths),
        "goodput.steps.duration.min": rising[0],
        "goodput.steps.duration.median": rising[49],
        "goodput.steps.duration.p90": pytest.approx(rising[88], abs=MS),
        "goodput.steps.duration.max": rising[-1],
    }
    assert all(isinstance(value, int) for value in attributes(summary).values())
    assert (summary.start_time, summary.end_time) == (begin, end)
    assert parent(summary) == identity(recording.span("job"))
    assert "goodput.phase" not in attributes(summary), "it is no phase: nothing is accounted twice"


def test_a_summary_holds_a_thousand_steps_or_a_checkpoint_interval(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 400)
        with goodput.checkpoint_save(399, **clock.times()):
            pass
        clock.steps(400, 200)
        with goodput.checkpoint_save(599, **clock.times()):
            pass
        clock.steps(600, 3000)
    goodput.shutdown()
    exported_summaries = summaries(recording)
    ends = [(summary["goodput.steps.first"], summary["goodput.steps.last"]) for summary in exported_summaries]
    assert ends[:2] == [(101, 399), (401, 599)]
    assert all(summary["goodput.steps.count"] <= 1000 for summary in exported_summaries)
    assert numbers_in(recording) == 3600 - FIRST - 35
    assert len(exported_summaries) == 2 + 3
    assert len({identity(span) for span in recording.spans("steps")}) == 5


def test_summaries_come_while_the_job_is_running(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 1500)
        goodput.flush()
        assert len(summaries(recording)) == 1


def test_thinning_is_no_business_of_the_account(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 5000)
        report = recording.report()
    assert report["steps"] == {"executed": 5000, "kept": 5000, "lost": 0}
    assert len(recording.spans("step")) < 250
    assert recording.report_on_disk(at=clock.now)["steps"] == report["steps"]


def test_a_whole_day_stays_openable(recording: Recording, clock: Clock) -> None:
    with goodput.job():
        clock.steps(0, 30_000)
    goodput.shutdown()
    assert len(recording.spans()) < 100 + 300 + 30 + 5
    assert not orphans(recording.exported())
