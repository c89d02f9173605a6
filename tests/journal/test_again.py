"""The same program started again: a run that had finished is followed by a new one, another one goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import warm
from recorded import Recording

import otel_goodput as goodput
from otel_goodput._journal.rundir import RunDirectory, runs
from otel_goodput._settings.config import RESTART_SOURCES, read
from otel_goodput._settings.placement import LAUNCHERS
from otel_goodput.reports.run import RecordedRun

from .again import Training, lines_about_runs


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "project")


@pytest.mark.parametrize("ending", ["end", "exit in the job", "interrupt afterwards"])
def test_a_run_that_had_finished_is_followed_by_a_new_one(ending: str, training: Training) -> None:
    for _ in range(3):
        assert not lines_about_runs(training.start(ending))
    reports = training.reports()
    assert list(reports) == ["train", "train-2", "train-3"]
    for report in reports.values():
        assert report["attempts"] == 1 and report["ended"] and not report["disruptions"] and not report["warnings"]
        assert report["steps"]["executed"] == report["steps"]["kept"] == 10


@pytest.mark.parametrize("ending", ["kill", "interrupt", "notice", "error"])
def test_a_run_that_had_not_finished_continues_with_a_warning(ending: str, training: Training) -> None:
    assert not lines_about_runs(training.start(ending))
    # What ended after a save also gets advice on how to resume from it.
    (line,) = (each for each in lines_about_runs(training.start("end")) if "had not finished" in each)
    for words in ("'train'", "had not finished", " s after", "attempt 2", "OTEL_GOODPUT_RUN_ID=train-2"):
        assert words in line
    (report,) = training.reports().values()
    assert report["attempts"] == 2
    reason = {"kill": "crash", "error": "crash"}.get(ending, "signal")
    assert report["disruption_reasons"] == {reason: 1}
    (note,) = (each for each in report["warnings"] if "had not finished" in each["text"])
    assert note["text"] == line and "infrastructure_recovery" in note["doubts"]
    assert " ".join(note["text"].split()) in " ".join(
        str(RecordedRun(RunDirectory(training.folder / "goodput" / "train")).report()).split()
    )
    # It has finished by now.
    assert not lines_about_runs(training.start("end"))
    assert list(training.reports()) == ["train", "train-2"]


@pytest.mark.parametrize("restoring", ["restore", ""])
def test_a_loop_that_starts_a_program_over_and_over(restoring: str, training: Training) -> None:
    """``while true; do python train.py; done``: it ends cleanly every time, and goes on where it was."""
    for number in range(1, 4):
        lines = lines_about_runs(training.start("end", restoring))
        before = {1: "", 2: "train", 3: "train-2"}[number]
        if not restoring or number == 1:
            assert not lines
            continue
        (line,) = lines
        assert "restores a checkpoint" in line and line.endswith(f"OTEL_GOODPUT_RUN_ID={before}")
        notes = [note["text"] for note in training.reports()[f"train-{number}"]["warnings"]]
        assert lines_about_runs("\n".join(notes)) == [line]  # on a busy machine, a step may be long beside empty ones
    # Whoever sets what the warning says has one run from then on.
    training.start("end", "restore", OTEL_GOODPUT_RUN_ID="train-3")
    assert len(training.reports()) == 3 and training.reports()["train-3"]["attempts"] == 2


BEGINS = """
import sys
import otel_goodput as goodput
goodput.configure("train", exporters="none")
with goodput.job():
    for number in range(int(sys.argv[1]), int(sys.argv[1]) + 5):
        with goodput.step(number):
            pass
"""


def test_a_new_run_that_begins_above_step_0(tmp_path: Path) -> None:
    training = Training(tmp_path, BEGINS)
    assert not lines_about_runs(training.start("1")) and not lines_about_runs(training.start("1")), "some count from 1"
    (line,) = lines_about_runs(training.start("6"))
    assert "begins at step 6" in line and line.endswith("OTEL_GOODPUT_RUN_ID=train-2")


@pytest.mark.parametrize(
    "given",
    [
        {"OTEL_GOODPUT_RUN_ID": "train"},
        {"OPTIONS": json.dumps({"run_id": "train"})},
        {"JOBSET_NAME": "train"},
        {"OTEL_GOODPUT_EXIT_CODE": "0"},
        {"TORCHELASTIC_RESTART_COUNT": "1"},
        {"RANK": "0"},
        {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2"},
        {"OPTIONS": json.dumps({"process_index": 0, "process_count": 4})},
        {"TPU_WORKER_HOSTNAMES": "host-0,host-1"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_run_with_an_id_of_its_own_or_of_several_processes_goes_on(given: dict[str, str], training: Training) -> None:
    for _ in range(2):
        training.start("end", **given)
    (report,) = training.reports().values()
    assert report["run_id"] == "train" and report["attempts"] == 2


@pytest.mark.parametrize(
    "given", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"TPU_WORKER_HOSTNAMES": "host-0"}, {"SLURM_RESTART_COUNT": "0"}]
)
def test_who_is_alone(given: dict[str, str]) -> None:
    assert read("train", environ=given).renewable


def test_launchers_that_tell_of_restarts_are_all_known() -> None:
    assert sorted(RESTART_SOURCES) == sorted(name for launcher in LAUNCHERS for name in launcher.restarts)


def test_one_replaced_host_of_four_keeps_the_name_of_the_rest(tmp_path: Path) -> None:
    """Each rank has a folder of its own; that of the third is empty, for its machine is a new one."""
    ranks = [Training(tmp_path / f"host {rank}") for rank in range(4)]
    for attempt in range(2):
        if attempt:
            ranks[2] = Training(tmp_path / "host 2, replaced")
        for rank, training in enumerate(ranks):
            training.start("end", RANK=str(rank), WORLD_SIZE="4")
    names = [[run.name for run in (training.folder / "goodput").iterdir()] for training in ranks]
    assert names == [["train"]] * 4


def test_somebodys_own_ids_that_look_the_same(record: Callable[..., Recording]) -> None:
    """``line-3`` was given by hand: it is nobody's successor, and its number is left out."""
    for run_id, expected in (("line-3", "line-3"), (None, "line"), (None, "line-4"), (None, "line-5")):
        recording = record(run_id=run_id)
        assert recording.recorder.run_id == expected
        with goodput.job(), goodput.step(0):
            pass
        goodput.shutdown()
    recording = record(run_id=None)
    with goodput.job():
        goodput.shutdown()  # in the midst of its job
    again = record(run_id=None)
    assert again.recorder.run_id == recording.recorder.run_id == "line-6"


def test_runs_whose_folders_were_removed(record: Callable[..., Recording]) -> None:
    """The latest that is left counts, whatever was tidied up before it."""
    for expected in ("line", "line-2", "line-3"):
        recording = record(run_id=None)
        assert recording.recorder.run_id == expected
        with goodput.job(), goodput.step(0):
            pass
        goodput.shutdown()
    for name in ("line", "line-2"):
        (recording.folder.parent / name).rename(recording.folder.parent.parent / name)
    assert record(run_id=None).recorder.run_id == "line-4"


def test_at_a_url(record: Callable[..., Recording], spool: Path, tmp_path: Path) -> None:
    """Another machine, with an empty spool, sees the runs that are there."""
    pytest.importorskip("fsspec")
    url = f"file://{tmp_path / 'remote'}"
    for number, expected in enumerate(("line", "line-2", "line-3")):
        for path in spool.iterdir():
            path.rename(tmp_path / f"spool of machine {number}")
        recording = record(run_id=None, directory=url)
        assert recording.recorder.run_id == expected
        with goodput.job(), goodput.step(0):
            pass
        goodput.shutdown()


ALIVE = """
import sys
import otel_goodput as goodput
recorder = goodput.configure("train", exporters="none")
with goodput.job(), goodput.step(0):
    print(recorder.run_id, flush=True)
    sys.stdin.readline()
print("finished", flush=True)
sys.stdin.readline()
"""


def test_two_at_once(tmp_path: Path) -> None:
    """While one trains, the other has a run of its own; when it has finished and merely lingers, a new one."""
    with ExitStack() as stack:

        def begin() -> tuple[warm.Process, str]:
            process = warm.Process(
                [sys.executable, "-c", ALIVE],
                cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            stack.callback(process.communicate, "\n\n", timeout=60)
            assert process.stdout is not None
            return process, process.stdout.readline().strip()

        first, run_id = begin()
        assert run_id == "train"
        second, run_id = begin()
        assert run_id == f"train~{second.pid}"
        assert first.stdin is not None and first.stdout is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "finished\n"
        assert begin()[1] == "train-2"
    assert len(list(runs(tmp_path / "goodput"))) == 3


EXPORTS = """
import otel_goodput as goodput
goodput.configure("train")
with goodput.job():
    for step, _ in goodput.steps(range(5)):
        pass
"""


def test_unexported_spans_of_a_finished_run_are_warned_about(tmp_path: Path) -> None:
    """A run that goes on exports them itself; one that had finished is another run's no more."""
    training = Training(tmp_path, EXPORTS)
    away = {"OTEL_GOODPUT_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_GOODPUT_GRACE_PERIOD": "2"}  # fmt: skip
    training.start("end", **away)
    at_hand = {"OTEL_GOODPUT_EXPORTERS": "file"}
    (line,) = (line for line in training.start("end", **at_hand).splitlines() if "recover" in line)
    assert "spans of run 'train', which had finished" in line
    command = line.partition("`")[2].partition("`")[0].split()
    assert command[:2] == ["otel-goodput", "recover"] and command[-2:] == ["--run", "train"]
    recover = [sys.executable, "-m", *("otel_goodput", *command[1:]), "--exporters", "file"]
    done = warm.run(recover, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "spans exported through file" in done.stdout
    assert list((tmp_path / "goodput" / "train").glob("traces-*.jsonl"))
    (tmp_path / "goodput" / "train-2").rename(tmp_path / "aside")
    assert "recover" not in training.start("end", **at_hand), "they have been exported by now"


def test_a_finished_run_whose_spans_were_exported_causes_no_warning(tmp_path: Path) -> None:
    training = Training(tmp_path, EXPORTS)
    for _ in range(3):
        assert "recover" not in training.start("end", OTEL_GOODPUT_EXPORTERS="file,console")
    assert list(training.reports()) == ["train", "train-2", "train-3"]
