"""What a person needs to read a run's figures: notes, such as that it was continued, and reasons recorded afterwards.

A job learns late, or never, why the one before it died: the cloud writes that in a log of its own, or a person finds
out. ``otel-goodput reason`` appends what it is given to a file of its own, one JSON object a line; reports apply that
when they read the journal. The job never reads or writes that file, so its own counters keep the reason that it saw
first.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import FLAG, Blobs, Each, Text, Whole
from otel_goodput._journal.rundir import REASONS, REASONS_FILE, RunDirectory
from otel_goodput._journal.sidecars import FIGURE, NOTES, WORDS, Members, Sidecar, kept, whole
from otel_goodput._runtime import files
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import shown
from otel_goodput.errors import JournalError
from otel_goodput.semconv import REASONS as ALL_REASONS
from otel_goodput.semconv import Reason

BOUND: Final = 32  # kinds of notes kept; further ones are only logged
DAMAGED: Final = "damage"  # prefix of the kind of notes on what could not be read
UNMARKED: Final = "clock of"  # prefix of the kind of notes on a runtime whose work is not seen to end


class Note(NamedTuple):
    """One note. A later one of the same kind, which says in a few words what it is about, replaces it."""

    kind: str
    text: str  # sentences for a person, with the line of code or configuration that helps, if there is one
    doubts: tuple[str, ...] = ()  # categories whose figures it makes doubtful, so no advice is derived from them

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, "doubts": list(self.doubts)}


_NOTE: Final = Members({"kind": WORDS, "text": WORDS, "doubts": Each(WORDS, make=tuple)}, Note)
NOTES_FILE: Final = Sidecar("notes", Members({"notes": Each(_NOTE)}), NOTES, format=None)


class Notes:
    """The notes of one process. Any thread may add one; that costs one dictionary entry."""

    def __init__(self) -> None:
        self._notes: dict[str, Note] = {}
        self._kinds: set[str] = set()
        self._kept: tuple[Note, ...] = ()

    def add(self, kind: str, text: str, doubts: Collection[str] = ()) -> bool:
        """Add a note; returns whether it is the first of its kind in this process, so that it should also be logged."""
        first = kind not in self._kinds
        if kind in self._notes or len(self._notes) < BOUND:
            self._notes[kind] = Note(kind, text, tuple(doubts))
        self._kinds.add(kind)
        return first

    def all(self) -> tuple[Note, ...]:
        """The notes so far, those of earlier attempts first."""
        return tuple(self._notes.values())

    def load(self, run: RunDirectory, process: int) -> None:
        """Add the notes of earlier attempts. Notes of this attempt take precedence."""
        mine, self._kept = self._notes, read_notes(run, process)
        self._notes = {note.kind: note for note in self._kept} | mine

    def keep(self, run: RunDirectory, process: int) -> None:
        """Write the notes if they have changed. An error is reported once; the next call tries again."""
        if (notes := self.all()) != self._kept:
            data = NOTES_FILE.encode(notes=[note.to_json() for note in notes])
            if kept(run.file("notes", process), data, "notes", "cannot save the notes on the run (will retry): %s"):
                self._kept = notes


def read_notes(run: RunDirectory, process: int) -> tuple[Note, ...]:
    """Read the stored notes of a process; empty if there are none or they cannot be read."""
    try:
        return tuple(NOTES_FILE.read(run.file("notes", process))["notes"])
    except (OSError, ValueError):
        return ()


FORMAT: Final = 1
REASONS_NOTE: Final = "reasons"  # kind of the note on lines that cannot be read
# A rollback is what the steps themselves did: it is no reason why an attempt began, and none other explains it.
SAYABLE: Final = tuple(reason for reason in ALL_REASONS if reason != Reason.ROLLBACK)
_KEYS: Final = {"author": "said_by", "recorded_at": "said_at"}  # names in the file and in reports
_LONGEST: Final = 200  # characters of each text
_LINE: Final = 4096  # bytes
_ATTEMPTS: Final = 2**31
_STRENGTHS: Final = 1000
_MOMENTS: Final = 9 * 10**9  # s


class Statement(NamedTuple):
    """Why an attempt began, by a person or an importer of logs."""

    attempt: int  # counted from 1
    reason: str  # one of ``SAYABLE``
    first_reason: str  # the reason that the journal has
    author: str  # such as ``alice@host`` or ``cloud audit log: compute.instances.preempted, …``
    person: bool  # the author is a person, and not an importer
    recorded_at: float  # s since the epoch
    note: str = ""  # more for a person
    strength: int = 0  # how reliable an importer's source is, 0 to 999; of two importers the stronger counts

    def to_json(self) -> dict[str, Any]:
        return {_KEYS.get(name, name): value for name, value in self._asdict().items()}


class RecordedReasons(NamedTuple):
    """What is in the file: the statements in their order, and a note on what cannot be read."""

    statements: tuple[Statement, ...] = ()
    note: Note | None = None


def statement(attempt: int, reason: str, first_reason: str, author: str, *, note: str = "", **more: Any) -> Statement:
    """Return a statement whose texts are printable, without credentials, and not too long."""
    return Statement(attempt, reason, first_reason, _text(author), note=_text(note), **more)


def in_force(statements: Iterable[Statement]) -> dict[int, Statement]:
    """Return the statement that counts for each attempt: the latest, but a person's before any importer's."""
    latest: dict[int, Statement] = {}
    for one in statements:
        if one.person or one.attempt not in latest or not latest[one.attempt].person:
            latest[one.attempt] = one
    return latest


def append_reasons(run: RunDirectory, statements: Sequence[Statement]) -> None:
    """Add statements to the file of a run. Raises OSError, or JournalError: there would be more than is ever read."""
    data = b"".join(json.dumps({"format": FORMAT, **one.to_json()}).encode() + b"\n" for one in statements)
    run.make()
    present = files.read(run.reasons_path, REASONS) if files.exists(run.reasons_path) else b""
    if len(present) + len(data) >= REASONS:
        raise JournalError(f"{run.reasons_path} is full ({REASONS} bytes): remove lines that are no longer needed")
    files.append_lines(run.reasons_path, data)


def read_reasons(run: RunDirectory) -> RecordedReasons:
    """Read the statements about a run. It does not raise: the note says what cannot be read."""
    try:
        data = files.read(run.reasons_path, REASONS)
    except (FileNotFoundError, NotADirectoryError):
        return RecordedReasons()
    except OSError as error:
        why = error.strerror or type(error).__name__
        text = f"The recorded reasons for disruptions ({REASONS_FILE}) cannot be read: {why}."
        return RecordedReasons(note=Note(REASONS_NOTE, text))
    parsed = [_parsed(line) for line in data.split(b"\n") if line]
    statements = tuple(one for one in parsed if one is not None)
    lines = plural(len(parsed) - len(statements), "line")
    text = f"{lines} cannot be read in the recorded reasons for disruptions ({REASONS_FILE}); the others are used."
    return RecordedReasons(statements, Note(REASONS_NOTE, text) if len(statements) < len(parsed) else None)


def _parsed(line: bytes) -> Statement | None:
    """Parse a line; None if it is not a statement."""
    with suppress(ValueError, RecursionError):
        parsed: Statement | None = _STATEMENT.load(json.loads(line), Blobs()) if len(line) <= _LINE else None
        return parsed
    return None


def _statement(**entry: Any) -> Statement:
    author, moment = entry.pop("said_by"), entry.pop("said_at")
    del entry["format"]
    whole(moment, _MOMENTS)
    return statement(**entry, author=_text(author) or "somebody", recorded_at=float(moment))


_STATEMENT: Final = Members(
    {
        "format": Whole(FORMAT, FORMAT + 1),
        "attempt": Whole(1, _ATTEMPTS),
        "reason": Text(*SAYABLE),
        "first_reason": Text(*ALL_REASONS),
        "said_by": WORDS,
        "person": FLAG,
        "said_at": FIGURE,
        "note": WORDS,
        "strength": Whole(0, _STRENGTHS),
    },
    _statement,
)


def _text(text: str) -> str:
    return shown(text)[:_LONGEST]
