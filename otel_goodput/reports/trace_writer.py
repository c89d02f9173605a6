"""Writes a trace in Chrome's trace event format, which Perfetto and chrome://tracing read.

The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are taken in ns since the
epoch, and written as µs since the run's start, exactly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from heapq import merge
from pathlib import Path
from typing import IO, Final

from otel_goodput._runtime import files
from otel_goodput._text.redact import encodable

Args = Mapping[str, "int | float | bool | str"]
Arrows = Sequence[int]  # their numbers

# Order of what happens at one time.
_DESCRIPTION: Final = 0  # of a track; they come first
_INSTANT: Final = 1
_BEGIN: Final = 2
_KEY: Final = struct.Struct(">QBQQ")
_BIAS: Final = 1 << 63
_CATEGORY: Final = "goodput"
PIECES: Final = 100_000  # held in memory; some 30 MB with those that a trace is made of
FILES: Final = 32  # open at a time
_LENGTH: Final = struct.Struct(">HI")
Piece = tuple[bytes, bytes]


class Spool:
    """Sorts any number of small pieces of bytes in bounded memory, by way of temporary files.

    A context manager that takes pieces in any order and returns them in the order of their keys.

    Args:
        folder: where the temporary files are made; they have no names, and are gone when the process is.
        pieces: how many pieces are held in memory.
    """

    def __init__(self, folder: Path, pieces: int = PIECES) -> None:
        self._folder = folder
        self._most = pieces
        self._held: list[Piece] = []
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()
        self.count = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, key: bytes, piece: bytes) -> None:
        """Take a piece. Raises OSError if the disk is full."""
        self._held.append((key, piece))
        self.count += 1
        if len(self._held) >= self._most:
            self._spill()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; those of equal keys in the order of the pieces themselves."""
        self._held.sort()
        for _, piece in merge(*map(_read, self._files), self._held):
            yield piece

    def _spill(self) -> None:
        if len(self._files) >= FILES:
            merged = self._new(merge(*map(_read, self._files)))
            for file in self._files:
                file.close()
            self._files = [merged]
        self._held.sort()
        self._files.append(self._new(iter(self._held)))
        self._held.clear()

    def _new(self, pieces: Iterator[Piece]) -> IO[bytes]:
        file = self._stack.enter_context(files.nameless(self._folder))
        for key, piece in pieces:
            file.write(_LENGTH.pack(len(key), len(piece)) + key + piece)
        return file


def _read(file: IO[bytes]) -> Iterator[Piece]:
    file.seek(0)
    size = _LENGTH.size
    while head := file.read(size):
        key, piece = _LENGTH.unpack(head)
        yield file.read(key), file.read(piece)


class TraceWriter:
    """Takes the parts of a trace in any order, and yields its bytes in order of time.

    Args:
        spool: where parts wait until all are known.
        origin: the earliest time in the trace, ns.
    """

    def __init__(self, spool: Spool, origin: int) -> None:
        self._spool = spool
        self.origin = origin
        self._serial = 0
        self._counters: dict[int, tuple[str, str]] = {}
        self.events = 0  # slices, instants and values of counters

    def process(self, number: int, name: str) -> None:
        """Describe a group of tracks; groups are shown in the order of their numbers, from 1."""
        self._describe(number, 0, "process_name", {"name": name})
        self._describe(number, 0, "process_sort_index", {"sort_index": number})

    def track(self, number: int, process: int, name: str, rank: int, *, counter: str | None = None) -> None:
        """Describe a track; those of a process are shown by `rank`. A `counter` has values in that unit."""
        if counter is not None:
            self._counters[number] = name, counter
            return
        self._describe(process, number, "thread_name", {"name": name})
        self._describe(process, number, "thread_sort_index", {"sort_index": rank})

    def slice(
        self, process: int, track: int, begin: int, end: int, name: str, args: Args, into: int = 0, out: Arrows = ()
    ) -> None:
        """Add a slice. Arrows go from the one with a number in `out` to the one with the same in `into` (0: none).

        Slices of one track must lie inside of each other or apart; of two that are equal, the inner comes first.
        """
        self.events += 1
        place = f'"pid":{process},"tid":{track},"ts":{self._ts(begin)}'
        # The longest first, and of equal ones what was added last, for it is the outer.
        length = end - begin
        text = f'"ph":"X",{place},"dur":{_micros(length)},"cat":"{_CATEGORY}","name":{_text(name)}{_args(args)}'
        self._add(begin, _BEGIN, -length, text, last_first=True)
        for ends, arrow in (*(("s", one) for one in out), *((("f", into),) if into else ())):
            enclosing = ',"bp":"e"' if ends == "f" else ""
            text = f'"ph":"{ends}",{place},"id":{arrow},"cat":"{_CATEGORY}","name":"leads to"{enclosing}'
            self._add(begin, _BEGIN, _BIAS - 1, text)

    def instant(self, process: int, track: int, time: int, name: str, args: Args) -> None:
        """Add a moment."""
        self.events += 1
        place = f'"pid":{process},"tid":{track},"ts":{self._ts(time)}'
        self._add(time, _INSTANT, 0, f'"ph":"i","s":"p",{place},"cat":"{_CATEGORY}","name":{_text(name)}{_args(args)}')

    def value(self, process: int, track: int, time: int, value: float) -> None:
        """Add a value of a counter that has been described."""
        self.events += 1
        name, unit = self._counters[track]
        place = f'"pid":{process},"ts":{self._ts(time)}'
        self._add(time, _INSTANT, 0, f'"ph":"C",{place},"name":{_text(name)},"args":{{{_text(unit)}:{value!r}}}')

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the trace."""
        yield b'{"displayTimeUnit":"ns","otherData":{"origin_unix_ns":"%d"},"traceEvents":[' % self.origin
        between = b"\n"
        for piece in self._spool:
            yield between + piece
            between = b",\n"
        yield b"\n]}\n"

    def _describe(self, process: int, track: int, kind: str, args: Args) -> None:
        self._add(-_BIAS, _DESCRIPTION, 0, f'"ph":"M","pid":{process},"tid":{track},"name":"{kind}"{_args(args)}')

    def _add(self, time: int, order: int, tie: int, text: str, *, last_first: bool = False) -> None:
        self._serial += 1
        serial = _BIAS - self._serial if last_first else self._serial
        self._spool.add(_KEY.pack(time + _BIAS, order, tie + _BIAS, serial), f"{{{text}}}".encode("ascii", "replace"))

    def _ts(self, time: int) -> str:
        return _micros(time - self.origin)


def _micros(ns: int) -> str:
    """Write ns as µs, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def _text(text: str) -> str:
    return json.dumps(encodable(text))


def _args(args: Args) -> str:
    if not args:
        return ""
    told = {key: encodable(value) if isinstance(value, str) else value for key, value in args.items()}
    return f',"args":{json.dumps(told)}'
