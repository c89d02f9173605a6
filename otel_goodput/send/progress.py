"""How far a file has been sent, and to whom: a file beside it, and a lock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from otel_goodput.errors import GoodputError
from otel_goodput.journal.rundir import Lock, write_privately

_VERSION: Final = 1
_HEAD: Final = 64 * 2**10


class Progress:
    """How far `path` has been sent to `receiver`, kept in ``<path>.sent``.

    A file is known by its content, so that it may be copied together with this: by the digest of its beginning, and by
    a line that ends where the sending did.

    Attributes:
        offset: bytes that are done with, to the end of a line.
        lines: how many lines those are.
        doubt: whether a request is under way, or its answer was lost; it is sent again then, and may be there twice.
        replaced: whether another file was there when it was last sent.

    Raises:
        GoodputError: what is written there cannot be understood, or the file has become shorter.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, receiver: str, *, again: bool = False) -> None:
        self.path = path
        self.offset = self.lines = 0
        self.doubt = self.replaced = False
        self._receiver = receiver
        self._file = path.with_name(f"{path.name}.sent")
        self._others: dict[str, Any] = {}
        known = self._read()
        if not known:
            return
        mine = known.pop(receiver, None)
        self._others = {name: entry for name, entry in known.items() if self._same(entry)}
        if mine is None or again:
            return
        if not self._same(mine):
            self.replaced = True
            return
        self.offset, self.lines, self.doubt = mine["offset"], mine["lines"], mine["doubt"]
        if path.stat().st_size < self.offset or not self._at_end_of_line():
            raise GoodputError(f"{path} no longer is what was sent of it; --again sends it from its beginning")

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_bytes())
            if found["version"] != _VERSION:
                raise ValueError("another version's")
            for entry in found["receivers"].values():
                for key, kind in (("offset", int), ("lines", int), ("doubt", bool), ("head", str), ("length", int)):
                    if not isinstance(entry[key], kind):
                        raise TypeError(key)
            receivers: dict[str, Any] = found["receivers"]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GoodputError(f"{self._file} cannot be understood; without it {self.path} is sent anew") from error
        return receivers

    def _same(self, entry: dict[str, Any]) -> bool:
        return bool(self._head(entry["length"]) == entry["head"])

    def _head(self, length: int) -> str:
        with self.path.open("rb") as file:
            return hashlib.sha256(file.read(length)).hexdigest()

    def _at_end_of_line(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(max(self.offset - 1, 0))
            return not self.offset or file.read(1) == b"\n"

    def write(self, offset: int, lines: int, *, doubt: bool) -> None:
        """Remember, as a whole or not at all, mode 0600. Raises OSError."""
        if offset < _HEAD or self.offset < _HEAD or not self._others.get(self._receiver):
            length = min(offset, _HEAD)
            self._others[self._receiver] = {"head": self._head(length), "length": length}
        self.offset, self.lines, self.doubt = offset, lines, doubt
        self._others[self._receiver] |= {"offset": offset, "lines": lines, "doubt": doubt}
        write_privately(self._file, json.dumps({"version": _VERSION, "receivers": self._others}, indent=1).encode())


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
