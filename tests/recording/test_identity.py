"""Who is who: ids that follow from run and attempt, links between attempts, resources, several recorders.

Longer than other files: the ids of one run and of the next follow from each other.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import warm
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from recorded import Recording, attributes, identity, orphans, parent, trace_of

import otel_goodput as goodput
from otel_goodput import Recorder
from otel_goodput._recording.ids import attempt_span_id, attempt_trace_id, job_span_id
from otel_goodput._settings import config

PROCESS = """
import json, os, sys
import otel_goodput as goodput
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans = InMemorySpanExporter()
recorder = goodput.configure("job", run_id="run", exporters="none", span_processors=[SimpleSpanProcessor(spans)],
                             **json.loads(sys.argv[1]))
with goodput.job():
    with goodput.step(0), goodput.custom("eval"):
        pass
goodput.shutdown()
print(json.dumps([
    dict(name=s.name, trace=s.context.trace_id, key=s.context.span_id, parent=s.parent and s.parent.span_id,
         links=[[l.context.trace_id, l.context.span_id] for l in s.links], resource=dict(s.resource.attributes))
    for s in spans.get_finished_spans()
]))
"""


def spans_of_process(**options: Any) -> list[dict[str, Any]]:
    done = warm.run(
        [sys.executable, "-c", PROCESS, json.dumps(options)], capture_output=True, text=True, check=True, timeout=60
    )
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    return spans


def test_the_processes_of_an_attempt_share_one_trace(tmp_path: Path) -> None:
    """Without talking to each other: each on a machine of its own, none with a directory that another sees."""
    processes = [
        spans_of_process(directory=str(tmp_path / f"host {index}"), process_index=index, process_count=3)
        for index in range(3)
    ]
    spans = [span for process in processes for span in process]
    assert {span["trace"] for span in spans} == {attempt_trace_id("run", 0)}
    assert len({span["key"] for span in spans}) == len(spans) == 10
    jobs = [next(span for span in process if span["name"] == "job") for process in processes]
    assert [job["key"] for job in jobs] == [job_span_id("run", 0, index) for index in range(3)]
    (root,) = [span for span in spans if span["parent"] is None]
    assert root in processes[0] and (root["name"], root["key"]) == ("attempt", attempt_span_id("run", 0))
    assert [job["parent"] for job in jobs] == [root["key"]] * 3
    assert [job["resource"]["goodput.process.index"] for job in jobs] == [0, 1, 2]
    assert {job["resource"]["goodput.process.count"] for job in jobs} == {3}
    assert len({job["resource"]["service.instance.id"] for job in jobs}) == 3


def test_processes_that_share_a_directory_share_their_attempts(record: Callable[..., Recording]) -> None:
    """Ranks on one host, or a directory on a network: they start one after the other and live at the same time."""
    for attempt in range(3):
        together = [record(make=Recorder, process_index=index, process_count=3) for index in range(3)]
        assert [recording.recorder.attempt for recording in together] == [attempt] * 3
        assert {recording.recorder.run_id for recording in together} == {"run"}
        for recording in together:
            with recording.recorder.job(), recording.recorder.step(attempt):
                pass
        spans = [span for recording in together for span in recording.exported()]
        assert {trace_of(span) for span in spans} == {attempt_trace_id("run", attempt)}
        assert not orphans(spans)
        for recording in together:
            recording.recorder.shutdown()
    assert together[0].report_on_disk()["attempts"] == 3
    steps = together[0].report_on_disk(process=0)["steps"]
    assert steps == {"executed": 3, "kept": 3, "lost": 0}, "of the leader alone"


def test_ids_differ_between_runs_attempts_and_processes() -> None:
    traces = {attempt_trace_id(run, attempt) for run in ("a", "b", "a1", "") for attempt in range(12)}
    assert len(traces) == 48 and all(0 < trace_id < 1 << 128 for trace_id in traces)
    jobs = {job_span_id(run, attempt, index) for run in ("a", "a1") for attempt in range(12) for index in range(12)}
    jobs |= {attempt_span_id(run, attempt) for run in ("a", "a1") for attempt in range(12)}
    assert len(jobs) == 312 and all(0 < job < 1 << 64 for job in jobs)


def test_attempts_are_linked(record: Callable[..., Recording]) -> None:
    pairs = []
    for attempt in range(3):
        recording = record()
        assert recording.recorder.attempt == attempt
        with goodput.job():
            pass
        pairs.append((recording.root(), recording.span("job")))
        goodput.shutdown()
    assert len({trace_of(job) for _, job in pairs}) == 3
    for (before, _), after in pairwise(pairs):
        for span in after:
            assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [
                (trace_of(before), identity(before))
            ]
    assert not any(span.links for span in pairs[0])


def test_a_running_job_has_a_root_at_once(record: Callable[..., Recording]) -> None:
    """Without length, written once and first, when the first job begins; every job of the process is its child."""
    recording = record()
    with goodput.accelerator_init(blocking=False):
        pass
    assert [span.name for span in recording.exported()] == ["accelerator_init"], "no job has been opened"
    for number in range(2):
        with goodput.job() as job:
            root = recording.root()
            assert (root.name, root.parent, identity(root)) == ("attempt", None, attempt_span_id("run", 0))
            assert trace_of(root) == attempt_trace_id("run", 0) and "goodput.phase" not in attributes(root)
            assert job.parent.span_id == identity(root) and job.parent.is_remote is False
            with goodput.step(number):
                pass
    assert root.start_time == root.end_time == recording.spans("job")[0].start_time
    goodput.shutdown()
    assert [span.name for span in recording.exported()].count("attempt") == 1
    assert not orphans(recording.exported())


def test_a_root_where_the_job_begins_with_a_phase(recording: Recording) -> None:
    with goodput.training_prep():
        root = recording.root()
    assert root.start_time == recording.span("training_prep").start_time


def test_no_root_where_the_users_sampler_does_not_want_the_job(record: Callable[..., Recording]) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    recording = record(tracer_provider=provider)
    with goodput.job():
        pass
    goodput.shutdown()
    assert not recording.exported()
    provider.shutdown()


def test_seeding_the_global_random_does_not_matter(record: Callable[..., Recording]) -> None:
    identities = []
    for run in ("a", "b"):
        random.seed(0)
        recording = record(run_id=run)
        with goodput.job():
            random.seed(0)
            with goodput.step(0), goodput.custom("eval"):
                random.seed(0)
                with goodput.data_loading():
                    pass
        identities += [identity(span) for span in recording.spans()]
    assert len(set(identities)) == 8


def test_resource(record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=llm,service.name=overridden,goodput.run.id=forged")
    recording = record(resource_attributes={"k8s.pod.name": "trainer-0", "chips": 8})
    with goodput.job():
        pass
    resource = dict(recording.span("job").resource.attributes)
    assert resource["service.name"] == "line"
    assert resource["goodput.run.id"] == "run" and resource["goodput.attempt"] == 0
    assert resource["goodput.process.index"] == 0 and resource["goodput.process.count"] == 1
    assert resource["process.pid"] == os.getpid() and resource["host.name"]
    assert resource["k8s.pod.name"] == "trainer-0" and resource["chips"] == 8 and resource["team"] == "llm"
    assert resource["telemetry.sdk.name"] == "opentelemetry"
    reader = recording.reader.get_metrics_data()
    assert reader is not None
    assert dict(reader.resource_metrics[0].resource.attributes) == resource, "of spans and metrics alike"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_GOODPUT_RUN_ID": "mine", "JOBSET_NAME": "set"}, "mine"),
        ({"JOBSET_NAME": "set", "SLURM_JOB_ID": "77"}, "set"),
        ({"SLURM_JOB_ID": "77"}, "line"),  # an allocation may run several programs, and a chain has several ids
        ({}, "line"),
    ],
)
def test_where_the_run_id_is_from(
    variables: dict[str, str], expected: str, record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert record(run_id=None).recorder.run_id == expected


@pytest.mark.parametrize(
    "variable", ["JAX_PROCESS_ID", "JOB_COMPLETION_INDEX", "SLURM_PROCID", "RANK", "TPU_WORKER_ID"]
)
def test_where_the_process_index_is_from(
    variable: str, record: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "3")
    recording = record()
    assert recording.recorder.config.process_index == 3 and recording.recorder.config.process_count == 4
    with goodput.job(), goodput.step(0):
        pass
    job = recording.span("job")
    assert trace_of(job) == attempt_trace_id("run", 0)
    assert parent(job) == attempt_span_id("run", 0)
    assert not [span for span in recording.exported() if span.name == "attempt"], "that of process 0 is enough"
    assert not [name for name in recording.metrics() if name.startswith("goodput.")], "only the leader accounts"


SLICES = {"JOB_INDEX": "1", "REPLICATED_JOB_REPLICAS": "3", "JOB_COMPLETION_INDEX": "2"}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_NUM_SLICES": "4"}
SRUN = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SBATCH = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "8"}
TORCHRUN = {
    "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "ROLE_NAME": "default",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
LIGHTNING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234", "WORLD_SIZE": "4"}
TENSORFLOW = '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "%s", "index": %d}}'


@pytest.mark.parametrize(
    ("variables", "index", "count"),
    [
        ({**SLICES, "JOB_COMPLETIONS": "4"}, 6, 12),
        ({**SLICES, "PROCESSES_IN_JOB": "4"}, 6, 12),
        ({**SLICES, "TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "2"}, 6, 12),
        ({"JOB_GLOBAL_INDEX": "1", "TPU_WORKER_ID": "2", "JOB_COMPLETIONS": "4", "JAX_NUM_PROCESSES": "8"}, 6, 8),
        ({"JOB_COMPLETION_INDEX": "2", "JOB_COMPLETIONS": "4"}, 2, 4),
        ({"JOB_INDEX": "0", "REPLICATED_JOB_REPLICAS": "1", "JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "1"}, 0, 1),
        (TPU, 5, 8),
        ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, 0, 1),
        ({"JOB_COMPLETION_INDEX": "1", **TPU, "JOB_COMPLETIONS": "2"}, 5, 8),
        # Several processes a pod, or a task of Slurm: torchrun numbers them.
        ({**SLICES, "JOB_COMPLETIONS": "4", "RANK": "50", "WORLD_SIZE": "96"}, 50, 96),
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, 9, 16),
        ({"RANK": "1", "WORLD_SIZE": "4", "JAX_PROCESS_ID": "3"}, 3, 4),
        ({"JAX_PROCESS_ID": "3", **SRUN, "SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, 3, 8),
        # What each launcher sets, read from its source.
        ({**TORCHRUN, "RANK": "1", "LOCAL_RANK": "1"}, 1, 2),
        (
            {
                "MASTER_ADDR": "10.0.0.1",
                "MASTER_PORT": "29500",
                "RANK": "5",
                "LOCAL_RANK": "1",
                "WORLD_SIZE": "8",
                "CROSS_RANK": "1",
                "CROSS_SIZE": "2",
                "LOCAL_SIZE": "4",
            },
            5,
            8,
        ),  # DeepSpeed
        ({**LIGHTNING, "NODE_RANK": "0", "LOCAL_RANK": "0"}, 0, 4),
        ({**LIGHTNING, "NODE_RANK": "0", "LOCAL_RANK": "1"}, 1, 4),
        ({**LIGHTNING, "NODE_RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 3, 4),
        ({"LOCAL_RANK": "1"}, 1, 2),  # by hand, the least that Lightning takes
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "PMIX_RANK": "3",
                "PMIX_NAMESPACE": "prterun-node-17@1",
            },
            3,
            4,
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, 2, 4),  # Hydra: MPICH, Intel MPI
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1"}, 1, 2),
        ({"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}, 1, 2),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f2x"}, 1, 2),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}, 1, 2),
        ({**SRUN, "PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 1, 2),  # srun --mpi=pmix
        ({"TF_CONFIG": TENSORFLOW % ("chief", 0)}, 0, 3),
        ({"TF_CONFIG": TENSORFLOW % ("worker", 1)}, 2, 3),
        ({"TF_CONFIG": TENSORFLOW % ("evaluator", 0)}, 0, 1),
        ({"TF_CONFIG": "{"}, 0, 1),
        # Slurm: a task of `srun` has a rank; a batch script, an interactive shell, and what they start have none.
        ({**SRUN, "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4"}, 3, 4),
        (SBATCH, 0, 1),
        ({**SBATCH, "SLURM_STEP_ID": "4294967291"}, 0, 1),  # the batch script's own
        ({**SBATCH, "SLURM_STEP_ID": "4294967290"}, 0, 1),  # an interactive step, of `salloc`
        ({**SBATCH, **SRUN, "SLURM_JOB_NAME": "bash", "SLURM_STEP_NUM_TASKS": "1"}, 0, 1),  # `srun --pty bash`
        ({**SBATCH, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, 3, 8),  # `mpirun` in a batch script
        ({"RANK": "1", "WORLD_SIZE": "2", "OTEL_GOODPUT_PROCESS_INDEX": "3", "OTEL_GOODPUT_PROCESS_COUNT": "4"}, 3, 4),
        ({"JOB_INDEX": "1"}, 0, 1),  # anybody's, where no pod is numbered
    ],
)
def test_where_the_place_among_the_processes_is_from(
    variables: dict[str, str], index: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config.read("job", environ=variables)
    assert (settings.process_index, settings.process_count) == (index, count)
    assert not caplog.records


@pytest.mark.parametrize(
    ("variables", "given", "message"),
    [
        (SLICES, {}, "JOB_INDEX=1, but the number of pods per Job is not set: set JOB_COMPLETIONS"),
        ({**SLICES, "JOB_COMPLETIONS": "2"}, {}, "JOB_COMPLETION_INDEX=2 and JOB_COMPLETIONS=2 contradict each other"),
        ({**SLICES, "REPLICATED_JOB_REPLICAS": "1"}, {}, "JOB_INDEX=1 and REPLICATED_JOB_REPLICAS=1 contradict"),
        (
            {"REPLICATED_JOB_REPLICAS": "2", "JOB_COMPLETION_INDEX": "2"},
            {},
            "the index of this Job is not set: set JOB",
        ),
        ({"WORLD_SIZE": "4"}, {"process_index": 8}, "index 8 is impossible with 4 processes; 9"),
        ({**LIGHTNING, "NODE_RANK": "1", "LOCAL_RANK": "1"}, {}, "the number of processes on a node is not set"),
        # `export RANK=$SLURM_PROCID` in the batch script, not in the task.
        (
            {**SRUN, "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "RANK": "0", "WORLD_SIZE": "8"},
            {},
            "RANK=0 and SLURM_PROCID=3 contradict each other, both of 8 processes",
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2"},
            {"process_index": 0, "process_count": 2},
            "process_index=0 and RANK=1 contradict each other",
        ),
        ({"OTEL_GOODPUT_PROCESS_INDEX": "-1"}, {}, "OTEL_GOODPUT_PROCESS_INDEX='-1' is ignored"),
        ({"OTEL_GOODPUT_PROCESS_INDEX": "4", "OTEL_GOODPUT_PROCESS_COUNT": "2"}, {}, "index 4 is impossible with 2"),
    ],
)
def test_an_impossible_place_is_warned_about(
    variables: dict[str, str], given: dict[str, int], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config.read("job", environ=variables, **given)
    assert settings.process_index < settings.process_count
    assert [record.getMessage() for record in caplog.records if message in record.getMessage()]


@pytest.mark.parametrize(
    "run_id", ["a/b:c", "../up", ".hidden", "ünïcode 名", "x" * 400, "a b\tc", "%2E%2E", "con|nul?*"]
)
def test_any_run_id_has_a_folder_of_its_own(run_id: str, record: Callable[..., Recording], tmp_path: Path) -> None:
    first = record(run_id=run_id)
    with goodput.job(), goodput.step(0):
        pass
    goodput.shutdown()
    second = record(run_id=run_id)
    assert second.recorder.attempt == 1 and second.folder == first.folder
    assert first.folder.resolve().parent == (tmp_path / "runs").resolve(), "nowhere else"
    assert second.report()["run_id"] == run_id.strip()
    assert json.loads((first.folder / "run.json").read_text())["run_id"] == run_id.strip()


# --- own step traces --------------------------------------------------------------------------------------------------


def test_own_step_traces(record: Callable[..., Recording]) -> None:
    recording = record(step_traces="own")
    with goodput.job():
        for number in range(3):
            with goodput.step(number), goodput.data_loading(), goodput.custom("eval"):
                pass
        with goodput.checkpoint_save(2):
            pass
    job = recording.span("job")
    steps = recording.spans("step")
    traces = [trace_of(step) for step in steps]
    assert len({*traces, trace_of(job)}) == 4
    for step, load, evaluation in zip(steps, recording.spans("data_loading"), recording.spans("eval"), strict=True):
        assert step.parent is None
        assert [link.context.span_id for link in step.links] == [identity(job)]
        assert trace_of(load) == trace_of(evaluation) == trace_of(step)
        assert parent(load) == identity(step) and parent(evaluation) == identity(load)
    assert trace_of(recording.span("checkpoint_save")) == trace_of(job)
    assert not orphans(recording.exported())


def test_a_load_is_in_the_trace_of_its_step_whatever_is_around_it(record: Callable[..., Recording]) -> None:
    recording = record(step_traces="own")
    with goodput.job(), goodput.custom("epoch"):
        for number in range(3):
            with goodput.data_loading(), goodput.custom("tokenize"):
                pass
            with goodput.step(number), goodput.data_loading():
                pass
    job = recording.span("job")
    loads, steps = recording.spans("data_loading"), recording.spans("step")
    assert len({*map(trace_of, steps), trace_of(job)}) == 4
    for before, inside, step in zip(loads[::2], loads[1::2], steps, strict=True):
        assert trace_of(before) == trace_of(inside) == trace_of(step)
        assert before.parent is None and [link.context.span_id for link in before.links] == [identity(job)]
        assert parent(inside) == identity(step)
    for load, tokens in zip(loads[::2], recording.spans("tokenize"), strict=True):
        assert parent(tokens) == identity(load) and trace_of(tokens) == trace_of(load)
    assert not orphans(recording.exported())


def test_own_step_traces_are_the_same_on_all_ranks(record: Callable[..., Recording]) -> None:
    traces = []
    for index in range(2):
        recording = record(make=Recorder, step_traces="own", process_index=index, process_count=2)
        with recording.recorder.job(), recording.recorder.step(7):
            pass
        traces.append(trace_of(recording.span("step")))
        recording.recorder.shutdown()
    assert traces[0] == traces[1]


# --- several recorders ------------------------------------------------------------------------------------------------


def test_two_recorders_in_one_process(record: Callable[..., Recording]) -> None:
    one, two = record(make=Recorder, run_id="one"), record(make=Recorder, run_id="two")
    with one.recorder.job():
        for number in range(5):
            with one.recorder.step(number):
                pass
    with two.recorder.job():
        for number, _ in two.recorder.steps(range(10)):
            if number == 7:
                break
    assert len(one.spans("step")) == 5 and len(two.spans("step")) == 8
    assert {trace_of(span) for span in one.spans()} == {attempt_trace_id("one", 0)}
    assert {trace_of(span) for span in two.spans()} == {attempt_trace_id("two", 0)}
    steps = two.report()["steps"]
    assert steps["executed"] == steps["kept"] in (7, 8) and steps["lost"] == 0
    one.recorder.shutdown()
    with two.recorder.custom("still there"):
        pass
    assert two.spans("still there")
    two.recorder.shutdown()
    assert one.report_on_disk()["last_step"] == 4 and two.report_on_disk()["last_step"] in (6, 7)
    assert goodput.report() is None, "neither is the default"


def test_two_recorders_nested_in_one_another(record: Callable[..., Recording]) -> None:
    """Context is shared, the accounts are not: each has its own spans only, whatever is current."""
    one, two = record(make=Recorder, run_id="one"), record(make=Recorder, run_id="two")
    with one.recorder.job(), two.recorder.job():
        with one.recorder.step(3), two.recorder.step(30), one.recorder.data_loading(), two.recorder.custom("eval"):
            pass
        with two.recorder.step(31), one.recorder.step(4):
            pass
    assert [attributes(span)["goodput.step"] for span in one.spans("step")] == [3, 4]
    assert [attributes(span)["goodput.step"] for span in two.spans("step")] == [30, 31]
    assert attributes(one.span("data_loading"))["goodput.step"] == 3
    for recording, run in ((one, "one"), (two, "two")):
        assert recording.report()["steps"]["kept"] == 2
        assert trace_of(recording.span("job")) == attempt_trace_id(run, 0)
        recording.recorder.shutdown()
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_two_recorders_of_one_run_do_not_write_into_each_other(
    record: Callable[..., Recording], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = record(make=Recorder), record(make=Recorder)
    assert two.recorder.run_id != one.recorder.run_id
    assert "another" in caplog.text and "OTEL_GOODPUT_RUN_ID" in caplog.text
    for recording in (one, two):
        with recording.recorder.job(), recording.recorder.step(0):
            pass
        recording.recorder.shutdown()
        assert recording.report_on_disk()["steps"]["kept"] == 1
    assert record(make=Recorder).recorder.attempt == 1


def test_a_recorder_as_a_context_manager(record: Callable[..., Recording]) -> None:
    with record(make=Recorder).recorder as recorder, recorder.job(), recorder.step(0):
        pass
    assert recorder.closed
    assert recorder.report().to_json()["ended"]
