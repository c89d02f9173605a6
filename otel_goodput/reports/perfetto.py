"""Exports a run as a trace for Perfetto, ui.perfetto.dev or chrome://tracing, in Chrome's JSON.

Every attempt of every process is a group of tracks: its job, phases, steps, the device, and so on. Steps are told by
their fate. Arrows lead from a save to its commit, and from a job to the one that goes on with the run. The journal is
read twice, segment by segment: once to know where the run went back, and once to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from otel_goodput._accounting import Ledger
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import Reader
from otel_goodput.errors import JournalError
from otel_goodput.reports import ProgressCallback
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.trace_survey import Survey, survey
from otel_goodput.reports.trace_walk import ProcessWalk
from otel_goodput.reports.trace_writer import Spool, TraceWriter

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


_RUN: Final = 1  # number of the group of tracks with the counters of the run
_TRACKS: Final = 1 << 20  # numbers of tracks begin here; those of groups are below


def export(
    run: RecordedRun,
    processes: Sequence[int],
    write: Callable[[bytes], object],
    *,
    scratch: Path,
    progress: ProgressCallback = lambda *_: None,
    damages: Damages | None = None,
) -> int:
    """Export a run and return how many slices, moments and values of counters were written.

    Args:
        run: the run.
        processes: indices of the processes; the counters are those of the first.
        write: is called with the bytes of the trace, piece by piece.
        scratch: a folder for temporary files, of about the size of the trace.
        progress: is called with how much of how much is done, and what is done.
        damages: what has to be left out of the journals is added to it; by default it is logged.

    Raises:
        JournalError: none of the processes left a journal that can be read.
        OSError: it cannot be written.
    """
    left_out = Damages() if damages is None else damages
    surveys = [found for process in processes if (found := survey(run.folder, process, left_out, progress)).attempts]
    if not surveys:
        which = ", ".join(map(str, processes))
        raise JournalError(f"run {run.run_id!r}: process {which} left no journal that can be read")
    total = sum(found.records for found in surveys)
    origin = min(span.begin for found in surveys for span in found.attempts)
    with Spool(scratch) as spool:
        sink = TraceWriter(spool, origin)
        done = 0
        sink.process(_RUN, f"run {run.run_id}")
        for found, read in _walked(run, surveys, sink, max(processes) + 1, left_out):
            progress(done + read, 2 * total, f"process {found.process}: reading")
            if read >= found.records:
                done += found.records
        for at, piece in enumerate(sink.pieces()):
            write(piece)
            if not at % 1024:
                progress(total + total * at / max(1, spool.count), 2 * total, "writing")
        if damages is None:
            left_out.log()
        return sink.events


def _walked(
    run: RecordedRun, surveys: Sequence[Survey], sink: TraceWriter, processes: int, damages: Damages
) -> Iterator[tuple[Survey, int]]:
    """Hand every process's journal to the sink; yield how many of its events have been read."""
    tracks = count(_TRACKS)
    described: set[int] = set()

    def new_number() -> int:
        return next(tracks)

    def number(attempt: int, process: int) -> int:
        group = min(_RUN + 1 + attempt * processes + process, _TRACKS - 1)
        if group not in described:
            described.add(group)
            rank = f", process {process}" if processes > 1 else ""
            sink.process(group, f"attempt {attempt + 1}{rank}")
        return group

    for found in surveys:
        walk = ProcessWalk(found, sink, lambda attempt, found=found: number(attempt, found.process), new_number)  # type: ignore[misc]
        counters = None
        if found is surveys[0]:
            begin, end = found.attempts[0].begin, max(span.last for span in found.attempts)
            counters = Counters(begin, end, sink, _RUN, new_number)
        read = 0
        # What cannot be read has been found by the survey.
        for part in Reader(run.folder, found.process).events(Damages()):
            if part.entries:
                walk.take(part.entries, part.attempt)
                if counters is not None:
                    counters.take(part.entries)
            read += len(part.entries)
            yield found, min(read, found.records - 1)
        walk.end()
        if counters is not None:
            counters.finish(end)
        yield found, found.records
