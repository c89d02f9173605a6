"""An independent reader of journals, written from docs/journal.md alone: slow, and without a line of the package's."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from otel_goodput.semconv import FALLBACK_CLOCKS, PHASES, REASONS

ATTEMPT, START, END, HEARTBEAT, SLICES, NOTICE, CLOCK, NAME, CONTINUED, LAST = 1, 2, 3, 4, 5, 6, 11, 64, 68, 70
FILE = re.compile(r"a(\d{4,10})-p(\d{4,9})-(\d{6,12})\.segment(\.gz)?")
LARGEST = 64 + 32768 * 32
PHASE_COUNTS = {
    START: len(PHASES),
    END: len(PHASES),
    NOTICE: len(REASONS),
    CLOCK: len(FALLBACK_CLOCKS),
    CONTINUED: 2,
    17: 2,
    18: 2,
    19: 65,
    20: 1,
}
KINDS = {*range(1, 22), *range(64, 71)}
DEVICE_END = 8
LOADING, STEPPING, DEVICE_ENDS, TURN, EXPORT, BUSY = 17, 18, 19, 20, 256, 256
STRIDE = 0x9E3779B97F4A7C15
STEP, LOAD = PHASES.index("step"), PHASES.index("data_loading")


class Read(NamedTuple):
    """A record, with the fields in the order of the format and the name instead of its id."""

    kind: int
    phase: int
    flags: int
    name: str
    key: int
    step: int
    time: int


class Segment(NamedTuple):
    attempt: int
    number: int
    records: list[Read]


def _header(data: bytes) -> tuple[int, int, int] | None:
    """Attempt, process and number of a segment whose header is intact."""
    if len(data) < 28 or data[:8] != b"OGOODPUT" or zlib.crc32(data[:24]) != struct.unpack_from("<I", data, 24)[0]:
        return None
    version, process, attempt, number = struct.unpack_from("<HHII", data, 8)
    return (attempt, process, number) if version == 1 and attempt < 2**31 else None


def _data(path: Path) -> tuple[bytes, bytes]:
    """The header and first record of a file, and all of it; empty where that cannot be read."""
    data = path.read_bytes()
    head = data[:96]
    if path.suffix == ".gz":
        try:
            head = zlib.decompressobj(31).decompress(data[:1216], 96)
            unpacking = zlib.decompressobj(31)
            data = unpacking.decompress(data, LARGEST + 1)
            data = data if unpacking.eof or len(data) > LARGEST else b""
        except zlib.error:
            data = b""
    return head, data if len(data) <= LARGEST else b""


def _sound(raw: bytes) -> bool:
    return (
        raw[0] in KINDS
        and raw[1] < PHASE_COUNTS.get(raw[0], 256)
        and zlib.crc32(raw[:30]) & 0xFFFF == struct.unpack_from("<H", raw, 30)[0]
    )


def segments(folder: Path, process: int = 0) -> list[Segment]:
    """What the segments of a process hold, in order, without what an attempt recorded after the next one began."""
    there: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    for path in sorted(folder.glob("*.segment*"), reverse=True):  # one that is not packed last: it counts
        match = FILE.fullmatch(path.name)
        head, data = _data(path)
        header = _header(head)
        if match is None or header is None or header[:2] != (int(match[1]), int(match[2])):
            continue
        if header[1] == process:
            there[header[0], header[2]] = head, data
    result: list[Segment] = []
    names: dict[int, str] = {}
    attempt = -1
    step: Read | None = None  # the latest that is open
    left = 0  # key of the step whose end is in the header
    for (number, serial), (_, data) in sorted(there.items()):
        if number != attempt:
            attempt, names, step, left = number, {}, None, 0
        read = [one for one in _records(data, names) if not left or (one.kind, one.key) not in _end_of(left)]
        for one in read:
            if one.kind == START and one.phase == STEP:
                step = one
            elif one.kind == END and step is not None and one.key == step.key:
                step = None
        time, mixed = struct.unpack("<qQ", data[48:64]) if len(data) >= 64 else (0, 0)
        if step is not None and mixed ^ (time % 2**64) == step.key and time >= step.time:
            left, at = step.key, len(read) - (read[-1:] != [] and read[-1].kind == HEARTBEAT)
            read.insert(at, Read(END, STEP, 0, "", left, step.step, time))
            read.insert(at + 1, Read(START, LOAD, 0, "", (left + STRIDE) % 2**64, step.step + 1, time))
            step = None
        result.append(Segment(number, serial, read))
    firsts = {number: head for (number, serial), (head, _) in there.items() if serial == 0}
    numbers = sorted({one.attempt for one in result})
    for one in result:
        after = [number for number in numbers if number > one.attempt][:1]
        until = _until(firsts.get(after[0], b"")) if after else None
        last = [record.time for record in one.records if record.kind < NAME][-1:]
        if until is not None and last and last[0] > until:  # else it is a time that somebody gave
            one.records[:] = [record for record in one.records if record.kind >= NAME or record.time <= until]
    return result


def _end_of(key: int) -> list[tuple[int, int]]:
    return [(END, key), (START, (key + STRIDE) % 2**64)]


def _until(data: bytes) -> int | None:
    raw = data[64:96]
    if len(raw) < 32 or not _sound(raw) or raw[0] != ATTEMPT:
        return None
    _, _, _, _, seen, _, time = struct.unpack("<BBHHQqq", raw[:30])
    return max(seen, time) if seen else None


def _records(data: bytes, names: dict[int, str]) -> list[Read]:
    result: list[Read] = []
    parts: dict[int, bytes] = {}
    for at in range(64, len(data) - 31, 32):
        raw = data[at : at + 32]
        if not _sound(raw):
            continue
        kind, phase, flags, name, key, step, time = struct.unpack("<BBHHQqq", raw[:30])
        if kind == NAME:
            parts[name] = (parts.get(name, b"") if phase else b"") + raw[6:30]
            if phase == flags - 1:
                names[name] = parts[name].rstrip(b"\0").decode("utf-8", "replace")
        elif kind in (LOADING, STEPPING):
            ended, begun = (STEP, LOAD) if kind == LOADING else (LOAD, STEP)
            after = (key + STRIDE) % 2**64
            result.append(Read(END, ended, flags, "", key, step - (kind == LOADING), time))
            result.append(Read(START, begun, phase * EXPORT, "", after, step, time))
        elif kind == TURN:
            took, number = step % 2**32, step % 2**64 // 2**32
            load, begun = (key + STRIDE) % 2**64, time - took
            result.append(Read(END, STEP, 0, "", key, number - 1, begun))
            result.append(Read(START, LOAD, 0, "", load, number, begun))
            result.append(Read(END, LOAD, 0, "", load, number, time))
            result.append(Read(START, STEP, 0, "", (load + STRIDE) % 2**64, number, time))
        elif kind == DEVICE_ENDS:
            for at in range(phase):
                left = phase - 1 - at
                after = (key + 2 * at * STRIDE) % 2**64
                took, end = (max(0, step), time) if not flags & BUSY else (-1, max(1 - 2**63, time - left * step))
                result.append(Read(DEVICE_END, STEP, 0, "", after, *((took, end) if left else (-1, time))))
        else:
            result.append(Read(kind, phase, flags, names.get(name, "") if name else "", key, step, time))
    beat = data[28:44]
    if len(beat) == 16 and any(beat) and zlib.crc32(beat[:12]) == struct.unpack_from("<I", beat, 12)[0]:
        time = struct.unpack_from("<q", beat)[0]
        if time:
            result.append(Read(HEARTBEAT, 0, 0, "", 0, -1, time))
    return result


def with_attempts(read: list[Segment]) -> list[Segment]:
    """The same, with an ATTEMPT in front of an attempt whose first record is lost."""
    begun: set[int] = set()
    result: list[Segment] = []
    for one in read:
        records = list(one.records)
        first = next((record for record in records if record.kind < NAME), None)
        if first is not None and first.kind != HEARTBEAT and one.attempt not in begun:
            begun.add(one.attempt)
            if first.kind != ATTEMPT:
                records.insert(0, Read(ATTEMPT, 0, 0, "", 0, one.attempt, first.time))
        result.append(one._replace(records=records))
    return result


def as_event(one: Read) -> tuple[int, int, int, int, int, int, int, str]:
    """A record as the accounting takes it: time, kind, phase, key, step, flags, arg, name."""
    if one.kind == SLICES:
        return one.time, one.kind, 0, one.key, one.step, 0, one.flags, ""
    return one.time, one.kind, one.phase, one.key, one.step, one.flags & 0xFF, 0, one.name
