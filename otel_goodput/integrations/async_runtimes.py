"""Asynchronous runtimes: calls return before the work is done, so the host clock does not show when a step ends.

While one is *in use*, a step has an unknown clock unless a mark or an observation shows its end. A runtime that is only
imported does not matter. Nothing here imports a library or starts a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from otel_goodput.guard import report_once
from otel_goodput.integrations import jax_marker, torch_marker
from otel_goodput.integrations.markers import Marker


class AsyncRuntime(NamedTuple):
    """One asynchronous runtime.

    Attributes:
        name: for messages.
        module: its name in ``sys.modules`` once it is imported.
        used: called with that module, returns whether a device is in use.
        marker: returns a marker for this runtime, None if it cannot be marked.
    """

    name: str
    module: str
    used: Callable[[Any], bool]
    marker: Callable[[], Marker | None] = lambda: None


def _torch_mps(torch: Any) -> bool:
    # Only where there is such a device: elsewhere current_allocated_memory() might raise.
    return bool(torch.backends.mps.is_available()) and torch.mps.current_allocated_memory() > 0


def _torch_xla(torch_xla: Any) -> bool:
    extension = torch_xla._XLAC
    ask = getattr(extension, "_xla_runtime_is_initialized", None) or extension.is_runtime_initialized
    return bool(ask())


def _tensorflow(_: Any) -> bool:
    """Return whether TensorFlow uses a GPU. On CPUs its operations are done when they return."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if context is None or not getattr(context, "_initialized", False):
        return False
    return any(device.device_type == "GPU" for device in getattr(context, "_logical_devices", None) or ())


ASYNC_RUNTIMES: Final[tuple[AsyncRuntime, ...]] = (
    AsyncRuntime("jax", "jax._src.xla_bridge", lambda _: jax_marker.started(), jax_marker.jax_marker),
    AsyncRuntime("torch (cuda)", "torch", lambda torch: bool(torch.cuda.is_initialized()), torch_marker.torch_marker),
    AsyncRuntime("torch (xpu)", "torch.xpu", lambda xpu: bool(xpu.is_initialized())),
    AsyncRuntime("torch (mps)", "torch", _torch_mps),
    AsyncRuntime("torch_xla", "torch_xla", _torch_xla),
    AsyncRuntime("tensorflow (GPU)", "tensorflow", _tensorflow),
    AsyncRuntime("cupy", "cupy", lambda cupy: cupy.get_default_memory_pool().total_bytes() > 0),
    AsyncRuntime("mlx", "mlx.core", lambda core: core.get_active_memory() > 0),
)


class AsyncRuntimes:
    """Finds the runtimes that this process uses. A runtime is not checked again once it was found."""

    def __init__(self) -> None:
        self._waiting = list(ASYNC_RUNTIMES)

    @property
    def imported(self) -> bool:
        """Whether a runtime that is not in use yet has been imported."""
        return any(runtime.module in sys.modules for runtime in self._waiting)

    def found(self) -> list[AsyncRuntime]:
        """Return the runtimes that have come into use since the last call."""
        found = []
        for runtime in tuple(self._waiting):
            module = sys.modules.get(runtime.module)
            if module is not None and _used(runtime, module):
                found.append(runtime)
                self._waiting.remove(runtime)
        return found


def _used(runtime: AsyncRuntime, module: Any) -> bool:
    try:
        return runtime.used(module)
    except AttributeError:
        return False  # still being imported, or built without that device
    except Exception as error:
        report_once(f"runtime {runtime.name}", "cannot find out whether %s is in use: %s", runtime.name, error)
        return False
