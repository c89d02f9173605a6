"""The run of a job of several ranks that step together, by events; one of them is slow for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.long_run import BEGIN, MS, NS, write_process
from otel_goodput._accounting import Event, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.own_time import OwnTime
from otel_goodput._accounting.stragglers import Stragglers
from otel_goodput._journal.facts import SIDECAR
from otel_goodput._journal.job_waits import JobWaits, write_waits
from otel_goodput._journal.own_times import write_own_times
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import HOST_NAME, PROCESS_COUNT

FIRST_KEY: Final = 0xAB54A98CEB1F0A00
LOAD_MS: Final = 60
STEP_MS: Final = 920
HOSTS: Final = 4  # ranks a host
WINDOW: Final = 30 * NS  # in which own times are compared


class Slow(NamedTuple):
    """Steps in which a rank takes longer to load."""

    rank: int
    first: int
    last: int
    load_ms: int


def step_together(
    ranks: int,
    steps: int,
    slow: Sequence[Slow] = (),
    *,
    dies_in: int | None = None,
    back: int = 0,
    saves: int = 0,
    ends: bool = False,
) -> list[list[Event]]:
    """What each rank records: a step is over everywhere when the last rank has begun it and all have worked.

    All ranks die in the step `dies_in`, if that is given, and go on so many steps before, or not, if it `ends`. The
    leader saves every `saves` steps.
    """
    chance = random.Random(ranks)
    recorded: list[list[Event]] = [[] for _ in range(ranks)]
    at, keys = [BEGIN + rank * MS for rank in range(ranks)], [FIRST_KEY + (rank << 32) for rank in range(ranks)]

    def phase(rank: int, of: int, length: int) -> Iterator[Event]:
        keys[rank] += 1
        yield Event(at[rank], ev.START, of, keys[rank])
        at[rank] += length
        yield Event(at[rank], ev.END, of, keys[rank])

    attempt = 0
    jobs = list[int]()

    def begin() -> None:
        jobs[:] = [key + 1 for key in keys]
        for rank in range(ranks):
            keys[rank] += 1
            recorded[rank] += [
                Event(at[rank], ev.ATTEMPT, step=attempt),
                Event(at[rank], ev.START, rules.JOB, jobs[rank]),
            ]
            recorded[rank] += phase(rank, rules.PHASE_INDEX["training_prep"], 4 * NS)

    begin()
    numbers = [*range(steps)]
    if dies_in is not None:
        numbers = [*range(dies_in + 1), *range(dies_in - back, steps)]
    for place, number in enumerate(numbers):
        dies = dies_in is not None and place == dies_in
        for rank in range(ranks):
            load = LOAD_MS + chance.randrange(20)
            load = next((one.load_ms for one in slow if one.rank == rank and one.first <= number < one.last), load)
            recorded[rank] += phase(rank, rules.DATA_LOADING, load * MS)
            keys[rank] += 1
            recorded[rank].append(Event(at[rank], ev.START, rules.STEP, keys[rank], number))
        done = max(at) + (STEP_MS + chance.randrange(5)) * MS
        for rank in range(ranks):
            at[rank] = done
            if dies:
                recorded[rank].append(Event(done - NS // 2, ev.HEARTBEAT))
                at[rank] += 30 * NS
            else:
                recorded[rank].append(Event(done, ev.END, rules.STEP, keys[rank], number))
        if dies and ends:
            return recorded
        if dies:
            attempt += 1
            begin()
        elif saves and number % saves == saves - 1:
            keys[0] += 1
            save = Event(at[0], ev.START, rules.SAVE, keys[0], number)
            at[0] += NS
            recorded[0] += [save, Event(at[0], ev.END, rules.SAVE, keys[0])]
    for rank in range(ranks):
        recorded[rank].append(Event(at[rank], ev.END, rules.JOB, jobs[rank]))
    return recorded


def ranks_run(
    directory: Path,
    ranks: int,
    steps: int,
    slow: Sequence[Slow] = (),
    *,
    host: str = "n",
    name: str = "ranks",
    **how: Any,
) -> RunDirectory:
    """The run; `host`: how the names of hosts begin; for the rest see :func:`step_together`."""
    run = RunDirectory(directory / name)
    run.create({"run_id": name, "job_name": name, "created_at": BEGIN / NS, "process_count": ranks})
    for rank, events in enumerate(step_together(ranks, steps, slow, **how)):
        write_rank(run, rank, events, [ranks] * 10, host=host)
    return run


def write_rank(run: RunDirectory, rank: int, events: Sequence[Event], sizes: Sequence[int], *, host: str = "n") -> None:
    """Write what one rank leaves; `sizes`: how many ranks each attempt has."""
    write_process(run, rank, events)
    for begun in (one for one in events if one.kind == ev.ATTEMPT):
        content = SIDECAR.encode(
            attempt=begun.step,
            process=rank,
            started_at=begun.time,
            program="train.py",
            resource={HOST_NAME: f"{host}{rank // HOSTS}", PROCESS_COUNT: sizes[begun.step]},
            versions={},
            settings={},
            hyperparameters={},
            dropped={},
            exporters={},
            scheduling={},
            compile_cache={},
        )
        run.file("facts", begun.step, rank).write_bytes(content)


def with_own_times(run: RunDirectory, ranks: int, windows: int, slow: Mapping[int, tuple[int, int]]) -> RunDirectory:
    """Give a run what its leader would have left of own times; `slow`: from and up to which window a rank is."""
    stragglers, samples = Stragglers(WINDOW), 120
    stragglers.look(BEGIN, 0, dict.fromkeys(range(ranks), OwnTime()))
    waited = [0] * ranks
    for number in range(1, windows + 1):
        held_up = any(first < number <= last for first, last in slow.values())
        for rank in range(ranks):
            first, last = slow.get(rank, (0, 0))
            waited[rank] += 40 if held_up and not first < number <= last else 2
        whole = number * samples
        own = {rank: OwnTime(whole, whole, waits, 0, number * WINDOW, 0) for rank, waits in enumerate(waited)}
        assert stragglers.look(BEGIN + number * WINDOW, number * 30, own) is not None
    run.of_job.create(run.identity())
    assert write_own_times(run.of_job, stragglers.times())
    return run


def with_records(run: RunDirectory) -> RunDirectory:
    """Give a run the job's own records, as its leader would have left them."""
    report = RecordedRun(run).report(events=True)
    assert report.ranks is not None and report.ranks.events
    own = run.of_job
    own.create(run.identity())
    write_process(own, 0, report.ranks.events)
    write_waits(own, JobWaits(report.ranks.ranks, True, report.totals.at, report.ranks.costs))
    return run
