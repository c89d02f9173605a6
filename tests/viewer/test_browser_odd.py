"""Runs that are not as they should be: the page opens, says what it knows, and runs nothing of its input."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from tools.commands import environment, finished, goodput, killed

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._viewer import page
from otel_goodput._viewer.document import document
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

from .browser import Look, head_of, with_head
from .conftest import EVIL, live, page_of
from .story import story_run

MARKUP = (EVIL, "</title><svg onload=alert(2)>", "{{7*7}}${alert(3)}", "javascript:alert(4)", "a\u202eb\u0000\x1b[31m")
# What an element is: a name that became one would be among them.
ELEMENTS = "[...document.querySelectorAll('img, svg, iframe, object, embed, base, form, [onerror], [onload]')].length"


def panels(look: Look) -> dict[str, bool]:
    """Which cards are shown."""
    return look.js(
        "Object.fromEntries([...document.querySelectorAll('.card')].map((one) => [one.id, one.checkVisibility()]))"
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A document in which everything that people name is called so that a careless page would run it."""
    place = tmp_path_factory.mktemp("hostile")
    packed = document(RunView.open(RecordedRun(story_run(place, ("", *MARKUP[:4])))))
    head = head_of(packed)
    evil = MARKUP[1]
    head["report"].update(run_id=evil, job_name=evil, reason=evil, disruption_reasons={evil: 1})
    head["report"]["warnings"] = [{"text": evil, "code": evil}]
    facts = {
        "resource": {evil: evil, "host.name": evil},
        "versions": {evil: evil},
        "settings": {evil: {"value": evil, "source": evil}, "other": evil},
        "hyperparameters": {evil: evil, "nested": {evil: [evil]}},
    }
    for one in head["processes"]:
        one.update(host=evil, facts=facts)
    head["processes"][3]["problem"] = evil
    head["verdict"] = head["headline"] = head["detail"]["text"] = head["version"] = evil
    for one in head["disruptions"]:
        one.update(reason=evil, first_reason=evil, said_by=evil, note=evil)
    for one in head["attempts"]:
        one.update(facts=facts, state=evil, trace_id=evil)
    head["notices"] = [{"time": 10**9, "reason": evil, "withdrawn": False}]
    head["traces"] = {"cloud_trace": "javascript:alert(5)//{trace}{span}", "xprof": evil}
    return with_head(packed, head)


def test_hostile_names_are_shown_and_not_run(hostile: bytes, tmp_path: Path, look: Look) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(page.html(hostile), encoding="utf-8")
    look.open(path)
    usual = look.js(ELEMENTS)
    text = look.text("body")
    assert text.count(MARKUP[1]) > 15
    assert EVIL in text and MARKUP[2] in text
    for kind, rows in (("step", 1), ("phase", 9), ("save", 1), ("disruption", 1), ("attempt", 2), ("notice", 1)):
        for row in range(rows):
            look.js("goodput.timeline.select({kind: given[0], row: given[1], process: 0})", [kind, row])
            x, y = look.place(300, 200)
            look.page.mouse.move(x, y)
    assert look.page.locator("#selection a").count() == 0  # an address that is no web page leads nowhere
    for name in MARKUP:
        look.page.fill("#search", name)
        look.press("Enter")
    for row in range(4):
        look.page.locator("#top-k button", has_text="+ chart").nth(row).click()
    for select in ("#own-charts select", "#info select", "#heatmap select"):
        look.page.locator(select).first.select_option(index=1)
    look.page.locator("#heatmap canvas").hover()
    look.settle()
    assert look.js(ELEMENTS) == usual == 0
    assert look.js("document.querySelectorAll('script').length") == 3
    assert look.js("document.title").endswith(MARKUP[1])


def test_a_hostile_link_changes_nothing(story_page: Path, look: Look) -> None:
    evil = json.dumps(MARKUP[1])
    parts = [f"{name}={evil}" for name in ("range", "view", "attempt", "process", "selected", "category", "query")]
    parts += ['selected={"kind":"__proto__","row":0}', 'charts=[{"of":"constructor","name":"<b>"}]', "constructor=1"]
    parts += [
        'selected={"kind":"step","row":99999999}',
        "view=[1e300,-1]",
        "%%%=%E0%A4%A",
        "=",
        "process=77",
        "category=999",
    ]
    look.open(story_page, "&".join(parts))
    assert look.js(ELEMENTS) == 0
    assert look.state("range") is None and look.state("view") is None


def rewritten(path: Path, target: Path, change: Callable[[bytes], bytes]) -> Path:
    """A page whose document was changed."""
    text = path.read_text(encoding="utf-8")
    embedded = re.search(r'(<script type="application/octet-stream" id="document">)([^<]*)(</script>)', text)
    assert embedded
    packed = base64.b64encode(change(base64.b64decode(embedded[2]))).decode()
    target.write_text(text[: embedded.start(2)] + packed + text[embedded.end(2) :], encoding="utf-8")
    return target


def newer(packed: bytes) -> bytes:
    content = gzip.decompress(packed)
    return gzip.compress(with_head(content, head_of(content) | {"format": 2}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda packed: packed[: len(packed) // 2], "cannot be shown"),
        (lambda packed: b"\x1f\x8b" + bytes(300), "cannot be shown"),
        (lambda packed: gzip.compress(b"OGV1\xff\xff\x00\x00{"), "cannot be shown"),
        (lambda packed: gzip.compress(b"something else"), "not an otel-goodput page"),
        (newer, "format is 2, but this page reads format 1"),
    ],
    ids=["cut", "zeros", "no JSON", "another file", "newer"],
)
def test_a_document_that_cannot_be_read_is_reported(
    story_page: Path, tmp_path: Path, look: Look, change: Callable[[bytes], bytes], words: str
) -> None:
    look.open(rewritten(story_page, tmp_path / "page.html", change), ready=False)
    assert words in look.text("#message")
    assert look.page.is_hidden("#run-page") and look.page.is_hidden("#loading")


def test_a_folder_without_a_run_has_a_page(tmp_path: Path, look: Look) -> None:
    (tmp_path / "none" / "journal").mkdir(parents=True)
    look.open(page_of(RunDirectory(tmp_path / "none"), tmp_path / "none.html"))
    assert look.text("#goodput .goodput-value") == "–"
    assert "no journal" in look.text("#warnings")
    shown = panels(look)
    assert {name for name, visible in shown.items() if visible} == {"verdict-card", "info-card", "settings-card"}
    assert look.page.is_hidden("#sections [data-section=timeline-card]")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_no_step_or_one(tmp_path: Path, look: Look, steps: int) -> None:
    live(tmp_path, "short", 0, steps - 1)
    look.open(page_of(RunDirectory(tmp_path / "short"), tmp_path / "short.html"))
    shown = panels(look)
    assert shown["timeline-card"] and shown["partition-card"]
    assert shown["histogram-card"] is bool(steps)
    assert not shown["heatmap-card"] and not shown["disruptions-card"]  # of one process, of one life
    titles = [one["name"] for one in look.js("goodput.timeline.lanes()")]
    assert titles.count("partition") == 1
    look.at_timeline()
    look.press("w", "]", "[", "f", "m", "r", "p", "Enter", "Escape", "0")


def test_a_killed_run_says_where_it_stood(tmp_path: Path, look: Look) -> None:
    killed("killed", tmp_path)
    [path] = [one for one in tmp_path.iterdir() if one.is_dir()]
    look.open(page_of(RunDirectory(path), tmp_path / "killed.html"))
    standing = look.text("#standing")
    assert "died" in standing and "into step 10" in standing
    open_steps = [row for row, wall in enumerate(look.column("steps", "wall")) if wall < 0]
    assert len(open_steps) == 1
    look.js("goodput.timeline.select({kind: 'step', row: given, process: 0})", open_steps[0])
    assert "open" in look.text("#selection")


RUNNING = """
import sys, time
import otel_goodput as goodput
recorder = goodput.Recorder("elastic", run_id="elastic", directory=sys.argv[1], exporters="none",
                            hyperparameters={"learning_rate": 3e-4, "api_key": "hunter2hunter2"})
recorder.tracer.hooks.waits = {"queued": 12_500_000_000}
with recorder.job():
    for step in range(5):
        with recorder.step(step):
            time.sleep(0.005)
    with recorder.elastic_wait("scale_up"):
        time.sleep(0.01)
    with recorder.exclusion():
        time.sleep(0.01)
    recorder.flush()
    with recorder.step(5):
        recorder.flush()
        print("running", flush=True)
        time.sleep(600)
"""


def test_a_running_elastic_job(tmp_path: Path, look: Look) -> None:
    command = [sys.executable, "-c", RUNNING, str(tmp_path)]
    with warm.Process(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        try:
            assert process.stdout and process.stdout.readline().strip() == "running"
            look.open(page_of(RunDirectory(tmp_path / "elastic"), tmp_path / "elastic.html"))
        finally:
            process.kill()
    assert "running" in look.text("#standing")
    info = look.text("#info")
    assert "queued" in info and "12.5 s" in info
    assert "learning_rate" in info and "0.0003" in info and "hunter2" not in look.page.content()
    names = [one["name"] for one in look.js("goodput.timeline.tree.rows.map((row) => ({name: row.title}))")]
    assert "elastic, excluded" in names
    categories = {one["category"] for one in look.data("#partition .piece[data-category]")}
    assert "elastic_scale_up" in categories


def test_a_missing_rank_is_reported(lived_page: Path, look: Look) -> None:
    look.open(lived_page)
    warnings = look.text("#warnings")
    assert "process 2" in warnings and "no journal" in warnings
    assert "1 not known: hatched" in look.text("#heatmap .card-head")
    look.page.locator("#heatmap canvas").hover()
    tags = look.js("goodput.timeline.tree.rows.filter((row) => row.title === 'process 2').map((row) => row.tag)")
    assert set(tags) == {"problem"}


def test_damaged_files_are_reported(lived: RunDirectory, tmp_path: Path, look: Look) -> None:
    broken = tmp_path / "lived"
    shutil.copytree(lived.path, broken)
    for path in (broken / "journal").glob("p0000.*"):
        path.write_bytes(b"\xff" * 100)
    for path in (broken / "journal").glob("a0000-p0000-*"):
        path.write_bytes(b"OGOODPUT" + b"\xff" * 5000)
    look.open(page_of(RunDirectory(broken), tmp_path / "broken.html"))
    assert look.page.is_visible("#warnings")
    assert look.page.locator("#warnings li").count() >= 1


def test_steps_whose_time_nobody_observed(tmp_path: Path, look: Look) -> None:
    run = story_run(tmp_path, observed=False)
    look.open(page_of(run, tmp_path / "page.html"))
    report = look.js("goodput.model.report")
    assert report["clock"] == "unknown"
    assert look.text("#warnings") or report["reason"] in look.text("#goodput")
    assert set(look.column("steps", "clock")) == {2}
    look.page.click("#histogram [data-choice=device]")
    assert "No step with a known device time here" in look.text("#histogram")
    look.js("goodput.timeline.select({kind: 'step', row: 3, process: 0})")
    assert "not observed" in look.text("#selection")


def test_what_is_summed_up_says_so(tmp_path: Path, look: Look) -> None:
    look.open(page_of(story_run(tmp_path), tmp_path / "excerpt.html", spans=60))
    assert look.page.is_visible("#detail") and "summed up" in look.text("#detail")
    assert look.js("goodput.model.detail.complete") is False
    look.page.fill("#search", "55")
    look.press("Enter")
    look.until("['steps', 'step'].includes(goodput.state.selected?.kind)")
    end = look.js("goodput.model.end")
    look.js("goodput.state.set({range: given})", [end // 4, end // 2])
    look.settle()
    assert "≈" in look.text("#partition .card-head")
    held = [int(piece["ns"]) for piece in look.data("#partition .piece[data-category]")]
    assert sum(held) == pytest.approx(end // 2 - end // 4, abs=2 * len(held))


def test_a_comparison_in_a_file_is_the_same_page(look: Look, tmp_path: Path) -> None:
    place = tmp_path / "runs"
    finished("first", place, last=12)
    finished("second", place, first=10, last=20)
    hostile = "<script>alert(1)</script>"
    shutil.copytree(place / "second", tmp_path / "third")
    (tmp_path / "third" / "run.json").write_bytes(checked_json({"run_id": hostile, "job_name": hostile}))
    page = tmp_path / "compared.html"
    printed = goodput("compare", place / "first", tmp_path / "third", "--html", page, "--json").stdout
    look.open(page)
    assert look.text("#compare-verdict") == json.loads(printed)["verdict"]
    assert hostile in look.text(".side-b")
    assert look.page.locator("#compare-sources tbody tr").count() == len(json.loads(printed)["sources"])
    assert look.page.locator("#compare-histogram .compare-bin").count() > 2
    assert look.page.locator("#compare a").count() == 0, "there is no server to go to"
