"""Whether a runtime that works asynchronously is in use: stand-ins for those that are not installed here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_goodput import Recorder
from otel_goodput.accounting import events as ev
from otel_goodput.integrations import async_runtimes
from otel_goodput.integrations.async_runtimes import ASYNC_RUNTIMES
from otel_goodput.journal.history import all_events
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.semconv import FALLBACK_CLOCKS

from .stand_ins import Queue, QueueMarker, fake_torch


class Switch:
    """What a library answers before and after a device is in use."""

    on = False

    def number(self) -> int:
        return int(self.on)

    def truth(self) -> bool:
        return self.on


def _torch(switch: Switch, **parts: Any) -> Any:
    torch = fake_torch(Queue(lambda: 0))
    for name, part in parts.items():
        setattr(torch, name, part)
    return torch


def _tensorflow(switch: Switch) -> dict[str, Any]:
    class Context:
        _logical_devices = (SimpleNamespace(device_type="CPU"), SimpleNamespace(device_type="GPU"))

        @property
        def _initialized(self) -> bool:
            return switch.on

    return {"tensorflow": SimpleNamespace(), "tensorflow.python.eager.context": SimpleNamespace(_context=Context())}


STAND_INS: dict[str, Callable[[Switch], dict[str, Any]]] = {
    "torch (xpu)": lambda switch: {
        "torch": _torch(switch), "torch.xpu": SimpleNamespace(is_initialized=switch.truth)
    },
    "torch (mps)": lambda switch: {
        "torch": _torch(
            switch,
            backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
            mps=SimpleNamespace(current_allocated_memory=switch.number),
        )
    },
    "torch_xla": lambda switch: {
        "torch_xla": SimpleNamespace(_XLAC=SimpleNamespace(_xla_runtime_is_initialized=switch.truth))
    },
    "tensorflow (GPU)": _tensorflow,
    "cupy": lambda switch: {
        "cupy": SimpleNamespace(get_default_memory_pool=lambda: SimpleNamespace(total_bytes=switch.number))
    },
    "mlx": lambda switch: {"mlx.core": SimpleNamespace(get_active_memory=switch.number)},
}  # fmt: skip
WITHOUT_MARKER = {runtime.name for runtime in ASYNC_RUNTIMES} - {"jax", "torch (cuda)"}


@pytest.fixture(autouse=True)
def _no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have imported in this process is in use here, too."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jax", "torch")]:
        monkeypatch.delitem(sys.modules, name)


def clocks(directory: Path) -> list[tuple[str, int]]:
    """The clock records in the journal."""
    (folder,) = (path for path in directory.iterdir() if path.is_dir())
    return [
        (FALLBACK_CLOCKS[event.phase], event.time)
        for event in all_events(RunDirectory(folder))
        if event.kind == ev.CLOCK
    ]


def test_every_one_of_the_table_has_a_stand_in() -> None:
    assert set(STAND_INS) == WITHOUT_MARKER


@pytest.mark.parametrize("name", STAND_INS)
def test_one_in_use_that_cannot_be_marked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Imported is not in use; in use, steps from then on have no known end."""
    switch = Switch()
    for module, stand_in in STAND_INS[name](switch).items():
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
    assert sum("cannot be marked" in record.getMessage() for record in caplog.records) == 1


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


def test_nothing_asynchronous_is_nothing_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    done = subprocess.run(
        [sys.executable, "-c", ONLY_IMPORTED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["host"]
