"""A data loader that records a data load around each ``next()``, for loops that number their steps themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from otel_goodput.guard import contain
from otel_goodput.recording.fast_span import FastSpan
from otel_goodput.recording.tracer import Find

T = TypeVar("T")


@runtime_checkable
class Queue(Protocol):
    """A queue that holds the batches that are ready."""

    def qsize(self) -> int: ...


QueueDepth: TypeAlias = Callable[[], int] | Queue


class Loading(Generic[T]):
    """Wraps `batches` and records a data load around each ``next()``; may be iterated as often as `batches` may.

    Args:
        find: returns the current recorder, or None.
        batches: the iterable of batches; its other attributes are available on this object too.
        queue_depth: a function that returns how many batches are ready, or the queue that holds them.
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
        if name.startswith("_"):  # copy and pickle ask before `_batches` is set, which would recurse
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
