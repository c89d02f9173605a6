"""Python stacks of a process that stood still: the file ``aNNNN-pNNNN.stacks``, written and read.

The file is text. A line that begins with ``#goodput`` has a JSON object that says what follows it: stacks in the form
of the interpreter's :mod:`faulthandler`, which writes some of them itself, from a thread that needs no GIL. There are
names of files, functions and threads, and no values. Its content is not trusted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any, Final, NamedTuple

from otel_goodput._journal.rundir import STACKS, RunDirectory
from otel_goodput._journal.sidecars import whole
from otel_goodput._runtime import files
from otel_goodput._text.redact import encodable

MARK: Final = "#goodput "
# Kinds of records.
ARMED: Final = "armed"  # written when the interpreter's timer is set: what follows, if anything, it wrote
DUMP: Final = "dump"  # written by this package's own thread
MOVED_ON: Final = "moved on"  # training goes on

MOST_WRITTEN: Final = 2 * files.MIB  # beyond, the stacks of another standstill replace all before
LAID: Final = 64 * files.KIB  # reserved on disk, so that stacks can be written when it is full
_BEGIN: Final = b"Thread 0x"
DEEPEST: Final = 100  # innermost frames of a thread, as many as faulthandler writes,
OUTERMOST: Final = 10  # and outermost ones of a deeper stack
MOST_THREADS: Final = 500
_MOST_FRAMES: Final = 200  # read of a thread
_MOST_DUMPS: Final = 100
_WALKED: Final = 20_000
_BLOCK: Final = 1024  # an armed record is padded to a multiple, so that the next one covers it
_LONGEST: Final = 500  # characters of a name, as in faulthandler
_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.*)\])? \(most recent call first\)")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
# Files of no user: packages that are installed, the standard library, and code without a file.
_FOREIGN: Final = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]|[/\\]Lib[/\\]|^<"
)
# Functions between that of a library and who calls it.
_WRAPPERS: Final = frozenset({"wrapper", "inner", "decorate_context", "_fn", "<lambda>", "__call__", "_call_impl"})


class Frame(NamedTuple):
    """A frame of a stack."""

    path: str
    line: int  # 0: not known
    function: str

    @property
    def place(self) -> str:
        """As ``dataset.py:41``."""
        name = PurePosixPath(self.path.replace("\\", "/")).name or self.path
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class Thread:
    """The stack of a thread, the innermost frame first."""

    ident: int
    name: str  # empty if not known
    training: bool
    frames: Sequence[Frame]
    cut: bool = False  # there were more frames


class Place(NamedTuple):
    """Where a thread is: the innermost line of the user's own code, and the function that it waits in there."""

    frame: Frame
    function: str
    foreign: bool  # the function is not the user's

    @property
    def line(self) -> str:
        return self.frame.place


@dataclass(frozen=True)
class Dump:
    """The stacks of a process at one moment.

    `time`, `since` (when anything began or ended last) and `limit` are ns; `step` is -1 if none was open.
    `by_timer`: the interpreter's timer wrote it, because nothing else could. `moved_on`: when training went on; None if
    it did not as long as that was recorded.
    """

    attempt: int
    process: int
    time: int
    since: int
    limit: int
    step: int
    phase: str
    threads: Sequence[Thread]
    by_timer: bool = False
    requested: str = ""  # the id of the request that it answers
    moved_on: int | None = None
    package: str = ""  # where this package is installed
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def training(self) -> Thread | None:
        """The thread that trains; None if it is not among them."""
        return next((thread for thread in self.threads if thread.training), None)

    @property
    def line(self) -> str:
        """Where the thread that trains is, as ``dataset.py:41``; empty if that is not known."""
        return "" if self.place is None else self.place.line

    @property
    def place(self) -> Place | None:
        """Where the thread that trains is."""
        thread = self.training
        return None if thread is None else place_of(thread.frames, self.package)


def place_of(frames: Sequence[Frame], package: str = "") -> Place | None:
    """Return where a thread is, by its frames, the innermost first; None if it has none.

    `package`: where this package is installed, which is not the user's code either.
    """
    inside = f"{package}{os.sep}" if package else ""

    def foreign(frame: Frame) -> bool:
        return bool(_FOREIGN.search(frame.path)) or (bool(inside) and frame.path.startswith(inside))

    at = next((at for at, frame in enumerate(frames) if not foreign(frame)), None)
    if at is None:
        return Place(frames[0], frames[0].function, True) if frames else None
    called = [frame.function for frame in reversed(frames[:at]) if not (inside and frame.path.startswith(inside))]
    function = next((name for name in called if name not in _WRAPPERS), called[0] if called else "")
    return Place(frames[at], function or frames[at].function, bool(function))


# --- writing ----------------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """Return a name as faulthandler writes it: printable ASCII, and not too long."""
    text = text[:_LONGEST] + "..." if len(text) > _LONGEST else text
    if text.isascii() and text.isprintable():
        return text
    escaped = text.encode("ascii", "backslashreplace").decode()
    return "".join(one if " " <= one <= "~" else f"\\x{ord(one):02x}" for one in escaped)


def _frames_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the lines of a stack."""
    count, last = 0, list[str]()
    while frame is not None and count < _WALKED:
        code = frame.f_code
        line = f'  File "{_plain(code.co_filename)}", line {frame.f_lineno or 0} in {_plain(code.co_name)}'
        if count < DEEPEST:
            yield line
        else:
            last = [*last[1 - OUTERMOST :], line]
        count += 1
        frame = frame.f_back
    if count > DEEPEST + OUTERMOST:
        yield "  ..."
    yield from last


def stacks_of(frames: Mapping[int, FrameType], training: int | None) -> str:
    """Return the stacks of threads by ident, that of `training` first, in faulthandler's form."""
    lines = []
    for ident in sorted(frames, key=lambda one: one != training)[:MOST_THREADS]:
        lines += [f"Thread 0x{ident:016x} (most recent call first):", *_frames_of(frames[ident]), ""]
    return "\n".join(lines)


def header(kind: str, pad: int = 0, **members: Any) -> bytes:
    """Return the line of a record, padded to `pad` bytes at least and to a whole block, if `pad` is not 0."""
    data = f"{MARK}{json.dumps({'kind': kind, **members})}".encode()
    if pad:
        data = data.ljust(max(pad, (len(data) // _BLOCK + 1) * _BLOCK) - 1)
    return data + b"\n"


class StacksFile:
    """The open file of one attempt of a process. All methods raise OSError.

    Attributes:
        descriptor: what the interpreter's timer writes to.
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = files.descriptor(path, os.O_RDWR | os.O_CREAT)
        self._identity = self._status()
        before = os.pread(self.descriptor, STACKS, 0).rstrip(b"\0")
        self._end = len(before)  # of what is kept
        self._armed = 0  # bytes of the record after that, of which the timer may write the stacks
        self.any = _BEGIN in before  # there are stacks
        if hasattr(os, "posix_fallocate"):
            with suppress(OSError):  # the disk is full, or its file system cannot do that
                os.posix_fallocate(self.descriptor, 0, LAID)

    def _status(self) -> tuple[int, int]:
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    @property
    def ours(self) -> bool:
        """Whether the descriptor is still that of the file: programs may close all, and open others in their place."""
        try:
            return self._status() == self._identity
        except OSError:
            return False

    def arm(self, unset: Callable[[], None], **members: Any) -> None:
        """Write the record of the stacks that the timer may write, in place of the last one that was not used.

        `unset` stops the timer, and is called if it must not write meanwhile.
        """
        data = header(ARMED, self._armed or 1, **members)
        if len(data) != self._armed:
            unset()
        os.pwrite(self.descriptor, data, self._end)
        if len(data) != self._armed:
            self._armed = len(data)
            os.lseek(self.descriptor, self._end + len(data), os.SEEK_SET)

    @property
    def written(self) -> bool:
        """Whether the timer has begun to write stacks since :meth:`arm`."""
        return bool(self._armed) and os.lseek(self.descriptor, 0, os.SEEK_CUR) > self._end + self._armed

    def take(self) -> bool:
        """Return whether the timer has written stacks since :meth:`arm`, and keep them. It must not be set."""
        if not self.written:
            return False
        self._end, self._armed, self.any = os.lseek(self.descriptor, 0, os.SEEK_CUR), 0, True
        return True

    def add(self, kind: str, text: str = "", **members: Any) -> None:
        """Add a record in place of the one of :meth:`arm`; the timer must not be set, or is set again."""
        data = header(kind, **members) + (f"\n{text}" if text else "").encode("ascii", "replace")
        if text and self._end and self._end + len(data) > MOST_WRITTEN:
            os.ftruncate(self.descriptor, 0)
            self._end = self._armed = 0
        rest = max(0, self._armed - len(data))
        written = os.pwrite(self.descriptor, data + b"\n" * rest, self._end)  # less if the disk is full
        self._end, self._armed = self._end + min(written, len(data)), 0
        self.any |= bool(text)

    def close(self) -> None:
        """Close the file; it is removed if it has no stacks."""
        if self.ours:
            with suppress(OSError):
                if self.any:
                    os.ftruncate(self.descriptor, self._end)
                os.close(self.descriptor)
        if not self.any:
            files.remove(self.path)


def settled(data: bytes) -> bytes:
    """Return the content of a file without a record at its end that nothing follows: it is written again and again."""
    data = data.rstrip(b"\0")
    at = data.rfind(f'{MARK}{{"kind": "{ARMED}"'.encode())
    return data if at < 0 or _BEGIN in data[at:] else data[:at]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_stacks(run: RunDirectory, attempt: int, process: int) -> list[Dump]:
    """Return what a process left in an attempt (counted from 0), in order; of a huge file, what is at its beginning.

    Raises OSError.
    """
    data = files.beginning(run.file("stacks", attempt, process), STACKS)
    return parse(data, attempt, process)


def parse(data: bytes, attempt: int, process: int) -> list[Dump]:
    """Return the stacks in the content of a file, in order; what is not valid is left out."""
    dumps: list[Dump] = []
    for about, lines in _records(data.rstrip(b"\0").decode("ascii", "replace")):
        moment, kind = _number(about, "time"), about.get("kind")
        if kind == MOVED_ON:
            dumps = [
                one if one.moved_on is not None or one.requested else replace(one, moved_on=moment) for one in dumps
            ]
            continue
        if kind not in (ARMED, DUMP):
            continue
        given, main = about.get("threads"), about.get("training")
        named: Mapping[str, Any] = given if isinstance(given, dict) else {}
        threads = list(_threads(lines, named, main if isinstance(main, str) else ""))
        if not threads or len(dumps) >= _MOST_DUMPS:
            continue
        more = about.get("about")
        dumps.append(
            Dump(
                attempt,
                process,
                moment,
                _number(about, "since"),
                _number(about, "limit"),
                _number(about, "step", -1),
                _text(about.get("phase")),
                threads,
                kind == ARMED,
                _text(about.get("requested")),
                package=_text(about.get("package")),
                about={_text(k): _text(v) for k, v in more.items()} if isinstance(more, dict) else {},
            )
        )
    return dumps


def _records(text: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the object of each record that has a valid one, and the lines after it."""
    about: dict[str, Any] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        if not line.startswith(MARK):
            lines.append(line)
            continue
        if about is not None:
            yield about, lines
        about, lines = None, []
        with suppress(ValueError, RecursionError):
            content = json.loads(line[len(MARK) :])
            about = content if isinstance(content, dict) else None
    if about is not None:
        yield about, lines


def _threads(lines: Iterable[str], names: Mapping[str, Any], training: str) -> Iterator[Thread]:
    """Yield the threads of a dump."""
    begun: tuple[str, str] | None = None
    frames: list[Frame] = []
    cut, count = False, 0

    def thread() -> Thread:
        ident, name = begun or ("0", "")
        key = f"{int(ident, 16):x}"
        return Thread(int(ident, 16), _text(names.get(key)) or name, key == training, tuple(frames), cut)

    for line in lines:
        if match := _THREAD.match(line):
            if begun is not None:
                yield thread()
                count += 1
            if count >= MOST_THREADS:
                return
            begun, frames, cut = (match[1], _text(match[2] or "")), [], False
        elif begun is not None and (match := _FRAME.fullmatch(line)):
            if len(frames) < _MOST_FRAMES:
                frames.append(Frame(_text(match[1]), int(match[2]) if match[2].isdigit() else 0, _text(match[3])))
            else:
                cut = True
        elif line.startswith("  ..."):
            cut = True
    if begun is not None:
        yield thread()


def _number(about: Mapping[str, Any], name: str, absent: int = 0) -> int:
    with suppress(ValueError):
        return whole(about.get(name))
    return absent


def _text(value: Any) -> str:
    return encodable(value)[: 2 * _LONGEST] if isinstance(value, str) else ""
