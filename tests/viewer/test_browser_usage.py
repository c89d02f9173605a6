"""The page shows processor and memory where they were sampled, as the files say, and no empty panel elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage import Machine, Usage, UsageSheet
from otel_goodput._viewer.page import of_run
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

from .browser import Look
from .conftest import live

NS = 1_000_000_000
GIB = 2**30


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of two attempts and two processes; on four cores, the leader used one, all together three."""
    for attempt in range(2):
        for process in (0, 1):
            live(tmp_path, "used", 20 * attempt, 20 * attempt + 19, process=process, processes=2)
    return RunDirectory(tmp_path / "used")


def sampled(run: RunDirectory) -> None:
    began = RunView.open(RecordedRun(run)).overview.begin
    for process, attempt in ((0, 0), (0, 1), (1, 0)):
        sheet = UsageSheet(attempt, process)
        for at in range(10):
            end = began + attempt * NS + (at + 1) * NS // 100
            length = NS // 100
            used = Usage(
                end, length, length, 3 * length, (2 + process) * GIB, 10 * GIB + at, -1 if process else 6 * GIB
            )
            sheet.add(Machine(4, 16 * GIB, -1 if process else 32 * GIB), used)
        sheet.keep(run, last=True)


def shown(run: RunDirectory, tmp_path: Path, look: Look) -> Look:
    place = tmp_path / "page.html"
    place.write_text(of_run(RecordedRun(run)), encoding="utf-8")
    look.open(place)
    return look


def test_a_run_without_samples_has_no_panel(run: RunDirectory, tmp_path: Path, look: Look) -> None:
    shown(run, tmp_path, look).page.wait_for_selector("#usage-card", state="hidden")
    look.check()


def test_processor_and_memory(run: RunDirectory, tmp_path: Path, look: Look) -> None:
    sampled(run)
    page = shown(run, tmp_path, look).page
    bar = page.inner_text("#processor-use").split("\n")
    assert bar[1:] == [
        "this process 25.00 %, 1.0 of 4 cores", "other processes 50.00 %, 2.0 of 4 cores", "idle 25.00 %, 1.0 of 4 cores"
    ]  # fmt: skip
    grown = page.eval_on_selector_all("[data-usage]", "(all) => all.map((one) => Number(one.style.flexGrow))")
    assert grown == [0.25, 0.5, 0.25]
    memory = page.eval_on_selector_all("#usage [data-memory]", "(all) => all.map((one) => one.innerText)")
    assert memory == [
        "this process at most 2.00 GiB of 16.0 GiB", "machine at most 10.0 GiB of 16.0 GiB",
        "accelerators at most 6.00 GiB of 32.0 GiB",
    ]  # fmt: skip
    assert page.locator("#usage canvas").count() == 2
    page.select_option("#usage select", "1")
    assert "process 1" in page.inner_text("#usage .card-head")
    memory = page.eval_on_selector_all("#usage [data-memory]", "(all) => all.map((one) => one.innerText)")
    assert memory[0].startswith("this process at most 3.00 GiB") and len(memory) == 2
    look.js("goodput.state.set({attempt: 2})")
    page.wait_for_selector("#usage p:has-text('No sample was taken in this time')")
    look.check()


def test_accelerators(run: RunDirectory, tmp_path: Path, look: Look) -> None:
    """Two of them, busy three quarters of the time, throttled in the last two of ten samples, at 400 W each."""
    began, length = RunView.open(RecordedRun(run)).overview.begin, NS // 100
    sheet = UsageSheet(0, 0)
    for at in range(10):
        used = Usage(began + (at + 1) * length, length, length, length, GIB, GIB, GIB)
        held = {"throttled_time": 2 * length, "throttled": 1 << (at - 8)} if at > 7 else {}
        known = {"accelerator_time": 2 * length, "accelerator_busy": 3 * length // 2, "accelerator_energy": 8_000}
        sheet.add(Machine(4, 16 * GIB, 32 * GIB), used._replace(**known, **held))
    sheet.keep(run, last=True)
    page = shown(run, tmp_path, look).page
    words = page.eval_on_selector_all("#usage [data-accelerators]", "(all) => all.map((one) => one.innerText)")
    assert words == ["computing 75.00 %, 400 W each", "clocks held down 20.00 % (power_cap, thermal)"]
    assert page.locator("#usage canvas").count() == 3
    look.check()


def test_a_past_moment_has_the_samples_until_then(run: RunDirectory, tmp_path: Path, look: Look) -> None:
    sampled(run)
    began = RunView.open(RecordedRun(run)).overview.begin
    place = tmp_path / "page.html"
    place.write_text(of_run(RecordedRun(run), at=began + NS // 20), encoding="utf-8")
    look.open(place)
    assert look.js("Array.from(goodput.model.usage.process)") == [0] * 5 + [1] * 5
    look.check()
