"""Programs as strangers start them: which process each is, and which run it belongs to, by each launcher's variables.

The variables are those that the launchers set; those of Lightning and jax were read in their sources.

Longer than other files: a row for each launcher, with one program that all of them start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from ports import reserved_port

from otel_goodput import Recorder, semconv
from otel_goodput._journal.rundir import RunDirectory, runs
from otel_goodput._live import launches
from otel_goodput.reports.run import RecordedRun

# Says who it is and in which run, at the end; what happens before the job and in it is given.
PROGRAM = """
import json, os, signal, subprocess, sys, time
import otel_goodput as goodput
recorder = goodput.configure(os.environ.get("JOB", "train"), exporters="none")
together, _, count = os.environ.get("TOGETHER", "").partition("*")
if together:  # as by a collective, none goes on before all have begun
    os.makedirs(together, exist_ok=True)
    open(os.path.join(together, str(os.getpid())), "w").close()
    while len(os.listdir(together)) < int(count):
        time.sleep(0.002)
{before}
with goodput.job():
    {within}
    for step, _ in goodput.steps(range(10)):
        pass
    {after}
config = recorder.config
print(json.dumps([recorder.run_id, config.process_index, config.process_count, recorder.attempt]), flush=True)
"""
TORCHRUN = {
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip


class Programs:
    """Starts of a program in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = 0

    def begin(
        self, variables: dict[str, str], *arguments: str, before: str = "", within: str = "", after: str = ""
    ) -> warm.Process:
        code = PROGRAM.format(before=before, within=within or "pass", after=after or "pass")
        (self.folder / "train.py").write_text(code)
        return warm.Process(
            [sys.executable, "-c", code, *arguments],
            cwd=self.folder,
            env={**os.environ, "OTEL_GOODPUT_STRICT": "", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *several: dict[str, str], **code: str) -> tuple[list[Any], str]:
        """Start a process for each of the variables, and wait for all; returns their places, and their stderr."""
        self.starts += 1
        together = f"{self.folder}/together-{self.starts}*{len(several)}"
        processes = [self.begin({"TOGETHER": together, **variables}, **code) for variables in several]
        outputs = [process.communicate(timeout=90) for process in processes]
        started = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("[")]
        return started, "".join(errors for _, errors in outputs)

    def reports(self) -> dict[str, dict[str, Any]]:
        """What the disk says of each run's leader, by its id."""
        recorded = (RecordedRun(run).report() for run in runs(self.folder / "goodput"))
        return {report.about["run_id"]: report.to_json() for report in recorded}


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def torchrun(count: int = 2, **more: str) -> list[dict[str, str]]:
    """The variables of each process."""
    several = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), **TORCHRUN, **more}
    return [{**several, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


# --- torchrun ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"TORCHELASTIC_RUN_ID": "4f8c", "MASTER_PORT": "0"}])
def test_a_second_torchrun_of_a_finished_script_is_a_new_run(more: dict[str, str], programs: Programs) -> None:
    for number in ("", "-2"):
        started, errors = programs.start(*torchrun(**more))
        assert started == [[f"train{number}", 0, 2, 0], [f"train{number}", 1, 2, 0]], errors
    for report in programs.reports().values():
        assert report["attempts"] == 1 and report["steps"]["lost"] == 0 and not report["warnings"]
    for run in runs(programs.folder / "goodput"):
        assert run.processes() == [0, 1]


def test_a_torchrun_after_one_that_crashed_continues_with_one_warning(programs: Programs) -> None:
    programs.start(*torchrun(), after="os.kill(os.getpid(), signal.SIGKILL)")
    started, errors = programs.start(*torchrun())
    assert started == [["train", 0, 2, 1], ["train", 1, 2, 1]]
    assert errors.count("had not finished") == 1


def test_what_torchrun_starts_again_is_the_same_run(programs: Programs) -> None:
    """The count of restarts rises, even if the leader had finished when another process failed; the port may change."""
    programs.start(*torchrun())
    programs.start(*torchrun())
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    for more, attempt in (({}, 1), ({"MASTER_PORT": "40123"}, 2)):
        started, _ = programs.start(*torchrun(**again, **more))
        assert started == [["train-2", 0, 2, attempt], ["train-2", 1, 2, attempt]]
        again = {"TORCHELASTIC_RESTART_COUNT": "2"}
    started, _ = programs.start(*torchrun())
    assert started == [["train-3", 0, 2, 0], ["train-3", 1, 2, 0]]


def test_a_process_that_comes_before_its_leader_agrees_with_it(programs: Programs) -> None:
    """The leader died after its clean end, the other one before: alone, they would decide differently."""
    programs.start(*torchrun(), after="os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL)")
    leader, other = torchrun()
    wait = 'print("there", flush=True); sys.stdin.readline()'
    with programs.begin(other, before=wait) as follower:
        assert follower.stdout is not None and follower.stdin is not None
        assert follower.stdout.readline() == "there\n"
        with programs.begin(leader, within=wait) as first:
            assert first.stdout is not None and first.stdin is not None
            assert first.stdout.readline() == "there\n"
            out, _ = follower.communicate("\n", timeout=60)
            assert json.loads(out) == ["train-2", 1, 2, 0]
            out, _ = first.communicate("\n", timeout=60)
            assert json.loads(out) == ["train-2", 0, 2, 0]
    assert [sorted(run.processes()) for run in runs(programs.folder / "goodput")] == [[0, 1], [0, 1]]


def test_two_launches_at_once_are_two_whole_runs(programs: Programs) -> None:
    wait = 'print("there", flush=True); sys.stdin.readline()'
    leader, other = torchrun(2, MASTER_PORT="29501")
    with programs.begin(torchrun(1)[0], within=wait) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "there\n"
        # The other process of the second launch has come when its leader has chosen: else it may end before that.
        with programs.begin(leader, within=wait) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "there\n"
            started, errors = programs.start(other)
            assert started == [["train~29501", 1, 2, 0]], errors
            out, _ = second.communicate("\n", timeout=60)
            assert json.loads(out) == ["train~29501", 0, 2, 0]
        out, _ = first.communicate("\n", timeout=60)
        assert json.loads(out) == ["train", 0, 1, 0]
    assert {run.path.name: run.processes() for run in runs(programs.folder / "goodput")} == {
        "train": [0],
        "train~29501": [0, 1],
    }


FOLLOWING = """
    from time import monotonic, sleep
    for step, _ in goodput.steps(range(int(os.environ.get("BEFORE", 40)))):
        pass
    print("there", flush=True)
    until = monotonic() + 60
    while recorder.run_id == "train" and monotonic() < until:
        sleep(0.01)
"""


@pytest.mark.parametrize("before", [40, 80_000], ids=["in its first segment", "after several"])
def test_what_was_recorded_before_the_leader_chose_becomes_part_of_its_run(before: int, programs: Programs) -> None:
    """Another launch holds the name; the process that came first began in its run, as it had to assume."""
    wait = 'print("there", flush=True); sys.stdin.readline()'
    leader, other = torchrun(2, MASTER_PORT="29501")
    with programs.begin(torchrun(1)[0], within=wait) as first:
        assert first.stdout is not None and first.stdout.readline() == "there\n"
        with programs.begin({**other, "BEFORE": str(before)}, within=FOLLOWING.strip()) as follower:
            assert follower.stdout is not None and follower.stdout.readline() == "there\n"
            started, _ = programs.start(leader)
            out, errors = follower.communicate(timeout=60)
        assert [started, json.loads(out)] == [[["train~29501", 0, 2, 0]], ["train~29501", 1, 2, 0]], errors
        assert not errors
        first.communicate("\n", timeout=60)
    folder = programs.folder / "goodput"
    assert {run.path.name: run.processes() for run in runs(folder)} == {"train": [0], "train~29501": [0, 1]}
    account = RecordedRun(RunDirectory(folder / "train~29501")).report(process=1).to_json()
    assert account["attempts"] == 1 and not account["warnings"]
    assert (account["steps"]["kept"], account["steps"]["lost"]) == (before + 10, 0)
    assert not any("p0001" in path.name for path in (folder / "train").rglob("*"))


def test_who_cannot_join_its_leaders_run_stays_and_says_so(programs: Programs) -> None:
    """Somebody else writes that run as the same process."""
    wait = 'print("there", flush=True); sys.stdin.readline()'
    leader, other = torchrun(2, MASTER_PORT="29501")
    holders = {**torchrun(1)[0]}, {**other, "OTEL_GOODPUT_RUN_ID": "train~29501"}
    with programs.begin(holders[0], within=wait) as first, programs.begin(holders[1], within=wait) as second:
        for holder in (first, second):
            assert holder.stdout is not None and holder.stdout.readline() == "there\n"
        with programs.begin(other, within=wait) as follower:
            assert follower.stdout is not None and follower.stdout.readline() == "there\n"
            programs.start(leader)
            out, errors = follower.communicate("\n", timeout=60)
        for holder in (first, second):
            holder.communicate("\n", timeout=60)
    assert json.loads(out) == ["train", 1, 2, 0]
    assert "the leader of its launch chose 'train~29501', which this process can no longer join" in errors
    account = RecordedRun(RunDirectory(programs.folder / "goodput" / "train")).report(process=1).to_json()
    assert account["steps"]["kept"] == 10 and len(account["warnings"]) == 1
    processes = {run.path.name: run.processes() for run in runs(programs.folder / "goodput")}
    assert processes == {"train": [0, 1], "train~29501": [0, 1]}
    assert "is being written" not in errors


KILLED = """
calls = 0
def look(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "mmap.__new__"):
        if calls or "train~29501" in str(arguments):
            calls += 1
            if calls == int(os.environ["KILLED_AT"]):
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(look)
"""


@pytest.mark.parametrize("call", [10, 30, 50])
def test_a_process_that_is_killed_while_its_run_becomes_another_leaves_all_it_recorded(
    call: int, programs: Programs
) -> None:
    wait = 'print("there", flush=True); sys.stdin.readline()'
    leader, other = torchrun(2, MASTER_PORT="29501")
    with programs.begin(torchrun(1)[0], within=wait) as first:
        assert first.stdout is not None and first.stdout.readline() == "there\n"
        follower = programs.begin({**other, "KILLED_AT": str(call)}, before=KILLED, within=FOLLOWING.strip())
        with follower:
            assert follower.stdout is not None and follower.stdout.readline() == "there\n"
            programs.start(leader)
            follower.communicate(timeout=60)
        assert follower.returncode == -signal.SIGKILL
        first.communicate("\n", timeout=60)
    kept = {}
    for run in runs(programs.folder / "goodput"):
        if 1 in run.processes():
            account = RecordedRun(run).report(process=1).to_json()
            assert {one["kind"] for one in account["warnings"]} <= {"index taken"}, account["warnings"]
            kept[run.path.name] = account["steps"]["kept"]
    assert max(kept.values()) in (40, 50), kept


def test_who_sees_no_leader_decides_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in torchrun()[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launches, "PATIENCE_S", 0.0)
    with Recorder("train", directory=tmp_path, exporters="none", integrations="none") as recorder:
        with recorder.job(), recorder.step(0):
            recorder.flush()
        assert recorder.run_id == "train"
    (message,) = [line.getMessage() for line in caplog.records]
    assert "so this process records run 'train'" in message and "OTEL_GOODPUT_RUN_ID" in message


@pytest.mark.parametrize("harm", ["[]", "{}", '{"run_id": 3, "restarts": "x", "at": -1}', "\0", "null", "x" * 9999])
def test_whatever_is_written_there_by_somebody_else(harm: str, programs: Programs) -> None:
    programs.start(*torchrun(1))
    (place,) = (programs.folder / "goodput" / launches.FOLDER).iterdir()
    assert place.stat().st_mode & 0o777 == 0o600
    place.write_text(harm)
    assert programs.start(*torchrun(1))[0] == [["train-2", 0, 1, 0]]


# --- Slurm ------------------------------------------------------------------------------------------------------------

SBATCH = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}


def srun(count: int = 2, **more: str) -> list[dict[str, str]]:
    several = {**SBATCH, "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(count), "SLURM_STEP_NUM_TASKS": str(count), **more}
    return [{**several, "SLURM_PROCID": str(rank)} for rank in range(count)]


def test_programs_of_one_allocation_are_runs_of_their_own(programs: Programs) -> None:
    """In a batch script without srun: each is one process, whatever the number of tasks."""
    for job in ("pretrain", "finetune"):
        started, _ = programs.start({**SBATCH, "JOB": job})
        assert started == [[job, 0, 1, 0]]
    assert all(report["steps"]["lost"] == 0 for report in programs.reports().values())
    started, _ = programs.start(*srun(JOB="finetune"))
    assert started == [["finetune-2", 0, 2, 0], ["finetune-2", 1, 2, 0]]


def test_a_chain_of_jobs_is_one_run_and_has_its_name(programs: Programs) -> None:
    killed = "os.kill(os.getpid(), signal.SIGKILL)"
    programs.start(*srun(), after=killed)
    started, _ = programs.start(*srun(SLURM_JOB_ID="4712"))
    assert started == [["train", 0, 2, 1], ["train", 1, 2, 1]]
    assert list(programs.reports()) == ["train"]


def test_a_job_that_is_requeued_is_the_same_run(programs: Programs) -> None:
    """Whatever else was started under its name meanwhile."""
    programs.start(*srun())
    assert programs.start(*srun(SLURM_JOB_ID="4800"))[0][0][0] == "train-2"
    started, _ = programs.start(*srun(SLURM_RESTART_COUNT="1"))
    assert started == [["train", 0, 2, 1], ["train", 1, 2, 1]]


# --- what becomes known after configure() -----------------------------------------------------------------------------

LIGHTNING = """
child = None
if "LOCAL_RANK" not in os.environ:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="4321", NODE_RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
    child = subprocess.Popen([sys.executable, "train.py"], env={**os.environ, "LOCAL_RANK": "1"}, stdout=1)
"""


def test_lightning_gives_its_children_a_rank_and_then_itself(programs: Programs) -> None:
    for run_id in ("train", "train-2"):
        started, errors = programs.start({}, before=LIGHTNING, after="child is None or child.wait()")
        assert sorted(started) == [[run_id, 0, 2, 0], [run_id, 1, 2, 0]], errors
    for run in runs(programs.folder / "goodput"):
        assert run.processes() == [0, 1] and run.attempts(0) == run.attempts(1) == [0]
        assert RecordedRun(run).report(process=0).to_json()["steps"]["kept"] == 10


JAX = """
import jax
jax.distributed.initialize("127.0.0.1:" + os.environ["PORT"], 2, int(os.environ["WHO"]))
"""


@pytest.mark.jax
@pytest.mark.parametrize("shared", [True, False], ids=["one directory", "a disk for each"])
def test_jax_distributed_initialized_after_configure(shared: bool, programs: Programs) -> None:
    with reserved_port() as port:
        several = [
            {"PORT": str(port), "WHO": str(who), "JAX_PLATFORMS": "cpu"}
            | ({} if shared else {"OTEL_GOODPUT_DIR": str(programs.folder / f"disk-{who}")})
            for who in range(2)
        ]
        started, errors = programs.start(*several, before=JAX, after="jax.distributed.shutdown()")
    assert sorted(each[1:] for each in started) == [[0, 2, 0], [1, 2, 0]], (started, errors)
    folders = [programs.folder / "goodput"] if shared else [programs.folder / f"disk-{who}" for who in range(2)]
    recorded = [(run.path.name, run.processes()) for folder in folders for run in runs(folder)]
    assert recorded == ([("train", [0, 1])] if shared else [("train", [0]), ("train", [1])]), (
        "nothing is left of before"
    )


STAND_IN = """
import types
torch, place = types.ModuleType("torch.distributed"), (1, 2)
torch.is_available = torch.is_initialized = lambda: True
torch.get_rank, torch.get_world_size = (lambda: 1), (lambda: 2)
sys.modules["torch.distributed"] = torch
"""


def test_torch_distributed_initialized_after_configure(programs: Programs) -> None:
    assert programs.start({}, before=STAND_IN)[0] == [["train", 1, 2, 0]]
    assert RunDirectory(programs.folder / "goodput" / "train").processes() == [1]


def test_processes_that_learn_their_rank_late_do_not_meet_in_one_run(programs: Programs) -> None:
    """As ``torch.multiprocessing.spawn`` starts them: configured with the address of the launch, and without a rank."""
    late = STAND_IN.replace("(1, 2)", "(int(os.environ['WHO']), 2)").replace("lambda: 1", "lambda: place[0]")
    before = 'print("there", flush=True); sys.stdin.readline()' + late
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29671"}
    for _ in range(2):
        several = [programs.begin({**address, "WHO": str(who)}, before=before) for who in range(2)]
        for one in several:  # all are configured
            assert one.stdout is not None and one.stdout.readline() == "there\n"
        for one in several:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        outputs = [one.communicate(timeout=90) for one in several]
        assert [json.loads(out)[1:] for out, _ in outputs] == [[who, 2, 0] for who in range(2)], outputs
        errors = [one for _, one in outputs]
        assert errors == ["", ""]
    # Rank 0 may have finished before rank 1 looks: the run that rank 1 then begins becomes part of rank 0's at its end.
    processes = {run.path.name: run.processes() for run in runs(programs.folder / "goodput")}
    assert processes == {"train": [0, 1], "train-2": [0, 1]}


def test_a_place_that_is_left_when_a_rank_becomes_known(programs: Programs) -> None:
    """Without an address, all begin as the first process of the run of the name, and only one can be that."""
    late = STAND_IN.replace("(1, 2)", "(int(os.environ['WHO']), 2)").replace("lambda: 1", "lambda: place[0]")
    wait = 'print("there", flush=True); sys.stdin.readline()'
    with programs.begin({"WHO": "1"}, before=wait + late) as follower:
        assert follower.stdout is not None and follower.stdout.readline() == "there\n"
        with programs.begin({"WHO": "0"}, before=late, within=wait) as leader:
            assert leader.stdout is not None and leader.stdout.readline() == "there\n"  # its job has begun
            outputs = [one.communicate("\n", timeout=90) for one in (follower, leader)]
    assert [json.loads(out)[1:] for out, _ in outputs] == [[1, 2, 0], [0, 2, 0]], outputs
    (run,) = runs(programs.folder / "goodput")
    assert (run.path.name, run.processes()) == ("train", [0, 1])
    for process in range(2):
        report = RecordedRun(run).report(process=process).to_json()
        assert (report["attempts"], report["steps"]["kept"], report["steps"]["lost"]) == (1, 10, 0)


def test_a_parent_that_only_starts_those_that_train_leaves_nothing(programs: Programs) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29671"}
    with programs.begin(address, before="sys.exit()") as parent:
        assert parent.wait(60) == 0
    assert [path.name for path in (programs.folder / "goodput").iterdir()] == []


def test_what_becomes_known_within_the_job_is_logged_once(programs: Programs) -> None:
    within = STAND_IN.strip().replace("\n", "\n    ")
    started, errors = programs.start({}, within=within, after="goodput.flush(); goodput.flush()")
    assert started == [["train", 0, 1, 0]]
    assert errors.count("this is process 1 of 2") == 1 and "process_index=1, process_count=2" in errors
    (note,) = programs.reports()["train"]["warnings"]
    assert note["text"] in errors


@pytest.mark.parametrize("where", ["before", "within"])
def test_variables_that_are_removed_take_nothing_back(where: str, programs: Programs) -> None:
    """As Lightning does at its end, and programs that start children of their own."""
    code = "for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR'): os.environ.pop(name, None)"
    started, errors = programs.start(*torchrun(), **{where: code}, after="goodput.flush()")
    assert started == [["train", 0, 2, 0], ["train", 1, 2, 0]] and not errors


def test_nothing_is_imported_or_initialized_to_find_out(programs: Programs) -> None:
    after = "assert not {'jax', 'torch', 'mpi4py'} & sys.modules.keys()"
    assert programs.start({"OTEL_GOODPUT_INTEGRATIONS": "none"}, after=after)[0] == [["train", 0, 1, 0]]


def test_what_was_set_up_before_the_job_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks, windows, providers: the recording begins anew, and nobody notices."""
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    with Recorder(
        "train", directory=tmp_path, exporters="file", span_processors=[SimpleSpanProcessor(spans)],
        metric_readers=[reader], integrations="none",
    ) as recorder:  # fmt: skip
        recorder.add_windows("10m")
        theirs = recorder.tracer_provider.get_tracer("theirs")
        before = recorder.tracer_provider, recorder.meter_provider
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "0")
        with recorder.job():
            with recorder.step(0):
                pass
            with theirs.start_as_current_span("mine"):
                pass
        assert (recorder.config.process_index, recorder.config.process_count) == (0, 2)
        assert (recorder.tracer_provider, recorder.meter_provider) == before
        by_name = {span.name: span for span in spans.get_finished_spans()}
        assert {"job", "step", "mine"} <= by_name.keys()
        assert all(span.resource.attributes["goodput.process.count"] == 2 for span in by_name.values())
        data = reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        assert resource.resource.attributes["goodput.process.count"] == 2
        points = {metric.name: metric.data.data_points for scope in resource.scope_metrics for metric in scope.metrics}
        kept = [
            point.value
            for point in points[semconv.STEP_COUNT.name]
            if point.attributes[semconv.GOODPUT_STEP_STATE] == semconv.STEP_KEPT
        ]
        assert kept == [1]
        windows = {point.attributes[semconv.GOODPUT_WINDOW] for point in points[semconv.BADPUT_RATIO.name]}
        assert "10m" in windows


SPAWNS = """
import multiprocessing
import otel_goodput as goodput
goodput.configure("spawns", exporters="none")
def train(rank):
    with goodput.job():
        for step, _ in goodput.steps(range(3)):
            pass
if __name__ == "__main__":
    children = [multiprocessing.get_context("spawn").Process(target=train, args=(rank,)) for rank in range(2)]
    [child.start() for child in children], [child.join() for child in children]
"""


def test_children_that_are_spawned_to_train_get_the_line_to_write(programs: Programs) -> None:
    (programs.folder / "spawns.py").write_text(SPAWNS)
    ended = warm.run(
        [sys.executable, "spawns.py"], cwd=programs.folder, capture_output=True, text=True, timeout=60, check=True
    )
    lines = [line for line in ended.stderr.splitlines() if "started by multiprocessing" in line]
    assert len(lines) == 2 and all("configure('spawns', process_index=" in line for line in lines), ended.stderr


def test_children_that_are_forked_to_train_get_the_line_to_write(programs: Programs) -> None:
    before = """
import multiprocessing
def train(rank):
    with goodput.job():
        for step, _ in goodput.steps(range(3)):
            pass
children = [multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in range(2)]
[child.start() for child in children], [child.join() for child in children]
assert [child.exitcode for child in children] == [0, 0]
"""
    _, errors = programs.start({}, before=before)
    lines = [line for line in errors.splitlines() if "forked" in line]
    assert len(lines) == 2 and all("configure('train', process_index=" in line for line in lines)


ADOPTED = """
import os, time
from opentelemetry.sdk.trace import TracerProvider
from otel_goodput import GoodputSpanProcessor
provider = TracerProvider()
processor = GoodputSpanProcessor(directory="goodput", job_name="train")
provider.add_span_processor(processor)
with provider.get_tracer("theirs").start_as_current_span("job", attributes={"goodput.phase": "job"}):
    print("there", flush=True)
    until = time.monotonic() + 60
    while processor.run_id == "train" and time.monotonic() < until:
        time.sleep(0.01)
processor.shutdown()
"""


def test_a_span_processor_joins_its_leaders_run_too(programs: Programs) -> None:
    wait = 'print("there", flush=True); sys.stdin.readline()'
    leader, other = torchrun(2, MASTER_PORT="29501")
    with programs.begin(torchrun(1)[0], within=wait) as first:
        assert first.stdout is not None and first.stdout.readline() == "there\n"
        command, environment = [sys.executable, "-c", ADOPTED], {**os.environ, **other}
        with subprocess.Popen(
            command, cwd=programs.folder, env=environment, stdout=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None and follower.stdout.readline() == "there\n"
            programs.start(leader)
            assert follower.wait(60) == 0
        first.communicate("\n", timeout=60)
    processes = {run.path.name: run.processes() for run in runs(programs.folder / "goodput")}
    assert processes == {"train": [0], "train~29501": [0, 1]}
