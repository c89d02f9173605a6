"""GPUs as their driver tells of them, through the real ``pynvml`` and a library of C functions in its place."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest
from waits import until

from otel_goodput._integrations import accelerators, flops
from otel_goodput._integrations.accelerators import Accelerators, Reading
from otel_goodput._integrations.nvml import Nvml
from otel_goodput._journal.usage_now import UNKNOWN, reasons

from .nvidia import Gpu, Library, install

GIB = 2**30
ME = os.getpid()
EVENT, THROTTLE = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"


@pytest.fixture(autouse=True)
def nothing_in_use(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever other tests of this process have imported; and no thread outlasts the library that it reads from."""
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(flops, "backend_started", lambda: False)
    monkeypatch.setattr(accelerators, "SHARE", 1e9)
    yield
    until(lambda: not any(one.name == "goodput-accelerators" for one in threading.enumerate()))


def read(monkeypatch: pytest.MonkeyPatch, library: Library | None) -> Reading | None:
    install(monkeypatch, library)
    driver = Nvml()
    try:
        return driver.read()
    finally:
        driver.close()


def test_the_gpus_of_this_process_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Gpu("GPU-0", busy=90, used=20 * GIB, power=650_000, reasons=0x4, pids=[7, ME])
    other = Gpu("GPU-1", busy=40, used=30 * GIB, power=250_000, pids=[ME])
    reading = read(monkeypatch, Library([one, other, Gpu("GPU-2", busy=100, pids=[7]), Gpu("GPU-3")]))
    assert reading is not None
    assert (reading.kind, reading.devices, reading.busy) == ("gpu", 2, pytest.approx(0.65))
    assert (reading.memory, reading.memory_limit, reading.power) == (50 * GIB, 160 * GIB, 900_000)
    assert (reasons(reading.throttled), reading.held_down) == (("power_cap",), 0.5)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x10 | 0x100, ()),  # idle, clocks that the user set, and the like hold nothing down
        (0x4, ("power_cap",)),
        (0x20, ("thermal",)),
        (0x40 | 0x8, ("thermal",)),  # HwSlowdown is said besides its cause
        (0x80 | 0x8, ("power_brake",)),
        (0x8, ("hardware",)),
        (0x4 | 0x20 | 0x80, ("power_cap", "thermal", "power_brake")),
    ],
)
@pytest.mark.parametrize(
    ("missing", "binding"),
    [((), ""), ((EVENT,), ""), ((THROTTLE,), ""), ((EVENT,), EVENT), ((), EVENT), ((), THROTTLE)],
)
def test_why_clocks_are_held_down(
    monkeypatch: pytest.MonkeyPatch, driver: int, expected: tuple[str, ...], missing: tuple[str, ...], binding: str
) -> None:
    """Driver (`missing`) and `binding` know it by one name, by the other, or by both."""
    if binding:
        monkeypatch.delattr(pynvml, binding)
    reading = read(monkeypatch, Library([Gpu("GPU-0", reasons=driver, pids=[ME])], missing=missing))
    assert reading is not None and reasons(reading.throttled) == expected
    assert reading.held_down == bool(expected)


def cuda(*uuids: str | None) -> SimpleNamespace:
    """PyTorch, which has memory on the first GPU that it sees."""
    return SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(uuids),
        memory_reserved=lambda device: int(device == 0),
        get_device_properties=lambda device: (
            SimpleNamespace() if uuids[device] is None else SimpleNamespace(uuid=uuids[device])
        ),
    )


GPUS = [Gpu("GPU-aa", busy=10), Gpu("GPU-bb", busy=20), Gpu("GPU-cc", busy=30)]


@pytest.mark.parametrize(
    ("torch", "visible", "busy"),
    [
        (cuda("bb", "cc"), "", 0.2),  # by its UUID, whatever the order
        (cuda(None, None), "2,0", 0.3),  # an older PyTorch has none
        (cuda(None), "GPU-bb", 0.2),
        (cuda(None, None, None), "", 0.1),
    ],
)
def test_gpus_of_torch(monkeypatch: pytest.MonkeyPatch, torch: object, visible: str, busy: float) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", torch)  # type: ignore[arg-type]
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    reading = read(monkeypatch, Library(GPUS))
    assert reading is not None and (reading.devices, reading.busy) == (1, pytest.approx(busy))


@pytest.mark.parametrize(("platform", "busy"), [("gpu", 0.25), ("cpu", None)])
def test_gpus_of_jax(monkeypatch: pytest.MonkeyPatch, platform: str, busy: float | None) -> None:
    devices = [SimpleNamespace(platform=platform, local_hardware_id=number) for number in (1, 2)]
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: devices))  # type: ignore[arg-type]
    monkeypatch.setattr(flops, "backend_started", lambda: True)
    reading = read(monkeypatch, Library(GPUS))
    assert (None if reading is None else reading.busy) == (busy if busy is None else pytest.approx(busy))


def test_energy_is_that_since_the_reading_before(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("GPU-0", energy=10**12, pids=[ME])
    install(monkeypatch, Library([gpu]))
    driver = Nvml()
    first = driver.read()
    gpu.energy += 7_000
    second = driver.read()
    assert first is not None and second is not None and (first.energy, second.energy) == (UNKNOWN, 7_000)
    driver.close()


def test_what_a_gpu_cannot_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a part of one by MIG, or one of a laptop."""
    names = ("UtilizationRates", "PowerUsage", "TotalEnergyConsumption", "CurrentClocksEventReasons")
    errors = {f"nvmlDeviceGet{name}": pynvml.NVML_ERROR_NOT_SUPPORTED for name in names}
    reading = read(monkeypatch, Library([Gpu("GPU-0", pids=[ME])], errors))
    unknown = {"busy": UNKNOWN, "power": UNKNOWN, "energy": UNKNOWN, "throttled": UNKNOWN}
    assert reading == Reading("gpu", 1, memory=10 * GIB, memory_limit=80 * GIB, **unknown)


@pytest.mark.parametrize("library", [None, Library([]), Library([Gpu("GPU-0")])])
def test_without_driver_or_gpu_in_use_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, library: Library | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(monkeypatch, library) is None
    watched = Accelerators([Nvml])
    assert watched.read() is None and caplog.text == ""
    watched.close()


def test_a_driver_that_fails_is_reported_once_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    errors = {"nvmlDeviceGetCount_v2": pynvml.NVML_ERROR_GPU_IS_LOST}
    install(monkeypatch, Library([Gpu("GPU-0")], errors, calls.append))
    watched = Accelerators([Nvml])
    for _ in range(2 * accelerators.FAILURES):
        assert watched.read() is None
    assert calls.count("nvmlDeviceGetCount_v2") == accelerators.FAILURES
    assert caplog.text.count("utilization of gpus is not known") == 1
    watched.close()


def test_a_driver_that_takes_long_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("GPU-0", busy=10, energy=5_000, pids=[ME])
    install(monkeypatch, Library([gpu]))
    watched = Accelerators([Nvml])
    monkeypatch.setattr(accelerators, "SHARE", 1e-9)
    first = watched.read()
    gpu.busy, gpu.energy = 90, 7_000
    again = watched.read()
    assert first is not None and again == first._replace(energy=0)  # which the next reading has
    watched._due = 0.0
    monkeypatch.setattr(accelerators, "SHARE", 1e9)
    later = watched.read()
    assert later is not None and (later.busy, later.energy) == (0.9, 2_000)
    watched.close()


def test_a_driver_that_hangs_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "PATIENCE_S", 0.02)
    goes_on = threading.Event()
    library = Library([Gpu("GPU-0", pids=[ME])], before=lambda _: goes_on.wait(60) and None)  # type: ignore[func-returns-value]
    install(monkeypatch, library)
    watched = Accelerators([Nvml])
    assert watched.read() is None and watched.read() is None  # the second one does not even wait
    goes_on.set()
    until(lambda: watched.read() is not None)
    goes_on.clear()
    assert watched.read() is None
    watched.close()  # does not wait for it
    goes_on.set()
