"""Every panel of the page of a job of several ranks is the job's, until process 0 is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_goodput.reports.run import RecordedRun

from .browser import Look
from .conftest import NS, page_of
from .ranks import Slow, ranks_run

RANKS = 4

PANELS = """(() => {
    const text = (selector) => document.querySelector(selector)?.textContent ?? "";
    const sum = (selector, name) => [...document.querySelectorAll(selector)].reduce((all, one) => all + Number(one.dataset[name]), 0);
    return {
        of: text("#panels-of"),
        heads: ["histogram", "cadence", "fates", "top-k", "checkpoints", "disruptions"].map((id) => text(`#${id} .card-head`)),
        timed: sum("#histogram-table [data-count]", "count"),
        fates: text("#fates .card-head"),
        disruption: text("#disruptions tr[data-disruption]"),
        saves: document.querySelectorAll("#checkpoints tbody tr").length,
        failed: text("#top-k tbody").includes("failed"),
        steps: Number(document.querySelector("#top-k tr[data-phase=step]").dataset.count),
        cadence: sum("#cadence tr:not(.sum)[data-ns]", "ns") - sum("#cadence tr.sum", "ns"),
        risk: text("#checkpoints"),
        lanes: goodput.timeline.lanes().map((one) => one.name),
        pieces: sum("#partition .piece[data-category]", "ns"),
    };
})()"""


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def agrees(shown: dict[str, Any], report: dict[str, Any], whose: str) -> None:
    steps, [loss] = report["steps"], report["disruption_list"]
    assert shown["of"].startswith(f"Steps and phases of {'the ' if 'job' in whose else ''}{whose}")
    assert all(f"{whose}, " in head for head in shown["heads"]), shown["heads"]
    assert shown["timed"] in (report["started_steps"], report["started_steps"] - 1)  # one was cut off
    assert shown["steps"] == report["started_steps"]
    assert f"{steps['kept']} kept, {steps['lost']} lost" in shown["fates"]
    assert (
        seconds(loss["wasted_s"]) in shown["disruption"]
        and f"step {loss['from_step']} → {loss['to_step']}" in shown["disruption"]
    )
    assert shown["saves"] == 3 and not shown["failed"] and not shown["cadence"]
    assert f"Now at risk: {seconds(report['at_risk_s'])}" in shown["risk"]
    assert shown["pieces"] == round(report["elapsed_s"] * NS)


def test_each_panel_is_the_jobs_until_process_0_is_chosen(look: Look, tmp_path: Path) -> None:
    run = ranks_run(tmp_path, RANKS, 90, [Slow(2, 20, 40, 230)], dies_in=60, back=6, saves=25)
    job, own = (dict(RecordedRun(run).report(process=process).to_json()) for process in (None, 0))
    assert job["disruption_list"][0]["wasted_s"] != own["disruption_list"][0]["wasted_s"]
    look.open(page_of(run, tmp_path / "page.html"))
    shown = look.js(PANELS)
    agrees(shown, job, f"job of {RANKS} ranks")
    assert shown["lanes"][:6] == ["run", "attempts", "partition", "all attempts", "job", "steps"]
    assert {f"process {rank}" for rank in range(RANKS)} < set(shown["lanes"])

    # A step of the job leads to the same step of single processes.
    look.page.locator("#slowest-steps button.link").first.click()
    look.until("document.querySelector('#selection h3')?.textContent.startsWith('step')")
    assert "step" in look.text("#selection") and "on process 0" in look.text("#selection")
    begin, end = 5 * NS, 50 * NS
    look.js("goodput.state.set({range: given})", [begin, end])
    look.settle()
    assert look.js(PANELS)["pieces"] == end - begin  # to the nanosecond, as for one process
    assert "≈" not in look.text("#partition .card-head")
    look.js("goodput.state.set({range: null})")

    look.page.select_option("#subject select", "0")
    look.until("document.querySelector('#goodput .goodput-word').textContent === 'goodput of process 0'")
    look.settle()
    shown = look.js(PANELS)
    agrees(shown, own, "process 0")
    assert "job" not in shown["lanes"] and "steps" in shown["lanes"]
    assert "process=0" in look.js("goodput.state.toHash()")

    look.page.select_option("#subject select", "2")
    look.until("document.querySelector('#goodput .goodput-word').textContent === 'goodput of process 2'")
    look.settle()
    look.settle()
    shown = look.js(PANELS)
    assert "of process 2 the page has the time by category" in shown["of"]
    assert all(f"job of {RANKS} ranks, " in head for head in shown["heads"])
    look.page.select_option("#subject select", "")
    look.until("document.querySelector('#goodput .goodput-word').textContent === 'goodput of the job'")
    look.settle()
    agrees(look.js(PANELS), job, f"job of {RANKS} ranks")
