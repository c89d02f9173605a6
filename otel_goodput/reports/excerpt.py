"""Parts of a run, span by span: the excerpt of one too long to show all (around starts, ends and disruptions, and
outliers), a window, and what is new of one that is followed second after second.

What is new costs as much as there is, and a few steps before it. A span that was open and ends later comes again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.overview import IN_FLIGHT, NOT_KNOWN, Overview, PhaseEntry, StepEntry
from otel_goodput._accounting.resuming import Numbering
from otel_goodput._journal.records import EXPORT, INTERRUPTED, Record, unsigned
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._text.quantities import format_duration
from otel_goodput._timeline.recovery import Follower
from otel_goodput._timeline.time_index import Part, TimeIndex, WindowRecords
from otel_goodput.reports import ProgressCallback, no_progress
from otel_goodput.reports import detail as flags_of
from otel_goodput.reports.detail import NO_KEY, Detail, Phase, Step, Undone, number_phases, read_part, undone_by
from otel_goodput.semconv import CLOCK_STATES, FALLBACK_CLOCKS, ClockState

JOBS: Final = 1000  # of more, only the first and the latest are shown
FIRST_JOBS: Final = 100
EDGE: Final = 1000  # steps at the begin and at the end of an attempt, if there is room
AROUND: Final = 50  # steps before and after a disruption
LEAD: Final = 20  # steps read before those that are shown, for what the device still had to do
_PER_STEP: Final = 3  # spans of a step, with what belongs to it
_RECORDS: Final = 400_000  # of one window
_RECORDS_EACH: Final = 6  # of a step or phase: its begin and end, its mark and device end, an error

Window = tuple[int, int]


@dataclass
class Excerpt:
    """Part of a run."""

    detail: Detail  # the steps and phases that are shown one by one
    windows: list[Window] = field(default_factory=list)  # (begin, end), ns, in order and apart: `detail` has all of it
    missing: list[str] = field(default_factory=list)  # what could not be read, for people

    def partition(self, overview: Overview, begin: int, end: int) -> tuple[Counter[int], bool]:
        """Return the time from `begin` to `end` by category number, ns, and whether it is exact.

        Whole bins are; the rest of a bin is where it lies in the windows, and else its share of the bin.
        """
        held: Counter[int] = Counter()
        exact, width = True, overview.width
        at = max(0, (begin - overview.begin) // width)
        for start, times in zip(count(overview.begin + at * width, width), overview.bins[at:], strict=False):
            if start >= end:
                break
            low, high = max(start, begin), min(start + width, end)
            if (low, high) == (start, start + width):
                held.update(times)
                continue
            row = bisect_right(self.windows, low, key=itemgetter(0)) - 1
            if row >= 0 and high <= self.windows[row][1] and (inside := self.detail.partition(low, high)):
                held.update(inside)  # it is empty where the journal is missing
            else:
                exact = False
                held.update(_share(times, high - low))
        return held, exact


def excerpt(
    run: RunDirectory, overview: Overview, *, spans: int, at: int, died: bool, progress: ProgressCallback = no_progress
) -> Excerpt:
    """Read the excerpt of the leader of a long run.

    Args:
        overview: of the whole run.
        spans: how many steps and phases, about.
        at: the moment of the account, ns.
        died: the leader died in its latest attempt.
        progress: called with windows read, all windows, and what is read.
    """
    at += _latest_shift(overview)
    cadence = _cadence(overview, at)
    windows = _windows(overview, at, cadence, spans)
    index, undone = TimeIndex(run, once=True), undone_by(overview.disruptions)
    shown = Excerpt(Detail(overview.begin, at, tuple(overview.names)))
    number = 0
    for done, (begin, end) in enumerate(windows):
        progress(done, len(windows), "windows of the journal")
        if number >= spans:
            shown.missing.append(f"{len(windows) - done} of {len(windows)} windows, for there are too many")
            break
        read = _between(index, overview, begin - LEAD * cadence, end, _RECORDS)
        shown.missing += [f"{name}: {why}" for name, why in read.missing]
        end = min(end, read.until)
        number += _add(shown.detail, _part(read, overview, end, undone, died=died), begin, end)
        shown.windows.append((begin, end))
    shown.detail = _with_notable(shown.detail, overview, spans - number)
    return shown


def window(
    index: TimeIndex, overview: Overview, begin: int, end: int, *, at: int, died: bool, most: int
) -> tuple[Detail, int]:
    """Return the detail of a window (ns), and until when that is whole.

    Arguments as for :func:`excerpt`; `most`: how many steps and phases, about.
    """
    at += _latest_shift(overview)
    end = min(end, at)
    lead = LEAD * _cadence(overview, at)
    read = _between(index, overview, begin - lead, max(begin, end), min(_RECORDS, most * _RECORDS_EACH))
    until = min(end, read.until)
    shown = Detail(overview.begin, until, tuple(overview.names))
    _add(shown, _part(read, overview, until, undone_by(overview.disruptions), died=died), begin, until)
    return shown, until


def _latest_shift(overview: Overview) -> int:
    return overview.shifts.get(overview.jobs[-1].attempt, 0) if overview.jobs else 0


def lives(overview: Overview, now: int) -> dict[int, tuple[int, int, bool]]:
    """Return begin, end and whether it ended well of each attempt that began a job, by its number."""
    known: dict[int, tuple[int, int, bool]] = {}
    for life in overview.jobs:
        begin, _, _ = known.get(life.attempt, (life.begin, 0, False))
        known[life.attempt] = begin, max(begin, now if life.end == NOT_KNOWN else life.end), life.clean
    return known


def _between(index: TimeIndex, overview: Overview, begin: int, end: int, most: int) -> WindowRecords:
    """Return the records from `begin` to `end` (ns by the account's clock), which each attempt has by its own clock."""
    if not overview.shifts:
        return index.between(begin, end, most)
    parts: list[Part] = []
    missing: list[tuple[str, str]] = []
    until, cut = end, False
    for attempt, (began, over, _) in lives(overview, end).items():
        if began > end or over < begin:
            continue
        shift = overview.shifts.get(attempt, 0)
        read = index.between(begin - shift, end - shift, most)
        parts += [part for part in read.parts if part.attempt == attempt - 1]
        missing += read.missing
        if read.cut:
            cut, until = True, read.until + shift
            break
    return WindowRecords(parts, until, cut, list(dict.fromkeys(missing)))


def _part(read: WindowRecords, overview: Overview, until: int, undone: Undone, *, died: bool) -> Detail:
    parts = [(one.attempt, one.records) for one in read.parts]
    # All attempts are over but the latest, and that one if its process died.
    dead = any(life.end == until for life in (overview.jobs if died else overview.jobs[:-1]))
    return read_part(parts, until, undone, dead=dead, shifts=overview.shifts, numbering=overview.numbering)


def _cadence(overview: Overview, at: int) -> int:
    """About how long it takes from one step to the next, ns."""
    count = sum(one.count for one in overview.step_bins)
    lived = sum((at if life.end == NOT_KNOWN else life.end) - life.begin for life in overview.jobs)
    return max(1, lived // max(1, count))


def _windows(overview: Overview, at: int, cadence: int, spans: int) -> list[Window]:
    """Return the windows to show, in order; none overlap."""
    jobs = list(overview.jobs)
    if len(jobs) > JOBS:
        del jobs[FIRST_JOBS : FIRST_JOBS - JOBS]
    lives = [(life.begin, at if life.end == NOT_KNOWN else life.end) for life in jobs]
    length = cadence * min(EDGE, max(AROUND, spans // (4 * _PER_STEP * max(1, len(lives)))))
    wanted: list[Window] = []
    for begin, end in lives:  # to the edge of a bin, if that is near
        until, since = begin + length // 2, end - length // 2
        later, before = (overview.begin - until) % overview.width, (since - overview.begin) % overview.width
        wanted.append((begin, min(end, until + later if later <= length else until)))
        wanted.append((max(begin, since - before if before <= length else since), end))
    attempts = {life.attempt for life in jobs}
    for loss in overview.disruptions:
        if loss.attempt is not None and loss.attempt not in attempts:
            continue
        since = loss.time if loss.died == NOT_KNOWN else loss.died
        wanted.append((since - AROUND * cadence, since))
        wanted.append((loss.time, min(at, loss.time + AROUND * cadence)))
    merged: list[Window] = []
    for begin, end in sorted(one for one in wanted if one[0] <= one[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _add(whole: Detail, part: Detail, begin: int, end: int) -> int:
    """Add what `part` has of [`begin`, `end`] to `whole`; return the number of steps and phases."""
    known = {(phase.attempt, phase.key) for phase in whole.phases}  # those that reach over several windows
    steps = [at for at, step in enumerate(part.steps) if begin <= step.begin <= end]
    phases = [
        at
        for at, phase in enumerate(part.phases)
        if phase.begin <= end
        and (phase.end == NOT_KNOWN or phase.end >= begin)
        and phase.key != NO_KEY
        and (phase.attempt, phase.key) not in known
    ]
    taken = _taken(part, steps, phases, _owners(part, whole.names, begin, end))
    first, first_phase = len(whole.steps), len(whole.phases)
    whole.steps += taken.steps
    whole.phases += taken.phases
    whole.work += [(start, stop, row + first if row >= 0 else row - first_phase) for start, stop, row in taken.work]
    whole.owners += taken.owners
    return len(steps) + len(phases)


def _taken(detail: Detail, steps: Sequence[int], phases: Sequence[int], owners: list[tuple[int, int, int]]) -> Detail:
    """Return a detail with some steps and phases of another one, given where they stand there, in this order."""
    places = {at: place for place, at in enumerate(steps)} | {-1 - at: -1 - place for place, at in enumerate(phases)}
    return replace(
        detail,
        steps=[detail.steps[at] for at in steps],
        phases=[detail.phases[at] for at in phases],
        owners=owners,
        work=[(begin, end, places[row]) for begin, end, row in detail.work if row in places],
        durable={},
    )


def _owners(part: Detail, names: Sequence[str], begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return who owned [`begin`, `end`]; custom categories are numbered by their place in `names`."""
    numbers = {
        at: rules.FIXED + names.index(name) if name in names else rules.OTHER
        for at, name in enumerate(part.names, rules.FIXED)
    }
    return [
        (max(start, begin), min(stop, end), numbers.get(category, category))
        for start, stop, category in part.owners
        if max(start, begin) < min(stop, end)
    ]


def _with_notable(detail: Detail, overview: Overview, room: int) -> Detail:
    """Return a detail with what the overview remembers one by one and no window has, all in order.

    That is slow and failed steps, and long and rare phases.
    """
    known_steps = {(one.attempt, one.key) for one in detail.steps}
    known_phases = {(one.attempt, one.key) for one in detail.phases}
    numbering = Numbering(overview.numbering)
    detail.steps += [_step(one, numbering) for one in overview.steps if (one.attempt, one.key) not in known_steps]
    more = [_phase(one, numbering) for one in overview.phases if (one.attempt, one.key) not in known_phases]
    detail.phases += sorted(more, key=lambda one: one.begin - one.end)[: max(0, room)]
    steps = sorted(range(len(detail.steps)), key=lambda at: detail.steps[at].begin)
    phases = sorted(range(len(detail.phases)), key=lambda at: detail.phases[at].begin)
    return _taken(detail, steps, phases, detail.owners)


def _step(one: StepEntry, numbering: Numbering) -> Step:
    given = numbering.given(one.attempt, one.begin, one.number)
    end = NOT_KNOWN if one.wall == NOT_KNOWN else one.begin + one.wall
    clock = CLOCK_STATES.index(ClockState.UNKNOWN)
    return Step(
        one.attempt, one.number, one.begin, end, one.net, NOT_KNOWN, NOT_KNOWN, one.fate, clock, flags_of.OUTLIER,
        one.key, given,
    )  # fmt: skip


def _phase(one: PhaseEntry, numbering: Numbering) -> Phase:
    flags = one.flags & (flags_of.NONBLOCKING | flags_of.FAILED)
    flags |= bool(one.flags & EXPORT) * flags_of.IN_TRACE | bool(one.flags & INTERRUPTED) * flags_of.INTERRUPTED
    phase = Phase(one.attempt, one.phase, one.name, one.begin, one.end, one.step, flags, one.key, given=one.step)
    number_phases([phase], numbering)
    return phase


def _share(held: Mapping[int, int], length: int) -> Counter[int]:
    """Return `length` ns in the proportions of a bin, or all of it if it has less."""
    whole = sum(held.values())
    if whole <= length:
        return Counter(held)
    shares = Counter({category: ns * length // whole for category, ns in held.items()})
    shares[max(held, key=lambda category: held[category])] += length - sum(shares.values())
    return shares


def summed_up(excerpt: Excerpt, overview: Overview, *, exact: bool) -> tuple[int, str]:
    """Return how many steps and phases are not shown one by one, and the sentence about it for people."""
    count = sum(group.count for group in overview.groups)
    shown = len(excerpt.detail.steps) + len(excerpt.detail.phases)
    left = max(0, count - shown)
    text = (
        f"This run has {count:,} steps and phases. {shown:,} of them are shown one by one: those at the start and "
        f"end of each attempt, around each disruption, and the unusual ones. The others are summed up in bins of "
        f"{format_duration(overview.width / 1e9)}, drawn hatched; these sums are exact."
    )
    if not exact:
        text += " The figures of single attempts are estimated to within one bin."
    if excerpt.missing:
        text += f" Not read: {'; '.join(excerpt.missing[:3])}."
    return left, text


# --- what is new ------------------------------------------------------------------------------------------------------

MOST: Final = 600  # new records that are shown; of more, only the last ones, for these take 1 % of a core
_LEAD: Final = 3  # steps before those that are not over, which are accounted for again
_HELD: Final = 4 * MOST
_ENDS: Final = frozenset({ev.DEVICE_END, ev.UNOBSERVED})
_OF_SPANS: Final = frozenset({ev.START, ev.END, ev.OBSERVED, ev.DEVICE_END, ev.UNOBSERVED, ev.DURABLE})


class News(NamedTuple):
    """What happened since the last look; times in ns by the account's clock.

    If there was too much (`cut`), `detail` has nothing of the time before `begin`, and no owners. It has every span
    that is still open, so that a span that was open before, and is not in it, is over.
    """

    # Every span that has begun, ended or left the device; who owned the time since the begin of the oldest step that
    # was in flight at the last look.
    detail: Detail
    begin: int  # `detail` has all spans that began from here on
    until: int  # until here
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
        fresh = [one.record for one in recent[max(0, len(recent) - count) :] if one.attempt == follower.state.attempt]
        of = follower.restored, follower.state.attempt
        known, self._of = of == self._of, of
        begin, since = self._until, self._unsettled
        self._until = self._unsettled = at
        shift = follower.state.ledger.settled.shift
        cut = count > MOST or len(self._records) > _HELD
        if not known or cut:
            fresh = fresh[-MOST:]
            self._begin_anew(follower, fresh)
            begin = self._whole = min((one.time + shift for one in fresh if one.kind == ev.START and cut), default=at)
        self._records += fresh
        if not known:
            return None
        parts = [(follower.state.attempt, self._records)]
        numbering = [one._replace(attempt=one.attempt + 1) for one in follower.state.ledger.settled.steps.stretches]
        detail = read_part(parts, at, None, dead=False, shifts={follower.state.attempt + 1: shift}, numbering=numbering)
        news = News(self._about(detail, self._records if cut else fresh, at if cut else since, at), begin, at, cut)
        self._unsettled = min((one.begin for one in detail.steps if one.fate == IN_FLIGHT), default=at)
        self._forget()
        return news

    def _begin_anew(self, follower: Follower, fresh: Sequence[Record]) -> None:
        """Remember only what is open and does not begin in `fresh`."""
        begun = {one.key for one in fresh if one.kind == ev.START}
        clock = FALLBACK_CLOCKS.index(follower.state.ledger.settled.fallback)
        opened = [
            Record(one.kind, one.phase, one.flags, one.name, one.key, one.step, one.time)
            for one in follower.state.ledger.opened
            if one.key not in begun
        ]
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
        steps = [at for at, one in enumerate(detail.steps) if one.key in wanted]
        phases = _with_parents(detail.phases, wanted)
        taken = _taken(detail, steps, phases, _owners(detail, detail.names, since, until))
        taken.steps = [one if one.begin >= self._whole else one._replace(net=NOT_KNOWN) for one in taken.steps]
        return taken

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


def _with_parents(phases: Sequence[Phase], wanted: set[int]) -> list[int]:
    """Return where the wanted phases and those around them stand; not a job without a begin."""
    by_key = {one.key: one for one in phases}
    waiting = list(wanted)
    while waiting:
        around = by_key.get(waiting.pop())
        if around is not None and around.parent in by_key and around.parent not in wanted:
            wanted.add(around.parent)
            waiting.append(around.parent)
    return [at for at, one in enumerate(phases) if one.key in wanted and one.key != NO_KEY]
