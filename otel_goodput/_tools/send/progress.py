"""Saves how much of a file has been sent to each receiver, in a file beside it, and locks the file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from otel_goodput._accounting.codec import FLAG, Blobs, Each, Whole
from otel_goodput._journal.lock import Lock
from otel_goodput._journal.sidecars import WORDS, Members, checked_json, read_json
from otel_goodput._runtime import files
from otel_goodput._runtime.files import write_privately
from otel_goodput.errors import GoodputError

_VERSION: Final = 2
_HEAD: Final = 64 * 2**10
# Entries kept, also of files that had this name before: such a file may still be sent.
_KEPT: Final = 64
_LONGEST: Final = 256 * files.KIB  # bytes of the saved progress
_COUNT: Final = Whole(0)
_LOSSES: Final = ("refused", "unreadable", "rejected")
_ENTRY: Final = {
    "receiver": WORDS, "offset": _COUNT, "lines": _COUNT, "doubt": FLAG, "head": WORDS, "length": Whole(0, _HEAD + 1),
    **dict.fromkeys(_LOSSES, _COUNT),
}  # fmt: skip
_STATE: Final = Members({"version": Whole(_VERSION, _VERSION + 1), "entries": Each(Members(_ENTRY))})


@dataclass(kw_only=True)
class Losses:
    """Counts of what did not arrive: lines `refused` and `unreadable`, spans or points `rejected`."""

    refused: int = 0
    unreadable: int = 0
    rejected: int = 0


class Progress:
    """How much of the file `path`, opened as `content`, has been sent to `receiver`; saved in ``<path>.sent``.

    A file is recognized by its content: the digest of its beginning, and the end of a line where sending stopped. So it
    may be copied together with its ``.sent`` file, or renamed without it. With `again`, it starts from its beginning.

    Raises:
        GoodputError: the saved progress cannot be parsed, or the file has become shorter.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, content: BinaryIO, receiver: str, *, again: bool = False) -> None:
        self.path = path
        self.content = content
        self.offset = self.lines = 0  # bytes and lines processed, up to the end of a line
        self.losses = Losses()
        self.doubt = False  # whether a request is under way or its answer was lost; it may then arrive twice
        self.replaced = False  # whether `path` was another file when it was last sent
        self.origin: Path | None = None  # the path that this file had when it was last sent; None if that is `path`
        self._entry: dict[str, Any] = {"receiver": receiver, "length": -1}
        known = _entries(path)
        mine = [entry for entry in known if entry["receiver"] == receiver]
        same = [entry for entry in mine if _begins(content, entry)]
        self._others = [entry for entry in known if entry not in same]
        if again:
            return
        if not same:
            self.replaced = any(entry["offset"] for entry in mine)
            same = self._from_other_names()
        if not same:
            return
        self._entry = entry = same[-1]
        self.offset, self.lines, self.doubt = entry["offset"], entry["lines"], entry["doubt"]
        self.losses = Losses(**{name: entry[name] for name in _LOSSES})
        if self.size() < self.offset or not self._at_end_of_line():
            raise GoodputError(f"{path} has changed since the last send; use --again to send it from the beginning")

    def _from_other_names(self) -> list[dict[str, Any]]:
        """Return the saved entries of this file under names that it no longer has, by offset; sets `origin`."""
        renamed = []
        for state in self.path.parent.glob("*.sent"):
            other = state.with_suffix("")
            if other == self.path or not self.path.name.startswith(other.stem):  # files are renamed to longer names
                continue
            try:
                entries = _entries(other)
            except OSError:
                continue  # not a regular file, such as a pipe or a link
            for entry in entries:
                known = entry["receiver"] == self._entry["receiver"] and entry["length"] > 0
                if known and _begins(self.content, entry) and not _holds(other, entry):
                    renamed.append((entry["offset"], other, entry))
        renamed.sort(key=lambda each: each[0])
        if renamed:
            self.origin = renamed[-1][1]
        return [entry for *_, entry in renamed]

    def size(self) -> int:
        """Return the size of the file in bytes. Raises OSError."""
        return os.fstat(self.content.fileno()).st_size

    def _at_end_of_line(self) -> bool:
        self.content.seek(max(self.offset - 1, 0))
        return not self.offset or self.content.read(1) == b"\n"

    def write(self, offset: int, lines: int, losses: Losses, *, doubt: bool) -> None:
        """Save the progress atomically, with mode 0600. Raises OSError."""
        length = min(offset, _HEAD)
        if length != self._entry["length"]:
            self._entry |= {"length": length, "head": _digest(self.content, length)}
        self.offset, self.lines, self.doubt = offset, lines, doubt
        self.losses = Losses(**{name: getattr(losses, name) for name in _LOSSES})
        self._entry |= {"offset": offset, "lines": lines, "doubt": doubt, **asdict(self.losses)}
        state = {"version": _VERSION, "entries": [*self._others, self._entry][-_KEPT:]}
        write_privately(_state(self.path), checked_json(state, indent=1))

    def set_doubt(self, doubt: bool) -> None:
        """Save whether a request may have arrived that will be sent again. Raises OSError."""
        if doubt != self.doubt:
            self.write(self.offset, self.lines, self.losses, doubt=doubt)


def _state(path: Path) -> Path:
    return path.with_name(f"{path.name}.sent")


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return the saved entries of `path`, the latest last. Raises GoodputError if they cannot be parsed, OSError."""
    try:
        entries: list[dict[str, Any]] = _STATE.load(read_json(_state(path), _LONGEST), Blobs())["entries"]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise GoodputError(f"{_state(path)} cannot be parsed; delete it to send {path} from the beginning") from error
    return entries


def _digest(content: BinaryIO, length: int) -> str:
    content.seek(0)
    return hashlib.sha256(content.read(length)).hexdigest()


def _begins(content: BinaryIO, entry: dict[str, Any]) -> bool:
    return bool(_digest(content, entry["length"]) == entry["head"])


def _holds(path: Path, entry: dict[str, Any]) -> bool:
    """Whether the file at `path` is the one that `entry` describes."""
    try:
        with files.open_named(path) as content:
            return _begins(content, entry)
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file for the ``with`` block. Raises GoodputError if another process is sending it, OSError."""
    lock = Lock(path.with_name(f"{path.name}.sent.lock"))
    if not lock.acquire():
        raise GoodputError(f"{path} is being sent by another process ({lock.last_holder().pid or 'unknown'})")
    try:
        yield
    finally:
        lock.release()
