"""Saves how much of a file has been sent to each receiver, in a file beside it, and locks the file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from otel_goodput._journal.lock import Lock
from otel_goodput._journal.sidecars import checked_json, read_json, whole
from otel_goodput._runtime import files
from otel_goodput._runtime.files import write_privately
from otel_goodput.errors import GoodputError

_VERSION: Final = 2
_HEAD: Final = 64 * 2**10
# Entries kept, also of files that had this name before: such a file may still be sent.
_KEPT: Final = 64
_LONGEST: Final = 256 * files.KIB  # bytes of the saved progress
_BEYOND: Final = 2**63
_KINDS: Final = {
    "receiver": str, "offset": int, "lines": int, "doubt": bool, "head": str, "length": int,
    "refused": int, "unreadable": int, "rejected": int,
}  # fmt: skip


@dataclass(kw_only=True)
class Losses:
    """Counts of what did not arrive: lines `refused` and `unreadable`, spans or points `rejected`."""

    refused: int = 0
    unreadable: int = 0
    rejected: int = 0


class Progress:
    """How much of the file `path`, opened as `content`, has been sent to `receiver`; saved in ``<path>.sent``.

    A file is recognized by its content: the digest of its beginning, and the end of a line where sending stopped. So it
    may be copied together with its ``.sent`` file, or renamed without it.

    Args:
        again: ignore the saved progress and start from the beginning.

    Attributes:
        offset: bytes processed, up to the end of a line.
        lines: number of lines processed.
        losses: counts of what did not arrive.
        doubt: whether a request is under way or its answer was lost; it is sent again, and may then arrive twice.
        replaced: whether `path` was another file when it was last sent.
        origin: the path that this file had when it was last sent; None if that is `path`.

    Raises:
        GoodputError: the saved progress cannot be parsed, or the file has become shorter.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, content: BinaryIO, receiver: str, *, again: bool = False) -> None:
        self.path = path
        self.content = content
        self.offset = self.lines = 0
        self.losses = Losses()
        self.doubt = self.replaced = False
        self.origin: Path | None = None
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
        if same:
            self._go_on(same[-1])

    def _go_on(self, entry: dict[str, Any]) -> None:
        self._entry = entry
        self.offset, self.lines, self.doubt = entry["offset"], entry["lines"], entry["doubt"]
        self.losses = Losses(**{name: entry[name] for name in asdict(self.losses)})
        if self.size() < self.offset or not self._at_end_of_line():
            raise GoodputError(
                f"{self.path} has changed since the last send; use --again to send it from the beginning"
            )

    def _from_other_names(self) -> list[dict[str, Any]]:
        """Return the saved entries of this file under earlier names, ordered by offset; sets `origin`.

        An earlier name now belongs to another file, or to none.
        """
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
        self.losses = Losses(**{name: getattr(losses, name) for name in asdict(self.losses)})
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
        state = read_json(_state(path), _LONGEST)
        if state["version"] != _VERSION:
            raise ValueError("another version's")
        entries: list[dict[str, Any]] = state["entries"]
        for entry in entries:
            for key, kind in _KINDS.items():
                if not isinstance(entry[key], kind):
                    raise TypeError(key)
                if kind is int:
                    whole(entry[key], _HEAD + 1 if key == "length" else _BEYOND)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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
    """Lock a file for the ``with`` block, so that no other process sends it.

    Raises:
        GoodputError: another process is sending it.
        OSError: the lock file cannot be created beside it.
    """
    lock = Lock(path.with_name(f"{path.name}.sent.lock"))
    if not lock.acquire():
        raise GoodputError(f"{path} is being sent by another process ({lock.last_holder().pid or 'unknown'})")
    try:
        yield
    finally:
        lock.release()
