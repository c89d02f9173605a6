"""A data loader that records a data load around each ``next()``, for loops that number their steps themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.tracer import Find
from otel_goodput._runtime.guard import contain

T = TypeVar("T")

NOTICEABLE: Final = 1_000_000  # ns


@runtime_checkable
class Queue(Protocol):
    """A queue that holds the batches that are ready."""

    def qsize(self) -> int: ...


QueueDepth: TypeAlias = Callable[[], int] | Queue


class Proxy(Generic[T]):
    """Stands for `batches`: has their attributes, passes for one of their class, and is pickled and copied as them.

    Args:
        find: returns the current recorder, or None.
        batches: what it stands for.
        queue_depth: a function that returns how many batches are ready, or the queue that holds them.
    """

    __slots__ = ("__weakref__", "_batches", "_find", "_queue_depth")
    _batches: Any
    _find: Find
    _queue_depth: QueueDepth | None

    def __init__(self, find: Find, batches: Any, queue_depth: QueueDepth | None = None) -> None:
        for name, value in (("_find", find), ("_batches", batches), ("_queue_depth", queue_depth)):
            object.__setattr__(self, name, value)

    # Frameworks ask with isinstance() what they were given.
    @property
    def __class__(self) -> type:
        return cast(type, self._batches.__class__)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        self._batches.__class__ = kind

    def __getattr__(self, name: str) -> Any:
        if name in Proxy.__slots__:  # not set yet
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._batches, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self._batches)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._batches.__reduce_ex__(protocol)


class Loading(Proxy[T]):
    """Wraps an iterable and records a data load around each ``next()``; may be iterated as often as that may."""

    __slots__ = ()

    def __iter__(self) -> Iterator[T]:
        offer_depth(self._find, self._queue_depth)
        return Loads(self._find, begin_pass(self._find, lambda: iter(self._batches)))


class Loads(Proxy[T]):
    """Wraps an iterator: one pass over the batches."""

    __slots__ = ()

    def __iter__(self) -> Loads[T]:
        offer_depth(self._find, self._queue_depth)
        return self

    def __next__(self) -> T:
        tracer = self._find()
        batches: Iterator[T] = self._batches
        if tracer is None or tracer.line.spans.loading():  # a load in a load is the same one
            return next(batches)
        load: FastSpan | None = None
        try:
            try:
                load = tracer.load()
                load.open(tracer.clock())
            except Exception as error:
                contain("loading", error)
            batch = next(batches)
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


def begin_pass(find: Find, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Return the iterator that `begin` returns. If that takes a while, as when workers start, it is a data load."""
    tracer = find()
    if tracer is None or tracer.closed:
        return begin()
    line = tracer.line
    before, start = line.slow_passes, tracer.clock()
    batches = begin()
    try:
        end = tracer.clock()
        # Not a second time for a loader that another one wraps.
        if end - start > NOTICEABLE and line.slow_passes == before and not (line.jobs.none_yet or line.spans.loading()):
            line.slow_passes += 1
            with tracer.load(start, end):
                pass
    except Exception as error:
        contain("loading", error)
    return batches


def offer_depth(find: Find, queue_depth: QueueDepth | None) -> None:
    """Have `queue_depth` tell how many batches are ready, because a pass over them begins."""
    tracer = find()
    if tracer is not None and queue_depth is not None:
        tracer.hooks.loader(queue_depth.qsize if isinstance(queue_depth, Queue) else queue_depth)
