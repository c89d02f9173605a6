"""Orbax in a real distributed job: what is saved together is durable when the commit is known, on whoever knows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash.exported import read_spans

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.fields import StageFields
from otel_goodput.reports.run import RecordedRun

from . import jobs

pytest.importorskip("orbax.checkpoint")
pytestmark = [pytest.mark.jax, pytest.mark.crash]


def saves(directory: Path, process: int, attempt: int = 0) -> list[tuple[int, bool, bool]]:
    """Of one process the steps saved: (step, blocking, durable), in the order of their starts."""
    spans = [
        span
        for span in read_spans(directory / "run")
        if span.name == "checkpoint_save"
        and (span.resource["goodput.attempt"], span.resource["goodput.process.index"]) == (attempt, process)
    ]
    return [
        (
            int(span.attributes["goodput.step"]),
            span.attributes.get("goodput.blocking", True),
            span.attributes.get("goodput.checkpoint.durable", False),
        )
        for span in sorted(spans, key=lambda span: span.start)
    ]


def stages(directory: Path) -> dict[str, dict[str, StageFields]]:
    return RecordedRun(RunDirectory(directory / "run")).report().to_json()["checkpoints"]


def test_saved_together_and_restored(tmp_path: Path) -> None:
    held, report = jobs.Job("processes.saver", tmp_path, 2, 15, jax=True).end()
    assert held == [15.0]
    assert report["at_risk_s"] == 0 and report["seconds"]["checkpoint_save"] > 0
    saved = saves(tmp_path, 0)
    # The commit of a small checkpoint may be over when the call returns: then there is one span for both.
    assert {step for step, _, durable in saved if durable} == {4, 9, 14}
    assert all(durable for _, blocking, durable in saved if not blocking)
    assert {step for step, blocking, _ in saved if blocking} == {4, 9, 14}
    assert {step for step, blocking, _ in saves(tmp_path, 1) if blocking} == {4, 9, 14}

    save = stages(tmp_path)["save"]
    assert save["blocking_copy"]["count"] == save["total"]["count"] == 3
    slowest = save["blocking_copy"]["slowest"]  # both tell theirs
    assert slowest is not None and slowest["process"] in (0, 1)
    assert slowest["median_s"] <= slowest["mean_s"] <= 2 * slowest["median_s"]

    held, report = jobs.Job("processes.saver", tmp_path, 2, 20, jax=True).end()
    assert held == [20.0]
    assert stages(tmp_path)["restore"]["read"]["slowest"]["process"] in (0, 1)
    assert report["seconds"]["checkpoint_restore"] > 0 and report["steps"] == {"executed": 20, "kept": 20, "lost": 0}


def test_killed_while_it_saves(tmp_path: Path) -> None:
    """Whatever the commit had come to, the account of the restart agrees with what Orbax finds."""
    first = jobs.Job("processes.saver", tmp_path, 2, 100_000, jax=True)
    first.wait_for_line(0, "saving 9")
    first.kill(0)
    stored = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal())
    assert stored, first.errors()
    held, report = jobs.Job("processes.saver", tmp_path, 2, 15, jax=True).end()
    assert held == [15.0]
    assert report["attempts"] == 2 and report["max_productive_step"] == 14 and report["steps"]["kept"] == 15
    (disruption,) = report["disruption_list"]
    assert disruption["to_step"] == stored[-1] + 1 or report["steps"]["lost"] == 0
    assert report["at_risk_s"] == 0
