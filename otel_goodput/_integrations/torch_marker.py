"""Marks in PyTorch: events on a stream of CUDA, ROCm or XPU, recorded by the thread that dispatched the work.

That such a stream is in order is documented, and that an event is done when all work before it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import wraps
from typing import Any

_CAPTURES = ("capture_begin", "capture_end")


class EventMark:
    """One event. It is polled, never waited for. CUDA forbids both while any thread captures a graph."""

    __slots__ = ("_event", "_marker")

    def __init__(self, event: Any, marker: TorchMarker) -> None:
        self._event = event
        self._marker = marker

    def is_ready(self) -> bool:
        # No other thread can begin a capture between the two: query() holds the GIL.
        return not self._marker.capturing and bool(self._event.query())

    def is_deleted(self) -> bool:
        return False


class TorchMarker:
    """Sets marks in the current stream of PyTorch's current device.

    Args:
        device: PyTorch's module of that kind of device, as ``torch.cuda``.

    Attributes:
        capturing: number of graphs that are being captured, on all threads.
    """

    waits = False
    prepared = True
    order_uncertain = False

    def __init__(self, device: Any) -> None:
        self._device = device
        self.capturing = 0
        self._graph = getattr(device, "CUDAGraph", None) or getattr(device, "XPUGraph", None)
        self._captures = getattr(device, "is_current_stream_capturing", lambda: False)
        self._originals: dict[str, Any] = {}
        if all(hasattr(self._graph, name) for name in _CAPTURES):
            for name, count in zip(_CAPTURES, (1, -1), strict=True):
                self._count(name, count)

    def _count(self, name: str, count: int) -> None:
        """Wrap a method that begins or ends a capture, to count captures: PyTorch shows other threads none."""
        original = getattr(self._graph, name)

        @wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if count > 0:
                self.capturing += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                if count > 0:
                    self.capturing -= 1
                raise
            finally:
                if count < 0:
                    self.capturing = max(0, self.capturing - 1)

        self._originals[name] = self._graph.__dict__.get(name) if self._graph is not None else None
        setattr(self._graph, name, counted)

    def prepare(self) -> bool:
        return True

    def mark(self) -> EventMark | None:
        if self.capturing or self._captures():
            return None
        event = self._device.Event()
        event.record()
        return EventMark(event, self)

    def results(self) -> Sequence[Any]:
        return ()  # that a stream is in order is documented

    def mark_devices_of(self, late: Sequence[Any]) -> bool:
        return False

    def close(self) -> None:
        for name, original in self._originals.items():
            if original is None:
                delattr(self._graph, name)  # the original was inherited
            else:
                setattr(self._graph, name, original)
        self._originals.clear()


def torch_marker(name: str = "cuda") -> TorchMarker | None:
    """Return a marker for devices of that kind in this process's PyTorch; None if it has no events for them."""
    device = sys.modules.get(f"torch.{name}") or getattr(sys.modules.get("torch"), name, None)
    return None if device is None or not hasattr(device, "Event") else TorchMarker(device)
