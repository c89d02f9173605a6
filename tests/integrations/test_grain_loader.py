"""The stages of Grain's pipelines. With stand-ins for its private modules; `make everyday` runs Grain itself."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import ref

import pytest

from otel_goodput import Recorder
from otel_goodput._integrations import grain_worker
from otel_goodput._integrations.grain_loader import PREFETCH
from otel_goodput._integrations.grain_worker import STATS, WORKERS

FETCH_S, TRANSFORM_S, COLLATE_S = 0.004, 0.006, 0.01
BATCHES = 4


class DefaultStats:
    def __init__(self, config: Any, parents: Any) -> None:
        self._config, self._parents = config, parents

    @contextmanager
    def record_self_time(self, *, num_elements: int = 1, offset_ns: int = 0) -> Iterator[None]:
        yield


class Config:
    def __init__(self, owner: object) -> None:
        self.iter_weakref = ref(owner)


class Metric:
    def __init__(self) -> None:
        self.recorded: list[int] = []

    def Record(self, value: int) -> None:
        self.recorded.append(value)


class ProcessIterator:
    _prefetch_process: Any = None

    def start_prefetch(self) -> None:
        if self._prefetch_process is None:
            _, (self.table,) = sys.modules[WORKERS]._put_dataset_elements_in_buffer.__reduce__()
            self._prefetch_process = self


class Node:
    """A transformation; the module of its class says which."""

    def __init__(self, stats: Any, seconds: float, spent: dict[str, float], stage: str) -> None:
        self._stats = stats.make_stats(Config(self), ())
        self._seconds, self._spent, self._stage = seconds, spent, stage

    def work(self) -> None:
        with self._stats.record_self_time():
            began = time.monotonic()
            time.sleep(self._seconds)
            self._spent[self._stage] = self._spent.get(self._stage, 0.0) + time.monotonic() - began


class Grain:
    def __init__(self, stats: Any, workers: Any, prefetch: Any) -> None:
        self.stats, self.workers, self.prefetch = stats, workers, prefetch
        self.spent: dict[str, float] = {}

    def make(self) -> Any:
        kinds = {}
        for stage, module in {"fetch": "source", "transform": "map", "collate": "batch"}.items():
            kinds[stage] = type(stage, (Node,), {"__module__": f"grain._src.python.dataset.transformations.{module}"})
        times = {"fetch": FETCH_S, "transform": TRANSFORM_S, "collate": COLLATE_S}
        nodes = [kinds[stage](self.stats, took, self.spent, stage) for stage, took in times.items()]

        def element() -> None:
            for node in nodes:
                node.work()

        return element

    def pipeline(self, get: Any) -> Iterator[int]:
        for number in range(BATCHES):
            began = time.perf_counter_ns()
            get()
            self.stats._next_duration_ns_histogram.Record(time.perf_counter_ns() - began)
            yield number


@pytest.fixture
def grain(monkeypatch: pytest.MonkeyPatch) -> Grain:
    modules = [ModuleType(name) for name in (STATS, WORKERS, PREFETCH)]
    stats, workers, prefetch = modules
    stats.__dict__.update(_DefaultStats=DefaultStats, make_stats=DefaultStats, _next_duration_ns_histogram=Metric())
    workers.__dict__.update(
        ProcessPrefetchDatasetIterator=type("Iterator", (ProcessIterator,), {}),
        _put_dataset_elements_in_buffer=lambda **_: None,
    )
    prefetch.__dict__.update(_prefetch_ready_elements=Metric())
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Grain(*modules)


def recorder(place: Path) -> Recorder:
    return Recorder("stages", directory=place, run_id="stages", exporters="none", integrations="grain_loader")


def exposed(loader: Any) -> dict[str, float]:
    return {stage: one["exposed_s"] for stage, one in loader["stages"].items()}


def test_what_the_training_thread_does_is_exposed(tmp_path: Path, grain: Grain) -> None:
    with recorder(tmp_path) as one, one.job():
        for _ in one.steps(grain.pipeline(grain.make())):
            pass
        loader = one.report().to_json()["loader"]
    assert loader["batches"] == BATCHES and all(stage["hidden_s"] == 0 for stage in loader["stages"].values())
    for stage, spent in grain.spent.items():
        assert spent <= exposed(loader)[stage] <= 1.05 * spent + 0.05
    assert grain.stats._next_duration_ns_histogram.recorded  # Grain's own metric goes on


def test_what_threads_do_while_training_waits_is_exposed_and_the_rest_is_hidden(tmp_path: Path, grain: Grain) -> None:
    step_s = 0.012
    with recorder(tmp_path) as one, one.job(), ThreadPoolExecutor(1) as pool:
        element = grain.make()
        ahead = [pool.submit(element)]

        def get() -> None:
            grain.prefetch._prefetch_ready_elements.Record(0)
            ahead.pop().result()
            if len(grain.stats._next_duration_ns_histogram.recorded) < BATCHES - 1:
                ahead.append(pool.submit(element))

        for _ in one.steps(grain.pipeline(get)):
            time.sleep(step_s)
        loader = one.report().to_json()["loader"]
    for stage, spent in grain.spent.items():
        assert spent <= sum(loader["stages"][stage].values()) <= 1.05 * spent + 0.05
    # The first elements of the next batch were fetched and transformed in the step before.
    assert loader["stages"]["fetch"]["hidden_s"] >= (BATCHES - 1) * FETCH_S
    assert loader["stages"]["collate"]["exposed_s"] >= (BATCHES - 1) * COLLATE_S / 2


def test_a_worker_process_is_timed_by_what_it_writes(tmp_path: Path, grain: Grain) -> None:
    iterator = grain.workers.ProcessPrefetchDatasetIterator()

    def make() -> None:
        writing = grain_worker._Writing(memoryview(iterator.table).cast("B").cast("q"))
        for stage, took in enumerate((FETCH_S, TRANSFORM_S, COLLATE_S)):
            began = time.monotonic_ns()
            writing.begin(stage, began)
            time.sleep(took)
            writing.end(stage, time.monotonic_ns() - began)
        writing.made(0)

    def get() -> None:
        iterator.start_prefetch()
        worker = threading.Thread(target=make)
        worker.start()
        worker.join()

    with recorder(tmp_path) as one, one.job():
        for _ in one.steps(grain.pipeline(get)):
            pass
        loader = one.report().to_json()["loader"]
    assert loader["batches"] == BATCHES and loader["workers"][0]["worker"] == 0
    times = exposed(loader)
    assert times["fetch"] >= 0.9 * BATCHES * FETCH_S and times["transform"] >= 0.9 * BATCHES * TRANSFORM_S
    assert times["collate"] >= 0.9 * BATCHES * COLLATE_S and loader["waits_in"] in (None, "collate", "queue")


def test_a_pipeline_in_a_pipeline_is_counted_once(tmp_path: Path, grain: Grain) -> None:
    inner = grain.pipeline(grain.make())
    began = time.monotonic()
    with recorder(tmp_path) as one, one.job():
        for _ in one.steps(grain.pipeline(lambda: next(inner))):
            pass
        loader = one.report().to_json()["loader"]
    assert loader["batches"] == BATCHES
    assert sum(grain.spent.values()) <= loader["waited_s"] <= time.monotonic() - began


def test_grain_is_left_as_it_was(tmp_path: Path, grain: Grain) -> None:
    owners = grain.stats, grain.workers, grain.prefetch, grain.workers.ProcessPrefetchDatasetIterator
    before = [dict(vars(owner)) for owner in owners]
    with recorder(tmp_path) as one, one.job():
        for _ in one.steps(grain.pipeline(grain.make())):
            pass
        assert [dict(vars(owner)) for owner in owners] != before
    assert [dict(vars(owner)) for owner in owners] == before


def test_an_unknown_version_is_left_alone(tmp_path: Path, grain: Grain, caplog: pytest.LogCaptureFixture) -> None:
    del grain.prefetch._prefetch_ready_elements
    before = dict(vars(grain.stats))
    caplog.set_level("INFO")
    with recorder(tmp_path) as one, one.job():
        for _ in one.steps(range(3)):
            pass
        assert dict(vars(grain.stats)) == before
    assert [one.getMessage() for one in caplog.records if "Grain" in one.getMessage()] == [
        f"the stages of Grain  are not timed: module {PREFETCH!r} has no attribute '_prefetch_ready_elements'"
    ]
