"""What users hand over is taken at once and without being asked anything: it may be on a device, donated, or hostile.

A table: every public function with every value.
"""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from recorded import Record, Recording

import otel_goodput as goodput
from otel_goodput._recording import plain

READ: list[str] = []
NAMES = (
    *("__str__", "__repr__", "__int__", "__index__", "__float__", "__bool__", "__eq__", "__hash__", "__len__"),
    *("__iter__", "__format__", "__bytes__", "__getitem__", "__array__", "__lt__", "__gt__", "__le__", "__ge__"),
    *("__contains__", "__call__", "__enter__", "__next__", "item", "tolist"),
)


def _asking(name: str) -> Callable[..., Any]:
    def ask(self: object, *args: object) -> Any:
        READ.append(name)
        raise MemoryError(f"{name} waited for the device")

    return ask


class OnADevice:
    """As a lazy tensor: whatever it is asked, it has to wait for the device first; here it notes that, and raises."""

    __class__ = property(_asking("__class__"))  # type: ignore[assignment]


for _name in NAMES:
    setattr(OnADevice, _name, _asking(_name))


class Failure(Exception):
    pass


def with_span(act: Callable[[Any, Any], object], phase: Callable[[], Any]) -> Callable[[Any], None]:
    def call(value: Any) -> None:
        with phase() as span:
            act(span, value)

    return call


def left_by_an_exception(value: Any) -> None:
    for phase in (goodput.step(3), goodput.custom("eval"), goodput.part("forward")):
        with pytest.raises(Failure), phase:
            raise Failure("loss is", value)


def entered(make: Callable[[Any], Any]) -> Callable[[Any], None]:
    def call(value: Any) -> None:
        with make(value):
            pass

    return call


PHASES: dict[str, Callable[[], Any]] = {
    "step": lambda: goodput.step(5),
    "part": lambda: goodput.part("forward"),
    "custom": lambda: goodput.custom("eval"),
    "save": lambda: goodput.checkpoint_save(5),
    "none": lambda: SimpleContext(),
}


class SimpleContext:
    """The span outside of a step."""

    def __enter__(self) -> Any:
        return goodput.current_step()

    def __exit__(self, *_: object) -> None: ...


ON_SPANS: dict[str, Callable[[Any, Any], object]] = {
    "set_attribute": lambda span, value: span.set_attribute("loss", value),
    "set_attribute name": lambda span, value: span.set_attribute(value, 1),
    "set_attribute list": lambda span, value: span.set_attribute("losses", [0.5, value]),
    "set_attributes": lambda span, value: span.set_attributes({"a": 1, "loss": value}),
    "set_attributes itself": lambda span, value: span.set_attributes(value),
    "add_event": lambda span, value: span.add_event("clipped", {"norm": value}),
    "add_event name": lambda span, value: span.add_event(value),
    "add_event timestamp": lambda span, value: span.add_event("clipped", timestamp=value),
    "record_exception": lambda span, value: span.record_exception(ValueError(value), {"loss": value}),
    "record_exception itself": lambda span, value: span.record_exception(value),
    "record_exception within": lambda span, value: span.record_exception(ValueError([KeyError(value)])),
    "set_status": lambda span, value: span.set_status(goodput_status(), value),
    "update_name": lambda span, value: span.update_name(value),
}


def goodput_status() -> Any:
    from opentelemetry.trace import StatusCode

    return StatusCode.ERROR


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    **{
        f"{phase}.{name}": with_span(act, PHASES[phase])
        for phase in PHASES
        for name, act in ON_SPANS.items()
        if phase != "none" or name not in ("update_name", "set_status")
    },
    "step": entered(lambda value: goodput.step(value)),
    "step times": entered(lambda value: goodput.step(3, start_time=value, end_time=value)),
    "step blocking": entered(lambda value: goodput.step(3, blocking=value)),
    "steps": lambda value: list(goodput.steps([1], start=value)),
    "data_loading": entered(lambda value: goodput.data_loading(blocking=value)),
    "traced_step": lambda value: goodput.traced_step(lambda: None, start=value)(),
    "traced_step output": lambda value: goodput.traced_step(lambda: [value])(),
    "part": entered(lambda value: goodput.part(value)),
    "custom": entered(lambda value: goodput.custom(value)),
    "custom times": entered(lambda value: goodput.custom("eval", start_time=value, blocking=value)),
    "elastic_wait": entered(lambda value: goodput.elastic_wait(value)),
    "checkpoint_save": entered(lambda value: goodput.checkpoint_save(value, durable=value)),
    "checkpoint_restore": entered(lambda value: goodput.checkpoint_restore(value, blocking=value)),
    "exclusion": entered(lambda value: goodput.exclusion(end_time=value)),
    "slice_counts": lambda value: goodput.slice_counts(value, value, value, time=value),
    "flush": lambda value: goodput.flush(value),
    "left by an exception": left_by_an_exception,
}


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT")


@pytest.fixture(autouse=True)
def _nothing_read() -> Iterator[None]:
    READ.clear()
    yield
    READ.clear()


@pytest.mark.usefixtures("lenient")
def test_no_argument_is_inspected_or_kept(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job():
        for name, function in FUNCTIONS.items():
            value = OnADevice()
            gone = weakref.ref(value)
            with caplog.at_level(logging.WARNING):
                function(value)
            assert not READ, name
            assert not any(record.exc_info for record in caplog.records), name
            del value
            if gone() is not None:
                gc.collect()
            assert gone() is None, f"{name} keeps it"
            caplog.clear()
    assert recording.report()["steps"]["executed"] > 0


@pytest.mark.jax
@pytest.mark.usefixtures("lenient")
def test_arrays_of_jax_are_not_waited_for(record: Record, caplog: pytest.LogCaptureFixture) -> None:
    import jax

    def count(rounds: Any, state: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, lambda _, x: jax.numpy.tanh(x @ x), state).sum().astype("int32")

    def all_functions(value: Any) -> float:
        began = time.perf_counter()
        for name, function in FUNCTIONS.items():
            if name not in ("flush", "traced_step output"):
                function(value)
        return time.perf_counter() - began

    record(device_clock="observe")  # what marks work on a CPU has to queue behind it
    slow, state = jax.jit(count), jax.numpy.full((64, 64), 1e-3)
    slow(1, state).block_until_ready()
    began = time.perf_counter()
    slow(2000, state).block_until_ready()
    rounds_in_a_second = 2000 / (time.perf_counter() - began)
    donated = jax.numpy.ones(())
    donated.delete()
    with goodput.job():
        needed = all_functions(donated)
        late = slow(int(rounds_in_a_second * (2 + 10 * needed)), state)
        all_functions(late)
        assert not late.is_ready(), "nothing has waited"
    assert any("float(loss)" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("lenient")
def test_a_step_numbered_by_a_device_continues_the_count(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    with goodput.job():
        with goodput.step(7):
            pass
        for _ in range(3):
            with goodput.step(OnADevice()):  # type: ignore[arg-type]
                pass
    assert recording.report()["max_productive_step"] == 10 and recording.report()["steps"]["kept"] == 4
    (message,) = [record.getMessage() for record in caplog.records]
    assert "n = int(state.step)" in message


def test_what_is_taken() -> None:
    import datetime as dt
    import enum
    from pathlib import Path

    import numpy as np

    class Color(enum.IntEnum):
        RED = 3

    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise MemoryError

    taken = plain.attributes(
        {
            "int": Color.RED,
            "text": Text("a"),
            "path": Path("a/b"),
            "date": dt.date(2026, 1, 2),
            "scalar": np.float32(0.5),
            "array": np.arange(3),
            "list": [1, "b", (2.5, None)],
            "dict": {"a": [True]},
        }
    )
    assert taken == {
        "int": 3,
        "text": "a",
        "path": "a/b",
        "date": "2026-01-02",
        "scalar": 0.5,
        "array": [0, 1, 2],
        "list": [1, "b", [2.5, None]],
        "dict": {"a": [True]},
    }
    assert {type(taken["int"]), type(taken["text"])} == {int, str}
    assert [plain.integer(one) for one in (3, True, np.int64(4), np.array(5), "6", 7.0, None)] == [
        *(3, 1, 4, 5),
        *(None, None, None),
    ]
    assert plain.message(KeyError("x")) == "'x'" and plain.message(ValueError("a", 1)) == "('a', 1)"


# --- calls that do not fit --------------------------------------------------------------------------------------------

MISFITS: dict[str, Callable[[], Any]] = {
    "part(forward, color=)": lambda: goodput.part("forward", color="red"),  # type: ignore[call-arg]
    "part()": lambda: goodput.part(),  # type: ignore[call-arg]
    "part(a, b)": lambda: goodput.part("a", "b"),  # type: ignore[call-arg]
    "step()": lambda: goodput.step(),  # type: ignore[call-arg]
    "step(1, name=)": lambda: goodput.step(1, name="x"),  # type: ignore[call-arg]
    "job(name)": lambda: goodput.job("name"),  # type: ignore[call-arg]
    "custom()": lambda: goodput.custom(),  # type: ignore[call-arg]
    "custom(step=)": lambda: goodput.custom("eval", step=3),  # type: ignore[call-arg]
    "checkpoint_save(1, 2)": lambda: goodput.checkpoint_save(1, 2),  # type: ignore[call-arg]
    "elastic_wait()": lambda: goodput.elastic_wait(),  # type: ignore[call-arg]
    "data_loading(name)": lambda: goodput.data_loading("name"),  # type: ignore[call-arg]
}
CALLS: dict[str, Callable[[], Any]] = {
    "steps(step=)": lambda: list(goodput.steps([1], step=3)),  # type: ignore[call-arg]
    "loading(depth=)": lambda: list(goodput.loading([1], depth=3)),  # type: ignore[call-arg]
    "observe()": lambda: goodput.observe(),  # type: ignore[call-arg]
    "current_step(1)": lambda: goodput.current_step(1),  # type: ignore[call-arg]
    "slice_counts(1)": lambda: goodput.slice_counts(1),  # type: ignore[call-arg]
    "report(1)": lambda: goodput.report(1),  # type: ignore[call-arg]
    "totals(window=)": lambda: goodput.totals(window="1h"),  # type: ignore[call-arg]
    "flush(seconds=)": lambda: goodput.flush(seconds=1),  # type: ignore[call-arg]
    "flush(soon)": lambda: goodput.flush("soon"),  # type: ignore[arg-type]
    "on_preemption()": lambda: goodput.on_preemption()(print),  # type: ignore[call-arg]
}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("configured", [True, False])
def test_arguments_that_do_not_fit_end_no_program(
    configured: bool, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    if configured:
        request.getfixturevalue("recording")
    for name, make in MISFITS.items():
        caplog.clear()
        for _ in range(2):
            with make() as span:
                span.set_attribute("a", 1)
        assert make()(len)("abc") == 3, f"{name} as a decorator"
        if configured:
            assert caplog.records or name.startswith(("part", "step", "custom")), f"{name} says so once"
    for make in CALLS.values():
        make()


@pytest.mark.usefixtures("lenient")
def test_there_is_one_warning_with_the_line_to_write(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job(), goodput.step(0):
        for _ in range(3):
            with goodput.part("forward", color="red"):  # type: ignore[call-arg]
                pass
    (message,) = caplog.messages
    assert "unexpected keyword argument 'color'" in message and "Write goodput.part(name)" in message
    assert [span.name for span in recording.spans()].count("forward") == 3, "it is recorded without the argument"


@pytest.mark.usefixtures("lenient")
def test_errors_of_the_users_own_are_raised(recording: Recording) -> None:
    def broken() -> Iterator[int]:
        yield len(3)  # type: ignore[arg-type]

    for call in (
        lambda: goodput.steps(SimpleNamespace()),  # type: ignore[type-var]
        lambda: goodput.steps(),  # type: ignore[call-arg]
        lambda: list(goodput.steps(broken())),
        lambda: goodput.traced_step(len)(3),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
