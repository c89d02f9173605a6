"""The page of a job of several ranks: whose figures it shows, and the map on which a rank that is slow for a while is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import warm
from tools.commands import environment, goodput, succeeded
from tools.perfetto_rules import chrome

from otel_goodput._accounting.incidents import Incident, Source
from otel_goodput._accounting.own_time import OwnTime
from otel_goodput._accounting.stragglers import Stragglers
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._journal.rundir import RunDirectory

from .browser import Look, evaluated, looking
from .conftest import EVIL, NS, page_of
from .ranks import BEGIN, Slow, ranks_run, with_own_times
from .served import serving

RANKS, STEPS = 8, 240
# Rank 5 loads for so long that its own goodput falls from 92 to 80 %.
DROP = Slow(5, 90, 150, 230)

# The color that the map has for a rank at a share of the time. (Canvases that are read often are others: it says so.)
COLOR = """(() => {
    const canvas = document.querySelector("#heatmap canvas");
    const [rank, share] = given;
    const [left, axis] = [64, 20];
    const ratio = canvas.width / canvas.clientWidth;
    const high = (canvas.clientHeight - axis) / goodput.model.processes.length;
    const x = (left + share * (canvas.clientWidth - left)) * ratio;
    const copy = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height});
    const context = copy.getContext("2d", {willReadFrequently: true});
    context.drawImage(canvas, 0, 0);
    return [...context.getImageData(x, (rank + 0.25) * high * ratio, 1, 1).data].slice(0, 3);
})()"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = ranks_run(tmp_path_factory.mktemp("ranks"), RANKS, STEPS, [DROP], host=f"{EVIL} n")
    sheet = IncidentSheet(1, 0)
    sheet.put(Incident(1, "slowdown", Source("step", "", 6), BEGIN + 90 * NS, BEGIN + 120 * NS, BEGIN + 180 * NS))
    sheet.keep(run, last=True)
    return with_own_times(run, RANKS, 8, {6: (3, 6)})


@pytest.fixture(scope="module")
def job_page(job: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(job, tmp_path_factory.mktemp("page") / "ranks.html")


def test_the_map_of_own_times_shows_the_slow_rank_and_its_pattern(
    job: RunDirectory, job_page: Path, look: Look
) -> None:
    look.open(job_page)
    words = look.text("#own-times-words")
    assert words.startswith(f"Chronic: rank 6 on {EVIL} n1 is slow most of the time, 3 of 5 times since 2026-")
    [slow] = report_of(job)["ranks"]["own"]["slow"]
    assert f"without it, the job would have been {100 * slow['gain_without']:.2f} % faster" in words

    def color(rank: int, share: float) -> list[int]:
        answer: list[int] = look.js(COLOR.replace("#heatmap", "#own-times"), [rank, share])
        return answer

    # Windows of 30 s, of which the fourth to the sixth are those of rank 6.
    whole = look.js("goodput.model.end") / NS
    during, before, edge = color(6, 135 / whole), color(6, 45 / whole), color(2, 90 / whole)
    assert sum(before) - sum(during) > 200 and color(2, 135 / whole) == before == color(6, 200 / whole)
    assert edge != before, "the begin of an incident"
    heat = look.page.locator("#own-times canvas")
    assert heat.get_attribute("aria-describedby") == "own-times-words"
    box = heat.bounding_box()
    heat.hover(position={"x": 64 + (box["width"] - 64) * 135 / whole, "y": 6.5 * (box["height"] - 20) / RANKS})
    tip = look.text("#own-times .tip")
    for text in (
        f"rank 6 ({EVIL} n1)",
        "by 31.6 % of a turn",
        "the others wait for it",
        "incident: a turn of the loop",
    ):
        assert text in tip
    heat.focus()
    look.press("ArrowDown", "ArrowDown")
    assert f"rank 2 ({EVIL} n0)" in look.text("#own-times .tip")
    look.press("Enter")
    look.until("goodput.state.process === 2")
    look.page.click("#own-times [data-choice=cost]")
    look.page.click("#own-times summary")
    rows = look.page.locator("#own-times-table tbody tr")
    look.until("document.querySelectorAll('#own-times-table tbody tr').length === 8")
    assert "rank 6 983 ms (+31.6 %, slow), rank 0 667 ms (+0 %)" in rows.nth(2).inner_text()
    begin, end = 0, 60 * NS
    look.js("goodput.state.set({range: given})", [begin, end])
    look.settle()
    assert "2 windows, 8 ranks" in look.text("#own-times .card-head")
    look.js("goodput.state.set({range: null})")
    # A window that ends while the page is open comes without another document.
    look.js(
        """(() => {
            const {own_latest: latest} = goodput.model;
            const end = String(BigInt(latest.end) + 30000000000n);
            goodput.model.own_latest = {...latest, begin: latest.end, end, ranks: latest.ranks.map(([rank]) => [rank, 500, 0, 0])};
            goodput.state.tell(["model"]);
            goodput.state.tell(["model"]);
        })()"""
    )
    assert "9 windows, 8 ranks" in look.text("#own-times .card-head")
    look.until("document.querySelectorAll('#own-times-table tbody tr').length === 9")
    look.js("(goodput.model.own_texts = ['Nobody.'], goodput.state.tell(['model']))")
    assert look.text("#own-times-words") == "Nobody."


def test_of_many_ranks_the_map_has_the_slowest_and_shares_of_all(chromium: Any) -> None:
    stragglers = Stragglers(30 * NS)
    stragglers.look(0, 0, dict.fromkeys(range(512), OwnTime()))
    for number in (1, 2, 3):
        whole, usual = number * 120, 60 + number
        own = {rank: OwnTime(whole, whole, number * (usual if rank != 77 else 2), 0, 30 * NS, 0) for rank in range(512)}
        stragglers.look(30 * NS * number, 1000 * number, own)
    windows = stragglers.times().windows
    shown = evaluated(
        chromium, SHOWS, "shows.own(given, 3)", [[w.usual, w.turn, w.compared, w.bands, w.ranks] for w in windows]
    )
    assert shown["names"] == ["slowest", "99 %", "90 %", "77", *map(str, range(7))]
    slowest, _, most, culprit, other = (shown["cells"][3 * row : 3 * row + 3] for row in (0, 1, 2, 3, 10))
    assert slowest == culprit == pytest.approx([59 / 120, 61 / 120, 63 / 120], abs=0.003) and most == [0, 0, 0]
    assert other == [0, 0, 0]


def whole_text(run: RunDirectory) -> str:
    return " ".join(succeeded(goodput("report", run.path)).split())


@cache
def report_at(path: Path, *options: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(succeeded(goodput("report", path, "--json", *options)))
    return report


def report_of(run: RunDirectory, *options: str) -> dict[str, Any]:
    return report_at(run.path, *options)


def held(look: Look) -> dict[str, float]:
    return {one["category"]: int(one["ns"]) / NS for one in look.data("#partition .piece[data-category]")}


def without_zeros(seconds: dict[str, Any]) -> dict[str, float]:
    return {name: spent for name, spent in seconds.items() if spent}


def test_the_figures_are_those_of_the_job_until_a_process_is_chosen(
    job: RunDirectory, job_page: Path, look: Look
) -> None:
    look.open(job_page)
    whole = report_of(job)
    assert look.text("#goodput .goodput-value") == f"{100 * whole['goodput']:.1f} %"
    assert look.text("#goodput .goodput-word") == "goodput of the job"
    assert held(look) == without_zeros(whole["seconds"])
    assert "job of 8 ranks" in look.text("#partition .card-head")
    for process in (0, 5):
        own = report_of(job, "--process", str(process))
        look.page.select_option("#subject select", str(process))
        look.until(
            "document.querySelector('#goodput .goodput-word').textContent === given", f"goodput of process {process}"
        )
        look.settle()
        assert look.text("#goodput .goodput-value") == f"{100 * own['goodput']:.1f} %"
        assert held(look) == without_zeros(own["seconds"])
        assert f"process {process} of 8" in look.text("#partition .card-head")
        begin, end = (look.js("goodput.model.end") * part // 4 for part in (1, 3))
        look.js("goodput.state.set({range: given})", [begin, end])
        look.settle()
        assert sum(held(look).values()) == pytest.approx((end - begin) / NS, rel=0.005)
        look.js("goodput.state.set({range: null})")
    look.page.select_option("#subject select", "")
    look.until("document.querySelector('#goodput .goodput-word').textContent === 'goodput of the job'")
    assert look.state("process") is None


def test_a_rank_that_drops_from_92_to_80_percent_is_seen(job_page: Path, look: Look) -> None:
    look.open(job_page)
    slow = (DROP.first + DROP.last) / 2 / STEPS

    def color(rank: int, share: float) -> list[int]:
        answer: list[int] = look.js(COLOR, [rank, share])
        return answer

    def apart(one: list[int], other: list[int]) -> int:
        return max(abs(a - b) for a, b in zip(one, other, strict=True))

    usual = color(3, slow)
    assert all(apart(color(rank, slow), usual) < 30 for rank in range(RANKS) if rank != 5)
    assert apart(color(5, slow), usual) > 90
    assert apart(color(5, 0.2), usual) < 30 and apart(color(5, 0.9), usual) < 30
    # On the scale the usual is bright, and what is less is darker.
    assert sum(color(5, slow)) < sum(usual)
    words = look.text("#heatmap-words")
    assert words.startswith("Median goodput 9") and f"rank 5 ({EVIL} n1) 8" in words
    assert words.count("rank ") == 1
    assert look.page.get_attribute("#heatmap canvas", "aria-describedby") == "heatmap-words"


def test_the_map_tells_of_a_cell_and_leads_to_the_process(job_page: Path, look: Look) -> None:
    look.open(job_page)
    heat = look.page.locator("#heatmap canvas")
    box = heat.bounding_box()
    high = (box["height"] - 20) / RANKS
    x = 64 + (box["width"] - 64) * (DROP.first + DROP.last) / 2 / STEPS
    heat.hover(position={"x": x, "y": 5.5 * high})
    tip = look.text("#heatmap .tip")
    for words in (f"rank 5 ({EVIL} n1)", "goodput", "data loading", "the job waited for it"):
        assert words in tip
    heat.focus()
    look.press("ArrowDown", "ArrowDown")
    assert f"rank 2 ({EVIL} n0)" in look.text("#heatmap .tip")
    look.press("Enter")
    look.until("goodput.state.process === 2")
    look.until("goodput.timeline.activeRow().title === 'process 2'")
    heat.click(position={"x": x, "y": 5.5 * high})
    look.until("goodput.state.process === 5")
    look.until(
        "document.getElementById('headline').textContent.includes(given)", f"rocess 5 of {RANKS} on host {EVIL} n1"
    )
    # The ranks for which the job waited come first.
    look.page.click("#heatmap [data-choice=waits]")
    look.settle()
    heat.hover(position={"x": x, "y": 0.5 * high})
    assert f"rank 5 ({EVIL} n1)" in look.text("#heatmap .tip")
    look.page.select_option("#heatmap select", label="data loading")
    look.settle()
    assert "Higher than the others: rank 5" in look.text("#heatmap-words")


def test_what_was_lost_to_ranks_is_that_of_the_report(job: RunDirectory, job_page: Path, look: Look) -> None:
    look.open(job_page)
    longest = report_of(job)["ranks"]["waits"][0]
    line = look.text("#of-ranks")
    who, host, since = line.partition(EVIL)
    assert (
        who.endswith("% of the time the job waited for rank 5, data_loading on host ")
        and host
        and since.startswith(" n1, since ")
    )
    assert who.strip() in whole_text(job)
    [row] = look.data("#waits-table tr[data-rank]")
    assert (row["rank"], row["category"]) == ("5", "data_loading") == (str(longest["rank"]), longest["category"])
    assert f"{longest['seconds']:.3g} s" in look.text("#waits-table tr[data-rank]")
    look.page.locator("#waits button", has_text="All").click()
    assert len(look.data("#waits-table tr[data-rank]")) == len(report_of(job)["ranks"]["waits"])
    look.page.locator("#waits-table button", has_text="rank 5").click()
    look.until("goodput.state.process === 5")


def test_the_share_of_each_category_is_in_the_table(job: RunDirectory, job_page: Path, look: Look) -> None:
    look.open(job_page)
    report = report_of(job)
    shares = look.page.eval_on_selector_all(
        "#partition-table tr[data-category]",
        "(all) => all.map((one) => [one.dataset.category, one.cells[1].innerText])",
    )
    expected = {
        name: f"{100 * spent / report['elapsed_s']:.2f} %" for name, spent in without_zeros(report["seconds"]).items()
    }
    assert dict(shares) == expected


def test_a_trace_has_a_track_of_the_job(job: RunDirectory, tmp_path: Path) -> None:
    succeeded(goodput("export", job.path, "--perfetto", tmp_path / "trace.json"))
    trace = chrome(tmp_path / "trace.json")
    longest = report_of(job)["ranks"]["waits"][0]
    [slow, *others] = sorted(trace.of("the job waits for"), key=lambda one: -one.args["waited_s"])
    assert slow.name == "rank 5: data_loading" and slow.args["rank"] == 5
    assert slow.args["waited_s"] == pytest.approx(longest["seconds"], rel=0.05)
    assert all(one.args["waited_s"] < 0.1 for one in others)
    (time, share) = trace.values["goodput of the job"][-1]
    assert share == pytest.approx(100 * report_of(job)["goodput"])
    assert all(one.end <= time for one in trace.of("the job waits for"))


RANK = """
import os, sys, time
from pathlib import Path
import otel_goodput as goodput
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
goodput.configure("ranks", run_id="live", directory=folder / "runs", exporters="none")
with goodput.job():
    for number in range(100_000):
        with goodput.data_loading():
            time.sleep(0.03 if rank else 0.002)
        with goodput.step(number):
            (folder / f"{number}-{rank}").touch()
            while not (folder / f"{number}-{1 - rank}").exists():
                time.sleep(0.001)
            time.sleep(0.02)
        if number == 20:
            print("stepping", flush=True)
"""


def test_the_map_of_a_running_job_goes_on(tmp_path: Path, chromium: Any) -> None:
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                warm.Process(
                    [sys.executable, "-c", RANK, str(tmp_path)],
                    env={**environment(), "RANK": str(rank), "WORLD_SIZE": "2"},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        for process in ranks:
            stack.callback(process.kill)
            assert process.stdout and process.stdout.readline().strip() == "stepping"
        server = stack.enter_context(serving(tmp_path / "runs"))
        look = stack.enter_context(looking(chromium, f"http://127.0.0.1:{server.port}/"))
        look.page.goto(server.address)
        look.page.click("tr[data-run='live'] a")
        look.page.wait_for_selector("html[data-ready=yes]")
        look.until("goodput.model.job?.ranks === 2")
        assert look.text("#goodput .goodput-word") == "goodput of the job"
        known, own = look.js("[goodput.model.report.elapsed_s, goodput.model.leader.report.elapsed_s]")
        look.until("goodput.model.leader.report.elapsed_s > given + 1", own)
        # On a busy machine it may first have been waited longer for the other one, until both had started.
        look.until("document.querySelector('#waits-table tr[data-rank]').textContent.includes('rank 1')")
        # The job's figures and steps come without another document.
        steps, elapsed = look.js("[goodput.model.steps.rows, goodput.model.report.elapsed_s]")
        look.until("goodput.model.report.elapsed_s > given[1] && goodput.model.steps.rows > given[0]", [steps, elapsed])
        assert "job" in look.js("goodput.timeline.lanes().map((one) => one.name)")
        assert "as of" in look.text("#standing")
        assert len(look.data("#open-table tr[data-rank]")) == 2
        for process in ranks:
            process.kill()
        look.until("goodput.model.report.elapsed_s > given + 1", known)
        look.until("goodput.model.report.state === 'died'")
        look.until("document.getElementById('standing').textContent.includes('died')")
        assert look.text("#goodput .goodput-word") == "goodput of the job"


SHOWS = Path(__file__).with_name("ranks.js")


def lightness(color: list[int]) -> float:
    """CIE L*, 0 to 100."""
    linear = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (part / 255 for part in color)
    ]
    return float(116 * sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) ** (1 / 3) - 16)


def test_the_scale_goes_one_way_and_is_steep_below_the_median(chromium: Any) -> None:
    medians = [0.3, 0.75, 0.92, 0.99]
    both = "given.map((median) => [shows.colors(median, true), shows.colors(1 - median, false)])"
    for median, (of_good, of_loss) in zip(medians, evaluated(chromium, SHOWS, both, medians), strict=True):
        good, loss, middle = [*map(lightness, of_good)], [*map(lightness, of_loss)], round(100 * median)
        assert all(later > earlier - 0.2 for earlier, later in pairwise(good))  # colors are rounded
        assert all(later < earlier + 0.2 for earlier, later in pairwise(loss))
        assert good[middle] - good[middle - 12] > 25  # of 75 from end to end; a scale from 0 to 100 has 9
        assert loss[100 - middle] - loss[100 - middle + 12] > 25


def test_cells_are_means_over_time_and_the_worst_of_rows_that_share_one(chromium: Any) -> None:
    usual = [235] * 8
    dips = [*usual[:4], 204, 204, *usual[:2]]
    both = "[shows.map(given, 4), shows.rowsOf([8, 512, 5000])]"
    shown, (few, full, many) = evaluated(chromium, SHOWS, both, [usual, usual, usual, dips])
    assert shown["median"] == pytest.approx(0.92, abs=0.003)
    assert shown["cells"][12:] == pytest.approx([0.92, 0.92, 0.8, 0.92], abs=0.003)
    assert shown["worst"] == pytest.approx([0.92] * 4 + [0.92, 0.92, 0.8, 0.92], abs=0.003)
    [aside] = shown["aside"]
    assert (aside["row"], aside["first"], aside["last"]) == (3, 2, 2)
    assert (few["together"], few["rowHeight"], full["together"], full["rowHeight"]) == (1, 22, 1, 1)
    assert many["rowHeight"] * 5000 / many["together"] <= 512
