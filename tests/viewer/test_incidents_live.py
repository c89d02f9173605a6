"""A served page learns of incidents at once, and of stacks though nothing else changes while training stands still."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from troubled import trouble
from waits import until

from otel_goodput import Recorder
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer import watch as watches
from otel_goodput._viewer.watch import Terms, Watch
from otel_goodput.reports.run import RecordedRun

from .browser import head_of
from .conftest import NS


def head(watch: Watch) -> dict[str, Any]:
    return head_of(gzip.decompress(watch.document()[0]))


def news(watch: Watch) -> dict[str, Any]:
    """The event of this second."""
    [data] = [line for line in watch._changes().splitlines() if line.startswith(b"data: {")]
    return dict(json.loads(data[6:]))


def test_stacks_make_a_new_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_SIGNS_S", 0.0)
    monkeypatch.setattr(watches, "_LIST_SHARE", 0.0)
    monkeypatch.setattr(watches, "_FRESH_S", 1e6)  # the document is not made again because it is old
    recorder = Recorder("still", run_id="still", directory=tmp_path, exporters="none")
    run = RunDirectory(tmp_path / "still")
    with recorder.job(), recorder.step(0):
        watch = Watch("still", RecordedRun(run), Terms())
        before = head(watch)
        assert before["live"] and before["standstills"] == before["report"]["incidents"] == []
        news(watch)
        made = head(watch)["made_at"]
        assert news(watch)["news"] <= made and head(watch)["made_at"] == made
        trouble(run, time.time_ns() - 10 * NS)
        until(lambda: news(watch)["report"]["incidents"])
        latest = news(watch)
        assert [one["ended"] is None for one in latest["report"]["incidents"]] == [False, True]
        assert latest["incident_texts"][1].startswith("a turn of the loop takes 50 % more")
        assert latest["news"] > made
        [still] = head(watch)["standstills"]
        assert still["waits_for"] == [3] and head(watch)["profiles"][0]["process"] == 3
    recorder.shutdown()
