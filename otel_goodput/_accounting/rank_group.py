"""Ranks that step together: the ledger of what they do, and what each of them costs (rule R11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from heapq import merge
from itertools import chain, takewhile
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.cost_bins import CostBins
from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN, Event
from otel_goodput._accounting.job_events import JobEvents
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.rank_alignment import RankAlignment
from otel_goodput._accounting.rank_columns import FEWEST, ColumnMerger, RankWalk
from otel_goodput._accounting.ranks import NEVER, JobStep, Piece, RankMerger, RankStep, Stretch
from otel_goodput._accounting.rules import NS, SAVE
from otel_goodput._accounting.totals import Brief, Totals

TOGETHER: Final = 1024  # steps of each rank that are decided together
AGAIN: Final = 60 * NS  # a job that waits for the same within so long has waited all the time
_FOR_ALL: Final = frozenset({ev.DURABLE, ev.LABEL, ev.NOTICE, ev.LIMIT, ev.LOOP, ev.SLICES})


def holds_for_job(event: Event, covers: Mapping[int, int]) -> Iterable[Event]:
    """Return what an event of the leader says of the job; nothing if it is about the leader's time only.

    That is which checkpoints there are (not how long it takes to save them, which is in the pieces of the ranks),
    announced ends, limits of steps, and counts of slices. `covers` is the latest step that a save stands for, by key.
    """
    if event.kind in _FOR_ALL:
        return (event,)
    if event.phase != SAVE or event.kind not in (ev.START, ev.END):
        return ()
    if event.kind == ev.END:
        return (event,)
    begin = event._replace(flags=ev.NONBLOCKING | ev.COVERS, step=covers.get(event.key, NO_STEP))
    return (begin, Event(event.time, ev.LABEL, 0, event.key, event.step)) if event.step >= 0 else (begin,)


class Cause(NamedTuple):
    """Why a job waits: for which rank, and what that does (category number and custom name)."""

    rank: int
    category: int
    name: str


class Costs:
    """The time for which the job waited for single ranks, ns, in bins over time, and the latest time: from, to."""

    def __init__(self) -> None:
        self.whole: dict[Cause, int] = {}
        self.latest: dict[Cause, tuple[int, int]] = {}
        self.over_time = CostBins[Cause]()

    def add(self, stretch: Stretch) -> None:
        """Add time in which the job waits for a rank; not before what was added last."""
        cause = Cause(stretch.rank, stretch.category, stretch.name)
        begin, end = stretch.begin, stretch.end
        self.whole[cause] = self.whole.get(cause, 0) + end - begin
        self.over_time.add(cause, begin, end)
        before = self.latest.get(cause)
        self.latest[cause] = (before[0] if before is not None and begin - before[1] <= AGAIN else begin, end)

    @classmethod
    def summed(cls, every: Sequence[tuple[int, Costs]], devices: int) -> Costs:
        """Return what costs of different ranks cost a job of so many `devices`, of which each has its number."""
        whole, times = cls(), list[tuple[int, int, Cause]]()
        for weight, costs in every:
            whole.whole.update({cause: spent * weight // devices for cause, spent in costs.whole.items()})
            whole.latest.update(costs.latest)
            width = costs.over_time.width
            for number, held in costs.over_time.bins.items():
                begin = number * width
                times += [(begin, begin + spent * weight // devices, cause) for cause, spent in held.items()]
        for begin, end, cause in sorted(times):
            whole.over_time.add(cause, begin, end)
        return whole


class RankGroup:
    """Accounts ranks as if they step together.

    Args:
        spans: lengths of rolling windows, ns.
        spread: how far clocks of two ranks may be apart, ns.
        ledger: the account so far, to continue.
        record: takes the events of the job in place of the ledger. Who gives it feeds them to the ledger, too.
        expected: ranks that have not joined yet, without which nothing is decided.
    """

    def __init__(
        self,
        spans: Sequence[int] = (),
        spread: int = 0,
        ledger: Ledger | None = None,
        record: Callable[[Iterable[Event]], None] | None = None,
        expected: set[int] | None = None,
    ) -> None:
        self.ledger = Ledger(spans) if ledger is None else ledger
        self.costs = Costs()
        settled = self.ledger.settled
        reached = NOT_KNOWN if settled.begin is None else settled.now
        self.merger: RankMerger = ColumnMerger(spread, reached, expected, self._is_saved)
        self._alignment = RankAlignment(lambda *what: self.merger.feed(*what), lambda: bool(self.merger.expected))
        self._events = JobEvents(self.ledger)
        self._record = self.ledger.feed if record is None else record
        self._leaders: deque[Event] = deque()
        self._limit: Event | None = None  # of steps, that the leader set last
        self._silent = NOT_KNOWN  # the last sign of life of the job, ns, if it is away

    def _is_saved(self, number: int, begin: int, end: int) -> bool:
        """Whether a checkpoint that the leader began to save between two moments (ns) is durable and has a step."""
        saves = set[int]()
        for event in self._leaders:
            if event.kind in (ev.END, ev.DURABLE):
                if event.key in saves and not event.flags & (ev.FAILED | ev.PENDING):
                    return True
            elif event.time > end and not saves:
                break
            elif event.flags & ev.COVERS and event.kind == ev.START and begin <= event.time and event.step >= number:
                saves.add(event.key)
        return False

    @property
    def horizon(self) -> int:
        """The latest moment (ns) of which the account can be given; ``NOT_KNOWN`` if nothing was reported."""
        return self.merger.horizon

    def alone(self, rank: int) -> RankGroup:
        """Return an account of `rank` by itself of the time from now on."""
        twin = RankGroup(self.ledger.settled.spans)
        twin.merger = self.merger.alone(rank)
        return twin

    def join(self, rank: int, begin: int) -> None:
        """Note that the job of `rank` begins at `begin` (ns), maybe again."""
        self._alignment.join(rank)
        self.merger.join(rank, begin)

    def leave(self, rank: int, end: int, *, died: bool, gone: int = NEVER) -> None:
        """Note that the job of `rank` ended at `end` (ns), or that its process `died`, and gave its last sign then.

        In an attempt that began at `gone` (ns) there is no such rank.
        """
        self._alignment.leave(rank, lambda: self.merger.leave(rank, end, died=died, gone=gone))
        self._take()

    def set_aside(self, rank: int) -> None:
        """Go on without `rank`, of which nothing is known any longer, until more of it is reported."""
        self._alignment.leave(rank, lambda: self.merger.set_aside(rank))
        self._take()

    def feed(self, rank: int, steps: Sequence[RankStep], pieces: Sequence[Piece], known: int, size: int = 0) -> None:
        """Take what `rank` did up to `known` (ns), in order. A step that was open the last time comes again, first.

        The steps are groups of `size`; 0: all of them are single ones, however many.
        """
        self._alignment.spread = self.merger.spread
        self._alignment.take(rank, steps, pieces, known, size)
        self._take()

    def release(self) -> None:
        """Decide what can be without knowing how other ranks group the same steps."""
        self._alignment.release()
        self._take()

    def feed_whole(self, ranks: Mapping[int, RankWalk], arithmetic: Arithmetic = PLAIN) -> None:
        """Take all that `ranks` did."""
        walks, most, more = dict(ranks), FEWEST, 0
        while walks:
            done, merger = 0, self.merger
            coming = ((rank, walk.ahead(most)) for rank, walk in walks.items())
            ahead = {rank: columns for rank, columns in takewhile(itemgetter(1), coming) if columns is not None}
            if len(ahead) == len(walks) and isinstance(merger, ColumnMerger):
                done = merger.decide_columns(ahead, most, arithmetic)
                for walk in walks.values():
                    walk.pass_by(done)
            most = min(2 * max(done, FEWEST), TOGETHER)
            if done:
                more = 0
            else:
                number = max(walk.number for walk in walks.values()) + more
                for rank, walk in walks.items():
                    merger.feed(rank, *walk.until(number))
                walks = {rank: walk for rank, walk in walks.items() if not walk.over}
                more = min(2 * more + 1, FEWEST)
            self._take()

    def note(self, events: Iterable[Event]) -> None:
        """Take events of the leader that hold for the job: see :func:`holds_for_job`. They are in order of time."""
        self._leaders += events

    def _take(self) -> None:
        items = self.merger.take()
        if not items:
            return
        until, noted = items[-1].end, list[Event]()
        while self._leaders and self._leaders[0].time <= until:
            noted.append(self._leaders.popleft())
        events = list(self._with_noted(self._events.events(items), noted))
        self._record(events)
        self._limit = next((event for event in reversed(noted) if event.kind == ev.LIMIT), self._limit)
        for event in events:
            if event.kind in (ev.HEARTBEAT, ev.ATTEMPT):
                self._silent = event.time if event.kind == ev.HEARTBEAT else NOT_KNOWN
        for stretch in _waits(items):
            self.costs.add(stretch)

    def totals(self, at: int) -> Totals:
        """Return the totals at `at` (ns, no later than the horizon); beyond the end of all ranks, those at the end."""
        moment = self._moment(at)
        return self.ledger_at(moment).totals(moment)

    def brief(self, at: int) -> Brief:
        """A part of :meth:`totals`."""
        moment = self._moment(at)
        return self.ledger_at(moment).brief(moment)

    def _moment(self, at: int) -> int:
        return min(at, self.horizon) if self.merger.nobody else at

    def conclude(self, *, failed: bool) -> None:
        """Note that the job is over on all ranks: what is undecided counts. A rank that joins later begins it anew."""
        self.release()
        self.merger.decide()
        self._take()
        end, merger = self.horizon, self.merger
        self.costs = self.costs_at(end)
        # The leader may end later, by itself: a checkpoint that it commits then holds this rank's steps, too.
        noted = [event._replace(time=min(event.time, end)) for event in self._leaders]
        self._record(self._with_noted(self._events.events(merger.undecided(end)), noted))
        self._record(self._events.end(end, failed=failed))
        self._leaders.clear()
        self.merger = ColumnMerger(merger.spread, end, is_saved=self._is_saved)
        self.merger.common, self.merger.apart = merger.common, merger.apart

    def ledger_at(self, moment: int) -> Ledger:
        """Return the account up to `moment` (ns, not beyond the horizon), with what may still change."""
        ledger = self.ledger.clone()
        ledger.feed(self.undecided(moment))
        return ledger

    def undecided(self, at: int) -> Iterable[Event]:
        """Return the events of the job up to `at` (ns) that the ledger does not have, because they may change."""
        noted = [event for event in self._leaders if event.time <= at]
        events, items = copy(self._events), self.merger.undecided(at)
        going_on = events.go_on(at) if items and self.merger.slowest() != NEVER else ()
        return self._with_noted(chain(events.events(items), going_on), noted)

    def _with_noted(self, events: Iterable[Event], noted: Iterable[Event]) -> Iterator[Event]:
        """Yield `events` of the job and what the leader `noted`; it may have set a limit before the attempt began.

        What the leader does while the job is away is no sign of life of the job.
        """
        limit, silent = self._limit, self._silent
        for event in merge(events, noted, key=attrgetter("time")):
            if event.kind == ev.HEARTBEAT:
                silent = event.time
            elif event.kind == ev.ATTEMPT:
                silent = NOT_KNOWN
            yield event if silent == NOT_KNOWN else event._replace(time=silent)
            if event.kind == ev.LIMIT:
                limit = event
            elif event.kind == ev.ATTEMPT and limit is not None:
                yield limit._replace(time=event.time)

    def costs_at(self, at: int) -> Costs:
        """Return the costs up to `at` (ns), with those of a wait that goes on."""
        costs = deepcopy(self.costs)
        for stretch in _waits(self.merger.undecided(min(at, self.horizon))):
            costs.add(stretch)
        return costs


def _waits(items: Iterable[Stretch | JobStep]) -> Iterable[Stretch]:
    for item in items:
        for stretch in item.stretches if isinstance(item, JobStep) else (item,):
            if stretch.waits and stretch.begin < stretch.end:
                yield stretch
