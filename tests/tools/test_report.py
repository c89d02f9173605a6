"""``otel-goodput report``: a run's folder, several runs, a URL, a living job."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import warm
from waits import until

from otel_goodput import Recorder
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._timeline.recovery import restore

from .commands import NS, PATIENCE_S, environment, failed, finished, goodput, job, killed, succeeded, total_ns


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs: `alpha` was killed in step 10 and resumed at 6, `beta` went well at once."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    killed("alpha", folder, 0, 10)
    finished("alpha", folder, 6, 20)
    finished("beta", folder, 0, 7)
    return folder


def report(*arguments: str | Path, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(succeeded(goodput("report", *arguments, "--json", **more)))
    assert total_ns(answer["seconds"]) == round(answer["elapsed_s"] * NS), "the categories sum to the elapsed time"
    return answer


def check_alpha(answer: dict[str, Any]) -> None:
    assert (answer["run_id"], answer["job_name"], answer["ended"]) == ("alpha", "alpha", True)
    assert answer["attempts"] == 2
    assert answer["disruption_reasons"] == {"crash": 1}
    # Steps 6..9 were done twice, step 10 died in flight and came again.
    assert answer["steps"] == {"executed": 24, "kept": 20, "lost": 5}
    assert answer["max_productive_step"] == 19
    [disruption] = answer["disruption_list"]
    assert (disruption["from_step"], disruption["to_step"]) == (10, 6)
    assert disruption["kept_step"] == 9, "step 10 was in flight"
    assert answer["first_step_s"] == disruption["first_step_s"] < disruption["regained_s"] < answer["elapsed_s"]
    assert answer["seconds"]["custom"]["look"] >= 0.004


def test_the_folder_of_a_run(runs: Path) -> None:
    check_alpha(report(runs / "alpha"))


def test_one_of_several_runs(runs: Path) -> None:
    check_alpha(report(runs, "--run", "alpha"))
    assert report(runs, "--run", "beta")["attempts"] == 1


def ids(*arguments: str | Path) -> list[str]:
    """Of the runs in a report on several, which is one document; the one that began last first."""
    whole = json.loads(succeeded(goodput("report", *arguments, "--json")))
    assert list(whole) == ["runs"]
    return [each["run_id"] for each in whole["runs"]]


def test_of_several_runs_the_newest_is_shown_and_which_there_are(runs: Path, tmp_path: Path) -> None:
    assert ids(runs) == ["beta", "alpha"]
    lines = succeeded(goodput("report", runs)).splitlines()
    assert lines[0].startswith(f"2 runs in {runs}; the newest is shown, --run ID shows another:")
    listed = [line.split()[:3] for line in lines[1:3]]
    assert listed == [["beta", "1", "attempt"], ["alpha", "2", "attempts"]]
    assert [line.split(",")[0] for line in lines if line.startswith("Goodput of ")] == ["Goodput of beta"]
    # Newest is what began last, not what was made last; a copy has other times on its files.
    killed("old", tmp_path / "runs", 0, 3)
    shutil.copytree(runs / "beta", tmp_path / "runs" / "beta", copy_function=shutil.copyfile)
    assert ids(tmp_path / "runs") == ["old", "beta"]
    finished("new", tmp_path / "runs", 0, 3)
    assert ids(tmp_path / "runs") == ["new", "old", "beta"]
    finished("old", tmp_path / "runs", 3, 6)
    assert ids(tmp_path / "runs") == ["old", "new", "beta"]


def test_a_folder_of_many_runs(runs: Path, tmp_path: Path) -> None:
    for number in range(25):
        shutil.copytree(runs / "beta", tmp_path / f"run-{number:02d}")
        (tmp_path / f"run-{number:02d}" / "run.json").write_bytes(checked_json({"run_id": f"\x1b[2Jrun {number:02d}"}))
    text = succeeded(goodput("report", tmp_path))
    assert "25 runs in" in text and "and 5 older ones" in text and "\x1b" not in text


def test_text_for_people(runs: Path) -> None:
    text = succeeded(goodput("report", runs / "alpha"))
    assert text.startswith("Goodput of alpha, 2 attempts, since 2")
    for word in ("ended", "productive", "wasted_progress", "infrastructure_recovery", "custom look", "100.00 %"):
        assert word in text, text
    assert "25 started = 20 kept + 5 lost; highest kept step: 19" in text
    assert re.search(r"^    crash at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(attempt 2\)$", text, re.MULTILINE)
    assert "went back from step 10 to 6" in text
    assert re.search(r"^           first step finished [\d.]+ m?s after the latest start$", text, re.MULTILINE)
    assert re.search(r"^      first step finished after .+, step 9 reached again after ", text, re.MULTILINE)


def test_where_runs_are_looked_for(runs: Path, tmp_path: Path) -> None:
    check_alpha(report("--run", "alpha", OTEL_GOODPUT_DIR=runs))
    shutil.copytree(runs, tmp_path / "goodput")
    check_alpha(report("--run", "alpha", cwd=tmp_path))


def test_a_url(runs: Path) -> None:
    check_alpha(report(f"file://{runs}", "--run", "alpha"))
    assert ids(f"file://{runs}") == ["beta", "alpha"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_is_no_run_is_passed_over(scheme: str, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs" / "another folder").mkdir()
    (tmp_path / "runs" / "a file").write_text("and its text")
    assert ids(f"{scheme}{tmp_path}/runs") == ["beta", "alpha"]


def test_an_earlier_time_windows_and_exclusions(runs: Path) -> None:
    whole = report(runs / "beta")
    start, elapsed = whole["started_at"], whole["elapsed_s"]
    middle = start + elapsed / 2
    early = report(runs / "beta", "--at", repr(middle))
    assert early["elapsed_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert early["ended"] is False
    cut = report(runs / "beta", "--window", repr(start), repr(middle), "--exclude", repr(middle), repr(start + 1e6))
    [window] = cut["windows"]
    assert window["elapsed_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert total_ns(window["seconds"]) == round(window["elapsed_s"] * NS)
    assert cut["elapsed_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert cut["excluded_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert report(runs / "beta", "--ideal-step-time", "0.5")["ideal_step_time_s"] == 0.5


def test_a_living_job(tmp_path: Path) -> None:
    with job("alive", tmp_path, 0, 10, "wait"):
        answer = report(tmp_path)
        assert answer["ended"] is False
        assert answer["in_flight_step"] == 10
        assert answer["seconds"]["in_flight"] > 0
        later = report(tmp_path)
        assert later["seconds"]["in_flight"] > answer["seconds"]["in_flight"], "a hang is seen at once"
        assert answer["state"] == "running"
        text = succeeded(goodput("report", tmp_path))
        assert "11 started = 10 kept + 0 lost + 1 pending" in text
        assert re.search(r"step 10 is in flight \(for [\d.]+ m?s so far\)", text)
        assert text.splitlines()[0].endswith(", running")


def test_a_killed_job(tmp_path: Path) -> None:
    """It died, and what was in flight is lost; nothing goes on."""
    with job("dead", tmp_path, 0, 10, "wait") as process:
        entered = restore(RunDirectory(tmp_path / "dead")).last_sign
        until(lambda: restore(RunDirectory(tmp_path / "dead")).last_sign > entered)
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    answer = report(tmp_path)
    assert answer["attempts"] == 1
    assert (answer["steps"]["kept"], answer["steps"]["lost"]) == (10, 1)
    assert (answer["state"], answer["ended"], answer["in_flight_step"], answer["last_step"]) == (
        "died",
        False,
        None,
        10,
    )
    assert answer["seconds"].get("in_flight", 0) == 0 < answer["seconds"]["wasted_progress"]
    assert answer["last_sign_of_life"] == pytest.approx(answer["started_at"] + answer["elapsed_s"], abs=1e-5)
    text = succeeded(goodput("report", tmp_path))
    assert text.splitlines()[0].endswith(", died") and "not ended" not in text and "in flight" not in text
    assert re.search(r"  the process died at 2\d{3}-\d\d-\d\d [\d:]+ UTC, [\d.]+ m?s into step 10\n", text)
    assert "11 started = 10 kept + 1 lost" in text
    # The same from the whole journal, and of a moment long after its death; before it, it was alive.
    moment = answer["last_sign_of_life"]
    late = report(tmp_path, "--at", repr(moment + 3600))
    assert {**late, "windows": []} == {**answer, "windows": []}
    early = report(tmp_path, "--at", repr(answer["last_sign_of_life"] - answer["last_step_open_s"] / 2))
    assert (early["state"], early["in_flight_step"]) == ("running", 10)


def test_between_a_death_and_the_next_attempt_the_run_was_dead(runs: Path) -> None:
    whole = report(runs / "alpha")
    [death] = whole["disruption_list"]
    again = RunDirectory(runs / "alpha").began()
    assert again is not None and 0 < again / NS - death["died_at"] <= death["recovery_s"]
    between = report(runs / "alpha", "--at", repr((death["died_at"] + again / NS) / 2))
    assert (between["state"], between["attempts"], between["disruptions"]) == ("died", 1, 0)
    assert between["steps"]["lost"] == 1 and between["seconds"]["infrastructure_recovery"] == 0
    assert report(runs / "alpha", "--at", "1h")["state"] == "ended"
    assert report(runs / "alpha", "--at", "1h ago")["elapsed_s"] == 0


def test_a_copy_from_a_url_cannot_tell_a_death_from_a_silence(tmp_path: Path) -> None:
    killed("far", tmp_path / "runs")
    where = f"file://{tmp_path}/runs"
    assert report(where)["state"] == "running", "it gave a sign of life a moment ago"
    shutil.copytree(tmp_path / "runs", tmp_path / "old")
    for lock in (tmp_path / "old").rglob("*.lock"):
        lock.unlink()
    assert report(tmp_path / "old")["state"] == "running"


@pytest.mark.parametrize("form", ["seconds", "RFC 3339", "after the start"])
def test_moments_may_be_written_in_many_ways(form: str, runs: Path) -> None:
    whole = report(runs / "beta")
    start, length = whole["started_at"], whole["elapsed_s"]
    at = start + length / 2
    begin = datetime.fromtimestamp(at, timezone(timedelta(hours=2)))
    text = {"seconds": repr(at), "RFC 3339": begin.isoformat(), "after the start": f"{length / 2 * 1000:.3f}ms"}[form]
    cut = report(runs / "beta", "--at", "1h", "--window", text, "1h", "--ideal-step-time", "1m30s")
    assert cut["windows"][0]["elapsed_s"] == pytest.approx(length / 2, abs=1e-5)
    assert cut["elapsed_s"] == length and cut["ideal_step_time_s"] == 90


@pytest.mark.parametrize("text", ["yesterday", "2026-11-22T11:25:00", "nan", "1e300", "1h 5", ""])
def test_what_is_no_moment_is_wrong_use(text: str, runs: Path) -> None:
    done = goodput("report", runs / "beta", "--at", text)
    assert done.returncode == 2 and "argument --at: invalid time value" in done.stderr


@pytest.mark.parametrize("arguments", [["report"], ["report", "--json"], ["env"], ["--help"]], ids=" ".join)
def test_whoever_reads_it_may_go_away(arguments: list[str], runs: Path) -> None:
    """As `| head -0` does, and a standard output that is closed from the beginning."""
    where = arguments + ([str(runs)] if arguments[0] == "report" else [])
    command = [sys.executable, "-W", "error", "-m", "otel_goodput", *where]
    for unbuffered in ("", "1"):
        more = {"PYTHONUNBUFFERED": unbuffered} if unbuffered else {}
        reader, writer = os.pipe()
        os.close(reader)
        done = warm.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment(**more), check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")
    closed = ["sh", "-c", '"$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, env=environment(), check=False)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_no_such_run(runs: Path) -> None:
    line = failed(goodput("report", runs, "--run", "gamma"))
    assert "'gamma'" in line
    assert "alpha, beta" in line
    assert "'gamma'" in failed(goodput("report", f"file://{runs}", "--run", "gamma"))


def test_no_such_process(runs: Path) -> None:
    assert "process 3" in failed(goodput("report", runs / "beta", "--process", "3"))


def test_nothing_there(tmp_path: Path) -> None:
    assert "holds no run" in failed(goodput("report", tmp_path))
    assert "holds no run" in failed(goodput("report", tmp_path / "nowhere"))
    assert "goodput holds no run" in failed(goodput("report", cwd=tmp_path))
    assert "nowhere" in failed(goodput("report", f"file://{tmp_path}/nowhere"))
    assert "nosuch" in failed(goodput("report", "nosuch://bucket/runs"))
    assert list(tmp_path.iterdir()) == [], "asking makes nothing"


def test_a_reversed_window(runs: Path) -> None:
    assert "5.0 .. 3.0" in failed(goodput("report", runs / "beta", "--window", "5", "3"))


def test_the_slowest_steps(tmp_path: Path) -> None:
    """Two steps of many that take far longer than the others, one of them lost."""
    begin = 1_700_000_000 * NS
    with Recorder("slow", directory=tmp_path, exporters="none") as recorder, recorder.job(start_time=begin) as job:
        at = begin
        for number, length in enumerate([10, 10, 500, 10, 300, 10, 10]):
            with recorder.step(number, start_time=at, end_time=at + length * 1_000_000):
                pass
            at += length * 1_000_000
        with recorder.step(4, start_time=at, end_time=at + 1_000_000):
            pass
        job.end(at + 1_000_000)
    slowest = json.loads(succeeded(goodput("report", tmp_path, "--slowest", "2", "--json")))["slowest_steps"]
    assert slowest == [
        {"step": 2, "attempt": 1, "start": begin / NS + 0.02, "net_s": 0.5, "fate": "kept"},
        {"step": 4, "attempt": 1, "start": begin / NS + 0.53, "net_s": 0.3, "fate": "lost"},
    ]
    lines = succeeded(goodput("report", tmp_path, "--slowest", "2")).splitlines()
    assert lines[-3] == "  the 2 slowest steps, by net time:"
    line = "step 2 500 ms 50.0 x median began 2023-11-14 22:13:20 UTC, attempt 1"
    assert " ".join(lines[-2].split()) == line
    assert lines[-1].endswith("attempt 1  lost")
