"""Runs as a stranger has them: each gives a page that says what is wrong, or a message, and never a traceback.

Longer than other files: it is a list of runs, each of them short.
"""

from __future__ import annotations

import base64
import gzip
import random
import re
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from tools.commands import ROOT, environment
from tools.journals import MS, Written, steady
from waits import PATIENCE_S

from benchmarks.container import Container
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._tools.cli import main
from otel_goodput.semconv import Phase

GOLDEN = ROOT / "tests" / "journal" / "golden"
NS = 10**9


class Shown:
    """What ``report --html`` made of a run."""

    def __init__(self, status: int, page: str, errors: str) -> None:
        self.status, self.errors = status, errors
        [packed] = re.findall(r'id="document">([^<]*)<', page)
        self.container = Container(gzip.decompress(base64.b64decode(packed)))
        self.head: dict[str, Any] = self.container.head
        self.report = self.head["report"]
        self.warnings = " ".join(one["text"] for one in self.report["warnings"])
        self.problems = [one["problem"] for one in self.head["processes"]]

    def rows(self, name: str) -> list[dict[str, int]]:
        columns = self.container.table(self.head[name])
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture
def page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Asks for the page of a run; its sums must be those of its report."""

    def ask(place: Path, *more: str) -> Shown:
        made = tmp_path / "page.html"
        status = main(["report", str(place), "--html", str(made), *more])
        output = capsys.readouterr()
        assert status in (0, 3), output.err
        assert "Traceback" not in output.err
        shown = Shown(status, made.read_text(encoding="utf-8"), output.err)
        seconds = dict(shown.report["seconds"])
        seconds.update(seconds.pop("custom", {}))
        bins = shown.container.table(shown.head["bins"]["values"])
        assert sum(map(sum, bins.values())) == sum(round(one * NS) for one in seconds.values())
        return shown

    return ask


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message with which a page was refused."""
    assert main(["report", *arguments]) == 1
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and output.err.startswith("otel-goodput: ")
    return output.err


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_where_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "page.html"
    assert "holds no run" in refused(capsys, str(tmp_path), "--html", str(made))
    steady(tmp_path, "one", 3)
    assert "two" in refused(capsys, str(tmp_path), "--run", "two", "--html", str(made))
    assert refused(capsys, "nowhere://bucket/runs", "--html", str(made))
    assert not made.exists()


def test_of_several_runs_the_newest_or_the_named(tmp_path: Path, page: Callable[..., Shown]) -> None:
    for at, name in enumerate(("one", "two", "three")):
        made = Written(tmp_path / "runs", name, begin=at * NS)
        made.phase(rules.JOB, at * NS, (at + 1) * NS)
        made.close()
    assert page(tmp_path / "runs").report["run_id"] == "three"
    assert page(tmp_path / "runs", "--run", "one").report["run_id"] == "one"


def test_places_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = steady(tmp_path, "one", 3)
    assert "No such file or directory" in refused(capsys, str(run), "--html", str(tmp_path / "no" / "page.html"))
    assert "is a directory" in refused(capsys, str(run), "--html", str(tmp_path))
    assert "Not a directory" in refused(capsys, str(run), "--html", str(run / "run.json" / "page.html"))


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = steady(tmp_path, "one", 3)
    assert main(["report", str(run), "--html", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    capsys.readouterr()
    assert "No space left" in refused(capsys, str(run), "--html", "/dev/full")
    assert Path("/dev/full").is_char_device()


def test_a_disk_that_is_full_has_no_part_of_a_page(tmp_path: Path) -> None:
    run, made = steady(tmp_path, "one", 3), tmp_path / "page.html"
    made.write_text("the page of yesterday")
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "from otel_goodput._tools.cli import main\n"
        f"sys.exit(main(['report', {str(run)!r}, '--html', {str(made)!r}]))\n"
    )
    done = warm.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("otel-goodput: ") and "Traceback" not in done.stderr
    assert made.read_text() == "the page of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "page.html"]


def test_long_work_shows_progress_on_a_terminal_and_can_be_interrupted(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    import os

    run, made = steady(tmp_path, "one", 40_000), tmp_path / "page.html"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "otel_goodput", "report", str(run), "--html", str(made)]
    with warm.Process(command, env=environment(), stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"press Ctrl-C" not in seen:
            data = os.read(ours, 4096)
            assert data, seen
            seen += data
        process.send_signal(signal.SIGINT)
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:  # Linux says so when the other end is closed
            pass
        assert process.wait(PATIENCE_S) == 130
    os.close(ours)
    assert b"Traceback" not in seen
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


# --- runs with little in them ----------------------------------------------------------------------------------------


def test_a_run_without_a_job(tmp_path: Path, page: Callable[..., Shown]) -> None:
    shown = page(Written(tmp_path, "none").close())
    assert "No job has started" in shown.head["verdict"]
    assert shown.head["steps"]["rows"] == shown.head["phases"]["rows"] == shown.head["bins"]["count"] == 0


def test_a_run_with_only_a_job(tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "only")
    made.phase(rules.JOB, 0, 5 * MS)
    shown = page(made.close())
    assert shown.report["elapsed_s"] == 0.005 and shown.head["steps"]["rows"] == 0
    assert [one["state"] for one in shown.head["attempts"]] == ["ended"]


def test_a_run_without_a_step(tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "stepless")
    made.phase(rules.JOB, 0, None)
    made.phase(rules.PHASE_INDEX[Phase.TRAINING_PREP], MS, 3 * MS)
    made.phase(rules.DATA_LOADING, 3 * MS, None)
    shown = page(made.close())
    assert shown.head["steps"]["rows"] == 0 and shown.head["phases"]["rows"] == 3


# --- other versions, and what is missing or damaged ----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.tar.xz")))
def test_runs_of_earlier_versions(name: str, tmp_path: Path, page: Callable[..., Shown]) -> None:
    with tarfile.open(GOLDEN / name) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    for journal in (tmp_path / "old").rglob("journal"):
        shown = page(journal.parent)
        assert shown.head["steps"]["rows"] and shown.report["elapsed_s"]


def segments(run: Path) -> list[Path]:
    return sorted((run / "journal").glob("*.segment"))


def test_without_its_run_json(tmp_path: Path, page: Callable[..., Shown]) -> None:
    run = steady(tmp_path, "one", 5)
    (run / "run.json").unlink()
    shown = page(run)
    assert shown.head["steps"]["rows"] == 5 and shown.head["attempts"][0]["trace_id"] is None
    (run / "run.json").write_text("{broken")
    assert page(run).head["steps"]["rows"] == 5


@pytest.mark.parametrize("first", [0, 1])
def test_segments_of_a_newer_version(
    first: int, tmp_path: Path, page: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = steady(tmp_path, "one", records.CAPACITY // 2)
    with monkeypatch.context() as later:
        later.setattr(records, "VERSION", 99)
        for number, segment in list(enumerate(segments(run)))[first:]:
            data = segment.read_bytes()[records.HEADER_SIZE :]
            segment.write_bytes(records.encode_header(0, 0, number, 1) + data)
    shown = page(run)
    assert "newer version" in f"{shown.warnings} {shown.problems}"
    assert bool(shown.head["steps"]["rows"]) is bool(first)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_segment(seed: int, tmp_path: Path, page: Callable[..., Shown]) -> None:
    run, chosen = steady(tmp_path, "one", 400), random.Random(seed)
    segment = segments(run)[0]
    data = bytearray(segment.read_bytes())
    for _ in range(30):
        data[chosen.randrange(records.HEADER_SIZE, len(data))] ^= 1 << chosen.randrange(8)
    segment.write_bytes(data)
    shown = page(run)
    assert shown.status == 3 and shown.report["damage"]
    assert 300 < shown.head["steps"]["rows"] <= 400


def test_segments_that_are_cut_empty_or_gone(tmp_path: Path, page: Callable[..., Shown]) -> None:
    run = steady(tmp_path, "one", 400)
    segment = segments(run)[0]
    whole = segment.read_bytes()
    for length in (0, 3, records.HEADER_SIZE, len(whole) // 2 + 7):
        segment.write_bytes(whole[:length])
        page(run)
    segment.unlink()
    shown = page(run)
    assert shown.head["steps"]["rows"] == 0


def test_ranks_that_are_missing_or_damaged(tmp_path: Path, page: Callable[..., Shown]) -> None:
    for process in (0, 1, 3):
        made = Written(tmp_path, "ranks", process=process)
        made.phase(rules.JOB, 0, 10 * MS)
        made.phase(rules.STEP, MS, 9 * MS, 0)
        run = made.close()
    (run / "journal" / "p0001.digest").write_bytes(b"\x1f\x8b what is this")
    [third] = [path for path in segments(run) if "-p0003-" in path.name]
    third.write_bytes(b"nonsense" * 100)
    shown = page(run)
    assert [one["index"] for one in shown.head["processes"]] == [0, 1, 2, 3]
    assert shown.problems[0] == "" and shown.head["processes"][1]["bins"] is not None
    assert shown.problems[2] == "it left no journal here" and shown.problems[3]


# --- strange times ---------------------------------------------------------------------------------------------------


YEAR = 365 * 86_400 * NS


@pytest.mark.parametrize("length", [1, 1000, NS, YEAR, 60 * YEAR], ids=["1ns", "1us", "1s", "1y", "60y"])
def test_steps_of_any_length(length: int, tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "times")
    made.phase(rules.JOB, 0, 3 * length)
    for number in range(3):
        made.phase(rules.STEP, number * length, (number + 1) * length, number)
    shown = page(made.close())
    assert [one["wall"] for one in shown.rows("steps")] == [length] * 3
    assert shown.head["end"] == 3 * length


def test_a_loop_of_steps_of_a_microsecond(tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "fast")
    made.phase(rules.JOB, 0, 5000 * 1000)
    for number in range(5000):
        made.phase(rules.STEP, number * 1000, number * 1000 + 900, number)
    run = made.close()
    assert page(run).head["steps"]["rows"] == 5000
    shown = page(run, "--spans", "0")
    assert shown.head["detail"]["left_out"] and "summed up" in shown.head["detail"]["text"]
    assert sum(one["count"] for one in shown.rows("histogram") if one["measure"] == 0) == 5000


def test_numbers_of_steps_may_be_any(tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "numbers")
    made.phase(rules.JOB, 0, 100 * MS)
    numbers = [-5, 0, 2**62, 2**63 - 1, 3, 3]
    for at, number in enumerate(numbers):
        made.phase(rules.STEP, at * MS, (at + 1) * MS, number)
    shown = page(made.close())
    assert len(shown.rows("steps")) >= 4
    page(tmp_path / "numbers", "--spans", "0")


def test_times_that_go_backwards(tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "back")
    made.phase(rules.JOB, 0, None)
    for number in range(20):
        made.phase(rules.STEP, (20 - number) * MS, (20 - number) * MS - 5, number)
    shown = page(made.close())
    assert all(one["wall"] >= -1 for one in shown.rows("steps"))


def two_clocks(directory: Path) -> Path:
    """Two attempts of 3,000 steps; the clock of the second is an hour behind."""
    for attempt, begin in enumerate((0, -3600 * NS)):
        made = Written(directory, "clocks", attempt, begin=begin)
        made.phase(rules.JOB, begin, None)
        for number in range(3000):
            now = begin + number * 10 * MS
            made.phase(rules.DATA_LOADING, now, now + 2 * MS, number)
            made.phase(rules.STEP, now + 2 * MS, now + 9 * MS, attempt * 2990 + number)
        run = made.close()
    return run


def test_windows_of_an_attempt_whose_clock_is_behind(tmp_path: Path, page: Callable[..., Shown]) -> None:
    run = two_clocks(tmp_path)
    whole, part = page(run), page(run, "--spans", "1000")
    assert whole.head["detail"]["left_out"] == 0 and part.head["detail"]["left_out"] > 0
    known = {(one["attempt"], one["number"]): one for one in whole.rows("steps")}
    rows = part.rows("steps")
    assert {1, 2} == {one["attempt"] for one in rows}
    for begin, end in part.head["detail"]["windows"]:
        within = {key for key, one in known.items() if begin <= one["start"] <= end}
        assert within <= {(one["attempt"], one["number"]) for one in rows}
    for one in rows:
        assert one == known[one["attempt"], one["number"]]


def test_excluded_times_unknown_clocks_and_rollbacks(tmp_path: Path, page: Callable[..., Shown]) -> None:
    made = Written(tmp_path, "more")
    job = made.phase(rules.JOB, 0, None)
    made.add(ev.CLOCK, 1)
    now = 0
    for at, number in enumerate((*range(30), *range(10, 40))):  # it goes back within the process
        if at == 30:
            made.phase(rules.PHASE_INDEX[Phase.CHECKPOINT_RESTORE], now, now + MS, 10)
            now += 2 * MS
        made.phase(rules.STEP, now, now + MS, number, ev.ON_DEVICE)
        now += 2 * MS
        if number == 20:
            made.phase(rules.EXCLUSION, now, now + 50 * MS)
            now += 50 * MS
    made.add(ev.SLICES, step=3, key=4, time=now)
    made.add(ev.END, rules.JOB, job, time=now)
    shown = page(made.close())
    assert shown.head["excluded"] and shown.report["excluded_s"] == pytest.approx(0.1)
    assert len(shown.head["disruptions"]) == shown.report["disruptions"]
    assert len(shown.rows("steps")) == 60
    # None of them is lost: the device never reported that it was done with any, so all are in flight.
    assert shown.report["steps"]["lost"] == 0 and {one["fate"] for one in shown.rows("steps")} == {2}


def test_a_rollback_and_slices_that_change(tmp_path: Path, page: Callable[..., Shown]) -> None:
    """Within one process: steps 20 to 39 are lost when it goes back to 20, and later a slice is lost."""
    import otel_goodput

    recorder = otel_goodput.Recorder("back", run_id="back", directory=tmp_path, exporters="none")
    with recorder.job():
        recorder.slice_counts(4, 4, 4)
        for number in range(40):
            with recorder.step(number):
                pass
        with recorder.checkpoint_restore(19):
            pass
        for number in range(20, 50):
            with recorder.step(number):
                pass
        with recorder.elastic_wait("slice_down"):
            pass
        recorder.slice_counts(3, 3, 4)
        with recorder.elastic_reinit():
            pass
        with recorder.step(50):
            pass
    recorder.shutdown()
    shown = page(tmp_path / "back")
    steps = shown.rows("steps")
    assert [one["number"] for one in steps if one["fate"] == 1] == list(range(20, 40))
    assert shown.report["steps"] == {"executed": 71, "kept": 51, "lost": 20}
    [loss] = shown.head["disruptions"]
    assert (loss["reason"], loss["died_at"], loss["from_step"], loss["to_step"]) == ("rollback", None, 39, 20)
    assert loss["wasted_ns"] == pytest.approx(sum(one["net"] for one in steps if one["fate"] == 1), rel=0.5)
    assert [(one["active"], one["total"]) for one in shown.head["slices"]] == [(4, 4), (3, 4)]
    kinds = {shown.head["phase_names"][one["phase"]] for one in shown.rows("phases")}
    assert {"elastic_wait", "elastic_reinit", "checkpoint_restore"} <= kinds
    seconds = shown.report["seconds"]
    assert seconds["elastic_slice_down"] > 0 and seconds["elastic_reinitialization"] > 0


def test_a_thousand_names_of_ones_own(tmp_path: Path, page: Callable[..., Shown]) -> None:
    import otel_goodput

    recorder = otel_goodput.Recorder("names", run_id="names", directory=tmp_path, exporters="none")
    with recorder.job():
        for number in range(1000):
            with recorder.custom(f"name {number}"):
                pass
    recorder.shutdown()
    shown = page(tmp_path / "names")
    assert sum(one["count"] for one in shown.head["groups"]) >= 1000
    assert len(shown.rows("phases")) >= 1000
