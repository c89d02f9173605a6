"""A run that has all that the page can show, by events: device times, background saves, parts, a rollback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.long_run import BEGIN, MS, NS, write_events
from otel_goodput._accounting import Event, rules
from otel_goodput._accounting import events as ev
from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage import Machine, Usage, UsageSheet
from otel_goodput.semconv import FALLBACK_CLOCKS, REASONS

NAMES = ("", "eval", "train_step", "forward", "backward")
STEPS = 120
SAVE_EVERY = 20
GIB = 2**30
FIRST_KEY = 0xAB54A98CEB1F0A00  # keys are span ids
PREP, RESTORE = rules.PHASE_INDEX["training_prep"], rules.PHASE_INDEX["checkpoint_restore"]


class Story:
    """Events one after the other, at times of their own."""

    def __init__(self, observed: bool = True) -> None:
        self.observed = observed
        self.now, self.key = BEGIN, FIRST_KEY

    def phase(self, of: int, length: int, step: int = ev.NO_STEP, name: str = "", flags: int = 0) -> Iterator[Event]:
        self.key += 1
        key = self.key
        yield Event(self.now, ev.START, of, key, step, flags & ev.NONBLOCKING | records.EXPORT, 0, name)
        self.now += length
        closing = flags & ~ev.NONBLOCKING | records.EXPORT
        yield Event(self.now, ev.END, of, key, step, closing, 0, name if of == rules.COMPILE else "")

    def step(self, number: int) -> Iterator[Event]:
        """A step of 90 ms on the host with two parts, and 80 ms on the device that end 5 ms after it was dispatched."""
        self.key += 1
        key, begun = self.key, self.now
        slow = 400 * MS if number % 50 == 49 else 0
        yield Event(begun, ev.START, rules.STEP, key, number, records.EXPORT)
        if self.observed:
            yield Event(begun, ev.OBSERVED, 0, key)
        for name, length in (("forward", 30), ("backward", 50)):
            yield from self.phase(rules.PART, length * MS, number, name)
        self.now = begun + 90 * MS + number * 7919 % 31 * MS + slow
        flags = records.EXPORT | (records.OUTLIER if slow else 0) | (records.ERRED | ev.FAILED if number == 77 else 0)
        yield Event(self.now, ev.END, rules.STEP, key, number, flags)
        if self.observed:
            yield Event(self.now + 5 * MS, ev.DEVICE_END, 0, key)
        self.now += 6 * MS

    def life(self, attempt: int, first: int, last: int) -> Iterator[Event]:
        """An attempt of the steps from `first` to before `last`; without its end."""
        self.key = FIRST_KEY
        yield Event(self.now, ev.ATTEMPT, step=attempt)
        self.key += 1
        yield Event(self.now, ev.START, rules.JOB, self.key, flags=records.EXPORT)
        yield Event(self.now, ev.CLOCK, FALLBACK_CLOCKS.index("unknown"))
        yield from self.phase(PREP, 2 * NS)
        yield Event(self.now, ev.SLICES, key=4 - attempt, step=4 - attempt, arg=4)
        if first:
            yield from self.phase(RESTORE, NS, first - 1)
        yield from self.phase(rules.COMPILE, NS, name="train_step")
        durable: list[Event] = []
        for number in range(first, last):
            yield from self.phase(rules.DATA_LOADING, (5 + number % 7) * MS)
            yield from self.step(number)
            yield from durable
            durable.clear()
            if number % SAVE_EVERY == SAVE_EVERY - 1:
                yield from self.phase(rules.SAVE, 50 * MS, number, flags=ev.PENDING)
                durable.append(Event(self.now + 70 * MS, ev.DURABLE, 0, self.key))
            if number % 30 == 29:
                yield from self.phase(rules.CUSTOM_PHASE, 200 * MS, name="eval")

    def events(self) -> Iterator[Event]:
        yield from self.life(0, 0, 70)
        yield Event(self.now, ev.NOTICE, REASONS.index("preemption"))
        yield from self.phase(rules.DATA_LOADING, 5 * MS)
        self.key += 1
        yield Event(self.now, ev.START, rules.STEP, self.key, 70, records.EXPORT)  # it is killed in this step
        self.now += 5 * NS
        yield from self.life(1, 60, STEPS)
        yield Event(self.now, ev.END, rules.JOB, FIRST_KEY + 1, flags=records.EXPORT)


def story_run(
    directory: Path, names: Sequence[str] = NAMES, name: str = "story", *, observed: bool = True
) -> RunDirectory:
    """The run; `names` are called so instead. With `observed` False nothing tells when a step was done."""
    run = RunDirectory(directory / name)
    run.create({"run_id": name, "job_name": name, "created_at": BEGIN / NS, "process_count": 4})
    called = dict(zip(NAMES, names, strict=True))
    written = write_events(
        run, (event._replace(name=called[event.name]) for event in Story(observed).events()), 4, names
    )
    for attempt, process in ((0, 0), (1, 0), (0, 1)):
        sheet = UsageSheet(attempt, process)
        for at in range(1, 40):
            busy = (at * 7919 % 100 + 1) * MS // 25
            end = BEGIN + (attempt * 40 + at) * 200 * MS
            used = Usage(end, 200 * MS, busy, 3 * busy, GIB + at * GIB // 90, 9 * GIB, -1 if process else 70 * GIB)
            sheet.add(Machine(8, 64 * GIB, -1 if process else 80 * GIB), used)
        sheet.keep(written, last=True)
    return written
