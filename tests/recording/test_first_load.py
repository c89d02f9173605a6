"""The number of a load that comes before the first step after a restore, or a restart: that of the step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.trace import StatusCode
from recorded import Recording, attributes, orphans, parent, trace_of

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules

# The arguments of checkpoint_restore(), if it is called.
RESTORES: dict[str, tuple[int, ...] | None] = {
    "nothing": None, "no number": (), "the step saved": (149,), "the step to go on with": (150,),
}  # fmt: skip


def numbers(recording: Recording) -> list[tuple[str, int | None]]:
    spans = [span for span in recording.spans() if span.name in ("data_loading", "step")]
    return [(span.name, attributes(span).get("goodput.step")) for span in spans]


@pytest.mark.parametrize("restored", RESTORES)
@pytest.mark.parametrize("traces", ["shared", "own"])
def test_it_says_the_step_that_follows(restored: str, traces: str, record: Callable[..., Recording]) -> None:
    recording = record(step_traces=traces)
    if RESTORES[restored] is None:
        goodput.shutdown()
        recording = record(step_traces=traces)  # another attempt: training goes on somewhere
    with goodput.job():
        restored_step = RESTORES[restored]
        if restored_step is not None:
            with goodput.checkpoint_restore(*restored_step):
                pass
        for number in (150, 151):
            with goodput.data_loading():
                pass
            with goodput.step(number):
                pass
    assert numbers(recording) == [("data_loading", 150), ("step", 150), ("data_loading", 151), ("step", 151)]
    load, step = recording.spans("data_loading")[0], recording.spans("step")[0]
    assert (trace_of(load) == trace_of(step)) and not orphans(recording.exported())


def test_a_loader_of_its_own(recording: Recording) -> None:
    with goodput.job():
        with goodput.checkpoint_restore():
            pass
        for number, _ in enumerate(goodput.loading(range(2)), 150):
            with goodput.step(number):
                pass
    assert numbers(recording)[:4] == [("data_loading", 150), ("step", 150), ("data_loading", 151), ("step", 151)]


def test_what_is_inside_of_it_hangs_below_it(record: Callable[..., Recording]) -> None:
    recording = record(step_traces="own")
    with goodput.job():
        with goodput.checkpoint_restore():
            pass
        with goodput.data_loading(), goodput.custom("tokenize"):
            pass
        with goodput.step(150):
            pass
    load, tokens = recording.span("data_loading"), recording.span("tokenize")
    assert attributes(load)["goodput.step"] == 150
    assert load.context is not None and parent(tokens) == load.context.span_id and trace_of(tokens) == trace_of(load)


@pytest.mark.parametrize("count", [1, 100])
def test_there_is_no_warning_if_no_step_follows(count: int, recording: Recording) -> None:
    with goodput.job():
        with goodput.checkpoint_restore():
            pass
        for _ in range(count):
            with goodput.data_loading():
                pass
    goodput.shutdown()
    assert numbers(recording) == [("data_loading", None)] * count
    events = [event for event in recording.events() if event.phase == rules.DATA_LOADING and event.kind == ev.START]
    assert [event.step for event in events] == [ev.NO_STEP] * count
    assert not orphans(recording.exported())


def test_a_restore_in_the_middle(recording: Recording) -> None:
    with goodput.job():
        for number in (0, 1, 2, 1):
            if number == 1:
                with goodput.checkpoint_restore():
                    pass
            with goodput.data_loading():
                pass
            with goodput.step(number):
                pass
    assert numbers(recording) == [(name, number) for number in (0, 1, 2, 1) for name in ("data_loading", "step")]


def test_a_first_attempt_begins_at_0(recording: Recording) -> None:
    with goodput.data_loading():
        pass
    assert numbers(recording) == [("data_loading", 0)]


def test_what_is_set_after_its_end_is_not_exported(recording: Recording) -> None:
    """It is exported only when its step is known."""
    with goodput.job():
        with goodput.checkpoint_restore():
            pass
        with goodput.data_loading() as load:
            load.set_attribute("mine", 1)
            load.add_event("first")
        load.set_attribute("late", 1)
        load.set_attributes({"later": 1})
        load.add_event("second")
        load.record_exception(KeyError("late"))
        load.add_link(load.get_span_context())
        load.update_name("other")
        load.set_status(StatusCode.ERROR)
        assert not recording.spans("data_loading")
        with goodput.step(150):
            pass
    loading_span = recording.span("data_loading")
    assert attributes(loading_span) == {"goodput.phase": "data_loading", "goodput.step": 150, "mine": 1}
    assert [event.name for event in loading_span.events] == ["first"]
    assert not loading_span.links and loading_span.status.is_unset
