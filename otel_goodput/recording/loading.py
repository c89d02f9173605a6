"""A loader whose batches are waited for in data loads: for loops that number their steps themselves, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from otel_goodput.guard import contain
from otel_goodput.recording.fast_span import FastSpan
from otel_goodput.recording.tracer import Find

T = TypeVar("T")


@runtime_checkable
class Queue(Protocol):
    """What the batches wait in."""

    def qsize(self) -> int: ...


QueueDepth: TypeAlias = Callable[[], int] | Queue


class Loading(Generic[T]):
    """`batches` as they are, as often as they may be iterated over, with a data load around each ``next()``.

    Args:
        find: gives what records, if anything does.
        batches: the items; their other attributes are reached through this.
        queue_depth: how many batches lie ready: a function that says so, or the queue that they wait in.
    """

    def __init__(self, find: Find, batches: Iterable[T], queue_depth: QueueDepth | None) -> None:
        self._find = find
        self._batches = batches
        self._queue_depth = queue_depth

    def __iter__(self) -> Iterator[T]:
        tracer = self._find()
        if tracer is not None and self._queue_depth is not None:
            depth = self._queue_depth
            tracer.hooks.loader(depth.qsize if isinstance(depth, Queue) else depth)
        return Loads(self._find, iter(self._batches))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy in the making has nothing yet
            raise AttributeError(name)
        return getattr(self._batches, name)


class Loads(Generic[T]):
    """One pass over the batches."""

    def __init__(self, find: Find, batches: Iterator[T]) -> None:
        self._find = find
        self._batches = batches

    def __iter__(self) -> Loads[T]:
        return self

    def __next__(self) -> T:
        tracer = self._find()
        if tracer is None:
            return next(self._batches)
        load: FastSpan | None = None
        try:
            try:
                load = tracer.load()
                load.open(tracer.clock())
            except Exception as error:
                contain("loading", error)
            batch = next(self._batches)
            try:
                if load is not None:
                    load.close(tracer.clock())
            except Exception as error:
                contain("loading", error)
            return batch
        except BaseException as error:
            if load is not None:
                try:
                    load.abandon(tracer.clock(), failed=not isinstance(error, StopIteration))
                except Exception as trouble:
                    contain("loading", trouble)
            raise
