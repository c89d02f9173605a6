"""Every figure on the page is that of the report and of the journal, read from the page's own text and attributes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from reports.test_rolling import written
from tools.commands import goodput, succeeded

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events
from otel_goodput.semconv import PHASES

from .browser import Look
from .conftest import page_of

NS = 1_000_000_000
PIECES = "#partition .piece[data-category]"


@pytest.fixture(params=["story", "lived"])
def shown(request: pytest.FixtureRequest, look: Look) -> tuple[Look, RunDirectory]:
    """A page, and the run that it shows."""
    return look.open(request.getfixturevalue(f"{request.param}_page")), request.getfixturevalue(request.param)


def report_of(run: RunDirectory, *options: str) -> dict[str, Any]:
    return json.loads(succeeded(goodput("report", run.path, "--json", *options)))


def leaders_report(run: RunDirectory) -> dict[str, Any]:
    """That of the process whose steps and phases the page has."""
    return report_of(run, "--process", "0")


def flat(seconds: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Seconds by category and custom name, without zeros."""
    fixed = {(name, ""): held for name, held in seconds.items() if name != "custom" and held}
    return fixed | {("custom", name): held for name, held in seconds.get("custom", {}).items() if held}


def test_the_partition_is_the_report_to_the_last_digit(shown: tuple[Look, RunDirectory]) -> None:
    look, run = shown
    report = report_of(run)
    expected = flat(report["seconds"])
    for selector in (PIECES, "#partition-table tr[data-category]"):
        pieces = {(one["category"], one["name"]): int(one["ns"]) for one in look.data(selector)}
        assert {name: ns / NS for name, ns in pieces.items()} == expected
        assert sum(pieces.values()) == round(report["elapsed_s"] * NS)
    rows = look.page.eval_on_selector_all(
        "#partition-table tr[data-category]",
        "(all) => all.map((one) => [one.dataset.category, one.dataset.name, one.cells[3].innerText])",
    )
    assert {(category, name): float(text.removesuffix(" s")) for category, name, text in rows} == expected
    assert float(look.text("#partition-table tr.sum td:nth-child(4)").removesuffix(" s")) == report["elapsed_s"]
    assert float(look.data("#goodput .goodput-value")[0]["goodput"]) == report["goodput"]
    assert look.text("#goodput .goodput-value") == f"{100 * report['goodput']:.1f} %"


def test_the_sentence_is_that_of_the_text_report(shown: tuple[Look, RunDirectory]) -> None:
    look, run = shown
    text = " ".join(succeeded(goodput("report", run.path)).split())
    assert look.text("#verdict") in text


def test_the_last_hour_and_day_are_those_of_the_report(look: Look, tmp_path: Path) -> None:
    run = RunDirectory(written(tmp_path, 26 * 60, slow=60))
    look.open(page_of(run, tmp_path / "page.html"))
    shown = look.page.eval_on_selector_all(
        "#figures .figure", "(all) => all.map((one) => [one.querySelector('b').innerText, one.innerText, one.title])"
    )
    windows = [(value, title) for value, words, title in shown if "of the last" in words]
    assert windows[0] == ("30.0 %", "most was lost to data_loading (70.00 %)")
    [day] = [one for one in report_of(run)["rolling"] if one["window"] == "24h"]
    assert windows[1][0] == f"{100 * day['goodput']:.1f} %"
    assert [words.split("\n")[-1] for _, words, _ in shown if "of the last" in words] == [
        "goodput of the last 1 h of the run",
        "goodput of the last 24 h of the run",
    ]


def test_each_attempt_and_each_stretch_of_time_is_a_partition(shown: tuple[Look, RunDirectory]) -> None:
    look, _ = shown
    look.js("goodput.state.set({process: 0})")  # of the job there are bins only
    attempts = look.js("goodput.model.attempts")
    for one in attempts:
        look.page.click(f"#partition [data-choice='{one['number']}']")
        look.until("goodput.state.attempt === given", one["number"])
        look.settle()
        pieces = {(piece["category"], piece["name"]): int(piece["ns"]) / NS for piece in look.data(PIECES)}
        assert pieces == flat(one["seconds"])
    look.page.click("#partition [data-choice='run']")
    end = attempts[-1]["end"]  # the page ends when the last process does, which may be far later
    look.js("goodput.state.set({range: given})", [end // 3, 2 * end // 3])
    look.settle()
    held = [int(piece["ns"]) for piece in look.data(PIECES)]
    assert sum(held) == 2 * end // 3 - end // 3
    look.page.click("#range-clear")
    look.until("goodput.state.range === null")


Key = tuple[str, str, bool]  # phase, name, whether in the background


def grouped(run: RunDirectory) -> tuple[Counter[Key], Counter[Key]]:
    """Count, and ns, of each phase and name: a group-by over the journal."""
    count, total = Counter[Key](), Counter[Key]()

    def key(start: Any) -> Key:
        phase = PHASES[start.phase]
        return phase, start.name or phase, bool(start.flags & ev.NONBLOCKING)

    begun: dict[tuple[int, int], Any] = {}
    attempt = 0
    for event in all_events(run):
        if event.kind == ev.ATTEMPT:
            attempt = event.step
        elif event.kind == ev.START and event.phase != rules.JOB:
            begun[attempt, event.key] = event
            count[key(event)] += 1
        elif event.kind == ev.END and (start := begun.pop((attempt, event.key), None)):
            total[key(start)] += event.time - start.time
    return count, total


def top(look: Look) -> list[tuple[Key, int, int]]:
    rows = look.data("#top-k tr[data-name]")
    return [
        ((one["phase"], one["name"], one["background"] == "true"), int(one["count"]), int(one["ns"])) for one in rows
    ]


def test_the_top_k_is_a_group_by_over_the_journal(shown: tuple[Look, RunDirectory]) -> None:
    look, run = shown
    count, total = grouped(run)
    look.page.fill("#top-k-count", "50")
    look.press("Enter")
    look.until("document.querySelectorAll('#top-k tr[data-name]').length === given", len(count))
    rows = top(look)
    assert {name: (number, ns) for name, number, ns in rows} == {name: (count[name], total[name]) for name in count}
    assert [ns for _, _, ns in rows] == sorted(total.values(), reverse=True)
    look.page.click("#top-k [data-choice=count]")
    assert [number for _, number, _ in top(look)] == sorted(count.values(), reverse=True)
    look.page.fill("#top-k-count", "3")
    look.press("Tab")
    look.until("document.querySelectorAll('#top-k tr[data-name]').length === 3")


def test_the_histogram_counts_executed_steps_and_leads_to_them(shown: tuple[Look, RunDirectory]) -> None:
    look, run = shown
    steps = leaders_report(run)["steps"]
    timed = steps["kept"] + steps["lost"]
    assert sum(int(one["count"]) for one in look.data("#histogram-table [data-count]")) in (timed, timed - 1)
    for measure in ("wall", "net"):
        for scale in ("log", "linear"):
            look.page.click(f"#histogram [data-choice={measure}]")
            look.page.click(f"#histogram [data-choice={scale}]")
            counted = sum(int(one["count"]) for one in look.data("#histogram-table [data-count]"))
            walls = look.column("steps", "wall")
            assert counted == sum(wall >= 0 for wall in walls)
    number = int(look.data("#histogram-table [data-count]")[0]["count"])
    look.page.locator("#histogram .column:not(:disabled)").first.click()
    look.page.wait_for_selector("#histogram-steps button")
    listed = look.page.locator("#histogram-steps button.link")
    assert listed.count() == number
    name = listed.first.inner_text()
    listed.first.click()
    look.until("document.querySelector('#selection h3')?.textContent === given", name)
    begin, end = look.view()
    row = look.state("selected")["row"]
    assert begin < look.column("steps", "start")[row] < end
    look.settle()
    assert look.js("goodput.timeline.spanX('step', given)", row) is not None


def test_the_cadence_and_the_fates_add_up(shown: tuple[Look, RunDirectory]) -> None:
    look, run = shown
    report = leaders_report(run)
    assert "100 %" in look.text("#cadence tr.sum")
    shares = look.page.eval_on_selector_all(
        "#cadence tbody tr:not(.sum)",
        "(all) => all.map((one) => parseFloat(one.cells[one.cells.length - 1].innerText))",
    )
    assert sum(shares) == pytest.approx(100, abs=0.01 * len(shares))
    words = look.text("#fates")
    assert f"{report['started_steps']:,} steps started" in words
    assert f"{report['steps']['kept']:,} kept, {report['steps']['lost']:,} lost" in words


def test_disruptions_are_shown_with_reason_and_cost(story: RunDirectory, story_page: Path, look: Look) -> None:
    look.open(story_page)
    [one] = report_of(story)["disruption_list"]
    row = look.text("#disruptions tr[data-disruption]")
    assert one["reason"] in row
    assert f"step {one['from_step']} → {one['to_step']}" in row
    look.page.click("#disruptions tr[data-disruption] button")
    look.until("document.querySelector('#selection h3')?.textContent === given", f"disruption: {one['reason']}")
    facts = {fact["fact"]: int(fact["ns"]) for fact in look.data("#selection dd[data-ns]")}
    assert facts["until restarted"] == round(one["recovery_s"] * NS)
    assert facts["steps lost"] == round(one["wasted_s"] * NS)
    assert facts["to the first step"] == round(one["first_step_s"] * NS)
    assert facts[f"to regain step {one['kept_step']}"] == round(one["regained_s"] * NS)
    assert f"step {one['kept_step']} after " in row


def test_which_of_several_processes_ended_first(lived: RunDirectory, tmp_path: Path, look: Look) -> None:
    [one] = report_of(lived)["disruption_list"]
    who = f"crash (process {one['process'] if one['process_known'] else 'not known'})"
    look.open(page_of(lived, tmp_path / "lived.html"))
    assert who in look.text("#disruptions tr[data-disruption]")
    look.page.click("#disruptions tr[data-disruption] button")
    look.until("document.querySelector('#selection h3')?.textContent === 'disruption: crash'")
    assert who in look.text("#selection")


def test_the_author_of_a_reason_is_shown(story: RunDirectory, tmp_path: Path, look: Look) -> None:
    run = RunDirectory(Path(shutil.copytree(story.path, tmp_path / "story")))
    [one] = report_of(run)["disruption_list"]
    options = ("--by", "alice <b>", "--note", "rack 7")
    succeeded(goodput("reason", run.path, one["attempt"], "preemption", *options))
    look.open(page_of(run, tmp_path / "said.html"))
    assert f"preemption (originally {one['reason']})" in look.text("#disruptions tr[data-disruption]")
    look.page.click("#disruptions tr[data-disruption] button")
    look.until("document.querySelector('#selection h3')?.textContent === 'disruption: preemption'")
    facts = look.text("#selection")
    for text in ("alice <b>", "rack 7", "original reason", one["reason"]):
        assert text in facts


def test_checkpoints_are_those_of_the_journal(story: RunDirectory, story_page: Path, look: Look) -> None:
    look.open(story_page)
    saves = [event for event in all_events(story) if event.kind == ev.START and event.phase == rules.SAVE]
    assert look.js("goodput.model.saves.rows") == len(saves)
    assert f"{len(saves)} saves" in look.text("#checkpoints .card-head")
    look.page.locator("#checkpoints tbody button").first.click()
    look.until("goodput.state.selected?.kind === 'save'")
