"""PyTorch's DataLoaders in ``loading()``: they stay what they are, and each pass over one records its data loads.

Frameworks ask whether they were given a DataLoader, and then make another one over the same dataset: with the share of
one process, or without the batches that were done before a restart. So the dataset is remembered, and not the loader;
and where a class of loaders begins a pass, ``__iter__``, the pass is wrapped if it is one over such a dataset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, NamedTuple
from weakref import ref

from otel_goodput._recording.loading import Loads, QueueDepth, begin_pass, offer_depth
from otel_goodput._recording.tracer import Find
from otel_goodput._runtime.guard import contain, report_once

DEEPEST: Final = 4  # datasets around the given one; frameworks wrap some to share them out
_WRAPPED: Final = "_goodput_wrapped"


class Given(NamedTuple):
    """What was given to ``loading()``.

    Attributes:
        find: returns the current recorder, or None.
        queue_depth: tells how many batches are ready.
        loader: it.
        dataset: its dataset; None if there can be no weak reference to that.
    """

    find: Find
    queue_depth: QueueDepth | None
    loader: Callable[[], Any]
    dataset: Callable[[], Any] | None


_given: Final[dict[int, Given]] = {}  # by id of their datasets
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
        if (given := _given.get(key)) is not None and given.dataset is reference:
            del _given[key]

    try:
        reference: Callable[[], Any] | None = ref(dataset, forget)
    except TypeError:  # a list, a range
        reference = None
    _passed.discard(key)
    _given[key] = Given(find, queue_depth, ref(loader), reference)


def _wrap(kind: type) -> None:
    """Have ``__iter__`` of the class `kind`, where it is defined, wrap the passes over what was given."""
    owner: Any = next(each for each in kind.__mro__ if "__iter__" in vars(each))
    original = vars(owner)["__iter__"]
    if hasattr(original, _WRAPPED):
        return

    @wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        return begun(self, lambda: original(self))

    setattr(__iter__, _WRAPPED, True)
    owner.__iter__ = __iter__


def begun(loader: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begin a pass over `loader` by `begin` and return it: if its loads are to be recorded, a wrapper of it."""
    found = None
    try:
        found = _find(loader)
    except Exception as error:
        contain("loading", error)
    if found is None:
        return begin()
    key, given = found
    batches = begin_pass(given.find, begin)
    try:
        tracer = given.find()
        if given.loader() is loader:
            _passed.add(key)
        elif tracer is not None and key not in _passed and not tracer.line.spans.loading():
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


def _find(loader: Any) -> tuple[int, Given] | None:
    """Return what was given whose dataset `loader` has, and the id of that dataset."""
    dataset = getattr(loader, "dataset", None)
    for _ in range(DEEPEST):
        if dataset is None:
            return None
        given = _given.get(id(dataset))
        if given is not None and (given.dataset is None or given.dataset() is dataset):
            return id(dataset), given
        dataset = getattr(dataset, "dataset", None)
    return None
