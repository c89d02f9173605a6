"""Span processors of the user's own next to ours: what they get, and what their errors do to the account."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    Span,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from recorded import NS, without_zeros

from otel_goodput import Recorder


class Refusing(SpanProcessor):
    """Raises where a span with one of these names begins."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name in self.names:
            raise KeyError(span.name)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT")


def recorder(directory: Path, *processors: SpanProcessor, **options: Any) -> Recorder:
    return Recorder("line", run_id="run", directory=directory, exporters="none", span_processors=processors, **options)


class Dropping(Sampler):
    """Drops spans with one of these names, or raises for them."""

    def __init__(self, *names: str, raises: bool = False) -> None:
        self.names, self.raises = names, raises

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None, *_: Any
    ) -> SamplingResult:
        if name in self.names and self.raises:
            raise KeyError(name)
        return SamplingResult(Decision.DROP if name in self.names else Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        return "Dropping"


WRONG = ("a processor of our provider", "an earlier processor", "a later processor", "the sampler", "it is dropped")


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("names", [("eval",), ("job", "training_prep", "eval")])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_phase_whose_span_is_dropped_or_refused_is_in_the_account(
    wrong: str, names: tuple[str, ...], tmp_path: Path, base: int
) -> None:
    refusing, spans = Refusing(*names), InMemorySpanExporter()
    exporting = SimpleSpanProcessor(spans)
    provider = None
    if wrong == "a processor of our provider":
        line = recorder(tmp_path, refusing, exporting)
    else:
        sampler = Dropping(*names, raises=wrong == "the sampler") if "processor" not in wrong else None
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        if wrong == "an earlier processor":
            provider.add_span_processor(refusing)
        line = recorder(tmp_path, tracer_provider=provider)
        if wrong == "a later processor":
            provider.add_span_processor(refusing)
        provider.add_span_processor(exporting)
    with line, line.job(start_time=base, end_time=base + 60 * NS):
        with line.training_prep(start_time=base, end_time=base + 10 * NS) as prep:
            prep.set_attribute("size", 1)
        times = {"start_time": base + 20 * NS}
        with (
            line.custom("eval", end_time=base + 30 * NS, **times),
            line.custom("inner", end_time=base + 25 * NS, **times),
        ):
            pass
        assert line.tracer is not None
        assert [span.name for span in line.tracer.spans.phases.values()] == ["job"]
    report = without_zeros(line.report().to_json())
    assert report["elapsed_s"] == 60.0
    assert report["seconds"] == {"training_prep": 10.0, "other": 40.0, "custom": {"eval": 5.0, "inner": 5.0}}
    line.shutdown()
    exported = {span.name for span in spans.get_finished_spans()}
    dropped = set(names) if wrong == "it is dropped" else set[str]()
    assert exported & {"job", "training_prep", "eval", "inner"} == {"job", "training_prep", "eval", "inner"} - dropped
    if provider is not None:
        provider.shutdown()


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("wrong", ["refused by a processor", "without a name"])
def test_a_first_phase_that_is_not_recorded_leaves_the_job_begun_for_it_open(
    wrong: str, tmp_path: Path, base: int
) -> None:
    """The job begins at the same moment, and must not be taken for the phase."""
    with recorder(tmp_path, Refusing("eval")) as line:
        with line.custom("eval" if wrong == "refused by a processor" else "", start_time=base):
            pass
        with line.job(end_time=base + 60 * NS), line.training_prep(start_time=base + NS, end_time=base + 31 * NS):
            pass
        report = without_zeros(line.report().to_json())
    assert report["seconds"]["training_prep"] == 30.0 and report["elapsed_s"] == 60.0


MEMBERS = (
    *("name", "context", "kind", "parent", "start_time"),
    *("resource", "instrumentation_scope", "links", "attributes"),
)


class Listening(SpanProcessor):
    """Keeps what a span's members say when it begins, and the finished span."""

    def __init__(self) -> None:
        self.begun: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, ReadableSpan] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        assert span.end_time is None and not span.events and span.status.is_unset
        members = {name: getattr(span, name) for name in MEMBERS}
        self.begun[span.get_span_context().span_id] = {**members, "attributes": dict(members["attributes"])}

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        self.ended[span.context.span_id] = span


def train(line: Recorder) -> None:
    with line.job(), line.step(3), line.part("forward"):
        with line.data_loading(blocking=False):
            pass
        with line.custom("eval"):
            pass


@pytest.mark.parametrize("where", ["the user's provider", "span_processors", "in one", "in threads"])
def test_on_start_gets_every_span_with_the_members_of_its_end(where: str, tmp_path: Path) -> None:
    listening = Listening()
    if where == "the user's provider":
        provider = TracerProvider(shutdown_on_exit=False)
        line = recorder(tmp_path, tracer_provider=provider)
        provider.add_span_processor(listening)
    elif where == "span_processors":
        line = recorder(tmp_path, listening)
    else:
        several = SynchronousMultiSpanProcessor() if where == "in one" else ConcurrentMultiSpanProcessor()
        several.add_span_processor(listening)
        line = recorder(tmp_path, several)
    with line:
        train(line)
        report = line.report().to_json()
    assert {listening.ended[key].name for key in listening.begun} == {"data_loading", "eval", "forward", "job", "step"}
    for key, members in listening.begun.items():
        at_end = {name: getattr(listening.ended[key], name) for name in MEMBERS}
        assert {**at_end, "attributes": dict(at_end["attributes"])} == members
    assert report["steps"]["executed"] == 1, "what is heard is not counted twice"


class Baggage(SpanProcessor):
    """Copies an entry of the baggage to each span that begins, as opentelemetry-processor-baggage does."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        around = trace.get_current_span(parent_context).get_span_context()
        assert span.parent is not None and around.span_id == span.parent.span_id
        span.set_attribute("model", str(baggage.get_baggage("model", parent_context)))
        span.set_attribute("thread", threading.get_ident())


def test_a_start_comes_with_the_context_and_on_the_thread_that_it_was_opened_in(tmp_path: Path) -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    with recorder(tmp_path, tracer_provider=provider) as line:
        provider.add_span_processor(Baggage())
        provider.add_span_processor(SimpleSpanProcessor(memory))

        def train(model: str, *numbers: int) -> None:
            with line.custom(model):
                token = context.attach(baggage.set_baggage("model", model))
                for number in numbers:
                    with line.step(number), line.part(model), line.data_loading(), line.custom(model):
                        pass
                context.detach(token)

        with line.job():
            train("first", 0, 1)
            other = threading.Thread(target=train, args=("second", 2), name="other")
            other.start()
            other.join()
    begun = Counter(
        (span.name, (span.attributes or {})["model"], (span.attributes or {})["thread"])
        for span in memory.get_finished_spans()
        if span.name not in ("attempt", "job")
    )
    here, there = threading.get_ident(), other.ident
    assert begun == {
        **{(name, "first", here): 2 for name in ("step", "data_loading")},
        **{(name, "second", there): 1 for name in ("step", "data_loading")},
        ("first", "first", here): 4,
        ("second", "second", there): 2,
        ("first", "None", here): 1,
        ("second", "None", there): 1,
    }


@pytest.mark.usefixtures("lenient")
def test_a_processor_that_refuses_a_step_stops_nothing_else(tmp_path: Path) -> None:
    listening = Listening()
    with recorder(tmp_path, Refusing("step", "forward", "data_loading"), listening) as line:
        annotated = []
        assert line.tracer is not None

        class Annotation:
            def __init__(self, name: str, step_num: int) -> None:
                annotated.append(step_num)

            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None: ...

        line.tracer.hooks.profile(Annotation)
        train(line)
        assert line.report().to_json()["steps"]["executed"] == 1
    assert annotated == [3] and {"step", "forward", "data_loading"} <= {
        listening.ended[key].name for key in listening.begun
    }


@pytest.mark.usefixtures("lenient")
def test_a_processor_that_fails_at_an_end_keeps_nothing_from_the_others(tmp_path: Path) -> None:
    class Failing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "step":
                raise KeyError(span.name)

    listening = Listening()
    with recorder(tmp_path, Failing(), listening) as line:
        train(line)
    assert "step" in {span.name for span in listening.ended.values()}
