"""A recorder on a tracer provider of the user's own, whose sampler goes by the parent: every phase is accounted."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span

from otel_goodput import Recorder
from otel_goodput.recording.open_spans import OpenSpans


@pytest.mark.parametrize("within", ["the step", "a span of the user's own"])
def test_a_phase_in_a_step_that_is_not_exported(tmp_path: Path, within: str) -> None:
    """After the first hundred steps one in ten is sampled; an evaluation in another one is a phase all the same."""
    memory, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    mine = provider.get_tracer("mine")
    begin = 1_700_000_000_000_000_000

    def phases(recorder: Recorder, number: int) -> None:
        if number == 123:
            start = recorder.tracer.clock() if recorder.tracer else begin
            with recorder.custom("evaluation", start_time=start, end_time=start + 1_000):
                pass
        if number == 124:
            with pytest.raises(KeyError), recorder.part("broken"):
                raise KeyError(number)

    with Recorder("own", directory=tmp_path, exporters="none", tracer_provider=provider, step_sampling=10) as recorder:
        with recorder.job():
            for number, _ in recorder.steps(range(130)):
                if within == "the step":
                    phases(recorder, number)
                else:
                    with mine.start_as_current_span("theirs"):
                        phases(recorder, number)
        totals = recorder.totals()
    spans = {span.context.span_id: span for span in memory.get_finished_spans() if span.context is not None}
    names = {span.name: span for span in spans.values()}
    assert totals.run.custom["evaluation"] > 0
    for name, number in (("evaluation", 123), ("broken", 124)):
        parent = names[name].parent
        assert parent is not None
        around = spans[parent.span_id]
        if within != "the step":
            assert around.name == "theirs" and around.parent is not None
            around = spans[around.parent.span_id]
        assert (around.attributes or {}).get("goodput.step") == number, name


@pytest.mark.parametrize("own", [True, False])
def test_what_is_around_a_phase_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """Whoever provides the tracer, and whoever starts the phase."""
    held: list[str] = []
    hold = OpenSpans.hold

    def count(self: OpenSpans, around: Span) -> None:
        held.append(getattr(around, "name", "none"))
        hold(self, around)

    monkeypatch.setattr(OpenSpans, "hold", count)
    provider = TracerProvider(shutdown_on_exit=False) if own else None
    with (
        Recorder("own", directory=tmp_path, exporters="none", tracer_provider=provider) as recorder,
        recorder.job(),
        recorder.step(0),
    ):
        held.clear()
        with recorder.custom("evaluation"):
            assert held == ["step"]
        mine = recorder.tracer_provider.get_tracer("mine")
        with mine.start_as_current_span("mine", attributes={"goodput.phase": "checkpoint_save"}):
            assert held == ["step", "step"]


def test_what_is_not_recorded_takes_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    import otel_goodput as goodput

    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert goodput.configure("nothing") is None
    with goodput.step(1) as step:
        step.observe(object())
