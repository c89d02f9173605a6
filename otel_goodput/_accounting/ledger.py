"""The ledger of one run: takes events in order of arrival, late ones included, and can give totals at any moment.

Events before the *watermark*, the earliest dispatch of a step whose end on the device is not known, are settled. The
others wait; to give totals, a clone of the settled cursor applies them. An event older than the settled ones (callers
may record phases with times of their own) sends the cursor back to one of two checkpoints, to replay the log since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter, sub
from typing import Any, Final

from otel_goodput._accounting import balance
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.codec import FLAG, KEY, NUMBER, Blob, Blobs, Each, Pairs, Part, State, field
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.device import NEVER, left_at, place
from otel_goodput._accounting.events import EVENT, Event, Turns, events_of, following, preceding
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.phase_history import EndedPhases, PhaseHistory
from otel_goodput._accounting.resuming import Past
from otel_goodput._accounting.rules import DATA_LOADING, MARKABLE, PART, SAVE, STEP
from otel_goodput._accounting.totals import Totals
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState

CHECKPOINT: Final = 2048  # settled events from one checkpoint to the next
WAITING: Final = 4096  # events that may wait for the watermark; beyond that, the oldest step ends by the host clock

_time = itemgetter(0)
_LOAD: Final = (DATA_LOADING, 0, 0, "")  # phase, flags, arg and name of the START of a turn's load


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
    _free = 0  # the latest end on the device that was recorded, ns
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
        twin = super().clone()
        if spans is not None:
            twin.settled.change_spans(spans)
        twin._begin_log()
        return twin

    def _begin_log(self) -> None:
        self._log: list[Event | Turns] = []  # settled since the older checkpoint
        self._logged = 0  # moments since the newer one
        self._older = (self._mark, self.settled.clone())
        self._newer = (*self._older, 0)

    @property
    def opened(self) -> Sequence[Event]:
        """The START events of the phases that are open."""
        return tuple(self._phase_history.opened.values())

    def feed(self, events: Iterable[Event | Turns]) -> None:
        """Take events, in order of arrival."""
        single: list[Event] = []
        for one in events:
            if isinstance(one, Turns):
                self._take(single)
                single = []
                self._take_turns(one)
            else:
                single.append(one)
        self._take(single)

    def _take_turns(self, turns: Turns) -> None:
        """Take the turns of a loop together, as far as it is undisturbed and nothing else is due."""
        while count := self._take_undisturbed(turns):
            if count == len(turns.times):
                return
            self._take([*turns.slice(count, count + 2).events()])
            turns = turns.slice(count + 2)
            if not turns.times:
                return
        self._take([*turns.events()])

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
        count = 2 * self.settled.apply_turns(whole) if whole.steady else 0
        if not count:
            return 0
        taken = whole if count == len(whole.times) else whole.slice(0, count)
        time, last = taken.times[-1], following(taken.keys[-1])
        del opened[key]
        opened[last] = Event(time, ev.START, DATA_LOADING, last, taken.numbers[-1])
        begins, ends = taken.times[::2], taken.times[1::2]
        loads = list(map(sub, begins[1:], ends))
        if turns.loaded:
            loads.insert(0, begins[0] - begun.time)
        self._phase_history.take_turns(list(map(sub, ends, begins)), loads)
        self.pending.clear()
        self._held.clear()
        self._note_settled([taken], count, time)
        return count - (whole is not turns)

    def _take(self, events: Sequence[Event]) -> None:
        """Take events one by one."""
        if not events:
            return
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
        self._settle(self._watermark())
        while len(pending) > WAITING and held:
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
            start, (_, base, at) = self._newer[0], self._newer
        else:
            (start, base), at = self._older, 0
            self._newer = (start, base, 0)
        again = [*events_of(self._log[at:])]
        del self._log[at:]
        self._logged = 0
        finished = self.settled.steps.finished
        self.settled = base.clone()
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

    def totals(self, at: int | None = None, *, dead: bool = False) -> Totals:
        """The totals at `at` (ns since the epoch; the last event by default). Constant work.

        `dead`: the process of the latest attempt is no longer alive, so nothing is in flight.
        """
        cursor, history = self.provisional(at, dead=dead), self._phase_history
        return balance.totals_of(cursor, at=at, stages=history.stages.sums, long_phases=history.long.too_long)

    def overview(self, at: int | None = None, *, dead: bool = False) -> Overview:
        """The whole run at `at`, in bounded space; its bins add up to ``Totals.run``. Arguments as for `totals`."""
        return balance.build_overview(self.provisional(at, dead=dead, overview=True), self._phase_history, at)

    def past(self) -> Past:
        """What a new attempt needs to know of those so far, whose processes are no longer alive."""
        return self.provisional(None, dead=True).steps.past()

    def provisional(self, at: int | None, *, dead: bool, overview: bool = False) -> Cursor:
        """The cursor after all events, brought to `at`; a copy. Arguments as for `totals`."""
        cursor = self.settled.clone(overview=overview)
        self._run_out(cursor)
        if at is None:
            cursor.drain()
        else:
            cursor.reach(at)
        cursor.close(dead=dead)
        return cursor

    def dump(self) -> tuple[dict[str, Any], list[Blob]]:
        """Everything a restart needs, as (JSON-able head, blobs). Events fed later do not change it."""
        blobs = Blobs()
        return self.to_plain(blobs), blobs.written

    @classmethod
    def load(cls, head: Any, blobs: bytes, spans: Sequence[int] = ()) -> Ledger:
        """Rebuild a ledger from what :meth:`dump` returned; `spans` are its rolling windows from now on, ns.

        Raises ValueError if that is damaged, or contradicts itself.
        """
        taken = Blobs(blobs)
        ledger = cls.from_plain(head, taken)
        taken.over()
        if tuple(spans) != ledger.settled.spans:
            ledger.settled.change_spans(spans)
            ledger._begin_log()
        return ledger
