"""What is new of a running job since the last look, span by span: for a page that is looked at, second after second.

Each look costs as much as there is new, and a few steps before it: what the device did before decides when it began
with a step. A span that was open and ends later comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.overview import IN_FLIGHT, NOT_KNOWN
from otel_goodput._journal.records import Record, unsigned
from otel_goodput._timeline.following import Follower
from otel_goodput.reports.detail import NO_KEY, Detail, Phase, read_part
from otel_goodput.semconv import FALLBACK_CLOCKS

MOST: Final = 600  # new records that are shown; of more, only the last ones, for these take 1 % of a core
_LEAD: Final = 3  # steps before those that are not over, which are accounted for again
_HELD: Final = 4 * MOST
_ENDS: Final = frozenset({ev.DEVICE_END, ev.UNOBSERVED})
_OF_SPANS: Final = frozenset({ev.START, ev.END, ev.OBSERVED, ev.DEVICE_END, ev.UNOBSERVED, ev.DURABLE})


class News(NamedTuple):
    """What happened since the last look; times in ns by the account's clock.

    Attributes:
        detail: every span that has begun, ended or left the device; who owned the time since the begin of the oldest
            step that was in flight at the last look.
        begin, until: `detail` has all spans that began in this time.
        cut: there was more: `detail` has nothing of the time before `begin`, and no owners. It has every span that is
            still open, so that a span that was open before, and is not in it, is over.
    """

    detail: Detail
    begin: int
    until: int
    cut: bool


class Tail:
    """Remembers how much of a followed journal was shown."""

    def __init__(self) -> None:
        self._of = (-1, -1)  # how often the journal was restored, attempt
        self._seen = 0
        self._records: list[Record] = []
        self._marks: dict[int, int] = {}  # phases by the keys of their marks on the device
        self._until = 0
        self._unsettled = 0  # from here on owners may change: a step was in flight
        self._whole = 0  # of steps that began earlier, phases inside may not be known: nor is their own time

    def news(self, follower: Follower, at: int) -> News | None:
        """Return what is new at `at` (ns by the account's clock), a moment at which the journal has been polled.

        None if that is not known: this is the first look, an attempt has begun, or the journal was read anew.
        """
        count, self._seen = follower.count - self._seen, follower.count
        recent = list(follower.recent)
        fresh = [one.record for one in recent[max(0, len(recent) - count) :] if one.attempt == follower.attempt]
        of = follower.restored, follower.attempt
        known, self._of = of == self._of, of
        begin, since = self._until, self._unsettled
        self._until = self._unsettled = at
        shift = follower.ledger.settled.shift
        cut = count > MOST or len(self._records) > _HELD
        if not known or cut:
            fresh = fresh[-MOST:]
            self._begin_anew(follower, fresh)
            begin = self._whole = min((one.time + shift for one in fresh if one.kind == ev.START and cut), default=at)
        self._records += fresh
        if not known:
            return None
        parts = [(follower.attempt, self._records)]
        numbering = [one._replace(attempt=one.attempt + 1) for one in follower.ledger.settled.steps.stretches]
        detail = read_part(parts, at, None, dead=False, shifts={follower.attempt + 1: shift}, numbering=numbering)
        news = News(self._about(detail, self._records if cut else fresh, at if cut else since, at), begin, at, cut)
        self._unsettled = min((one.begin for one in detail.steps if one.fate == IN_FLIGHT), default=at)
        self._forget()
        return news

    def _begin_anew(self, follower: Follower, fresh: Sequence[Record]) -> None:
        """Remember only what is open and does not begin in `fresh`."""
        begun = {one.key for one in fresh if one.kind == ev.START}
        clock = FALLBACK_CLOCKS.index(follower.ledger.settled.fallback)
        opened = [_record(one) for one in follower.ledger.opened if one.key not in begun]
        first = min((one.time for one in (*opened, *fresh)), default=0)
        self._records = [Record(ev.CLOCK, clock, 0, "", 0, ev.NO_STEP, first), *opened]
        self._marks.clear()

    def _about(self, detail: Detail, about: Iterable[Record], since: int, until: int) -> Detail:
        """Return what `detail` has of the spans that the records `about` are about, and the owners of that time."""
        wanted = set()
        for one in about:
            if one.kind == ev.MARK:
                self._marks[one.key] = unsigned(one.step)
                wanted.add(unsigned(one.step))
            elif one.kind in _OF_SPANS:
                wanted.add(self._marks.get(one.key, one.key))
        steps = [(at, one) for at, one in enumerate(detail.steps) if one.key in wanted]
        phases = _with_parents(detail.phases, wanted)
        places = {at: place for place, (at, _) in enumerate(steps)}
        places |= {-1 - at: -1 - place for place, (at, _) in enumerate(phases)}
        return Detail(
            detail.begin,
            detail.reached,
            detail.names,
            steps=[one if one.begin >= self._whole else one._replace(net=NOT_KNOWN) for _, one in steps],
            phases=[one for _, one in phases],
            owners=[
                (max(begin, since), min(end, until), category)
                for begin, end, category in detail.owners
                if max(begin, since) < min(end, until)
            ],
            work=[(begin, end, places[row]) for begin, end, row in detail.work if row in places],
        )

    def _forget(self) -> None:
        """Keep the last steps, and what is open or awaited on the device."""
        opened, awaited, steps = set[int](), set[int](), list[int]()
        for at, one in enumerate(self._records):
            if one.kind == ev.START:
                opened.add(one.key)
                if one.phase == rules.STEP:
                    steps.append(at)
            elif one.kind == ev.END:
                opened.discard(one.key)
            if one.kind in (ev.OBSERVED, ev.MARK) or (one.kind == ev.END and one.flags & ev.ON_DEVICE):
                awaited.add(one.key)
            elif one.kind in _ENDS:
                awaited.discard(one.key)
        going = [at for at, place in enumerate(steps) if self._records[place].key in opened | awaited]
        first = min([len(steps), *going]) - _LEAD
        first = steps[first] if first > 0 else 0
        kept = opened | awaited | {self._marks[key] for key in awaited if key in self._marks}
        self._records = [
            one for at, one in enumerate(self._records) if at >= first or one.key in kept or one.kind == ev.CLOCK
        ]
        keys = {one.key for one in self._records}
        self._marks = {key: owner for key, owner in self._marks.items() if key in keys}


def _record(event: Event) -> Record:
    return Record(event.kind, event.phase, event.flags, event.name, event.key, event.step, event.time)


def _with_parents(phases: Sequence[Phase], wanted: set[int]) -> list[tuple[int, Phase]]:
    """Return the wanted phases and those around them, with their places; not a job without a begin."""
    by_key = {one.key: one for one in phases}
    waiting = list(wanted)
    while waiting:
        around = by_key.get(waiting.pop())
        if around is not None and around.parent in by_key and around.parent not in wanted:
            wanted.add(around.parent)
            waiting.append(around.parent)
    return [(at, one) for at, one in enumerate(phases) if one.key in wanted and one.key != NO_KEY]
