"""Incidents: from when to when something was wrong with an attempt, what most of the lost time went to, what it cost.

They are looked for in an account every few seconds: whatever it is of, one process or a job of many ranks, nothing is
done for each step. ``incident_detector`` compares it with earlier times of the same attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.ranks import NOBODY, STEP_TIME
from otel_goodput._accounting.rules import NAMES
from otel_goodput._accounting.totals import Brief, Totals
from otel_goodput.semconv import Category

STEP: Final = "step"  # in place of a category: the own time of steps, whatever becomes of them
_STEPS: Final = frozenset({Category.PRODUCTIVE, Category.WASTED_PROGRESS})
# In place of a custom name: by how much single ones take longer than usual. Often there is something in them that
# happens now and then and that nothing tells of, such as an evaluation in a step.
SINGLE: Final = "single"


class Source(NamedTuple):
    """What time goes to: a category or ``STEP``, a custom name, and the rank whose it is; ``NOBODY``: of all."""

    category: str
    name: str = ""
    rank: int = NOBODY

    @property
    def phase(self) -> Source:
        """The same, whichever rank's it is."""
        return self._replace(rank=NOBODY)

    @property
    def whole(self) -> Source:
        """The same, not only what single ones take longer than usual."""
        return self._replace(name="") if self.name == SINGLE and self.category != Category.CUSTOM else self


class Observation(NamedTuple):
    """What an account says at one moment.

    Attributes:
        at: the moment, ns.
        attempt: number of the attempt.
        steps: how many were completed so far in all attempts, whatever became of them.
        times: how much time went to each source so far, ns.
        since_step: time since a step was completed, or since the job began if none has been, ns; None: no job is open.
        doing: what goes on now; None: whatever grows.
        setbacks: of the latest attempts, how many in a row began where the one before them had begun: without progress.
        setback: when the first of these began, ns, and why the latest did.
        stepped: a step was completed in the job that is open, or was the latest.
        excess: by how much single steps (``STEP``), loads and times between steps took far longer than usual, ns.
        loop: the number of the loop to which the steps belong.
        unfinished: time of loads and between steps that is of the turn that is not over, without its excess, ns.
    """

    at: int
    attempt: int
    steps: int
    times: Mapping[Source, int]
    since_step: int | None
    doing: Source | None = None
    setbacks: int = 0
    setback: tuple[int, str] = (0, "")
    stepped: bool = False
    excess: Mapping[str, int] = {}
    loop: int = 0
    unfinished: Mapping[str, int] = {}


class Share(NamedTuple):
    """How much of an incident's time went to a source, more than usual, ns."""

    source: Source
    lost: int


class Incident(NamedTuple):
    """Something was wrong with the job.

    Attributes:
        number: in its attempt, from 1.
        kind: one of ``semconv.INCIDENT_KINDS``.
        source: what most of the lost time went to.
        began: when it began, ns; `opened`: when that was noticed; `ended`: when it was over, None while it is not.
        cost: time lost so far, ns.
        shares: what the lost time went to, most first.
        before, after: what a turn of the loop took before, and takes now, ns; 0 if that is not what is wrong.
        line: of the program at which `source.rank` stands, such as ``train.py:88``; empty if it is not known.
        evidence: what speaks for the cause, one sentence each.
    """

    number: int
    kind: str
    source: Source
    began: int
    opened: int
    ended: int | None = None
    cost: int = 0
    shares: tuple[Share, ...] = ()
    before: int = 0
    after: int = 0
    line: str = ""
    evidence: tuple[str, ...] = ()


def as_of(incident: Incident, moment: int, latest: int) -> Incident:
    """Return an incident that was noticed by a `moment` (ns) as it was then: open, if it ended later.

    What it had cost by then is a share of what is known, which is up to `latest` (ns) if it is not over.
    """
    until = latest if incident.ended is None else incident.ended
    if until <= moment:
        return incident
    passed, whole = max(0, moment - incident.began), max(1, until - incident.began)

    def share(lost: int) -> int:
        return lost * passed // whole

    shares = tuple(one._replace(lost=share(one.lost)) for one in incident.shares)
    return incident._replace(ended=None, cost=share(incident.cost), shares=shares)


def source_of(cause: Cause) -> Source:
    """Return what a job waits for."""
    return Source(STEP if cause.category == STEP_TIME else NAMES[cause.category], cause.name, cause.rank)


def observation(
    totals: Brief | Totals, attempt: int, waits: Mapping[Cause, int] | None = None, doing: Source | None = None
) -> Observation:
    """Return what `totals` say. `waits`: for which ranks the job has waited, ns; `doing`: what goes on now."""
    times = Counter[Source]()
    for category, name, spent in totals.run.rows():
        times[Source(STEP if category in _STEPS else category, name)] += spent
    for cause, spent in (waits or {}).items():
        of = source_of(cause)
        times[of.phase] -= spent
        times[of] += spent
    starts = [one for one in totals.history if one.attempt is not None]
    row = 0
    while row < len(starts) and starts[-1 - row].kept_step == totals.run.max_productive_step:
        row += 1
    first = starts[-row] if row else None
    setback = (0, "") if first is None else (max(first.died, 0) or first.time, starts[-1].reason)
    return Observation(
        totals.at,
        attempt,
        totals.executed,
        times,
        None if totals.ended else totals.since_step,
        doing,
        row,
        setback,
        totals.first_step is not None,
        {STEP if category in _STEPS else category: spent for category, spent in totals.excess.items()},
        totals.loop,
        totals.unfinished,
    )
