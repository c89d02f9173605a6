"""When a step stands still (rule R10): the usual time of the steps of a loop, and which long steps are usual after all.

A step's account is cut off at its *limit*, so time that stalls is known while it passes. Only if long steps turn out to
be usual is it given back. Other phases that took far longer than usual are only reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import rules
from otel_goodput._accounting.codec import (
    COUNT,
    NUMBER,
    PHASE,
    TEXT,
    Blobs,
    Each,
    Optional,
    Pairs,
    Part,
    Row,
    State,
    Whole,
    field,
)
from otel_goodput._accounting.stats import median
from otel_goodput.semconv import PHASES

NO_LIMIT: Final = 1 << 62
LOOPS: Final = 16  # loops of one attempt; if there are more, the oldest is forgotten
REMEMBERED: Final = 1_000  # kept steps that stalled; the stalled time of older ones stays that of kept steps

HELD: Final = 2 * rules.USUAL_SAMPLE  # times that are held: to forget the oldest each time costs more than the rest
Took = tuple[int, int]  # number of a step, and its own time with what stalled, ns
_TOOK: Final = Row(NUMBER, COUNT)


class LongSteps(NamedTuple):
    """Every `every`-th step of a loop takes `long` ns, the usual one `usual` ns."""

    every: int
    long: int
    usual: int


def limit_of(times: Sequence[int]) -> int:
    """The longest time that is not out of the ordinary where the latest steps took `times`, ns; not empty."""
    usual = median(times[-rules.USUAL_SAMPLE :])
    return max(rules.STALLED_FACTOR * usual, usual + rules.STALLED_SLACK)


SINGLE: Final = 2  # what takes more than so many times as long as usual, and longer by
SINGLE_SLACK: Final = 250_000_000  # ns, which is much in a window of some seconds, is out of the ordinary,
ROW: Final = 4  # unless so many do so in a row: then they are usual.
SAMPLED: Final = 64  # Else the latest are, which are looked at each time there are so many more
_FIRST_SAMPLE: Final = 8


class Singles(State):
    """How much longer than usual single ones take: steps with an evaluation in them, or the first load of an epoch.

    Attributes:
        excess: by how much all that were out of the ordinary took longer than usual, ns.
        usual: what the latest ones took, ns; -1 while it is not known.
    """

    excess: int = field(COUNT, 0)
    usual: int = field(NUMBER, -1, key="usual_time")
    _latest: list[int] = field(Each(NUMBER, SAMPLED), make=list)
    _due: int = field(Whole(1, SAMPLED + 1), _FIRST_SAMPLE)  # so many more, and what is usual is looked at again
    _row: list[int] = field(Each(NUMBER, ROW), make=list)

    def add(self, times: Sequence[int], stalled: int = 0) -> None:
        """Take how long the next ones took, ns; so much of it is counted as stalled."""
        begin = 0
        while begin < len(times):
            part = times[begin : begin + self._due]
            begin += len(part)
            if self._single(max(part)):
                for time in part:
                    self._take(time, stalled)
            elif self._row:
                self._row = []
            self._latest += part
            self._due -= len(part)
            if not self._due:
                self.usual, self._due = max(0, median(self._latest)), min(2 * len(self._latest), SAMPLED)
                self._latest = []

    def _single(self, time: int) -> bool:
        return self.usual >= 0 and time > max(SINGLE * self.usual, self.usual + SINGLE_SLACK)

    def _take(self, time: int, stalled: int) -> None:
        if not self._single(time):
            self._row = []
            return
        more = max(0, time - stalled - self.usual)
        self.excess += more
        self._row = [*self._row, more]
        if len(self._row) == ROW:
            self.excess -= sum(self._row)
            self.usual, self._row = self.usual + median(self._row), []

    def split(self, time: int) -> tuple[int, int]:
        """Return the usual time and the excess of one that is not over and takes so long so far, ns."""
        return (self.usual, time - self.usual) if self._single(time) else (time, 0)


class Outside(State):
    """What turns of the loop take outside of their steps, in one job: loads, and what nothing tells of (other)."""

    loads: Singles = field(Part(lambda: Singles), make=Singles)
    others: Singles = field(Part(lambda: Singles), make=Singles)
    # Time of both when the latest step was over, ns; None: none was.
    _at: tuple[int, int] | None = field(Optional(Row(NUMBER, NUMBER)), key="at_end_of_step")

    def end_turns(self, at: Sequence[tuple[int, int]]) -> None:
        """Take the times of loads, and of other, at the ends of the next steps, ns."""
        if self._at is not None:
            at = [self._at, *at]
        loads, others = zip(*at, strict=True)
        self.loads.add([*map(sub, loads[1:], loads)])
        self.others.add([*map(sub, others[1:], others)])
        self._at = at[-1]

    def end_loads(self, totals: Sequence[int], loads: Sequence[int]) -> None:
        """Take the loads of the next turns, ns, in which there is no other time since those `totals`, by category."""
        if not loads:
            return
        loaded, other = totals[rules.DATA_LOADING_TIME], totals[rules.OTHER]
        if self._at is not None:
            self.loads.add([loaded + loads[0] - self._at[0], *loads[1:]])
            self.others.add([other - self._at[1], *[0] * (len(loads) - 1)])
        else:
            self.loads.add(loads[1:])
            self.others.add([0] * (len(loads) - 1))
        self._at = loaded + sum(loads), other

    def excess(self, totals: Sequence[int]) -> tuple[int, int]:
        """By how much single loads, and single times between steps, took longer than usual up to these `totals`, ns."""
        (_, loads), (_, others) = self._open(totals)
        return self.loads.excess + loads, self.others.excess + others

    def unfinished(self, totals: Sequence[int]) -> tuple[int, int]:
        """Usual time of loads, and between steps, up to these `totals`, of the turn that is not over, ns."""
        (loads, _), (others, _) = self._open(totals)
        return loads, others

    def _open(self, totals: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Usual time and excess of loads, and between steps, of the turn that is not over, ns."""
        if (at := self._at) is None:
            return (0, 0), (0, 0)
        loads, others = totals[rules.DATA_LOADING_TIME] - at[0], totals[rules.OTHER] - at[1]
        return self.loads.split(loads), self.others.split(others)


_NO_SINGLES: Final = Singles().to_plain(Blobs())


class Loop(State):
    """The steps of one loop in one attempt.

    Attributes:
        times: own times of the latest completed steps, of at least so many as are compared, ns.
        row, longs: the long ones among the latest steps, as long as all of them are long; the latest long ones.
        origin, distance: every `distance` steps from `origin` on, a step is a long one; a distance of 0: none is.
        long_times: own times of the latest of these, ns.
        singles: steps that take longer than usual now and then.
    """

    times: list[int] = field(Each(COUNT, HELD), make=list)
    row: list[Took] = field(Each(_TOOK, rules.STALLED_FROM - 1), make=list)
    longs: list[Took] = field(Each(_TOOK, rules.STALLED_RECURRING), make=list)
    origin: int = field(NUMBER, 0)
    distance: int = field(COUNT, 0)
    long_times: list[int] = field(Each(COUNT, rules.USUAL_SAMPLE), make=list)
    singles: Singles = field(Part(lambda: Singles), make=Singles, absent=_NO_SINGLES)

    def loaded(self) -> None:
        if self.distance and not self.long_times:
            raise ValueError("no long steps recur")

    def recurs(self, number: int) -> bool:
        """Whether the step with this number is expected to be a long one."""
        return self.distance > 0 and (number - self.origin) % self.distance == 0

    def limit(self, number: int, fixed: int) -> int:
        """The limit of a step, ns: `fixed`, or from the usual time if that is 0."""
        if len(self.times) < rules.STALLED_FROM - 1:
            return NO_LIMIT
        return fixed or limit_of(self.long_times if self.recurs(number) else self.times)

    @property
    def ceiling(self) -> int | None:
        """What a step takes without a profiler, ns (rule R12); None if too few are known."""
        latest = self.times[-rules.PROFILED_SAMPLE :]
        return max(latest) if len(latest) >= rules.STALLED_FROM - 1 else None

    @property
    def long_steps(self) -> LongSteps | None:
        """The long steps, if some recur."""
        if not self.distance:
            return None
        return LongSteps(self.distance, median(self.long_times), median(self.times[-rules.USUAL_SAMPLE :]))

    def extend(self, times: Sequence[int], stalled: int = 0) -> None:
        """Take completed steps, none of which is near its limit; or a single one, of which so much stalled, ns."""
        self.times += times
        self.singles.add(times, stalled)
        if len(self.times) > HELD:
            del self.times[: -rules.USUAL_SAMPLE]
        if self.row:
            self.row = []

    def complete(self, number: int, took: int, *, stalled: int, fixed: int) -> Sequence[int]:
        """Take a completed step that owned `took` ns, of which so many `stalled`; its limit is `fixed`, or 0.

        Returns the numbers of the long steps that are usual after all.
        """
        if took > rules.STALLED_SLACK and self.recurs(number) and took > limit_of(self.times):
            self.long_times = [*self.long_times, took][-rules.USUAL_SAMPLE :]
        if not stalled or fixed:
            self.extend((took,), stalled)
            return ()
        row = [*self.row, (number, took)]
        self.extend((took,), stalled)
        self.row = row
        self.longs = [*self.longs, (number, took)][-rules.STALLED_RECURRING :]
        if len(row) == rules.STALLED_FROM:
            self.times = [time for _, time in row]
            self.row, self.longs, self.long_times, self.distance = [], [], [], 0
            return [one for one, _ in row]
        numbers = [one for one, _ in self.longs]
        distance = numbers[-1] - numbers[-2] if len(numbers) == rules.STALLED_RECURRING else 0
        if distance < 2 or numbers[-2] - numbers[-3] != distance:
            return ()
        self.origin, self.distance = number, distance
        self.long_times = [time for _, time in self.longs]
        self.longs = []
        return numbers


COMPARED: Final = frozenset({rules.DATA_LOADING, rules.SAVE, rules.RESTORE, rules.CUSTOM_PHASE})
GROUPS: Final = 64  # of phases by name; those of further names are not compared
SAMPLE: Final = 100  # latest phases of a group that are compared with; up to twice as many are held


class LongPhase(NamedTuple):
    """Phases of one name that took longer than their limit: how many, by how much in sum, and the longest, ns."""

    number: int
    excess: int
    longest: int


_NAMED: Final = Row(PHASE, TEXT)


class LongPhases(State):
    """Compares each phase that held up training with the latest ones of its name."""

    too_long: dict[tuple[int, str], LongPhase] = field(
        Pairs(_NAMED, Row(COUNT, COUNT, COUNT, make=LongPhase._make), GROUPS), make=dict, key="too_long"
    )
    _times: dict[tuple[int, str], list[int]] = field(Pairs(_NAMED, Each(NUMBER, 2 * SAMPLE), GROUPS), make=dict)

    def add(self, phase: int, name: str, lengths: Sequence[int]) -> None:
        """Take successive phases of one name that ended, and how long each took, ns."""
        key = phase, name
        times = self._times.get(key)
        if times is None:
            if len(self._times) >= GROUPS:
                return
            times = self._times[key] = []
        if max(lengths) <= rules.STALLED_SLACK:
            times += lengths
        else:
            for length in lengths:
                known = length > rules.STALLED_SLACK and len(times) >= rules.STALLED_FROM - 1
                if known and length > (limit := limit_of(times[-SAMPLE:])):
                    number, excess, longest = self.too_long.get(key, (0, 0, 0))
                    self.too_long[key] = LongPhase(number + 1, excess + length - limit, max(longest, length))
                times.append(length)
        if len(times) > 2 * SAMPLE:
            del times[:-SAMPLE]


def to_json(phases: Mapping[tuple[int, str], LongPhase]) -> list[dict[str, Any]]:
    """What a report has of them; lengths in seconds."""
    return [
        {
            "phase": PHASES[phase],
            "name": name,
            "count": one.number,
            "excess_s": one.excess / 1e9,
            "longest_s": one.longest / 1e9,
        }
        for (phase, name), one in sorted(phases.items(), key=lambda item: -item[1].excess)
    ]
