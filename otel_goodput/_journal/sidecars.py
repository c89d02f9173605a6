"""Small JSON files beside the journal, for other processes and later starts. Their content is not trusted.

Each is a JSON object with a checksum of all its other members. The checksum does not depend on the formatting, so an
editor may reformat a file. A :class:`Sidecar` declares the members of a file once, with their kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from otel_goodput._accounting.codec import Blobs, Kind
from otel_goodput._journal.records import NewerVersion
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import encodable

IDENTITY: Final = 64 * files.KIB  # bytes; run.json
NOTES: Final = 256 * files.KIB

CHECK: Final = "checksum"
_BEYOND: Final = 2**63


class Scalar(Kind):
    """A text, number or flag, or None; texts lose what cannot be encoded."""

    def __init__(self, *types: type) -> None:
        self.types = types

    def load(self, plain: Any, blobs: Blobs) -> Any:
        if type(plain) not in self.types or (isinstance(plain, float) and not isfinite(plain)):
            raise ValueError(f"{plain!r:.40} is not of an expected type")
        return encodable(plain) if isinstance(plain, str) else plain


class Named(Kind):
    """A JSON object whose values are of one kind."""

    def __init__(self, inner: Kind) -> None:
        self.inner = inner

    def load(self, plain: Any, blobs: Blobs) -> Any:
        if not isinstance(plain, dict):
            raise ValueError(f"{plain!r:.40} instead of an object")
        return {encodable(name): self.inner.load(value, blobs) for name, value in plain.items()}


class Members(Kind):
    """A JSON object with a member of each of these names and kinds, and what `make` makes of them.

    `absent`: members that older files do not have, and what they stand for.
    """

    def __init__(
        self, kinds: Mapping[str, Kind], make: Callable[..., Any] = dict, absent: Mapping[str, Any] | None = None
    ) -> None:
        self._kinds = kinds
        self._make = make
        self._absent = absent or {}

    def load(self, plain: Any, blobs: Blobs) -> Any:
        if not isinstance(plain, dict):
            raise ValueError(f"{plain!r:.40} instead of an object")
        plain = {**self._absent, **plain}
        if missing := self._kinds.keys() - plain.keys():
            raise ValueError(f"{min(missing)} is missing")
        return self._make(**{name: kind.load(plain[name], blobs) for name, kind in self._kinds.items()})


SCALAR: Final = Scalar(str, int, float, bool, type(None))
WORDS: Final = Scalar(str)
FIGURE: Final = Scalar(int, float)


class Sidecar(NamedTuple):
    """A kind of small file."""

    what: str  # what is in it, for errors
    members: Members  # what it must have
    most: int = files.SMALL  # bytes
    format: int | None = 1  # the only one that is read; None: it has no number

    def encode(self, **members: Any) -> bytes:
        """Return the content of a file with these members, and others that say whose it is."""
        return checked_json(members if self.format is None else {"format": self.format, **members})

    def read(self, path: Path, **owner: int) -> Any:
        """Read a file that belongs to `owner`, as its members say.

        Raises OSError, NewerVersion, or ValueError: it is damaged, or belongs to another owner.
        """
        content = read_json(path, self.most)
        form = content.get("format")
        if self.format is not None and isinstance(form, int) and form > self.format:
            raise NewerVersion(f"{self.what} of format {form}, this otel_goodput reads format {self.format}")
        if form != self.format or any(content.get(name) != value for name, value in owner.items()):
            raise ValueError(f"these are not the {self.what} that belong there")
        return self.members.load(content, Blobs())


def kept(path: Path, data: bytes, what: str, message: str) -> bool:
    """Write a file; return whether that worked. An error is reported once for `what`, as `message` with a ``%s``."""
    try:
        files.write_privately(path, data)
        return True
    except OSError as error:
        report_once(what, message, error)
        return False


def checked_json(members: dict[str, Any], indent: int | None = None) -> bytes:
    """Serialize `members` with their checksum, for :func:`read_json`."""
    return json.dumps({**members, CHECK: _check(members)}, indent=indent).encode()


def read_json(path: Path, most: int = files.SMALL) -> dict[str, Any]:
    """Read a file written with :func:`checked_json`; returns its content without the checksum.

    Raises OSError, or ValueError: it is no JSON object, or its checksum is wrong or missing.
    """
    try:
        content = json.loads(files.read(path, most))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if content.pop(CHECK, None) != _check(content):
            raise ValueError("its checksum is wrong")
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return content


def _check(members: dict[str, Any]) -> str:
    return f"{crc32(json.dumps(members, sort_keys=True, separators=(',', ':')).encode()):08x}"


def whole(value: Any, below: int = _BEYOND) -> int:
    """Convert to an integer from 0 up to, not including, `below`. Raises ValueError if it is not such a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"a {type(value).__name__} is not a number")
    if not 0 <= value < below:  # also False for NaN; compares huge integers without converting them to float
        raise ValueError("a number is out of range")
    return int(value)
