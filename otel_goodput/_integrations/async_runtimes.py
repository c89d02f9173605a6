"""Asynchronous runtimes: calls return before the work is done, so the host clock does not show when a step ends.

While one is *in use*, a step has an unknown clock unless a mark or an observation shows its end. A runtime that is only
imported does not matter, where it can be told. Only those that document the order of their work have a marker. Nothing
here imports a library or starts a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from otel_goodput._integrations import markers
from otel_goodput._integrations.markers import Marker
from otel_goodput._runtime.guard import report_once


class AsyncRuntime(NamedTuple):
    """One asynchronous runtime."""

    name: str  # for messages; with a place for what `used` returns, if that is a name
    module: str  # its name in `sys.modules` once it is imported
    used: Callable[[Any], bool | str | None]  # called with that module, returns whether a device is in use, or which
    marker: Callable[[], Marker | None] = lambda: None  # returns a marker, None if it cannot be marked


def _module(torch: Any, device: str) -> Any:
    """Return PyTorch's module of a kind of device, as ``torch.cuda``; None if there is none."""
    return sys.modules.get(f"torch.{device}") or getattr(torch, device, None)


def _initialized(module: Any) -> bool:
    """Return whether devices of that module are in use; True if it does not say."""
    ask = getattr(module, "is_initialized", None)
    return ask is None or bool(ask())


def _torch_xpu(torch: Any) -> bool:
    module = _module(torch, "xpu")
    return module is not None and _initialized(module)


def _torch_mps(torch: Any) -> bool:
    # Only where there is such a device: elsewhere current_allocated_memory() might raise.
    return bool(torch.backends.mps.is_available()) and torch.mps.current_allocated_memory() > 0


def _torch_other(torch: Any) -> str | None:
    """Return the name of another accelerator that PyTorch uses: one that it knows, or one of a package of its own.

    Nothing is known of the order of their work. PyTorch answers from tables here: no driver is asked.
    """
    named: list[str] = []
    answers: tuple[Callable[[], Any], ...] = (
        lambda: torch.accelerator.current_accelerator().type,
        lambda: torch._C._get_privateuse1_backend_name(),
    )
    for ask in answers:
        with suppress(AttributeError, RuntimeError):  # there is no accelerator, or PyTorch is older
            named.append(str(ask()))
    if named[-1:] == [PRIVATE]:
        named.pop()  # its name where no package has given another
    for name in (*named, *TORCH_DEVICES):
        module = _module(torch, name)
        if name not in TORCH_KNOWN and (name in named if module is None else _initialized(module)):
            return name
    return None


def _torch_xla(torch_xla: Any) -> bool:
    extension = torch_xla._XLAC
    ask = getattr(extension, "_xla_runtime_is_initialized", None) or extension.is_runtime_initialized
    return bool(ask())


def _tensorflow(_: Any) -> bool:
    """Return whether TensorFlow uses an accelerator. On CPUs its operations are done when they return, by default."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if context is None or not getattr(context, "_initialized", False):
        return False
    devices = getattr(context, "_logical_devices", None) or ()
    return bool(getattr(context, "_default_is_async", False)) or any(
        not str(device.device_type).endswith("CPU") for device in devices
    )


def _paddle(_: Any) -> bool:
    """Return whether Paddle uses a device other than the CPU, where its operations are done when they return."""
    framework = sys.modules.get("paddle.base.framework") or sys.modules.get("paddle.fluid.framework")
    place = getattr(framework, "_global_expected_place_", None)
    return place is not None and "cpu" not in str(place).lower()


PRIVATE: Final = "privateuseone"
TORCH_KNOWN: Final = frozenset({"cpu", "cuda", "xpu", "mps", "xla", "meta", "lazy"})  # as the table has them
# Others that it has names for; one before 2.6 has no torch.accelerator.
TORCH_DEVICES: Final = ("mtia", "hpu", "maia", "ipu", PRIVATE)

# They do not tell whether they are in use, and are asynchronous on every device, or have but one kind.
FROM_IMPORT_ON: Final = {
    **{name: name for name in ("torch_directml", "poptorch", "mxnet", "mindspore", "oneflow", "jittor", "ttnn")},
    "pyopencl": "pyopencl",
    "pycuda": "pycuda.driver",
}
ASYNC_RUNTIMES: Final[tuple[AsyncRuntime, ...]] = (
    AsyncRuntime("jax", "jax._src.xla_bridge", lambda _: markers.jax_started(), markers.jax_marker),
    AsyncRuntime("torch (cuda)", "torch", lambda torch: bool(torch.cuda.is_initialized()), markers.torch_marker),
    AsyncRuntime("torch (xpu)", "torch", _torch_xpu, lambda: markers.torch_marker("xpu")),
    AsyncRuntime("torch (mps)", "torch", _torch_mps),
    AsyncRuntime("torch ({})", "torch", _torch_other),
    AsyncRuntime("torch_xla", "torch_xla", _torch_xla),
    AsyncRuntime("tensorflow", "tensorflow", _tensorflow),
    AsyncRuntime("paddle", "paddle", _paddle),
    AsyncRuntime("cupy", "cupy", lambda cupy: cupy.get_default_memory_pool().total_bytes() > 0),
    AsyncRuntime("numba.cuda", "numba.cuda.cudadrv.driver", lambda numba: bool(numba.driver.is_initialized)),
    AsyncRuntime("mlx", "mlx.core", lambda core: core.get_active_memory() > 0),
    AsyncRuntime("tinygrad", "tinygrad.device", lambda device: bool(getattr(device.Device, "_opened_devices", True))),
    AsyncRuntime("taichi", "taichi.lang.impl", lambda impl: impl.pytaichi.prog is not None),
    AsyncRuntime("warp", "warp.context", lambda warp: warp.runtime is not None and bool(warp.runtime.cuda_devices)),
    *(AsyncRuntime(name, module, lambda _: True) for name, module in FROM_IMPORT_ON.items()),
)


class AsyncRuntimes:
    """Finds the runtimes that this process uses. A runtime is not checked again once it is in use."""

    def __init__(self) -> None:
        self._waiting = list(ASYNC_RUNTIMES)

    @property
    def imported(self) -> bool:
        """Whether a runtime that is not in use yet has been imported."""
        return any(runtime.module in sys.modules for runtime in self._waiting)

    def poll(self) -> list[AsyncRuntime]:
        """Return the runtimes that have come into use since the last call."""
        new = []
        for runtime in tuple(self._waiting):
            module = sys.modules.get(runtime.module)
            try:
                used = module is not None and runtime.used(module)
            except AttributeError:
                continue  # still being imported, or built without that device
            except Exception as error:
                name = runtime.name.format("another device")
                report_once(f"runtime {name}", "cannot find out whether %s is in use: %s", name, error)
                continue
            if used:
                new.append(runtime._replace(name=runtime.name.format(used)))
                self._waiting.remove(runtime)
        return new
