"""``fit`` of Keras, by a callback and without one. Against a stand-in that calls the same in the same order."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import otel_goodput as goodput
from everyday.stand_ins import keras_trainer
from otel_goodput import api, testing

OURS = "otel_goodput.integrations.keras"
EPOCH = 10  # batches


class Slow:
    """Batches that take time; how many there are is `known`, or not."""

    def __init__(self, count: int = EPOCH, seconds: float = 0.0, known: bool = True) -> None:
        self.count, self.seconds = count, seconds
        if known:
            self.__class__ = type("Sized", (Slow,), {"__len__": lambda batches: count})

    def __call__(self) -> Iterator[int]:
        for number in range(self.count):
            time.sleep(self.seconds)
            yield number

    __iter__ = __call__


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with monkeypatch.context() as patch:
        patch.setattr(
            keras_trainer, "JAXEpochIterator", type("JAXEpochIterator", (keras_trainer.JAXEpochIterator,), {})
        )
        for name, module in keras_trainer.prepare().items():
            patch.setitem(sys.modules, name, module)
        patch.delitem(sys.modules, OURS, raising=False)
        yield sys.modules["keras"]
    sys.modules.pop(OURS, None)


@pytest.fixture
def callback(keras: ModuleType) -> Callable[[], Any]:
    return import_module(OURS).GoodputCallback  # type: ignore[no-any-return]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., None]]:
    yield lambda **options: goodput.configure("k", directory=tmp_path, exporters="none", **options) and None
    goodput.shutdown()
    api._recorder = None


def spent() -> dict[str, Any]:
    report = goodput.report()
    assert report is not None
    return report.to_json()["seconds"]  # type: ignore[no-any-return]


def totals() -> Any:
    return SimpleNamespace(**{name: getattr(goodput.totals(), name) for name in ("kept", "lost")})


class Model:
    """Makes models of the stand-in whose steps and evaluations take time."""

    def __new__(cls, step: float = 0.0, test: float = 0.0, fails_at: int = -1) -> Any:
        class Timed(sys.modules["keras"].Model):  # type: ignore[misc,name-defined]
            def train_step(self, state: Any, data: Any) -> None:
                if self.optimizer.iterations == fails_at:
                    raise MemoryError
                super().train_step(state, data)
                time.sleep(step)

            def test_step(self, state: Any, data: Any) -> None:
                time.sleep(test)

        return Timed()


@pytest.mark.parametrize("known", [True, False])
def test_each_second_is_where_it_belongs(
    callback: Any, keras: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Logs(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_begin(self, *_: object) -> None:
            run.advance(1)

        on_train_batch_end = on_train_batch_begin

    with testing.run() as run:
        monkeypatch.setattr(sys.modules[__name__], "time", SimpleNamespace(sleep=run.advance))
        model, others = Model(step=2, test=4), [Logs(), callback(), callback()]
        with goodput.job():
            model.fit(Slow(EPOCH, 6, known), epochs=2, validation_data=Slow(EPOCH, 4), callbacks=others)
    assert run.totals().kept == 2 * EPOCH
    assert run.seconds() == {
        "productive": 2 * EPOCH * 2.0,
        "data_loading": 2 * EPOCH * 6.0,
        "other": 2 * EPOCH * 2.0 + (0 if known else 2 * 1.0),  # on_train_batch_begin comes before the data ends
        "custom": {"eval": 2 * EPOCH * 8.0},  # with its loads
    }


def test_several_batches_in_one_call_are_as_many_steps(callback: Any, start: Any) -> None:
    start()
    model = Model()
    model.steps_per_execution = 4
    model.fit(Slow(EPOCH, known=False), epochs=2, callbacks=[callback()])
    assert totals().kept == 2 * EPOCH


def test_fit_again_counts_on(callback: Any, start: Any) -> None:
    start()
    model = Model()
    for _ in range(3):
        model.fit(Slow(), callbacks=[callback()])
        model.evaluate(Slow(EPOCH, 0.002))
    Model().fit(Slow(), callbacks=(callback(),))  # another one
    assert (totals().kept, totals().lost) == (4 * EPOCH, 0)
    assert spent()["custom"]["eval"] >= 3 * EPOCH * 0.002


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("save_freq", ["epoch", 3])
@pytest.mark.parametrize("again", ["in the same process", "in the next one"])
def test_what_is_repeated_after_a_restore_is_lost(
    callback: Any, start: Any, keras: Any, tmp_path: Path, known: bool, save_freq: Any, again: str
) -> None:
    def callbacks() -> list[Any]:
        return [keras.callbacks.BackupAndRestore(tmp_path, save_freq), callback()]

    repeated = 4
    start()
    with pytest.raises(MemoryError), goodput.job():
        Model(fails_at=2 * EPOCH + repeated).fit(Slow(EPOCH, 0, known), epochs=4, callbacks=callbacks())
    assert goodput.totals().kept == 2 * EPOCH + repeated  # type: ignore[union-attr]
    if again == "in the next one":
        start()
    with goodput.job():
        Model().fit(Slow(EPOCH, 0, known), epochs=4, callbacks=callbacks())
    assert (totals().kept, totals().lost) == (4 * EPOCH, repeated + 1)


def test_an_exception_in_a_step_or_in_a_validation_ends_the_recording(callback: Any, start: Any) -> None:
    start()
    model = Model()
    before = None
    for broken in (Model(fails_at=3), model):
        broken.test_step = lambda *_: 1 / 0
        with pytest.raises((MemoryError, ZeroDivisionError)):
            broken.fit(Slow(), validation_data=Slow(), callbacks=[callback()])
        assert api._recorder is not None and api._recorder.tracer.open_step is None
        before = totals()
    assert before is not None and before.lost == 1
    del model.test_step
    train = model.train_function
    model.fit(Slow(), validation_data=Slow(), callbacks=[callback()])
    assert model.train_function is train  # nothing of ours is left
    assert totals().lost == 1


def test_a_fit_inside_of_a_fit_is_not_recorded_by_itself(callback: Any, start: Any, keras: Any) -> None:
    class Nested(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_end(self, *_: object) -> None:
            Model().fit(Slow(), callbacks=[callback()])

    start()
    Model().fit(Slow(), epochs=2, callbacks=[Nested(), callback()])
    assert totals().kept == 2 * EPOCH


def test_fit_in_a_thread(callback: Any, start: Any) -> None:
    start()
    training = threading.Thread(target=Model().fit, args=(Slow(),), kwargs={"callbacks": [callback()]})
    training.start()
    training.join()
    assert totals().kept == EPOCH


def test_nothing_is_recorded_before_configure_and_all_after(callback: Any, start: Any) -> None:
    made, model = callback(), Model()
    model.fit(Slow(), callbacks=[made])
    start()
    model.fit(Slow(), callbacks=[copy.deepcopy(made)])
    assert totals().kept == EPOCH


def test_without_a_line_each_fit_is_recorded_once(keras: Any, start: Any) -> None:
    start(integrations="keras")
    with goodput.job():
        Model().fit(Slow(), callbacks=None)
        Model().fit(Slow(), callbacks=[import_module(OURS).GoodputCallback()])
    assert totals().kept == 2 * EPOCH
    start()
    Model().fit(Slow())
    assert totals().kept == 0


def test_another_major_version_is_left_alone(keras: Any, start: Any, caplog: pytest.LogCaptureFixture) -> None:
    keras.__version__ = "4.0"
    start()
    Model().fit(Slow(), callbacks=[import_module(OURS).GoodputCallback()])
    assert totals().kept == 0 and "Keras 4.0 is not known" in caplog.text
