"""Times the stages of batches where they are made: in worker processes of a loader, or in the process that trains.

Worker processes import this module and no other of this package. They record nothing: each writes six numbers a batch
into memory that it shares with the process that trains, in which a batch has a place by its number.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from time import monotonic_ns
from typing import Any, Final

# A record: the number of the batch plus 1; when it was begun, when its samples were there, and when it was made (ns, 0:
# not yet); how long transforms have taken so far, ns, and since when one does, 0: none; and the worker.
NUMBER, BEGUN, GATHERED, MADE, TRANSFORMED, SINCE, WORKER = range(7)
FIELDS: Final = 7
# Attributes of datasets that hold a transform, as those of torchvision.
TRANSFORMS: Final = ("transform", "transforms", "target_transform")
DEEPEST: Final = 4  # datasets in datasets
MOST: Final = 16  # of them, on each level

making: Final = threading.local()  # `.watch`: of the batch that this thread makes
_current: Final = threading.local()  # `.table`: of the workers that this thread starts


class Watch:
    """Times one batch after another; `table` has room for as many records as fit into it."""

    __slots__ = ("_at", "_rooms", "_table", "_worker", "inside")

    def __init__(self, table: Any, worker: int) -> None:
        self._table, self._worker = table, worker
        self._rooms = len(table) // FIELDS
        self._at = 0  # where the record of this batch is
        self.inside = False  # of a transform

    def begin(self, number: int) -> None:
        """The batch `number` is begun."""
        table = self._table
        self._at = at = number % self._rooms * FIELDS
        self.inside = False
        table[at + NUMBER] = 0
        table[at + GATHERED] = table[at + MADE] = table[at + TRANSFORMED] = table[at + SINCE] = 0
        table[at + WORKER], table[at + BEGUN] = self._worker, monotonic_ns()
        table[at + NUMBER] = number + 1

    def gathered(self) -> None:
        self._table[self._at + GATHERED] = monotonic_ns()

    def begin_transform(self) -> None:
        self.inside = True
        self._table[self._at + SINCE] = monotonic_ns()

    def end_transform(self) -> None:
        table, at = self._table, self._at
        since, table[at + SINCE] = table[at + SINCE], 0
        table[at + TRANSFORMED] += monotonic_ns() - since
        self.inside = False

    def end(self) -> None:
        """The batch was made."""
        table, at = self._table, self._at
        table[at + MADE] = made = monotonic_ns()
        if not table[at + GATHERED]:
            table[at + GATHERED] = made


class Collate:
    """Stands for a function that makes a batch of samples."""

    def __init__(self, original: Callable[[Any], Any], watch: Watch) -> None:
        self._original, self._watch = original, watch

    def __call__(self, samples: Any) -> Any:
        self._watch.gathered()
        return self._original(samples)


class _Standing:
    """Stands for a queue between a worker and the process that trains."""

    def __init__(self, queue: Any, watch: Watch) -> None:
        self._queue, self._watch = queue, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Tasks(_Standing):
    """The queue from which a worker takes what to fetch."""

    def get(self, *arguments: Any, **named: Any) -> Any:
        task = self._queue.get(*arguments, **named)
        if type(task) is tuple and type(task[0]) is int:
            self._watch.begin(task[0])
        return task


class Results(_Standing):
    """The queue into which it puts batches, each behind its number."""

    def put(self, result: Any, *arguments: Any, **named: Any) -> None:
        self._watch.end()
        self._queue.put(result, *arguments, **named)


# --- transforms -------------------------------------------------------------------------------------------------------


def transforms_of(dataset: Any, deep: int = DEEPEST) -> Iterator[Any]:
    """Yield the transforms that a dataset, and those that are in it, hold in attributes of the usual names."""
    members = getattr(dataset, "__dict__", None)
    if not isinstance(members, dict):
        return
    for name in TRANSFORMS:
        if callable(members.get(name)):
            yield members[name]
    inner = members.get("datasets")
    others = [members.get("dataset"), *(inner[:MOST] if isinstance(inner, (list, tuple)) else ())]
    for other in others if deep else ():
        yield from transforms_of(other, deep - 1)


def method_of(transform: Any) -> str | None:
    """Return the method of its class by which a transform is called; None if it is not one written in Python."""
    kind = type(transform)
    if kind.__module__.partition(".")[0] == "builtins" or kind.__module__.startswith("torch.nn."):
        return None  # a function; or a module that models have, too
    name = "forward" if hasattr(kind, "_call_impl") else "__call__"
    return name if inspect.isfunction(getattr(kind, name, None)) else None


def watch_transforms(dataset: Any) -> list[Callable[[], None]]:
    """Have the classes of a dataset's transforms tell the time that they take; return what undoes it."""
    undo = []
    for transform in transforms_of(dataset):
        kind, name = type(transform), method_of(transform)
        if name is not None and not hasattr(getattr(kind, name), "_goodput_timed"):
            undo.append(_time_method(kind, name))
    return undo


def _time_method(kind: Any, name: str) -> Callable[[], None]:
    original, inherited = getattr(kind, name), name not in vars(kind)

    @functools.wraps(original)
    def timed(*arguments: Any, **named: Any) -> Any:
        watch: Watch | None = getattr(making, "watch", None)
        if watch is None or watch.inside:  # no batch is made here; or a transform is one of another's
            return original(*arguments, **named)
        watch.begin_transform()
        try:
            return original(*arguments, **named)
        finally:
            watch.end_transform()

    def undo() -> None:
        if vars(kind).get(name) is timed:
            if inherited:
                delattr(kind, name)
            else:
                setattr(kind, name, original)

    timed._goodput_timed = True  # type: ignore[attr-defined]
    setattr(kind, name, timed)
    return undo


# --- workers of PyTorch's DataLoader ----------------------------------------------------------------------------------


class WorkerLoop:
    """Stands for PyTorch's ``_worker_loop``, the function that worker processes run, and runs it.

    Args:
        original: that function.
        places: where its parameters are, by name.
    """

    def __init__(self, original: Callable[..., None], places: Mapping[str, int]) -> None:
        self.original, self.places = original, places
        functools.update_wrapper(self, original)

    def __call__(self, *arguments: Any) -> None:
        run(self.original, self.places, getattr(_current, "table", None), arguments)

    def __reduce__(self) -> Any:
        # A worker that is spawned has not replaced the function.
        return Spawned, (dict(self.places), getattr(_current, "table", None))


class Spawned:
    """The same in a process that was spawned."""

    def __init__(self, places: Mapping[str, int], table: Any) -> None:
        self._places, self._table = places, table

    def __call__(self, *arguments: Any) -> None:
        worker: Any = import_module("torch.utils.data._utils.worker")
        loop = worker._worker_loop
        run(getattr(loop, "original", loop), self._places, self._table, arguments)


def starting(table: Any) -> None:
    """Have the workers that this thread starts write into `table`; None: they are not timed."""
    _current.table = table


def run(loop: Callable[..., None], places: Mapping[str, int], table: Any, arguments: tuple[Any, ...]) -> None:
    """Run the loop of a worker with what times it."""
    if table is not None:
        try:
            arguments = _timed(places, table, arguments)
        except Exception:
            pass
    loop(*arguments)


def _timed(places: Mapping[str, int], table: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    given = list(arguments)
    watch = Watch(memoryview(table).cast("B").cast("q"), given[places["worker_id"]])
    for name, kind in (("index_queue", Tasks), ("data_queue", Results)):
        given[places[name]] = kind(given[places[name]], watch)
    given[places["collate_fn"]] = Collate(given[places["collate_fn"]], watch)
    holder = given[places["dataset_holder"]] if "dataset_holder" in places else [given[places["dataset"]]]
    watch_transforms(holder[0])
    making.watch = watch
    return tuple(given)
