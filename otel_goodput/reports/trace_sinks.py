"""Encodes what an exported trace shows: Chrome's JSON format, and the TrackEvents of Perfetto's protobuf format.

Perfetto shows both. Times are in ns since the epoch; in JSON they are written as µs since the run's start, exactly.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from otel_goodput.reports import protobuf as pb
from otel_goodput.reports.spool import Spool
from otel_goodput.text.redact import encodable

Args = Mapping[str, "int | float | bool | str"]
Arrows = Sequence[int]  # their numbers

# Order of what happens at one time on one track: what ends, ends before something else begins.
_FIRST: Final = 0  # descriptions of tracks
_ENDS: Final = 1
_INSTANT: Final = 2
_BEGINS: Final = 3
_KEY: Final = struct.Struct(">QBQQ")
_BIAS: Final = 1 << 63
_CATEGORY: Final = "goodput"
_WORDS: Final = 4096  # arguments that are remembered


class Sink(ABC):
    """Takes the parts of a trace in any order, and yields its bytes in order of time.

    Args:
        spool: where parts wait until all are known.
        origin: the earliest time in the trace, ns.
    """

    def __init__(self, spool: Spool, origin: int) -> None:
        self._spool = spool
        self.origin = origin
        self._serial = 0
        self.events = 0  # slices, instants and values of counters

    def _add(self, time: int, order: int, tie: int, piece: bytes) -> None:
        self._serial += 1
        self._spool.add(_KEY.pack(time + _BIAS, order, tie + _BIAS, self._serial), piece)

    def _add_slice(self, begin: int, length: int, piece: bytes) -> None:
        """Add what begins a slice: the longest first, and of equal ones what was added last, for it is the outer."""
        self._serial += 1
        self._spool.add(_KEY.pack(begin + _BIAS, _BEGINS, _BIAS - length, _BIAS - self._serial), piece)

    @abstractmethod
    def process(self, number: int, name: str) -> None:
        """Describe a group of tracks; groups are shown in the order of their numbers, from 1."""

    @abstractmethod
    def track(self, number: int, process: int, name: str, rank: int, *, counter: str | None = None) -> None:
        """Describe a track; those of a process are shown by `rank`. A `counter` has values in that unit."""

    @abstractmethod
    def slice(
        self, process: int, track: int, begin: int, end: int, name: str, args: Args, into: int = 0, out: Arrows = ()
    ) -> None:
        """Add a slice. Arrows go from the one with a number in `out` to the one with the same in `into` (0: none).

        Slices of one track must lie inside of each other or apart; of two that are equal, the inner comes first.
        """

    @abstractmethod
    def instant(self, process: int, track: int, time: int, name: str, args: Args) -> None:
        """Add a moment."""

    @abstractmethod
    def value(self, process: int, track: int, time: int, value: float) -> None:
        """Add a value of a counter that has been described."""

    @abstractmethod
    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the trace."""


class JsonSink(Sink):
    """Chrome's trace event format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)."""

    def __init__(self, spool: Spool, origin: int) -> None:
        super().__init__(spool, origin)
        self._counters: dict[int, tuple[str, str]] = {}

    def _event(self, time: int, order: int, tie: int, text: str) -> None:
        self._add(time, order, tie, text.encode("ascii", "replace"))

    def _ts(self, time: int) -> str:
        return _micros(time - self.origin)

    def _describe(self, process: int, track: int, kind: str, args: Args) -> None:
        text = f'{{"ph":"M","pid":{process},"tid":{track},"name":"{kind}","args":{_json(args)}}}'
        self._event(-_BIAS, _FIRST, 0, text)

    def process(self, number: int, name: str) -> None:
        self._describe(number, 0, "process_name", {"name": name})
        self._describe(number, 0, "process_sort_index", {"sort_index": number})

    def track(self, number: int, process: int, name: str, rank: int, *, counter: str | None = None) -> None:
        if counter is not None:
            self._counters[number] = name, counter
            return
        self._describe(process, number, "thread_name", {"name": name})
        self._describe(process, number, "thread_sort_index", {"sort_index": rank})

    def slice(
        self, process: int, track: int, begin: int, end: int, name: str, args: Args, into: int = 0, out: Arrows = ()
    ) -> None:
        self.events += 1
        place = f'"pid":{process},"tid":{track},"ts":{self._ts(begin)}'
        told = f',"args":{_json(args)}' if args else ""
        text = f'{{"ph":"X",{place},"dur":{_micros(end - begin)},"cat":"{_CATEGORY}","name":{_text(name)}{told}}}'
        self._add_slice(begin, end - begin, text.encode("ascii", "replace"))
        for ends, arrow in (*(("s", one) for one in out), *((("f", into),) if into else ())):
            enclosing = ',"bp":"e"' if ends == "f" else ""
            text = f'{{"ph":"{ends}",{place},"id":{arrow},"cat":"{_CATEGORY}","name":"leads to"{enclosing}}}'
            self._event(begin, _BEGINS, _BIAS - 1, text)

    def instant(self, process: int, track: int, time: int, name: str, args: Args) -> None:
        self.events += 1
        told = f',"args":{_json(args)}' if args else ""
        place = f'"pid":{process},"tid":{track},"ts":{self._ts(time)}'
        text = f'{{"ph":"i","s":"p",{place},"cat":"{_CATEGORY}","name":{_text(name)}{told}}}'
        self._event(time, _INSTANT, 0, text)

    def value(self, process: int, track: int, time: int, value: float) -> None:
        self.events += 1
        name, unit = self._counters[track]
        place = f'"pid":{process},"ts":{self._ts(time)}'
        text = f'{{"ph":"C",{place},"name":{_text(name)},"args":{{{_text(unit)}:{value!r}}}}}'
        self._event(time, _INSTANT, 0, text)

    def pieces(self) -> Iterator[bytes]:
        yield b'{"displayTimeUnit":"ns","otherData":{"origin_unix_ns":"%d"},"traceEvents":[' % self.origin
        between = b"\n"
        for piece in self._spool:
            yield between + piece
            between = b",\n"
        yield b"\n]}\n"


class ProtobufSink(Sink):
    """Perfetto's TrackEvents (perfetto.dev/docs/reference/synthetic-track-event), with interned names."""

    # Numbers of fields and values in protos/perfetto/trace/perfetto_trace.proto.
    _PACKET: Final = 1
    _BOOTTIME: Final = 6
    _REALTIME: Final = 1
    _BEGIN: Final = 1
    _END: Final = 2
    _INSTANT: Final = 3
    _COUNTER: Final = 4
    _SEQUENCE: Final = pb.integer(10, 1)
    _CLEARED: Final = pb.integer(13, 1)
    _NEEDS: Final = pb.integer(13, 2)
    _IN_SEQUENCE: Final = _SEQUENCE + _NEEDS
    _EXPLICIT: Final = pb.integer(11, 3)
    _IN_CATEGORY: Final = pb.integer(3, 1)

    def __init__(self, spool: Spool, origin: int) -> None:
        super().__init__(spool, origin)
        self._names: dict[str, bytes] = {}
        self._keys: dict[str, bytes] = {}
        self._words: dict[tuple[str, str | bool], bytes] = {}  # whole arguments: a million steps share a few
        self._last: dict[int, bytes] = {}  # what ends a slice of a track, but for its time
        self._first: dict[tuple[int, str], bytes] = {}  # what begins a slice of a name on a track, but for its time
        self._numbered: tuple[str, int | float | bool | str] = "", 0  # the last argument that is an integer, and how
        self._number = b""  # it is encoded: a step, its loads and its parts have the same
        self._time = pb.moments(8)
        # All times are Unix times. Where the trace's clock stands as the wall clock does, viewers can show dates.
        clocks = (pb.message(1, pb.integer(1, clock), pb.integer(2, origin)) for clock in (6, 1))
        snapshot = pb.message(6, *clocks, pb.integer(2, self._BOOTTIME))
        self._packet(-_BIAS, _FIRST, 0, self._SEQUENCE, self._CLEARED, pb.integer(87, 1), snapshot)
        self._intern(1, 1, _CATEGORY)

    def _packet(self, time: int, order: int, tie: int, *fields: bytes) -> None:
        self._add(time, order, tie, pb.message(self._PACKET, *fields))

    def _intern(self, field: int, number: int, text: str) -> None:
        entry = pb.message(field, pb.integer(1, number), pb.string(2, text))
        self._packet(-_BIAS, _FIRST, 1, self._IN_SEQUENCE, pb.message(12, entry))

    def process(self, number: int, name: str) -> None:
        described = pb.message(3, pb.integer(1, number), pb.string(6, name))
        self._describe(pb.integer(1, number), described, self._EXPLICIT, pb.integer(12, number))

    def track(self, number: int, process: int, name: str, rank: int, *, counter: str | None = None) -> None:
        unit = (pb.message(8, pb.string(6, counter)),) if counter is not None else ()
        above = pb.integer(1, number), pb.string(2, name), pb.integer(5, process)
        self._describe(*above, *unit, pb.integer(12, rank))

    def _describe(self, *fields: bytes) -> None:
        self._packet(-_BIAS, _FIRST, 2, self._IN_SEQUENCE, pb.message(60, *fields))

    def _name(self, name: str) -> bytes:
        found = self._names.get(name)
        if found is None:
            number = len(self._names) + 1
            self._intern(2, number, name)
            found = self._names[name] = pb.integer(10, number)
        return found

    def _args(self, args: Args) -> list[bytes]:
        told = []
        for key, value in args.items():
            kind = type(value)
            if kind is int:
                known = self._number if (key, value) == self._numbered else None
            else:
                known = self._words.get((key, value)) if kind is not float else None  # type: ignore[arg-type]
            told.append(self._arg(key, value) if known is None else known)
        return told

    def _arg(self, key: str, value: int | float | bool | str) -> bytes:
        name = self._keys.get(key)
        if name is None:
            number = len(self._keys) + 1
            self._intern(3, number, key)
            name = self._keys[key] = pb.integer(1, number)
        if isinstance(value, bool):
            told = pb.integer(2, value)
        elif isinstance(value, int):
            told = pb.integer(4, value)
        else:
            told = pb.double(5, value) if isinstance(value, float) else pb.string(6, value)
        whole = pb.message(4, name, told)
        if isinstance(value, str | bool):
            if len(self._words) < _WORDS:
                self._words[key, value] = whole
        elif isinstance(value, int):
            self._numbered, self._number = (key, value), whole
        return whole

    def _encoded(self, time: int, kind: int, track: int, *fields: bytes) -> bytes:
        event = pb.message(11, pb.constant(9, kind), pb.constant(11, track), *fields)
        return pb.message(self._PACKET, self._time(time), self._IN_SEQUENCE, event)

    def _event(self, time: int, order: int, tie: int, kind: int, track: int, *fields: bytes) -> None:
        self._add(time, order, tie, self._encoded(time, kind, track, *fields))

    def slice(
        self, process: int, track: int, begin: int, end: int, name: str, args: Args, into: int = 0, out: Arrows = ()
    ) -> None:
        self.events += 1
        arrows = [pb.fixed64(47, one) for one in out]
        if into:
            arrows.append(pb.fixed64(48, into))
        if begin == end:  # both in one place, for they are not to end before they begin
            fields = (self._IN_CATEGORY, self._name(name), *arrows, *self._args(args))
            self._event(begin, _INSTANT, track, self._BEGIN, track, *fields)
            self._event(end, _INSTANT, track, self._END, track)
            return
        # As _encoded() does, but for what is the same for all slices of a name on a track: there are millions.
        first = self._first.get((track, name))
        if first is None:
            parts = pb.constant(9, self._BEGIN), pb.constant(11, track), self._IN_CATEGORY, self._name(name)
            if len(self._first) >= _WORDS:
                self._first.clear()
            first = self._first[track, name] = b"".join(parts)
        body = b"".join((first, *arrows, *self._args(args)))
        packet = self._time(begin) + self._IN_SEQUENCE + pb.head(11, len(body)) + body
        self._add_slice(begin, end - begin, pb.head(self._PACKET, len(packet)) + packet)
        last = self._last.get(track)
        if last is None:
            event = pb.message(11, pb.constant(9, self._END), pb.constant(11, track))
            last = self._last[track] = self._IN_SEQUENCE + event
        packet = self._time(end) + last
        self._add(end, _ENDS, -begin, pb.head(self._PACKET, len(packet)) + packet)

    def instant(self, process: int, track: int, time: int, name: str, args: Args) -> None:
        self.events += 1
        fields = (self._IN_CATEGORY, self._name(name), *self._args(args))
        self._event(time, _INSTANT, 0, self._INSTANT, track, *fields)

    def value(self, process: int, track: int, time: int, value: float) -> None:
        self.events += 1
        self._event(time, _INSTANT, 0, self._COUNTER, track, pb.double(44, value))

    def pieces(self) -> Iterator[bytes]:
        return chain(self._spool)


def _micros(ns: int) -> str:
    """Write ns as µs, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def _text(text: str) -> str:
    return json.dumps(encodable(text))


def _json(args: Args) -> str:
    return json.dumps({key: encodable(value) if isinstance(value, str) else value for key, value in args.items()})
