"""Jobs of several ranks, simulated, and what each of their milliseconds belongs to, by looking at each one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any

from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.ranks import Piece, RankStep
from otel_goodput._accounting.rules import CATEGORY_INDEX, CUT_OUT, EXCLUDED_TIME, OTHER, RECOVERY, SUSPENDED_TIME

MS = 1_000_000
NEVER = 1 << 62
LOAD, SAVE, CUSTOM, INIT, COMPILE = (
    CATEGORY_INDEX[name]
    for name in ("data_loading", "checkpoint_save", "custom", "accelerator_init", "program_startup")
)
Owner = tuple[int, int, str, int, bool]  # step, category, name, rank (of no step's own time), whether the job waits


@dataclass
class SimulatedJob:
    """What each rank did, in ms; `groups`: for each step of the job, the begin and end on each rank that took part."""

    groups: list[tuple[int, dict[int, tuple[int, int]]]] = field(default_factory=list)
    steps: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    pieces: dict[int, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    # From the last sign of life to the restart.
    absences: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    # By index of the group that ended with it: when the first died.
    deaths: dict[int, int] = field(default_factory=dict)
    # When a step failed that one rank had not begun, in which all others hung: that rank, and when those had begun it.
    waits: list[tuple[int, int, list[int]]] = field(default_factory=list)
    tried: set[int] = field(default_factory=set)  # ranks in steps that failed so early since the latest group
    starts: list[tuple[int, int, int]] = field(default_factory=list)  # that failed: begin, end, rank
    joins: set[int] = field(default_factory=set)  # ranks that came later
    leaves: dict[int, int] = field(default_factory=dict)  # when ranks left for good
    slow: int = -1  # the rank with the slow loader
    delayed: int = 0  # the others by it, in all

    @property
    def end(self) -> int:
        """End of the last step."""
        last = len(self.groups) - 1
        return self.deaths.get(last, max(end for _, end in self.groups[last][1].values()))

    @property
    def reported(self) -> int:
        """When all has happened."""
        ends = (end for steps in self.steps.values() for _, _, end in steps)
        return max(*ends, *(back for absences in self.absences.values() for _, back in absences), self.end) + 100

    def without(self, rank: int) -> SimulatedJob:
        """What is known of an undisturbed job of which one rank left nothing."""
        groups = [
            (number, {one: times for one, times in group.items() if one != rank}) for number, group in self.groups
        ]
        others = {
            name: {one: value for one, value in getattr(self, name).items() if one != rank}
            for name in ("steps", "pieces", "begins", "absences", "leaves")
        }
        return replace(self, groups=[(number, group) for number, group in groups if group], **others)


def _crash(
    rng: random.Random, job: SimulatedJob, number: int, members: list[int], at: dict[int, int], began: dict[int, int]
) -> None:
    """One rank dies, in the step or before it begins that; the others hang in it until they are killed, too."""
    victim = rng.choice(members)
    early = len(members) > 1 and rng.random() < 0.3
    ready = max(begin for rank, begin in began.items() if not (early and rank == victim))
    death = max(at[victim], ready + rng.randrange(1, 40))
    if early:
        hangs = rng.randrange(200) if rng.random() < 0.5 else 0
        if hangs:
            job.pieces[victim].append((began[victim], began[victim] + hangs, rng.choice((LOAD, EXCLUDED_TIME)), ""))
        death = at[victim] = 1 + began.pop(victim) + hangs  # not when its step before ended
        if job.groups and (victim in job.groups[-1][1] or victim in job.tried):
            job.waits.append((death, victim, sorted(began.values())))
    group: dict[int, tuple[int, int]] = {}
    ends = {rank: death if rank == victim else max(death, ready, at[rank]) + rng.randrange(1, 60) for rank in members}
    for rank, end in ends.items():
        again = max(ends.values()) + rng.randrange(1, 90)
        job.absences[rank].append((end, again))
        if rank in began:
            group[rank] = began[rank], end
            job.steps[rank].append((number, began[rank], end))
        at[rank] = again
    missing = [rank for rank in job.begins if rank not in group and job.begins[rank] < death and not job.groups]
    if missing:  # of the first step of all, each of the others may be expected to take it
        others = sorted(begin for begin, _ in group.values()) if len(missing) == 1 else [NEVER]
        job.waits.append((death, min(missing), others))
    elif not early and death > max(begin for begin, _ in group.values()):
        job.deaths[len(job.groups)] = death
        job.groups.append((number, group))
        job.tried = set()
    job.tried |= began.keys() if early else set()


def _fail_to_start(rng: random.Random, job: SimulatedJob, number: int, members: list[int], at: dict[int, int]) -> None:
    """Once more, all are killed and restarted because one dies, when not all are back."""
    *present, last = sorted(members, key=lambda rank: at[rank])
    backs, victim = at.copy(), rng.choice(present)
    death = max(at[rank] for rank in present[: rng.randrange(present.index(victim), len(present)) + 1])
    death += rng.randrange(1, 40)
    if backs[last] <= death:
        backs[last] = death + rng.randrange(1, 40)
        job.absences[last][-1] = job.absences[last][-1][0], backs[last]
    ends: dict[int, int] = {}
    for rank in members:
        if backs[rank] >= death:
            ends[rank] = backs[rank] + rng.randrange(1, 30)
            continue
        init = rng.randrange(1 + death - backs[rank])
        job.pieces[rank] += [(backs[rank], backs[rank] + init, rng.choice((INIT, EXCLUDED_TIME)), "")] if init else []
        ends[rank] = death if rank == victim else death + rng.randrange(30)
        begun = backs[rank] + init + rng.randrange(3)
        if begun < death and rng.random() < 0.3:
            job.steps[rank].append((number, begun, ends[rank]))
    for rank, end in ends.items():
        at[rank] = max(ends.values()) + rng.randrange(1, 90)
        job.absences[rank].append((end, at[rank]))


def simulate(
    rng: random.Random, *, restarts: bool = False, counts: Sequence[int] = (2, 3, 4, 8, 16), slow_only: bool = False
) -> SimulatedJob:
    """A synchronous job: a step is at work once all ranks have begun it, and ends on all of them at about one time.

    Ranks join later, and leave for good. With `slow_only`, nothing but the loader of one rank makes the others wait.
    """
    count, job = rng.choice(counts), SimulatedJob()
    at = {rank: 0 if slow_only else rng.randrange(50) for rank in range(count)}
    job.begins = dict(at)
    job.steps = {rank: [] for rank in at}
    job.pieces = {rank: [] for rank in at}
    job.absences = {rank: [] for rank in at}
    idle = rng.randrange(count) if count > 2 and rng.random() < 0.3 else None  # opens no steps
    slow, saver, jitter = rng.randrange(count), rng.randrange(count), rng.choice((0, 1, 5))
    late = {rank: rng.randrange(20) for rank in at} if rng.random() < 0.3 else {}  # takes part later
    elastic = rng.random() < 0.3 and not restarts
    joins = {rank: rng.randrange(1, 20) for rank in at if elastic and rank and rng.random() < 0.3}  # comes later
    leaves = {rank: rng.randrange(5, 30) for rank in at if elastic and rank and rng.random() < 0.3}
    number, sudden = rng.randrange(5), rng.choice((0.0, 0.02))
    job.slow, often = slow, rng.choice((0.05, 0.7))
    cut = 0.0 if slow_only else rng.choice((0.0, 0.0, 0.2))  # time that ranks exclude, or are suspended

    def spend(rank: int, category: int, length: int, name: str = "") -> None:
        if length:
            job.pieces[rank].append((at[rank], at[rank] + length, category, name))
            at[rank] += length

    turns = rng.randrange(3, 40) if count <= 16 else rng.randrange(3, 10)
    for turn in range(turns):
        for rank in joins:
            if joins[rank] == turn:  # while the others are between two steps
                at[rank] = job.begins[rank] = 1 + max(at.values())
        members = [
            rank
            for rank in at
            if rank != idle and late.get(rank, 0) <= turn and joins.get(rank, 0) <= turn < leaves.get(rank, 40)
        ]
        if not members:
            continue
        began: dict[int, int] = {}
        pause = max(at[rank] for rank in members) + rng.randrange(1, 80) if cut and rng.random() < cut else 0
        for rank in members if pause else ():  # all of them at once
            spend(rank, EXCLUDED_TIME, pause - at[rank])
        for rank in members:
            if turn == late.get(rank, 0):
                spend(rank, INIT, 0 if slow_only else rng.randrange(30))
                # It takes part no earlier than the others are there.
                at[rank] = max(at[rank], *(1 + steps[-1][-1] for steps in job.steps.values() if steps), 0)
            delay = rng.randrange(80) if rank == slow and rng.random() < often else 0
            if rank == slow and rng.random() < sudden:
                delay += rng.randrange(3000)  # it hangs
            job.delayed += delay if len(members) > 1 else 0
            spend(rank, LOAD, rng.randrange(5) + delay)
            if rank == saver and rng.random() < 0.1 and not slow_only:
                spend(rank, SAVE, rng.randrange(100))
            if cut and rng.random() < cut:
                spend(rank, rng.choice((EXCLUDED_TIME, SUSPENDED_TIME)), rng.randrange(80))
            at[rank] += rng.randrange(3)  # of nobody
            began[rank] = at[rank]
        work = rng.randrange(1, 60)
        if restarts and 0 < turn < turns - 1 and rng.random() < 0.08:
            _crash(rng, job, number, members, at, began)
            while len(members) > 1 and rng.random() < 0.25:
                _fail_to_start(rng, job, number, members, at)
            number = max(0, number - rng.randrange(4))
            continue
        done = max(began.values())
        for rank in members:
            inside = rng.random() < 0.05 or (turn == 0 and rng.random() < 0.5)
            inside = inside or (cut and rng.random() < cut)
            if inside and not slow_only:  # what it does inside the step, before the others can go on
                at[rank] += rng.randrange(3)
                category = rng.choice((CUSTOM, COMPILE, SAVE, *(CUT_OUT if cut else ())))
                spend(rank, category, rng.randrange(1, 90), "evaluation" if category == CUSTOM else "")
            done = max(done, at[rank])
        done += work
        group: dict[int, tuple[int, int]] = {}
        for rank in members:
            at[rank] = done + rng.randrange(jitter + 1)
            group[rank] = began[rank], at[rank]
            job.steps[rank].append((number, began[rank], at[rank]))
        job.groups.append((number, group))
        job.tried = set()
        number += 1
        if rng.random() < 0.03:
            number = max(0, number - rng.randrange(1, 6))  # all ranks go back
    job.joins = {rank for rank in joins if job.steps[rank]}
    for rank in joins.keys() - job.joins:
        for known in (job.steps, job.pieces, job.begins, job.absences):
            del known[rank]  # the job was over before
    job.starts = _failed_starts(job)
    job.leaves = {rank: at[rank] for rank in leaves if job.steps.get(rank) and rank not in job.groups[-1][1]}
    return job


def every_millisecond(job: SimulatedJob) -> Counter[Owner]:
    """ms by owner, from the begin of the job to the end of its last step."""
    spent: Counter[Owner] = Counter()
    at = 0
    number, group = job.groups[at]
    since = min(job.begins.values())
    for moment in range(since, job.end):
        while moment >= (end := job.deaths.get(at, max(end for _, end in group.values()))):
            at, since = at + 1, end
            number, group = job.groups[at]
        spent[_owner(job, number, group, moment, since)] += 1
    return spent


def _failed_starts(job: SimulatedJob) -> list[tuple[int, int, int]]:
    """When ranks were back until one of them, which comes last, died again before all were: from the last one on."""
    starts: list[tuple[int, int, int]] = []
    died: dict[int, int] = {}  # since all were there, or the start before: when those ranks are back
    every = [(begin, end, rank) for rank, absences in job.absences.items() for begin, end in absences]
    for moment in sorted({begin for begin, _, _ in every}):
        if not any(begin < moment <= end for begin, end, _ in every):
            died.clear()
        for begin, end, rank in sorted(every, key=lambda one: one[2]):
            if begin != moment:
                continue
            if died.get(rank, moment) < moment:
                since = max(back for back in died.values() if back <= moment)
                if any(one <= since and moment < back for one, back, other in every if other != rank):
                    steps = [one for _, one, _ in job.steps[rank] if since <= one < moment]
                    starts.append((since, min([moment, *steps]), rank))
                died.clear()
            died[rank] = end
    return starts


def _owner(job: SimulatedJob, number: int, group: dict[int, tuple[int, int]], moment: int, since: int) -> Owner:
    *owner, waits = _owner_and_waits(job, number, group, moment, since)
    return *owner, waits and owner[1] not in CUT_OUT  # nobody is blamed for what is cut out


def _owner_and_waits(
    job: SimulatedJob, number: int, group: dict[int, tuple[int, int]], moment: int, since: int
) -> Owner:
    def doing(rank: int) -> tuple[int, int, int, str]:
        return next((piece for piece in job.pieces[rank] if piece[0] <= moment < piece[1]), (0, 0, OTHER, ""))

    begins = sorted((begin, rank) for rank, (begin, _) in group.items())
    begin, last = begins[-1]
    gone = [(back, -rank) for rank, all_ in job.absences.items() for died, back in all_ if died <= moment < back]
    start = next((one for one in job.starts if max(one[0], since) <= moment < min(one[1], begin)), None)
    if start is not None:
        _, _, category, name = doing(start[2])
        return NO_STEP, category, name, start[2], False
    if moment < begin and gone:
        return NO_STEP, RECOVERY, "", -max(gone)[1], 2 * len(gone) <= len(job.begins) > 1
    hung = next((one for one in job.waits if since <= moment < one[0] < begin), None)
    if moment < begin and hung is not None:
        _, rank, others = hung
        _, _, category, name = doing(rank)
        return NO_STEP, category, name, rank, 2 * sum(begin <= moment for begin in others) >= len(others)
    if moment < begin:
        others = [begin for begin, rank in begins if rank != last]
        _, _, category, name = doing(last)
        ready = sum(begin <= moment for begin in others)
        return NO_STEP, category, name, last, 2 * ready >= len(others) > 0
    nested = [(doing(rank), -rank) for rank, (begun, end) in group.items() if begun <= moment < end and doing(rank)[1]]
    if nested:
        (_, _, category, name), rank = max(nested, key=lambda one: (one[0][1], one[1]))
        return NO_STEP, category, name, -rank, 2 * len(nested) <= len(group) > 1
    return number, 0, "", -1, False


def reports(job: SimulatedJob, rng: random.Random) -> list[Callable[[Any], None]]:
    """What the ranks report, each in chunks of its own, in an order that mixes them."""
    chunks: list[tuple[int, float, Callable[[Any], None]]] = []
    for rank, steps in job.steps.items():
        ends = {moment for absence in job.absences[rank] for moment in absence}
        until = job.leaves.get(rank, job.reported)
        chosen = (rng.randrange(job.begins[rank], until + 1) for _ in range(rng.randrange(8)))
        edges = sorted({*chosen, *ends, until})
        if rank in job.joins:
            chunks.append((job.begins[rank], -1.0, methodcaller("join", rank, job.begins[rank] * MS)))
        since = job.begins[rank]
        died = {end for end, _ in job.absences[rank]}
        back = {end for _, end in job.absences[rank]}
        for edge in edges:
            reported = [
                RankStep(number, begin * MS, end * MS if end <= edge and end not in died else -1)
                for number, begin, end in steps
                if begin < edge and end > since
            ]
            pieces = [
                Piece(begin * MS, end * MS, category, name)
                for begin, end, category, name in job.pieces[rank]
                if since < end <= edge
            ]
            order = edge + rng.random()
            if since not in died or since in back:
                chunks.append((edge, order, methodcaller("feed", rank, reported, pieces, edge * MS)))
            if edge in back:
                chunks.append((edge, order + 1e-9, methodcaller("join", rank, edge * MS)))
            if edge in died:
                chunks.append((edge, order + 2e-9, methodcaller("leave", rank, edge * MS, died=True)))
            since = edge
        if rank in job.leaves:
            chunks.append((until, until + 2.0, methodcaller("leave", rank, until * MS, died=False)))
    return [chunk[2] for chunk in sorted(chunks, key=lambda chunk: chunk[:2])]


__all__ = ["MS", "SimulatedJob", "every_millisecond", "reports", "simulate"]
