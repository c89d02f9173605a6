"""Notices incidents in what an account says every few seconds, by comparing it with earlier times of the same attempt.

A hang is noticed by the time for which nothing was completed. A slowdown is a change of what a turn of the loop takes,
which is noticed by a cumulative sum. Saves and evaluations, which happen now and then, are compared one by one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from otel_goodput._accounting.incident_baseline import (
    LONG,
    LOOPING,
    OFTEN,
    REFERENCE,
    REMEMBERED,
    Episodes,
    Sums,
    Usual,
    Window,
    between,
    joined,
    turn,
    turns,
)
from otel_goodput._accounting.incidents import STEP, Incident, Observation, Share, Source
from otel_goodput._accounting.rules import NS
from otel_goodput._accounting.stalls import ROW
from otel_goodput.semconv import Category, IncidentKind

_OF_STEPS: Final = frozenset({Category.IN_FLIGHT, Category.STALLED})
Key = tuple[str, "Source | None"]  # the kind of an incident, and the phase if it is about one


@dataclass(frozen=True)
class Limits:
    """From when on something is an incident.

    Attributes:
        window: turns of the loop are compared over so long, ns, or one turn if that takes longer.
        loss: a turn takes longer than before by this share at least.
        setbacks: so many attempts in a row made no progress.
        start: the first step of a job may take so long, ns; 0: as long as a phase that has not been seen before.
    """

    window: int = 5 * NS
    loss: float = 0.1
    setbacks: int = 3
    start: int = 0

    @property
    def hang(self) -> int:
        """No step was completed for so long, ns, and ``HANG_FACTOR`` times what is usual."""
        return 6 * self.window

    @property
    def unknown(self) -> int:
        """The same in a phase that has not been seen before."""
        return 360 * self.window


HANG_FACTOR: Final = 10


# Page's cumulative sum (Biometrika 41, 1954) over windows: by how many deviations each one exceeds what is usual, ...
WARM_UP: Final = 2  # windows before the first one that counts
CLIPPED: Final = 3.0  # ... of which each counts so many at most: one that is out of the ordinary is no change
ALARM: Final = 7.0
LATELY: Final = 8  # a phase that had time in so many of the latest windows is a part of the turns now:
OFTEN_LATELY: Final = 5
# If turns differ so much that a window is that noisy (as a share of a turn), windows get twice as long, until
NOISY: Final = 0.08
LONGEST: Final = 16  # times as long.
OF_ONE: Final = 0.5  # a rank that has so much of what is lost is the cause
SHARES: Final = 8


class Detector:
    """Notices incidents in what :meth:`look` is given, observation after observation.

    Attributes:
        open: the incidents that are not over, by what they are about.
        number: of the latest one.
    """

    def __init__(self, limits: Limits | None = None, number: int = 0) -> None:
        self.limits = limits or Limits()
        self.open: dict[Key, Incident] = {}
        self.number = number
        self._last: Observation | None = None
        self._begin()

    def _begin(self) -> None:
        """Nothing is known (any more)."""
        self._first: int | None = None  # when the first look at this attempt was, ns
        self._start: Observation | None = None  # of the present window of the shortest length
        self._gathered: list[Window] = []  # of these, that are going to be one
        self._loop, self._left = 0, 0  # whose steps are compared, and since when they are those of another one, ns
        self._warm = 0
        self._usual, self._episodes = Usual(), Episodes(2 * self.limits.window)
        self._slow_until = dict[Source, int]()  # of phases with an incident, when the latest slow one was over, ns
        self._lately: deque[Window] = deque(maxlen=LATELY)
        self._phases: deque[frozenset[Source]] = deque(maxlen=LATELY * LONGEST)  # of the latest, shortest windows
        self._uncounted = deque[Window]()
        self._sum = self._recovery = 0.0
        self._suspects: list[Window] = []  # since the sum began to grow
        self._doing = Source(STEP), 0  # what goes on, and since when, ns
        self._lasted: dict[Source, list[int]] = {}  # the two longest times for which a phase went on, ns
        self._better: Sums | None = None  # since it recovers
        self._during: Sums | None = None  # since the open slowdown began
        self._parts: frozenset[Source] = frozenset()  # of a turn, in the open slowdown,
        self._compared: frozenset[Source] = frozenset()  # and in the latest window without one
        self._length = 1  # of windows, in those of the limits
        self._spoilt = False  # a step hung in the present window

    def look(self, now: Observation) -> list[Incident]:
        """Take the next observation; return the incidents that it opens, changes or ends."""
        changed: dict[int, Incident] = {}
        before = self._last
        if before is not None and (now.attempt != before.attempt or now.since_step is None or now.steps < before.steps):
            for key in [key for key in self.open if key[0] != IncidentKind.RESTART_LOOP]:
                self._end(key, before.at if now.attempt != before.attempt else now.at, changed)
            self._begin()
        self._last = now
        if self._first is None:
            self._first = now.at
        self._look_for_setbacks(now, changed)
        if now.since_step is None:
            return list(changed.values())
        self._look_for_hang(now, before, changed)
        if self._start is None:
            if now.stepped:
                self._start, self._loop = now, now.loop
            return list(changed.values())
        if now.loop != self._loop:
            self._wait_for_loop(now, changed)
            return list(changed.values())
        self._left = 0
        if now.at - self._start.at >= self.limits.window and now.steps > self._start.steps:
            shortest = turns(self._start, now)
            self._start = now
            self._episodes.add(shortest)
            self._phases.append(frozenset(shortest.phases()))
            self._uncounted.append(shortest)
            if len(self._uncounted) > LATELY:  # what goes on lately may be what is wrong
                earlier = self._uncounted.popleft()
                if not (self._suspects or self.open):
                    self._usual.count(earlier)
            self._gathered.append(shortest)
            if now.at - self._gathered[0].begin >= self.limits.window * self._length:
                window, self._gathered = joined(self._gathered), []
                if self._spoilt:
                    self._spoilt = (IncidentKind.HANG, None) in self.open
                elif self._warm < WARM_UP:
                    self._warm += 1
                else:
                    self._compare(window, changed)
        self._look_for_episodes(now, changed)
        return list(changed.values())

    def close(self, now: int) -> list[Incident]:
        """End all incidents, ns; return them."""
        changed: dict[int, Incident] = {}
        for key in list(self.open):
            self._end(key, now, changed)
        return list(changed.values())

    def _wait_for_loop(self, now: Observation, changed: dict[int, Incident]) -> None:
        """Compare nothing while the steps are those of another loop; if they stay so, begin anew with that one."""
        self._start, self._left = now, self._left or now.at
        self._gathered.clear()
        if now.at - self._left >= REFERENCE * self.limits.window:
            left = self._left
            for key in [key for key in self.open if key[0] == IncidentKind.SLOWDOWN]:
                self._end(key, left, changed)
            self._begin()

    # --- hangs --------------------------------------------------------------------------------------------------------

    def _look_for_hang(self, now: Observation, before: Observation | None, changed: dict[int, Incident]) -> None:
        key, stepped = (IncidentKind.HANG, None), now.at - (now.since_step or 0)
        doing = now.doing or _growing(before, now) or self._doing[0]
        if doing.phase != self._doing[0] or (before is not None and now.steps > before.steps):
            phase, begun = self._doing
            if begun:
                self._lasted[phase] = sorted((*self._lasted.get(phase, ()), now.at - begun))[-2:]
            self._doing = doing.phase, stepped if before is None or now.steps > before.steps else before.at
        since = max(stepped, self._doing[1])
        incident = self.open.get(key)
        if incident is not None:
            if before is not None and now.steps > before.steps:
                self._end(key, stepped, changed, cost=stepped - incident.began)
            else:
                self._update(key, changed, cost=now.at - incident.began)
        elif (IncidentKind.SLOWDOWN, doing.phase) in self.open:
            return  # that it takes too long is known
        # Not by what was before the first look: whoever records a job of the past gives its times.
        elif now.at - max(since, self._first or 0) > self._patience(doing, stepped=now.stepped):
            self._spoilt = True
            self._open(key, IncidentKind.HANG, doing, since, now.at, changed, cost=now.at - since)

    def _patience(self, doing: Source, *, stepped: bool) -> int:
        """How long a step may take to be completed while that goes on, ns."""
        limits, phase = self.limits, doing.phase
        usual = self._usual.turn or (fmean(turn(one, one.phases()) for one in self._lately) if self._lately else 0)
        known = max(limits.hang, round(HANG_FACTOR * usual))
        if not stepped:  # the first one of this job
            return limits.start or limits.unknown
        lasted = self._lasted.get(phase, ())
        if phase.whole in LOOPING or (phase in self._usual.parts and max(lasted, default=0) < limits.hang):
            # Something may be in some steps that nothing tells of, such as an evaluation; one long step may have hung.
            return max(known, round(LONG * lasted[0])) if len(lasted) > 1 else known
        return max(known, HANG_FACTOR * lasted[-1]) if lasted else limits.unknown

    # --- slowdowns ----------------------------------------------------------------------------------------------------

    def _compare(self, window: Window, changed: dict[int, Incident]) -> None:
        """Compare the turns of a window with the usual ones."""
        usual, limits, key = self._usual, self.limits, (IncidentKind.SLOWDOWN, None)
        if usual.known and usual.deviation > NOISY * usual.turn and self._length < LONGEST and not self.open:
            self._length *= 2
            usual.merge()
            self._lately.clear()
            self._suspects.clear()
            self._sum = 0.0
        self._lately.append(window)
        if not usual.known:
            usual.add([window])
            return
        recent = [*self._phases][-LATELY * self._length :]
        often = Counter(source for phases in recent for source in phases)
        since = self._suspects[0].begin if self._suspects else self._lately[0].begin
        new = {one for one, count in often.items() if count >= OFTEN_LATELY * self._length and usual.seldom(one)}
        new -= {one for one in new if self._episodes.known(one, since)}
        # What is "single" in one window after the other no longer is.
        in_a_row = frozenset[Source]().union(*recent[-1:]).intersection(*recent[-ROW:])
        new |= {one for one in in_a_row if one != one.whole and usual.seldom(one)}
        if key in self.open:
            parts = self._parts | new
            self._go_on(window, self._excess(window, parts), parts, changed)
            return
        parts = usual.parts | new
        if not parts <= self._compared:  # a phase has become a part of the turns: since it was first seen lately
            self._sum = 0.0
            self._suspects.clear()
            for one in list(self._lately)[:-1]:
                self._add(one, parts)
        self._compared = parts
        self._add(window, parts)
        if not self._suspects:
            return
        expected = usual.turn + usual.more(parts)
        if self._sum >= ALARM and self._lately_taken(parts) >= expected * (1 + 0.8 * limits.loss):
            sums = Sums(self._suspects)
            # What goes on since then, and hardly ever did before, belongs to it, as compilations that slow steps, too.
            least = OFTEN * len(self._suspects)
            newcomers = Counter(source for one in self._suspects for source in one.phases() if usual.seldom(source))
            parts |= {one for one, n in newcomers.items() if n >= least and not self._episodes.known(one, sums.begin)}
            self._during, self._parts, self._recovery, self._better = sums, parts, 0.0, None
            self._suspects.clear()
            shares = self._shares(sums, parts)
            self._open(key, IncidentKind.SLOWDOWN, _cause(shares), sums.begin, window.end, changed)
            self._update(key, changed, **self._cost(sums, parts, shares))
        elif len(self._suspects) >= REMEMBERED:  # slightly more than usual for long
            self._sum = 0.0
            usual.add(self._suspects)
            self._suspects.clear()

    def _lately_taken(self, parts: frozenset[Source]) -> float:
        """Return what a turn takes in the latest suspects, of as few as are enough for an alarm, ns."""
        sums, excess = Sums(), 0.0
        for window in reversed(self._suspects):
            sums.add(window)
            excess += self._excess(window, parts)
            if excess >= ALARM:
                break
        return sum(spent for source, spent in sums.each().items() if source.phase in parts)

    def _excess(self, window: Window, parts: frozenset[Source]) -> float:
        """Return by how many deviations the turns of a window take more than they should, within limits."""
        usual, more = self._usual, self._usual.more(parts)
        least = max((usual.turn + more) * (1 + self.limits.loss / 2), usual.high + more) + usual.unsure
        return max(-CLIPPED, min(CLIPPED, (turn(window, parts) - least) / (usual.noise or 1.0)))

    def _add(self, window: Window, parts: frozenset[Source]) -> None:
        """Add a window to the cumulative sum; if that is zero, nothing is wrong."""
        self._sum = max(0.0, self._sum + self._excess(window, parts))
        if self._sum:
            self._suspects.append(window)
            return
        self._usual.add([*self._suspects, window])
        self._suspects.clear()

    def _go_on(self, window: Window, excess: float, parts: frozenset[Source], changed: dict[int, Incident]) -> None:
        """Take a window while a slowdown is open."""
        key, during = (IncidentKind.SLOWDOWN, None), self._during
        assert during is not None, "a slowdown is open"
        self._recovery = max(0.0, self._recovery - excess)
        if not self._recovery:
            if self._better is not None:  # it went on after all
                during.add(self._better)
                self._better = None
            during.add(window)
        else:
            self._better = self._better or Sums()
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

    def _cost(self, sums: Sums, parts: Iterable[Source], shares: Sequence[Share]) -> dict[str, Any]:
        lost = [share for share in shares if share.lost > 0][:SHARES]
        before, chosen = self._usual.turn + self._usual.more(parts), frozenset(parts)
        after = sum(spent for source, spent in sums.each().items() if source.phase in chosen)
        cost = max(0, round((after - before) * sums.steps))
        return {"cost": cost, "shares": tuple(lost), "before": round(before), "after": round(after)}

    # --- phases that are no part of the turns -------------------------------------------------------------------------

    def _look_for_episodes(self, now: Observation, changed: dict[int, Incident]) -> None:
        start, episodes = self._start, self._episodes
        pending = Counter[Source]() if start is None or now is start else between(start, now).phases()
        present = dict.fromkeys(pending, (now.at, 0)) | episodes.open
        for source in present.keys() - self._usual.parts:
            if source != source.whole:
                continue  # that it is there now and then is a guess; if it takes too long, the step or load hangs
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
        key = (IncidentKind.RESTART_LOOP, None)
        if key in self.open:
            began = self.open[key].began
            if now.setbacks:
                self._update(key, changed, cost=now.at - began)
            else:
                self._end(key, now.at, changed, cost=now.at - began)
        elif now.setbacks >= self.limits.setbacks:
            began, reason = now.setback
            cause = Source(Category.INFRASTRUCTURE_RECOVERY, reason)
            self._open(key, IncidentKind.RESTART_LOOP, cause, began, now.at, changed, cost=now.at - began)

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
        self.number += 1
        incident = Incident(self.number, kind, source, began, opened, None, cost, (Share(source, cost),))
        self.open[key] = changed[incident.number] = incident

    def _update(self, key: Key, changed: dict[int, Incident], **more: Any) -> None:
        incident = self.open[key]._replace(**more)
        if more.keys() == {"cost"}:
            incident = incident._replace(shares=(Share(incident.source, incident.cost),))
        self.open[key] = changed[incident.number] = incident

    def _end(self, key: Key, ended: int, changed: dict[int, Incident], **more: Any) -> None:
        self._update(key, changed, **more)
        incident = self.open.pop(key)
        changed[incident.number] = incident._replace(ended=max(incident.began, ended))


def _growing(before: Observation | None, now: Observation) -> Source | None:
    """Return what most time went to since the observation before; None if nothing is known of that time."""
    earlier = {} if before is None else before.times
    grown = {source: spent - earlier.get(source, 0) for source, spent in now.times.items()}
    source = max(grown, key=lambda one: (grown[one], one), default=None)
    if source is None or grown[source] <= 0:
        return None
    return Source(STEP, source.name, source.rank) if source.category in _OF_STEPS else source


def _cause(shares: Sequence[Share]) -> Source:
    """Return what most of the lost time went to: of one rank, if that has most of it."""
    phases = Counter[Source]()
    for share in shares:
        # Also less: of many ranks, each has more than usual now and then.
        phases[share.source.phase.whole] += share.lost
    if not phases:
        return Source(STEP)
    phase, lost = phases.most_common(1)[0]
    most = next(share for share in shares if share.source.phase.whole == phase)
    return most.source.whole if most.lost >= OF_ONE * lost else phase
