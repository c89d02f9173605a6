"""A recorder on a tracer provider of the user's own, whose sampler goes by the parent: every phase is accounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import Context, Token
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span

from everyday.stand_ins.ddtrace_context import KEPT, DDRuntimeContext
from everyday.stand_ins.logfire_tracer import ProxyTracerProvider
from otel_goodput import ConfigurationError, Recorder
from otel_goodput._recording.contexts import enclosing
from otel_goodput._recording.open_spans import OpenSpans
from otel_goodput.semconv import Phase


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


class Hiding(trace.TracerProvider):
    """Wraps a provider of the SDK without any attribute that holds it, or a tracer of it."""

    def __init__(self, provider: TracerProvider) -> None:
        self.add_span_processor = provider.add_span_processor
        self.resource = provider.resource
        self._make = lambda *arguments, **options: HidingTracer(provider.get_tracer(*arguments, **options))

    def get_tracer(self, *arguments: Any, **options: Any) -> trace.Tracer:
        return self._make(*arguments, **options)


class HidingTracer(trace.Tracer):
    def __init__(self, tracer: trace.Tracer) -> None:
        self._start = lambda *arguments, **options: tracer.start_span(*arguments, **options)

    def start_span(self, *arguments: Any, **options: Any) -> Span:
        return self._start(*arguments, **options)

    start_as_current_span = SdkTracer.start_as_current_span


@pytest.mark.parametrize("kind", [ProxyTracerProvider, Hiding])
def test_a_provider_that_wraps_the_sdks(kind: Callable[[TracerProvider], Any], tmp_path: Path) -> None:
    around_counts = []
    for wraps in (False, True):
        memory, wrapped = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        wrapped.add_span_processor(SimpleSpanProcessor(memory))
        provider = kind(wrapped) if wraps else wrapped
        options: Any = {"directory": tmp_path / str(wraps), "exporters": "none", "tracer_provider": provider}
        with Recorder("own", run_id="own", **options) as recorder:
            tracer = recorder.tracer_provider.get_tracer("user")
            with recorder.job():
                for _ in recorder.steps(range(150)):
                    with recorder.part("forward"), tracer.start_as_current_span("user"):
                        pass
                with recorder.custom("eval"):
                    pass
        spans = memory.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context is not None}
        around = [(span.name, names[span.parent.span_id] if span.parent else None) for span in spans]
        around_counts.append(Counter(around))
        assert {span.resource for span in spans} == {wrapped.resource}
    assert around_counts[0] == around_counts[1] and around_counts[0]["user", "forward"] == 150


def test_a_proxy_before_a_provider_is_set(tmp_path: Path) -> None:
    """It says so before anything is opened, and in the terms of whoever calls."""
    for provider in (trace.ProxyTracerProvider(), trace.NoOpTracerProvider()):
        with pytest.raises(ConfigurationError, match=r"tracer_provider .* has no add_span_processor"):
            Recorder("own", directory=tmp_path / "runs", exporters="none", tracer_provider=provider)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"meter_provider .* has no get_meter"):
        Recorder("own", directory=tmp_path / "runs", exporters="none", meter_provider=object())  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


class Popping(DDRuntimeContext):
    """Keeps no keys either, but what is attached can be detached."""

    def attach(self, otel_context: context.Context) -> object:
        before = KEPT.get()
        super().attach(otel_context)
        return before

    def detach(self, token: Any) -> None:
        if not isinstance(token, Token):  # of what was attached before this was the runtime context
            KEPT.set(token)


@pytest.mark.parametrize("popping", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_a_runtime_context_that_keeps_no_keys(
    popping: bool, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(place: Path) -> tuple[Counter[Any], int, Any]:
        memory, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        options: dict[str, Any] = {"span_processors": [SimpleSpanProcessor(memory)]}
        if own:
            provider.add_span_processor(SimpleSpanProcessor(memory))
            options = {"tracer_provider": provider}
        known = 0
        with Recorder("own", run_id="own", directory=place, exporters="none", **options) as recorder, recorder.job():
            for number, _ in recorder.steps(range(20)):
                with recorder.part("forward"):
                    pass
                if number % 5 == 4:
                    with recorder.checkpoint_save(number), recorder.custom("hash"):
                        known += enclosing(Phase.CHECKPOINT_SAVE) is not None
                with recorder.custom("eval"), recorder.data_loading():
                    known += enclosing(Phase.CHECKPOINT_SAVE) is not None
                assert recorder.current_step().is_recording()
            steps = recorder.report().to_json()["steps"]
        spans = memory.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context is not None}
        around = Counter((span.name, names.get(span.parent.span_id) if span.parent else None) for span in spans)
        return around, known, steps

    expected = train(tmp_path / "keys")
    monkeypatch.setattr("opentelemetry.context._RUNTIME_CONTEXT", Popping() if popping else DDRuntimeContext())
    result = Context().run(train, tmp_path / "none")
    assert result[1:] == expected[1:] and result[1] == 4
    if popping:
        assert result[0] == expected[0]
