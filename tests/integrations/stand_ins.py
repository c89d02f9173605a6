"""Runtimes that are not there: what their modules answer, and a queue of work that takes as long as a test wants."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from otel_goodput._integrations.async_runtimes import AsyncRuntime
from otel_goodput._integrations.markers import Mark, Marker


class Work:
    """Of `queue`, is done at `end`, ns by its clock."""

    def __init__(self, queue: Queue, end: int) -> None:
        self._queue = queue
        self.end = end

    def is_ready(self) -> bool:
        return self._queue.clock() >= self.end

    def is_deleted(self) -> bool:
        return False

    query = is_ready

    def block_until_ready(self) -> None:
        self._queue.wait_until(self.end)


class Queue:
    """A device that does one thing after the other.

    Attributes:
        free: when it will have nothing to do, ns.
        busy: ns of work that it was given.
        late: ns by which the machine woke those late who waited for it, all of them together.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.free = 0
        self.busy = 0
        self.late = 0

    def dispatch(self, nanoseconds: int) -> Work:
        self.free = max(self.free, self.clock()) + nanoseconds
        self.busy += nanoseconds
        return Work(self, self.free)

    def mark(self, early: int = 0) -> Work:
        return Work(self, self.free - early)

    def wait_until(self, end: int) -> None:
        """Until `end`, ns by its clock."""
        if (left := end - self.clock()) > 0:
            time.sleep(left / 1e9)
            self.late += self.clock() - end


class QueueMarker(Marker):
    """Marks in a queue; `early`: how long before its work is done a mark is ready, ns."""

    def __init__(self, queue: Queue, early: int = 0) -> None:
        self.queue = queue
        self.early = early
        self.marks = 0
        self.error: Exception | None = None
        self.closed = False

    def mark(self) -> Mark:
        if self.error is not None:
            raise self.error
        self.marks += 1
        return self.queue.mark(self.early)

    def results(self) -> Sequence[Mark]:
        return [self.queue.mark()] * 3

    def close(self) -> None:
        self.closed = True

    @property
    def runtime(self) -> AsyncRuntime:
        return AsyncRuntime("queue", "sys", lambda _: True, lambda: self)


class Event:
    """``torch.cuda.Event``, on `stream`."""

    def __init__(self, stream: Queue, torch: Any) -> None:
        self._stream = stream
        self._torch = torch
        self._work: Work | None = None

    def record(self) -> None:
        assert not self._torch.capturing, "nothing of ours is captured"
        self._work = self._stream.mark()

    def query(self) -> bool:
        assert not self._torch.capturing, "a query spoils a capture, on whatever thread"
        assert self._work is not None
        return self._work.is_ready()


def fake_torch(stream: Queue) -> Any:
    """The part of PyTorch with CUDA that we know: lazily initialised, streams, events, graphs."""
    torch = SimpleNamespace(capturing=False, initialized=False)

    class CUDAGraph:
        def capture_begin(self) -> None:
            torch.capturing = True

        def capture_end(self) -> None:
            torch.capturing = False

    torch.cuda = SimpleNamespace(
        is_initialized=lambda: torch.initialized,
        is_current_stream_capturing=lambda: torch.capturing,
        Event=lambda: Event(stream, torch),
        CUDAGraph=CUDAGraph,
    )
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    return torch
