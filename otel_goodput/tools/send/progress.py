"""How far a file has been sent, and to whom: a file beside it, and a lock."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from otel_goodput import files
from otel_goodput.errors import GoodputError
from otel_goodput.files import write_privately
from otel_goodput.journal.lock import Lock
from otel_goodput.journal.sidecars import read_json, whole

_VERSION: Final = 2
_HEAD: Final = 64 * 2**10
# Of files that had this name before: they may yet be asked for.
_KEPT: Final = 64
_LONGEST: Final = 256 * files.KIB  # of what is kept
_BEYOND: Final = 2**63
_KINDS: Final = {
    "receiver": str, "offset": int, "lines": int, "doubt": bool, "head": str, "length": int,
    "refused": int, "unreadable": int, "rejected": int,
}  # fmt: skip


@dataclass(kw_only=True)
class Losses:
    """What was passed over and did not arrive: lines `refused` and `unreadable`, spans or points `rejected`."""

    refused: int = 0
    unreadable: int = 0
    rejected: int = 0


class Progress:
    """How far `path`, opened as `content`, has been sent to `receiver`, kept in ``<path>.sent``.

    A file is known by its content, so that it may be copied together with this, or renamed without: by the digest of
    its beginning, and by a line that ends where the sending did.

    Attributes:
        offset: bytes that are done with, to the end of a line.
        lines: how many lines those are.
        losses: which of them did not arrive.
        doubt: whether a request is under way, or its answer was lost; it is sent again then, and may be there twice.
        replaced: whether another file was there when it was last sent.
        origin: the name that this file had when it was last sent, None where it is the same.

    Raises:
        GoodputError: what is written there cannot be understood, or the file has become shorter.
        OSError: it cannot be read.
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
            raise GoodputError(f"{self.path} no longer is what was sent of it; --again sends it from its beginning")

    def _from_other_names(self) -> list[dict[str, Any]]:
        """What is remembered of this file under a name that another has now, or none; the furthest last."""
        found = []
        for state in self.path.parent.glob("*.sent"):
            other = state.with_suffix("")
            if other == self.path or not self.path.name.startswith(other.stem):  # it is renamed to a longer one
                continue
            try:
                entries = _entries(other)
            except OSError:
                continue  # somebody's pipe or link
            for entry in entries:
                known = entry["receiver"] == self._entry["receiver"] and entry["length"] > 0
                if known and _begins(self.content, entry) and not _holds(other, entry):
                    found.append((entry["offset"], other, entry))
        found.sort(key=lambda each: each[0])
        if found:
            self.origin = found[-1][1]
        return [entry for *_, entry in found]

    def size(self) -> int:
        """Of the file, in bytes. Raises OSError."""
        return os.fstat(self.content.fileno()).st_size

    def _at_end_of_line(self) -> bool:
        self.content.seek(max(self.offset - 1, 0))
        return not self.offset or self.content.read(1) == b"\n"

    def write(self, offset: int, lines: int, losses: Losses, *, doubt: bool) -> None:
        """Remember, as a whole or not at all, mode 0600. Raises OSError."""
        length = min(offset, _HEAD)
        if length != self._entry["length"]:
            self._entry |= {"length": length, "head": _digest(self.content, length)}
        self.offset, self.lines, self.doubt = offset, lines, doubt
        self.losses = Losses(**{name: getattr(losses, name) for name in asdict(self.losses)})
        self._entry |= {"offset": offset, "lines": lines, "doubt": doubt, **asdict(self.losses)}
        state = {"version": _VERSION, "entries": [*self._others, self._entry][-_KEPT:]}
        write_privately(_state(self.path), json.dumps(state, indent=1).encode())

    def mark(self, doubt: bool) -> None:
        """Remember whether a request may be there that is to be sent again. Raises OSError."""
        if doubt != self.doubt:
            self.write(self.offset, self.lines, self.losses, doubt=doubt)


def earlier(path: Path, receiver: str) -> list[Path]:
    """The files to send before `path`: the one that was sent to `receiver` under this name and has a longer one now, as
    a collector renames its files, and those that came after it. Raises GoodputError, OSError."""
    known = [entry for entry in _entries(path) if entry["receiver"] == receiver and entry["length"]]
    moved = [entry for entry in known if not _holds(path, entry)]
    if not moved:
        return []
    series = sorted(path.parent.glob(f"{glob.escape(path.stem)}-*{glob.escape(path.suffix)}"))
    begun = [number for number, file in enumerate(series) if any(_holds(file, entry) for entry in moved)]
    return series[begun[-1] :] if begun else []


def _state(path: Path) -> Path:
    return path.with_name(f"{path.name}.sent")


def _entries(path: Path) -> list[dict[str, Any]]:
    """What is remembered under this name, the latest last."""
    try:
        found = read_json(_state(path), _LONGEST)
        if found["version"] != _VERSION:
            raise ValueError("another version's")
        entries: list[dict[str, Any]] = found["entries"]
        for entry in entries:
            for key, kind in _KINDS.items():
                if not isinstance(entry[key], kind):
                    raise TypeError(key)
                if kind is int:
                    whole(entry[key], _HEAD + 1 if key == "length" else _BEYOND)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GoodputError(f"{_state(path)} cannot be understood; without it {path} is sent anew") from error
    return entries


def _digest(content: BinaryIO, length: int) -> str:
    content.seek(0)
    return hashlib.sha256(content.read(length)).hexdigest()


def _begins(content: BinaryIO, entry: dict[str, Any]) -> bool:
    return bool(_digest(content, entry["length"]) == entry["head"])


def _holds(path: Path, entry: dict[str, Any]) -> bool:
    """Whether the file that now has this name is the one that `entry` is about."""
    try:
        with files.open_named(path) as content:
            return _begins(content, entry)
    except FileNotFoundError:
        return False


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else sends this file meanwhile.

    Raises:
        GoodputError: somebody does.
        OSError: the lock cannot be made beside it.
    """
    lock = Lock(path.with_name(f"{path.name}.sent.lock"))
    if not lock.acquire():
        raise GoodputError(f"{path} is being sent by another process ({lock.holder() or 'unknown'})")
    try:
        yield
    finally:
        lock.release()
