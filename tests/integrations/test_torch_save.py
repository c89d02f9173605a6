"""``torch.save`` and ``torch.load``: which of them are checkpoints, of which steps. Against a stand-in for PyTorch."""

from __future__ import annotations

import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exported import Spans
from waits import until

from everyday.stand_ins import torch_serialization
from otel_goodput import Recorder
from otel_goodput._integrations import torch_save

SAVE, RESTORE = "checkpoint_save", "checkpoint_restore"
LARGE, SMALL = 2_000_000, 100_000


class Tensor(bytearray):
    @property
    def nbytes(self) -> int:
        return len(self)


class Opaque:
    """An object that shows none of its tensors."""

    def __init__(self, size: int) -> None:
        self.__dict__["_" * 3] = bytes(size)


def state(number: int, size: int = LARGE) -> dict[str, Any]:
    tensor = Tensor(size)
    tensor[-8:] = number.to_bytes(8, "little")
    return {"model": {"weight": tensor}}


def foreign(path: str, number: int) -> None:
    """A file that the run has not saved."""
    Path(path).write_bytes(pickle.dumps(state(number)))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: Any = ModuleType("torch")
    before = torch_serialization.save, torch_serialization.load
    made.save, made.load = before
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setitem(sys.modules, "torch.serialization", torch_serialization)
    yield made
    assert (torch_serialization.save, torch_serialization.load) == (made.save, made.load) == before


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
            integrations="torch_save",
            span_processors=[self.spans.processor],
        )

    def again(self) -> Recorder:
        until(lambda: self.recorder._line.hooks.files._kept is self.recorder._line.hooks.files._files)
        self.recorder._observers._integrations.remove()
        self.recorder._opened.release()
        self.recorder = self.begin()
        return self.recorder

    def shutdown(self) -> None:
        self.recorder.shutdown()

    def labels(self, name: str) -> list[object]:
        return [(span.attributes or {}).get("goodput.step") for span in self.spans.named(name)]


@pytest.fixture
def job(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.chdir(tmp_path)
    made = Job(tmp_path)
    yield made
    made.shutdown()


def steps(recorder: Recorder, count: int, work: Callable[[int], object] = lambda _: None) -> None:
    for number, _ in recorder.steps(range(count)):
        time.sleep(0.002)
        work(number)


def resumed(recorder: Recorder, count: int) -> None:
    """Steps after a restore. A phase in the first shows that it is no skipped batch, however fast the machine is."""
    for _ in recorder.steps(range(count)):
        with recorder.custom("work"):
            pass


def test_a_run_that_is_killed_and_resumed(job: Job, torch: Any) -> None:
    """Steps 0 to 9 are saved, 10 to 13 lost."""
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 14, lambda number: number == 9 and torch.save(state(number), "latest.pt"))
        recorder = job.again()
    with recorder.job():
        assert torch.load("latest.pt") == state(9)
        resumed(recorder, 5)
    totals = recorder.totals()
    assert (totals.kept, totals.lost) == (15, 4)
    assert job.labels(SAVE) == job.labels(RESTORE) == [9]


@pytest.mark.parametrize("between", [True, False])
def test_a_save_between_steps_covers_those_that_are_done(job: Job, torch: Any, between: bool) -> None:
    recorder = job.recorder
    with recorder.job():
        for number in range(6):
            with recorder.step(number):
                if not between and number == 3:
                    torch.save(state(number), "a.pt")
            if between and number == 3:
                torch.save(state(number), "a.pt")
    assert job.labels(SAVE) == [3]


@pytest.mark.parametrize("move", [shutil.copyfile, shutil.move], ids=["copied", "moved"])
def test_a_file_is_recognized_elsewhere(job: Job, torch: Any, move: Callable[[str, str], object]) -> None:
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 6, lambda number: torch.save(state(number), f"{number}.pt") if number in (1, 3) else None)
        move("1.pt", "best.pt")
        recorder = job.again()
    with recorder.job():
        torch.load("best.pt")
        resumed(recorder, 1)
    assert job.labels(RESTORE) == [1] and recorder.totals().kept == 3


def test_the_latest_content_of_a_file_counts(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 6, lambda number: torch.save(state(number), "latest.pt") if number in (1, 3) else None)
        torch.load("latest.pt")
    assert job.labels(RESTORE) == [3]


def test_small_files_and_their_loads_are_nothing(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        torch.save(state(0, SMALL), "small.pt")
        torch.load("small.pt")
        steps(recorder, 2, lambda number: torch.save(Opaque(SMALL), "opaque.pt"))
    assert not job.labels(SAVE) and not job.labels(RESTORE)


def test_the_size_of_an_opaque_object_is_seen_in_its_file(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 2, lambda number: torch.save(Opaque(LARGE), Path("opaque.pt")))
    assert job.labels(SAVE) == [0, 1]
    assert all(span.end_time > span.start_time for span in job.spans.named(SAVE))  # type: ignore[operator]


def test_pretrained_weights_do_not_move_steps(job: Job, torch: Any) -> None:
    foreign("base.pt", 77)
    recorder = job.recorder
    with recorder.job():
        torch.load("base.pt")
        steps(recorder, 4, lambda number: number == 2 and torch.save(state(number), "latest.pt"))
        recorder = job.again()
    with recorder.job():
        for name in ("base.pt", "latest.pt", "base.pt"):
            torch.load(name)
        resumed(recorder, 2)
    assert job.labels(RESTORE) == [None, None, 2, None]
    assert (recorder.totals().kept, recorder.totals().lost) == (5, 1)


def test_a_file_that_is_loaded_amid_training_is_data(job: Job, torch: Any) -> None:
    foreign("shard.pt", 77)
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 4, lambda _: torch.load("shard.pt"))
    assert not job.labels(RESTORE) and recorder.totals().kept == 4


def test_going_back_amid_training(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        steps(recorder, 6, lambda number: number == 2 and torch.save(state(number), "latest.pt"))
        torch.load("latest.pt")
        resumed(recorder, 2)
    assert (recorder.totals().kept, recorder.totals().lost) == (5, 3)


def test_what_an_evaluation_or_a_loader_does_moves_nothing(job: Job, torch: Any) -> None:
    class Batches:
        def __iter__(self) -> Iterator[int]:
            for number in range(4):
                torch.load("latest.pt" if number == 3 else "shard.pt")
                yield number

    foreign("shard.pt", 77)
    foreign("latest.pt", 78)
    recorder = job.recorder
    with recorder.job():
        for number, _ in recorder.steps(Batches()):
            time.sleep(0.002)
            if number == 1:
                torch.save(state(number), "latest.pt")
        with recorder.custom("eval"):
            torch.load("latest.pt")
            torch.save(state(99), "predictions.pt")
        steps(recorder, 2)
    assert job.labels(SAVE) == [1] and not job.labels(RESTORE)
    assert (recorder.totals().kept, recorder.totals().lost) == (6, 0)


def test_inside_of_the_users_own_phases_there_is_no_other(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        for number in range(5):
            with recorder.step(number):
                pass
            if number == 2:
                with recorder.checkpoint_save(3):
                    torch.save(state(number), "latest.pt")
        recorder = job.again()
    with recorder.job():
        with recorder.checkpoint_restore():
            torch.load("latest.pt")
        resumed(recorder, 2)
    assert job.labels(SAVE) == [3] and len(job.labels(RESTORE)) == 1
    assert (recorder.totals().kept, recorder.totals().lost) == (5, 2)


def test_in_memory_it_is_not_durable_and_recognized(job: Job, torch: Any) -> None:
    recorder, memory = job.recorder, BytesIO()
    with recorder.job():
        steps(recorder, 6, lambda number: number == 2 and torch.save(state(number), memory))
        recorder = job.again()
    (save,) = job.spans.named(SAVE)
    assert save.attributes is not None and save.attributes["goodput.checkpoint.durable"] is False
    with recorder.job():
        torch.load(BytesIO(memory.getvalue()))
        resumed(recorder, 1)
    assert (recorder.totals().kept, recorder.totals().lost) == (4, 3)


def test_an_open_file(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        for number, _ in recorder.steps(range(3)):
            time.sleep(0.002)
            with Path("latest.pt").open("wb") as file:
                torch.save(state(number), file)
        with Path("latest.pt").open("rb") as file:
            torch.load(file)
    assert job.labels(SAVE) == [0, 1, 2] and job.labels(RESTORE) == [2]


def test_a_save_that_fails_covers_nothing(job: Job, torch: Any) -> None:
    recorder = job.recorder
    with recorder.job():
        with recorder.step(0):
            pass
        with pytest.raises(FileNotFoundError):
            torch.save(state(0), "missing/latest.pt")
        with pytest.raises(FileNotFoundError):
            torch.load("missing/latest.pt")
    (save,) = job.spans.named(SAVE)
    assert save.attributes is not None and save.attributes["goodput.checkpoint.durable"] is False


def test_a_thread_saves_while_training_goes_on(job: Job, torch: Any) -> None:
    recorder = job.recorder

    def saved(number: int) -> None:
        if number == 3:
            thread = threading.Thread(target=torch.save, args=(state(number), "latest.pt"))
            thread.start()
            thread.join()

    with recorder.job():
        steps(recorder, 5, saved)
    (save,) = job.spans.named(SAVE)
    assert save.attributes is not None and save.attributes["goodput.blocking"] is False
    assert job.labels(SAVE) == [2]


def test_the_library_itself_is_not_recorded(job: Job, torch: Any) -> None:
    scope: dict[str, Any] = {"__name__": "torch.distributed.checkpoint.filesystem", "torch": torch, "state": state}
    exec("def write(): torch.save(state(0), 'part.pt')", scope)
    with job.recorder.job(), job.recorder.step(0):
        scope["write"]()
    assert not job.labels(SAVE)


def test_the_functions_can_still_be_pickled(job: Job, torch: Any) -> None:
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save


def test_an_unknown_version_is_left_alone(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(path: str) -> None: ...

    monkeypatch.setattr(torch, "load", load)
    monkeypatch.setattr(torch_serialization, "load", load)
    before = torch.save
    recorder = Recorder("other", directory=tmp_path, exporters="none", integrations="torch_save")
    assert torch.save is before and "another torch.load" in caplog.text
    recorder.shutdown()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_large_looks_at_tensors_only() -> None:
    assert torch_save.large([{"a": (Tensor(LARGE),)}]) and not torch_save.large({"a": [1, "text", None]})
