"""The journal's wire format: fixed records of 32 bytes in segments with a header, little-endian, checksummed.

A record is an :class:`~otel_goodput.accounting.events.Event` or one of the kinds below, which speak of the records and
spans themselves. A reader skips what it cannot vouch for, so a segment may be cut or torn anywhere; what it has skipped
it tells (:mod:`~otel_goodput.journal.damage` makes sense of that).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from otel_goodput.accounting import events as ev
from otel_goodput.accounting.events import Event
from otel_goodput.semconv import FALLBACK_CLOCKS, PHASES, REASONS

# Kinds beside those of accounting.events.
NAME: Final = 64  # `phase` is the part, `name` the id; the rest holds 24 bytes of UTF-8
PARENT: Final = 65  # the span `key` has the parent `step` (as an unsigned 64-bit id)
TRACE: Final = 66  # the span `key` is in a foreign trace: `step`, `time` are the high and low half of its id
# `phase` 0: spans of `key` steps are in one trace, summaries are of up to `step` % HALF steps, `flags` spans of it
# fit (MOST_TOLD: or more; DETAILED: it shows single steps), and `step` // HALF is its group of processes. 1: the trace
# number `step` % HALF of the group `flags` begins with the root `key`, behind its number `step` // HALF.
CONTINUED: Final = 68
HALF: Final = 1 << 32
MOST_TOLD: Final = 0x7FFF
DETAILED: Final = 0x8000
EXPORTED: Final = 67  # spans up to the end of `key` have left through the exporter `phase`; see SUMMED
ROOT: Final = 69  # the attempt's trace has a root of its own, the span `key` at `time`: the job is not it

ERROR: Final = 70  # the phase `key`, which is about to end, failed with the ``error.type`` `name`

ANY: Final = 256
# The kinds that we know, and how many values the `phase` of each may have: what is sound and beyond that is a newer
# version's.
KINDS: Final[dict[int, int]] = {
    ev.ATTEMPT: ANY,
    ev.START: len(PHASES),
    ev.END: len(PHASES),
    ev.HEARTBEAT: ANY,
    ev.SLICES: ANY,
    ev.NOTICE: len(REASONS),
    ev.OBSERVED: ANY,
    ev.DEVICE_END: ANY,
    ev.UNOBSERVED: ANY,
    ev.DURABLE: ANY,
    ev.CLOCK: len(FALLBACK_CLOCKS),
    ev.MARK: ANY,
    NAME: ANY,
    PARENT: ANY,
    TRACE: ANY,
    EXPORTED: ANY,
    CONTINUED: 2,
    ROOT: ANY,
    ERROR: ANY,
}
# By kind << 8 | phase: this is looked up for every record.
_KNOWN: Final = bytes(number < KINDS.get(kind, 0) for kind in range(256) for number in range(256))

# Why a record was skipped.
DAMAGED: Final = "damaged"
UNKNOWN: Final = "unknown"
EMPTY: Final = "empty"
Skip = tuple[int, str]  # its place in the segment, and why

# Flags beside those of accounting.events.
EXPORT: Final = 1 << 8  # START, END: the span goes to the exporters
SUMMED: Final = 1 << 12  # EXPORTED: summaries of `name` of the attempt `key` that end by `time` have left, and no more
OWN_TRACES: Final = 1 << 10  # ATTEMPT: each step has a trace of its own
ERRED: Final = 1 << 11  # END: the span's status is ERROR; a step left by a break has failed without one
FLOOD: Final = 1 << 12  # END: not exported, for there are too many of `name`, by default the phase's own; summed up
OUTLIER: Final = 1 << 13  # END: the step is exported because it was slow
INTERRUPTED: Final = 1 << 9  # END: closed by shutdown, not by its owner

BODY: Final = struct.Struct("<BBHHQqq")
RECORD: Final = struct.Struct("<BBHHQqqH")
SIZE: Final = RECORD.size
_NAME_BODY: Final = struct.Struct("<BBHH24s")
NAME_PART: Final = 24
assert SIZE == 32 and _NAME_BODY.size == BODY.size

# Magic, version, process, attempt, number, pid; then their checksum, 0 in the files of older versions.
HEADER: Final = struct.Struct("<8sHHIIII")
HEADER_SIZE: Final = 64
# The last sign of life, ns, how many records stood there for sure by then; then their checksum. Older versions wrote
# the first alone.
HEARTBEAT: Final = struct.Struct("<qI")
HEARTBEAT_AT: Final = HEADER.size
_HEARTBEAT_END: Final = HEARTBEAT_AT + HEARTBEAT.size
_FRAMED: Final = HEADER.size - 4
_CHECK: Final = 4
MAGIC: Final = b"OGOODPUT"
VERSION: Final = 1
CAPACITY: Final = 32768  # records in a segment

_BLOCK: Final = 4096
_ZEROS: Final = bytes(_BLOCK)
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
    """Who wrote a segment, and when it last said that it was alive.

    Attributes:
        version, process, attempt, number, pid: who wrote it.
        heartbeat: the last sign of life, ns; 0: never.
        reached: so many records it had for sure by then; 0 where that is not told.
        torn: the sign of life is not what was written.
    """

    version: int
    process: int
    attempt: int
    number: int
    pid: int
    heartbeat: int
    reached: int = 0
    torn: bool = False


class NewerVersion(ValueError):
    """What was read is sound as far as we can see, but of a version after ours."""


def _check(data: bytes) -> bytes:
    """A checksum that is never 0, for that says that there is none."""
    return (crc32(data) or 1).to_bytes(_CHECK, "little")


def encode_header(attempt: int, process: int, number: int, pid: int) -> bytes:
    framed = HEADER.pack(MAGIC, VERSION, process, attempt, number, pid, 0)[:_FRAMED]
    return (framed + _check(framed)).ljust(HEADER_SIZE, b"\0")


def encode_heartbeat(now: int, reached: int) -> bytes:
    """What stands at ``HEARTBEAT_AT``: a sign of life at `now` (ns), when the first `reached` records were written."""
    body = HEARTBEAT.pack(now, reached)
    return body + _check(body)


def decode_header(data: bytes) -> SegmentHeader:
    """Raises:
    NewerVersion: it is one of a version after ours.
    ValueError: this is no segment, or its head is damaged.
    """
    if len(data) < HEADER.size + 8 or data[:8] != MAGIC:
        raise ValueError("not a journal segment")
    _, version, process, attempt, number, pid, check = HEADER.unpack_from(data)
    framed = data[:8] + VERSION.to_bytes(2, "little") + data[10:_FRAMED]
    ours = check and int.from_bytes(_check(framed), "little") == check
    if version > VERSION and not ours:
        raise NewerVersion(f"journal version {version}, this otel_goodput reads version {VERSION}")
    if version != VERSION or (check and not ours):
        raise ValueError("its head is damaged")
    body = data[HEARTBEAT_AT:_HEARTBEAT_END]
    if not check:
        return SegmentHeader(version, process, attempt, number, pid, int.from_bytes(body[:8], "little", signed=True))
    told = data[HEARTBEAT_AT : _HEARTBEAT_END + _CHECK]
    if not any(told):
        return SegmentHeader(version, process, attempt, number, pid, 0)
    if len(told) < HEARTBEAT.size + _CHECK or _check(body) != told[HEARTBEAT.size :]:
        return SegmentHeader(version, process, attempt, number, pid, 0, torn=True)
    heartbeat, reached = HEARTBEAT.unpack(body)
    return SegmentHeader(version, process, attempt, number, pid, heartbeat, min(reached, CAPACITY))


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


def sound(record: bytes) -> bool:
    """Whether a record is what was written, and of a kind that we know."""
    check = int.from_bytes(record[BODY.size :], "little")
    return bool(_KNOWN[record[0] << 8 | record[1]]) and crc32(record[: BODY.size]) & 0xFFFF == check


def _vouched(
    data: bytes, names: Names, first: int, skipped: list[Skip]
) -> Iterator[tuple[int, int, int, int, int, int, int, int]]:
    """Fields of the records in `data` (records only, from the place `first` on), without holes, torn ones, and names.

    What else is left out is added to `skipped`, and so are holes.
    """
    whole = len(data) // SIZE * SIZE
    body_size = BODY.size
    known = _KNOWN
    raw = data[:whole]
    for at, fields in zip(range(0, whole, SIZE), RECORD.iter_unpack(raw), strict=True):
        kind = fields[0]
        intact = crc32(raw[at : at + body_size]) & 0xFFFF == fields[7]
        if not intact or not known[kind << 8 | fields[1]]:
            empty = not any(raw[at : at + SIZE])
            skipped.append((first + at // SIZE, EMPTY if empty else UNKNOWN if intact and kind else DAMAGED))
        elif kind == NAME:
            names.learn(raw[at : at + SIZE])
        else:
            yield fields


def used(data: bytes) -> int:
    """How many records of a segment were written to; what never was reads as zeros: no need to look at it."""
    end = len(data)
    while end >= _BLOCK and data[end - _BLOCK : end] == _ZEROS:  # much faster than rstrip alone
        end -= _BLOCK
    return max(0, -(-(len(data[:end].rstrip(b"\0")) - HEADER_SIZE) // SIZE))


def _used(data: bytes, skip: int) -> bytes:
    return data[HEADER_SIZE + skip * SIZE : HEADER_SIZE + used(data) * SIZE]


def decode_segment(data: bytes, names: Names, skip: int = 0, skipped: list[Skip] | None = None) -> Iterator[Record]:
    """Records of a whole segment but the first `skip`; the heartbeat in its header comes last, as a HEARTBEAT.

    What cannot be vouched for is added to `skipped`.

    Raises:
        ValueError: as :func:`decode_header`.
    """
    header = decode_header(data)
    known = names.known
    lost: list[Skip] = [] if skipped is None else skipped
    for kind, phase, flags, name, key, step, time, _ in _vouched(_used(data, skip), names, skip, lost):
        yield _make(Record, (kind, phase, flags, known.get(name, "") if name else "", key, step, time))
    if header.heartbeat:
        yield Record(ev.HEARTBEAT, 0, 0, "", 0, ev.NO_STEP, header.heartbeat)


def decode_events(data: bytes, names: Names, skipped: list[Skip] | None = None) -> Iterator[Event]:
    """Events of a whole segment, as of :func:`decode_segment`.

    Raises:
        ValueError: as :func:`decode_header`.
    """
    header = decode_header(data)
    known = names.known
    lost: list[Skip] = [] if skipped is None else skipped
    for kind, phase, flags, name, key, step, time, _ in _vouched(_used(data, 0), names, 0, lost):
        if kind == ev.START or kind == ev.END:
            # As of Record.event, for nearly all of them.
            yield _make(Event, (time, kind, phase, key, step, flags & 0xFF, 0, known.get(name, "") if name else ""))
        else:
            event = Record(kind, phase, flags, known.get(name, "") if name else "", key, step, time).event()
            if event is not None:
                yield event
    if header.heartbeat:
        yield Event(header.heartbeat, ev.HEARTBEAT)
