"""Incidents: from when to when something was wrong with an attempt, what most of the lost time went to, what it cost.

The detector looks at an account every few seconds and compares it with earlier times of the same attempt. Whatever that
account is of, one process or a job of many ranks, it costs the same: nothing is done for each step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, NamedTuple

from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._accounting.rules import NAMES, NS
from otel_goodput._accounting.totals import Totals
from otel_goodput.semconv import Category, IncidentKind

STEP: Final = "step"  # in place of a category: the own time of steps, whatever becomes of them
_STEPS: Final = frozenset({Category.PRODUCTIVE, Category.WASTED_PROGRESS})
# What is no part of a turn of the loop, and is not compared.
_APART: Final = frozenset({Category.IN_FLIGHT, Category.INFRASTRUCTURE_RECOVERY})


class Source(NamedTuple):
    """What time goes to: a category or ``STEP``, a custom name, and the rank whose it is; ``NOBODY``: of all."""

    category: str
    name: str = ""
    rank: int = NOBODY

    @property
    def phase(self) -> Source:
        """The same, whichever rank's it is."""
        return self._replace(rank=NOBODY)


class Observation(NamedTuple):
    """What an account says at one moment.

    Attributes:
        at: the moment, ns.
        attempt: number of the attempt.
        steps: how many were completed so far, whatever became of them.
        times: how much time went to each source so far, ns.
        since_step: time since a step was completed, or since the job began if none has been, ns; None: no job is open.
        doing: what goes on now; None: whatever grows.
        setbacks: of the latest attempts, how many in a row began where the one before them had begun: without progress.
        setback: when the first of these began, ns, and why the latest did.
    """

    at: int
    attempt: int
    steps: int
    times: Mapping[Source, int]
    since_step: int | None
    doing: Source | None = None
    setbacks: int = 0
    setback: tuple[int, str] = (0, "")


Key = tuple[str, "Source | None"]  # the kind of an incident, and the phase if it is about one


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


def observation(
    totals: Totals, attempt: int, waits: Mapping[Cause, int] | None = None, doing: Source | None = None
) -> Observation:
    """Return what `totals` say. `waits`: for which ranks the job has waited, ns; `doing`: what goes on now."""
    times = Counter[Source]()
    for category, name, spent in totals.run.rows():
        times[Source(STEP if category in _STEPS else category, name)] += spent
    for cause, spent in (waits or {}).items():
        of = Source(NAMES[cause.category], cause.name)
        times[of] -= spent
        times[of._replace(rank=cause.rank)] += spent
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
    )


@dataclass(frozen=True)
class Limits:
    """From when on something is an incident.

    Attributes:
        window: turns of the loop are compared over so long, ns, or one turn if that takes longer.
        hang: no step was completed for so long, ns, and `hang_factor` times what is usual;
        unknown: the same before the first step, and in a phase that has not been seen before.
        loss: a turn takes longer than before by this share at least.
        setbacks: so many attempts in a row made no progress.
    """

    window: int = 5 * NS
    hang: int = 30 * NS
    hang_factor: int = 10
    unknown: int = 1800 * NS
    loss: float = 0.1
    setbacks: int = 3


# Page's cumulative sum (Biometrika 41, 1954) over windows: by how many deviations each one exceeds what is usual, ...
REFERENCE: Final = 12  # windows, before anything is compared;
REMEMBERED: Final = 60  # ... and the most that the usual is taken from
WARM_UP: Final = 2  # windows before those
CLIPPED: Final = 3.0  # ... of which each counts so many at most: one that is out of the ordinary is no change
ALARM: Final = 9.0
LEAST_NOISE: Final = 0.02  # deviation as a share of the usual
HIGH: Final = 0.8  # the share of windows that are below what counts as more than usual,
HIGHER: Final = 0.9  # and below the median and so many deviations of a normal distribution:
_NORMAL: Final = 1.2816
OFTEN: Final = 0.75  # a phase that has time in so many windows is a part of the turns; others are compared one by one
LATELY: Final = 8  # windows, of the latest of which so many are enough:
OFTEN_LATELY: Final = 4
# If turns differ so much that a window is that noisy (as a share of a turn), windows get twice as long, until
NOISY: Final = 0.05
LONGEST: Final = 16  # times as long.
# A phase that is no part of the turns takes too long if it takes so many times as long as the longest so far.
LONG: Final = 3.0
EPISODES: Final = 3  # that must be known for that;
EPISODES_KEPT: Final = 32
SINGLE: Final = 0.5  # a rank that has so much of what is lost is the cause
SHARES: Final = 8


class Window(NamedTuple):
    """A stretch of the attempt that begins and ends with the end of a step.

    Attributes:
        begin, end: ns.
        steps: how many were completed in it.
        times: ns by source; only sources that have any.
    """

    begin: int
    end: int
    steps: int
    times: Mapping[Source, int]

    def phases(self) -> Counter[Source]:
        """Time by source, whichever rank's it is, ns."""
        phases = Counter[Source]()
        for source, spent in self.times.items():
            phases[source.phase] += spent
        return phases


class Sums:
    """Windows in a row, together."""

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.windows = self.steps = 0
        self.times = Counter[Source]()

    def add(self, window: Window) -> None:
        self.windows, self.steps, self.end = self.windows + 1, self.steps + window.steps, window.end
        self.times.update(window.times)

    def each(self) -> dict[Source, float]:
        """Time of each source in one turn, ns."""
        return {source: spent / self.steps for source, spent in self.times.items()} if self.steps else {}


class Usual:
    """What is usual in this attempt.

    Attributes:
        known: enough windows were seen.
        parts: what a turn consists of.
        turn, each: what a turn takes, and each source in it, ns.
        high, noise: most turns take less than that; their deviation, ns.
    """

    def __init__(self) -> None:
        self.parts: frozenset[Source] = frozenset()
        self.turn = self.high = self.noise = 0.0
        self.each: dict[Source, float] = {}
        self._first: list[Window] = []
        self._recent: deque[Window] = deque(maxlen=REMEMBERED)

    @property
    def known(self) -> bool:
        return len(self._first) >= REFERENCE

    def add(self, windows: Iterable[Window]) -> None:
        """Take windows in which nothing is wrong."""
        for window in windows:
            self._recent.append(window)
            if len(self._first) < REMEMBERED:
                self._first.append(window)
                if self.known:
                    self._learn()
        if not self.known:
            return
        turns = sorted(turn(one, self.parts) for one in self._recent)
        middle, high, higher = (turns[int(share * (len(turns) - 1))] for share in (0.5, HIGH, HIGHER))
        self.high, self.noise = high, max(LEAST_NOISE * self.turn, (higher - middle) / _NORMAL)
        # It has become faster for good: that is what is usual from now on.
        if len(self._first) == len(turns) == REMEMBERED and high < self.turn - self.noise:
            self._first = [*self._recent]
            self._learn()

    def merge(self) -> None:
        """Go on with windows of twice the length."""
        self._first = _merged(self._first)
        self._recent = deque(_merged([*self._recent]), maxlen=REMEMBERED)

    def _learn(self) -> None:
        often = Counter(source for window in self._first for source in window.phases())
        self.parts = frozenset(one for one, count in often.items() if count >= OFTEN * len(self._first))
        sums = Sums(self._first[0].begin)
        for window in self._first:
            sums.add(window)
        self.each = sums.each()
        self.turn = sum(spent for source, spent in self.each.items() if source.phase in self.parts)

    def more(self, parts: Iterable[Source]) -> float:
        """What phases take in a turn that are in only some of them, ns."""
        further = frozenset(parts) - self.parts
        return sum(spent for source, spent in self.each.items() if source.phase in further)


def _merged(windows: Sequence[Window]) -> list[Window]:
    """Merge each two windows in a row into one."""
    return [
        Window(one.begin, other.end, one.steps + other.steps, Counter(one.times) + Counter(other.times))
        for one, other in zip(windows[::2], windows[1::2], strict=False)
    ]


def turn(window: Window, parts: Iterable[Source]) -> float:
    """Time of these parts in a turn of a window, ns."""
    phases = window.phases()
    return sum(phases[one] for one in parts) / window.steps


class Episodes:
    """How long phases took that are no part of the turns, such as saves and evaluations.

    Attributes:
        open: when the present one of a phase began, and how long it takes so far, ns.
        slow: of phases whose latest one took too long: when that was over, and what they lost since they do, ns.
    """

    def __init__(self, slack: int) -> None:
        self.open: dict[Source, tuple[int, int]] = {}
        self.slow: dict[Source, tuple[int, int]] = {}
        self._slack = slack
        self._past: dict[Source, deque[int]] = {}  # ns; without those that took too long
        self._known: dict[Source, int] = {}  # since when, ns

    def add(self, window: Window) -> None:
        """Take the next window; a phase that has no time in it is over."""
        phases = window.phases()
        for source in self.open.keys() - phases.keys():
            begin, length = self.open.pop(source)
            if self.too_long(source, length):
                self.slow[source] = begin + length, self.lost(source, length)
            else:
                past = self._past.setdefault(source, deque(maxlen=EPISODES_KEPT))
                past.append(length)
                if len(past) >= EPISODES:
                    self._known.setdefault(source, window.begin)
                self.slow.pop(source, None)
        for source, spent in phases.items():
            begin, length = self.open.get(source, (window.begin, 0))
            self.open[source] = begin, length + spent

    def too_long(self, source: Source, length: int) -> bool:
        """Whether one of `length` (ns) takes too long; False while too few are known."""
        past = self._past.get(source, (0,))
        return self.known(source) and length > max(LONG * max(past), max(past) + self._slack)

    def known(self, source: Source, since: int | None = None) -> bool:
        """Whether it is known how long they usually take, and was known at the moment `since` (ns)."""
        return source in self._known and (since is None or self._known[source] <= since)

    def usual(self, source: Source) -> int:
        """What one usually takes, ns."""
        return int(median(self._past[source]))

    def lost(self, source: Source, length: int) -> int:
        """What those that took too long have lost with one of `length` (ns)."""
        return self.slow.get(source, (0, 0))[1] + length - self.usual(source)


class Detector:
    """Notices incidents in what :meth:`look` is given, observation after observation.

    Attributes:
        open: the incidents that are not over, by what they are about.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.open: dict[Key, Incident] = {}
        self._number = 0
        self._last: Observation | None = None
        self._begin()

    def _begin(self) -> None:
        """Nothing is known (any more)."""
        self._start: Observation | None = None  # of the present window,
        self._short: Observation | None = None  # and of the present one of the shortest length
        self._warm = 0
        self._usual, self._episodes = Usual(), Episodes(2 * self.limits.window)
        self._slow_until: dict[
            Source, int
        ] = {}  # of phases with an open incident, when the latest slow one was over, ns
        self._lately: deque[Window] = deque(maxlen=LATELY)
        self._sum = self._recovery = 0.0
        self._suspects: list[Window] = []  # since the sum began to grow
        self._doing = Source(STEP), 0  # what goes on, and since when, ns
        self._longest = Counter[Source]()  # the longest time for which a phase went on, as far as was seen, ns
        self._better: Sums | None = None  # since it recovers
        self._during: Sums | None = None  # since the open slowdown began
        self._length = 1  # of windows, in those of the limits
        self._spoilt = False  # a step hung in the present window

    def look(self, now: Observation) -> list[Incident]:
        """Take the next observation; return the incidents that it opens, changes or ends."""
        changed: dict[int, Incident] = {}
        before = self._last
        if before is not None and (now.attempt != before.attempt or now.since_step is None or now.steps < before.steps):
            for key in [key for key in self.open if key[0] != IncidentKind.RESTARTS]:
                self._end(key, before.at if now.attempt != before.attempt else now.at, changed)
            self._begin()
        self._last = now
        self._look_for_setbacks(now, changed)
        if now.since_step is None:
            return list(changed.values())
        self._look_for_hang(now, before, changed)
        if self._start is None or self._short is None:
            if now.steps:
                self._start = self._short = now
            return list(changed.values())
        if now.at - self._short.at >= self.limits.window and now.steps > self._short.steps:
            self._episodes.add(_between(self._short, now))
            self._short = now
        if now.at - self._start.at >= self.limits.window * self._length and now.steps > self._start.steps:
            window = _between(self._start, now)
            self._start = now
            if self._spoilt:
                self._spoilt = (IncidentKind.HANG, None) in self.open
            elif self._warm < WARM_UP:
                self._warm += 1
            else:
                self._compare(window, changed)
        self._look_for_episodes(now, changed)
        return list(changed.values())

    # --- hangs --------------------------------------------------------------------------------------------------------

    def _look_for_hang(self, now: Observation, before: Observation | None, changed: dict[int, Incident]) -> None:
        key, stepped = (IncidentKind.HANG, None), now.at - (now.since_step or 0)
        doing = now.doing or _growing(before, now)
        if doing.phase != self._doing[0] or (before is not None and now.steps > before.steps):
            phase, begun = self._doing
            self._longest[phase] = max(self._longest[phase], now.at - begun if begun else 0)
            self._doing = doing.phase, stepped if before is None or now.steps > before.steps else before.at
        since = max(stepped, self._doing[1])
        incident = self.open.get(key)
        if incident is not None:
            if before is not None and now.steps > before.steps:
                self._end(key, stepped, changed, cost=stepped - incident.began)
            else:
                self._update(key, changed, cost=now.at - incident.began)
        elif now.at - since > self._patience(doing, now.steps):
            self._spoilt = True
            self._open(key, IncidentKind.HANG, doing, since, now.at, changed, cost=now.at - since)

    def _patience(self, doing: Source, steps: int) -> int:
        """How long a step may take to be completed while that goes on, ns."""
        limits, phase = self.limits, doing.phase
        usual = self._usual.turn or (fmean(turn(one, one.phases()) for one in self._lately) if self._lately else 0)
        known = max(limits.hang, round(limits.hang_factor * usual))
        if not steps:
            return limits.unknown
        if phase.category in (STEP, Category.STALLED, Category.OTHER) or (
            phase in self._usual.parts and self._longest[phase] < limits.hang
        ):
            return known
        longest = self._longest[phase]
        return max(known, limits.hang_factor * longest) if longest else limits.unknown

    # --- slowdowns ----------------------------------------------------------------------------------------------------

    def _compare(self, window: Window, changed: dict[int, Incident]) -> None:
        """Compare the turns of a window with the usual ones."""
        usual, limits, key = self._usual, self.limits, (IncidentKind.SLOWDOWN, None)
        self._lately.append(window)
        if usual.known and usual.noise > NOISY * usual.turn and self._length < LONGEST and not self.open:
            self._length *= 2
            usual.merge()
            self._lately.clear()
            self._suspects.clear()
            self._sum = 0.0
        if not usual.known:
            usual.add([window])
            return
        often = Counter(source for one in self._lately for source in one.phases())
        since = self._suspects[0].begin if self._suspects else self._lately[0].begin
        new = {one for one, count in often.items() if count >= OFTEN_LATELY and not self._episodes.known(one, since)}
        parts = usual.parts | new
        expected = usual.turn + usual.more(parts)
        least = max(expected * (1 + limits.loss / 2), usual.high + usual.more(parts))
        excess = max(-CLIPPED, min(CLIPPED, (turn(window, parts) - least) / (usual.noise or 1.0)))
        if key in self.open:
            self._go_on(window, excess, parts, changed)
            return
        self._sum = max(0.0, self._sum + excess)
        self._suspects.append(window)
        if not self._sum:
            usual.add(self._suspects)
            self._suspects.clear()
            return
        sums = Sums(self._suspects[0].begin)
        for one in self._suspects:
            sums.add(one)
        taken = sum(spent for source, spent in sums.each().items() if source.phase in parts)
        if self._sum >= ALARM and taken >= expected * (1 + 0.8 * limits.loss):
            self._during, self._recovery, self._better = sums, 0.0, None
            self._suspects.clear()
            shares = self._shares(sums, parts)
            self._open(key, IncidentKind.SLOWDOWN, _cause(shares), sums.begin, window.end, changed)
            self._update(key, changed, **self._cost(sums, parts, shares))
        elif len(self._suspects) >= REMEMBERED:  # slightly more than usual for long
            self._sum = 0.0
            usual.add(self._suspects)
            self._suspects.clear()

    def _go_on(self, window: Window, excess: float, parts: frozenset[Source], changed: dict[int, Incident]) -> None:
        """Take a window while a slowdown is open."""
        key, during = (IncidentKind.SLOWDOWN, None), self._during
        assert during is not None, "a slowdown is open"
        self._recovery = max(0.0, self._recovery - excess)
        if not self._recovery:
            if self._better is not None:  # it went on after all
                during.steps, during.end = during.steps + self._better.steps, self._better.end
                during.times.update(self._better.times)
                self._better = None
            during.add(window)
        else:
            self._better = self._better or Sums(window.begin)
            self._better.add(window)
            if self._recovery >= ALARM:
                self._end(key, self._better.begin, changed, **self._cost(during, parts, self._shares(during, parts)))
                self._during, self._better, self._sum = None, None, 0.0
                return
        shares = self._shares(during, parts)
        self._update(key, changed, source=_cause(shares), **self._cost(during, parts, shares))

    def _shares(self, sums: Sums, parts: Iterable[Source]) -> list[Share]:
        """Return what turns took longer for than usual, most first; at least one."""
        each, usual, chosen = sums.each(), self._usual.each, frozenset(parts)
        grown = [
            Share(source, round((each.get(source, 0.0) - usual.get(source, 0.0)) * sums.steps))
            for source in each.keys() | usual.keys()
            if source.phase in chosen
        ]
        return sorted(grown, key=lambda share: (-share.lost, share.source))

    def _cost(self, sums: Sums, parts: Iterable[Source], shares: Sequence[Share]) -> dict[str, object]:
        lost = [share for share in shares if share.lost > 0][:SHARES]
        before, chosen = self._usual.turn + self._usual.more(parts), frozenset(parts)
        after = sum(spent for source, spent in sums.each().items() if source.phase in chosen)
        cost = max(0, round((after - before) * sums.steps))
        return {"cost": cost, "shares": tuple(lost), "before": round(before), "after": round(after)}

    # --- phases that are no part of the turns -------------------------------------------------------------------------

    def _look_for_episodes(self, now: Observation, changed: dict[int, Incident]) -> None:
        start, episodes = self._short, self._episodes
        pending = Counter[Source]() if start is None or now is start else _between(start, now).phases()
        present = dict.fromkeys(pending, (now.at, 0)) | episodes.open
        for source in present.keys() - self._usual.parts:
            begin, length = present[source]
            length += pending[source]
            if not episodes.too_long(source, length):
                continue
            usual, lost = episodes.usual(source), episodes.lost(source, length)
            key: Key = (IncidentKind.SLOWDOWN, source)
            if key not in self.open:
                self._open(key, IncidentKind.SLOWDOWN, source, min(begin, now.at - length), now.at, changed)
            self._update(key, changed, cost=lost, before=usual, after=length)
        for about, incident in list(self.open.items()):
            phase = about[1]
            if phase in episodes.slow:
                self._slow_until[phase] = episodes.slow[phase][0]
            elif phase is not None and phase not in present and phase in self._slow_until:
                self._end(about, self._slow_until.pop(phase), changed, cost=incident.cost)

    # --- restarts -----------------------------------------------------------------------------------------------------

    def _look_for_setbacks(self, now: Observation, changed: dict[int, Incident]) -> None:
        key = (IncidentKind.RESTARTS, None)
        if key in self.open:
            began = self.open[key].began
            if now.setbacks:
                self._update(key, changed, cost=now.at - began)
            else:
                self._end(key, now.at, changed, cost=now.at - began)
        elif now.setbacks >= self.limits.setbacks:
            began, reason = now.setback
            cause = Source(Category.INFRASTRUCTURE_RECOVERY, reason)
            self._open(key, IncidentKind.RESTARTS, cause, began, now.at, changed, cost=now.at - began)

    # --- their list ---------------------------------------------------------------------------------------------------

    def _open(
        self,
        key: Key,
        kind: str,
        source: Source,
        began: int,
        opened: int,
        changed: dict[int, Incident],
        cost: int = 0,
    ) -> None:
        self._number += 1
        incident = Incident(self._number, kind, source, began, opened, None, cost, (Share(source, cost),))
        self.open[key] = changed[incident.number] = incident

    def _update(self, key: Key, changed: dict[int, Incident], **more: object) -> None:
        incident = self.open[key]._replace(**more)  # type: ignore[arg-type]
        if more.keys() == {"cost"}:
            incident = incident._replace(shares=(Share(incident.source, incident.cost),))
        self.open[key] = changed[incident.number] = incident

    def _end(self, key: Key, ended: int, changed: dict[int, Incident], **more: object) -> None:
        self._update(key, changed, **more)
        incident = self.open.pop(key)
        changed[incident.number] = incident._replace(ended=max(incident.began, ended))


def _between(start: Observation, end: Observation) -> Window:
    """Return the window between two observations."""
    times = {
        source: spent - start.times.get(source, 0)
        for source, spent in end.times.items()
        if spent > start.times.get(source, 0) and source.category not in _APART
    }
    return Window(start.at, end.at, end.steps - start.steps, times)


def _growing(before: Observation | None, now: Observation) -> Source:
    """Return what most time went to since the observation before."""
    earlier = {} if before is None else before.times
    grown = {source: spent - earlier.get(source, 0) for source, spent in now.times.items()}
    source = max(grown, key=lambda one: (grown[one], one), default=Source(Category.OTHER))
    return Source(STEP, source.name, source.rank) if source.category == Category.IN_FLIGHT else source


def _cause(shares: Sequence[Share]) -> Source:
    """Return what most of the lost time went to: of one rank, if that has most of it."""
    phases = Counter[Source]()
    for share in shares:
        if share.lost > 0:
            phases[share.source.phase] += share.lost
    if not phases:
        return shares[0].source if shares else Source(STEP)
    phase, lost = phases.most_common(1)[0]
    single = next(share for share in shares if share.source.phase == phase)
    return single.source if single.lost >= SINGLE * lost else phase
