"""A run that is killed and resumed: whoever tells of a step gives it the number and the fate that the account does.

The witness is the program itself: it notes each body of its loop, with the place of its batch in the training.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import warm
from exported import written
from tools.perfetto_rules import chrome
from viewer.test_document import Page

from otel_goodput import open_run
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.records import FATES, slowest
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

BATCHES = 14
KILLED = 9  # in the body of this batch
SAVED = 7  # after this one

# argv: directory, "first" or "second". Of each body: attempt, number that the loop gives it, batch, whether it worked.
FRAME = f"""
import os, sys, time
import otel_goodput as goodput
goodput.configure("job", run_id="run", exporters="file", directory=sys.argv[1], step_traces="own")
second = sys.argv[2] == "second"
bodies = open(sys.argv[1] + "/bodies", "a")
def body(number, batch, worked=True):
    print(1 + second, number, batch, int(worked), file=bodies, flush=True)
    if not worked: return
    with goodput.part("forward"): time.sleep(0.03)
    if not second and batch == {KILLED}: os._exit(9)
def save(label):
    with goodput.checkpoint_save(label): pass
def restore(label):
    if second:
        with goodput.checkpoint_restore(label): pass
with goodput.job():
{{loop}}
"""
WALKS = f"""
    restore({SAVED})
    for step, batch in goodput.steps(range({BATCHES}){{start}}):
        worked = not (second and batch <= {SAVED})
        body(step, batch, worked)
        if worked and batch == {SAVED}: save(batch)
"""
FROM_0 = f"""
    restore({SAVED})
    for step, batch in goodput.steps(range({SAVED} + 1 if second else 0, {BATCHES}), start=0):
        body(step, batch)
        if batch == {SAVED}: save(batch)
"""
BY_OPTIMIZER_STEPS = f"""
    restore(2)
    for step, batch in goodput.steps(range({SAVED} + 1 if second else 0, {BATCHES}){{start}}):
        body(step, batch)
        if batch % 4 == 3: save((batch + 1) // 4)
"""
LOOPS = {
    "walks, its own numbers": WALKS.format(start=", start=0"),
    "walks, numbered on": WALKS.format(start=""),
    "from 0": FROM_0,
    "accumulates, numbered on": BY_OPTIMIZER_STEPS.format(start=""),
    "accumulates, numbers optimizer steps": BY_OPTIMIZER_STEPS.format(start=", start=2 if second else 0"),
}


class Body(NamedTuple):
    attempt: int
    given: int  # by its loop
    step: int  # by the account; of a skipped batch that of its loop
    fate: str


@pytest.fixture(scope="module", params=LOOPS, ids=[name.replace(" ", "_") for name in LOOPS])
def numbered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDirectory, list[Body]]:
    """A run, and its bodies by the witness."""
    folder = tmp_path_factory.mktemp("numbering")
    for attempt, status in (("first", 9), ("second", 0)):
        command = [sys.executable, "-c", FRAME.format(loop=LOOPS[request.param]), str(folder), attempt]
        environment = {**os.environ, "OTEL_GOODPUT_USAGE_INTERVAL": "0"}
        done = warm.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == status, done.stderr
    bodies = []
    for attempt_, given, batch, worked in (
        map(int, line.split()) for line in (folder / "bodies").read_text().splitlines()
    ):
        lost = attempt_ == 1 and batch > SAVED
        fate = "skipped" if not worked else "lost" if lost else "kept"
        bodies.append(Body(attempt_, given, batch if worked else given, fate))
    return RunDirectory(folder / "run"), bodies


def counts(bodies: list[Body]) -> tuple[int, int]:
    fates = Counter(one.fate for one in bodies)
    return fates["kept"], fates["lost"]


def test_the_account(numbered: tuple[RunDirectory, list[Body]]) -> None:
    run, bodies = numbered
    totals = RecordedRun(run).report().totals
    assert (totals.kept, totals.lost) == counts(bodies)
    assert totals.skipped == sum(one.fate == "skipped" for one in bodies)
    assert (totals.last_step, totals.last_given) == (bodies[-1].step, bodies[-1].given)


def test_records_and_the_slowest(numbered: tuple[RunDirectory, list[Body]]) -> None:
    run, bodies = numbered
    opened = open_run(run.path)
    assert [Body(one.attempt, one.step_given, one.step, one.fate) for one in opened.steps()] == bodies
    longest = slowest(RecordedRun(run).detail(0), 100).steps
    assert sorted(Body(one.attempt, one.step_given, one.step, one.fate) for one in longest) == sorted(
        one for one in bodies if one.fate != "skipped"
    )
    # What belongs to a step has its number.
    steps = [(one.attempt, one.step) for one in bodies if one.fate != "skipped"]
    parts = [(one.attempt, one.step) for one in opened.phases() if one.phase == "part"]
    assert parts == steps
    loads = [(one.attempt, one.step) for one in opened.phases() if one.phase == "data_loading"]
    assert Counter(loads) >= Counter((one.attempt, one.step) for one in bodies)


def test_perfetto(numbered: tuple[RunDirectory, list[Body]], tmp_path: Path) -> None:
    run, bodies = numbered
    command = [sys.executable, "-m", "otel_goodput", "export", str(run.path), "--perfetto", str(tmp_path / "a.json")]
    warm.run(command, check=True, capture_output=True, timeout=120)
    trace = chrome(tmp_path / "a.json")
    for attempt in (1, 2):
        spans = [
            (one.args["goodput.step"], one.args["goodput.step.state"])
            for one in trace.of("steps", f"attempt {attempt}")
        ]
        assert spans == [(one.step, one.fate) for one in bodies if one.attempt == attempt]
        parts = [one.args["goodput.step"] for one in trace.of("parts", f"attempt {attempt}")]
        assert parts == [one.step for one in bodies if one.attempt == attempt and one.fate != "skipped"]


@pytest.mark.parametrize("spans", [200_000, 2_000])  # the whole journal is read, or parts of it
def test_the_page(numbered: tuple[RunDirectory, list[Body]], spans: int) -> None:
    run, bodies = numbered
    page = Page(run, spans=spans)
    assert [
        Body(one["attempt"], one["given"], one["number"], FATES[one["fate"]]) for one in page.table("steps")
    ] == bodies
    step, part = (page.head["phase_names"].index(name) for name in ("step", "part"))
    [group] = [one for one in page.head["groups"] if one["phase"] == step]
    assert group["count"] == sum(counts(bodies))
    parts = [(one["attempt"], one["step"]) for one in page.table("phases") if one["phase"] == part]
    assert parts == [(one.attempt, one.step) for one in bodies if one.fate != "skipped"]


def test_spans_and_the_links_to_them(numbered: tuple[RunDirectory, list[Body]]) -> None:
    run, bodies = numbered
    spans = {int(one["spanId"], 16): one for one in written(run.path)}
    session = RunView.open(RecordedRun(run))
    linked = replace(session, exported=type(session.exported)()).traces  # by the journal alone
    numbers: list[Any] = []
    for step in session.detail.steps:
        span = spans[step.key]
        layout = linked.layout(step.attempt)
        assert layout is not None and f"{layout.of(step):032x}" == span["traceId"]
        [number] = [one["value"]["intValue"] for one in span["attributes"] if one["key"] == "goodput.step"]
        numbers.append((step.attempt, int(number), step.number, FATES[step.fate]))
    assert numbers == bodies  # a span has the number of its loop: what the account finds later cannot be in it
