"""Times the stages of Grain's pipelines, in the process that trains and in Grain's worker processes.

Each of Grain's transformations tells its statistics when it works on an element itself; these are off unless a user
wants them. In their place stand some that add up how long each stage has taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from time import monotonic_ns
from typing import Any, Final, Protocol, cast

STATS: Final = "grain._src.python.dataset.stats"
WORKERS: Final = "grain._src.python.dataset.transformations.process_prefetch"
_FETCH, _TRANSFORM, _COLLATE = range(3)
STAGES: Final = 3
# By the module of a transformation; others pass elements on.
_STAGES: Final = {
    "grain._src.python.data_loader": _FETCH,
    "grain._src.python.dataset.transformations.source": _FETCH,
    "grain._src.python.dataset.transformations.map": _TRANSFORM,
    "grain._src.python.dataset.transformations.filter": _TRANSFORM,
    "grain._src.python.dataset.transformations.flatmap": _TRANSFORM,
    "grain._src.python.dataset.transformations.batch": _COLLATE,
}
Got = Callable[[int], None]  # an element left the pipeline, which took so long, ns


class Spending(Protocol):
    """Is told what a thread does; moments and times in ns."""

    def begin(self, stage: int, now: int) -> None: ...

    def end(self, stage: int, took: int) -> None: ...  # of itself, without what it called


# Of a worker: elements that it has made, time by stage, the stage it is in plus 1 (0: in none), and since when.
ELEMENTS, IN, SINCE = 0, 1 + STAGES, 2 + STAGES
FIELDS: Final = 3 + STAGES


def position(table: Sequence[int], now: int) -> list[int]:
    """Return the elements of a worker and its time by stage up to now."""
    figures = list(table)
    if stage := figures[IN]:
        figures[stage] += max(0, now - figures[SINCE])
    return figures[: 1 + STAGES]


_inside: Final = threading.local()  # `.spent`: ns of what has ended inside of the transformation that works
_starting: Final = threading.local()  # `.table`: of the worker that this thread starts


class Working:
    """While a transformation works on an element."""

    __slots__ = ("_around", "_begun", "_more", "_spent", "_stage")

    def __init__(self, stage: int, spent: Spending, more: int) -> None:
        self._stage, self._spent, self._more = stage, spent, more
        self._around = self._begun = 0

    def __enter__(self) -> None:
        self._around, _inside.spent = getattr(_inside, "spent", 0), 0
        self._begun = now = monotonic_ns()
        self._spent.begin(self._stage, now)

    def __exit__(self, *_: object) -> None:
        took = monotonic_ns() - self._begun + self._more
        own = max(0, took - _inside.spent)
        _inside.spent = self._around + took
        self._spent.end(self._stage, own)


class Timing:
    """What is attached to Grain's statistics: `spent` and `got` are told from any thread.

    Raises AttributeError if they are not as they are known.
    """

    def __init__(self, spent: Spending, got: Got) -> None:
        self._module = module = cast(Any, import_module(STATS))
        self._make, self._histogram = module.make_stats, module._next_duration_ns_histogram
        kind = _timed(module._DefaultStats, spent)
        make, default = self._make, module._DefaultStats

        def make_stats(config: Any, parents: Any, *arguments: Any, **named: Any) -> Any:
            made = make(config, parents, *arguments, **named)
            return kind(config, parents) if type(made) is default else made

        self._standing = module.make_stats = make_stats
        self._durations = module._next_duration_ns_histogram = Durations(self._histogram, got)

    def remove(self) -> None:
        if self._module.make_stats is self._standing:
            self._module.make_stats = self._make
        if self._module._next_duration_ns_histogram is self._durations:
            self._module._next_duration_ns_histogram = self._histogram


class Durations:
    """Stands for Grain's histogram of how long the end of a pipeline takes for an element."""

    def __init__(self, original: Any, got: Got) -> None:
        self._original, self._got = original, got

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def Record(self, duration: int, *arguments: Any) -> None:
        self._got(duration)
        self._original.Record(duration, *arguments)


def _timed(default: Any, spent: Spending) -> Any:
    plain = default.record_self_time

    class TimedStats(default):  # type: ignore[misc]
        """In place of Grain's statistics that do nothing."""

        def record_self_time(self, *, num_elements: int = 1, offset_ns: int = 0) -> Any:
            stage = vars(self).get("_goodput_stage")
            if stage is None:
                stage = self._goodput_stage = self._stage()
            return Working(stage, spent, offset_ns) if stage >= 0 else plain(self)

        def _stage(self) -> int:
            reference = self._config.iter_weakref
            owner = None if reference is None else reference()
            return _STAGES.get(type(owner).__module__, -1)

        def __reduce__(self) -> Any:
            return default, (self._config, self._parents)

    return TimedStats


# --- worker processes -------------------------------------------------------------------------------------------------


def starting(table: Any) -> None:
    """Have the worker that this thread starts write into `table`: elements, and ns by stage; None: it is not timed."""
    _starting.table = table


class WorkerTarget:
    """Stands for the function that Grain's worker processes run."""

    def __init__(self, original: Callable[..., None]) -> None:
        self.original = original

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.original(*arguments, **named)

    def __reduce__(self) -> Any:
        return Spawned, (getattr(_starting, "table", None),)


class Spawned:
    """The same in the process that was spawned."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __call__(self, *arguments: Any, **named: Any) -> None:
        if self._table is not None:
            try:
                write_into(self._table)
            except Exception:
                pass
        target: Any = import_module(WORKERS)._put_dataset_elements_in_buffer
        getattr(target, "original", target)(*arguments, **named)


class _Writing:
    def __init__(self, view: Any) -> None:
        self.view, self._adding = view, threading.Lock()

    def begin(self, stage: int, now: int) -> None:
        view = self.view
        view[SINCE], view[IN] = now, 1 + stage

    def end(self, stage: int, took: int) -> None:
        view = self.view
        with self._adding:
            view[IN] = 0
            view[1 + stage] += took

    def made(self, _: int) -> None:
        with self._adding:
            self.view[ELEMENTS] += 1


def write_into(table: Any) -> Timing:
    """Add up the times of this process in `table`."""
    writing = _Writing(memoryview(table).cast("B").cast("q"))
    return Timing(writing, writing.made)
