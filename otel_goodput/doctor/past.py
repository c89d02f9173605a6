"""What a run's journal says about the next start of its job, and about how its steps were measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from otel_goodput import records
from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.doctor.findings import OK, WARNING, Finding
from otel_goodput.recovery import Restored, restore
from otel_goodput.report.text import duration
from otel_goodput.rundir import RunDirectory

NS: Final = 1_000_000_000
SEGMENTS: Final = 2  # the latest ones tell how steps are measured
ENOUGH: Final = 20  # steps
# Spans of steps that take less than this share of the time from one step to the next were hardly the steps themselves.
SHARE: Final = 0.1


def check(run: RunDirectory, process: int) -> Iterator[Finding]:
    """What there is to know of `run` before its job starts again."""
    name = str(run.identity().get("run_id", run.path.name))
    restored = restore(run, process)
    if restored.attempt < 0:
        yield Finding(OK, "run", f"run {name!r} has no journal of process {process} yet")
        return
    attempt = restored.attempt + 1
    if run.alive(restored.attempt, process):
        yield Finding(
            WARNING,
            "run",
            f"run {name!r} is being written by a living process (pid "
            f"{run.lock(restored.attempt, process).holder() or 'unknown'}), attempt {attempt}",
            "nothing, if that is the job you mean; another job of this name would record a run of its own until the "
            "first one ends. Give each run its own id (OTEL_GOODPUT_RUN_ID)",
        )
    else:
        yield _stopped(name, attempt, restored)
    yield from _measured(name, run, process, restored.attempt)


def _stopped(name: str, attempt: int, restored: Restored) -> Finding:
    cursor = restored.ledger.settled
    since = (time.time_ns() - restored.last_sign) / NS
    if since < -60:
        return Finding(
            WARNING,
            "run",
            f"run {name!r} left its last sign of life {duration(-since)} in the future",
            "set the clocks of the machines right",
        )
    ago = duration(max(0.0, since))
    if cursor.ended and cursor.clean:
        return Finding(
            WARNING,
            "run",
            f"run {name!r} ended {ago} ago after {attempt} attempt{'s' if attempt != 1 else ''}; a job that starts "
            f"with this id goes on with it, and the time between counts as infrastructure recovery",
            "for a new run give a new id (OTEL_GOODPUT_RUN_ID, run_id=)",
        )
    return Finding(
        OK,
        "run",
        f"run {name!r} stopped {ago} ago in attempt {attempt} without ending its job; the next start goes on with it "
        f"(`otel-goodput recover` exports what it left open without one)",
    )


class Pace(NamedTuple):
    """How steps follow each other, medians in ns: what their spans take, and the time from one to the next."""

    span: float
    cadence: float


def _measured(name: str, run: RunDirectory, process: int, attempt: int) -> Iterator[Finding]:
    pace = measured_pace(run, process, attempt)
    if pace is None or pace.span >= SHARE * pace.cadence:
        return
    yield Finding(
        WARNING,
        "run",
        f"the steps of run {name!r} take {duration(pace.span / NS)} of the {duration(pace.cadence / NS)} from one to "
        f"the next, and nothing tells when the device was done: if the step only hands work to it (JAX does), the "
        f"device's time is counted as whatever the host waits in",
        "wait for the result inside the step, as with jax.block_until_ready(loss); if the steps are that short, all is "
        "well",
    )


def measured_pace(run: RunDirectory, process: int, attempt: int) -> Pace | None:
    """The pace of the latest steps of an attempt; None where there are few, or where their device ends are known."""
    begun: dict[int, tuple[int, int]] = {}  # span id: step, time
    spans: list[int] = []
    starts: list[tuple[int, int]] = []
    for segment in run.segments(process, attempt)[-SEGMENTS:]:
        try:
            found = list(records.decode_segment(segment.data(), records.Names()))
        except (OSError, EOFError, ValueError):
            continue
        for record in found:
            if record.kind in (ev.OBSERVED, ev.DEVICE_END):
                return None
            if record.kind == ev.START and record.phase == rules.STEP:
                begun[record.key] = (record.step, record.time)
                starts.append((record.step, record.time))
            elif record.kind == ev.END and record.key in begun and not record.flags & ev.FAILED:
                spans.append(record.time - begun.pop(record.key)[1])
    gaps = [later - earlier for (n, earlier), (m, later) in pairwise(starts) if m == n + 1]
    if len(spans) < ENOUGH or len(gaps) < ENOUGH:
        return None
    return Pace(statistics.median(spans), statistics.median(gaps))
