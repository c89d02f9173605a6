"""What is selected leads to what it belongs to: attempts, checkpoints, the device, other ranks."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import otel_goodput as goodput
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer import page
from otel_goodput._viewer.document import document
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

from .browser import Look, rows
from .conftest import page_of


def test_connections_lead_from_one_to_the_other(timeline: Look) -> None:
    def follow(title: str) -> None:
        timeline.page.locator("#connections button", has_text=title).first.click()

    timeline.js("goodput.timeline.select({kind: 'disruption', row: 0, process: 0})")
    follow("next: attempt 2")
    timeline.until("goodput.state.selected.kind === 'attempt'")
    timeline.js("goodput.timeline.select({kind: 'disruption', row: 0, process: 0})")
    follow("went back to step 60")
    timeline.until("document.querySelector('#selection h3').textContent === 'step 60'")
    again = timeline.state("selected")["row"]
    assert timeline.column("steps", "attempt")[again] == 2
    follow("the same step in attempt 1")
    timeline.until("goodput.state.selected.row !== given", again)
    assert timeline.column("steps", "attempt")[timeline.state("selected")["row"]] == 1
    follow("dispatch → device")
    assert timeline.state("selected")["kind"] == "step"
    timeline.js("goodput.timeline.select({kind: 'save', row: 0, process: 0})")
    follow("save → commit → durable")
    begin, end = timeline.view()
    assert begin < timeline.column("saves", "durable_at")[0] < end
    follow("holds step 19")
    timeline.until("document.querySelector('#selection h3').textContent === 'step 19'")


def test_a_rollback_within_an_attempt_leads_back(tmp_path: Path, look: Look) -> None:
    recorder = goodput.Recorder("back", run_id="back", directory=tmp_path, exporters="none")
    with recorder.job():
        for first, last in ((0, 20), (10, 29)):
            if first:
                with recorder.checkpoint_restore(first - 1):
                    pass
            for number in range(first, last + 1):
                with recorder.step(number):
                    time.sleep(0.002)
                if number == 9:
                    with recorder.checkpoint_save(number):
                        pass
    report = recorder.report().to_json()
    recorder.shutdown()
    look.open(page_of(RunDirectory(tmp_path / "back"), tmp_path / "back.html"))
    assert report["disruption_reasons"] == {"rollback": 1} and report["steps"]["lost"] == 11
    assert "rollback" in look.text("#disruptions")
    numbers, fates = look.column("steps", "number"), look.column("steps", "fate")
    assert [number for number, fate in zip(numbers, fates, strict=True) if fate == 1] == list(range(10, 21))
    look.at_timeline()
    look.js("goodput.timeline.select({kind: 'disruption', row: 0, process: 0})")
    look.settle()  # it is drawn, with its arrows
    links = look.page.locator("#connections button").all_inner_texts()
    assert "went back to step 10" in links and "first lost step: 10 in attempt 1" in links
    look.page.locator("#connections button", has_text="went back to step 10").click()
    look.until("document.querySelector('#selection h3').textContent === 'step 10'")
    assert look.column("steps", "fate")[look.state("selected")["row"]] == 0
    look.page.locator("#connections button", has_text="the same step in attempt 1").click()
    look.until("goodput.model.steps.fate[goodput.state.selected.row] === 1")
    assert "lost" in look.text("#selection")
    look.page.locator("#connections button", has_text="lost by rollback").click()
    look.until("goodput.state.selected.kind === 'disruption'")


def test_a_step_is_connected_with_the_same_step_on_all_ranks(timeline: Look) -> None:
    row = timeline.column("steps", "number").index(42)
    timeline.js("goodput.timeline.select({kind: 'step', row: given, process: 0})", row)
    net = {one["fact"]: text for one, text in rows(timeline)}["net"]
    links = timeline.page.locator("#connections button", has_text="on process")
    assert links.all_inner_texts() == [f"step 42 on process {process}" for process in (1, 2, 3)]
    connection = timeline.page.locator("#connections li", has_text="on process 2").inner_text()
    assert net.startswith(connection.rpartition("net ")[2])  # they did what the leader did
    links.nth(1).click()
    timeline.until("goodput.state.selected.kind === 'bin'")
    selected = timeline.state("selected")
    assert selected["process"] == 2
    begin, end = (int(one["ns"]) for one in timeline.data("#selection dd[data-ns]") if one["fact"] in ("begin", "end"))
    assert begin <= timeline.column("steps", "start")[row] < end
    first, last = timeline.view()
    assert first < begin < end < last
    [lane] = [one for one in timeline.js("goodput.timeline.lanes()") if one["name"] == "process 2"]
    assert 0 <= lane["y"] < timeline.js("goodput.timeline.height")


def test_of_many_ranks_the_slowest_are_shown_and_how_many_more_there_are(
    story: RunDirectory, look: Look, tmp_path: Path
) -> None:
    session = RunView.open(RecordedRun(story))
    template = session.processes[1]
    session.processes = [session.processes[0]]
    for process in range(1, 40):
        steps = [one._replace(net_median=process * 10**6) for one in template.steps]
        session.processes.append(replace(template, index=process, steps=steps))
    path = tmp_path / "many.html"
    path.write_text(page.html(document(session)), encoding="utf-8")
    look.open(path)
    look.js("goodput.timeline.select({kind: 'step', row: 42, process: 0})")
    texts = [text for text in look.page.locator("#connections li").all_inner_texts() if "process" in text]
    assert [text.split(" net ")[0] for text in texts[:12]] == [
        f"step 42 on process {process}" for process in range(39, 27, -1)
    ]
    assert texts[12:] == ["and on 27 more processes, none of them slower down to 1.00 ms"]
