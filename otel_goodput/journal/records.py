"""The journal's wire format: fixed records of 32 bytes in segments with a header, little-endian, checksummed.

A record is an :class:`~otel_goodput.accounting.events.Event` or one of the kinds below, which speak of the records and
spans themselves. A reader skips what it cannot vouch for, so a segment may be cut or torn anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from otel_goodput.accounting import events as ev
from otel_goodput.accounting.events import Event

# Kinds beside those of accounting.events.
NAME: Final = 64  # `phase` is the part, `name` the id; the rest holds 24 bytes of UTF-8
PARENT: Final = 65  # the span `key` has the parent `step` (as an unsigned 64-bit id)
TRACE: Final = 66  # the span `key` is in a foreign trace: `step`, `time` are the high and low half of its id
EXPORTED: Final = 67  # spans up to the end of `key` have left through the outlet `phase`

# Flags beside those of accounting.events.
EXPORT: Final = 1 << 8  # START, END: the span goes to the exporters
OWN_TRACES: Final = 1 << 10  # ATTEMPT: each step has a trace of its own
ERRED: Final = 1 << 11  # END: the span's status is ERROR; a step left by a break has failed without one
INTERRUPTED: Final = 1 << 9  # END: closed by shutdown, not by its owner

BODY: Final = struct.Struct("<BBHHQqq")
RECORD: Final = struct.Struct("<BBHHQqqH")
SIZE: Final = RECORD.size
_NAME_BODY: Final = struct.Struct("<BBHH24s")
NAME_PART: Final = 24
assert SIZE == 32 and _NAME_BODY.size == BODY.size

HEADER: Final = struct.Struct("<8sHHIIIIq")
HEADER_SIZE: Final = 64
HEARTBEAT_AT: Final = HEADER.size - 8
MAGIC: Final = b"OGOODPUT"
VERSION: Final = 1
CAPACITY: Final = 32768  # records in a segment

_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor
_SIGNED: Final = 1 << 63
_UNSIGNED: Final = 1 << 64


class Record(NamedTuple):
    """A record as read: the fields of an event, with the name spelt out."""

    kind: int
    phase: int
    flags: int
    name: str
    key: int
    step: int
    time: int

    def event(self) -> Event | None:
        """The event for the ledger; None for records that only speak of spans."""
        if self.kind >= NAME:
            return None
        if self.kind == ev.SLICES:
            return Event(self.time, self.kind, key=self.key, step=self.step, arg=self.flags)
        return Event(self.time, self.kind, self.phase, self.key, self.step, self.flags & 0xFF, 0, self.name)


class SegmentHeader(NamedTuple):
    """Who wrote a segment, and when it last said that it was alive (ns; 0: never)."""

    version: int
    process: int
    attempt: int
    number: int
    pid: int
    heartbeat: int


def encode_header(attempt: int, process: int, number: int, pid: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, process, attempt, number, pid, 0, 0).ljust(HEADER_SIZE, b"\0")


def decode_header(data: bytes) -> SegmentHeader:
    """Raises:
    ValueError: this is no segment, or one of a version that we do not know.
    """
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise ValueError("not a journal segment")
    _, version, process, attempt, number, pid, _, heartbeat = HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"journal version {version}, this otel_goodput reads version {VERSION}")
    return SegmentHeader(version, process, attempt, number, pid, heartbeat)


def seal(body: bytes) -> bytes:
    """A record from its body: the body and its check."""
    return body + (crc32(body) & 0xFFFF).to_bytes(2, "little")


def encode_name(identity: int, name: bytes) -> list[bytes]:
    """Records that tell the name of an id."""
    parts = [name[at : at + NAME_PART] for at in range(0, max(1, len(name)), NAME_PART)]
    return [seal(_NAME_BODY.pack(NAME, part, len(parts), identity, text)) for part, text in enumerate(parts)]


def signed(identity: int) -> int:
    """An unsigned 64-bit id as the signed integer that a record's field holds."""
    return identity - _UNSIGNED if identity >= _SIGNED else identity


def unsigned(field: int) -> int:
    return field + _UNSIGNED if field < 0 else field


class Names:
    """Names by id, as a reader learns them."""

    def __init__(self, known: dict[int, str] | None = None) -> None:
        self.known: dict[int, str] = known or {}
        self._parts: dict[int, bytes] = {}

    def learn(self, record: bytes) -> None:
        _, part, parts, identity, text = _NAME_BODY.unpack_from(record)
        so_far = (b"" if part == 0 else self._parts.get(identity, b"")) + text
        self._parts[identity] = so_far
        if part == parts - 1:
            self.known[identity] = so_far.rstrip(b"\0").decode("utf-8", "replace")


def _vouched(data: bytes, names: Names) -> Iterator[tuple[int, int, int, int, int, int, int, int]]:
    """Fields of the records in `data` (records only, no header), without holes, torn ones, and names."""
    whole = len(data) // SIZE * SIZE
    body_size = BODY.size
    raw = data[:whole]
    for at, fields in zip(range(0, whole, SIZE), RECORD.iter_unpack(raw), strict=True):
        kind = fields[0]
        if not kind or crc32(raw[at : at + body_size]) & 0xFFFF != fields[7]:
            continue
        if kind == NAME:
            names.learn(raw[at : at + SIZE])
        else:
            yield fields


def _used(data: bytes, skip: int) -> bytes:
    """The records of a segment but the first `skip`; what was never written reads as zeros: no need to look at it."""
    used = len(data.rstrip(b"\0"))
    return data[HEADER_SIZE + skip * SIZE : -(-(used - HEADER_SIZE) // SIZE) * SIZE + HEADER_SIZE]


def decode_segment(data: bytes, names: Names, skip: int = 0) -> Iterator[Record]:
    """Records of a whole segment but the first `skip`; the heartbeat in its header comes last, as a HEARTBEAT.

    Raises:
        ValueError: as :func:`decode_header`.
    """
    header = decode_header(data)
    known = names.known
    for kind, phase, flags, name, key, step, time, _ in _vouched(_used(data, skip), names):
        yield _make(Record, (kind, phase, flags, known.get(name, "") if name else "", key, step, time))
    if header.heartbeat:
        yield Record(ev.HEARTBEAT, 0, 0, "", 0, ev.NO_STEP, header.heartbeat)


def decode_events(data: bytes, names: Names) -> Iterator[Event]:
    """Events of a whole segment, as of :func:`decode_segment`.

    Raises:
        ValueError: as :func:`decode_header`.
    """
    header = decode_header(data)
    known = names.known
    for kind, phase, flags, name, key, step, time, _ in _vouched(_used(data, 0), names):
        if kind == ev.START or kind == ev.END:
            # As of Record.event, for nearly all of them.
            yield _make(Event, (time, kind, phase, key, step, flags & 0xFF, 0, known.get(name, "") if name else ""))
        else:
            event = Record(kind, phase, flags, known.get(name, "") if name else "", key, step, time).event()
            if event is not None:
                yield event
    if header.heartbeat:
        yield Event(header.heartbeat, ev.HEARTBEAT)
