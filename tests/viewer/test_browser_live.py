"""``otel-goodput serve`` in a browser: a job that runs and is killed, the index, and two runs side by side."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from tools.commands import finished, goodput, killed, succeeded
from troubled import trouble

from otel_goodput._journal.rundir import RunDirectory

from .browser import Look, looking
from .conftest import NS
from .served import Server, living, serving

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended and one that was killed; tests have a copy each."""
    made = tmp_path_factory.mktemp("made") / "runs"
    finished("first", made, last=12, OTEL_GOODPUT_STEP_SAMPLING="50")
    killed("second", made)
    return made


@pytest.fixture
def place(tmp_path: Path, runs: Path) -> Path:
    return Path(copytree(runs, tmp_path / "runs"))


@pytest.fixture
def server(place: Path) -> Iterator[Server]:
    with serving(place) as started:
        yield started
        assert started.errors.read_text() == ""


@pytest.fixture
def look(chromium: Any, server: Server) -> Iterator[Look]:
    with looking(chromium, f"http://127.0.0.1:{server.port}/") as opened:
        yield opened.open(server.address)


def test_a_run_appears_goes_on_and_dies(look: Look, place: Path, server: Server) -> None:
    look.open(f"http://127.0.0.1:{server.port}/")
    assert {one["run"]: one["state"] for one in look.data("#runs-table tr[data-run]")} == {
        "first": "ended",
        "second": "died",
    }
    [row] = [one for one in json.loads(succeeded(goodput("runs", place, "--json")))["runs"] if one["run_id"] == "first"]
    cells = look.page.eval_on_selector_all("tr[data-run=first] td", "(all) => all.map((one) => one.innerText)")
    assert cells[3:5] == [f"{100 * one:.1f} %" for one in (row["goodput"], row["rolling"]["1h"])]
    with living("third", place) as job:
        look.until("document.querySelector(`tr[data-run='third']`)?.dataset.state === 'running'")
        wrong = "document.querySelector(`tr[data-run='third'] td:last-child`).innerText"
        assert look.js(wrong) == "–"
        trouble(RunDirectory(place / "third"), time.time_ns() - 10 * NS)
        look.until(f"/^slowdown, \\d+ s ago\\n2 in all$/.test({wrong})")
        look.page.click("tr[data-run='third'] a")
        look.page.wait_for_url("**/runs/third")
        look.page.wait_for_selector("html[data-ready=yes]")
        look.until("document.getElementById('live-state').dataset.kind === 'live'")
        assert "running" in look.text("#standing")
        last, elapsed = look.js("[goodput.model.report.last_step, goodput.model.report.elapsed_s]")
        look.until(
            "goodput.model.report.last_step > given[0] && goodput.model.report.elapsed_s > given[1]", [last, elapsed]
        )
        # What is selected and shown stays, and the timeline has what is new.
        look.js("goodput.timeline.select({kind: 'step', row: 1, process: 0})")
        look.js("goodput.timeline.fit(0, 1e8)")
        view, rows = look.view(), look.js("goodput.model.steps.rows")
        look.until("goodput.model.steps.rows > given + 5", rows)
        # More than a second is sent: what ended in the gaps between is not drawn as open, along with all that follows.
        counted = "goodput.timeline.tree.ownLanes.find((lane) => lane.key === 'steps').tracks[0].length"
        look.until(f"{counted} === goodput.model.steps.wall.filter((wall) => wall !== -2).length")
        look.until("goodput.model.steps.wall.filter((wall) => wall === -2).length > 0")
        for _ in range(3):
            rows = look.js("goodput.model.steps.rows")
            look.until("goodput.model.steps.rows !== given", rows)
            assert look.js("goodput.model.steps.wall.filter((wall) => wall === -1).length") <= 1, "steps in flight"
        assert look.view() == view
        assert look.text("#selection h3") == "step 1"
        job.send_signal(signal.SIGKILL)
        look.until("document.getElementById('standing').textContent.includes('died')")
    report = json.loads(succeeded(goodput("report", place / "third", "--json")))
    look.until("goodput.model.report.elapsed_s === given", report["elapsed_s"])
    look.settle()
    held = [int(one["ns"]) for one in look.data("#partition .piece[data-category]")]
    assert sum(held) == round(report["elapsed_s"] * 1e9)
    look.page.click("a.back")
    look.page.wait_for_selector("tr[data-run='third'][data-state='died']")


# What must hold in a page at any moment: nothing twice, all in order, and owners and bins that add up to the same.
SOUND = """(() => {
    const {model, timeline} = goodput;
    const starts = Array.from(model.steps.start);
    const lane = (key) => timeline.tree.ownLanes.find((one) => one.key === key).tracks;
    const owned = model.owners.length.reduce((sum, one) => sum + one, 0);
    const binned = model.bins.categories.flatMap((one) => [...model.bins.values[one]]).reduce((sum, one) => sum + one, 0);
    const next = Array.from(model.owners.begin).slice(1);
    return starts.every((one, at) => !at || one > starts[at - 1])
        && new Set(model.steps.number).size === starts.length
        && next.every((one, at) => one === model.owners.begin[at] + model.owners.length[at])
        && owned === model.known && Math.round(binned) === owned && model.known <= model.end
        && lane("steps").length === 1 && lane("steps")[0].length === starts.length
        && lane("loading").length === 1;
})()"""


def spans_between_documents(look: Look) -> tuple[list[float], float, float]:
    """What stood when it began (rows, unix ms, when the document was made); ms until 20 more steps; age of the newest."""
    before = look.js("[goodput.model.steps.rows, Date.now(), goodput.model.made_at]")
    look.until("goodput.model.steps.rows > given[0] + 20", before)
    late = look.js("Date.now() - given[1]", before)
    look.until("goodput.model.steps.wall[goodput.model.steps.rows - 1] < 0")
    began = "goodput.model.origin_ms + goodput.model.steps.start[goodput.model.steps.rows - 1] / 1e6"
    rows = look.js("goodput.model.steps.rows")
    look.until("goodput.model.steps.rows > given", rows)
    return before, late, look.js(f"Date.now() - ({began})")


def test_spans_come_by_themselves(look: Look, place: Path, server: Server) -> None:
    """Of each second, between one document and the next; a view at the end follows, one that was moved stays."""
    with living("paced", place, 0.05):
        look.until("document.querySelector(`tr[data-run='paced']`)?.dataset.state === 'running'")
        look.open(f"http://127.0.0.1:{server.port}/runs/paced")
        look.until("goodput.model.known > goodput.model.settled")
        assert look.js(SOUND)
        # A machine that is busy makes another document sooner, or has no time for the page: then once more.
        for attempt in range(5):
            before, late, old = spans_between_documents(look)
            if (late < 4000 and old < 2000 and look.js("goodput.model.made_at") == before[2]) or attempt == 4:
                break
        assert late < 4000, "ms for a second and a half of steps, told each second"
        assert old < 2000, "ms between the begin of the newest span and its place in the page"
        assert look.js("goodput.model.made_at") == before[2], "the document is the one from before"
        assert look.js(SOUND)

        look.js("goodput.timeline.setView(goodput.model.end - 1e9, goodput.model.end)")
        end = look.js("goodput.model.end")
        look.until("goodput.model.end > given + 1e9", end)
        view = look.view()
        assert view[1] >= look.js("goodput.timeline.source.stepEnd(goodput.model.steps.rows - 1)")
        assert view[1] - view[0] == pytest.approx(1e9)
        assert look.js("goodput.timeline.spanX('step', goodput.model.steps.rows - 1)"), "the last step is in sight"

        # Now one that a reader has moved, with a step selected that is open and grows.
        look.js("goodput.timeline.pan(-0.4)")
        job = "Array.from(goodput.model.phases.wall).findIndex((wall) => wall < 0)"
        look.js(f"goodput.timeline.select({{kind: 'phase', row: {job}, process: 0}})")
        view, long = look.view(), look.js(f"goodput.timeline.source.phaseEnd({job})")
        look.until("goodput.model.made_at > given", before[2])
        look.until("goodput.model.known > goodput.model.settled")
        assert look.view() == view
        assert look.js(f"goodput.timeline.source.phaseEnd({job})") > long
        assert look.text("#selection h3").startswith("job")
        assert look.js(SOUND), "what both the seconds and the document told stands there once"

        # A tab that nobody sees asks for nothing, and knows all when it is seen.
        hide = "(Object.defineProperty(document, 'hidden', {get: () => given, configurable: true}), document.dispatchEvent(new Event('visibilitychange')))"
        look.js(hide, True)
        assert "paused" in look.text("#live-state")
        look.settle()
        requests_before, rows = len(look.requests), look.js("goodput.model.steps.rows")
        time.sleep(1.5)
        assert (len(look.requests), look.js("goodput.model.steps.rows")) == (requests_before, rows)
        look.js(hide, False)
        look.until("goodput.model.steps.rows > given + 20 && goodput.model.known > goodput.model.settled", rows)
        assert look.text("#live-state") == "live"
        assert look.js(SOUND)

        # The server goes away and comes back at the same place: the page finds it by itself.
        server.stop()
        look.until("document.getElementById('live-state').dataset.kind === 'lost'")
        rows = look.js("goodput.model.steps.rows")
        with serving(place, "--port", str(server.port), "--token", server.token) as again:
            look.until("goodput.model.steps.rows > given + 20 && goodput.model.known > goodput.model.settled", rows)
            assert look.text("#live-state") == "live"
            assert look.js("document.getElementById('message').hidden"), "what was wrong is over"
            assert look.js(SOUND)
            assert again.errors.read_text() == ""
    look.messages[:] = [one for one in look.messages if "ERR_CONNECTION" not in one]  # the browser itself says that


def test_runs_are_searched_and_two_are_compared(look: Look, place: Path, server: Server) -> None:
    finished("second", place, first=10, last=20)  # by now it has left what it ran with
    look.open(f"http://127.0.0.1:{server.port}/")
    look.press("/")
    assert look.js("document.activeElement.id") == "runs-search"
    look.page.keyboard.type("sec")
    look.until(
        "[...document.querySelectorAll('#runs-table tbody tr')].filter((one) => one.checkVisibility()).length === 1"
    )
    look.page.fill("#runs-search", "")
    assert look.page.is_disabled("#compare-open")
    for name in ("first", "second"):
        look.page.check(f"tr[data-run='{name}'] input")
    look.page.click("#compare-open")
    look.page.wait_for_selector("#compare-verdict")
    compared = goodput("compare", place / "first", place / "second", "--json")
    assert look.text("#compare-verdict") == json.loads(compared.stdout)["verdict"]
    assert look.page.locator("#compare-sources tbody tr").count() > 3
    configuration = json.loads(compared.stdout)["configuration"]
    assert look.page.locator("#compare-configuration tbody tr").count() == len(configuration) > 0


def test_a_server_that_goes_away_is_reported(look: Look, server: Server) -> None:
    look.open(f"http://127.0.0.1:{server.port}/")
    look.until("document.getElementById('live-state').dataset.kind === 'live'")
    server.stop()
    look.until("document.getElementById('live-state').dataset.kind === 'lost'")
    assert "connection lost" in look.text("#live-state")
    assert look.page.locator("#runs-table tr[data-run]").count() == 2
    look.messages.clear()  # the browser itself says that it reaches nobody


def test_the_token_leaves_the_address_and_a_new_one_is_requested(look: Look, place: Path, server: Server) -> None:
    assert look.page.url == f"http://127.0.0.1:{server.port}/"
    assert server.token not in look.js("document.documentElement.outerHTML + document.cookie + document.referrer")
    look.until("document.getElementById('live-state').dataset.kind === 'live'")
    server.stop()
    with serving(place, "--port", str(server.port)) as again:
        look.until("document.getElementById('message').textContent.includes('Open the address that it printed')")
        look.open(again.address)
        look.until("document.getElementById('live-state').dataset.kind === 'live'")
        assert look.page.locator("#runs-table tr[data-run]").count() == 2
    look.messages.clear()  # the browser itself says what was refused


def test_a_run_that_does_not_exist_is_reported(look: Look, server: Server) -> None:
    answer = look.page.goto(f"http://127.0.0.1:{server.port}/runs/none")
    assert answer.status == 404
    look.messages.clear()  # the browser itself says so
