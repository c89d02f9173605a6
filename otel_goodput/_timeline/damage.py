"""Describes the parts of a journal that could not be read: where, what is wrong, and how much time is uncertain.

A reader skips records that it cannot verify (:mod:`~otel_goodput._journal.records`). This module separates damage from
the incomplete records that a dying process normally leaves, and describes it. For an intact journal it does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.phase_history import Phases
from otel_goodput._journal import records
from otel_goodput._journal.notes import DAMAGED, Note
from otel_goodput._journal.records import Skip
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import printable, redacting_logger

logger = redacting_logger(__name__)

RUNS: Final = 8  # of damaged records in one segment that are reported one by one
HOLES: Final = 32  # empty records in a row that count as damage; interrupted threads do not leave so many
SHOWN: Final = 4
_NEWER: Final = (
    "A newer version of otel_goodput wrote a part of this journal that this version cannot read; it is left out"
)
_DAMAGED: Final = "The journal is damaged, and unreadable parts are left out of the account"
BOUND: Final = 1000  # damages remembered; the rest is only counted


class Damage(NamedTuple):
    """One part of a journal that was left out."""

    where: str  # the file, and the place in it
    what: str  # what is wrong
    begin: int | None = None  # begin and end of the time in which it is uncertain what happened, ns; None: not known
    end: int | None = None
    newer: bool = False  # it is intact, but a newer version wrote it
    harmless: bool = False  # the account does not need it

    @property
    def uncertain(self) -> int | None:
        """How much time is uncertain because of it, ns; None if that is not known."""
        if self.harmless:
            return 0
        return None if self.begin is None or self.end is None else max(0, self.end - self.begin)

    def __str__(self) -> str:
        uncertain = self.uncertain
        if self.harmless:
            effect = "the figures are not affected"
        elif uncertain is None:
            effect = "the amount of uncertain time is not known"
        else:
            effect = f"up to {uncertain / NS:.3g} s are uncertain"
        return f"{printable(self.where)}: {printable(self.what)} ({effect})"

    def to_json(self) -> dict[str, Any]:
        """The JSON form; times are in seconds since the epoch."""
        return {
            "where": printable(self.where),
            "what": printable(self.what),
            "from": None if self.begin is None else self.begin / NS,
            "to": None if self.end is None else self.end / NS,
            "uncertain_s": None if self.uncertain is None else self.uncertain / NS,
            "newer_version": self.newer,
        }


class ReadSegment(NamedTuple):
    """A segment that has been read."""

    name: str
    data: bytes
    room: int
    skipped: Sequence[Skip]  # the records that its reader left out
    skip: int  # number of its first records that were not read on purpose
    sealed: bool  # it was archived when it was complete
    last: bool  # it is the last segment of its attempt
    phases: Phases[Any]  # those that were open when it began


class Damages:
    """Collects what a reader of one journal had to leave out. The reader passes it the segments in order."""

    def __init__(self) -> None:
        self.listed: list[Damage] = []  # the first ``BOUND``
        self.more = 0  # number of further ones
        self._open: list[int] = []  # indices in `listed` of damages whose `end` the next segment gives
        self._last: int | None = None  # latest time read so far, ns

    def __bool__(self) -> bool:
        return bool(self.listed)

    @property
    def serious(self) -> list[Damage]:
        """Those that may affect the figures."""
        return [one for one in self.listed if not one.harmless]

    @property
    def newer(self) -> list[Damage]:
        """The parts that a newer version wrote."""
        return [one for one in self.listed if one.newer]

    def add(self, damage: Damage) -> None:
        if damage in self.listed:
            return
        if len(self.listed) >= BOUND:
            self.more += 1
            return
        if not damage.harmless and damage.end is None and damage.begin is not None:
            self._open.append(len(self.listed))
        self.listed.append(damage)

    def extend(self, others: Damages) -> None:
        """Add those of another journal."""
        for one in others.listed:
            self.add(one)
        self.more += others.more

    def left_out(self, path_name: str, error: BaseException, *, harmless: bool = False) -> None:
        """Report that a whole file is left out."""
        what, newer = str(error) or type(error).__name__, isinstance(error, records.NewerVersion)
        self.add(Damage(path_name, what, None if harmless else self._last, newer=newer, harmless=harmless))

    def small(self, path_name: str, error: BaseException) -> None:
        """Report that one of the small files is left out. It makes no time uncertain."""
        newer = isinstance(error, records.NewerVersion)
        self.add(Damage(path_name, str(error) or type(error).__name__, 0, 0, newer=newer))

    def missing(self, attempt: int, first: int, last: int) -> None:
        """Report that the segments `first` to `last` of an attempt are missing."""
        which = f"segment {first} is" if first == last else f"segments {first} to {last} are"
        self.add(Damage(f"attempt {attempt}", f"{which} missing", self._last))

    def segment(self, segment: ReadSegment, times: tuple[int, int] | None) -> None:
        """Report the damages of a segment; `times`: the earliest and the latest time in it, ns, if it has any."""
        if times is not None:
            self.close(times[0])
        for damage in _damages(segment, self._last):
            self.add(damage)
        if times is not None:
            self._last = max(times[1], self._last or 0)

    def close(self, moment: int) -> None:
        """End the uncertain time of open damages: from `moment` (ns) on, it is known again what happened."""
        for place in self._open:
            one = self.listed[place]
            if one.begin is None or one.begin <= moment:
                self.listed[place] = one._replace(end=moment)
        self._open.clear()

    def _lines(self, more: str) -> list[str]:
        """Those that may affect the figures, in a few lines; `more` says of how many others there are."""
        lines = [str(one) for one in self.serious[:SHOWN]]
        others = self.more + len(self.serious[SHOWN:])
        return [*lines, more.format(others)] if others else lines

    def note(self) -> Note | None:
        """The note to show with the figures; None if they are not affected."""
        if not self.serious:
            return None
        cause = _NEWER if all(one.newer for one in self.serious) else _DAMAGED
        text = f"{cause}: {'; '.join(self._lines('and {} more'))}."
        # The kind has a checksum of the text: the same damage gives one note at every restart, another gives its own.
        return Note(f"{DAMAGED} {crc32(text.encode('utf-8', 'replace')):08x}", text)

    def log(self) -> None:
        """Log the damages that affect the figures, in a few lines at most."""
        for line in self._lines("{} more"):
            logger.warning("journal: left out: %s", line)


def _damages(segment: ReadSegment, before: int | None) -> Iterator[Damage]:
    name, data, room, skipped, skip, sealed, last, phases = segment
    header = records.decode_header(data)
    if header.torn:
        yield Damage(f"{name}, its header", "the last sign of life is corrupt", _latest(data) or before)
    there = min(records.used(data), room)
    runs = [run for run in _runs(skipped) if run[2] != records.EMPTY or run[1] - run[0] >= HOLES]
    if not sealed and last and there < records.CAPACITY:
        # Ignore records that were being written when the process or its machine died: no intact record follows them.
        lost = {place for place, cause in skipped if cause != records.UNKNOWN}
        tail = there
        while tail > header.reached and tail - 1 in lost:
            tail -= 1
        runs = [run for run in runs if run[0] < tail]
    if len(runs) > RUNS:
        merged = [(runs[0][0], runs[-1][1], runs[0][2])]
        counts = f"{len(skipped)} records in {len(runs)} places cannot be read"
    else:
        merged, counts = runs, ""
    events = list(_sound(data)) if merged else []
    for first, end, cause in merged:
        where = f"{name}, record {first}" if end - first == 1 else f"{name}, records {first} to {end - 1}"
        newer = all(one[2] == records.UNKNOWN for one in runs) if counts else cause == records.UNKNOWN
        begin, until = _doubt(events, phases, first, end)
        what = counts or _WORDS[cause]
        since = before if begin is None else begin
        yield Damage(where, what, until if since is None else since, until, newer)
    cut = not last and max(room, skip) < records.CAPACITY
    if cut or max(there, skip) < header.reached:
        yield Damage(name, "its end is missing", _latest(data) or before)


_WORDS: Final = {
    "damaged": "the contents are corrupt",
    records.UNKNOWN: "only a newer version knows this kind of record",
    records.EMPTY: "the contents are gone",
}


def _runs(skipped: Iterable[Skip]) -> list[tuple[int, int, str]]:
    """Group skipped records that are adjacent and have the same cause, as (first, one past the last, cause)."""
    runs: list[tuple[int, int, str]] = []
    for place, cause in skipped:
        first = runs.pop()[0] if runs and runs[-1][1:] == (place, cause) else place
        runs.append((first, place + 1, cause))
    return runs


def _sound(data: bytes) -> Iterator[tuple[int, Event]]:
    """The intact events of a segment with their places."""
    for place in range(min(records.used(data), (len(data) - records.HEADER_SIZE) // records.SIZE)):
        raw = data[records.HEADER_SIZE + place * records.SIZE : records.HEADER_SIZE + (place + 1) * records.SIZE]
        if records.sound(raw) and raw[0] < records.NAME:
            for kind, phase, flags, _, key, step, time in records.events_in(records.RECORD.unpack(raw)):
                yield place, records.event_of(kind, phase, flags, "", key, step, time)


def _latest(data: bytes) -> int | None:
    return max((event.time for _, event in _sound(data)), default=None)


def _doubt(
    events: Sequence[tuple[int, Event]], phases: Phases[Any], first: int, end: int
) -> tuple[int | None, int | None]:
    """Return (begin, end) of the time (ns) that is uncertain if the records from `first` up to `end` are lost.

    It lasts at least until the next intact record. A phase that ends later without a START may have begun in the lost
    records, so it extends the uncertain time. So does one that was open before and never ends: it may have ended there.
    """
    begin = next((event.time for place, event in reversed(events) if place < first), None)
    before, since = Phases(dict(phases.opened)), Phases[Event]()
    until: int | None = None
    latest: int | None = None
    for place, event in events:
        kind, key, time = event.kind, event.key, event.time
        if place < first:
            before.take(kind, key, event)
            continue
        latest = time if latest is None else max(latest, time)
        if place < end:
            continue
        if until is None:
            until = time
        if kind == ev.START:
            before.end(key)
        if since.take(kind, key, event) is None and kind == ev.END and before.end(key) is None:
            until = max(until, time)
    if until is not None and latest is not None and any(one.phase != rules.JOB for one in before.opened.values()):
        until = max(until, latest)
    return begin, until
