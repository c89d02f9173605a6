"""Simulated jobs, as an account shows them every five seconds: without a fault, or with one of twelve.

What is drawn: how long steps, loads, saves and evaluations take, how often they come, how much all of it varies, how
many ranks there are and how they delay each other now and then. Single steps take far longer than others. If `untold`,
something happens now and then that nothing tells of: in a step, as an evaluation; between steps; or in a load, as the
first one of an epoch.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_goodput._accounting.incident_detector import Detector
from otel_goodput._accounting.incidents import STEP, Incident, Observation, Source
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._accounting.rules import DATA_LOADING_TIME, NAMES, NS, OTHER
from otel_goodput._accounting.stalls import Outside, Singles
from otel_goodput.semconv import Category, IncidentKind

EVERY_S = 5.0
RANKS = (1, 8, 64, 512)
BEGINS_S = 1500.0  # of the fault
ENDS_S = 2700.0  # of the job
FEW = 8


class Fault(NamedTuple):
    """What is wrong from a moment on, and how an incident must name it."""

    kind: str
    category: str
    of_rank: bool = False
    name: str = ""


FAULTS = {
    "all ranks hang in a step": Fault(IncidentKind.HANG, STEP),
    "a rank hangs in its loader": Fault(IncidentKind.HANG, Category.DATA_LOADING, of_rank=True),
    "a rank is stopped": Fault(IncidentKind.HANG, STEP, of_rank=True),
    "an evaluation hangs": Fault(IncidentKind.SLOWDOWN, Category.CUSTOM, name="evaluation"),
    "the input is slow": Fault(IncidentKind.SLOWDOWN, Category.DATA_LOADING),
    "the input of a rank is slow": Fault(IncidentKind.SLOWDOWN, Category.DATA_LOADING, of_rank=True),
    "steps are slow": Fault(IncidentKind.SLOWDOWN, STEP),
    "functions are compiled again and again": Fault(IncidentKind.SLOWDOWN, Category.PROGRAM_STARTUP),
    "saves are slow": Fault(IncidentKind.SLOWDOWN, Category.CHECKPOINT_SAVE),
    "time is lost between steps": Fault(IncidentKind.SLOWDOWN, Category.OTHER),
    "a rank does something of its own": Fault(IncidentKind.SLOWDOWN, Category.CUSTOM, of_rank=True, name="sync"),
    "attempts make no progress": Fault(IncidentKind.RESTART_LOOP, Category.INFRASTRUCTURE_RECOVERY, name="crash"),
}


class SingleTurns:
    """Tells what single turns take longer than usual, as an account does."""

    def __init__(self) -> None:
        self._steps, self._outside = Singles(), Outside()

    def end_step(self, length: int, times: Mapping[Source, int]) -> None:
        """Take a step that took `length` ns; time by source is as after it."""
        self._steps.add([length])
        totals = _totals(times)
        self._outside.end_turns([(totals[DATA_LOADING_TIME], totals[OTHER])])

    def excess(self, times: Mapping[Source, int]) -> dict[str, int]:
        """By how much single ones took longer than usual, ns by category."""
        loads, others = self._outside.excess(_totals(times))
        return {STEP: self._steps.excess, Category.DATA_LOADING: loads, Category.OTHER: others}

    def unfinished(self, times: Mapping[Source, int]) -> dict[str, int]:
        """Usual time of the turn that is not over, ns by category."""
        loads, others = self._outside.unfinished(_totals(times))
        return {Category.DATA_LOADING: loads, Category.OTHER: others}


def _totals(times: Mapping[Source, int]) -> list[int]:
    totals = [0] * len(NAMES)
    for source, spent in times.items():
        if source.category in (Category.DATA_LOADING, Category.OTHER):
            totals[NAMES.index(source.category)] += spent
    return totals


@dataclass
class Job:
    """A job whose times are drawn with a seed; `loss` is what a slow turn takes more, as a share of a turn."""

    seed: int
    fault: str = ""
    loss: float = 0.15
    ranks: int = 0
    length: float = ENDS_S
    untold: bool = False
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = draw = random.Random(f"{self.seed} {self.fault}")
        self.ranks = self.ranks or draw.choice(RANKS)
        self.step = 10 ** draw.uniform(-0.6, 0.6)
        self.noise = draw.choice((0.01, 0.03, 0.06))
        self.load = self.step * draw.choice((0.0, 0.02, 0.2))
        self.load_noise = draw.choice((0.05, 0.3))
        self.other = self.step * draw.choice((0.0, 0.01, 0.05))
        self.wave = draw.choice((0.0, 0.0, 0.02))
        self.save_every, self.save = draw.choice((60.0, 97.0, 240.0)), draw.uniform(0.5, 30.0)
        self.evaluate_every, self.evaluation = draw.choice((113.0, 310.0)), draw.uniform(3.0, 60.0)
        self.culprit = draw.randrange(self.ranks) if self.ranks > 1 else NOBODY
        self.burst = draw.choice((STEP, STEP, Category.OTHER, Category.DATA_LOADING)) if self.untold else ""
        self.burst_every = 10 ** draw.uniform(1.2, 2.4)
        self.burst_length = min(25.0, self.burst_every * draw.uniform(0.03, 0.3))
        if self.burst == Category.DATA_LOADING:
            self.load = self.load or 0.02 * self.step

    @property
    def expected(self) -> Fault:
        return FAULTS[self.fault]

    def observations(self) -> Iterator[Observation]:
        """Yield what its account says every five seconds."""
        draw, times, now, looked = self.draw, Counter[Source](), 0.0, EVERY_S
        steps, stepped, saved, evaluated = 0, 0.0, 0.0, 0.0
        doing: Source | None = None
        burst, single_turns = 0.0, SingleTurns()

        def spend(source: Source, length: float) -> Iterator[Observation]:
            nonlocal now, looked
            while now + length >= looked:
                times[source] += round((looked - now) * NS)
                length -= looked - now
                now, looked = looked, looked + EVERY_S
                since, setbacks = round((now - stepped) * NS), 0
                if self.fault == "attempts make no progress" and now >= BEGINS_S:
                    setbacks = 3
                setback = (round(BEGINS_S * NS), self.expected.name) if setbacks else (0, "")
                excess = single_turns.excess(times)
                moment, spent = round(now * NS), dict(times)
                unfinished = single_turns.unfinished(times)
                yield Observation(
                    moment, 0, steps, spent, since, doing, setbacks, setback, steps > 0, excess, unfinished=unfinished
                )
            times[source] += round(length * NS)
            now += length

        def rank(category: str, name: str = "") -> Source:
            return Source(category, name, draw.randrange(self.ranks) if self.ranks > 1 else NOBODY)

        yield from spend(Source(Category.TRAINING_PREP), draw.uniform(1.0, 60.0))
        yield from spend(Source(Category.PROGRAM_STARTUP), draw.uniform(0.0, 90.0))
        turn = self.step + self.load + self.other
        forever = 1e6
        while now < self.length:
            fault = self.fault if now >= BEGINS_S else ""
            more = self.loss * turn * draw.uniform(0.9, 1.1)
            now_and_then = 0.0
            if self.burst and now - burst > self.burst_every:
                burst, now_and_then = now, self.burst_length * draw.uniform(0.9, 1.1)
            if self.load:
                length = self.load * math.exp(draw.gauss(0.0, self.load_noise))
                length += now_and_then if self.burst == Category.DATA_LOADING else 0.0
                yield from spend(rank(Category.DATA_LOADING), length)
            if fault == "the input is slow":
                yield from spend(rank(Category.DATA_LOADING), more)
            elif fault == "the input of a rank is slow":
                yield from spend(Source(Category.DATA_LOADING, "", self.culprit), more)
            elif fault == "a rank does something of its own":
                yield from spend(Source(Category.CUSTOM, "sync", self.culprit), more)
            elif fault == "a rank hangs in its loader":
                doing = Source(Category.DATA_LOADING, "", self.culprit) if self.ranks > 1 else None
                yield from spend(Source(Category.DATA_LOADING), self.length - now + EVERY_S)
                return
            elif fault == "functions are compiled again and again" and draw.random() < 0.7:
                yield from spend(Source(Category.PROGRAM_STARTUP), more / 0.7)
            length = self.step * max(0.3, 1.0 + draw.gauss(0.0, self.noise) + self.wave * math.sin(now / 170.0))
            if draw.random() < 0.002:
                length *= draw.uniform(1.5, 6.0)
            length += now_and_then if self.burst == STEP else 0.0
            if fault == "steps are slow":
                length += more
            if fault in ("all ranks hang in a step", "a rank is stopped"):
                length = forever
                doing = Source(STEP, "", self.culprit) if fault == "a rank is stopped" and self.ranks > 1 else None
                yield from spend(Source(Category.IN_FLIGHT), self.length - now + EVERY_S)
                return
            yield from spend(Source(Category.IN_FLIGHT), length)
            times[Source(STEP)] += times.pop(Source(Category.IN_FLIGHT))
            steps, stepped = steps + 1, now
            single_turns.end_step(round(length * NS), times)
            lost = more if fault == "time is lost between steps" else 0.0
            lost += now_and_then if self.burst == Category.OTHER else 0.0
            if self.other or lost:
                yield from spend(Source(Category.OTHER), self.other + lost)
            if now - saved > self.save_every:
                saved = now
                slower = 8.0 + 20.0 / self.save if fault == "saves are slow" else 1.0
                yield from spend(rank(Category.CHECKPOINT_SAVE), self.save * draw.uniform(0.8, 1.25) * slower)
            if now - evaluated > self.evaluate_every:
                evaluated = now
                length = self.evaluation * draw.uniform(0.9, 1.1)
                if fault == "an evaluation hangs":
                    length = self.length - now + EVERY_S
                yield from spend(Source(Category.CUSTOM, "evaluation"), length)
            if draw.random() < 0.0005:  # another shape
                yield from spend(Source(Category.PROGRAM_STARTUP), draw.uniform(0.2, 15.0))


def incidents(job: Job) -> list[Incident]:
    """Return the incidents that the detector notices in a job, as they are in the end."""
    detector, known = Detector(), dict[int, Incident]()
    for seen in job.observations():
        known.update((one.number, one) for one in detector.look(seen))
    return [*known.values()]


def trained_before(job: Job) -> float:
    """Return the seconds that its loop went on, without saves and evaluations, from a fault to its first incident."""
    detector, start = Detector(), 0
    for seen in job.observations():
        loop = (STEP, Category.IN_FLIGHT, Category.DATA_LOADING, Category.OTHER)
        trained = sum(spent for one, spent in seen.times.items() if one.category in loop or one.name == "sync")
        if seen.at <= BEGINS_S * NS:
            start = trained
        if detector.look(seen):
            return (trained - start) / NS if seen.at > BEGINS_S * NS else math.inf
    return math.inf


def verdict(job: Job) -> tuple[bool, list[Incident]]:
    """Return whether the first incident of a job names its fault, and no other came before; and all incidents."""
    known = incidents(job)
    if not known:
        return False, known
    fault, first = job.expected, known[0]
    category = STEP if first.source.category == Category.IN_FLIGHT else first.source.category
    # Of a few ranks, one can happen to have had most of what all of them had.
    whose = first.source.rank == job.culprit if fault.of_rank else first.source.rank == NOBODY or job.ranks <= FEW
    named = (first.kind, category, first.source.name) == (fault.kind, fault.category, fault.name)
    return named and whose and first.opened >= BEGINS_S * NS, known
