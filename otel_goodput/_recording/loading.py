"""Data loaders that record a data load around each ``next()``, for loops that number their steps themselves.

PyTorch's DataLoaders stay what they are, because frameworks check for that, and then make another one over the same
dataset: with the share of one process, or without the batches that were done before a restart. So the dataset is
remembered, not the loader; and where a class of loaders begins a pass, in ``__iter__``, the pass is wrapped if it is
one over such a dataset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast
from weakref import ref

from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.ready_batches import QueueDepth, depth_of, seen_depth
from otel_goodput._recording.tracer import Find
from otel_goodput._runtime.guard import contain, containing, report_once

T = TypeVar("T")

NOTICEABLE: Final = 1_000_000  # ns


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
        if tracer is None or tracer.spans.loading():  # a load in a load is the same one
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
    before, start = tracer.slow_passes, tracer.clock()
    batches = begin()
    try:
        end = tracer.clock()
        if (depth := seen_depth(batches)) is not None:
            tracer.hooks.passes(depth)
        again = tracer.slow_passes > before or tracer.spans.loading()  # another loader is wrapped by this one
        if end - start > NOTICEABLE and not again and not tracer.jobs.none_yet:
            tracer.slow_passes += 1
            with tracer.load(start, end):
                pass
    except Exception as error:
        contain("loading", error)
    return batches


def offer_depth(find: Find, queue_depth: QueueDepth | None) -> None:
    """Register `queue_depth` for the gauge of ready batches, because a pass over them begins."""
    tracer = find()
    if tracer is not None and queue_depth is not None:
        tracer.hooks.loader(depth_of(queue_depth))


DEEPEST: Final = 4  # datasets around the given one; frameworks wrap some to share them out
_WRAPPED: Final = "_goodput_wrapped"


class GivenLoader(NamedTuple):
    """A loader that was given to ``loading()``; what returns it, and its dataset, as long as they exist."""

    find: Find
    queue_depth: QueueDepth | None
    loader: Callable[[], Any]
    dataset: Callable[[], Any] | None  # None if there can be no weak reference to it


_given_loaders: Final[dict[int, GivenLoader]] = {}  # by id of their datasets
_passed: Final[set[int]] = set()  # ids of datasets whose own loader was iterated


def record_passes(find: Find, loader: Any, queue_depth: QueueDepth | None) -> bool:
    """Record the loads of the DataLoader `loader`, and of others over its dataset; return False if it is none."""
    kind = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    try:
        if kind is None or not isinstance(loader, kind):
            return False
        # Also PyTorch's own, because a loader that a framework makes has one inside.
        for each in (type(loader), kind):
            _wrap(each)
        _remember(find, loader, queue_depth)
    except Exception as error:
        contain("loading", error)
        return False
    return True


def _remember(find: Find, loader: Any, queue_depth: QueueDepth | None) -> None:
    dataset = loader.dataset
    key = id(dataset)

    def forget(reference: object) -> None:
        if (given := _given_loaders.get(key)) is not None and given.dataset is reference:
            del _given_loaders[key]

    try:
        reference: Callable[[], Any] | None = ref(dataset, forget)
    except TypeError:  # a list, a range
        reference = None
    _passed.discard(key)
    _given_loaders[key] = GivenLoader(find, queue_depth, ref(loader), reference)


def _wrap(kind: type) -> None:
    """Have ``__iter__`` of the class `kind`, where it is defined, wrap the passes over what was given."""
    owner: Any = next(each for each in kind.__mro__ if "__iter__" in vars(each))
    original = vars(owner)["__iter__"]
    if hasattr(original, _WRAPPED):
        return

    @wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        return begin_given_pass(self, lambda: original(self))

    setattr(__iter__, _WRAPPED, True)
    owner.__iter__ = __iter__


def begin_given_pass(loader: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begin a pass over `loader` by `begin` and return it: if its loads are to be recorded, a wrapper of it."""
    match = None
    with containing("loading"):
        match = _find(loader)
    if match is None:
        return begin()
    key, given = match
    batches = begin_pass(given.find, begin)
    try:
        tracer = given.find()
        if given.loader() is loader:
            _passed.add(key)
        elif tracer is not None and key not in _passed and not tracer.spans.loading():
            report_once(
                "loading rebuilt",
                "goodput.loading() was given a DataLoader, but the loop uses another one over the same dataset, which "
                "a framework made from it. Its loads are recorded, too; to be sure, pass loading() the loader that the "
                "loop uses, for example loading(accelerator.prepare(loader))",
            )
        offer_depth(given.find, given.queue_depth)
        return Loads(given.find, batches)
    except Exception as error:
        contain("loading", error)
        return batches


def _find(loader: Any) -> tuple[int, GivenLoader] | None:
    """Return what was given whose dataset `loader` has, and the id of that dataset."""
    dataset = getattr(loader, "dataset", None)
    for _ in range(DEEPEST):
        if dataset is None:
            return None
        given = _given_loaders.get(id(dataset))
        if given is not None and (given.dataset is None or given.dataset() is dataset):
            return id(dataset), given
        dataset = getattr(dataset, "dataset", None)
    return None
