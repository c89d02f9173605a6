"""What training waited for in its data loaders, for a report: as JSON, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from otel_goodput._journal.loader_times import OWN_WORKER, AttemptLoader, WorkerTimes, added
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration, percent
from otel_goodput.reports.fields import LoaderFields, LoaderStageFields, LoaderWorkerFields
from otel_goodput.semconv import LOADER_STAGES, Category, LoaderStage

SHOWN: Final = 64  # workers in JSON, those that training waited for most
MOSTLY: Final = 0.5  # of the waiting: a stage, or a worker, that has less of it is not called its cause
SLOWER: Final = 1.5  # times what a batch takes other workers: one that is not so much slower is as they are
WORTH: Final = 0.02  # of the elapsed time
_MADE: Final = LOADER_STAGES[:3]  # stages whose time depends on the worker


class _Who(NamedTuple):
    rank: int
    times: WorkerTimes


def to_json(loaders: Sequence[AttemptLoader], seconds: Mapping[str, Any], elapsed: float) -> LoaderFields | None:
    """Return the field ``loader`` of a report whose time is `elapsed`, s, by category; None if nothing was timed."""
    everyone = _workers(loaders)
    if not everyone:
        return None
    exposed, hidden = added(one.times for one in everyone)
    of_workers: list[LoaderWorkerFields] = [
        {
            "rank": one.rank,
            "worker": None if one.times.worker == OWN_WORKER else one.times.worker,
            "batches": one.times.batches,
            "stages": _stages(one.times.exposed, one.times.hidden),
        }
        for one in sorted(everyone, key=lambda one: -sum(one.times.exposed))[:SHOWN]
    ]
    stage = cause_of(exposed)
    slow = None if stage is None else slow_worker([one.times for one in everyone], stage)
    rest = elapsed - seconds.get(Category.DATA_LOADING, 0.0)
    return {
        "batches": sum(one.times.batches for one in everyone),
        "waited_s": sum(exposed) / NS,
        "stages": _stages(exposed, hidden),
        "workers": of_workers,
        "waits_in": stage,
        "slow_rank": None if slow is None else everyone[slow.place].rank,
        "slow_worker": None if slow is None else everyone[slow.place].times.worker,
        "slow_batch_s": None if slow is None else slow.own / NS,
        "usual_batch_s": None if slow is None else slow.others / NS,
        "merged": any(one.merged for one in loaders),
        "ideal_goodput": seconds.get(Category.PRODUCTIVE, 0.0) / rest if rest > 0 else None,
    }


def _workers(loaders: Sequence[AttemptLoader]) -> list[_Who]:
    """Return the workers of all ranks, each with its times of all attempts."""
    known: dict[tuple[int, int], WorkerTimes] = {}
    for process, _, workers, _ in loaders:
        for one in workers:
            before = known.get((process, one.worker))
            known[process, one.worker] = one if before is None else before.plus(one)
    return [_Who(rank, times) for (rank, _), times in sorted(known.items())]


def _stages(exposed: Sequence[int], hidden: Sequence[int]) -> dict[str, LoaderStageFields]:
    times = zip(LOADER_STAGES, exposed, hidden, strict=True)
    return {stage: {"exposed_s": waited / NS, "hidden_s": behind / NS} for stage, waited, behind in times}


def cause_of(exposed: Sequence[int]) -> str | None:
    """Return the stage that has most of the waiting; None if none has."""
    most = max(exposed)
    return LOADER_STAGES[exposed.index(most)] if most > MOSTLY * sum(exposed) else None


class SlowWorker(NamedTuple):
    """A worker that needs longer for a stage of a batch than others: its place among them, and times, ns."""

    place: int
    own: float
    others: float


def slow_worker(workers: Sequence[WorkerTimes], stage: str) -> SlowWorker | None:
    """Return the worker for which training waits because it is slow in `stage`; None if it is not one worker.

    All workers finish at about the same time, so training waits mostly for the first of them even if all are alike.
    Hence what counts is how long a batch takes each.
    """
    if stage not in _MADE:
        return None
    at = LOADER_STAGES.index(stage)
    means = [(one.exposed[at] + one.hidden[at]) / max(1, one.batches) for one in workers]
    of_workers = [place for place, one in enumerate(workers) if one.worker != OWN_WORKER and one.batches]
    if len(of_workers) < 2:
        return None
    slowest = max(of_workers, key=lambda place: means[place])
    others = median(means[place] for place in of_workers if place != slowest)
    waited = sum(one.exposed[at] for one in workers)
    if means[slowest] < SLOWER * others or workers[slowest].exposed[at] <= MOSTLY * waited:
        return None
    return SlowWorker(slowest, means[slowest], others)


def section(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the loader's time went."""
    loader = report.get("loader")
    if not loader:
        return
    stages, waited = loader["stages"], loader["waited_s"]
    parts = [
        f"{name} {percent(one['exposed_s'], waited)}"
        for name, one in sorted(stages.items(), key=lambda item: -item[1]["exposed_s"])
        if waited and one["exposed_s"] >= WORTH * waited
    ]
    hidden = sum(one["hidden_s"] for one in stages.values())
    behind = f"; another {format_duration(hidden)} was hidden behind steps" if hidden else ""
    what = f": {', '.join(parts)}" if parts else ""
    yield f"  data loader  training waited {format_duration(waited)}{what}{behind}"
    if text := waits(report):
        yield f"    {text}"
    if loader["merged"]:
        yield "    transforms that are plain functions are part of fetch"


def waits(report: Mapping[str, Any]) -> str:
    """Return in which stage training waits, in which worker, and the goodput without; empty if that is not worth it."""
    loader = report.get("loader")
    if not loader or report["goodput"] is None or loader["ideal_goodput"] is None:
        return ""
    lost = report["seconds"].get(Category.DATA_LOADING, 0.0)
    if lost < WORTH * report["elapsed_s"]:
        return ""
    ideal = f"with an ideal loader: goodput {percent(loader['ideal_goodput'], 1)}"
    if loader["waits_in"] is None:
        return ideal
    doing = {LoaderStage.QUEUE: "for workers to begin", LoaderStage.TRANSFER: "for batches to come from workers"}
    where = doing.get(loader["waits_in"], f"in {loader['waits_in']}")
    if loader["slow_worker"] is not None:
        of = f" of rank {loader['slow_rank']}" if "ranks" in report else ""
        own, others = (format_duration(loader[name]) for name in ("slow_batch_s", "usual_batch_s"))
        where += f" on worker {loader['slow_worker']}{of} ({own} a batch, others {others})"
    return f"waiting {where}; {ideal}"
