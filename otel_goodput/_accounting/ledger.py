"""The ledger of one run: takes events in order of arrival, late ones included, and can give totals at any moment.

Events before the *watermark*, the earliest dispatch of a step whose end on the device is not known, are settled. The
others wait; to give totals, a clone of the settled cursor applies them. Turns of an undisturbed loop wait, and are
settled, together. An event older than the settled ones (callers may record phases with times of their own) sends the
cursor back to one of two checkpoints, to replay the log since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter, sub
from typing import Any, Final

from otel_goodput._accounting import balance
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.codec import FLAG, KEY, NUMBER, Blob, Blobs, Each, Pairs, Part, State, field
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.device import NEVER, left_at, place
from otel_goodput._accounting.events import EVENT, DeviceEnds, Event, Item, Turns, events_of, following, preceding
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.phase_history import EndedPhases, PhaseHistory
from otel_goodput._accounting.rank_updates import RankNotes, RankUpdate, innermost
from otel_goodput._accounting.resuming import Past
from otel_goodput._accounting.rules import DATA_LOADING, MARKABLE, PART, SAVE, STEP
from otel_goodput._accounting.totals import Brief, Totals
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState

CHECKPOINT: Final = 2048  # settled events from one checkpoint to the next
WAITING: Final = 4096  # events that may wait for the watermark; beyond that, the oldest step ends by the host clock

_time = itemgetter(0)
# Phase, flags, arg and name of the START of a turn's step, and of its load.
_STEP: Final = (STEP, 0, 0, "")
_LOAD: Final = (DATA_LOADING, 0, 0, "")


class Ledger(State):
    """Streaming account of one run. `spans` are the lengths of rolling windows, ns.

    Attributes:
        settled: the cursor at the watermark. Do not change it.
        pending: events after the watermark, in time order.
        late: events dropped because they came too late to be put in order.
    """

    settled: Cursor = field(Part(lambda: Cursor), key="account")
    _phase_history: PhaseHistory = field(Part(lambda: PhaseHistory), make=PhaseHistory, key="timeline")
    pending: list[Event] = field(Each(EVENT), make=list, key="waiting_events")
    # Steps and marks that hold back the watermark until their end is known by the clock that counts. If steps
    # without marks have an unknown clock, all phases that can be marked hold it back as well.
    _held: dict[int, int] = field(Pairs(KEY, NUMBER), make=dict, key="waiting_keys")  # key -> start
    _observed: set[int] = field(Each(KEY, make=set), make=set, key="observed_keys")
    # Keys in _held of phases that ended on the host (so does a mark), or whose device end will never be reported. Once
    # both is so, the key is released.
    _half_known: set[int] = field(Each(KEY, make=set), make=set, key="ended_on_host")
    _device_ends: dict[int, int] = field(Pairs(KEY, NUMBER), make=dict)
    _mark: int = field(NUMBER, 0, key="settled_until")  # time of the latest settled event
    _marking: bool = field(FLAG, False, key="clock_unknown")  # phases may be marked
    # In place of pending events: turns that wait together for the device, and the ends of the first of their steps.
    _dispatched: Turns | None = None
    _left: list[int]
    covers: dict[int, int]  # the latest step that each save stands for, by key, since `begin_updates`
    _free = 0  # the latest end on the device that was recorded, ns
    _notes: RankNotes | None = None
    _noted = (0, 0)  # positions in them of the older checkpoint and the newer one
    late = 0

    def __init__(self, spans: Sequence[int] = ()) -> None:
        super().__init__()
        self.settled = Cursor(spans, overview=True)
        self._begin_log()

    def loaded(self) -> None:
        if self.settled.steps.summary is None:
            raise ValueError("there is only a part of what an overview shows")
        settled = self.settled
        ends = (settled.freed, *(each.end for each in settled.device if each.end < NEVER))
        known = (event.arg for event in self.pending if event.kind in (ev.START, ev.MARK))
        self._free = max((max(ends) - settled.shift, *self._device_ends.values(), *known))
        self._begin_log()

    def clone(self, spans: Sequence[int] | None = None) -> Ledger:
        """Return an independent copy; `spans` are its rolling windows if they are other ones, ns."""
        self._disperse()
        twin = super().clone()
        twin._notes = None
        if spans is not None:
            twin.settled.change_spans(spans)
        twin._begin_log()
        return twin

    def _begin_log(self) -> None:
        self._log: list[Event | Turns] = []  # settled since the older checkpoint
        self._logged = 0  # moments since the newer one
        self._older = (self._mark, self.settled.clone())
        self._newer = (*self._older, 0)
        self._noted = (0, 0) if self._notes is None else (self._notes.position, self._notes.position)

    @property
    def opened(self) -> Sequence[Event]:
        """The START events of the phases that are open."""
        return tuple(self._phase_history.opened.values())

    @property
    def latest(self) -> Event | None:
        """The START of the open phase that began last; None if none is open. Needs no lock."""
        opened = self._phase_history.opened
        try:
            return next(reversed(opened.values()), None)
        except RuntimeError:  # it changes
            return None

    def feed(self, events: Iterable[Item]) -> None:
        """Take events, in order of arrival."""
        single: list[Event] = []
        for one in events:
            if isinstance(one, Event):
                if single or not self._take_end(one):
                    single.append(one)
                continue
            self._take(single)
            single = []
            if isinstance(one, Turns):
                self._take_turns(one)
            elif not self._take_ends(one):
                self._take([*one.events()])
        self._take(single)
        self._settle_dispatched()

    def _take_turns(self, turns: Turns) -> None:
        """Take the turns of a loop together, as far as it is undisturbed and nothing else is due."""
        if turns.dispatching and self._dispatch(turns):
            return
        self._disperse()
        alone = 2
        while turns.times:
            count = self._take_undisturbed(turns)
            if count < len(turns.times):
                self._take([*turns.slice(count, count + alone).events()])
            turns = turns.slice(count + alone)
            alone = 2 if count else 4 * alone  # what disturbs them may last

    def _take_undisturbed(self, turns: Turns) -> int:
        """Take turns, each whole; returns how many of the moments these were."""
        opened, key = self._phase_history.opened, turns.keys[0]
        begun = opened.get(key)
        if begun is None or self._observed or self._half_known or self._device_ends:
            return 0
        whole = turns
        if turns.loaded:
            if self.pending or self._held or begun[2:3] + begun[5:] != _LOAD:
                return 0
        else:  # its step waits, because the end was not known
            waiting = Turns(True, (begun.time,), (preceding(key),), (begun.step,), (0,))
            if self.pending != [*waiting.events()] or self._held.keys() != {key}:
                return 0
            whole = waiting.followed(turns)
        steps, loads = self.settled.apply_turns(*whole.steps) if whole.steady else ([], [])
        count = 2 * len(steps)
        if not count:
            return 0
        self.pending.clear()
        self._held.clear()
        if turns.loaded:
            loads = [whole.times[0] - begun.time, *loads]
        rest = whole.slice(count)
        taken = whole.slice(0, count) if rest.times else whole
        time, phase, end = taken.times[-1], DATA_LOADING, taken
        if len(rest.times) == 1 and rest.time >= time:  # one more step begins: that waits
            loads = [*loads, rest.time - time]
            phase, end = STEP, rest
            self.pending += rest.events()
            self._held[following(rest.keys[0])] = rest.time
        del opened[key]
        last = following(end.keys[-1])
        opened[last] = Event(end.time, ev.START, phase, last, end.numbers[-1])
        self._phase_history.take_turns(steps, loads)
        self._note_settled([taken], count, time)
        return count + (end is rest) - (whole is not turns)

    def _dispatch(self, turns: Turns) -> bool:
        """Let turns wait together, whose steps end by the device's clock; False if something else waits, or is due."""
        times, keys, numbers = turns[1:4]
        opened, before = self._phase_history.opened, self._dispatched
        begun = opened.get(keys[0])
        step = numbers[0] if turns.loaded else numbers[1] if len(numbers) > 1 else None
        if (
            begun is None or times[0] < max(begun.time, self._mark)
            or begun[2:3] + begun[5:] != (_LOAD if turns.loaded else _STEP)
            or (before is None and not self._gather())
        ):  # fmt: skip
            return False
        waiting = self._dispatched
        if waiting is not None:
            if turns.loaded is (len(waiting.times) % 2 == 1) or keys[0] != following(waiting.keys[-1]) or (
                step is not None and step <= waiting.numbers[(len(waiting.numbers) - 1) & ~1]
            ) or len(waiting.times) + len(times) > WAITING // 2:  # fmt: skip
                return False
            self._dispatched = waiting.followed(turns)
        elif turns.loaded:
            self._dispatched, self._left = turns, []
        else:
            return False
        del opened[keys[0]]
        last = following(keys[-1])
        phase = STEP if turns.loaded is (len(times) % 2 == 1) else DATA_LOADING
        opened[last] = Event(times[-1], ev.START, phase, last, numbers[-1])
        lengths = list(map(sub, times, (begun.time, *times)))
        self._phase_history.take_turns(lengths[turns.loaded :: 2], lengths[not turns.loaded :: 2])
        return True

    def _gather(self) -> bool:
        """If only turns are pending whose steps wait for the device, let them wait together; else return False."""
        pending, held = self.pending, self._held
        moments = len(pending) // 2
        if (
            len(held) != (moments + 1) // 2 or len(pending) != 2 * moments or moments > WAITING // 4
            or self._observed != self._half_known or len(self._observed) != moments // 2 or self._device_ends
            or not self.settled.undisturbed()
        ):  # fmt: skip
            return False
        if not moments:
            return True
        times, _, _, keys, numbers, flags, _, _ = zip(*pending, strict=True)
        turns = Turns(True, times[::2], keys[::2], numbers[1::2], flags[::2])
        if not turns.dispatching or any(
            mine[:4] + mine[5:] != theirs[:4] + theirs[5:] for mine, theirs in zip(pending, turns.events(), strict=True)
        ):
            return False
        steps = [*map(following, turns.keys[::2])]
        if steps != [*held] or not self._observed.issuperset(steps[: moments // 2]):
            return False
        self._dispatched, self._left = turns, []
        for one in (pending, held, self._observed, self._half_known):
            one.clear()
        return True

    def _disperse(self) -> None:
        """Let the turns that wait together wait as single events."""
        if self._dispatched is None:
            return
        turns, left = self._dispatched, self._left
        self._dispatched = None
        self.pending += turns.events()
        for at, key in enumerate(map(following, turns.keys[::2])):
            if at < len(left):
                self._device_ends[key] = left[at]
                continue
            self._held[key] = turns.times[2 * at]
            if 2 * at + 1 < len(turns.times):
                self._observed.add(key)
                self._half_known.add(key)

    def _take_ends(self, ends: DeviceEnds) -> bool:
        """Take the ends of the next of the steps that wait together; False if they are of others."""
        turns = self._dispatched
        if turns is None:
            return False
        first = 2 * len(self._left)
        starts = turns.times[first : first + 2 * ends.count : 2]
        if len(starts) < ends.count or not starts or following(turns.keys[first]) != ends.key:
            return False
        time, _, count, took, busy = ends
        free, least = self._free, max(0, took)
        for behind, begin in zip(range(count - 1, -1, -1), starts, strict=True):
            if busy or not behind:
                end = max(1, time - behind * took)
            else:
                end = max(1, min(time, (begin if begin > free else free) + least))
            self._left.append(end)
            if end > free:
                free = end
        self._free = free
        return True

    def _take_end(self, event: Event) -> bool:
        """The same for a single event."""
        if self._dispatched is None or event.kind != ev.DEVICE_END or event.step >= 0:
            return False
        return self._take_ends(DeviceEnds(event.time, event.key, 1, 0, True))

    def _settle_dispatched(self) -> None:
        """Apply those of the turns that wait together that begin before any step whose end is not known."""
        turns = self._dispatched
        if turns is None or not self._left:
            return
        left = self._left
        known = 2 * len(left)
        ends = turns.times[1:known:2]
        count = bisect_left(ends, turns.times[known]) if known < len(turns.times) else len(ends)
        if not count:
            return
        taken = turns.slice(0, 2 * count)._replace(left=tuple(left[:count]))
        if not self.settled.apply_dispatched(taken):
            self._disperse()
            self._settle_pending()
            return
        self._dispatched = turns.slice(2 * count) if 2 * count < len(turns.times) else None
        del left[:count]
        self._note_settled([taken], 2 * count, ends[count - 1])

    def _take(self, events: Sequence[Event]) -> None:
        """Take events one by one."""
        if not events:
            return
        self._disperse()
        pending, held, observed = self.pending, self._held, self._observed
        latest = pending[-1][0] if pending else self._mark
        ordered = True
        phase_history = self._phase_history
        opened, executions, pairs = phase_history.opened, phase_history.executions, phase_history.pairs
        for event in events:
            time, kind, phase, key, _, flags, _, _ = event[:]  # a plain tuple, which is unpacked in half the time
            if kind == ev.START:
                if key not in opened:
                    opened[key] = event
                    if phase == SAVE:
                        phase_history.begin_save(event)
                if phase == STEP or (self._marking and phase in MARKABLE and not flags & ev.NONBLOCKING):
                    held[key] = time
            elif kind == ev.END:
                begun = opened.pop(key, None)
                if begun is not None:
                    if begun[2] == STEP and not (flags & ev.FAILED or begun[7]):
                        executions.append(time - begun[0])
                    else:
                        pairs.append((begun, event))
                if key in held:
                    if (flags & ev.ON_DEVICE or key in observed) and key not in self._half_known:
                        observed.add(key)
                        self._half_known.add(key)
                    else:
                        self._release(key)
            elif kind == ev.HEARTBEAT:
                if pending and pending[-1][1] == ev.HEARTBEAT and pending[-1][0] <= time:
                    pending[-1] = event
                    latest = time
                    continue
            elif ev.OBSERVED <= kind <= ev.UNOBSERVED:
                self._observe(event)
                continue
            elif kind == ev.ATTEMPT:
                phase_history.note(event)
                self._arrange(ordered)
                self._next_attempt(event)
                latest, ordered = 0, True
                continue
            elif kind == ev.MARK:
                held[key] = time
                observed.add(key)
                self._half_known.add(key)
            elif kind == ev.CLOCK:
                self._marking = FALLBACK_CLOCKS[phase] == ClockState.UNKNOWN
            else:
                phase_history.note(event)
            if time < latest:
                ordered = False
            else:
                latest = time
            pending.append(event)
        phase_history.gather()
        self._arrange(ordered)
        self._settle_pending()

    def _settle_pending(self) -> None:
        held = self._held
        self._settle(self._watermark())
        while len(self.pending) > WAITING and held:
            self._release(min(held, key=lambda key: held[key]))
            self._settle(self._watermark())

    def _watermark(self) -> int:
        """Earliest start of a step whose end is not yet known by the clock that counts, ns."""
        return min(self._held.values(), default=NEVER)

    def _release(self, key: int) -> None:
        self._held.pop(key, None)
        self._observed.discard(key)
        self._half_known.discard(key)

    def _observe(self, event: Event) -> None:
        key = event.key
        if key not in self._held:
            return
        if event.kind == ev.OBSERVED:
            self._observed.add(key)
        elif event.kind == ev.DEVICE_END:
            self._device_ends[key] = end = left_at(event, self._held[key], self._free)
            self._free = max(self._free, end)
            self._release(key)
        elif key in self._half_known:
            self._release(key)
        else:
            self._observed.discard(key)
            self._half_known.add(key)

    def _arrange(self, ordered: bool) -> None:
        if not ordered:
            self.pending.sort(key=_time)
        if self.pending and self.pending[0].time < self._mark:
            self._rewind()

    def _settle(self, watermark: int) -> None:
        pending = self.pending
        if not pending or pending[0].time >= watermark:
            return
        if self._device_ends:
            pending[:] = place(pending, self._device_ends)
            self._device_ends.clear()
        count = len(pending)
        if pending[-1].time >= watermark:
            count = next(at for at, event in enumerate(pending) if event.time >= watermark)
        settled = pending[:count]
        del pending[:count]
        self.settled.apply_all(settled)
        self._note_settled(settled, count, settled[-1].time)

    def _note_settled(self, settled: Iterable[Event | Turns], count: int, mark: int) -> None:
        """Events of `count` moments up to `mark` (ns) have been settled."""
        self._log += settled
        self._mark = mark
        self._logged += count
        if self._logged >= CHECKPOINT:
            begin, cursor, at = self._newer
            self._older = (begin, cursor)
            del self._log[:at]
            self._newer = (mark, self.settled.clone(), len(self._log))
            self._logged = 0
            if self._notes is not None:
                self._noted = self._noted[1], self._notes.position
                self._notes.settle(self.settled, self._noted[0])

    def _rewind(self) -> None:
        """Go back to a checkpoint because some pending events are older than settled ones; settle again from there."""
        earliest = self.pending[0].time
        if earliest < self._older[0]:
            late = [event for event in self.pending if event.time < self._older[0] and event.kind == ev.START]
            self.late += sum(event.phase != PART for event in late)  # a part owns nothing, and is counted already
            dropped = {event.key for event in late}
            self.pending[:] = [
                event._replace(time=max(event.time, self._older[0]))
                for event in self.pending
                if event.key not in dropped or event.kind not in (ev.START, ev.END)
            ]
        if earliest >= self._newer[0]:
            start, (_, base, at), noted = self._newer[0], self._newer, self._noted[1]
        else:
            (start, base), at, noted = self._older, 0, self._noted[0]
            self._newer, self._noted = (start, base, 0), (noted, noted)
        again = [*events_of(self._log[at:])]
        del self._log[at:]
        self._logged = 0
        finished = self.settled.steps.finished
        self.settled = base.clone()
        if self._notes is not None:
            self._notes.go_back(noted, self.settled)
            self._note()
        self._mark = start
        self.pending[:] = sorted(dict.fromkeys((*again, *self.pending)), key=_time)
        if finished is not None:  # what completed when the events were settled the first time has been collected
            before, collected, nets = base.clone(), list[int](), list[int]()
            before.steps.finished, self.settled.steps.finished = collected, nets
            before.apply_all(again)
            self._settle(self._watermark())
            finished += (Counter(nets) - Counter(collected)).elements()
            self.settled.steps.finished = finished

    def _next_attempt(self, event: Event) -> None:
        self._run_out(self.settled)
        self.pending.clear()
        for waiting in (self._held, self._observed, self._half_known, self._device_ends):
            waiting.clear()
        self._marking, self._free = False, 0
        if self._notes is not None:
            self._notes.begin_attempt()
        self.settled.apply(event)
        self._mark = 0
        self._begin_log()

    def _run_out(self, cursor: Cursor) -> None:
        """Apply the pending events to `cursor`. Device ends not reported yet count as still to come."""
        cursor.apply_all(place(self.pending, self._device_ends, self._observed, NEVER))

    def add_windows(self, spans: Sequence[int]) -> None:
        """Keep rolling windows of the lengths `spans` (ns), too."""
        for cursor in (self.settled, self._older[1], self._newer[1]):
            cursor.change_spans(tuple(dict.fromkeys((*cursor.spans, *spans))))

    def collect(self) -> None:
        """Collect what is over for :meth:`take_collected` from now on."""
        self.settled.steps.finished = []
        self._phase_history.ended = []

    def take_collected(self) -> tuple[list[int], list[EndedPhases]]:
        """Return net times (ns) of steps that were settled, and other phases that ended, since the last call."""
        finished, ended = self.settled.steps.finished, self._phase_history.ended
        if finished or ended:
            self.collect()
        return finished or [], ended or []

    def begin_updates(self, *, whole: bool = False) -> None:
        """Note from now on what :meth:`take_update` returns: of the latest attempt, or of the `whole` run."""
        self._notes, self.covers = RankNotes(whole=whole), {}
        self._begin_log()
        self._note()

    def _note(self) -> None:
        """Have the settled cursor note whose time passes."""
        if self._notes is not None:
            self.settled.noted = self._notes.rows
            self.settled.steps.covers = self.covers
            self.settled.choose()

    def take_update(self, at: int, *, settled: int | None = None, last: bool = False) -> RankUpdate | None:
        """Return what the rank did since the last call, as known at `at` (ns); None before :meth:`begin_updates`.

        What happened after `settled` (ns; by default `at`) may not have been recorded yet, so that it is not final.
        With `last`, all is, because nothing more will be fed.
        """
        if self._notes is None:
            return None
        self._disperse()
        ahead = self.settled.clone(overview=False)
        ahead.noted = self._notes.rows_for(ahead)
        ahead.choose()
        self._run_out(ahead)
        ahead.reach(at)
        opened = innermost(self.opened, self.settled.steps.offset)
        limit = min(self._watermark(), at if settled is None else settled) + ahead.shift
        return self._notes.take(ahead, at, limit, opened, last=last)

    def totals(self, at: int | None = None, *, dead: bool = False) -> Totals:
        """The totals at `at` (ns since the epoch; the last event by default). Constant work.

        `dead`: the process of the latest attempt is no longer alive, so nothing is in flight.
        """
        cursor, history = self.provisional(at, dead=dead), self._phase_history
        return balance.totals_of(cursor, at=at, stages=history.stages.sums, long_phases=history.long.too_long)

    def brief(self, at: int | None = None) -> Brief:
        """A part of :meth:`totals` at `at`, in a third of the time."""
        return balance.brief_of(self.provisional(at, dead=False, rolling=False), at)

    def overview(self, at: int | None = None, *, dead: bool = False) -> Overview:
        """The whole run at `at`, in bounded space; its bins add up to ``Totals.run``. Arguments as for `totals`."""
        return balance.build_overview(self.provisional(at, dead=dead, overview=True), self._phase_history, at)

    def past(self) -> Past:
        """What a new attempt needs to know of those so far, whose processes are no longer alive."""
        return self.provisional(None, dead=True).steps.past()

    def provisional(self, at: int | None, *, dead: bool, overview: bool = False, rolling: bool = True) -> Cursor:
        """The cursor after all events, brought to `at`; a copy. Arguments as for `totals`, and for its `clone`."""
        self._disperse()
        cursor = self.settled.clone(overview=overview, rolling=rolling)
        self._run_out(cursor)
        if at is None:
            cursor.drain()
        else:
            cursor.reach(at)
        cursor.close(dead=dead)
        return cursor

    def dump(self, *, later: bool = False) -> tuple[dict[str, Any], list[Blob]]:
        """Everything a restart needs, as (JSON-able head, blobs). Events fed later do not change it.

        With `later`, long lists in the head are :class:`~otel_goodput._accounting.codec.Later`.
        """
        self._disperse()
        blobs = Blobs(later=later)
        return self.to_plain(blobs), blobs.written

    @classmethod
    def load(cls, head: Any, blobs: bytes, spans: Sequence[int] | None = ()) -> Ledger:
        """Rebuild a ledger from what :meth:`dump` returned.

        `spans` are its rolling windows from now on, ns; None: those that it has. Raises ValueError if what was returned
        is damaged, or contradicts itself.
        """
        taken = Blobs(blobs)
        ledger = cls.from_plain(head, taken)
        taken.over()
        if spans is not None and tuple(spans) != ledger.settled.spans:
            ledger.settled.change_spans(spans)
            ledger._begin_log()
        return ledger
