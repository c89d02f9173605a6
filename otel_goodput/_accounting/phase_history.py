"""What a run's events contain besides the fate of its steps: groups of phases, single phases, saves, notices, slices.

It takes events as they arrive, in bounded space. Times are those of the events: by the clock of their attempt.

:class:`Phases` pairs the START and the END of each phase for all that reads events. A START of an open phase is
ignored, and so is an END without a START. What is still open when its process dies never ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from otel_goodput._accounting import codec
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.checkpoints import Stages
from otel_goodput._accounting.codec import Each, Pairs, Part, Row, State, Text, field
from otel_goodput._accounting.events import EVENT, NOT_KNOWN, Event
from otel_goodput._accounting.overview import BINS, PHASE_ENTRY, PHASES_KEPT, SAVE_ENTRY, Group, PhaseEntry, Save
from otel_goodput._accounting.rules import COMPILE, DATA_LOADING, EXCLUSION, JOB, PART, SAVE, STEP
from otel_goodput._accounting.stalls import COMPARED, LongPhases
from otel_goodput.semconv import PHASES, REASONS

OPENED: Final = 10_000  # open phases; if there are more, the oldest will probably never end
NAMES: Final = 4_000  # groups; the phases of further names count under the empty name
SAVES: Final = 2_000  # if there are more, every second one is forgotten, and counted as left out
MOST_NOTICES: Final = 2_000  # the same for notices, and for slices
LATEST: Final = (1 << 62) - 1  # ns
EXCLUDED: Final = 2_000  # exclusions; later ones are not remembered, but counted as left out
# If phases are more than are kept, only the longest of each of so many equal intervals stay, so many of each.
LONGEST: Final = PHASES_KEPT // BINS // 2

_IN_NUMBERS: Final = frozenset({STEP, DATA_LOADING, PART})  # too many to be remembered one by one

Sums = list[int]  # of a group: count, total, min, max, failed
NO_SUMS: Final = (0, 0, NOT_KNOWN, NOT_KNOWN, 0)

T = TypeVar("T", PhaseEntry, Save)


def _shifted(entry: T, shift: int) -> T:
    """The same with its times (`begin`, `end`, `durable`) later by `shift` ns."""
    times = {name: value for name, value in entry._asdict().items() if name in ("begin", "end", "durable")}
    return entry._replace(**{name: time + shift for name, time in times.items() if time != NOT_KNOWN})


class EndedPhases(NamedTuple):
    """Phases other than steps that ended: one of them, or several that are alike and of which none failed.

    `key` is that of a single one; `lengths` are in ns.
    """

    phase: int
    name: str
    blocking: bool
    key: int
    lengths: Sequence[int]


class PhaseHistory(State):
    """What the events of one run have contained so far.

    Attributes:
        opened: START events of open phases, by key; the ledger adds and removes them.
        executions: lengths of steps without a name that ended without a failure; the ledger adds them, ns.
        pairs: START and END of other phases that ended; the ledger adds them.
        ended: phases other than steps that ended, until taken; None if nobody collects them.
        long: phases that took far longer than usual.
    """

    opened: dict[int, Event] = field(Pairs(codec.KEY, EVENT, OPENED), make=dict, key="open_phases")
    attempt: int = field(codec.NUMBER, 0)
    stages: Stages = field(Part(lambda: Stages), make=Stages)
    long: LongPhases = field(Part(lambda: LongPhases), make=LongPhases, key="long_phases")
    _groups: dict[tuple[int, str, bool], Sums] = field(  # by phase, name, whether in the background
        Pairs(Row(codec.PHASE, codec.TEXT, codec.FLAG), Row(*[codec.NUMBER] * 5, make=list), 3 * NAMES), make=dict
    )
    # Ended, or of a process that is gone.
    _phases: list[PhaseEntry] = field(Each(PHASE_ENTRY, PHASES_KEPT), make=list)
    _left_out: int = field(codec.COUNT, 0)
    _saves: dict[int, Save] = field(Pairs(codec.COUNT, SAVE_ENTRY, SAVES), make=dict)  # by number
    _saved: int = field(codec.COUNT, 0, key="save_count")  # number of the latest
    # Key of a save that is not over -> number. Those whose save is forgotten go with it.
    _saving: dict[int, int] = field(Pairs(codec.KEY, codec.COUNT), make=dict, key="open_saves")
    notices: list[tuple[int, str, bool]] = field(
        Each(Row(codec.NUMBER, Text(*REASONS), codec.FLAG), MOST_NOTICES), make=list
    )
    slices: list[tuple[int, int, int, int]] = field(Each(Row(*[codec.NUMBER] * 4), MOST_NOTICES), make=list)
    _excluded: list[tuple[int, int]] = field(Each(Row(codec.NUMBER, codec.NUMBER), EXCLUDED), make=list)

    def __init__(self) -> None:
        super().__init__()
        self.loaded()

    def loaded(self) -> None:
        if not all(0 <= start.phase < len(PHASES) for start in self.opened.values()):
            raise ValueError("a phase is open that there is none of")
        self.executions: list[int] = []
        self.pairs: list[tuple[Event, Event]] = []
        self.ended: list[EndedPhases] | None = None

    def clone(self) -> PhaseHistory:
        self.gather()
        twin = super().clone()
        twin.loaded()
        return twin

    def gather(self) -> None:
        """Count what the ledger has added. The lists stay the same, for the ledger holds them while it adds."""
        if self.executions:
            self._count(STEP, "", False, self.executions)
            self.executions.clear()
        if self.pairs:
            self._end(self.pairs)
            self.pairs.clear()
        if len(self.opened) > OPENED:
            for key in [key for key, start in self.opened.items() if start[2] != JOB][: OPENED // 2]:
                self._leave(self.opened.pop(key))

    def take_turns(self, executions: Sequence[int], loads: Sequence[int]) -> None:
        """Count steps, and data loads that held up training, by their lengths (ns); `opened` is as after them."""
        if executions:
            self._count(STEP, "", False, executions)
        if loads:
            self._end_loads(loads)

    def _end_loads(self, lengths: Sequence[int]) -> None:
        if self.ended is not None:
            self.ended.append(EndedPhases(DATA_LOADING, "", True, 0, lengths))
        self._count(DATA_LOADING, "", False, lengths)
        self.long.add(DATA_LOADING, "", lengths)

    def _end(self, pairs: Sequence[tuple[Event, Event]]) -> None:
        loads: list[int] = []  # those that held up training: most phases are among them
        for start, end in pairs:
            phase, name, failed = start[2], start[7], end[5] & ev.FAILED
            background = bool(start[5] & ev.NONBLOCKING)
            length = end[0] - start[0]
            if phase == DATA_LOADING and not (name or failed or background):
                loads.append(length)
                continue
            if self.ended is not None and phase != STEP:
                self.ended.append(EndedPhases(phase, name, not background, start[3], (length,)))
            if phase == COMPILE:
                name = end[7] or name
            self._count(phase, name, background, (length,))
            if failed:
                self._sums(phase, name, background)[4] += 1
            elif phase == PART:
                self.stages.add(name, length)
            elif phase in COMPARED and not background:
                self.long.add(phase, name, (length,))
            if phase not in _IN_NUMBERS:
                over = start[0] + max(0, length)
                self._keep(start, name, over, end[5])
                if phase == SAVE:
                    self._end_save(end)
                elif phase == EXCLUSION:
                    self._exclude(start[0], over)
        if loads:
            self._end_loads(loads)

    def _count(self, phase: int, name: str, background: bool, lengths: Sequence[int]) -> None:
        sums = self._sums(phase, name, background)
        least, most = min(lengths), max(lengths)
        if least < 0:  # a clock went back
            lengths, least, most = [max(0, length) for length in lengths], 0, max(0, most)
        sums[0] += len(lengths)
        sums[1] += sum(lengths)
        sums[2] = least if sums[2] < 0 else min(sums[2], least)
        sums[3] = max(sums[3], most)

    def _exclude(self, begin: int, end: int) -> None:
        if len(self._excluded) < EXCLUDED:
            self._excluded.append((begin, end))
        else:
            self._left_out += 1

    def note(self, event: Event) -> None:
        """Take an event of another kind."""
        self.gather()
        time, kind, phase, key, step, flags, arg, _ = event
        if kind == ev.ATTEMPT:
            for start in self.opened.values():
                self._leave(start)
            self.opened.clear()
            self._saving.clear()
            self.attempt = step
        elif kind == ev.DURABLE:
            number = self._saving.pop(key, None)
            if number is not None and number in self._saves:
                self._saves[number] = self._saves[number]._replace(durable=time)
        elif kind == ev.SUSPENDED:
            self._exclude(time, min(time + max(0, key), LATEST))
        elif kind == ev.NOTICE:
            self.notices.append((time, REASONS[phase], bool(flags & ev.WITHDRAWN)))
        elif kind == ev.SLICES and (not self.slices or self.slices[-1][1:] != (step, key, arg)):
            self.slices.append((time, step, key, arg))
        for entries in (self.notices, self.slices):
            if len(entries) > MOST_NOTICES:
                self._left_out += len(entries) // 2
                del entries[1::2]

    def _sums(self, phase: int, name: str, background: bool) -> Sums:
        if len(self._groups) >= NAMES:
            name = ""
        return self._groups.setdefault((phase, name, background), [*NO_SUMS])

    def _leave(self, start: Event) -> None:
        """Give up a phase that will not end."""
        phase, name = start[2], start[7]
        self._sums(phase, name, bool(start[5] & ev.NONBLOCKING))[0] += 1
        if phase not in _IN_NUMBERS:
            self._keep(start, name, NOT_KNOWN)

    def _entry(self, start: Event, name: str, end: int, flags: int = 0) -> PhaseEntry:
        begin, _, phase, key, step, started, _, _ = start
        return PhaseEntry(self.attempt, phase, name, begin, end, step, started | flags, key)

    def _keep(self, start: Event, name: str, end: int, flags: int = 0) -> None:
        self._phases.append(self._entry(start, name, end, flags))
        if len(self._phases) <= PHASES_KEPT:
            return
        phases = self._phases
        first = min(entry.begin for entry in phases)
        width = (max(entry.begin for entry in phases) - first) // BINS + 1
        room: Counter[int] = Counter()
        kept = []
        for at in sorted(range(len(phases)), key=lambda at: phases[at].begin - phases[at].end):
            interval = (phases[at].begin - first) // width
            if room[interval] < LONGEST:
                room[interval] += 1
                kept.append(at)
        self._left_out += len(phases) - len(kept)
        self._phases = [phases[at] for at in sorted(kept)]

    def begin_save(self, event: Event) -> None:
        """Take the START event of a save."""
        self.gather()
        self._saved += 1
        self._saves[self._saved] = Save(self.attempt, event[4], event[0], NOT_KNOWN, NOT_KNOWN, False)
        self._saving[event[3]] = self._saved
        if len(self._saves) > SAVES:
            self._left_out += len(self._saves) // 2
            self._saves = dict(list(self._saves.items())[::2])
            self._saving = {key: number for key, number in self._saving.items() if number in self._saves}

    def _end_save(self, event: Event) -> None:
        time, key, flags = event[0], event[3], event[5]
        pending = flags & ev.PENDING and not flags & ev.FAILED
        number = self._saving.get(key) if pending else self._saving.pop(key, None)
        if number is None or number not in self._saves:
            return
        save = self._saves[number]._replace(end=time, failed=bool(flags & ev.FAILED))
        self._saves[number] = save if flags & (ev.FAILED | ev.PENDING) else save._replace(durable=time)

    def groups(self) -> list[Group]:
        """All phases begun, by phase and name; those in the background apart, such as the commits of saves."""
        groups = {key: list(sums) for key, sums in self._groups.items()}
        for start in self.opened.values():
            key = start[2], start[7], bool(start[5] & ev.NONBLOCKING)
            if key not in groups and len(groups) >= NAMES:
                key = start[2], "", key[2]
            groups.setdefault(key, [*NO_SUMS])[0] += 1
        return [
            Group(*key, count, total, max(0, least), max(0, most), failed)
            for key, (count, total, least, most, failed) in sorted(groups.items())
        ]

    def phases(self, shifts: Mapping[int, int]) -> tuple[list[PhaseEntry], int]:
        """What is remembered one by one, its times later by the `shifts` of attempts (ns), and how much is left out."""
        still = (start for start in self.opened.values() if start[2] not in _IN_NUMBERS)
        entries = [*self._phases, *(self._entry(start, start[7], NOT_KNOWN) for start in still)]
        if shifts:
            entries = [_shifted(entry, shifts.get(entry.attempt, 0)) for entry in entries]
        entries.sort(key=lambda entry: entry.begin)
        return entries, self._left_out

    def saves(self, shifts: Mapping[int, int]) -> list[Save]:
        """Checkpoints, in order."""
        return [_shifted(save, shifts.get(save.attempt, 0)) for save in self._saves.values()]

    @property
    def excluded(self) -> list[tuple[int, int]]:
        """(begin, end) of each exclusion; the end of an open one is ``NOT_KNOWN``."""
        still = [(start[0], NOT_KNOWN) for start in self.opened.values() if start[2] == EXCLUSION]
        return sorted((*self._excluded, *still))


P = TypeVar("P")


class Phases(Generic[P]):
    """The open phases of one process, by key, in the order in which they began."""

    def __init__(self, opened: dict[int, P] | None = None) -> None:
        self.opened: dict[int, P] = {} if opened is None else opened

    def start(self, key: int, phase: P) -> P:
        """Begin a phase; return it, or the one that is open with its key."""
        return self.opened.setdefault(key, phase)

    def end(self, key: int) -> P | None:
        """End a phase and return what it began with; None if none is open with that key."""
        return self.opened.pop(key, None)

    def die(self) -> None:
        """The process is gone: what it had open has no end."""
        self.opened.clear()

    def take(self, kind: int, key: int, event: P) -> P | None:
        """Take the next event or record of a process; return what the phase began with that it ends, if it ends one."""
        if kind == ev.START:
            self.start(key, event)
        elif kind == ev.END:
            return self.end(key)
        elif kind == ev.ATTEMPT:
            self.die()
        return None


COMPLETED: Final = "completed"
FAILED: Final = "failed"  # an exception or a break left it
DIED: Final = "died"  # its process died in it


class Phase(NamedTuple):
    """A phase that is over (no earlier than it began), or whose process has died: then its end is ``NOT_KNOWN``.

    Its name is that of its START; a compilation's is that of its END, if any.
    """

    begin: int
    end: int
    phase: int
    flags: int
    name: str
    fate: str

    @property
    def length(self) -> int:
        """How long it took, ns; once it is over."""
        return self.end - self.begin


def paired(events: Iterable[Event]) -> Iterator[Phase]:
    """Yield the phases of a run as they end, and those of a dead process when the next attempt begins."""
    phases: Phases[Event] = Phases()
    for event in events:
        if event.kind == ev.ATTEMPT:
            for one in reversed(phases.opened.values()):
                yield Phase(one.time, NOT_KNOWN, one.phase, one.flags, one.name, DIED)
        begun = phases.take(event.kind, event.key, event)
        if begun is not None:
            name = event.name if event.name and begun.phase == COMPILE else begun.name
            fate = FAILED if event.flags & ev.FAILED else COMPLETED
            yield Phase(begun.time, max(begun.time, event.time), begun.phase, begun.flags, name, fate)
