"""What NVIDIA's driver says of the GPUs with which this process computes, by nvidia-ml-py (extra ``usage``).

Looking does not start CUDA: no GPU is initialized here, and no memory on it taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from otel_goodput._integrations import flops
from otel_goodput._integrations.accelerators import Reading
from otel_goodput._journal.usage_now import UNKNOWN
from otel_goodput.semconv import THROTTLE_REASONS, Accelerator, ThrottleReason

T = TypeVar("T")

# Bits of the driver, which call one thing by several names.
_POWER_CAP, _HARDWARE, _SOFT_THERMAL, _THERMAL, _BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
_REASONS: Final = (
    (ThrottleReason.POWER_CAP, _POWER_CAP),
    (ThrottleReason.THERMAL, _SOFT_THERMAL | _THERMAL),
    (ThrottleReason.POWER_BRAKE, _BRAKE),
)
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class Nvml:
    """Reads what the driver says. Its methods may wait, and raise."""

    kind: Final = Accelerator.GPU

    def __init__(self) -> None:
        # Here, on the caller's thread: a child forked while another thread imports a module can never import it itself.
        import pynvml

        self._nvml: Any = pynvml
        self._open = False
        self._none = False  # there is no driver
        self._energy: dict[str, int] = {}  # mJ by GPU, at the reading before

    def read(self) -> Reading | None:
        """Return what is known of the GPUs together; None if this process computes with none, or there is no driver."""
        if not self._begin():
            return None
        readings = [self._read(handle) for handle in self._mine()]
        return Reading.together(readings) if readings else None

    def stop(self) -> None:
        """Nothing ends a call of the driver."""

    def close(self) -> None:
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def _begin(self) -> bool:
        if not self._open and not self._none:
            try:
                self._nvml.nvmlInit()
                self._open = True
            except self._nvml.NVMLError as error:
                missing = self._nvml.NVML_ERROR_LIBRARY_NOT_FOUND, self._nvml.NVML_ERROR_DRIVER_NOT_LOADED
                if error.value not in missing:
                    raise
                self._none = True
        return self._open

    def _mine(self) -> list[Any]:
        """The GPUs that PyTorch or jax uses in this process; with neither, those that the driver says it uses."""
        nvml, torch, jax = self._nvml, _of_torch(), _of_jax()
        if torch:
            return [
                nvml.nvmlDeviceGetHandleByUUID(place) if isinstance(place, str) else self._visible(place)
                for place in torch
            ]
        if jax is not None:
            return [self._visible(place) for place in jax]
        everyone = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return [handle for handle in everyone if os.getpid() in self._users(handle)]

    def _users(self, handle: Any) -> list[int]:
        running: list[Any] = self._maybe(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
        return [int(one.pid) for one in running]

    def _visible(self, place: int) -> Any:
        """Return the GPU that CUDA counts as number `place`: in a homogeneous machine, its order is the driver's."""
        names = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",")]
        name = names[place] if place < len(names) else ""
        if name.startswith(("GPU-", "MIG-")):
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        return self._nvml.nvmlDeviceGetHandleByIndex(int(name or place))

    def _read(self, handle: Any) -> Reading:
        nvml, maybe = self._nvml, self._maybe
        rates = maybe(lambda: nvml.nvmlDeviceGetUtilizationRates(handle), None)
        memory = maybe(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
        return Reading(
            kind=self.kind,
            devices=1,
            busy=UNKNOWN if rates is None else min(100, int(rates.gpu)) / 100,
            memory=UNKNOWN if memory is None else int(memory.used),
            memory_limit=UNKNOWN if memory is None else int(memory.total),
            power=maybe(lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)), UNKNOWN),
            energy=self._spent(handle),
            throttled=maybe(lambda: _bits(self._reasons(handle)), UNKNOWN),
        )

    def _reasons(self, handle: Any) -> int:
        nvml = self._nvml
        older = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)  # of a driver before 535
        newer: Any = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", older)
        try:
            return int(newer(handle))
        except nvml.NVMLError as error:
            if older is None or error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return int(older(handle))

    def _spent(self, handle: Any) -> int:
        """The energy since the reading before, mJ."""
        whole = self._maybe(lambda: int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)), UNKNOWN)
        name = str(self._maybe(lambda: self._nvml.nvmlDeviceGetUUID(handle), ""))
        before = self._energy.get(name, UNKNOWN)
        if whole == UNKNOWN or not name:
            return UNKNOWN
        self._energy[name] = whole
        return UNKNOWN if before == UNKNOWN else max(0, whole - before)

    def _maybe(self, read: Callable[[], T], otherwise: T) -> T:
        """Return what `read` does, or something else if this GPU or driver cannot tell: so do parts of one (MIG)."""
        nvml = self._nvml
        try:
            return read()
        except nvml.NVMLError as error:
            cannot = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION
            if error.value not in cannot:
                raise
            return otherwise


def _bits(driver: int) -> int:
    reasons = {name for name, bits in _REASONS if driver & bits}
    if driver & _HARDWARE and not driver & (_THERMAL | _BRAKE):
        reasons.add(ThrottleReason.HARDWARE)
    return sum(1 << THROTTLE_REASONS.index(name) for name in reasons)


def _of_torch() -> list[int | str]:
    """The GPUs on which PyTorch has memory: their UUIDs, or the numbers that CUDA gives them in this process."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return []
    used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    uuids = [getattr(cuda.get_device_properties(device), "uuid", None) for device in used]
    return [device if uuid is None else f"GPU-{uuid}" for device, uuid in zip(used, uuids, strict=True)]


def _of_jax() -> list[int] | None:
    """The numbers that CUDA gives jax's GPUs in this process; None if jax uses nothing (yet)."""
    if "jax" not in sys.modules or not flops.backend_started():
        return None
    return list(_numbers(sys.modules["jax"].local_devices()))


def _numbers(devices: Any) -> Iterator[int]:
    for place, device in enumerate(devices):
        if getattr(device, "platform", "") in (Accelerator.GPU, "cuda"):
            number = getattr(device, "local_hardware_id", None)
            yield place if number is None else int(number)
