"""The run of a job of several ranks that step together, by events; one of them is slow for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.long_run import BEGIN, MS, NS, write_process
from otel_goodput._accounting import Event, rules
from otel_goodput._accounting import events as ev
from otel_goodput._journal.facts import SIDECAR
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.semconv import HOST_NAME, PROCESS_COUNT

FIRST_KEY: Final = 0xAB54A98CEB1F0A00
LOAD_MS: Final = 60
STEP_MS: Final = 920
HOSTS: Final = 4  # ranks a host


class Slow(NamedTuple):
    """Steps in which a rank takes longer to load."""

    rank: int
    first: int
    last: int
    load_ms: int


def step_together(ranks: int, steps: int, slow: Sequence[Slow] = ()) -> list[list[Event]]:
    """What each rank records: a step is over everywhere when the last rank has begun it and all have worked."""
    chance = random.Random(ranks)
    recorded: list[list[Event]] = [[] for _ in range(ranks)]
    at, keys = [BEGIN + rank * MS for rank in range(ranks)], [FIRST_KEY + (rank << 32) for rank in range(ranks)]

    def phase(rank: int, of: int, length: int) -> Iterator[Event]:
        keys[rank] += 1
        yield Event(at[rank], ev.START, of, keys[rank])
        at[rank] += length
        yield Event(at[rank], ev.END, of, keys[rank])

    for rank in range(ranks):
        recorded[rank] += [Event(at[rank], ev.ATTEMPT, step=0), Event(at[rank], ev.START, rules.JOB, keys[rank])]
        recorded[rank] += phase(rank, rules.PHASE_INDEX["training_prep"], 4 * NS)
    for number in range(steps):
        for rank in range(ranks):
            load = LOAD_MS + chance.randrange(20)
            load = next((one.load_ms for one in slow if one.rank == rank and one.first <= number < one.last), load)
            recorded[rank] += phase(rank, rules.DATA_LOADING, load * MS)
            keys[rank] += 1
            recorded[rank].append(Event(at[rank], ev.START, rules.STEP, keys[rank], number))
        done = max(at) + (STEP_MS + chance.randrange(5)) * MS
        for rank in range(ranks):
            at[rank] = done
            recorded[rank].append(Event(done, ev.END, rules.STEP, keys[rank], number))
    for rank in range(ranks):
        recorded[rank].append(Event(at[rank], ev.END, rules.JOB, FIRST_KEY + (rank << 32)))
    return recorded


def ranks_run(
    directory: Path, ranks: int, steps: int, slow: Sequence[Slow] = (), *, host: str = "n", name: str = "ranks"
) -> RunDirectory:
    """The run; `host`: how the names of hosts begin."""
    run = RunDirectory(directory / name)
    run.create({"run_id": name, "job_name": name, "created_at": BEGIN / NS, "process_count": ranks})
    for rank, events in enumerate(step_together(ranks, steps, slow)):
        write_process(run, rank, events)
        path = run.file("facts", 0, rank)
        path.write_bytes(
            SIDECAR.encode(
                attempt=0,
                process=rank,
                started_at=BEGIN,
                program="train.py",
                resource={HOST_NAME: f"{host}{rank // HOSTS}", PROCESS_COUNT: ranks},
                versions={},
                settings={},
                hyperparameters={},
                dropped={},
                exporters={},
                scheduling={},
                compile_cache={},
            )
        )
    return run
