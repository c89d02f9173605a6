"""What an overview adds to an event: two cursors take the same events in turns, one of them without an overview."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

from benchmarks import table
from benchmarks.rounds import Samples, once, serve
from benchmarks.table import Row
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.events import Event

BEGIN = 1_700_000_000 * 10**9  # ns
STEP = 330_000_000  # ns from one step to the next
SAVE_EVERY = 1_000  # steps
BATCH = 1_024  # events that the keeper feeds at once
PART = 2_000  # steps that one cursor takes before it is the other's turn
YOUNG = 20_000  # steps of a run whose bins still double often
SPANS = (3600 * 10**9, 86400 * 10**9)  # ns
TARGET = 0.5e-6  # seconds


def stream(first: int, last: int) -> Iterator[Event]:
    """A data load and a step for each number from `first` up to `last`, and a save now and then."""
    for number in range(first, last):
        at, key, noise = BEGIN + number * STEP, 10 + 3 * number, number * 7919 % 613 * 10_000
        yield Event(at + 1_000, ev.START, rules.DATA_LOADING, key)
        yield Event(at + 10_000_000 + noise, ev.END, rules.DATA_LOADING, key)
        yield Event(at + 17_000_000, ev.START, rules.STEP, key + 1, number)
        yield Event(at + 300_000_000 + noise, ev.END, rules.STEP, key + 1)
        if number % SAVE_EVERY == SAVE_EVERY - 1:
            yield Event(at + 310_000_000, ev.START, rules.SAVE, key + 2, number)
            yield Event(at + 320_000_000, ev.END, rules.SAVE, key + 2)


def _fed(cursor: Cursor, events: list[Event]) -> float:
    """Seconds of this thread, garbage collection included."""
    began = time.thread_time()
    for at in range(0, len(events), BATCH):
        cursor.apply_all(events[at : at + BATCH])
    return time.thread_time() - began


def answer(steps: int) -> dict[str, float]:
    """Seconds an event, of each cursor, in the first steps and in those after them, up to `steps`."""
    cursors = {name: Cursor(SPANS, overview=name == "with") for name in ("without", "with")}
    for cursor in cursors.values():
        cursor.apply_all([Event(BEGIN, ev.ATTEMPT, step=0), Event(BEGIN, ev.START, rules.JOB, 1)])
    spent: dict[str, float] = {}
    counts: dict[str, int] = {}
    for turn, first in enumerate(range(0, steps, PART)):
        events = list(stream(first, first + PART))
        age = "young" if first < YOUNG else "steady"
        counts[age] = counts.get(age, 0) + len(events)
        gc.collect()
        for name in sorted(cursors, reverse=turn % 2 == 1):
            spent[f"{age}: {name}"] = spent.get(f"{age}: {name}", 0.0) + _fed(cursors[name], events)
    return {name: seconds / counts[name.partition(":")[0]] for name, seconds in spent.items()}


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    rounds, steps = (1, 2 * YOUNG) if fast else (5, 4 * YOUNG)
    for _ in range(rounds):
        for name, seconds in once("overview", steps=steps).items():
            samples.add(f"overview: {name}", seconds)
    group = "Overview: processor time that it adds to an event, in the keeper's thread"
    rows = []
    for age, what in (("young", f"the first {YOUNG:,} steps"), ("steady", "later")):
        with_it, without = f"overview: {age}: with", f"overview: {age}: without"
        added = samples.median(with_it) - samples.median(without)
        ratio = table.compared(samples.ratios(with_it, without))
        rows.append(Row(group, what, ratio, table.seconds(added), f"≤ {table.seconds(TARGET)}", added <= TARGET))
    return rows


if __name__ == "__main__":
    serve(answer)
