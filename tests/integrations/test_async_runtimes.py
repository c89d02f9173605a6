"""Whether a runtime that works asynchronously is in use: stand-ins for those that are not installed here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm

from otel_goodput import Recorder
from otel_goodput._accounting import events as ev
from otel_goodput._integrations import async_runtimes
from otel_goodput._integrations.async_runtimes import ASYNC_RUNTIMES
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events
from otel_goodput._tools.doctor import journal
from otel_goodput.semconv import FALLBACK_CLOCKS

from .stand_ins import Queue, QueueMarker, fake_torch


class Switch:
    """What a library answers before and after a device is in use."""

    on = False

    def number(self) -> int:
        return int(self.on)

    def truth(self) -> bool:
        return self.on


class Changing:
    """Has an attribute that is one thing before, and another after a device is in use."""

    def __init__(self, switch: Switch, name: str, before: Any, after: Any) -> None:
        self._switch, self._name, self._values = switch, name, (before, after)

    def __getattr__(self, name: str) -> Any:
        if name != self._name:
            raise AttributeError(name)
        return self._values[self._switch.on]


def _torch(switch: Switch, **parts: Any) -> Any:
    torch = fake_torch(Queue(lambda: 0))
    for name, part in parts.items():
        setattr(torch, name, part)
    return torch


class Context:
    """TensorFlow's, of devices of these types."""

    def __init__(self, switch: Switch, *types: str) -> None:
        self._switch = switch
        self._logical_devices = [SimpleNamespace(device_type=each) for each in ("CPU", *types)]
        self._default_is_async = not types

    @property
    def _initialized(self) -> bool:
        return self._switch.on


def _tensorflow(switch: Switch) -> dict[str, Any]:
    return {
        "tensorflow": SimpleNamespace(),
        "tensorflow.python.eager.context": SimpleNamespace(_context=Context(switch, "GPU")),
    }


def _torch_with(device: str, switch: Switch, named: str = "privateuseone", accelerator: str = "", **parts: Any) -> Any:
    """PyTorch with a kind of device, a module of it (if any) with `parts`, and what PyTorch says that there is."""
    modules = {device: SimpleNamespace(**parts)} if parts else {}
    torch = _torch(switch, _C=SimpleNamespace(_get_privateuse1_backend_name=lambda: named), **modules)
    if accelerator:
        kind = SimpleNamespace(type=accelerator)
        torch.accelerator = SimpleNamespace(
            current_accelerator=lambda check_available=False: kind if parts or switch.on else None
        )
    return {"torch": torch}


def _module(**parts: Any) -> Any:
    return SimpleNamespace(**parts)


# By runtime and case.
STAND_INS: dict[tuple[str, str], Callable[[Switch], dict[str, Any]]] = {
    ("torch (xpu)", "without events"): lambda switch: {
        "torch": _torch(switch), "torch.xpu": _module(is_initialized=switch.truth)
    },
    ("torch (mps)", ""): lambda switch: {
        "torch": _torch(
            switch,
            backends=_module(mps=_module(is_available=lambda: True)),
            mps=_module(current_allocated_memory=switch.number),
        )
    },
    ("torch (npu)", "a package of its own"): lambda switch: _torch_with(
        "npu", switch, "npu", "npu", is_initialized=switch.truth
    ),
    ("torch (npu)", "before PyTorch had torch.accelerator"): lambda switch: _torch_with(
        "npu", switch, "npu", is_initialized=switch.truth
    ),
    ("torch (tpu)", "no module"): lambda switch: _torch_with("tpu", switch, accelerator="tpu"),
    ("torch (hpu)", "known to PyTorch"): lambda switch: _torch_with(
        "hpu", switch, accelerator="hpu", is_initialized=switch.truth
    ),
    ("torch (hpu)", "before torch.accelerator"): lambda switch: _torch_with(
        "hpu", switch, is_initialized=switch.truth
    ),
    ("torch (neuron)", ""): lambda switch: _torch_with(
        "neuron", switch, "neuron", "neuron", is_initialized=switch.truth, Event=object
    ),
    ("torch (mtia)", "beside another accelerator"): lambda switch: _torch_with(
        "mtia", switch, accelerator="cuda", is_initialized=switch.truth, Event=object
    ),
    ("torch (privateuseone)", "not renamed"): lambda switch: _torch_with(
        "privateuseone", switch, is_initialized=switch.truth
    ),
    ("torch_xla", ""): lambda switch: {"torch_xla": _module(_XLAC=_module(_xla_runtime_is_initialized=switch.truth))},
    ("tensorflow", "GPU"): _tensorflow,
    ("tensorflow", "asynchronous on the CPU"): lambda switch: {
        "tensorflow": _module(),
        "tensorflow.python.eager.context": _module(_context=Context(switch)),
    },
    ("paddle", ""): lambda switch: {
        "paddle": _module(), "paddle.base.framework": Changing(switch, "_global_expected_place_", None, "Place(gpu:0)")
    },
    ("cupy", ""): lambda switch: {"cupy": _module(get_default_memory_pool=lambda: _module(total_bytes=switch.number))},
    ("mlx", ""): lambda switch: {"mlx.core": _module(get_active_memory=switch.number)},
    ("numba.cuda", ""): lambda switch: {
        "numba.cuda.cudadrv.driver": _module(driver=Changing(switch, "is_initialized", False, True))
    },
    ("tinygrad", ""): lambda switch: {
        "tinygrad.device": _module(Device=Changing(switch, "_opened_devices", set(), {"CPU"}))
    },
    ("taichi", ""): lambda switch: {
        "taichi.lang.impl": _module(pytaichi=Changing(switch, "prog", None, object()))
    },
    ("warp", ""): lambda switch: {
        "warp.context": Changing(switch, "runtime", None, _module(cuda_devices=["cuda:0"]))
    },
}  # fmt: skip
# That do not tell whether they are in use.
FROM_IMPORT_ON = {
    "torch_directml", "poptorch", "mxnet", "mindspore", "oneflow", "jittor", "ttnn", "pyopencl", "pycuda"
}  # fmt: skip
WITHOUT_MARKER = {runtime.name for runtime in ASYNC_RUNTIMES} - {"jax", "torch (cuda)"}


@pytest.fixture(autouse=True)
def _no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have imported in this process is in use here, too."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jax", "torch")]:
        monkeypatch.delitem(sys.modules, name)


def run_folder(directory: Path) -> RunDirectory:
    (folder,) = (path for path in directory.iterdir() if path.is_dir())
    return RunDirectory(folder)


def clocks(directory: Path) -> list[tuple[str, int]]:
    """The clock records in the journal."""
    return [
        (FALLBACK_CLOCKS[event.phase], event.time)
        for event in all_events(run_folder(directory))
        if event.kind == ev.CLOCK
    ]


def test_every_one_of_the_table_has_a_stand_in() -> None:
    stood_for = {runtime for runtime, _ in STAND_INS} | FROM_IMPORT_ON
    assert {name for name in WITHOUT_MARKER if name not in stood_for} == {"torch ({})"}


@pytest.mark.parametrize(("name", "case"), STAND_INS)
def test_one_in_use_that_cannot_be_marked(
    name: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Imported is not in use; in use, steps from then on have no known end."""
    switch = Switch()
    for module, stand_in in STAND_INS[name, case](switch).items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    recorder = Recorder("unmarked", directory=tmp_path, exporters="none", integrations="none")
    with recorder.job():
        with recorder.step(0):
            pass
        with recorder.custom("evaluation"):
            pass
        assert not caplog.records
        before = recorder._account.clock()
        switch.on = True
        with recorder.step(1):
            pass
    recorder.shutdown()
    [(state, moment)] = clocks(tmp_path)
    assert state == "unknown" and moment <= before, "when it was last seen not to be in use"
    assert recorder.totals().clock == "unknown"
    (text,) = [text for record in caplog.records if "cannot be marked" in (text := record.getMessage())]
    assert text.startswith(name) and text in " ".join(str(recorder.report()).split())
    (note,) = [each for each in journal.check_run(run_folder(tmp_path), 0, renewable=True) if "not known" in each.what]
    assert f"({name} cannot be marked)" in note.what


@pytest.mark.parametrize("name", sorted(FROM_IMPORT_ON))
def test_one_that_does_not_tell_is_in_use_from_its_import_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    recorder = Recorder("unmarked", directory=tmp_path, exporters="none", integrations="none")
    with recorder.job():
        monkeypatch.setitem(sys.modules, next(each.module for each in ASYNC_RUNTIMES if each.name == name), _module())
        with recorder.step(0):
            pass
    recorder.shutdown()
    assert recorder.totals().clock == "unknown"


@pytest.mark.parametrize("accelerator", ["", "cuda"])
def test_a_torch_on_the_cpu_is_synchronous(
    accelerator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that was built for an accelerator that is not there."""
    for module, stand_in in _torch_with("xpu", Switch(), accelerator=accelerator, is_initialized=lambda: False).items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    recorder = Recorder("cpu", directory=tmp_path, exporters="none", integrations="none")
    with recorder.job(), recorder.step(0):
        pass
    recorder.shutdown()
    assert recorder.totals().clock == "host" and not caplog.records


@pytest.mark.parametrize(("mode", "expected"), [("host", ["host"]), ("observe", ["unknown"])])
def test_what_the_user_says(mode: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", mode)
    marker = QueueMarker(Queue(lambda: 0))
    monkeypatch.setattr(async_runtimes, "ASYNC_RUNTIMES", (marker.runtime,))
    recorder = Recorder("said", directory=tmp_path, exporters="none", integrations="none")
    with recorder.job():
        for number in range(5):
            with recorder.step(number):
                pass
    recorder.shutdown()
    assert [state for state, _ in clocks(tmp_path)] == expected and marker.marks == 0


def test_nothing_asynchronous_causes_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    recorder = Recorder("plain", directory=tmp_path, exporters="none", integrations="none")
    with recorder.job():
        for number in range(5):
            with recorder.step(number):
                pass
    recorder.shutdown()
    assert clocks(tmp_path) == []


def test_one_that_raises_when_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> int:
        raise RuntimeError("no driver")

    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    monkeypatch.setitem(sys.modules, "mlx.core", SimpleNamespace(get_active_memory=fail))
    recorder = Recorder("raises", directory=tmp_path, exporters="none", integrations="none")
    with recorder.job(), recorder.step(0):
        pass
    recorder.shutdown()
    assert recorder.totals().kept == 1 and clocks(tmp_path) == []
    assert sum("no driver" in record.getMessage() for record in caplog.records) == 1


ONLY_IMPORTED = """
import sys
import otel_goodput as goodput
import jax
goodput.configure("imported", directory=sys.argv[1], exporters="none")
with goodput.job():
    for number, _ in goodput.steps(range(5)):
        pass
    with goodput.custom("evaluation"):
        pass
goodput.shutdown()
from jax._src import xla_bridge
assert not xla_bridge._backends, "nobody asked for a device"
print(goodput.totals().clock)
"""


@pytest.mark.jax
def test_a_jax_that_is_only_imported_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    done = warm.run(
        [sys.executable, "-c", ONLY_IMPORTED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["host"]
