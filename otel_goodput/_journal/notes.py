"""Notes that a person needs to read a run's figures, such as that it was continued or a phase was used wrongly.

They are stored in a small file, so that a restart and a report from disk have them too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import Each
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import NOTES, WORDS, Members, Sidecar, kept

BOUND: Final = 32  # kinds of notes kept; further ones are only logged
DAMAGED: Final = "damage"  # prefix of the kind of notes on what could not be read
UNMARKED: Final = "clock of"  # prefix of the kind of notes on a runtime whose work is not seen to end


class Note(NamedTuple):
    """One note.

    Attributes:
        kind: what it is about, in a few words. A later note replaces an earlier one of the same kind.
        text: sentences for a person, with the line of code or configuration that helps, if there is one.
        doubts: categories whose figures it makes doubtful, so no advice is derived from them.
    """

    kind: str
    text: str
    doubts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, "doubts": list(self.doubts)}


_NOTE: Final = Members({"kind": WORDS, "text": WORDS, "doubts": Each(WORDS, make=tuple)}, Note)
SIDECAR: Final = Sidecar("notes", Members({"notes": Each(_NOTE)}), NOTES, format=None)


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
        notes = self.all()
        if notes == self._kept:
            return
        data = SIDECAR.encode(notes=[note.to_json() for note in notes])
        if kept(run.notes_path(process), data, "notes", "cannot save the notes on the run (will retry): %s"):
            self._kept = notes


def read_notes(run: RunDirectory, process: int) -> tuple[Note, ...]:
    """Read the stored notes of a process; empty if there are none or they cannot be read."""
    try:
        return tuple(SIDECAR.read(run.notes_path(process))["notes"])
    except (OSError, ValueError):
        return ()
