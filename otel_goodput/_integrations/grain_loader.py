"""Where the time of Grain's pipelines goes: for which stage of a batch training waited, and in which worker.

What is done on the training thread is what training waits for. While it waits for a worker process, that is what the
worker does meanwhile; while it waits for threads, what all of them do, each stage by its share in that.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import RawArray
from time import monotonic_ns
from typing import Any, Final
from weakref import WeakKeyDictionary

from otel_goodput._integrations.grain_worker import (
    FIELDS,
    STAGES,
    WORKERS,
    Durations,
    Timing,
    WorkerTarget,
    position,
    starting,
)
from otel_goodput._integrations.wrapping import Done, wrap
from otel_goodput._journal.loader_times import OWN_WORKER
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

SITE: Final = "loader stages of Grain"
PREFETCH: Final = "grain._src.python.dataset.transformations.prefetch"


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Time pipelines that begin from now on. Return what ends it, None while Grain is still being imported."""
    workers, prefetch = sys.modules.get(WORKERS), sys.modules.get(PREFETCH)
    if prefetch is None or any(getattr(one.__spec__, "_initializing", False) for one in (workers, prefetch) if one):
        return None
    version = getattr(sys.modules.get("grain"), "__version__", "")
    try:
        timing = GrainTiming(tracer, workers, prefetch)
    except (AttributeError, ImportError) as error:
        logger.info("the stages of Grain %s are not timed: %s", version, error)
        return lambda: None
    logger.info("the stages of Grain's pipelines are timed (Grain %s)", version)
    return timing.remove


class _Worker:
    """A worker process: what it has done, and how much of that is counted."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.table = RawArray("q", FIELDS)
        self._view = memoryview(self.table).cast("B").cast("q")
        self._counted = [0] * (1 + STAGES)

    def position(self) -> list[int]:
        return position(self._view.tolist(), monotonic_ns())

    def news(self) -> list[int]:
        """Return what it has done since the last call: elements, and ns by stage."""
        now, before = self.position(), self._counted
        self._counted = now
        return _since(now, before)


class _Threads:
    """What threads do that do not train."""

    number = OWN_WORKER

    def __init__(self) -> None:
        self._sums = [0] * (1 + STAGES)
        self._adding = threading.Lock()
        self._working: dict[int, tuple[int, int]] = {}  # by thread: the stage that it is in, and since when
        self._counted = [0] * (1 + STAGES)

    def begin(self, stage: int, now: int) -> None:
        self._working[threading.get_ident()] = 1 + stage, now

    def end(self, stage: int, took: int) -> None:
        with self._adding:
            self._sums[1 + stage] += took
            self._working.pop(threading.get_ident(), None)

    def position(self) -> list[int]:
        sums, now = list(self._sums), monotonic_ns()
        for stage, since in list(self._working.values()):
            sums[stage] += max(0, now - since)
        return sums

    def news(self) -> list[int]:
        now, before = self.position(), self._counted
        self._counted = now
        return _since(now, before)


def _since(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [max(0, one - other) for one, other in zip(now, before, strict=True)]


class _Own(threading.local):
    """Of one thread, while it makes a batch or waits for one."""

    def __init__(self) -> None:
        self.times = [0] * STAGES  # that it has spent itself
        self.waits: tuple[_Worker | _Threads, list[int]] | None = None  # for whom, and how far that was
        self.ends: list[tuple[int, int]] = []  # begins and lengths of pipelines that have given an element


class GrainTiming:
    """What is attached to Grain."""

    def __init__(self, tracer: PhaseTracer, workers: Any, prefetch: Any) -> None:
        self._tracer, self._module, self._prefetch = tracer, workers, prefetch
        self._own = _Own()
        self._threads = _Threads()
        self._workers: WeakKeyDictionary[Any, _Worker] = WeakKeyDictionary()  # by the iterator that has it
        iterator, self._target = workers.ProcessPrefetchDatasetIterator, workers._put_dataset_elements_in_buffer
        self._ready, _ = prefetch._prefetch_ready_elements, iterator.start_prefetch
        self._timing = Timing(self, self._got)
        self._standing = workers._put_dataset_elements_in_buffer = WorkerTarget(self._target)
        # Grain tells how many elements are ready before it waits for the next one.
        self._depths = prefetch._prefetch_ready_elements = Durations(self._ready, self._wait_for_threads)
        self._undo = wrap(iterator, "start_prefetch", self._start, SITE)

    def remove(self) -> None:
        self._undo()
        if self._module._put_dataset_elements_in_buffer is self._standing:
            self._module._put_dataset_elements_in_buffer = self._target
        if self._prefetch._prefetch_ready_elements is self._depths:
            self._prefetch._prefetch_ready_elements = self._ready
        self._timing.remove()

    # --- what is done -------------------------------------------------------------------------------------------------

    def begin(self, stage: int, now: int) -> None:
        if not self._tracer.blocks(None):
            self._threads.begin(stage, now)

    def end(self, stage: int, took: int) -> None:
        if self._tracer.blocks(None):
            self._own.times[stage] += took
        else:
            self._threads.end(stage, took)

    # --- what is waited for -------------------------------------------------------------------------------------------

    def _wait_for_threads(self, _: int) -> None:
        if self._tracer.blocks(None):
            self._own.waits = self._threads, self._threads.position()

    def _start(self, this: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Done | None:
        """An iterator is asked for an element; the first time it starts its worker."""
        worker = self._workers.get(this)
        if this._prefetch_process is None:
            taken = {one.number for one in self._workers.values()}
            number = next(one for one in range(len(taken) + 1) if one not in taken)
            self._workers[this] = worker = _Worker(number)
            starting(worker.table)
        if worker is not None and self._tracer.blocks(None):
            self._own.waits = worker, worker.position()
        return lambda _, __: starting(None)

    def _got(self, duration: int) -> None:
        try:
            if self._tracer.blocks(None):
                self._take(duration)
        except Exception as error:
            contain(SITE, error)

    def _take(self, duration: int) -> None:
        """The end of a pipeline has given an element to training, which took so long, ns."""
        tracer, own, now = self._tracer, self._own, monotonic_ns()
        times, own.times = own.times, [0] * STAGES
        waits, own.waits = own.waits, None
        inner, begin = 0, now - duration
        count = 1
        while own.ends and own.ends[-1][0] >= begin:  # pipelines inside of this one have told of their part
            inner += own.ends.pop()[1]
            count -= 1
        own.ends = [*own.ends[-1:], (begin, duration)]
        rest = max(0, duration - inner - sum(times))
        sources: list[_Worker | _Threads] = [self._threads, *list(self._workers.values())]
        news = [(source, source.news()) for source in sources]
        if not tracer.spans.loading():
            return  # an evaluation's, or of a loop whose loads nobody records
        queue = True
        for source, (elements, *done) in news:
            waited = [0] * STAGES
            if waits is not None and source is waits[0]:
                _, *during = _since(source.position(), waits[1])
                all_of_it = max(1, sum(during))
                waited = [min(one, rest * one // all_of_it) for one in during]
                queue = source is self._threads or not waits[1][0]  # a worker that has made nothing yet had to start
                rest -= sum(waited)
            hidden = [max(0, one - share) for one, share in zip(done, waited, strict=True)]
            if source is not self._threads and (elements or any(waited) or any(hidden)):
                tracer.hooks.stages.take(source.number, (*waited, 0, 0), (*hidden, 0, 0), elements)
            elif source is self._threads:
                times = [one + share for one, share in zip(times, waited, strict=True)]
                behind = hidden
        others = (0, rest) if queue else (rest, 0)
        batches = 0 if len(sources) > 1 else count
        tracer.hooks.stages.take(OWN_WORKER, (*times, *others), (*behind, 0, 0), batches)
