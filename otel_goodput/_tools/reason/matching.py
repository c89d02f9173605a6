"""Which disruption an entry of a log tells of: by its time, and by what it happened to.

**Time.** An entry counts for a disruption from a margin before the last sign of life until the next job start. It does
begin before the last sign: a job lives on after a notice for as long as it is given (30 s of a Spot VM, 30 s of a pod,
unless its owner gives it more), and clocks differ. An entry in the outage itself counts for that one, whatever margin
of another it is in; within two margins, for the outage that comes first. What
is asked for (stopping or deleting a machine) counts only within the margin of the last sign of life, before or after:
a machine whose job has crashed is often stopped long before the next attempt.

**Names.** If what an attempt ran on is known beside its journal, an entry of another machine, node or pod does not
count. Of a job of several processes one is enough: what ends one of them ends all. If some process left no names, the
entry may be about that one, so it counts, and is said to match by its time only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.overview import Loss
from otel_goodput._journal.rundir import MOST, ListedRun
from otel_goodput._tools.reason.logs import Entry
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import (
    CLOUD_ACCOUNT_ID,
    CLOUD_AVAILABILITY_ZONE,
    HOST_ID,
    HOST_NAME,
    K8S_NAMESPACE_NAME,
    K8S_NODE_NAME,
    K8S_POD_NAME,
    K8S_POD_UID,
    PROCESS_COUNT,
    SLICE_NAME,
)

Names = Mapping[str, Any]  # attributes of the resource of one process

# Names that are given once, and not again to what takes its place: they decide alone.
_UNIQUE: Final = (K8S_POD_UID, HOST_ID)
_NAMED: Final = (K8S_POD_NAME, K8S_NODE_NAME, SLICE_NAME, HOST_NAME)
_AROUND: Final = (CLOUD_ACCOUNT_ID, CLOUD_AVAILABILITY_ZONE, K8S_NAMESPACE_NAME)  # within which those are unique


class Likeness(IntEnum):
    """Whether an entry is about what an attempt ran on."""

    OTHER = 0
    UNKNOWN = 1
    SAME = 2


class Outage(NamedTuple):
    """The time between two attempts.

    Attributes:
        attempt: number of the one that began after it, from 1.
        died, began: the last sign of life and the next job start, ns since the epoch.
        names: of each process of the attempt that died that left some.
        complete: all its processes did.
    """

    attempt: int
    died: int
    began: int
    names: tuple[Names, ...]
    complete: bool


class Match(NamedTuple):
    """An entry that tells of a disruption; `by_name`: what it happened to is what the attempt ran on."""

    outage: Outage
    entry: Entry
    at: int
    by_name: bool


def outages(run: RecordedRun, losses: Iterable[Loss]) -> list[Outage]:
    """Return the outages of a run; `losses` are the disruptions that attempts began with, in their order."""
    found = []
    earlier = 1  # the latest attempt that is known to have run before
    for loss in losses:
        if loss.attempt is None or loss.died < 0 or loss.time <= 0:
            continue
        names, complete = _names(run, range(earlier, loss.attempt))
        found.append(Outage(loss.attempt, min(loss.died, loss.time), loss.time, names, complete))
        earlier = loss.attempt
    return found


def _names(run: RecordedRun, attempts: Sequence[int]) -> tuple[tuple[Names, ...], bool]:
    """Return what the processes of these attempts (from 1) ran on, and whether all of them left that."""
    found: list[Names] = []
    processes: set[int] = set()
    folder = run.folder
    there = folder.there if isinstance(folder, ListedRun) else set(folder.processes())
    count = max(1, run.count)
    for attempt in attempts:
        for process in sorted(there | {0}):
            facts = run.facts(attempt - 1, process)
            if facts is None:
                continue
            resource = facts.resource
            told = resource.get(PROCESS_COUNT)
            if isinstance(told, int):
                count = max(count, min(told, MOST))
            found.append(resource)
            processes.add(process)
    return tuple(found), len(processes) >= count


def likeness(entry: Names, process: Names) -> Likeness:
    """Compare the names in an entry with those of one process."""
    if any(_differ(entry, process, key) for key in _AROUND):
        return Likeness.OTHER
    for key in _UNIQUE:
        if key in entry and key in process:
            return Likeness.SAME if entry[key] == str(process[key]) else Likeness.OTHER
    for key in _NAMED:
        if key not in entry or key not in process:
            continue
        if _short(key, entry[key]) == _short(key, str(process[key])):
            return Likeness.SAME
        # A process in a container calls its container its host: only where the machine is known that is its name.
        if key != HOST_NAME or HOST_ID in process:
            return Likeness.OTHER
    return Likeness.UNKNOWN


def _differ(entry: Names, process: Names, key: str) -> bool:
    return key in entry and key in process and entry[key] != str(process[key])


def _short(key: str, name: str) -> str:
    return name.partition(".")[0] if key == HOST_NAME else name


def _of(entry: Entry, outage: Outage) -> Likeness:
    """Compare an entry with all processes of an attempt."""
    found = [likeness(entry.names, process) for process in outage.names]
    if Likeness.SAME in found:
        return Likeness.SAME
    return Likeness.UNKNOWN if not outage.complete or Likeness.UNKNOWN in found or not found else Likeness.OTHER


def matches(entries: Iterable[Entry], among: Sequence[Outage], margin: int) -> list[Match]:
    """Return the disruptions that entries tell of, each entry for every time it has; `margin` is in ns."""
    found: list[Match] = []
    for entry in entries:
        told: dict[int, Match] = {}
        for at in entry.times:
            inside = [one for one in among if one.died <= at <= one.began]
            near = inside[-1:] or [one for one in among if one.died - margin <= at < one.died]
            for outage in near[:1]:
                if entry.tells.prompt and at > outage.died + margin:
                    continue
                alike = _of(entry, outage)
                if alike != Likeness.OTHER:
                    told[outage.attempt] = Match(outage, entry, at, alike == Likeness.SAME)
        found += told.values()
    return found


def best(found: Iterable[Match]) -> dict[int, Match]:
    """Return for each attempt the entry that tells most: by name before by time, then the surest, then the first."""
    chosen: dict[int, Match] = {}
    for one in found:
        if one.entry.tells.reason is None:
            continue
        held = chosen.get(one.outage.attempt)
        if held is None or _weight(one) > _weight(held):
            chosen[one.outage.attempt] = one
    return chosen


def _weight(one: Match) -> tuple[bool, int, int]:
    return one.by_name, one.entry.tells.strength, -one.at
