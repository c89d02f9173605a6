"""The page shows what training waited for in its data loaders, and no empty panel elsewhere."""

from __future__ import annotations

from pathlib import Path

from otel_goodput._journal.loader_times import LoaderSheet
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.page import of_run
from otel_goodput.reports.run import RecordedRun

from .browser import Look
from .conftest import live

MS = 1_000_000


def shown(run: RunDirectory, tmp_path: Path, look: Look) -> Look:
    place = tmp_path / "page.html"
    place.write_text(of_run(RecordedRun(run)), encoding="utf-8")
    look.open(place)
    return look


def test_a_run_without_loaders_has_no_panel(tmp_path: Path, look: Look) -> None:
    live(tmp_path, "timed", 0, 9)
    shown(RunDirectory(tmp_path / "timed"), tmp_path, look).page.wait_for_selector("#loader-card", state="hidden")
    look.check()


def test_stages_and_the_slow_worker(tmp_path: Path, look: Look) -> None:
    live(tmp_path, "timed", 0, 9)
    run, sheet = RunDirectory(tmp_path / "timed"), LoaderSheet(0, 0)
    for worker in (0, 1, 2, 2):
        slow = worker == 2
        waited = (100 * MS, 350 * MS, 0, 0, 0) if slow else (0, 0, 0, 0, 0)
        sheet.take(worker, waited, (0, 0, MS, 0, 0) if slow else (MS, 40 * MS, MS, 0, 0))
    sheet.keep(run, last=True)
    page = shown(run, tmp_path, look).page
    assert "training waited 900 ms for 4 batches" in page.inner_text("#loader .card-head")
    rows = page.inner_text("#loader-stages").split("\n")
    assert any(row.split("\t")[:3] == ["transform", "700 ms", "77.78 %"] for row in rows), rows
    workers = [row.split("\t")[0] for row in page.inner_text("#loader-workers").split("\n")]
    assert [one for one in workers if one][1:] == ["worker 2", "worker 0", "worker 1"]
    page.wait_for_selector("#loader p:has-text('in transform on worker 2: it takes 350 ms a batch, others 40')")
    look.check()
