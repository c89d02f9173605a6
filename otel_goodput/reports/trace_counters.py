"""The counters of an exported trace: what was at risk, and the goodput, as the live account told them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_goodput.accounting import Ledger
from otel_goodput.accounting import events as ev
from otel_goodput.accounting.events import Event
from otel_goodput.reports.trace_writer import TraceWriter
from otel_goodput.text.durations import NS
from otel_goodput.text.quantities import format_duration

SAMPLES: Final = 1000  # over the run, and as many at its checkpoints
_WINDOW: Final = 3600 * NS  # of rolling goodput, in a run that is long enough
_SHARE: Final = 20  # of a shorter run it is one part of so many


class Counters:
    """Follows the journal of the leader with an account of its own, and asks it now and then.

    Args:
        begin, end: of the run, ns.
        sink: takes the values.
        process: the group of tracks.
        new_number: returns the number of a new track.
    """

    def __init__(self, begin: int, end: int, sink: TraceWriter, process: int, new_number: Callable[[], int]) -> None:
        self._every = max(1, (end - begin) // SAMPLES)
        self._next = begin
        self._begin = begin
        self._before_save = 0  # when it was last asked because of a checkpoint
        self._sink = sink
        self._process = process
        window = max(NS, min(_WINDOW, (end - begin) // _SHARE))
        self._ledger = Ledger((window,))
        self._tracks = []
        for rank, (name, unit) in enumerate(
            (
                ("at risk", "s"),
                (f"goodput of the last {format_duration(window / NS)}", "%"),
                ("goodput of the run", "%"),
                ("active slices", "slices"),
            )
        ):
            self._tracks.append(new_number())
            sink.track(self._tracks[-1], process, name, rank, counter=unit)

    def take(self, events: list[Event]) -> None:
        """Take events in the order of their records."""
        waiting: list[Event] = []
        saves = self._ledger.settled.steps.saves
        for event in events:
            time, kind = event[0], event[1]
            if kind == ev.DURABLE or (kind == ev.END and event[3] in saves and not event[5] & (ev.PENDING | ev.FAILED)):
                # What is at risk falls when a checkpoint becomes durable, be it at the end of the save.
                self._around(event, waiting)
                saves = self._ledger.settled.steps.saves
            elif kind == ev.SLICES:
                self._sink.value(self._process, self._tracks[3], time, float(event.step))
            waiting.append(event)
            if time >= self._next:
                self._ledger.feed(waiting)
                waiting.clear()
                self._ask(time)
                self._next = time + self._every
                saves = self._ledger.settled.steps.saves
        self._ledger.feed(waiting)

    def _around(self, event: Event, waiting: list[Event]) -> None:
        """Ask right before a checkpoint becomes durable, and see to it that it is asked right after, too."""
        if event.time >= self._before_save + self._every:
            self._before_save = event.time
            self._ledger.feed(waiting)
            waiting.clear()
            self._ask(event.time - 1)
            self._next = event.time

    def finish(self, at: int) -> None:
        """Ask once more at the end of the run (ns)."""
        self._ask(at)

    def _ask(self, time: int) -> None:
        totals = self._ledger.totals(time)
        if totals.started_at is None or time < totals.started_at:
            return
        values = (
            totals.at_risk / NS if totals.run.known else None,
            totals.rolling[0][1].goodput if totals.rolling else None,
            totals.run.goodput,
        )
        for track, value, scale in zip(self._tracks, values, (1, 100, 100), strict=False):
            if value is not None:
                self._sink.value(self._process, track, time, value * scale)
