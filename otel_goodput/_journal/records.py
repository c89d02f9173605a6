"""The journal's wire format: records of 32 bytes in segments with a header, little-endian, with checksums.

A record is an :class:`~otel_goodput._accounting.events.Event`, or several at once (``TURN``, ``LOADING``, ``STEPPING``,
``DEVICE_ENDS``), or one of the kinds below, which describe names and spans.
A reader skips records that it cannot verify, so a segment may be cut or torn anywhere. It reports what it skipped, and
:mod:`~otel_goodput._timeline.damage` interprets that.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._accounting.events import KEYS, STRIDE, DeviceEnds, Event, following
from otel_goodput._runtime import files
from otel_goodput.semconv import FALLBACK_CLOCKS, PHASES, REASONS

# Several events in one record: all that reads records gets those, see events_in(). A loop writes a TURN each turn, or
# the first two. The key of what begins follows from that of what ends.
LOADING: Final = 17  # the step `key` ended, and the data load of step `step` began
STEPPING: Final = 18  # the data load `key` ended, and its step `step` began
# The steps of `phase` successive turns, from `key` on, left the device, the last at `time`. The others took `step` ns
# each: one right after the other if `BUSY`, else from the begin of the step or the end of the one before.
DEVICE_ENDS: Final = 19
MOST_ENDS: Final = 64  # of one record: what a forged file can make of few bytes is bounded
# The step `key` ended and the data load of the next one began; at `time`, that load ended and its step began. None
# of them is exported. `step` holds two integers of 32 bits: how long the load took (ns), and the number of its step. If
# one of them is too large for that, there are the two records above.
TURN: Final = 20
LOAD: Final = 1 << 32
COMPOUND: Final = (LOADING, STEPPING, DEVICE_ENDS, TURN)

# Kinds in addition to those of accounting.events.
NAME: Final = 64  # `phase` is the index of the part, `name` the id; the rest holds 24 bytes of UTF-8
PARENT: Final = 65  # the span `key` has the parent `step` (as an unsigned 64-bit id)
TRACE: Final = 66  # the span `key` is in a foreign trace: `step`, `time` are the high and low half of its id
# `phase` 0, the layout of traces: one trace has `key` steps; a summary has up to `step` steps; `flags` spans fit
# (MOST_SPANS: that many or more; DETAILED: it shows single steps).
# `phase` 1, a new trace: number `step` % HALF, with the root `key`, after number `step` // HALF.
CONTINUED: Final = 68
HALF: Final = 1 << 32
MOST_SPANS: Final = 0x7FFF
DETAILED: Final = 0x8000
EXPORTED: Final = 67  # the exporter `phase` has exported all spans up to `key`, by end; see SUMMED
ROOT: Final = 69  # the root of the attempt's trace is the span `key` at `time`, not the job

ERROR: Final = 70  # the phase `key`, which is about to end, failed with the ``error.type`` `name`

ANY: Final = 256
# The known kinds, and how many values the `phase` of each may have. An intact record beyond that is from a newer
# version.
KINDS: Final[dict[int, int]] = {
    **dict.fromkeys(range(ev.ATTEMPT, ev.LABEL + 1), ANY),
    ev.PROFILING: ANY,
    ev.START: len(PHASES),
    ev.END: len(PHASES),
    ev.NOTICE: len(REASONS),
    ev.CLOCK: len(FALLBACK_CLOCKS),
    LOADING: 2,
    STEPPING: 2,
    DEVICE_ENDS: MOST_ENDS + 1,
    TURN: 1,
    **dict.fromkeys(range(NAME, ERROR + 1), ANY),
    CONTINUED: 2,
}
# Indexed by kind << 8 | phase, because it is looked up for every record.
_KNOWN: Final = bytes(number < KINDS.get(kind, 0) for kind in range(256) for number in range(256))

# Why a record was skipped.
DAMAGED: Final = "damaged"
UNKNOWN: Final = "unknown"
EMPTY: Final = "empty"
Skip = tuple[int, str]  # index of the record in the segment, and why

# Flags in addition to those of accounting.events.
EXPORT: Final = 1 << 8  # START, END: the span is sampled and goes to the exporters
DROPPED: Final = 1 << 9  # START: the sampler of the user's provider dropped the span, so that it is never exported
SUMMED: Final = 1 << 12  # EXPORTED: only the summaries of `name` of attempt `key` that end by `time` are exported
OWN_TRACES: Final = 1 << 10  # ATTEMPT: each step has a trace of its own
ERRED: Final = 1 << 11  # END: the span's status is ERROR (FAILED without it: a step was left by a break)
SUMMARIZED: Final = 1 << 12  # END: summarized, not exported: too many spans of `name` (by default the phase's)
BUSY: Final = 1 << 8  # DEVICE_ENDS: the device was never idle between these steps
OUTLIER: Final = 1 << 13  # END: the step is exported because it was slow
INTERRUPTED: Final = 1 << 9  # END: closed by shutdown, not by the code that opened it

BODY: Final = struct.Struct("<BBHHQqq")
RECORD: Final = struct.Struct("<BBHHQqqH")
UNCHECKED: Final = struct.Struct("<BBHHQqq2x")  # without the checksum
SEALED: Final = struct.Struct(f"<{BODY.size}sH")  # the same: a body and its checksum
TURN_BODY: Final = struct.Struct("<BBHHQIIq")
TURN_FIELDS: Final = struct.Struct("<6xQIIq2x")  # of a TURN: key, length of the load, number, time
SIZE: Final = RECORD.size
_NAME_BODY: Final = struct.Struct("<BBHH24s")
NAME_PART: Final = 24
assert SIZE == 32 and _NAME_BODY.size == TURN_BODY.size == BODY.size

# Magic, version, process, attempt, number, pid, and their checksum.
HEADER: Final = struct.Struct("<8sHHIIII")
HEADER_SIZE: Final = 64
# Time of the last heartbeat in ns, number of records certainly written by then, and their checksum.
HEARTBEAT: Final = struct.Struct("<qI")
HEARTBEAT_AT: Final = HEADER.size
_HEARTBEAT_END: Final = HEARTBEAT_AT + HEARTBEAT.size
# When the loop's step ended that ended last (ns), and its key, by XOR with that time, which serves as a checksum. The
# TURN that says so is written once the data load is over.
LEFT_STEP: Final = struct.Struct("<qQ")
LEFT_STEP_AT: Final = HEADER_SIZE - LEFT_STEP.size
_FRAMED: Final = HEADER.size - 4
_CHECK: Final = 4
MAGIC: Final = b"OGOODPUT"
VERSION: Final = 1
CAPACITY: Final = 32768  # records in a segment

_BLOCK: Final = 4096
_ZEROS: Final = bytes(_BLOCK)
_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor
_SIGNED: Final = 1 << 63
TURN_STRIDE: Final = 2 * STRIDE  # between the keys of the steps of two turns
LARGEST: Final = _SIGNED - 1  # number of a step, and time in ns, that a record holds; the least time is -LARGEST

Fields = tuple[int, int, int, int, int, int, int]  # of a record: kind, phase, flags, name, key, step, time


def successive(keys: Sequence[int]) -> bool:
    """Whether these are the keys of the steps of successive turns of one loop."""
    return keys[-1] == (keys[0] + (len(keys) - 1) * TURN_STRIDE) & KEYS


def events_in(record: tuple[int, int, int, int, int, int, int, int]) -> tuple[Fields, ...]:
    """Return the fields of a record without its checksum; of a ``COMPOUND`` one, those of all its events.

    The `phase` of a ``LOADING`` or ``STEPPING`` is 1 if the span that begins is exported whatever happens in it, else
    0; its `flags` are those of the END.
    """
    kind, phase, flags, _, key, step, time, _ = record
    if kind == TURN:
        number, length = divmod(unsigned(step), LOAD)
        load, begun = following(key), time - length
        return (
            (ev.END, rules.STEP, 0, 0, key, number - 1, begun),
            (ev.START, rules.DATA_LOADING, 0, 0, load, number, begun),
            (ev.END, rules.DATA_LOADING, 0, 0, load, number, time),
            (ev.START, rules.STEP, 0, 0, following(load), number, time),
        )
    if kind == LOADING:
        end = (ev.END, rules.STEP, flags, 0, key, step - 1, time)
        return end, (ev.START, rules.DATA_LOADING, EXPORT if phase else 0, 0, following(key), step, time)
    if kind == STEPPING:
        end = (ev.END, rules.DATA_LOADING, flags, 0, key, step, time)
        return end, (ev.START, rules.STEP, EXPORT if phase else 0, 0, following(key), step, time)
    if kind == DEVICE_ENDS:
        return tuple(
            (ev.DEVICE_END, rules.STEP, 0, 0, each, took, end)
            for end, _, _, each, took, _, _, _ in device_ends(record).events()
        )
    return (record[:7],)


def device_ends(record: tuple[int, int, int, int, int, int, int, int]) -> DeviceEnds:
    """What a ``DEVICE_ENDS`` stands for."""
    _, phase, flags, _, key, step, time, _ = record
    return DeviceEnds(time, key, min(phase, MOST_ENDS), step, bool(flags & BUSY))


class Record(NamedTuple):
    """A decoded record: the fields of an event, with the name instead of its id."""

    kind: int
    phase: int
    flags: int
    name: str
    key: int
    step: int
    time: int


def event_of(kind: int, phase: int, flags: int, name: str, key: int, step: int, time: int) -> Event:
    """The event that a record of a kind below ``NAME`` stands for."""
    if kind == ev.SLICES:
        return Event(time, kind, key=key, step=step, arg=flags)
    return _make(Event, (time, kind, phase, key, step, flags & 0xFF, 0, name))


def events_of(entries: Iterable[Record]) -> list[Event]:
    """The events among some records, for the ledger; the other records only describe spans."""
    return [
        _make(Event, (time, kind, phase, key, step, flags & 0xFF, 0, name))  # event_of, inlined
        if kind != ev.SLICES
        else event_of(kind, phase, flags, name, key, step, time)
        for kind, phase, flags, name, key, step, time in entries
        if kind < NAME
    ]


class SegmentHeader(NamedTuple):
    """The header of a segment: who wrote it, and the last heartbeat."""

    version: int
    process: int
    attempt: int
    number: int
    pid: int
    heartbeat: int = 0  # time of the last heartbeat, ns; 0 if there is none
    reached: int = 0  # number of records certainly written by then; 0 if not known
    torn: bool = False  # the heartbeat does not match its checksum


def left_step(data: bytes) -> tuple[int, int]:
    """The key of the loop's step that ended last by the header of a segment, and when, ns; zeros if none is there."""
    if len(data) < HEADER_SIZE:
        return 0, 0
    ended, mixed = LEFT_STEP.unpack_from(data, LEFT_STEP_AT)
    return mixed ^ (ended & KEYS), ended


class NewerVersion(ValueError):
    """The data has a newer version than this code reads."""


def _check(data: bytes) -> bytes:
    return crc32(data).to_bytes(_CHECK, "little")


def encode_header(attempt: int, process: int, number: int, pid: int) -> bytes:
    framed = HEADER.pack(MAGIC, VERSION, process, attempt, number, pid, 0)[:_FRAMED]
    return (framed + _check(framed)).ljust(HEADER_SIZE, b"\0")


def readdressed(segment: mmap | bytearray, attempt: int, seen: int) -> bytes:
    """Return a segment as part of the attempt `attempt`; `seen`: the last sign of life of the attempt before, ns."""
    data = bytearray(segment)
    head = decode_header(bytes(data[:HEADER_SIZE]))
    data[:HEARTBEAT_AT] = encode_header(attempt, head.process, head.number, head.pid)[:HEARTBEAT_AT]
    kind, phase, flags, name, _, _, moment, _ = RECORD.unpack_from(data, HEADER_SIZE)
    if kind == ev.ATTEMPT:
        data[HEADER_SIZE:HEAD_BYTES] = seal(BODY.pack(kind, phase, flags, name, seen, attempt, moment))
    return bytes(data)


def encode_heartbeat(now: int, reached: int) -> bytes:
    """The bytes at ``HEARTBEAT_AT``: a heartbeat at `now` (ns), with the first `reached` records written."""
    body = HEARTBEAT.pack(now, reached)
    return body + _check(body)


def decode_header(data: bytes) -> SegmentHeader:
    """Decode the header of a segment. Raises NewerVersion, or ValueError: it is none, or damaged."""
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise ValueError("not a journal segment")
    _, version, process, attempt, number, pid, check = HEADER.unpack_from(data)
    framed = data[:8] + VERSION.to_bytes(2, "little") + data[10:_FRAMED]
    ours = int.from_bytes(_check(framed), "little") == check
    if version > VERSION and not ours:
        raise NewerVersion(f"journal version {version}, this otel_goodput reads version {VERSION}")
    if version != VERSION or not ours:
        raise ValueError("its header is damaged")
    header = SegmentHeader(version, process, attempt, number, pid)
    body, body_check = data[HEARTBEAT_AT:_HEARTBEAT_END], data[_HEARTBEAT_END : _HEARTBEAT_END + _CHECK]
    if not any(body + body_check):
        return header
    if _check(body) != body_check:  # also if it is cut short
        return header._replace(torn=True)
    heartbeat, reached = HEARTBEAT.unpack(body)
    return header._replace(heartbeat=heartbeat, reached=min(reached, CAPACITY))


def seal(body: bytes) -> bytes:
    """Make a record from its body by appending the checksum."""
    return body + (crc32(body) & 0xFFFF).to_bytes(2, "little")


def encode_name(identity: int, name: bytes) -> list[bytes]:
    """The records that define the name of an id."""
    parts = [name[at : at + NAME_PART] for at in range(0, max(1, len(name)), NAME_PART)]
    return [seal(_NAME_BODY.pack(NAME, part, len(parts), identity, text)) for part, text in enumerate(parts)]


def signed(number: int) -> int:
    """The lowest 64 bits as a signed number, such as the field of a record that holds an id."""
    return (number + _SIGNED & KEYS) - _SIGNED


def unsigned(field: int) -> int:
    return field & KEYS


def foreign(high: int, low: int) -> int:
    """The id in a TRACE record: its `step` and its `time`."""
    return unsigned(high) << 64 | unsigned(low)


class Names:
    """Names by id, learned while reading records."""

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
    """Whether a record matches its checksum and is of a known kind."""
    check = int.from_bytes(record[BODY.size :], "little")
    return bool(_KNOWN[record[0] << 8 | record[1]]) and crc32(record[: BODY.size]) & 0xFFFF == check


def _verified(data: bytes, names: Names, first: int, skipped: list[Skip]) -> Iterator[Fields]:
    """Yield the fields of the verified records in `data`, which begins with the record at index `first`.

    NAME records go to `names`. Holes and records that cannot be verified are added to `skipped`.
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
        elif kind in COMPOUND:
            yield from events_in(fields)
        else:
            yield fields[:7]


def used(data: bytes | bytearray | mmap) -> int:
    """How many records of a segment are in use. The part never written to is zeros and need not be read."""
    end = len(data)
    while end >= _BLOCK and data[end - _BLOCK : end] == _ZEROS:  # much faster than rstrip alone
        end -= _BLOCK
    return max(0, -(-(len(data[:end].rstrip(b"\0")) - HEADER_SIZE) // SIZE))


def decode_segment(data: bytes, names: Names, skip: int = 0, skipped: list[Skip] | None = None) -> Iterator[Record]:
    """Yield the records of a segment after the first `skip`, then the heartbeat of its header as a HEARTBEAT.

    Records that cannot be verified are added to `skipped`. Raises as :func:`decode_header`.
    """
    header = decode_header(data)
    body = data[HEADER_SIZE + skip * SIZE : HEADER_SIZE + used(data) * SIZE]
    yield from decode_records(body, names, skip, [] if skipped is None else skipped)
    yield from beat_of(header)


def beat_of(header: SegmentHeader) -> Iterator[Record]:
    """Yield the heartbeat of a header as a HEARTBEAT, if there is one."""
    if header.heartbeat:
        yield Record(ev.HEARTBEAT, 0, 0, "", 0, ev.NO_STEP, header.heartbeat)


def decode_records(data: bytes, names: Names, first: int, skipped: list[Skip]) -> Iterator[Record]:
    """Yield the verified records in `data`, which begins with the record at index `first` of its segment."""
    known = names.known
    for kind, phase, flags, name, key, step, time in _verified(data, names, first, skipped):
        yield _make(Record, (kind, phase, flags, known.get(name, "") if name else "", key, step, time))


SEGMENT_NAME: Final = re.compile(r"a(\d{4,10})-p(\d{4,9})-(\d{6,12})\.segment(\.gz)?")
SEGMENT_BYTES: Final = HEADER_SIZE + CAPACITY * SIZE
HEAD_BYTES: Final = HEADER_SIZE + SIZE  # bytes: the header and the first record
PACKED_BYTES: Final = SEGMENT_BYTES + 64 * files.KIB  # incompressible data grows a little
_GZIP: Final = 31  # wbits of zlib for the gzip format


class Contents(NamedTuple):
    """What a segment holds."""

    data: bytes  # its header and its records up to the last one in use
    room: int  # number of records that its file is long enough for


@dataclass(eq=False)
class SegmentFile:
    """A segment on disk: its position in the run, its header and first record when it was listed, and its contents."""

    path: Path
    attempt: int
    process: int
    number: int
    head: bytes

    def first(self) -> Record | None:
        """Return its first record, which listing has read; None if that is empty or damaged."""
        return next(decode_records(self.head[HEADER_SIZE:], Names(), 0, []), None)

    def beginning(self, count: int) -> list[Record]:
        """Read those of its first `count` records that are sound, and the heartbeat. Raises as :meth:`contents`."""
        return list(decode_segment(beginning(self.path, HEADER_SIZE + count * SIZE), Names()))

    def has_any(self, places: Collection[int]) -> bool:
        """Whether there is a sound record at any of these places. Raises as :meth:`contents`."""
        data = self._contents().data
        there = (data[at : at + SIZE] for at in (HEADER_SIZE + place * SIZE for place in places))
        return any(len(record) == SIZE and sound(record) for record in there)

    def contents(self) -> Contents:
        """Read and decompress the segment; read again if a heartbeat was just being written.

        Raises OSError, EOFError, or ValueError: it cannot be decompressed, or is too large.
        """
        read = self._contents()
        torn = len(read.data) >= HEADER.size and decode_header(read.data).torn
        return self._contents() if torn else read

    def _contents(self) -> Contents:
        try:
            return contents(self.path)
        except FileNotFoundError:
            self.path = sealed(self.path)  # compressed since it was listed
            return contents(self.path)


def sealed(path: Path) -> Path:
    """The path of a segment after it has been compressed."""
    return path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")


def contents(path: Path) -> Contents:
    """Read all of a segment. Raises as :meth:`SegmentFile.contents`."""
    if path.suffix != ".gz":
        data, size = files.written(path, SEGMENT_BYTES)
    else:
        data = _unpacked(files.read(path, PACKED_BYTES), SEGMENT_BYTES + 1)
        size = len(data)
        if size > SEGMENT_BYTES:
            raise ValueError(f"it unpacks to more than the {SEGMENT_BYTES} bytes of a segment")
    room = max(0, (size - HEADER_SIZE) // SIZE)
    return Contents(data[: HEADER_SIZE + used(data) * SIZE], room)


def beginning(path: Path, size: int) -> bytes:
    """Read the first `size` bytes of a segment, or fewer if it is shorter. Raises as :meth:`SegmentFile.contents`."""
    if path.suffix != ".gz":
        return files.beginning(path, size)
    # Compressed records hardly take more space than the records themselves.
    return _unpacked(files.beginning(path, 2 * size + files.KIB), size, cut=True)


def _unpacked(packed: bytes, most: int, *, cut: bool = False) -> bytes:
    """Decompress at most `most` bytes. Unless `packed` is `cut`, it must be complete."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        data = unpacking.decompress(packed, most)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if not cut and len(data) < most and not unpacking.eof:
        raise EOFError("it is cut short")
    return data
