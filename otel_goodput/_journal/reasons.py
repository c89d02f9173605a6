"""What was said of disruptions afterwards: an append-only file beside the journal, one JSON object a line.

A job learns late, or never, why the one before it died: the cloud writes that in a log of its own, or a person finds
out. ``otel-goodput reason`` appends what it is told; reports apply it when they read the journal. The job neither reads
nor writes the file, so its own counters keep the reason that it saw first. Its lines are not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._journal.notes import Note
from otel_goodput._journal.rundir import REASONS, REASONS_FILE, RunDirectory
from otel_goodput._journal.sidecars import whole
from otel_goodput._runtime import files
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import shown
from otel_goodput.errors import JournalError
from otel_goodput.semconv import REASONS as ALL_REASONS
from otel_goodput.semconv import Reason

FORMAT: Final = 1
NOTE: Final = "reasons"  # kind of the note on lines that cannot be read
# A rollback is what the steps themselves did: it is no reason why an attempt began, and none other explains it.
SAYABLE: Final = tuple(reason for reason in ALL_REASONS if reason != Reason.ROLLBACK)
_LONGEST: Final = 200  # characters of each text
_LINE: Final = 4096  # bytes
_ATTEMPTS: Final = 2**31
_STRENGTHS: Final = 1000
_MOMENTS: Final = 9 * 10**9  # s


class Statement(NamedTuple):
    """What somebody said of the disruption that an attempt began with.

    Attributes:
        attempt: its number, counted from 1.
        reason: one of ``SAYABLE``.
        first_reason: the reason that the journal has.
        said_by: who says so, such as ``alice@host`` or ``cloud audit log: compute.instances.preempted, …``.
        person: a person said it, and not an importer.
        said_at: seconds since the epoch.
        note: more for a person, or an empty string.
        strength: how much an importer's source tells of the reason, 0 to 999; of two importers the stronger is heard.
    """

    attempt: int
    reason: str
    first_reason: str
    said_by: str
    person: bool
    said_at: float
    note: str = ""
    strength: int = 0

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Said(NamedTuple):
    """What is in the file: the statements in their order, and what a person must know of what cannot be read."""

    statements: tuple[Statement, ...] = ()
    note: Note | None = None


def statement(
    attempt: int,
    reason: str,
    first_reason: str,
    said_by: str,
    *,
    person: bool,
    said_at: float,
    note: str = "",
    strength: int = 0,
) -> Statement:
    """Return a statement whose texts are printable, without credentials, and not too long."""
    return Statement(attempt, reason, first_reason, _text(said_by), person, said_at, _text(note), strength)


def in_force(statements: Iterable[Statement]) -> dict[int, Statement]:
    """Return the statement that counts for each attempt: the latest, but a person's before any importer's."""
    found: dict[int, Statement] = {}
    for one in statements:
        if one.person or one.attempt not in found or not found[one.attempt].person:
            found[one.attempt] = one
    return found


def append(run: RunDirectory, statements: Sequence[Statement]) -> None:
    """Add statements to the file of a run.

    Raises:
        JournalError: there would be more in it than is ever read.
        OSError: it cannot be written, or an untrusted user owns the folder.
    """
    data = b"".join(json.dumps({"format": FORMAT, **one.to_json()}).encode() + b"\n" for one in statements)
    run.make()
    present = 0
    if files.exists(run.reasons_path):
        present = len(files.read(run.reasons_path, REASONS))
    if present + len(data) >= REASONS:
        raise JournalError(f"{run.reasons_path} is full ({REASONS} bytes): remove lines that are no longer needed")
    files.append_lines(run.reasons_path, data)


def read_reasons(run: RunDirectory) -> Said:
    """Read what was said of a run. It does not raise: the note tells what cannot be read."""
    try:
        data = files.read(run.reasons_path, REASONS)
    except (FileNotFoundError, NotADirectoryError):
        return Said()
    except OSError as error:
        why = error.strerror or type(error).__name__
        return Said(
            note=Note(NOTE, f"The recorded reasons for disruptions ({REASONS_FILE}) cannot be read: {why}.", ())
        )
    found: list[Statement] = []
    left_out = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        one = _parsed(line)
        if one is None:
            left_out += 1
        else:
            found.append(one)
    note = None
    if left_out:
        lines = plural(left_out, "line")
        text = f"{lines} cannot be read in the recorded reasons for disruptions ({REASONS_FILE}); the others are used."
        note = Note(NOTE, text, ())
    return Said(tuple(found), note)


def _parsed(line: bytes) -> Statement | None:
    """Parse a line; None if it is not a statement."""
    try:
        if len(line) > _LINE:
            return None
        told = json.loads(line)
        if whole(told["format"]) != FORMAT or told["reason"] not in SAYABLE or told["first_reason"] not in ALL_REASONS:
            return None
        attempt, strength = whole(told["attempt"], _ATTEMPTS), whole(told["strength"], _STRENGTHS)
        said_at = told["said_at"]
        whole(said_at, _MOMENTS)
        texts = told["said_by"], told["note"]
        if attempt < 1 or not isinstance(told["person"], bool) or not all(isinstance(text, str) for text in texts):
            return None
        by, note = map(_text, texts)
        return Statement(
            attempt,
            told["reason"],
            told["first_reason"],
            by or "somebody",
            told["person"],
            float(said_at),
            note,
            strength,
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def _text(text: str) -> str:
    return shown(text)[:_LONGEST]
