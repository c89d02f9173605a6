"""The trace of each span in the document is that of the span that was exported, however traces are laid out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import otel_goodput
from benchmarks.container import Container
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.document import document
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

Work = Callable[[otel_goodput.Recorder], None]


def train(recorder: otel_goodput.Recorder) -> None:
    with recorder.job(), recorder.custom("epoch"):
        for number in range(40):
            with recorder.data_loading():
                pass
            with recorder.step(number):
                with recorder.data_loading(), recorder.custom("tokenize"):
                    pass
                with recorder.part("forward"):
                    pass
                with recorder.custom("eval"), recorder.part("metrics"):
                    pass
        with recorder.checkpoint_save(39):
            pass


def written(run: RunDirectory) -> dict[int, str]:
    """The traces of all spans in the files of the exporter `file`."""
    return {
        int(span["spanId"], 16): span["traceId"]
        for path in run.path.glob("traces-*.jsonl")
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }


def shown(session: RunView) -> dict[int, str | None]:
    """The traces of all spans of a document, as the page finds them; None: not known."""
    container = Container(document(session))
    head = container.head
    columns = {name: container.ids(column) for name, column in head["trace_ids"]["columns"].items()}
    others = {
        key: f"{high << 64 | low:032x}"
        for key, high, low in zip(columns["ids"], columns["high"], columns["low"], strict=True)
    }
    attempts = {one["number"]: one["trace_id"] for one in head["attempts"]}
    traces: dict[int, str | None] = {}
    for kind in ("step", "phase"):
        ids, table = head[f"{kind}_ids"]["columns"], container.table(head[f"{kind}s"])
        for row, key in zip(container.integers(ids["rows"]), container.ids(ids["ids"]), strict=True):
            trace = others.get(key, attempts[table["attempt"][row]])
            traces[key] = trace if int(trace, 16) else None
    return traces


def check(run: RunDirectory, **how: Any) -> tuple[dict[int, str | None], int]:
    """Check what is found without the files against the files; returns what was found, and how much was not."""
    written_traces, session = written(run), RunView.open(RecordedRun(run), **how)
    files = shown(session)
    assert files and all(written_traces[key] == trace for key, trace in files.items() if key in session.exported.spans)
    by_journal = shown(replace(session, exported=type(session.exported)()))
    assert by_journal.keys() == files.keys() <= written_traces.keys()
    assert {key: trace for key, trace in by_journal.items() if trace not in (None, written_traces[key])} == {}
    return by_journal, sum(trace is None for trace in by_journal.values())


@pytest.mark.parametrize(
    ("options", "traces", "unknown"),
    [
        ({"step_traces": "own"}, 40, 0),
        ({"step_traces": "shared"}, 1, 0),
        ({"step_traces": "shared", "trace_spans": 100, "step_sampling": 1}, 5, 0),  # it goes on in further traces
        ({"step_traces": "shared", "trace_spans": 0}, 1, 0),
    ],
)
def test_spans_are_in_the_traces_that_were_exported(
    tmp_path: Path, options: dict[str, Any], traces: int, unknown: int
) -> None:
    for _ in range(2):
        recorder = otel_goodput.Recorder("told", run_id="told", directory=tmp_path, exporters="file", **options)
        train(recorder)
        recorder.shutdown()
    shown_traces, missing = check(RunDirectory(tmp_path / "told"))
    assert missing == unknown and len(set(shown_traces.values())) >= 2 * traces


def test_of_a_long_run_what_was_not_read_is_not_known_rather_than_wrong(tmp_path: Path) -> None:
    recorder = otel_goodput.Recorder("told", run_id="told", directory=tmp_path, exporters="file", step_traces="own")
    train(recorder)
    recorder.shutdown()
    shown_traces, _ = check(RunDirectory(tmp_path / "told"), spans=1)
    assert None not in shown_traces.values() or len(set(shown_traces.values())) > 1


def test_on_a_provider_of_the_users_own(tmp_path: Path) -> None:
    """Its ids are random: the journal says them."""
    provider = TracerProvider()
    recorder = otel_goodput.Recorder(
        "told", run_id="told", directory=tmp_path, exporters="file", tracer_provider=provider
    )
    train(recorder)
    recorder.shutdown()
    provider.shutdown()
    _, missing = check(RunDirectory(tmp_path / "told"))
    assert missing == 0


def test_with_a_processor_on_a_provider_of_the_users_own(tmp_path: Path) -> None:
    provider = TracerProvider()
    processor = otel_goodput.GoodputSpanProcessor(job_name="job", run_id="told", directory=tmp_path)
    provider.add_span_processor(processor)
    expected = {}
    tracer = provider.get_tracer("mine")
    with tracer.start_as_current_span("job", attributes={"goodput.phase": "job"}) as job:
        for number in range(3):
            attributes = {"goodput.phase": "step", "goodput.step": number}
            with tracer.start_as_current_span("step", attributes=attributes) as step:
                context = step.get_span_context()
                expected[context.span_id] = f"{context.trace_id:032x}"
    provider.shutdown()
    context = job.get_span_context()
    traces = shown(RunView.open(RecordedRun(RunDirectory(tmp_path / "told"))))
    assert traces.items() >= expected.items()
    assert traces[context.span_id] == f"{context.trace_id:032x}"
