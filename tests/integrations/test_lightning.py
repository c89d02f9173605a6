"""Lightning's ``Trainer``, by a callback, by its door and without either. Against a stand-in for it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import otel_goodput as goodput
from everyday.stand_ins import lightning_trainer
from otel_goodput import api, testing
from otel_goodput.integrations import _doors

OURS = "otel_goodput.integrations.lightning"
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
EPOCH = 10  # batches


class Slow:
    def __init__(self, count: int = EPOCH, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            time.sleep(self.seconds)
            yield number


class Module:
    automatic_optimization = True

    def __init__(self, step: float = 0.0, test: float = 0.0, fails_at: int = -1, steps: int = 1) -> None:
        self.step, self.test, self.fails_at, self.steps = step, test, fails_at, steps
        self.done = 0

    def on_train_batch_start(self, batch: int, number: int) -> int | None:
        return None

    def training_step(self, batch: int, number: int) -> int:
        if self.done == self.fails_at:
            raise MemoryError
        self.done += 1
        time.sleep(self.step)
        return self.steps

    def validation_step(self, batch: int, number: int) -> None:
        time.sleep(self.test)


@pytest.fixture
def pl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with monkeypatch.context() as patch:
        for name in PACKAGES:
            for module in lightning_trainer.prepare(name):
                patch.delitem(sys.modules, module, raising=False)
        package = getattr(request, "param", PACKAGES[0])
        for name, made in lightning_trainer.prepare(package).items():
            patch.setitem(sys.modules, name, made)
        patch.delitem(sys.modules, OURS, raising=False)
        yield sys.modules[package]
    sys.modules.pop(OURS, None)


@pytest.fixture
def callback(pl: Any) -> Callable[[], Any]:
    return import_module(OURS).GoodputCallback  # type: ignore[no-any-return]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., None]]:
    yield lambda **options: goodput.configure("l", directory=tmp_path, exporters="none", **options) and None
    goodput.shutdown()
    api._recorder = None


def spent() -> dict[str, Any]:
    report = goodput.report()
    assert report is not None
    return report.to_json()["seconds"]  # type: ignore[no-any-return]


def counts() -> tuple[int, int]:
    totals = goodput.totals()
    assert totals is not None
    return totals.kept, totals.lost


@pytest.mark.parametrize("pl", PACKAGES, indirect=True)
def test_each_second_is_where_it_belongs(pl: Any, callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Logs(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, *_: object) -> None:
            run.advance(3)

    with testing.run() as run:
        monkeypatch.setattr(sys.modules[__name__], "time", SimpleNamespace(sleep=run.advance))
        trainer = pl.Trainer(max_epochs=2, callbacks=[Logs(), callback(), callback()], val_check_interval=5)
        with goodput.job():
            trainer.fit(Module(step=2, test=4), Slow(EPOCH, 6), Slow(5, 4))
            trainer.validate(Module(test=10), Slow(5))
    assert run.totals().kept == 2 * EPOCH
    evaluations = {"sanity_check": 2 * 8.0, "eval": 4 * 5 * 8.0 + 5 * 10.0}  # with their loads
    assert run.seconds() == {
        "productive": 2 * EPOCH * 2.0,
        "data_loading": 2 * EPOCH * 6.0,
        "other": 2 * EPOCH * 3.0,
        "custom": evaluations,
    }


def test_batches_are_parts_of_a_step_of_the_optimizer(pl: Any, callback: Any, start: Any) -> None:
    start()
    trainer = pl.Trainer(max_epochs=2, callbacks=[callback()], accumulate_grad_batches=4, val_check_interval=3)
    trainer.fit(Module(), Slow(), Slow())
    assert trainer.global_step == 6 and counts() == (6, 0)  # the last one of an epoch has two batches


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_with_manual_optimization_each_batch_is_a_step(pl: Any, callback: Any, start: Any, steps: int) -> None:
    start()
    module = Module(steps=steps)
    module.automatic_optimization = False
    pl.Trainer(max_epochs=2, callbacks=[callback()]).fit(module, Slow())
    assert counts() == (2 * EPOCH, 0)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("again", ["in the same process", "in the next one"])
def test_what_is_repeated_after_a_restore_is_lost(
    pl: Any, callback: Any, start: Any, tmp_path: Path, later: bool, again: str
) -> None:
    class Saves(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            if trainer.global_step == 15:
                trainer.save_checkpoint(tmp_path / "15.ckpt")
                for thread in getattr(trainer.strategy.checkpoint_io, "threads", ()):
                    thread.join()
                assert goodput.report().to_json()["at_risk_s"] == 0  # type: ignore[union-attr]

    def trainer() -> Any:
        storing = sys.modules[f"{pl.__name__}.plugins.io"]
        plugins = [storing.AsyncCheckpointIO()] if later else []
        return pl.Trainer(max_epochs=3, callbacks=[callback(), Saves()], plugins=plugins)

    start()
    with pytest.raises(MemoryError), goodput.job():
        trainer().fit(Module(fails_at=18), Slow())
    if again == "in the next one":
        start()
    with goodput.job():
        trainer().fit(Module(), Slow(), ckpt_path=tmp_path / "15.ckpt")
    assert counts() == (35, 4)  # the stand-in begins the epoch again, as Lightning does without a stateful loader
    assert spent()["checkpoint_save"] > 0 < spent()["checkpoint_restore"]


def test_max_steps_and_the_rest_of_an_epoch_that_is_skipped(pl: Any, callback: Any, start: Any) -> None:
    start()
    module = Module()
    module.on_train_batch_start = lambda batch, number: -1 if number == 5 else None  # type: ignore[method-assign]
    pl.Trainer(max_epochs=2, callbacks=[callback()]).fit(module, Slow())
    assert counts()[0] == 10
    pl.Trainer(max_epochs=2, max_steps=7, callbacks=[callback()]).fit(Module(), Slow())
    assert counts()[0] == 17
    assert api._recorder is not None and api._recorder.tracer.open_step is None


def test_an_exception_ends_the_recording(pl: Any, callback: Any, start: Any) -> None:
    class Raises(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, *_: object) -> None:
            raise KeyError

    start()
    for module, others in ((Module(fails_at=3), [callback()]), (Module(), [Raises(), callback()])):
        with pytest.raises((MemoryError, KeyError)):
            pl.Trainer(callbacks=others).fit(module, Slow())
    broken = Module()
    broken.validation_step = lambda *_: 1 / 0  # type: ignore[method-assign,assign]
    with pytest.raises(ZeroDivisionError):
        pl.Trainer(callbacks=[callback()]).fit(broken, Slow(), Slow())
    assert api._recorder is not None and api._recorder.tracer.open_step is None
    pl.Trainer(callbacks=[callback()]).fit(Module(), Slow(), Slow())
    assert counts()[0] == EPOCH  # it trains again from the begin


def test_a_trainer_inside_of_a_trainer_is_not_recorded_by_itself(
    pl: Any, callback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nested(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_end(self, *_: object) -> None:
            pl.Trainer(callbacks=[callback()]).fit(Module(step=1), Slow(EPOCH, 2))

    with testing.run() as run:
        monkeypatch.setattr(sys.modules[__name__], "time", SimpleNamespace(sleep=run.advance))
        with goodput.job():
            pl.Trainer(max_epochs=2, callbacks=[Nested(), callback()]).fit(Module(step=1), Slow(EPOCH, 4))
    assert run.totals().kept == 2 * EPOCH
    assert run.seconds() == {"productive": 2 * EPOCH * 1.0, "data_loading": 2 * EPOCH * 4.0, "other": 2 * EPOCH * 3.0}


def test_fit_in_a_thread(pl: Any, callback: Any, start: Any) -> None:
    start()
    training = threading.Thread(target=pl.Trainer(callbacks=[callback()]).fit, args=(Module(), Slow()))
    training.start()
    training.join()
    assert counts() == (EPOCH, 0)


def test_before_configure_it_does_nothing_and_it_may_be_copied(pl: Any, callback: Any, start: Any) -> None:
    made = callback()
    assert isinstance(made, pl.Callback)
    pl.Trainer(callbacks=[made]).fit(Module(), Slow())
    start()
    pl.Trainer(callbacks=[copy.deepcopy(made)]).fit(Module(), Slow())
    pl.Trainer(callbacks=[pickle.loads(pickle.dumps(made))]).fit(Module(), Slow())
    assert counts() == (2 * EPOCH, 0)


def test_fabric_takes_it_without_the_rest_of_lightning(
    pl: Any, callback: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fabric:
        def save(self, path: str, state: Any) -> None:
            time.sleep(0.01)

        def load(self, path: str, state: Any = None) -> None: ...

    module: Any = ModuleType("lightning.fabric")
    module.Fabric = Fabric
    monkeypatch.setitem(sys.modules, "lightning.fabric", module)
    monkeypatch.delitem(sys.modules, f"{pl.__name__}.callbacks")
    start()
    assert type(callback()) is callback
    for _ in goodput.steps(range(3)):
        Fabric().save("x", {})
    Fabric().load("x")
    assert counts() == (3, 0) and spent()["checkpoint_save"] >= 0.03


def test_fabric_may_call_it_with_anything(pl: Any, callback: Any, start: Any) -> None:
    start()
    made = callback()
    made.on_train_epoch_end()
    made.on_train_batch_start(1, 2)
    made.on_train_batch_end(outputs=None)
    made.setup()
    assert counts() == (0, 0)


@pytest.mark.parametrize("pl", PACKAGES, indirect=True)
def test_without_a_line_each_trainer_is_recorded_once(pl: Any, start: Any) -> None:
    start(integrations=pl.__name__.partition(".")[0])
    with goodput.job():
        pl.Trainer().fit(Module(), Slow())
        pl.Trainer(callbacks=[import_module(OURS).GoodputCallback()]).fit(Module(), Slow())
    assert counts() == (2 * EPOCH, 0)
    start()
    pl.Trainer().fit(Module(), Slow())
    assert counts() == (0, 0)


def test_another_major_version_is_left_alone(
    pl: Any, callback: Any, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pl.__version__ = "3.0"
    start()
    pl.Trainer(callbacks=[callback()]).fit(Module(), Slow())
    assert counts() == (0, 0) and f"{pl.__name__} 3.0 is not known" in caplog.text


# --- its door ---------------------------------------------------------------------------------------------------------

GROUPS = [f"{name}.callbacks_factory" for name in (*PACKAGES, "lightning.fabric", "lightning_fabric")]


def test_the_door_opens_if_a_run_is_recorded(
    pl: Any, callback: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lightning_trainer.Trainer, "external", staticmethod(_doors.lightning_callbacks))
    assert pl.Trainer().callbacks == []
    start()
    pl.Trainer(callbacks=[callback()]).fit(Module(), Slow())
    pl.Trainer().fit(Module(), Slow())
    assert counts() == (2 * EPOCH, 0)
    monkeypatch.setenv("OTEL_GOODPUT_INTEGRATIONS", "auto,-lightning")
    assert pl.Trainer().callbacks == []


def test_the_door_starts_a_run_that_the_environment_names(
    pl: Any, tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_DIR", str(tmp_path))
    monkeypatch.setenv("OTEL_GOODPUT_EXPORTERS", "none")
    monkeypatch.setenv("OTEL_GOODPUT_RUN_NAME", "by-name")
    pl.Trainer(callbacks=_doors.lightning_callbacks()).fit(Module(), Slow())
    assert counts() == (EPOCH, 0) and (tmp_path / "by-name").is_dir()


def test_the_doors_are_registered_and_import_nothing() -> None:
    value = f"{_doors.__name__}:{_doors.lightning_callbacks.__name__}"
    text = (Path(goodput.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    for group in GROUPS:
        assert f'[project.entry-points."{group}"]\notel_goodput = "{value}"\n' in text
    assert EntryPoint("otel_goodput", value, GROUPS[0]).load()() == []
    code = f"import sys; from {_doors.__name__} import *; import {_doors.__name__} as doors; "
    code += "print(doors.lightning_callbacks(), 'opentelemetry.sdk' in sys.modules, 'lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False", "False"]
