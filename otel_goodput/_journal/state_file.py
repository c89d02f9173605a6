"""A file of state, which anybody may have written: a frame with a checksum, a head (JSON, packed), and raw bytes.

Snapshots and digests are such files; docs/journal.md has the layout. A reader unpacks no more than the head
announces, and no more than a bound.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import FEW, Blob, Later
from otel_goodput._journal.records import NewerVersion
from otel_goodput._runtime import files
from otel_goodput._runtime.files import TooLarge

FRAME: Final = struct.Struct("<8sH32s")  # magic, version, SHA-256 of the version and of all that follows
SIZES: Final = struct.Struct("<II")  # of the packed head, and of the unpacked one
LEVEL: Final = 6  # of zlib;
QUICK: Final = 1  # for a head, which a loop has written over and over: a tenth more bytes in a fifth of the time
PART: Final = FEW  # elements of a list that are encoded at once


class Form(NamedTuple):
    """A kind of state file."""

    what: str  # its name, for errors
    magic: bytes  # the first eight bytes
    version: int  # the only one that is read
    head: int  # bytes of the unpacked head at most
    most: int  # bytes of the file at most


def text_of(value: Any) -> bytes:
    """Return the JSON text of a head. It is made in parts: the encoder takes ten times the memory of what it makes."""
    return b"".join(_texts(value))


def _texts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        before = b"{"
        for name, inner in value.items():
            yield b"%b%b:" % (before, json.dumps(name).encode())
            yield from _texts(inner)
            before = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, (list, tuple, Later)) and len(value) > PART:
        before = b"["
        for at in range(0, len(value), PART):
            yield before + json.dumps(value[at : at + PART], separators=(",", ":"))[1:-1].encode()
            before = b","
        yield b"]"
    else:
        yield json.dumps(value, separators=(",", ":")).encode()


def pieces(form: Form, text: bytes, blobs: Sequence[Blob]) -> list[Blob]:
    """Return what to write of a head's `text` and of `blobs`, in order."""
    head = zlib.compress(text, QUICK)
    parts: list[Blob] = [SIZES.pack(len(head), len(text)), head, *blobs]
    check = sha256(form.version.to_bytes(2, "little"))
    for part in parts:
        check.update(part)
    return [FRAME.pack(form.magic, form.version, check.digest()), *parts]


def read(path: Path, form: Form) -> tuple[dict[str, Any], bytes]:
    """Read a file: its head, and the raw bytes. Raises OSError, and as :func:`opened`.

    The checksum is checked block by block, so that a wrong file takes no memory.
    """
    with files.opened(path) as file:
        if os.fstat(file.fileno()).st_size > form.most:
            raise TooLarge(errno.EFBIG, f"it holds more than {form.most} bytes", str(path))
        frame = file.read(FRAME.size)
        check = sha256(frame[8:10])
        while block := file.read(files.MIB):
            check.update(block)
        _check_frame(frame, form, check.digest())
    return opened(files.read(path, form.most), form)


def _check_frame(frame: bytes, form: Form, check: bytes) -> None:
    if len(frame) < FRAME.size or frame[:8] != form.magic:
        raise ValueError(f"not a {form.what}")
    _, version, checksum = FRAME.unpack(frame)
    if checksum != check:
        raise ValueError("its checksum is wrong")
    if version != form.version:
        kind = NewerVersion if version > form.version else ValueError
        raise kind(f"{form.what} version {version}, this otel_goodput reads version {form.version}")


def unpacked(data: bytes, size: int) -> bytes:
    """Unpack `data` to exactly `size` bytes. Raises ValueError."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if len(content) != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError("it unpacks to another size than it says")
    return content


def opened(data: bytes, form: Form) -> tuple[dict[str, Any], bytes]:
    """Return the head of a file's content, and the raw bytes behind it. Nothing in them is trusted.

    Raises NewerVersion, or ValueError: it is cut short, damaged, or another file.
    """
    body = data[FRAME.size :]
    _check_frame(data[: FRAME.size], form, sha256(data[8:10] + body).digest())
    if len(body) < SIZES.size:
        raise ValueError(f"the {form.what} is cut short")
    packed, size = SIZES.unpack_from(body)
    if size > form.head:
        raise ValueError("its head is too large")
    place = SIZES.size + packed
    try:
        text = unpacked(body[SIZES.size : place], size)
        head = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(head, dict):
        raise ValueError(f"not a {form.what}")
    return head, body[place:]


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is no time")
    return number
