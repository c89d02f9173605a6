"""NVIDIA's library for the real ``pynvml``: C functions written in Python, so that no compiler is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

C = ctypes
Out = C.c_void_p  # where a function writes its answer


@dataclass
class Gpu:
    """What a GPU answers."""

    uuid: str
    busy: int = 50  # percent
    used: int = 10 * 2**30
    total: int = 80 * 2**30
    power: int = 300_000  # mW
    energy: int = 0  # mJ
    reasons: int = 0
    pids: list[int] = field(default_factory=list)


@dataclass
class Library:
    """What ``libnvidia-ml.so.1`` is taken to be; `errors` are returned by the functions of these names."""

    gpus: list[Gpu]
    errors: dict[str, int] = field(default_factory=dict)
    before: Callable[[str], None] = lambda _: None  # called by every function first
    missing: tuple[str, ...] = ()  # functions of newer drivers

    def __post_init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.missing or not hasattr(Library, f"_{name}"):
            raise AttributeError(name)
        if name not in self._kept:
            answer, kinds = getattr(self, f"_{name}")()

            def call(*arguments: Any) -> int:
                self.before(name)
                if name in self.errors:
                    return self.errors[name]
                return answer(*arguments) or 0

            self._kept[name] = C.CFUNCTYPE(C.c_int, *kinds)(call)
        return self._kept[name]

    def _gpu(self, handle: int) -> Gpu:
        return self.gpus[handle - 1]

    def _nvmlInitWithFlags(self) -> Any:
        return lambda _: 0, [C.c_uint]

    def _nvmlShutdown(self) -> Any:
        return lambda: 0, []

    def _nvmlDeviceGetCount_v2(self) -> Any:
        def count(out: int) -> None:
            C.c_uint.from_address(out).value = len(self.gpus)

        return count, [Out]

    def _nvmlDeviceGetHandleByIndex_v2(self) -> Any:
        def handle(index: int, out: int) -> int:
            if index >= len(self.gpus):
                return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            C.c_void_p.from_address(out).value = index + 1
            return 0

        return handle, [C.c_uint, Out]

    def _nvmlDeviceGetHandleByUUID(self) -> Any:
        def handle(uuid: bytes, out: int) -> int:
            for index, gpu in enumerate(self.gpus):
                if gpu.uuid == uuid.decode():
                    C.c_void_p.from_address(out).value = index + 1
                    return 0
            return int(pynvml.NVML_ERROR_NOT_FOUND)

        return handle, [C.c_char_p, Out]

    def _nvmlDeviceGetUUID(self) -> Any:
        def uuid(handle: int, out: int, size: int) -> None:
            C.memmove(out, self._gpu(handle).uuid.encode() + b"\0", len(self._gpu(handle).uuid) + 1)

        return uuid, [Out, Out, C.c_uint]

    def _nvmlDeviceGetUtilizationRates(self) -> Any:
        def rates(handle: int, out: int) -> None:
            pynvml.c_nvmlUtilization_t.from_address(out).gpu = self._gpu(handle).busy

        return rates, [Out, Out]

    def _nvmlDeviceGetMemoryInfo(self) -> Any:
        def memory(handle: int, out: int) -> None:
            info = pynvml.c_nvmlMemory_t.from_address(out)
            info.total, info.used = self._gpu(handle).total, self._gpu(handle).used

        return memory, [Out, Out]

    def _number(self, name: str, kind: Any) -> Any:
        def number(handle: int, out: int) -> None:
            kind.from_address(out).value = getattr(self._gpu(handle), name)

        return number, [Out, Out]

    def _nvmlDeviceGetPowerUsage(self) -> Any:
        return self._number("power", C.c_uint)

    def _nvmlDeviceGetTotalEnergyConsumption(self) -> Any:
        return self._number("energy", C.c_uint64)

    def _nvmlDeviceGetCurrentClocksEventReasons(self) -> Any:
        return self._number("reasons", C.c_ulonglong)

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetComputeRunningProcesses_v3(self) -> Any:
        def processes(handle: int, count: int, out: int | None) -> int:
            pids, room = self._gpu(handle).pids, C.c_uint.from_address(count)
            if len(pids) > room.value or (pids and not out):
                room.value = len(pids)
                return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
            room.value = len(pids)
            for at, pid in enumerate(pids):
                place = (out or 0) + at * C.sizeof(pynvml.c_nvmlProcessInfo_v3_t)
                pynvml.c_nvmlProcessInfo_v3_t.from_address(place).pid = pid
            return 0

        return processes, [Out, Out, Out]


def install(monkeypatch: pytest.MonkeyPatch, library: Library | None) -> None:
    """Have the real ``pynvml`` load `library`; None: there is no driver."""

    def load(name: str) -> Library:
        assert name == "libnvidia-ml.so.1"
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    monkeypatch.setattr(pynvml, "CDLL", load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
