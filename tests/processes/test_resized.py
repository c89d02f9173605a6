"""A run that goes on with more or fewer processes: an attempt has one number, whoever takes part in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

PATIENCE_S = 60
RANK = """
import os, signal, sys
import otel_goodput as goodput
goodput.configure("ranks", run_id="run", exporters="none")
with goodput.job():
    for step, _ in goodput.steps(range(8)):
        pass
    print("there", flush=True)
    sys.stdin.readline()
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def launch(folder: Path, ranks: int, how: str) -> None:
    """One attempt of so many processes, all of which are there at once; the last one begins first."""
    processes = []
    for rank in reversed(range(ranks)):
        environment = {**os.environ, "OTEL_GOODPUT_STRICT": "", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-c", RANK, how]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(warm.Process(command, cwd=folder, env=environment, text=True, **pipes))
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
    for process in processes:
        process.communicate("\n", timeout=PATIENCE_S)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2, 3, 2), (1, 2)], ids=str)
def test_all_processes_of_an_attempt_have_its_number(sizes: tuple[int, ...], tmp_path: Path) -> None:
    for size in sizes[:-1]:
        launch(tmp_path, size, "kill")
    launch(tmp_path, sizes[-1], "end")
    run = RunDirectory(tmp_path / "goodput" / "run")
    for process in range(sizes[-1]):
        assert run.attempts(process) == [number for number, size in enumerate(sizes) if process < size]
    facts = [RecordedRun(run).facts(len(sizes) - 1, process) for process in range(sizes[-1])]
    assert len({fact.resource["goodput.trace.id"] for fact in facts if fact is not None}) == 1
    assert RecordedRun(run).report().to_json()["state"] == "ended"  # also if the last attempt has fewer of them
    assert f"  processes  {sizes[-1]} of {sizes[-1]} report step times" in str(RecordedRun(run).report())


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_leader_whose_facts_cannot_be_read(harm: str, tmp_path: Path) -> None:
    """It was killed before it wrote them: the others record all the same, in the attempt that follows."""
    for _ in range(2):
        launch(tmp_path, 1, "kill")
    run = RunDirectory(tmp_path / "goodput" / "run")
    run.file("facts", 1, 0).unlink(missing_ok=True)
    if harm == "damaged":
        run.file("facts", 1, 0).write_text("{")
    launch(tmp_path, 2, "end")
    assert (run.attempts(0), run.attempts(1)) == ([0, 1, 2], [2])


def test_a_leader_that_died_early_was_in_this_launch(tmp_path: Path) -> None:
    """The process is older than the leader's last sign of life, so it belongs to that attempt."""
    late = warm.Process(
        [sys.executable, "-c", f"import sys; sys.stdin.readline()\n{RANK}", "end"],
        cwd=tmp_path,
        env={**os.environ, "OTEL_GOODPUT_STRICT": "", "RANK": "1", "WORLD_SIZE": "2"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    launch(tmp_path, 1, "kill")
    late.communicate("\n\n", timeout=PATIENCE_S)
    run = RunDirectory(tmp_path / "goodput" / "run")
    assert (run.attempts(0), run.attempts(1)) == ([0], [0])


def test_processes_that_run_one_after_the_other_are_of_the_same_attempts(tmp_path: Path) -> None:
    for rank in range(3):
        for how in ("kill", "end"):
            environment = {**os.environ, "OTEL_GOODPUT_STRICT": "", "RANK": str(rank), "WORLD_SIZE": "3"}
            warm.run(
                [sys.executable, "-c", RANK, how], cwd=tmp_path, env=environment, input="\n", text=True, timeout=60
            )
    run = RunDirectory(tmp_path / "goodput" / "run")
    assert [run.attempts(rank) for rank in range(3)] == [[0, 1]] * 3


def test_a_process_that_left_no_pace_is_counted(tmp_path: Path) -> None:
    """By the report of the run that has ended as by that of the living one."""
    launch(tmp_path, 3, "end")
    run = RunDirectory(tmp_path / "goodput" / "run")
    run.file("pace", 2).unlink()
    assert "  processes  2 of 3 report step times" in str(RecordedRun(run).report())
