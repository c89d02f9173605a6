"""GoodputSpanProcessor on a provider that the user has, with spans that the user makes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from backfill import CASES, read_case, rows_of
from exported import Spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, Status, StatusCode, Tracer
from recorded import NS, Recording, attributes, identity, orphans, parent, sum_ns, without_zeros

import otel_goodput as goodput
from otel_goodput import ConfigurationError, GoodputSpanProcessor
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.testing import metrics as collected


class Theirs:
    """What the user has: providers, an exporter, our processor among their own."""

    def __init__(self, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.exporter = Spans()
        self.processor = GoodputSpanProcessor(meter_provider=self.meters, job_name="theirs", **options)
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self.processor)
        self.provider.add_span_processor(self.exporter.processor)
        self.tracer: Tracer = self.provider.get_tracer("their trainer")

    def start(self, phase: str, start: int, step: int | None = None, **more: Any) -> Span:
        marks: dict[str, Any] = {"goodput.phase": phase, **more}
        if step is not None:
            marks["goodput.step"] = step
        return self.tracer.start_span(phase, attributes=marks, start_time=start)

    def report(self) -> dict[str, Any]:
        return without_zeros(self.processor.report().to_json())

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    stand_in = Theirs()
    yield stand_in
    stand_in.close()


def tell(theirs: Theirs, rows: list[dict[str, Any]], base: int) -> None:
    """A timeline as spans, each boundary when it happened."""
    marks = {"custom": "goodput.custom.name", "elastic_wait": "goodput.elastic.kind"}
    boundaries = []
    for at, row in enumerate(rows):
        end = float("inf") if row["end"] is None else row["end"]
        boundaries.append((row["start"], 1, -end, at, row))
        if row["end"] is not None:
            boundaries.append((end, 0 if end > row["start"] else 2, -row["start"], -at, row))
    opened: dict[int, Span] = {}
    for time, order, _, _, row in sorted(boundaries, key=lambda boundary: boundary[:4]):
        moment = base + round(time * NS)
        if order == 1:
            more = {marks[row["kind"]]: row["name"]} if row["kind"] in marks else {}
            opened[id(row)] = theirs.start(row["kind"], moment, row.get("step"), **more)
        else:
            opened.pop(id(row)).end(moment)


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.json")))
def test_timelines(name: str, theirs: Theirs, base: int) -> None:
    case = read_case(name)
    if max(row.get("attempt", 1) for row in case["events"]) > 1:
        return  # a provider lives once; restarts are below
    rows = [row for row in rows_of(case, 1) if row["kind"] != "slice_counts"]
    tell(theirs, rows, base)
    report, truth = theirs.report(), case["truth"]
    assert report["elapsed_s"] == pytest.approx(truth["elapsed_s"])
    assert report["seconds"].get("productive", 0.0) == pytest.approx(truth["productive_s"], abs=1e-6)
    assert report["steps"]["kept"] == truth["steps"]["kept"] and report["steps"]["lost"] == truth["steps"]["lost"]
    assert report["disruptions"] == truth["disruptions"]
    assert sum_ns(report) == round(report["elapsed_s"] * NS)


def test_spans_without_a_phase_do_not_count(theirs: Theirs, base: int) -> None:
    job = theirs.start("job", base)
    with theirs.tracer.start_as_current_span("anything"):
        pass
    late = theirs.tracer.start_span("late", start_time=base)
    late.set_attribute("goodput.phase", "custom")
    late.end(base + 2 * NS)
    job.end(base + 10 * NS)
    assert theirs.report()["seconds"] == {"other": 10.0}
    assert len(theirs.exporter.get_finished_spans()) == 3, "and all reach the user's exporter"


def test_what_a_custom_phase_is_called(theirs: Theirs, base: int) -> None:
    with theirs.tracer.start_as_current_span(
        "job", attributes={"goodput.phase": "job"}, start_time=base, end_on_exit=False
    ):
        for name, marks in (("evaluate", {}), ("x", {"goodput.custom.name": "eval"})):
            span = theirs.tracer.start_span(name, attributes={"goodput.phase": "custom", **marks}, start_time=base)
            span.end(base + NS)
    assert theirs.report()["seconds"]["custom"].keys() <= {"evaluate", "eval"}


def test_failed_and_incomplete_steps(theirs: Theirs, base: int) -> None:
    job = theirs.start("job", base)
    good = theirs.start("step", base, 0)
    good.end(base + NS)
    bad = theirs.start("step", base + NS, 1)
    bad.set_status(Status(StatusCode.ERROR))
    bad.end(base + 2 * NS)
    left = theirs.start("step", base + 2 * NS, 2)
    left.set_attribute("goodput.step.completed", False)
    left.end(base + 3 * NS)
    job.end(base + 4 * NS)
    assert theirs.report()["steps"] == {"executed": 1, "kept": 1, "lost": 2}


@pytest.mark.parametrize(
    "marks",
    [
        {"goodput.phase": "dreaming"},
        {"goodput.phase": "step"},
        {"goodput.phase": "step", "goodput.step": -1},
        {"goodput.phase": "step", "goodput.step": "seven"},
        {"goodput.phase": "step", "goodput.step": 1.5},
    ],
    ids=str,
)
def test_nonsense_is_reported_and_does_not_count(
    marks: dict[str, Any], theirs: Theirs, base: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = theirs.start("job", base)
    for _ in range(3):
        theirs.tracer.start_span("x", attributes=marks, start_time=base + NS).end(base + 2 * NS)
    job.end(base + 3 * NS)
    assert theirs.report()["seconds"] == {"other": 3.0}
    assert len(caplog.records) == 1 and "is not accounted for" in caplog.text
    assert len(theirs.exporter.get_finished_spans()) == 4


def test_phases_of_other_threads_do_not_block(theirs: Theirs, base: int) -> None:
    job = theirs.start("job", base)

    def prefetch() -> None:
        theirs.start("data_loading", base + NS).end(base + 3 * NS)
        theirs.start("data_loading", base + 3 * NS, **{"goodput.blocking": True}).end(base + 4 * NS)

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    job.end(base + 10 * NS)
    report = theirs.report()
    assert report["seconds"] == {"other": 9.0, "data_loading": 1.0} and report["overlapped_data_loading_s"] == 2.0


def test_metrics(theirs: Theirs, base: int) -> None:
    job = theirs.start("job", base)
    theirs.start("step", base, 0).end(base + 3 * NS)
    job.end(base + 4 * NS)
    data = theirs.reader.get_metrics_data()
    assert data is not None
    metrics = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if scope.scope.name == "otel_goodput"
    }
    time = {
        (point.attributes or {})["goodput.category"]: point.value  # type: ignore[union-attr]
        for point in metrics["goodput.time"].data.data_points
    }
    assert time["productive"] == 3.0 and time["other"] == 1.0 and sum(time.values()) == 4.0
    theirs.processor.force_flush()
    assert "goodput.step.duration" in collected(theirs.reader)


@pytest.mark.parametrize("clock", ["auto", "host"])
def test_where_work_is_handed_to_a_device_no_share_is_made_up(
    clock: str, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans of the user's own tell when their ends were on the host; that may be all there is, or say nothing."""
    memory = [0]
    pool = SimpleNamespace(total_bytes=lambda: memory[0])
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(get_default_memory_pool=lambda: pool))
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", clock)
    theirs = Theirs()
    job = theirs.start("job", base)
    for number in range(20):
        theirs.start("step", base + number * NS, number).end(base + (number + 1) * NS - NS // 2)
    job.end(base + 20 * NS)
    assert (theirs.report()["clock"], theirs.report()["goodput"]) == ("host", 0.5)
    memory[0] = 1
    report = theirs.report()
    theirs.close()
    assert (report["clock"], report["goodput"]) == (("host", 0.5) if clock == "host" else ("unknown", None))
    assert report["elapsed_s"] == 20.0 and report["seconds"]["productive"] == 10.0


def test_a_flush_that_fails_is_contained(theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("of ours")

    monkeypatch.delenv("OTEL_GOODPUT_STRICT")
    with monkeypatch.context() as broken:
        broken.setattr("otel_goodput._journal.account.Account.refresh", fail)
        assert theirs.provider.force_flush() is False
    assert theirs.provider.force_flush() is True


def test_shutdown_closes_what_is_open(theirs: Theirs) -> None:
    job = theirs.start("job", 0)
    step = theirs.start("step", 0, 4)
    theirs.provider.shutdown()
    for span in (job, step):
        assert not span.is_recording()
        assert attributes(span)["goodput.interrupted"] is True  # type: ignore[arg-type]
        assert span.status.status_code is StatusCode.ERROR  # type: ignore[attr-defined]
    assert theirs.report()["ended"]
    assert theirs.report()["steps"] == {"executed": 0, "kept": 0, "lost": 1}


def test_restarts(tmp_path: Path, base: int) -> None:
    runs = tmp_path / "runs"
    for attempt in range(3):
        theirs = Theirs(directory=runs, run_id="their run")
        start = base + attempt * 20 * NS
        job = theirs.start("job", start)
        for number in range(3):
            step = theirs.start("step", start + number * 2 * NS, attempt * 2 + number)
            step.end(start + (number + 1) * 2 * NS)
        job.end(start + 10 * NS)
        theirs.close()
    for report in (theirs.report(), without_zeros(RecordedRun(RunDirectory(runs / "their run")).report().to_json())):
        assert report["attempts"] == 3 and report["disruption_reasons"] == {"restart": 2}
        assert report["seconds"] == {
            "productive": 14.0,
            "wasted_progress": 4.0,
            "other": 12.0,
            "infrastructure_recovery": 20.0,
        }
        assert report["steps"] == {"executed": 9, "kept": 7, "lost": 2}


def test_a_directory_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_GOODPUT_DIR says where the journal lives, for the processor too."""
    monkeypatch.setenv("OTEL_GOODPUT_DIR", str(tmp_path / "runs"))
    for attempt in range(2):
        theirs = Theirs(run_id="run")
        with theirs.tracer.start_as_current_span("job", attributes={"goodput.phase": "job"}):
            pass
        assert theirs.report()["attempts"] == attempt + 1
        theirs.close()


def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = Theirs()
    with theirs.tracer.start_as_current_span("job", attributes={"goodput.phase": "job"}):
        pass
    assert theirs.report()["attempts"] == 1
    theirs.close()
    assert not list(tmp_path.iterdir())


def test_a_forked_child_is_silent(tmp_path: Path) -> None:
    theirs = Theirs(directory=tmp_path / "runs", run_id="run")
    with theirs.tracer.start_as_current_span("job", attributes={"goodput.phase": "job"}):
        child = os.fork()
        if child == 0:
            for number in range(50):
                theirs.start("step", 0, number).end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        theirs.start("step", 0, 7).end()
    report = theirs.report()
    theirs.close()
    assert report["steps"]["executed"] == 1 and report["last_step"] == 7
    assert RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report().to_json()["steps"]["executed"] == 1


@pytest.mark.parametrize("wrong", [{"windows": "soon"}, {"windows": "0.1s"}], ids=str)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        GoodputSpanProcessor(**wrong)


# --- configure() with providers of the user's -------------------------------------------------------------------------


def test_configure_with_their_provider(record: Callable[..., Recording]) -> None:
    """Their processors get our spans, steps included; their provider stays theirs to shut down."""
    exporter = Spans()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(exporter.processor)
    recording = record(tracer_provider=provider)
    assert "goodput.trace.id" not in recording.recorder.resource.attributes, "its ids are not ours"
    tracer = provider.get_tracer("theirs")
    with (
        tracer.start_as_current_span("outer"),
        goodput.job(),
        goodput.step(0),
        goodput.custom("eval"),
        tracer.start_as_current_span("forward"),
    ):
        pass
    goodput.shutdown()
    with tracer.start_as_current_span("afterwards"):
        pass
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["attempt", "forward", "eval", "step", "job", "outer", "afterwards"]
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert parent(spans["forward"]) == identity(spans["eval"])
    assert parent(spans["eval"]) == identity(spans["step"]) and parent(spans["step"]) == identity(spans["job"])
    assert recording.report()["steps"]["kept"] == 1
    assert parent(spans["job"]) == identity(spans["attempt"]) and not orphans(recording.exported())
    assert [span.name for span in recording.exported()] == names[:-1], "what was given to us ends with us"
    provider.shutdown()


def test_configure_with_their_meter_provider(record: Callable[..., Recording]) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    record(meter_provider=meters)
    with goodput.job(), goodput.step(0):
        pass
    goodput.shutdown()
    names = collected(reader).keys()
    assert {"goodput.time", "goodput.ratio", "goodput.step.duration"} <= names, "it stays theirs: still collecting"
    meters.shutdown()
