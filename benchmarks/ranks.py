"""What merging the journals of all ranks takes: `otel-goodput report --exact` of a job whose ranks step together."""

from __future__ import annotations

import multiprocessing
import random
import resource
import tempfile
import time
from pathlib import Path

from benchmarks import table
from benchmarks.rounds import Samples, once, serve
from benchmarks.table import Row
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import following
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.records import EXPORT, HEADER_SIZE, LOADING, SIZE, STEPPING, decode_header, used
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.ranks import read_job

BEGIN = 1_795_000_000 * 10**9  # ns
MS = 1_000_000  # ns
EXPORTED = 1_000  # steps from one that is exported to the next
EVENTS_OF_STEP = 4  # starts and ends of a data load and a step
RANKS, STEPS = 512, 100_000  # of the job that is to be merged in
TARGET_S = 60.0
LONGER = 3  # times as many steps, which take as much memory:
GROWTH = 1.2  # times that, at most
KIB = 1024


class _Rank:
    """One rank, which records by its journal; of steps on the `device`, their ends there, too."""

    def __init__(self, run: RunDirectory, rank: int, now: int, *, device: bool) -> None:
        self.device = device
        self.run, self.journal, self.rank, self.now = run, Journal(0, rank, Segment(None)), rank, now
        self.job, self.key = 1 + rank, random.Random(rank).getrandbits(60)
        self.journal.append(ev.ATTEMPT, 0, 0, 0, 0, 0, now)
        self.journal.append(ev.START, rules.JOB, 0, 0, self.job, ev.NO_STEP, now)
        self.journal.append(ev.START, rules.DATA_LOADING, 0, 0, self.key, 0, now)

    def begin(self, number: int, now: int) -> None:
        if not number:
            self.journal.append(ev.END, rules.DATA_LOADING, 0, 0, self.key, ev.NO_STEP, now)
            self.journal.append(ev.START, rules.STEP, 0, 0, following(self.key), number, now)
        elif number % EXPORTED and self.device:
            self.journal.append(STEPPING, 0, 0, 0, self.key, number, now)
        elif number % EXPORTED:
            self.journal.turn(self.key, number, now)
        else:
            self.journal.append(STEPPING, 1, 0, 0, self.key, number, now)
        self.key = following(self.key)

    def end(self, number: int, now: int) -> None:
        exported = EXPORT if not (number + 1) % EXPORTED else 0
        if self.device:
            # It is observed a moment after the loop has begun to load.
            self.journal.append(LOADING, 0, exported | ev.ON_DEVICE, 0, self.key, number + 1, now)
            self.journal.append(ev.DEVICE_END, rules.STEP, 0, 0, self.key, ev.NO_STEP, now - MS // 5)
        elif exported:
            self.journal.append(LOADING, 0, EXPORT, 0, self.key, number + 1, now)
        else:
            self.journal.leave_step(self.key, number + 1, now)
        self.key, self.now = following(self.key), now

    def close(self) -> None:
        self.journal.append(ev.END, rules.DATA_LOADING, 0, 0, self.key, ev.NO_STEP, self.now)
        self.journal.append(ev.END, rules.JOB, 0, 0, self.job, ev.NO_STEP, self.now)
        for segment in self.journal.segments:
            segment.read = used(segment.buffer)
            segment.beat(self.now)
            data = bytes(segment.buffer)
            path = self.run.segment_path(0, self.rank, decode_header(data).number)
            path.write_bytes(data[: HEADER_SIZE + used(data) * SIZE])
        self.run.lock(0, self.rank).path.touch()


def written(directory: Path, count: int, steps: int, device: bool = False) -> RunDirectory:
    """The journals of a job of `count` ranks, each of which was slow once in a while."""
    run, chance = RunDirectory(directory / "run"), random.Random(0)
    run.create({"run_id": "run", "job_name": "ranks", "created_at": BEGIN / 1e9, "process_count": count})
    ranks = [_Rank(run, rank, BEGIN + chance.randrange(50 * MS), device=device) for rank in range(count)]
    for number in range(steps):
        slow = chance.randrange(count)
        begins = [one.now + 2 * MS + chance.randrange(MS) + (8 * MS if one.rank == slow else 0) for one in ranks]
        done = max(begins) + 300 * MS + chance.randrange(20 * MS)
        for one, begin in zip(ranks, begins, strict=True):
            one.begin(number, begin)
            one.end(number, done + chance.randrange(MS // 10))
    for one in ranks:
        one.close()
    return run


def answer(ranks: int, steps: int) -> dict[str, float]:
    """Seconds of processor time that the account takes, with all that a report reads, and the peak of memory, bytes."""
    with tempfile.TemporaryDirectory(prefix="otel-goodput-bench-") as place:
        # Another process writes them, so that the peak is that of the report.
        writer = multiprocessing.get_context("spawn").Process(target=written, args=(Path(place), ranks, steps))
        writer.start()
        writer.join()
        began = time.process_time()
        job = read_job(RunDirectory(Path(place) / "run"), ranks)
        took = time.process_time() - began
    assert not isinstance(job, str) and job.waits.together and job.totals.kept == steps, job
    return {"merge": took, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB}


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    rounds, ranks, steps = (1, 16, 4_000) if fast else (3, 128, 20_000)
    for _ in range(rounds):
        for name, count in (("", steps), ("longer ", LONGER * steps)):
            measured = once("ranks", ranks=ranks, steps=count)
            samples.add(f"{name}merge", measured["merge"])
            samples.add(f"{name}merge memory", measured["memory"], "byte")
    each = samples.median("longer merge") / ranks / steps / LONGER
    whole = each * RANKS * STEPS
    group = "Journals of all ranks merged (`otel-goodput report --exact`): processor time and peak of memory"
    memory, longer = samples.median("merge memory"), samples.median("longer merge memory")
    count = LONGER * steps
    return [
        Row(
            group, f"starts and ends a second, {ranks} ranks of {count:,} steps", "",
            table.per_second(EVENTS_OF_STEP / each),
        ),
        Row(
            group, f"at that pace, {RANKS} ranks of {STEPS:,} steps", "", table.seconds(whole),
            f"≤ {table.seconds(TARGET_S)}", whole <= TARGET_S,
        ),
        Row(group, f"memory, {ranks} ranks of {steps:,} steps", "", table.mebibytes(memory)),
        Row(
            group, f"memory, {ranks} ranks of {count:,} steps", f"{longer / memory:.2f}×", table.mebibytes(longer),
            f"≤ {GROWTH}×", longer <= GROWTH * memory,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    serve(answer)
