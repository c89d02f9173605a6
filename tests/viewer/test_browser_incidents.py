"""The page shows incidents, where the ranks stand, and profiles: in a panel, on all time axes, and in the headline."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from troubled import CULPRIT, incidents, trouble

from benchmarks.long_run import BEGIN
from otel_goodput import Recorder
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._journal.rundir import RunDirectory

from .browser import Look
from .conftest import EVIL, NS, page_of
from .story import story_run

BEGAN = BEGIN + 4 * NS


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("troubled")
    run = story_run(folder)
    trouble(run, BEGAN, 1, note=EVIL)
    return page_of(run, folder / "page.html")


def cells(look: Look) -> list[list[str]]:
    return look.page.eval_on_selector_all(
        "#incidents-table tbody tr", "(all) => all.map((one) => [...one.cells].map((cell) => cell.innerText))"
    )


def test_incidents_the_latest_first_with_cause_rank_line_cost_and_evidence(page: Path, look: Look) -> None:
    look.open(page)
    (since, lasted, kind, cause, rank, line, paces, cost, known), hang = cells(look)
    assert (since, kind, cause, rank, line) == ("+00:00:08", "slowdown", "step", "all", "train.py:88")
    assert re.fullmatch(r"\d\d\.\d s", lasted)  # it was open when the job ended
    assert (paces, cost) == ("100 ms → 150 ms", "1.00 s")
    assert (
        "a turn of the loop takes 50 % more" in known
        and "lost to step 80.00 %, data_loading of rank 3 20.00 %" in known
    )
    assert hang[1:6] == ["3.00 s", "hang", "data loading", "rank 3", "dataset.py:41"]
    assert EVIL.replace("\u202e", "?") in look.page.locator("#incidents-table tr").last.inner_text()
    assert "2 incidents; cost 3.00 s" in look.text("#incidents .card-head")
    assert look.text("#wrong-now") == ""
    look.page.click("#incidents-table tr[data-kind=hang] button.link")
    begin, end = look.view()
    assert begin < 4 * NS < 7 * NS < end


def test_stacks_by_groups_of_ranks_and_the_profile(page: Path, look: Look) -> None:
    look.open(page)
    assert look.text(".standstill p") == "3 ranks wait in all_reduce at train.py:88; rank 3 is in load at dataset.py:41"
    groups = look.data(".standstill details")
    assert groups == [{"ranks": "0,1,2", "awaited": "false"}, {"ranks": "3", "awaited": "true"}]
    look.page.click("#incidents-table tr[data-kind=hang] button:has-text('Stacks')")
    assert "load /app/dataset.py:41" in look.text(".standstill details[data-awaited=true] ol")
    look.page.click("#incidents-table tr[data-kind=slowdown] button:has-text('Profile of rank 3')")
    shown = look.page.locator(f"details[data-profile='{CULPRIT}-2-1']")
    assert look.js("document.activeElement.tagName") == "SUMMARY"
    assert shown.locator("tbody tr").first.inner_text().split("\t") == [
        "60.00 %",
        "80.00 %",
        "load",
        "app/dataset.py:41",
    ]
    assert "takes 60.00 % of the time; before it took 10.00 %" in shown.locator("summary").inner_text()


def test_they_are_on_the_time_axes(page: Path, look: Look) -> None:
    look.open(page)
    look.at_timeline()
    head = look.js("goodput.timeline.head")
    look.js("goodput.timeline.model.report.incidents.length = 0")
    assert look.js("goodput.timeline.head") == head - 18
    look.open(page)
    look.at_timeline()
    colors = look.js(
        """(() => {
            const timeline = goodput.timeline;
            timeline.draw();
            const ratio = window.devicePixelRatio || 1;
            const x = (ns) => Math.round(timeline.frame.x(ns));
            const y = Math.round((timeline.head - 3) * ratio);
            const image = timeline.context.getImageData(0, y, timeline.canvas.width, 1).data;
            const color = (ns) => [...image.slice(4 * x(ns), 4 * x(ns) + 3)].join();
            return [color(2e9), color(5e9), color(9e9)];
        })()"""
    )
    assert len(set(colors)) == 3, colors  # nothing, a hang, and a slowdown
    plot = look.js(
        """(() => {
            const canvas = document.querySelector("#shares canvas");
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const bad = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
            const [red, green, blue] = [1, 3, 5].map((at) => parseInt(bad.slice(at, at + 2), 16));
            let count = 0;
            for (let at = 0; at < image.length; at += 4) if (image[at] === red && image[at + 1] === green && image[at + 2] === blue) count++;
            return count;
        })()"""
    )
    assert plot > 20


def test_what_is_wrong_now_is_in_the_headline(tmp_path: Path, look: Look) -> None:
    recorder = Recorder("now", run_id="now", directory=tmp_path, exporters="none")
    with recorder.job(), recorder.step(0):
        trouble(RunDirectory(tmp_path / "now"), time.time_ns() - 10 * NS)
        look.open(page_of(RunDirectory(tmp_path / "now"), tmp_path / "page.html"))
    recorder.shutdown()
    assert re.match(r"open\s*slowdown since \S+: a turn of the loop takes 50 % more", look.text("#wrong-now"))
    assert cells(look)[0][1].endswith(", still open")
    assert "2 incidents, 1 open; cost 3.00 s" in look.text("#incidents .card-head")
    look.page.click("#wrong-now button")
    look.js("(goodput.model.report.incidents[1].ended = 1e10, goodput.state.tell(['model']))")
    look.until("document.getElementById('wrong-now').textContent === ''")


def test_a_run_without_incidents_has_no_panel(story_page: Path, look: Look) -> None:
    look.open(story_page)
    look.page.wait_for_selector("#incidents-card", state="hidden")
    assert look.text("#wrong-now") == ""


def test_a_long_list_is_folded_and_bounded(tmp_path: Path, look: Look) -> None:
    run = story_run(tmp_path)
    look.open(page_of(_many(run), tmp_path / "page.html"))
    assert len(cells(look)) == 6
    look.page.click("#incidents button:has-text('All 100')")
    assert len(cells(look)) == 100
    assert re.match(r"\+00:00:0\d", cells(look)[0][0])


def _many(run: RunDirectory) -> RunDirectory:
    sheet = IncidentSheet(1, 0)
    hang = incidents(BEGAN)[0]
    for number in range(1, 121):
        sheet.put(hang._replace(number=number))
    sheet.keep(run, last=True)
    return run
