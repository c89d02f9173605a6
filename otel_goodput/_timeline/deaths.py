"""Which process of several ended first: a launcher ends the others when one of them has crashed.

The journal of each process tells when it gave its last sign of life, whether a signal had been announced to it, and
whether an exception ended its job. Whoever was sent a signal was ended by somebody. If that holds for some, and another
one ended without, that one crashed, and its launcher ended the rest. If it holds for all, the scheduler did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._journal import records
from otel_goodput._journal.rundir import ListedRun, RunDirectory
from otel_goodput.semconv import Reason

MOST_PROCESSES: Final = 256  # whose journals are read
MOST_ATTEMPTS: Final = 10  # the latest, for which they are
# A process that does nothing gives a sign of life every second: deaths closer than this have no order.
APART_NS: Final = 2_000_000_000
RAISED_NS: Final = 100_000_000  # an exception tells its moment, but clocks of machines differ


class Death(NamedTuple):
    """How a process ended in an attempt.

    Attributes:
        process: its index.
        sign: its last sign of life, ns.
        announced: a signal or a notice had announced it.
        clean: its job had ended without an error.
        failed: an exception ended its job.
    """

    process: int
    sign: int
    announced: bool
    clean: bool
    failed: bool


class Culprit(NamedTuple):
    """Why an attempt ended, as its processes tell together.

    Attributes:
        reason: why.
        process: index of the process that ended first; None if somebody ended all of them, or if that is not known.
        known: which process ended first, or that somebody ended all of them.
    """

    reason: str
    process: int | None
    known: bool = True


def culprits(run: RunDirectory, history: Sequence[Disruption]) -> dict[int, Culprit]:
    """Return why the latest disruptions came, by the number of the attempt that each began (from 1).

    Only of jobs of several processes, and only of ends that no platform announced.
    """
    processes = run.processes()
    by_attempt: dict[int, Culprit] = {}
    if len(processes) < 2:
        return by_attempt
    run = ListedRun(run.path)
    few = len(processes) <= MOST_PROCESSES
    for entry in history[-MOST_ATTEMPTS:]:
        if entry.attempt is None or entry.reason not in (Reason.SIGNAL, Reason.CRASH):
            continue
        ends = (_death(run, process, entry.attempt - 2) for process in processes) if few else ()
        deaths = [death for death in ends if death is not None]
        several = len(deaths) > 1
        known = culprit(deaths, entry.reason) if several else Culprit(entry.reason, None, known=False)
        by_attempt[entry.attempt] = known
    return by_attempt


def culprit(deaths: Iterable[Death], reason: str) -> Culprit:
    """Return why several processes ended; `reason` is what the leader's journal alone tells."""
    ended = sorted((one for one in deaths if not one.clean), key=lambda one: one.sign)
    crashed = [one for one in ended if not one.announced]
    if not crashed:
        return Culprit(reason, None)
    failed = [one for one in crashed if one.failed]
    first, *others = failed or crashed
    if len(failed) == 1 or not others:
        return Culprit(Reason.CRASH, first.process)
    apart = others[0].sign - first.sign > (RAISED_NS if failed else APART_NS)
    return Culprit(Reason.CRASH, first.process if apart else None, known=apart)


def _death(run: RunDirectory, process: int, attempt: int) -> Death | None:
    """Read how a process ended in an attempt (from 0) from its last segment; None if it left none."""
    segments = run.segments(process, attempt, lambda *_: None)
    if not segments:
        return None
    try:
        events = list(records.decode_events(segments[-1].contents().data, records.Names()))
    except (OSError, EOFError, ValueError):
        return None
    sign, announced, clean, failed = 0, False, False, False
    for event in events:
        sign = max(sign, event.time)
        if event.kind == ev.NOTICE:
            announced = not event.flags & ev.WITHDRAWN
        elif event.kind == ev.START and event.phase == rules.JOB:
            clean = failed = False
        elif event.kind == ev.END and event.phase == rules.JOB:
            failed = bool(event.flags & ev.FAILED)
            clean = not failed
    return Death(process, sign, announced, clean and not announced, failed)
