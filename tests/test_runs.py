"""Runs asked by a program: they say what the command line says, and what their journals tell."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import warm
from tools.commands import environment, goodput, succeeded
from waits import until

from otel_goodput import JournalError, Recorder, Run, open_run, open_runs, runs
from otel_goodput._accounting import events as ev
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events
from otel_goodput.errors import GoodputError
from otel_goodput.reports.records import FATES, PhaseRecord, StepRecord
from otel_goodput.semconv import PHASES

pytestmark = pytest.mark.slow  # not for the habit of every save: processes of their own
LIFE = Path(__file__).parent / "viewer" / "life.py"
NS = 10**9


def live(directory: Path, name: str, first: int, last: int, *, dies: bool = False) -> None:
    """One attempt of a job as a process of its own, see ``life.py``."""
    settings = json.dumps({"directory": str(directory), "name": name, "first": first, "last": last, "dies": dies})
    done = warm.run([sys.executable, str(LIFE), settings], env=environment(), timeout=60, check=False)
    assert done.returncode == (-signal.SIGKILL if dies else 0)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in step 24, and went on from step 20."""
    directory = tmp_path_factory.mktemp("lived")
    live(directory, "lived", 0, 24, dies=True)
    live(directory, "lived", 20, 59)
    return directory


@pytest.fixture
def run(lived: Path) -> Run:
    return open_run(lived)


def recorded(directory: Path, name: str, steps: int = 3) -> Path:
    with Recorder(name, run_id=name, directory=directory, exporters="none") as recorder, recorder.job():
        for number in range(steps):
            with recorder.step(number):
                pass
    return directory / name


# --- reports ----------------------------------------------------------------------------------------------------------


def test_the_report_is_that_of_the_command(run: Run, lived: Path) -> None:
    assert (run.run_id, run.job_name, repr(run)) == ("lived", "lived", "<Run 'lived'>")
    report = json.loads(succeeded(goodput("report", lived, "--json")))
    assert run.report().to_json() == report
    assert run.totals().run.goodput == report["goodput"]
    assert str(run.report()) == succeeded(goodput("report", lived))


def test_questions_are_those_of_the_command(run: Run, lived: Path) -> None:
    whole = run.report().to_json()
    start, part = whole["started_at"], whole["elapsed_s"] / 4
    begin, middle, end, late = (start + at * part for at in (1, 2, 3, 3.9))
    words = ("--window", f"{begin}", f"{middle}", "--exclude", f"{middle}", f"{end}", "--at", f"{late}")
    report = json.loads(succeeded(goodput("report", lived, "--json", *words)))
    assert run.report(window=(begin, middle), exclude=[(middle, end)], at=late).to_json() == report
    assert [window["elapsed_s"] for window in report["windows"]] == [pytest.approx(part, abs=1e-5)]
    assert report["excluded_s"] == pytest.approx(part, abs=1e-5)

    def moment(seconds: float) -> datetime:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)

    window = (moment(begin), moment(middle).astimezone(timezone(timedelta(hours=5, minutes=30))))
    [answered] = run.report(window=[window], at=moment(late)).to_json()["windows"]
    assert answered["elapsed_s"] == pytest.approx(part, abs=1e-5)
    several = run.report(window=[("0ms", "10ms"), ["10ms", "30ms"]]).to_json()["windows"]
    assert [one["elapsed_s"] for one in several] == [pytest.approx(0.01), pytest.approx(0.02)]
    numpy = pytest.importorskip("numpy")
    assert run.report(at=numpy.int64(late + 1)).to_json() == run.report(at=int(late + 1)).to_json()
    assert run.report(ideal_step_time=0.5).to_json()["ideal_step_time_s"] == 0.5
    assert run.totals(at="10ms").run.elapsed == NS // 100


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"at": datetime(2026, 11, 25)}, "has no time zone"),
        ({"at": time.time_ns()}, "is it in ns?"),
        ({"at": "tomorrow"}, "tomorrow"),
        ({"window": (2.0, 1.0)}, "a window must not end before it starts"),
        ({"window": (1.0, 2.0, 3.0)}, "neither"),
        ({"window": [(1.0,)]}, "neither"),
        ({"exclude": [("1h", True)]}, "True is not a time"),
        ({"at": "yesterday"}, "not a time: 'yesterday'"),
        ({"window": 3600}, "neither one (begin, end)"),
        ({"ideal_step_time": "0.01"}, "is not a duration"),
        ({"at": float("nan")}, "nan"),
        ({"ideal_step_time": 0}, "ideal_step_time=0"),
    ],
)
def test_wrong_questions_raise(run: Run, question: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        run.report(**question)


def test_a_page_is_written(run: Run, tmp_path: Path) -> None:
    made = run.html(tmp_path / "page.html")
    assert made.read_text(encoding="utf-8").startswith("<!doctype html>")
    again = run.report().html(tmp_path / "again.html")
    assert again.stat().st_size == pytest.approx(made.stat().st_size, rel=0.01)
    with pytest.raises(GoodputError, match="is a directory"):
        run.html(tmp_path)


# --- steps and phases -------------------------------------------------------------------------------------------------


def test_steps_and_phases_are_those_of_the_journal(run: Run, lived: Path) -> None:
    attempt, begun, counts = 0, dict[int, Any](), Counter[tuple[int, str, int, int | None]]()
    for event in all_events(RunDirectory(lived / "lived")):
        if event.kind == ev.ATTEMPT:
            counts.update((one[0], one[1], one[2].time, None) for one in begun.values())
            attempt, begun = event.step + 1, {}
        elif event.kind == ev.START:
            kind = PHASES[event.phase]
            begun[event.key] = (attempt, kind, event)
        elif event.kind == ev.END and event.key in begun:
            whose, kind, start = begun.pop(event.key)
            counts[whose, kind, start.time, event.time] += 1
    steps, phases = list(run.steps()), list(run.phases())
    listed = Counter((one.attempt, "step", one.start_ns, one.end_ns) for one in steps)
    listed.update((one.attempt, one.phase, one.start_ns, one.end_ns) for one in phases)
    assert listed == counts
    assert all(isinstance(one, StepRecord) for one in steps) and all(isinstance(one, PhaseRecord) for one in phases)
    assert [one.start_ns for one in steps] == sorted(one.start_ns for one in steps)


def test_records_add_up_to_the_report(run: Run) -> None:
    report, steps = run.report().to_json(), list(run.steps())
    fates = Counter(one.fate for one in steps)
    assert set(fates) <= set(FATES)
    assert (fates["kept"], fates["lost"]) == (report["steps"]["kept"], report["steps"]["lost"])
    kept = sum(one.net_ns for one in steps if one.fate == "kept")
    assert kept / NS == pytest.approx(report["seconds"]["productive"] + report["seconds"]["program_startup"])
    lost = [one for one in steps if one.fate == "lost"]
    assert [one.step for one in lost] == [20, 21, 22, 23, 24]
    assert lost[-1].end_ns is None and lost[-1].interrupted is False
    saves = [one for one in run.phases() if one.phase == "checkpoint_save"]
    assert [one.step for one in saves] == [9, 19, 29, 39, 49, 59] and all(one.blocking for one in saves)
    assert {one.name for one in run.phases() if one.phase == "custom"} == {"eval"}
    assert all(len(one.span_id) == 16 for one in steps)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_dataframes(run: Run, library: Any) -> None:
    pytest.importorskip(library)
    steps, phases = run.to_dataframe(library=library), run.to_dataframe("phases", library=library)
    assert type(steps).__module__.startswith(library)
    listed = list(run.steps())
    assert len(steps) == len(listed) and len(phases) == len(list(run.phases()))
    assert list(steps.columns) == [name.replace("net_ns", "net_s").removesuffix("_ns") for name in StepRecord._fields]
    assert list(steps["step"]) == [one.step for one in listed]
    assert float(steps["net_s"].sum()) == pytest.approx(sum(one.net_ns for one in listed) / NS)
    kinds = [str(frame.schema[name] if library == "polars" else frame.dtypes[name]).lower() for frame, name in (
        (steps, "attempt"), (steps, "failed"), (phases, "step"), (phases, "blocking")
    )]  # fmt: skip
    assert kinds == ["int64", "bool" + "ean" * (library == "polars"), "int64", "bool" + "ean" * (library == "polars")]
    first = steps["start"][0]
    assert first.tzinfo is not None and first.timestamp() == pytest.approx(listed[0].start_ns / NS, abs=2e-6)
    ends = steps["end"].to_list()
    open_rows = [at for at, end in enumerate(ends) if end is None or str(end) == "NaT"]
    assert open_rows == [at for at, one in enumerate(listed) if one.end_ns is None] != []
    longest = (steps["end"] - steps["start"]).max()
    assert longest.total_seconds() == pytest.approx(
        max(one.end_ns - one.start_ns for one in listed if one.end_ns is not None) / NS, abs=1e-6
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_dataframes_of_nothing(tmp_path: Path, library: Any) -> None:
    pytest.importorskip(library)
    run = open_run(recorded(tmp_path, "none", 0))
    frame = run.to_dataframe(library=library)
    assert len(frame) == 0 and "net_s" in frame.columns


def test_dataframes_say_what_they_need(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "find_spec", lambda _: None)
    with pytest.raises(GoodputError, match="needs pandas or polars: pip install pandas"):
        run.to_dataframe()
    with pytest.raises(GoodputError, match="needs polars: pip install polars"):
        run.to_dataframe(library="polars")
    wrong: Any = "spark"
    with pytest.raises(ValueError, match="spark"):
        run.to_dataframe(library=wrong)
    with pytest.raises(ValueError, match="spark"):
        run.to_dataframe(wrong)


# --- which run, and where ---------------------------------------------------------------------------------------------


def test_of_several_runs_one_is_named(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        recorded(tmp_path, name)
    with pytest.raises(JournalError, match=r"holds 3 runs: 'b', 'a', 'c'; choose one with run_id="):
        open_run(tmp_path)
    assert open_run(tmp_path, "a").run_id == "a"
    assert open_run(tmp_path / "c").run_id == "c"
    assert [run.run_id for run in open_runs(tmp_path)] == ["b", "a", "c"]  # as they began
    with pytest.raises(JournalError, match="no run 'd'"):
        open_run(tmp_path, "d")


def test_no_run(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere", str(tmp_path)):
        with pytest.raises(JournalError):
            open_run(place)
        with pytest.raises(JournalError):
            open_runs(place)
    with pytest.raises(JournalError):
        open_run("nonsense://place/token=hunter2")


def test_a_run_at_a_url_is_fetched_again_and_let_go(lived: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    place = tmp_path / "runs"
    path = recorded(place, "far")
    run = open_run(f"file://{place}")
    copy = run.path
    assert copy != path and copy.exists()
    assert run.report().to_json() == open_run(place).report().to_json()
    recorded(place, "far", 5)  # another attempt
    assert len(list(run.steps())) == 3
    run.refresh()
    assert len(list(run.steps())) == 8
    with run:
        assert run.totals().attempts == 2
    assert not copy.exists()
    for ask in (run.report, lambda: list(run.steps()), run.refresh, run.to_dataframe):
        with pytest.raises(JournalError, match="was closed"):
            ask()


def test_several_runs_at_a_url_share_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    for name in ("one", "two"):
        recorded(tmp_path / "runs", name)
    first, second = open_runs(f"file://{tmp_path / 'runs'}")
    copies = [run.path for run in (first, second)]
    first.close()
    assert second.totals().executed == 3
    second.close()
    assert not any(copy.exists() for copy in copies)


LIVING = """
import sys, time
import otel_goodput as goodput
goodput.configure("living", run_id="living", directory=sys.argv[1], exporters="none")
with goodput.job():
    for number, _ in goodput.steps(range(10**6)):
        time.sleep(0.01)
"""


def executed(directory: Path) -> int:
    """Steps so far; 0 while there is no run yet, or a journal with nothing in it."""
    try:
        return open_run(directory).totals().executed
    except JournalError:
        return 0


def test_a_living_run_goes_on_between_two_questions(tmp_path: Path) -> None:
    with warm.Process([sys.executable, "-c", LIVING, str(tmp_path)], env=environment()) as process:
        try:
            until(lambda: executed(tmp_path) > 5)
            run = open_run(tmp_path)
            assert run.report().to_json()["state"] == "running"
            before = len(list(run.steps()))
            until(lambda: len(list(run.steps())) > before + 5)
            assert list(run.steps())[-1].fate in ("in_flight", "kept")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert open_run(tmp_path).report().to_json()["state"] == "died"


# --- what is wrong with a journal -------------------------------------------------------------------------------------


def test_a_process_that_left_nothing(run: Run) -> None:
    for ask in (run.report, run.totals, lambda process: list(run.steps(process=process))):
        with pytest.raises(JournalError, match="process 7 left no journal"):
            ask(process=7)


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    path = recorded(tmp_path, "broken")
    for one in (path / "journal").iterdir():
        one.write_bytes(b"\xff" * 3000)
    with pytest.raises(JournalError):
        open_run(path).report()
    with pytest.raises(JournalError):
        list(open_run(path).steps())


def test_a_journal_of_which_only_the_sums_are_left(tmp_path: Path) -> None:
    path = recorded(tmp_path, "summed")
    for one in (path / "journal").glob("*.segment*"):
        one.write_bytes(b"\xff" * 3000)
    run = open_run(path)
    assert run.report().damaged and run.totals().executed == 3  # its snapshot says so
    with pytest.raises(JournalError, match="cannot be read"):
        list(run.steps())


def test_a_run_without_a_job(tmp_path: Path) -> None:
    Recorder("idle", run_id="idle", directory=tmp_path, exporters="none").shutdown()
    run = open_run(tmp_path)
    assert run.report().to_json()["goodput"] is None
    assert list(run.steps()) == list(run.phases()) == []
    assert run.report(at="1s").to_json()["elapsed_s"] == 0
