"""Attributes, events and status of spans, from the files of the exporter ``file``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import otel_goodput
from benchmarks.container import Container
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.document import cloud_trace, document
from otel_goodput.reports import exported as module
from otel_goodput.reports.exported import exported
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    recorder = otel_goodput.Recorder("told", run_id="told", directory=tmp_path, exporters="file")
    with recorder.job():
        for number in range(20):
            with recorder.step(number):
                pass
        with pytest.raises(ValueError, match="full"), recorder.checkpoint_save(20):
            raise ValueError("the disk at https://me:hunter2@disk.example is full")
    recorder.shutdown()
    return RunDirectory(tmp_path / "told")


def contents(run: RunDirectory) -> dict[str, Any]:
    held: dict[str, Any] = Container(document(RunView.open(RecordedRun(run)))).head["attributes"]
    return held


def test_the_page_has_what_spans_say_without_secrets(run: RunDirectory) -> None:
    held = contents(run)
    steps = [dict(zip(row[::2], row[1::2], strict=True)) for row in held["pairs"]]
    number = held["names"].index("goodput.step")
    assert {row.get(number) for row in steps} >= {str(one) for one in range(21)}
    [failed] = held["more"].values()
    assert failed["status"] == 2 and "is full" in failed["message"]
    assert failed["events"][0]["name"] == "exception" and failed["events"][0]["time"] >= 0
    assert "hunter2" not in json.dumps(held) and held["text"] == ""


def test_damaged_lines_are_left_out_and_reported(run: RunDirectory) -> None:
    [file] = run.path.glob("traces-*.jsonl")
    whole = contents(run)["rows"]
    with file.open("ab") as stream:
        stream.write(b'{"resourceSpans": [{"scopeSpans": 3}]}\nnonsense\n[]\n\0\0\n{"resourceSpans":[{"scop')
    held = contents(run)
    assert held["rows"] == whole and "4 lines of the trace files cannot be read" in held["text"]
    file.write_bytes(b"\xff" * 100)
    assert contents(run)["rows"] == 0
    file.unlink()
    assert contents(run)["text"] == ""


def test_there_are_bounds_and_errors_come_first(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS", 5)
    held = contents(run)
    assert held["rows"] == 5 and held["more"] and held["left_out"] > 0
    assert "left out, as there are too many" in held["text"]
    monkeypatch.setattr(module, "BYTES", 10)
    assert contents(run)["rows"] == 0
    assert exported(run, set()).spans == {}


@pytest.mark.parametrize(
    ("opened", "resource", "address"),
    [
        ({"gcp": "my-project", "workload": ""}, {"gcp.project_id": "of-the-machine"}, "my-project"),
        ({"gcp": "my-project"}, {}, "my-project"),
        ({"gcp-otlp": "my-project"}, {"gcp.project_id": "of-the-resource"}, "of-the-resource"),
        ({"gcp-otlp": "my-project", "file": ""}, {"cloud.account.id": "other"}, "my-project"),
        ({"gcp": ""}, {"gcp.project_id": "my-project"}, None),  # an emulator, or the project is not known
        ({"gcp": "x&y=<script>"}, {}, None),
        ({"otlp": "", "workload": ""}, {"gcp.project_id": "my-project"}, None),
    ],
)
def test_the_address_in_cloud_trace_goes_by_what_was_opened(
    opened: dict[str, str], resource: dict[str, Any], address: str | None
) -> None:
    """Not by the setting: `auto` chooses, and what is asked for may not be there."""
    exporter = cloud_trace({"resource": resource, "exporters": opened})
    if address is None:
        assert exporter is None
    else:
        assert exporter is not None and exporter.startswith("https://console.cloud.google.com/traces/explorer;")
        assert exporter.endswith(f"?project={address}") and "{trace}" in exporter and "{span}" in exporter
    assert cloud_trace(None) is None
