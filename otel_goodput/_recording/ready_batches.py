"""How many batches a loader has ready, seen from the background.

PyTorch's and Grain's iterators do not tell, so their queues are looked at: without a lock, since the training thread
must not wait for one that a slower thread holds; and by weak references, since an iterator that is kept keeps workers.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable
from weakref import ref

Depth: TypeAlias = Callable[[], "int | None"]


@runtime_checkable
class Queue(Protocol):
    """A queue that holds the batches that are ready."""

    def qsize(self) -> int: ...


QueueDepth: TypeAlias = Callable[[], int] | Queue

DEEPEST: Final = 8  # iterators of Grain inside of each other
_FINISHED: Final = "FINISHED"  # the state of a future whose result is there; its done() takes a lock


def depth_of(given: QueueDepth) -> Depth:
    """Return what says how many batches are ready, by what the user gave: a queue, its ``qsize``, or any function."""
    held = getattr(given, "__self__", None) if getattr(given, "__name__", "") == "qsize" else given
    if isinstance(held, queue.Queue):
        return lambda: len(held.queue)  # its qsize() takes a lock
    return given.qsize if isinstance(given, Queue) else given


def seen_depth(batches: object) -> Depth | None:
    """Return what says how many batches the iterator `batches` has ready, None if that cannot be seen.

    What is returned returns None once the iterator has ended or is gone.
    """
    look = next(filter(None, map(_look_of, type(batches).__mro__)), None)
    if look is None:
        return None
    try:
        there = ref(batches)
    except TypeError:
        return None

    def depth() -> int | None:
        iterator = there()
        if iterator is None:
            return None
        with suppress(Exception):  # another version of the library, or it ends meanwhile
            return look(iterator)
        return None

    return depth


def _look_of(kind: type) -> Callable[[Any], int | None] | None:
    if kind.__module__.partition(".")[0] == "grain":
        return _of_grain
    return _LOOKS.get(f"{kind.__module__}.{kind.__qualname__}")


def _of_torch(iterator: Any) -> int | None:
    """The batches that workers have made. What came before its turn counts once it is the next one."""
    if iterator._rcvd_idx >= iterator._send_idx:  # this pass is over, though its workers may be kept for the next one
        return None
    following = len(iterator._task_info.get(iterator._rcvd_idx, ())) == 2
    return following + (_held(iterator._data_queue) or 0)


_LOOKS: Final[Mapping[str, Callable[[Any], int | None]]] = {
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": _of_torch,
}


def _of_grain(iterator: Any) -> int | None:
    """What is in the buffer that is nearest to the loop; of several workers', in that of the one whose turn it is."""
    for _ in range(DEEPEST):
        members = vars(iterator)
        if (buffer := members.get("_buffer")) is not None:
            over = members.get("_next_returned_index") == members.get("_dataset_length", ())
            return None if over else _held(buffer)
        if workers := members.get("_iterators_in_use"):
            following = members["_next_index_in_cycle"]
            iterator = next(filter(None, (*workers[following:], *workers[:following])), None)
        else:
            inner = members.get("_iterator") or members.get("_maybe_nonnative_parent")
            iterator = inner or members["_parents"][0]
        if not type(iterator).__module__.startswith("grain."):
            return None
    return None


def _held(buffer: Any) -> int | None:
    """How many elements there are in a queue, or in a row of futures before the first that is not done."""
    if isinstance(buffer, deque):
        elements = list(buffer)
        pending = (at for at, one in enumerate(elements) if getattr(one, "_state", _FINISHED) != _FINISHED)
        return next(pending, len(elements))
    if isinstance(buffer, queue.Queue):
        return len(buffer.queue)
    if any(kind.__module__ == "multiprocessing.queues" for kind in type(buffer).__mro__):
        return int(buffer.qsize())  # reads a semaphore, without waiting for it
    return None
