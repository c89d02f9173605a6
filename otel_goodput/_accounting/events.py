"""The events of a run, as the ledger takes them and as the journal stores them: one flat, immutable record each.

An event says *when* (integer ns since the epoch) and *what*. It belongs to the attempt of the last :data:`ATTEMPT`
event before it. Nearly all events are :class:`Turns` of a loop, of which thousands can be taken at once, as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import le, lt, sub
from typing import Final, NamedTuple, TypeAlias

from otel_goodput._accounting.codec import COUNT, KEY, NUMBER, TEXT, Row, Whole
from otel_goodput._accounting.rules import DATA_LOADING, STEP

# Kinds. The numbers are the journal's wire format: append, never renumber. 0 means that the record was never written.
ATTEMPT: Final = 1  # a new life of the process begins; `step` is its number from 0
START: Final = 2  # a phase opens
END: Final = 3  # the phase `key` closes
HEARTBEAT: Final = 4  # a sign of life
SLICES: Final = 5  # `step`, `key`, `arg` are the active, available and total slices from now on
NOTICE: Final = 6  # the platform announced the end of the job; `phase` indexes semconv.REASONS
OBSERVED: Final = 7  # the device end of the step `key` will be reported
DEVICE_END: Final = 8  # the step `key` left the device: at `time`, or, with a `step`, see device.left_at()
UNOBSERVED: Final = 9  # the device end of the step `key` will never be known: fall back to the host clock
DURABLE: Final = 10  # the checkpoint saved in phase `key` is durable
CLOCK: Final = 11  # `phase` indexes semconv.FALLBACK_CLOCKS: the clock of steps with no reported device end
MARK: Final = 12  # work that the phase `step` (signed key) dispatched since `time` is on the device until `key` ends
LOOP: Final = 13  # the steps that start from now on belong to the loop `step`
LIMIT: Final = 14  # the limit of the steps that start from now on is `key` ns; 0: it follows from the usual step (R10)
SUSPENDED: Final = 15  # the machine was suspended for `key` ns from `time` on
LABEL: Final = 16  # the checkpoint that the open phase `key` saves or restores is labeled `step`
PROFILING: Final = 21  # a profiler runs from now on that slows the steps (R12), or, if `step` is 0, no more

# Flags of START and END. COVERS and RANK_DIED are in the job's own records only.
NONBLOCKING: Final = 1  # START: the phase does not block training
OVERLAPPING: Final = 2  # START: opened in another task than the steps, so it owns no time of a step
COVERS: Final = 8  # START of a save: `step` is the latest step that it stands for
NUMBERED: Final = 4  # START of the first step since a restart or a restore: the user gave its number
FAILED: Final = 2  # END: the phase was left early, by an exception or a break
PENDING: Final = 4  # END of a save: its checkpoint is not durable yet; a DURABLE event follows
ON_DEVICE: Final = 16  # END of a step: same as OBSERVED, if no OBSERVED event was recorded while the step was open

LEFT: Final = 32  # END of a step, with FAILED: a break left its loop, not an exception
IDLE: Final = 64  # END of a step, with LEFT: at the top of the loop body, before the step did anything
RANK_DIED: Final = 128  # END of a step, with FAILED: a rank died in it

WITHDRAWN: Final = 8  # NOTICE: the announcement is taken back

NO_STEP: Final = -1
NOT_KNOWN: Final = -1  # of a time: not over yet, or never observed


class Event(NamedTuple):
    """One event of a run.

    Attributes:
        time, kind: ns since the epoch; one of the constants of this module.
        phase: index into ``semconv.PHASES`` (START), into ``semconv.REASONS`` (NOTICE), else 0.
        key: identifies the phase within its attempt and links a START to its END.
        step, flags: step number, or ``NO_STEP``; constants of this module.
        arg: START of a step: its device end in ns if already known, else 0. SLICES: total slices.
        name: name of a custom phase, kind of an elastic wait, function of a compile. END of a compile: the function, or
            empty if it was only traced. END of a job: the exception that ended it, as ``type: message``. NOTICE: the
            signal, or the exit status of the attempt before.
    """

    time: int
    kind: int
    phase: int = 0
    key: int = 0
    step: int = NO_STEP
    flags: int = 0
    arg: int = 0
    name: str = ""


_BYTE: Final = Whole(0, 256)
EVENT: Final = Row(NUMBER, _BYTE, _BYTE, KEY, NUMBER, COUNT, NUMBER, TEXT, make=Event._make)

STRIDE: Final = 0x9E3779B97F4A7C15  # between successive keys of a loop; odd, so that they repeat after 2**64 phases
KEYS: Final = (1 << 64) - 1
_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor
UNSTRIDE: Final = pow(STRIDE, -1, KEYS + 1)  # times STRIDE, it is 1
_STRIDES: Final = frozenset({STRIDE, STRIDE - KEYS - 1})

_LEAST: Final = -(KEYS >> 1)  # time that a record holds, ns

Column: TypeAlias = "Sequence[int]"


def following(key: int) -> int:
    """Return the key of the phase that a loop begins in the moment in which the phase `key` ends."""
    return (key + STRIDE) & KEYS


def key_behind(key: int, count: int) -> int:
    """Return the key of the phase that a loop begins so many phases after the phase `key`."""
    return (key + count * STRIDE) & KEYS


def preceding(key: int) -> int:
    """Return the key of the phase that ends in the moment in which a loop begins the phase `key`."""
    return (key - STRIDE) & KEYS


def place_of(key: int, first: int) -> int:
    """Return how many phases behind the phase `first` a loop begins the phase `key`; very many if it does not."""
    return (key - first) * UNSTRIDE & KEYS


class Turns(NamedTuple):
    """Successive moments in which a phase of a loop ends and the next one begins: loads and steps alternate.

    In the first of the `times` (ns), a load ends if `loaded`, else a step. `keys` and `flags` are of what ends,
    `numbers` of the steps that begin, or whose loads begin. If they are known, `left` is when the steps that begin left
    the device, ns.
    """

    loaded: bool
    times: tuple[int, ...]
    keys: tuple[int, ...]
    numbers: tuple[int, ...]
    flags: tuple[int, ...]
    left: tuple[int, ...] = ()

    @property
    def time(self) -> int:
        """The last moment, ns."""
        return self.times[-1]

    @property
    def steps(self) -> tuple[int, Column, Column, Column, Column]:
        """Of whole turns that begin with the end of a load: its key, and begins, ends, numbers and keys of steps."""
        _, times, keys, numbers, _, _ = self
        whole = len(times) // 2 * 2
        return keys[0], times[:whole:2], times[1::2], numbers[:whole:2], keys[1::2]

    @property
    def steady(self) -> bool:
        """Whether they go on, apart from their times, and all steps end by the host's clock."""
        return not any(self.flags) and self._following

    @property
    def dispatching(self) -> bool:
        """Whether they go on, and all steps end by the device's clock."""
        ends = self.flags[self.loaded :: 2]
        return (
            ends.count(ON_DEVICE) == len(ends)
            and not any(self.flags[not self.loaded :: 2])
            and all(map(le, self.times, islice(self.times, 1, None)))
            and self._following
        )

    @property
    def _following(self) -> bool:
        """Whether numbers go on, and what begins is what ends next."""
        keys, numbers = self.keys, self.numbers[not self.loaded :: 2]
        return _STRIDES.issuperset(map(sub, islice(keys, 1, None), keys)) and all(
            map(lt, numbers, islice(numbers, 1, None))
        )

    def slice(self, begin: int, end: int | None = None) -> Turns:
        """Return those at the places from `begin` up to, not including, `end`."""
        _, times, keys, numbers, flags, _ = self
        part = slice(begin, end)
        return Turns(self.loaded is (begin % 2 == 0), times[part], keys[part], numbers[part], flags[part])

    def followed(self, turns: Turns) -> Turns:
        """Return these and those that follow."""
        return Turns(self.loaded, *(mine + theirs for mine, theirs in zip(self[1:5], turns[1:5], strict=True)))

    def events(self) -> Iterator[Event]:
        """Yield the events of each moment."""
        loaded, *columns, left = self
        ends = iter(left)
        for time, key, number, flags in zip(*columns, strict=True):
            ended, begun = (DATA_LOADING, STEP) if loaded else (STEP, DATA_LOADING)
            yield _make(Event, (time, END, ended, key, number, flags, 0, ""))
            known = next(ends, 0) if loaded else 0
            yield _make(Event, (time, START, begun, following(key), number, 0, known, ""))
            loaded = not loaded


class EndColumns(NamedTuple):
    """When steps left the device, as it was recorded among turns.

    `keys` are theirs, `times` in ns; `places`: how many of the moments of the turns were recorded before. `span` is the
    earliest and the latest of the times; empty if there are none.
    """

    keys: Column
    times: Column
    places: Column
    span: tuple[int, ...]

    def events(self) -> list[tuple[int, Event]]:
        """Return the DEVICE_END of each, with its place."""
        each = zip(self.keys, self.times, self.places, strict=True)
        return [(place, Event(time, DEVICE_END, STEP, key)) for key, time, place in each]


class TurnColumns(NamedTuple):
    """Successive whole turns of an undisturbed loop. Times do not go back, and the keys follow.

    In each turn a step ends and its load begins, when a step `ended` (ns); the load ends and the next step begins, when
    that has `begun` (ns).

    Attributes:
        key: of the step that ends first.
        numbers: of the steps that begin.
        left: when the steps that begin left the device, ns, if all steps end by its clock, and that is known.
        device: what was recorded of it among them, if all steps end by the device's clock, and it is not known yet of
            which steps that is.
    """

    key: int
    ended: Column
    begun: Column
    numbers: range
    left: Column = ()
    device: EndColumns | None = None

    @property
    def time(self) -> int:
        """The last moment, ns."""
        return self.begun[-1]

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last time in them, ns."""
        ends = () if self.device is None else self.device.span
        return min([self.ended[0], *ends]), max([self.begun[-1], *ends])

    def has(self, key: int) -> bool:
        """Whether a step or load with this key ends in them."""
        return place_of(key, self.key) < 2 * len(self.numbers)

    def moved(self, ended: Column, begun: Column, left: Column) -> TurnColumns:
        """Return the same turns at other times, ns."""
        return self._replace(ended=ended, begun=begun, left=left)

    def slice(self, begin: int, end: int | None = None) -> TurnColumns:
        """Return those at the places from `begin` up to, not including, `end`, without what is not known yet."""
        part = slice(begin, end)
        key = key_behind(self.key, 2 * begin)
        return TurnColumns(key, self.ended[part], self.begun[part], self.numbers[part], self.left[part])

    def events(self) -> Iterator[Event]:
        """Yield the events of each turn."""
        key = self.key
        ended_by = 0 if self.device is None and not self.left else ON_DEVICE
        waiting = [] if self.device is None else self.device.events()[::-1]
        left = self.left or repeat(0)
        for at, (ended, begun, number, gone) in enumerate(
            zip(self.ended, self.begun, self.numbers, left, strict=False)
        ):
            load = following(key)
            while waiting and waiting[-1][0] <= 2 * at:
                yield waiting.pop()[1]
            yield _make(Event, (ended, END, STEP, key, number - 1, ended_by, 0, ""))
            yield _make(Event, (ended, START, DATA_LOADING, load, number, 0, 0, ""))
            while waiting and waiting[-1][0] <= 2 * at + 1:
                yield waiting.pop()[1]
            yield _make(Event, (begun, END, DATA_LOADING, load, number, 0, 0, ""))
            key = following(load)
            yield _make(Event, (begun, START, STEP, key, number, 0, gone, ""))


class DeviceEnds(NamedTuple):
    """The steps of `count` successive turns, from `key` on, left the device, the last at `time` (ns).

    The others took `took` ns each: one right after the other if `busy`, else from the begin of the step or the end of
    the one before.
    """

    time: int
    key: int
    count: int  # type: ignore[assignment]
    took: int
    busy: bool

    def events(self) -> Iterator[Event]:
        """Yield the DEVICE_END of each step."""
        time, key, count, took, busy = self
        for behind in range(count - 1, -1, -1):
            if behind and busy:
                yield _make(Event, (max(_LEAST, time - behind * took), DEVICE_END, STEP, key, NO_STEP, 0, 0, ""))
            else:
                yield _make(Event, (time, DEVICE_END, STEP, key, max(0, took) if behind else NO_STEP, 0, 0, ""))
            key = (key + 2 * STRIDE) & KEYS


Item: TypeAlias = "Event | Turns | DeviceEnds"


def events_of(items: Iterable[Item]) -> Iterator[Event]:
    """Yield events, with those of turns and of device ends one by one."""
    for item in items:
        if isinstance(item, Event):
            yield item
        else:
            yield from item.events()


def each_of(items: Iterable[Event | TurnColumns]) -> Iterator[Event]:
    """Yield events, with those of turns one by one."""
    for item in items:
        if isinstance(item, TurnColumns):
            yield from item.events()
        else:
            yield item
