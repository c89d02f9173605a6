"""Where the time of PyTorch's DataLoaders goes: for which stage of a batch training waited, and in which worker.

A batch is timed where it is made (``loader_worker.py``). The thread that gets it knows from when to when it waited:
what was done for the batch meanwhile is what it waited for, and the rest of its making was hidden behind steps.
Datasets, samplers and functions of the user's stay as they are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from multiprocessing.sharedctypes import RawArray
from time import monotonic_ns
from typing import Any, Final

from otel_goodput._integrations.loader_worker import (
    FIELDS,
    MADE,
    NUMBER,
    SINCE,
    TRANSFORMED,
    Collate,
    Watch,
    WorkerLoop,
    making,
    method_of,
    starting,
    transforms_of,
    watch_transforms,
)
from otel_goodput._integrations.wrapping import Done, wrap
from otel_goodput._journal.loader_times import OWN_WORKER, shares_of
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

SITE: Final = "loader stages"
LEAST: Final = 16  # batches for which a table has room
MOST: Final = 4096
# Parameters that PyTorch's function for workers is known by; and one of these, with the dataset.
_KNOWN: Final = ("index_queue", "data_queue", "collate_fn", "worker_id")
_DATASETS: Final = ("dataset_holder", "dataset")
_PASS: Final = "_goodput_pass"  # member of PyTorch's iterators
Undo = Callable[[], None]


def install(tracer: PhaseTracer) -> Undo | None:
    """Time the stages of DataLoaders whose passes begin from now on. Return what ends it, None while not ready."""
    module: Any = sys.modules["torch.utils.data.dataloader"]
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if getattr(module.__spec__, "_initializing", False) or worker is None:
        return None
    version = getattr(sys.modules.get("torch"), "__version__", "")
    problem = _problem(module, worker)
    if problem:
        logger.info("the stages of DataLoaders of PyTorch %s are not timed: %s", version, problem)
        return lambda: None
    timing = Timing(tracer, module, worker)
    logger.info("the stages of PyTorch's DataLoaders are timed (PyTorch %s)", version)
    return timing.remove


def _problem(module: Any, worker: Any) -> str:
    """Return what is not as it is known of PyTorch's private classes; empty if all is."""
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        for method in ("__init__", "_next_data"):
            if not inspect.isfunction(getattr(getattr(module, name, None), method, None)):
                return f"there is no {name}.{method}"
    loop = getattr(worker, "_worker_loop", None)
    if not inspect.isfunction(loop):
        return "_worker_loop is another's" if loop is not None else "there is no _worker_loop"
    names = list(inspect.signature(loop).parameters)
    lacking = [name for name in _KNOWN if name not in names]
    if lacking or not any(name in names for name in _DATASETS):
        return f"_worker_loop takes {', '.join(names)}"
    return ""


class Timing:
    """What is attached to PyTorch's classes."""

    def __init__(self, tracer: PhaseTracer, module: Any, worker: Any) -> None:
        self._tracer, self._worker = tracer, worker
        self._transforms: list[Undo] = []
        self._loop: Any = worker._worker_loop
        places = {name: at for at, name in enumerate(inspect.signature(self._loop).parameters)}
        self._standing = worker._worker_loop = WorkerLoop(self._loop, places)
        several, single = module._MultiProcessingDataLoaderIter, module._SingleProcessDataLoaderIter
        self._undo = [
            wrap(several, "__init__", self._begin_workers, SITE),
            _time_next(several),
            wrap(single, "__init__", self._begin_alone, SITE),
            _time_next(single),
        ]

    def remove(self) -> None:
        """Detach; workers that run go on as they are."""
        while self._undo:
            self._undo.pop()()
        while self._transforms:
            self._transforms.pop()()
        if self._worker._worker_loop is self._standing:
            self._worker._worker_loop = self._loop
        starting(None)

    def _begin_workers(self, this: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Done:
        loader = given[0] if given else named["loader"]
        begun = monotonic_ns()
        ahead = 2 * loader.num_workers * (loader.prefetch_factor or 1)
        table = RawArray("q", FIELDS * max(LEAST, min(MOST, ahead)))
        self._look_at(loader.dataset)
        starting(table)

        def done(_: Any, error: BaseException | None) -> None:
            starting(None)
            if error is None:
                view = memoryview(table).cast("B").cast("q")  # quicker than the array itself
                vars(this)[_PASS] = Pass(self._tracer, view, begun, workers=True)

        return done

    def _begin_alone(self, this: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Done:
        loader = given[0] if given else named["loader"]
        begun = monotonic_ns()

        def done(_: Any, error: BaseException | None) -> None:
            if error is not None:
                return
            self._look_at(loader.dataset)
            self._transforms += watch_transforms(loader.dataset)
            batches = Pass(self._tracer, [0] * FIELDS, begun, workers=False)
            this._dataset_fetcher = Fetcher(this._dataset_fetcher, batches)
            vars(this)[_PASS] = batches

        return done

    def _look_at(self, dataset: Any) -> None:
        if any(method_of(one) is None for one in transforms_of(dataset)):
            self._tracer.hooks.stages.merged = True


def _time_next(kind: Any) -> Undo:
    """Have a class of PyTorch's iterators time how long its batches are waited for; for each batch, so it is short."""
    original = kind._next_data

    @wraps(original)
    def timed(this: Any) -> Any:
        batches: Pass | None = this.__dict__.get(_PASS)
        if batches is None:
            return original(this)
        try:
            batches.ask(this)
        except Exception as error:
            contain(SITE, error)
        data = original(this)
        try:
            batches.got(this)
        except Exception as error:
            contain(SITE, error)
        return data

    def undo() -> None:
        if vars(kind).get("_next_data") is timed:
            kind._next_data = original

    kind._next_data = timed
    return undo


class Pass:
    """One pass over a loader, or several if its workers stay.

    Args:
        tracer: the recorder.
        table: of the records of batches, by number.
        begun: when it began, ns.
        workers: processes of their own make the batches.
    """

    def __init__(self, tracer: PhaseTracer, table: Any, begun: int, *, workers: bool) -> None:
        self._tracer, self.table = tracer, table
        self._rooms = len(table) // FIELDS
        self._workers = workers
        self._starting = monotonic_ns() - begun
        # When the thread asked for a batch, which one it will be, and how long transforms had taken for it by then.
        self._began = self._wanted = self._before = 0
        self._pending: frozenset[int] | None = None  # batches that may come, if they come in any order

    def ask(self, iterator: Any) -> None:
        """A thread asks for the next batch."""
        self._wanted = number = iterator._rcvd_idx if self._workers else 0
        if self._workers and not getattr(iterator, "_in_order", True):
            self._pending = frozenset(iterator._task_info)
        self._began = now = monotonic_ns()
        table, at = self.table, number % self._rooms * FIELDS
        if table[at + NUMBER] != number + 1 or table[at + MADE]:
            self._before = 0
            return
        since = table[at + SINCE]
        self._before = table[at + TRANSFORMED] + (max(0, now - since) if since else 0)

    def got(self, iterator: Any) -> None:
        """The batch is there."""
        ended, began, tracer = monotonic_ns(), self._began, self._tracer
        trains = tracer.blocks(None)
        if trains and not tracer.spans.loading():
            return  # an evaluation's, or of a loop whose loads nobody records
        number = self._number(iterator) if self._workers else 0
        worker, record = OWN_WORKER, None
        table, at = self.table, number % self._rooms * FIELDS
        if table[at] == number + 1:
            _, begun, gathered, made, transformed, _, worker = table[at : at + FIELDS]
            record = begun, gathered, made, transformed, self._before if number == self._wanted else 0
        if not trains:
            began = ended  # another thread waits, so training need not
        exposed, hidden = shares_of(began, ended, record)
        if self._starting and trains:
            *others, queue = exposed
            exposed, self._starting = (*others, queue + self._starting), 0
        tracer.hooks.stages.take(worker, exposed, hidden)

    def _number(self, iterator: Any) -> int:
        """Return the number of the batch that came last."""
        pending, self._pending = self._pending, None
        if pending is None:
            return int(iterator._rcvd_idx) - 1
        gone = pending.difference(iterator._task_info)
        made = [number for number in gone if self.table[number % self._rooms * FIELDS] == number + 1]
        return made[0] if made else -1


class Fetcher:
    """Stands for PyTorch's fetcher in a pass without workers."""

    def __init__(self, fetcher: Any, batches: Pass) -> None:
        self._fetcher = fetcher
        self._watch = watch = Watch(batches.table, OWN_WORKER)
        fetcher.collate_fn = Collate(fetcher.collate_fn, watch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, index: Any) -> Any:
        watch = self._watch
        before = getattr(making, "watch", None)  # a dataset may itself have a loader
        making.watch = watch
        watch.begin(0)
        try:
            data = self._fetcher.fetch(index)
        finally:
            making.watch = before
        watch.end()
        return data
