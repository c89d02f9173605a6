"""The stages of PyTorch's DataLoaders, against a witness. With a stand-in, whose workers are real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tools.commands import environment
from waits import until

from everyday.stand_ins import torch_worker, torch_workers
from otel_goodput import Recorder
from otel_goodput._journal.loader_times import LoaderSheet, shares_of
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import LOADER_STAGES
from otel_goodput.testing import metrics

PROGRAM = """
import json, os, signal, sys, time
from everyday.stand_ins import torch_worker, torch_workers

sys.modules["torch.utils.data._utils.worker"] = torch_worker
sys.modules["torch.utils.data.dataloader"] = torch_workers

import otel_goodput as goodput

place, workers, slow, ordered, killed = sys.argv[1], *map(int, sys.argv[2:])

def spend(stage, seconds):
    began = time.monotonic_ns()
    time.sleep(seconds)
    with open(os.path.join(place, f"spent-{os.getpid()}"), "a") as file:
        file.write(f"{stage} {time.monotonic_ns() - began}\\n")

class Crop:
    def __call__(self, sample):
        spend("transform", 0.004 * (4 if worker == slow else 1))
        return sample

class Samples:
    def __init__(self):
        self.transform = Crop()

    def __len__(self):
        return 24

    def __getitem__(self, index):
        global worker
        worker = index // 2 % workers if workers else 0
        spend("fetch", 0.003)
        return self.transform(index)

def collate(samples):
    spend("collate", 0.005)
    return samples

goodput.configure("stages", run_id="stages", directory=place, exporters="none", integrations="torch_loader")
loader = torch_workers.DataLoader(Samples(), 2, num_workers=workers, collate_fn=collate, in_order=bool(ordered))
waited, got, before = 0, 0, vars(loader).copy()
with goodput.job():
    last = time.monotonic_ns()
    try:
        for _, batch in goodput.steps(loader):
            waited += time.monotonic_ns() - last
            got += 1
            if killed and got == 4:
                os.kill(__import__("multiprocessing").active_children()[0].pid, signal.SIGKILL)
            last = time.monotonic_ns()
    except RuntimeError as error:
        assert killed and "exited unexpectedly" in str(error), error
assert vars(loader) == before and loader.collate_fn is collate
print(json.dumps([waited, got, goodput.report().to_json()["loader"]]))
"""


def performed(place: Path, workers: int, *, slow: int = -1, ordered: bool = True, killed: bool = False) -> Any:
    command = [sys.executable, "-c", PROGRAM]
    arguments = [str(place), *(str(int(one)) for one in (workers, slow, ordered, killed))]
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = warm.run(
        [*command, *arguments], env=environment(**root), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    waited, got, loader = json.loads(done.stdout.splitlines()[-1])
    spent = dict.fromkeys(LOADER_STAGES, 0)
    for path in place.glob("spent-*"):
        for line in path.read_text().splitlines():
            stage, took = line.split()
            spent[stage] += int(took)
    return waited / 1e9, got, loader, {stage: time / 1e9 for stage, time in spent.items()}


@pytest.mark.parametrize(("workers", "slow", "ordered"), [(0, -1, True), (2, -1, True), (3, 1, True), (3, 1, False)])
def test_each_stage_takes_what_was_slept_in_it(tmp_path: Path, workers: int, slow: int, ordered: bool) -> None:
    waited, got, loader, spent = performed(tmp_path, workers, slow=slow, ordered=ordered)
    assert got == loader["batches"] == 12
    for stage in ("fetch", "transform", "collate"):
        ours = sum(loader["stages"][stage].values())
        # Behind a sleep, the witness writes it down.
        assert spent[stage] <= ours <= 1.05 * spent[stage] + 0.1, (stage, ours, spent)
    exposed = [loader["stages"][stage]["exposed_s"] for stage in LOADER_STAGES]
    assert sum(exposed) == pytest.approx(loader["waited_s"])
    assert loader["waited_s"] == pytest.approx(waited, abs=0.2)
    made_by = {one["worker"] for one in loader["workers"]}
    assert made_by == (set(range(workers)) or {None})
    if not workers:
        assert all(one["hidden_s"] == 0 for one in loader["stages"].values())


def test_a_killed_worker_ends_training_as_without(tmp_path: Path) -> None:
    _, got, loader, _ = performed(tmp_path, 2, killed=True)
    assert 4 <= got < 12 and loader["batches"] == got


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", torch_workers)
    monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", torch_worker)
    return torch_workers


class Crop:
    def __call__(self, sample: int) -> int:
        return sample


class Samples:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return int(self.transform(index))


def recorder(place: Path, integrations: str = "torch_loader", **more: Any) -> Recorder:
    return Recorder("stages", directory=place, run_id="stages", exporters="none", integrations=integrations, **more)


def test_it_leaves_nothing_behind(tmp_path: Path, torch: Any) -> None:
    kinds = torch._SingleProcessDataLoaderIter, torch._MultiProcessingDataLoaderIter, torch_worker, Crop
    before = [dict(vars(kind)) for kind in kinds]
    with recorder(tmp_path) as one, one.job():
        assert [batch for _, batch in one.steps(torch.DataLoader(Samples(Crop()), 2))] == [[0, 1], [2, 3]]
        assert vars(torch_worker)["_worker_loop"] is not before[2]["_worker_loop"]
    assert [dict(vars(kind)) for kind in kinds] == before


def test_a_plain_function_is_part_of_fetch(tmp_path: Path, torch: Any) -> None:
    with recorder(tmp_path) as one, one.job():
        for _, _batch in one.steps(torch.DataLoader(Samples(lambda sample: sample), 2)):
            pass
        loader = one.report().to_json()["loader"]
        assert loader["merged"] and loader["stages"]["transform"]["exposed_s"] == 0
        assert "transforms that are plain functions are part of fetch" in str(one.report())


def test_an_evaluation_is_left_out(tmp_path: Path, torch: Any) -> None:
    loader = torch.DataLoader(Samples(Crop()), 2)
    with recorder(tmp_path) as one, one.job():
        for _, _batch in one.steps(loader):
            with one.custom("eval"):
                assert len(list(loader)) == 2
        assert one.report().to_json()["loader"]["batches"] == 2


def test_an_unknown_version_is_left_alone(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def _worker_loop(tasks: Any, results: Any) -> None: ...

    monkeypatch.setattr(torch_worker, "_worker_loop", _worker_loop)
    caplog.set_level("INFO")
    with recorder(tmp_path) as one, one.job():
        for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
            pass
        assert "loader" not in one.report().to_json()
    assert [one.getMessage() for one in caplog.records if "DataLoaders" in one.getMessage()] == [
        "the stages of DataLoaders of PyTorch  are not timed: _worker_loop takes tasks, results"
    ]


def test_it_can_be_left_out(tmp_path: Path, torch: Any) -> None:
    with recorder(tmp_path, "-torch_loader") as one, one.job():
        for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
            pass
        assert "loader" not in one.report().to_json()


def test_what_fails_in_a_dataset_fails_as_without(tmp_path: Path, torch: Any) -> None:
    def broken(sample: int) -> int:
        raise ValueError(f"no sample {sample}")

    class Broken(Crop):
        def __call__(self, sample: int) -> int:
            return broken(sample)

    with recorder(tmp_path) as one, one.job():
        with pytest.raises(ValueError, match="no sample 0"):
            for _, _batch in one.steps(torch.DataLoader(Samples(Broken()), 2)):
                pass
        for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
            pass
        assert one.report().to_json()["loader"]["batches"] == 2


def test_the_series_of_the_stages(tmp_path: Path, torch: Any) -> None:
    reader = InMemoryMetricReader()
    with recorder(tmp_path, metric_readers=[reader]) as one, one.job():
        for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
            pass
        stages = one.report().to_json()["loader"]["stages"]
        points = metrics(reader)["goodput.loader.stage.duration"].data.data_points
        series = {tuple((point.attributes or {}).values()): point.value for point in points}
        kinds = ("exposed_s", True), ("hidden_s", False)
        assert series == {(stage, blocking): stages[stage][name] for stage in LOADER_STAGES for name, blocking in kinds}


def test_restarts_and_other_ranks_add_up(tmp_path: Path, torch: Any) -> None:
    for process in (0, 1, 0):
        with recorder(tmp_path, process_index=process, process_count=2) as one, one.job():
            for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
                pass
    report = RecordedRun(RunDirectory(tmp_path / "stages")).report()
    loader = report.to_json()["loader"]
    assert loader["batches"] == 6 and {one["rank"]: one["batches"] for one in loader["workers"]} == {0: 4, 1: 2}
    assert RecordedRun(RunDirectory(tmp_path / "stages")).report(process=1).to_json()["loader"]["batches"] == 2


def test_a_living_job_knows_what_its_earlier_attempts_waited_for(tmp_path: Path, torch: Any) -> None:
    for attempt in range(2):
        with recorder(tmp_path) as one, one.job():
            for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
                pass
            until(lambda: one.report().to_json()["loader"]["batches"] == 2 * (attempt + 1))  # noqa: B023


def test_a_damaged_file_is_left_out(tmp_path: Path, torch: Any) -> None:
    with recorder(tmp_path) as one, one.job():
        for _, _batch in one.steps(torch.DataLoader(Samples(Crop()), 2)):
            pass
    run = RunDirectory(tmp_path / "stages")
    path = run.file("loader", 0, 0)
    text = path.read_bytes()
    for damaged in (text[:-3], b"{}", text.replace(b'"workers": [[', b'"workers": [[-7, ')):
        path.write_bytes(damaged)
        assert "loader" not in RecordedRun(run).report().to_json()


MS = 1_000_000
# Begun at 10, its samples there at 50, made at 60; transforms took 30 ms of that.
RECORD = 10 * MS, 50 * MS, 60 * MS, 30 * MS


@pytest.mark.parametrize(
    ("begin", "end", "before", "exposed", "hidden"),
    [
        (0, 60, 0, (10, 30, 10, 0, 10), (0, 0, 0, 0, 0)),  # training waited from before it was begun
        (40, 65, 25, (5, 5, 10, 5, 0), (5, 25, 0, 0, 0)),
        (55, 60, 30, (0, 0, 5, 0, 0), (10, 30, 5, 0, 0)),
        (70, 71, 30, (0, 0, 0, 1, 0), (10, 30, 10, 0, 0)),  # it was ready
        (70, 70, 30, (0, 0, 0, 0, 0), (10, 30, 10, 0, 0)),
    ],
)
def test_what_was_done_while_training_waited(
    begin: int, end: int, before: int, exposed: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    shares = shares_of(begin * MS, end * MS, (*RECORD, before * MS))
    assert shares == tuple(tuple(MS * one for one in times) for times in (exposed, hidden))
    assert sum(shares[0]) == (end - begin) * MS


def test_a_batch_of_which_nothing_is_known() -> None:
    assert shares_of(3, 10, None) == ((0, 0, 0, 0, 7), (0,) * 5)


def test_threads_and_workers_without_end_take_no_room() -> None:
    sheet = LoaderSheet(0, 0)
    for worker in range(5000):
        sheet.take(worker, (1, 0, 0, 0, 0), (0, 1, 0, 0, 0))
    times = sheet.times()
    assert len(times) < 600 and sum(one.batches for one in times) == 5000
    assert sum(one.exposed[0] for one in times) == sum(one.hidden[1] for one in times) == 5000
