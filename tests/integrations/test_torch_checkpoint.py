"""Distributed checkpoints of PyTorch, and files of safetensors. Against stand-ins."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exported import Spans
from waits import until

from everyday.stand_ins import torch_checkpoint
from otel_goodput import Recorder

SAVE, RESTORE = "checkpoint_save", "checkpoint_restore"
PACKAGE = "torch.distributed.checkpoint"


class Job:
    """Attempts at one run; a new one abandons the one before, as a kill does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spans = Spans()
        self.recorder = self.begin()

    def begin(self) -> Recorder:
        return Recorder(
            "saved",
            run_id="run",
            directory=self.folder / "runs",
            exporters="none",
            integrations="torch_checkpoint,safetensors",
            span_processors=[self.spans.processor],
        )

    def again(self) -> Recorder:
        files = self.recorder._line.hooks.files
        until(lambda: files._kept is files._files)
        self.recorder._observers._integrations.remove()
        self.recorder._opened.release()
        self.recorder = self.begin()
        return self.recorder

    def of(self, name: str, attribute: str = "goodput.step") -> list[object]:
        return [(span.attributes or {}).get(attribute) for span in self.spans.named(name)]


@pytest.fixture
def dcp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package: Any = ModuleType(PACKAGE)
    before = torch_checkpoint.save, torch_checkpoint.async_save, torch_checkpoint.load
    package.save, package.async_save, package.load = before
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    for name in ("state_dict_saver", "state_dict_loader"):
        monkeypatch.setitem(sys.modules, f"{PACKAGE}.{name}", torch_checkpoint)
    yield package
    assert (torch_checkpoint.save, torch_checkpoint.async_save, torch_checkpoint.load) == before
    assert (package.save, package.async_save, package.load) == before


@pytest.fixture
def job(dcp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.chdir(tmp_path)
    made = Job(tmp_path)
    yield made
    made.recorder.shutdown()


def steps(recorder: Recorder, count: int, work: Callable[[int], object] = lambda _: None) -> None:
    for number, _ in recorder.steps(range(count)):
        time.sleep(0.002)
        with recorder.custom("work"):  # no skipped batch, however fast the machine is
            pass
        work(number)


def test_a_run_that_is_killed_and_resumed(job: Job, dcp: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 12, lambda at: dcp.save({"step": at}, checkpoint_id=f"at-{at}") if at in (3, 7) else None)
        recorder = job.again()
    with recorder.job():
        dcp.load({}, checkpoint_id=Path("at-7"))
        steps(recorder, 5)
    assert job.of(SAVE) == [3, 7] and job.of(RESTORE) == [7]
    assert (recorder.totals().kept, recorder.totals().lost) == (13, 4)


class Executor:
    """Does nothing: a test decides how each future ends."""

    futures: list[Future[str]]

    def __init__(self, workers: int) -> None: ...
    def shutdown(self, wait: bool) -> None: ...
    def submit(self, *_: object, **__: object) -> Future[str]:
        self.futures.append(Future())
        return self.futures[-1]


def test_an_asynchronous_one_is_durable_when_its_future_is(job: Job, dcp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, futures = job.recorder, list[Future[str]]()
    monkeypatch.setattr(Executor, "futures", futures, raising=False)
    monkeypatch.setattr(torch_checkpoint, "ThreadPoolExecutor", Executor)
    with recorder.job():
        steps(recorder, 5, lambda at: dcp.async_save({}, checkpoint_id="at") if at in (1, 2, 3) else None)
        futures[0].set_exception(OSError("the disk is full"))
        futures[2].cancel()
        assert True not in job.of(SAVE, "goodput.checkpoint.durable")
        futures[1].set_result("metadata")
        recorder = job.again()
    commits = [span for span in job.spans.named(SAVE) if (span.attributes or {}).get("goodput.blocking") is False]
    durable = [(span.attributes or {})["goodput.checkpoint.durable"] for span in commits]
    assert durable == [False, False, True]


def test_a_real_thread_commits(job: Job, dcp: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 3, lambda at: dcp.async_save({"at": at}, checkpoint_id="at").result() if at == 1 else None)
        until(lambda: True in job.of(SAVE, "goodput.checkpoint.durable"))
        dcp.load({}, checkpoint_id="at")
    assert job.of(RESTORE) == [1]


def test_a_folder_of_another_run_moves_nothing(job: Job, dcp: Any) -> None:
    recorder = job.recorder
    base = Path("base")
    base.mkdir()
    (base / "__0_0.distcp").write_bytes(pickle.dumps({"step": 9}))
    (base / ".metadata").write_bytes(pickle.dumps(["step"]))
    with recorder.job():
        steps(recorder, 6, lambda at: dcp.save({"step": at}, checkpoint_id="latest") if at == 3 else None)
        dcp.load({}, checkpoint_id="base")
        steps(recorder, 2)
    assert not job.of(RESTORE) and recorder.totals().kept == 8


def test_safetensors(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("safetensors.torch")

    def save_file(tensors: dict[str, Any], filename: Any, metadata: Any = None) -> None:
        Path(filename).write_bytes(b"".join(bytes(each) for each in tensors.values()))

    def load_file(filename: Any, device: Any = "cpu") -> bytes:
        return Path(filename).read_bytes()

    module.save_file, module.load_file = save_file, load_file
    monkeypatch.setitem(sys.modules, "safetensors.torch", module)
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 6, lambda at: module.save_file({"a": bytes([at]) * 2_000_000}, f"{at % 2}") if at > 3 else None)
        recorder = job.again()
    with recorder.job():
        module.load_file("0")
        steps(recorder, 1)
    assert job.of(SAVE) == [4, 5] and job.of(RESTORE) == [4]
    assert (recorder.totals().kept, recorder.totals().lost) == (6, 1)
