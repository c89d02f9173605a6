"""Finds the disruption that an entry of a log explains: by its time, and by the machine, node or pod that it names.

**Time.** An entry matches a disruption from a margin before the last sign of life until the next job start. The margin
is needed because a job lives on after a notice for as long as it is given (30 s of a Spot VM, 30 s of a pod by
default), and because clocks differ. An entry inside an outage matches that one, even if it is in the margin of another;
within two margins, it matches the earlier outage. An order (stopping or deleting a machine) matches only within the
margin around the last sign of life: a machine whose job has crashed is often stopped long before the next attempt.

**Names.** If the journal has what an attempt ran on, an entry about another machine, node or pod does not match. One
process of a job is enough: what ends one of them ends all. If some process left no names, the entry may be about that
one, so it matches, but by time only.
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

# Names that are never given again, not even to a replacement: they decide alone.
_UNIQUE: Final = (K8S_POD_UID, HOST_ID)
_NAMED: Final = (K8S_POD_NAME, K8S_NODE_NAME, SLICE_NAME, HOST_NAME)
_AROUND: Final = (CLOUD_ACCOUNT_ID, CLOUD_AVAILABILITY_ZONE, K8S_NAMESPACE_NAME)  # within which the others are unique


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
        names: of each process of the attempt that died and left names.
        complete: whether all its processes left names.
    """

    attempt: int
    died: int
    began: int
    names: tuple[Names, ...]
    complete: bool


class Match(NamedTuple):
    """An entry that explains a disruption; `by_name`: it names what the attempt ran on."""

    outage: Outage
    entry: Entry
    at: int
    by_name: bool


def outages(run: RecordedRun, losses: Iterable[Loss]) -> list[Outage]:
    """Return the outages of a run; `losses` are the disruptions that attempts began with, in their order."""
    between = []
    earlier = 1  # the latest attempt that is known to have run before
    for loss in losses:
        if loss.attempt is None or loss.died < 0 or loss.time <= 0:
            continue
        names, complete = _names(run, range(earlier, loss.attempt))
        between.append(Outage(loss.attempt, min(loss.died, loss.time), loss.time, names, complete))
        earlier = loss.attempt
    return between


def _names(run: RecordedRun, attempts: Sequence[int]) -> tuple[tuple[Names, ...], bool]:
    """Return what the processes of these attempts (from 1) ran on, and whether all of them left that."""
    names: list[Names] = []
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
            size = resource.get(PROCESS_COUNT)
            if isinstance(size, int):
                count = max(count, min(size, MOST))
            names.append(resource)
            processes.add(process)
    return tuple(names), len(processes) >= count


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
    likenesses = {likeness(entry.names, process) for process in outage.names}
    if Likeness.SAME in likenesses:
        return Likeness.SAME
    return Likeness.OTHER if outage.complete and likenesses == {Likeness.OTHER} else Likeness.UNKNOWN


def matches(entries: Iterable[Entry], among: Sequence[Outage], margin: int) -> list[Match]:
    """Return which disruptions the entries explain, each entry for every time it has; `margin` is in ns."""
    explained: list[Match] = []
    for entry in entries:
        by_attempt: dict[int, Match] = {}
        for at in entry.times:
            inside = [one for one in among if one.died <= at <= one.began]
            near = inside[-1:] or [one for one in among if one.died - margin <= at < one.died]
            for outage in near[:1]:
                if entry.evidence.prompt and at > outage.died + margin:
                    continue
                alike = _of(entry, outage)
                if alike != Likeness.OTHER:
                    by_attempt[outage.attempt] = Match(outage, entry, at, alike == Likeness.SAME)
        explained += by_attempt.values()
    return explained


def best(matches: Iterable[Match]) -> dict[int, Match]:
    """Return the best entry for each attempt: by name before by time, then the strongest, then the first."""
    chosen: dict[int, Match] = {}
    for one in matches:
        if one.entry.evidence.reason is None:
            continue
        held = chosen.get(one.outage.attempt)
        if held is None or _weight(one) > _weight(held):
            chosen[one.outage.attempt] = one
    return chosen


def _weight(one: Match) -> tuple[bool, int, int]:
    return one.by_name, one.entry.evidence.strength, -one.at
