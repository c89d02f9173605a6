"""Checks a run's journal: whether the next start continues the run, and how its steps were timed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from otel_goodput._journal.notes import UNMARKED, Note, read_notes
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput._timeline.recovery import Restored, restore
from otel_goodput._tools.doctor.findings import Finding, ok, warning
from otel_goodput.reports.doubts import dispatch_only
from otel_goodput.semconv import ClockState


def check(run: RunDirectory, process: int, *, renewable: bool) -> Iterator[Finding]:
    """Yield what should be known about `run` before its job starts again; `process` is the index of the process.

    `renewable`: as in `Config`.
    """
    name = run.called()
    restored = restore(run, process)
    if (note := restored.damages.note()) is not None:
        yield warning("run", f"run {name!r}: {note.text}", "check the disk; `report` shows details")
    if restored.attempt < 0:
        yield ok("run", f"run {name!r} has no journal of process {process} yet")
        return
    attempt = restored.attempt + 1
    if run.alive(restored.attempt, process):
        yield warning(
            "run",
            f"run {name!r} is being written by a living process (pid "
            f"{run.lock(restored.attempt, process).holder() or 'unknown'}), attempt {attempt}",
            "nothing to do if this is the job you mean; another job of this name records a separate run until this one "
            "ends. Give each run its own id (OTEL_GOODPUT_RUN_ID)",
        )
    else:
        yield _stopped(name, attempt, restored, renewable=renewable)
    yield from _measured(name, restored, read_notes(run, process))


def _stopped(name: str, attempt: int, restored: Restored, *, renewable: bool) -> Finding:
    cursor = restored.ledger.settled
    since = (time.time_ns() - restored.last_sign) / NS
    if since < -60:
        return warning(
            "run",
            f"run {name!r} has a last sign of life {format_duration(-since)} in the future",
            "correct the machines' clocks",
        )
    ago = format_duration(max(0.0, since))
    if cursor.ended and cursor.clean:
        ended = f"run {name!r} ended {ago} ago after {attempt} attempt{'s' if attempt != 1 else ''}; "
        if renewable:
            return ok("run", f"{ended}the next job without a run id starts a new run")
        return warning(
            "run",
            f"{ended}the next job with this id continues it, and the time between counts as infrastructure recovery",
            "to start a new run, set a new id (OTEL_GOODPUT_RUN_ID, run_id=)",
        )
    return ok(
        "run",
        f"run {name!r} stopped {ago} ago in attempt {attempt} without ending its job; the next start continues it "
        f"(`otel-goodput recover` exports its remaining spans without a restart)",
    )


def _measured(name: str, restored: Restored, notes: Collection[Note]) -> Iterator[Finding]:
    """Yield which clock timed the latest steps, and whether that is plausible."""
    totals = restored.ledger.totals(restored.last_sign)
    if not totals.started:
        return
    answer = totals.to_json()
    if totals.clock == ClockState.UNKNOWN:
        unmarked = " and ".join(note.kind[len(UNMARKED) :].strip() for note in notes if note.kind.startswith(UNMARKED))
        yield warning(
            "run",
            f"run {name!r}: the end of the latest steps on the device is not known"
            f"{f' ({unmarked} cannot be marked)' if unmarked else ''}: where such steps are more than 1 "
            "% of the time, goodput, shares, step times and the progress at risk are not known",
            "pass an output of each step that is not donated, as with goodput.observe(loss); or, if the loop itself "
            f"waits for the device, set {Settings.device_clock.variable}=host",
        )
    elif totals.clock == ClockState.DEVICE:
        yield ok("run", f"run {name!r} has exact step times, measured on the device")
    elif dispatch_only(answer):
        yield warning(
            "run",
            f"the steps of run {name!r} take {format_duration(answer['step_time']['median_s'])} of the "
            f"{format_duration(answer['step_cadence_s'])} from one to the next, and it is not known when the device "
            "was done: if the step only dispatches work (as JAX does), the device's time counts as whatever the "
            "host waits in",
            "wait for the result inside the step, as with jax.block_until_ready(loss); if the steps really are that "
            "short, ignore this",
        )
    else:
        yield ok("run", f"the steps of run {name!r} were timed on the host, and no work ran on a device")
