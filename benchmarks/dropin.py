"""The drop-in against ml-goodput-measurement itself: the same program, what a call costs, and what a refresh does."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from benchmarks import rival, table
from benchmarks.rounds import Samples, Worker, serve
from benchmarks.table import Row

STEPS = 2_000  # of the loop whose calls are timed
CALLS = 3  # a step: a data load's start and end, and the step's start
REFRESHES = 20
AHEAD_S = 60.0  # more than all steps that refreshes add
BACKFILLED = 1_000_000_000  # ns from one step to the next


def _ours(steps: int, stack: ExitStack) -> Any:
    """A recorder and the function that refreshes, after `steps` backfilled steps."""
    os.environ["OTEL_GOODPUT_DIR"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
    os.environ["OTEL_GOODPUT_EXPORTERS"] = "none"
    import otel_goodput.compat

    otel_goodput.compat.install()
    from datetime import datetime, timezone

    from ml_goodput_measurement import goodput

    recorder = goodput.GoodputRecorder("benchmark", "goodput_benchmark", True)
    begin = time.time() - steps - 1

    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(begin + seconds, timezone.utc)

    recorder.record_job_start_time(at(0))
    for step in range(steps):
        recorder.record_data_loading_start_time(at(step + 0.01))
        recorder.record_data_loading_end_time(at(step + 0.06))
        recorder.record_step_start_time(step, at(step + 0.07))
        if step % 1_000 == 999:
            recorder.flush()  # else it would be chance how far the keeper lags behind such a loop
    recorder.flush()
    calculator = goodput.GoodputCalculator("benchmark", "goodput_benchmark")
    return recorder, lambda: calculator.get_job_goodput(include_badput_breakdown=True)


def _theirs(steps: int, stack: ExitStack) -> Any:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
    # In the past: each refresh adds a step of a second, and it refuses steps that are not over yet.
    monitored = rival.Monitored(steps, directory, time.time() - AHEAD_S)
    monitored.refresh()
    recorder = rival.recorder()

    def refresh() -> None:
        monitored.record()  # nothing new is answered from a cache
        monitored.refresh()

    return recorder, refresh


def main() -> None:
    """Serves measurements of ours or theirs, as the command line says, after so many steps."""
    whose, steps = sys.argv[1], int(sys.argv[2])
    with ExitStack() as stack:
        recorder, refresh = (_ours if whose == "ours" else _theirs)(steps, stack)
        number = steps

        def answer() -> dict[str, float]:
            nonlocal number
            began = time.perf_counter()
            for step in range(number, number + STEPS):
                recorder.record_data_loading_start_time()
                recorder.record_data_loading_end_time()
                recorder.record_step_start_time(step)
            spent = time.perf_counter() - began
            number += STEPS
            recorder.flush()
            times = REFRESHES if whose == "ours" else 2
            began = time.perf_counter()
            for _ in range(times):
                refresh()
            return {"call": spent / STEPS / CALLS, "refresh": (time.perf_counter() - began) / times}

        serve(answer)


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    """Rounds over both, in turn, each in a process that stays."""
    sizes = (1_000, 10_000) if fast else (1_000, 10_000, 100_000)
    rounds = 3 if fast else 7
    group = "The drop-in for ml-goodput-measurement, the same program"
    if not rival.installed():
        return [Row(group, "ml-goodput-measurement", "", rival.MISSING)]
    with ExitStack() as stack:
        workers = {
            (whose, size): stack.enter_context(Worker("dropin", whose, size))
            for size in sizes
            for whose in ("ours", "theirs")
        }
        for _ in range(rounds):
            for (whose, size), worker in workers.items():
                answer = worker.ask()
                samples.add(f"drop-in call: {whose} {size}", answer["call"], loops=STEPS * CALLS)
                samples.add(f"drop-in refresh: {whose} {size}", answer["refresh"])
    rows = []
    first = sizes[0]
    for what, name in (("call", "`record_…_time()`, a call"), ("refresh", "`get_job_goodput()`")):
        for size in sizes if what == "refresh" else (first,):
            theirs, ours = f"drop-in {what}: theirs {size}", f"drop-in {what}: ours {size}"
            after = f", {size:,} steps" if what == "refresh" else ""
            rows.append(
                Row(group, f"ml-goodput-measurement, {name}{after}", "1×", table.seconds(samples.median(theirs)))
            )
            rows.append(
                Row(
                    group, f"the drop-in, {name}{after}", table.compared(samples.ratios(ours, theirs)),
                    table.seconds(samples.median(ours)),
                )
            )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
