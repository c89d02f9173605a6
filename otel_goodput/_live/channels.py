"""How what a rank publishes travels to the leader of its job: through what the job has already.

That is the run's folder, if the ranks share it; else the key-value store of jax.distributed; else that of
torch.distributed. Each rank writes to a place of its own there, which any rank may read, so that nobody waits for
anybody. The folder is shared by those who see in it the same leader as in the store.

Nothing here is for the training thread: a disk or a connection may hang.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, Protocol, TypeVar

from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._live.outbox import (
    HEAD,
    KEPT,
    MOST,
    Frame,
    Inbox,
    Outbox,
    frames_in,
    frames_of,
    opening_of,
    packed,
    writer_of,
)
from otel_goodput._live.stores import Ending, Patience, Store, current_store
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import redacting_logger, without_credentials

logger = redacting_logger(__name__)

T = TypeVar("T")

RETRY_S: Final = 30.0  # until a channel that has failed is tried again, and the choice is looked at again
PROBED: Final = 64  # ranks that have sent nothing yet, looked for in one round

_SLACK: Final = MOST  # bytes of old frames that a small file may hold
LARGEST: Final = HEAD.size + 2 * (KEPT + MOST) + _SLACK  # bytes of a file

TRIMMED: Final = 8 * files.KIB  # bytes in a store beyond which a rank looks what the leader has read
STORED: Final = 2 * MOST  # bytes in a store, of a rank whose leader reads nothing
GIVEN: Final = 4096  # messages of a rank of which it is noted that they may not be in the account yet
TOGETHER: Final = 64  # ranks whose messages are fetched from a store with one call
_READ: Final = Struct("<IQQ")  # rank, writer and number of the latest message that the leader has
_SIGN: Final = Struct("<QQq")  # writer and number of the leader's latest message, and when it began, ns since the epoch
GONE_S: Final = 30.0  # a leader that was in a store before, and has written nothing for so long, is there no more
SURE_S: Final = 10.0  # a leader that finds another one's sign writes all but its own sign so much later
_WRITER: Final = Struct("<Q")  # before the account that a leader has left
TWO_LEADERS: Final = (
    "another process leads this run, too, and was in the store of %s.distributed first; the account that this process "
    "makes of the job is left to no deputy, but kept in its own memory. Give each process its own index "
    "(OTEL_GOODPUT_PROCESS_INDEX, process_index=)"
)


class _Way(Protocol):
    """One of the ways. Its methods may wait, and raise."""

    name: str

    def writer(self, rank: int) -> int:
        """Return who wrote last what this way has of a rank; 0 if it has nothing."""

    def remains(self) -> bytes:
        """Return what the process before this one has left."""

    def send(self, outbox: Outbox, frame: bytes) -> None:
        """Bring the latest message there, and those that are not there yet."""

    def look(self, ranks: Iterable[int]) -> Iterator[tuple[int, list[Frame]]]:
        """Yield what is new of `ranks`."""

    def confirm(self, latest: Mapping[int, tuple[int, int]]) -> None:
        """Let the ranks know which messages the leader has."""

    def rewind(self) -> None:
        """Forget what has been looked at."""

    def sign(self, rank: int) -> bytes | None:
        """Return the latest sign of life of a rank; None if there is none. Much less is read than by :meth:`look`."""


class _Folder:
    """A file of each rank in the run's folder, to which it appends.

    Files are opened each time: that is when NFS looks at the server, and closed after writing: when it sends. When a
    file is long, one with the latest messages takes its place.
    """

    name = "folder"

    def __init__(self, run: RunDirectory, process: int) -> None:
        self._run = run
        self._own = self._path(process)
        self._head = b""  # of the own file; empty: it is to be written anew
        self._size = 0
        self._number = 0  # of the latest message in it
        self._read: dict[int, tuple[bytes, int]] = {}  # by rank: header of its file, and how much of that is read

    def _path(self, rank: int) -> Path:
        return self._run.file("updates", rank)

    def writer(self, rank: int) -> int:
        try:
            return writer_of(files.beginning(self._path(rank), HEAD.size))
        except FileNotFoundError:
            return 0

    def remains(self) -> bytes:
        try:
            return files.read(self._own, LARGEST)
        except (FileNotFoundError, files.TooLarge):
            return b""

    def send(self, outbox: Outbox, frame: bytes) -> None:
        head, self._head = self._head, b""
        number, self._number = self._number, outbox.number
        if head and number == outbox.number - 1 and self._size + len(frame) <= 2 * outbox.size + _SLACK:
            with suppress(FileNotFoundError):
                file = files.descriptor(self._own, os.O_RDWR | os.O_APPEND)
                try:
                    if os.fstat(file).st_size == self._size and os.pread(file, len(head), 0) == head:
                        files.append_whole(file, frame)
                        self._head, self._size = head, self._size + len(frame)
                        return
                finally:
                    os.close(file)
        data = outbox.whole()
        files.write_privately(self._own, data)
        self._head, self._size = opening_of(data), len(data)

    def look(self, ranks: Iterable[int]) -> Iterator[tuple[int, list[Frame]]]:
        """Yield what is new of `ranks`. A file that cannot be read is an error if none can."""
        trouble: OSError | None = None
        any_read = False
        with files.held(self._run.journal):
            for rank in ranks:
                try:
                    frames = self._news(rank)
                    any_read = True
                except FileNotFoundError:
                    continue
                except OSError as error:
                    trouble = error
                    continue
                if frames:
                    yield rank, frames
        if trouble is not None and not any_read:
            raise trouble

    def _news(self, rank: int) -> list[Frame]:
        """Read what has been written to a file since it was read last."""
        file = files.descriptor(self._path(rank), os.O_RDONLY)
        try:
            before, read = self._read.get(rank, (b"", 0))
            head = opening_of(os.pread(file, HEAD.size, 0))
            if head != before:
                read = HEAD.size
            size = min(os.fstat(file).st_size, LARGEST) - read
            data = os.pread(file, size, read) if head and size > 0 else b""
        finally:
            os.close(file)
        frames, used = frames_of(data)
        self._read[rank] = head, read + used
        return frames

    def confirm(self, latest: Mapping[int, tuple[int, int]]) -> None:
        """Nobody looks for that: what is old takes no room for long."""

    def rewind(self) -> None:
        self._read.clear()

    def sign(self, rank: int) -> bytes | None:
        try:
            file = files.descriptor(self._path(rank), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            about = os.fstat(file)
        finally:
            os.close(file)
        return f"{about.st_ino} {about.st_size} {about.st_mtime_ns}".encode()


class _Shelf:
    """A key of each rank in a store, with the messages that the leader does not have yet, set anew for each one."""

    def __init__(self, store: Store, run_id: str, process: int, leader: int) -> None:
        self.name = store.name
        self.store = store
        self._root = f"otel_goodput/{folder_name(run_id)}"
        self._process = process
        self._leader = leader
        self._leads = process == leader
        self._left = False  # an account, for a deputy
        self._sign, self._began = b"", time.time_ns()  # that this leader has given
        self._rival = b""  # the latest sign of a leader that was there before this one, and lives;
        self._until = 0.0  # until when this writes no more than its sign, s, monotonic
        self._heads: dict[int, bytes] = {}  # of what was read of each rank
        self._patience = {role: Patience() for role in ("send", "look")}  # for two threads

    def _key(self, rank: int) -> str:
        return f"{self._root}/{rank // TOGETHER}/{rank}"

    def _get(self, key: str) -> bytes:
        return self._patience["send"].call(lambda: self.store.get(key))

    def writer(self, rank: int) -> int:
        return writer_of(self._get(self._key(rank)))

    def remains(self) -> bytes:
        return self._get(self._key(self._process))

    def _yields(self) -> bool:
        """Whether another process leads the same run through the store, and did so first.

        Each of them would overwrite what the other has written. If both live, each sees the other's sign in place of
        its own, and both decide the same.
        """
        sign, now = self._get(f"{self._root}/sign"), time.monotonic()
        if not self._sign:
            self._until = now + SURE_S if sign else 0.0  # it may be of the leader before this one
        elif sign not in (b"", self._sign, self._rival):
            writer, _, began = _SIGN.unpack(sign) if len(sign) == _SIGN.size else (0, 0, 0)
            own = _WRITER.unpack_from(self._sign)
            if (began, writer) < (self._began, *own):
                if not self._rival:
                    report_once(f"leaders through {self.name}", TWO_LEADERS, self.name)
                self._rival, self._until = sign, now + GONE_S
        elif sign == self._rival and now >= self._until:
            self._rival = b""
        return self._rival != b""

    def _overwrites(self) -> bool:
        """Whether this leader may write what another one may have written, too."""
        return time.monotonic() >= self._until

    def send(self, outbox: Outbox, frame: bytes) -> None:
        if self._leads and self._yields():
            return
        if outbox.size > TRIMMED and not self._leads:
            data = self._get(f"{self._root}/read")
            for at in range(0, len(data) - _READ.size + 1, _READ.size):
                rank, writer, number = _READ.unpack_from(data, at)
                if rank == self._process:
                    outbox.forget(writer, number)
        few = self._leads and not self._left  # nobody confirms what the leader sends
        data = outbox.whole(TRIMMED if few else STORED)
        if len(data) > TRIMMED:  # a rank whose steps are short; the leader has to unpack that of each rank
            data = packed(data)
        self._patience["send"].call(lambda: self.store.set(self._key(self._process), data))
        if self._leads:
            self._sign = sign = _SIGN.pack(outbox.writer, outbox.number, self._began)
            self._patience["send"].call(lambda: self.store.set(f"{self._root}/sign", sign))

    def look(self, ranks: Iterable[int]) -> Iterator[tuple[int, list[Frame]]]:
        wanted = {str(rank): rank for rank in ranks}
        groups: dict[str, list[str]] = {}
        for name, rank in wanted.items():
            groups.setdefault(f"{self._root}/{rank // TOGETHER}", []).append(name)

        def fetch() -> list[tuple[str, bytes]]:
            return [each for group, names in groups.items() for each in self.store.several(group, names)]

        for name, data in self._patience["look"].call(fetch) if groups else ():
            head = opening_of(data)
            if (rank := wanted.get(name, -1)) >= 0 and head and head != self._heads.get(rank):
                self._heads[rank] = head
                yield rank, frames_in(data)

    def confirm(self, latest: Mapping[int, tuple[int, int]]) -> None:
        data = b"".join(_READ.pack(rank, *message) for rank, message in latest.items())
        if self._overwrites():
            self._patience["look"].call(lambda: self.store.set(f"{self._root}/read", data))

    def hand_over(self, writer: int, account: bytes) -> bool:
        """Leave an account; False if another leader's may be there."""
        if not self._overwrites():
            return False
        data, self._left = _WRITER.pack(writer) + account, bool(account)
        self._patience["look"].call(lambda: self.store.set(f"{self._root}/account", data))
        return True

    def handed_over(self) -> bytes:
        """Return what the leader has left whose sign of life is there."""
        keys = [f"{self._root}/{name}" for name in ("sign", "account")]
        sign, data = self._patience["look"].call(lambda: [self.store.get(key) for key in keys])
        return data[_WRITER.size :] if sign and sign[: _WRITER.size] == data[: _WRITER.size] else b""

    def rewind(self) -> None:
        self._heads.clear()

    def sign(self, rank: int) -> bytes | None:
        leads = rank == self._leader  # all ranks look at it, so it has a key that is small
        key = f"{self._root}/sign" if leads else self._key(rank)
        data = self._patience["look"].call(lambda: self.store.get(key))
        return (data if leads else opening_of(data)) or None


class RankChannel:
    """The channel of this process, whatever happens to it: trouble is reported once, and what was not sent is kept.

    Args:
        run: the folder of the run, which other ranks may share; None if there is none.
        run_id: the id that was asked for, the same in all processes.
        process: index of this process, of `count`.
        leader: index of the process that leads.

    Attributes:
        name: the channel in use: ``folder``, ``jax`` or ``torch``; empty if none is known to work. To the leader it is
            the one through which most ranks come to it.
    """

    def __init__(self, run: RunDirectory | None, run_id: str, process: int, count: int, leader: int = 0) -> None:
        self.name = ""
        self._run_id, self._process, self._leader, self._leads = run_id, process, leader, process == leader
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._folder = None if run is None else _Folder(run, process)
        self._shelf: _Shelf | None = None
        self._others = [rank for rank in range(count) if rank != process]
        self._turn = 0  # where to go on looking for ranks that have sent nothing
        self._adopted = False
        self._introduced: set[_Way] = set()  # where this process can be seen
        self._shared = True  # the folder, as far as is known
        self._unsure = True  # because the store does not have the leader yet
        self._chosen_at = self._all_at = -RETRY_S  # s, monotonic: when the folder and the store were compared, and when
        # all ranks were looked for in each of them
        self._by: dict[int, str] = {}  # the name of the way that the latest message of each rank took
        # s, monotonic: when a way that has failed is tried again, by its name and whether it failed in sending. A disk
        # that is full can be read.
        self._retry: dict[tuple[str, bool], float] = {}
        # Of the leader: the latest messages that are in the account, if that is handed over; and those received that
        # are not, each with its number of all those of its rank.
        self._confirmed: dict[int, tuple[int, int]] | None = None
        self._given: dict[int, deque[tuple[int, tuple[int, int]]]] = {}
        self._counts: Counter[int] = Counter()
        self._sending, self._receiving = threading.Lock(), threading.Lock()

    @property
    def lost(self) -> Mapping[int, int]:
        """How many messages of a rank were overwritten before this process read them."""
        return self._inbox.lost

    def publish(self, data: bytes) -> None:
        """Send a message of this rank, at most ``MOST`` bytes. Raises ValueError if it is longer. May wait."""
        if len(data) > MOST:
            raise ValueError(f"a message of {len(data)} bytes; at most {MOST} can be sent")
        with self._sending:
            frame = self._outbox.add(data)
            for way in self._chosen():
                if self._try(way, partial(self._send, way, frame)) and not self._leads:
                    self._use(way.name)

    def _introduce(self, way: _Way) -> None:
        """As the leader, be seen there, also before a message is sent."""
        if way not in self._introduced and self._works(way, sending=True):
            with self._sending:
                self._try(way, partial(self._send, way, b""))

    def _send(self, way: _Way, frame: bytes) -> bool:
        """Send a message, or none yet: an empty `frame`."""
        if not self._adopted:
            self._outbox.adopt(way.remains())
            self._adopted = True
        way.send(self._outbox, frame)
        self._introduced.add(way)
        return True

    def _chosen(self) -> Sequence[_Way]:
        """The way to send a message; the leader itself uses all, so that the others see which of them it has."""
        ways = self._ways(sending=True)
        folder, shelf = self._folder, self._shelf
        if self._leads or len(ways) < 2 or folder is None or shelf is None:
            return ways
        now = time.monotonic()
        if self._unsure or now - self._chosen_at >= RETRY_S:
            self._chosen_at = now
            there = self._try(shelf, lambda: shelf.writer(self._leader))
            here = self._try(folder, lambda: folder.writer(self._leader))
            self._unsure, self._shared = not there, there in (0, None, here)
        return [folder if self._shared else shelf]

    def receive(self) -> Mapping[int, Sequence[bytes]]:
        """Return the new messages by rank, those of a rank in the order in which it sent them. May wait."""
        messages: dict[int, list[bytes]] = {}
        with self._receiving:
            now, wanted = time.monotonic(), self._wanted()
            every = now - self._all_at >= RETRY_S
            if every:
                self._all_at = now
            for way in self._ways(sending=False):
                if self._leads:
                    self._introduce(way)
                # A rank that comes by one way is looked for on the others now and then.
                ranks = wanted if every else [rank for rank in wanted if self._by.get(rank, way.name) == way.name]
                self._try(way, partial(self._take, way, ranks, messages), sending=False)
            if self._leads and self._by:
                self._use(Counter(self._by.values()).most_common(1)[0][0])
        return messages

    def rewind(self) -> None:
        """Have :meth:`receive` return all messages again that are still there."""
        with self._receiving:
            self._inbox = Inbox()
            self._by.clear()
            self._all_at = -RETRY_S
            for way in (self._folder, self._shelf):
                if way is not None:
                    way.rewind()

    def sent(self) -> Sequence[bytes]:
        """Return the messages that this process has sent, as far as they are still there."""
        with self._sending:
            return self._outbox.sent()

    def signs(self, rank: int) -> Mapping[str, bytes]:
        """Return the latest sign of life of a rank by the name of the way that it took. May wait.

        Each message of the rank changes it.
        """
        with self._receiving:
            ways = self._ways(sending=False)
            signs = {way.name: self._try(way, partial(way.sign, rank), sending=False) for way in ways}
        return {name: sign for name, sign in signs.items() if sign is not None}

    @property
    def apart(self) -> bool:
        """Whether messages come through a store, because not all ranks share the run's folder."""
        return self._shelf is not None and self._shelf.name in self._by.values()

    def hand_over(self, account: bytes, covered: Mapping[int, int]) -> None:
        """As the leader, leave the `account` of the job in the store for a deputy; none if it is empty. May wait.

        `covered`: how many messages of each rank it has, of all that were received, or sent. Ranks keep the others.
        """
        with self._receiving:
            shelf = self._shelf
            if shelf is None or not self._works(shelf, sending=False):
                return
            if not self._try(shelf, partial(shelf.hand_over, self._outbox.writer, account), sending=False):
                return
            self._confirmed = {**(self._confirmed or {}), **self._latest_of(covered)} if account else None
            own = covered.get(self._process, 0)
            with self._sending:
                self._outbox.forget(self._outbox.writer, own)
            self._try(shelf, partial(self._confirm, shelf), sending=False)

    def _latest_of(self, covered: Mapping[int, int]) -> Mapping[int, tuple[int, int]]:
        """Return the latest message of each rank that is covered, and forget those."""
        latest = {}
        for rank, given in self._given.items():
            while given and given[0][0] <= covered.get(rank, 0):
                latest[rank] = given.popleft()[1]
        return latest

    def _confirm(self, way: _Way) -> None:
        way.confirm(self._inbox.latest if self._confirmed is None else self._confirmed)

    def handed_over(self) -> bytes:
        """Return the account that the leader has left in the store; empty if there is none. May wait."""
        with self._receiving:
            self._ways(sending=False)
            shelf = self._shelf
            if shelf is None or not self._works(shelf, sending=False):
                return b""
            return self._try(shelf, shelf.handed_over, sending=False) or b""

    def shares_folder(self, rank: int) -> bool:
        """Return whether the messages of `rank` come through the run's folder, so that it is the same one there."""
        return self._folder is not None and self._by.get(rank) == self._folder.name

    def _take(self, way: _Way, ranks: Sequence[int], messages: dict[int, list[bytes]]) -> None:
        any_new = False
        for rank, frames in way.look(ranks):
            if new := self._inbox.take(rank, frames):
                messages.setdefault(rank, []).extend(frame.message for frame in new)
                self._by[rank], any_new = way.name, True
                if self._leads:
                    given = self._given.setdefault(rank, deque(maxlen=GIVEN))
                    given.extend((at, frame[:2]) for at, frame in enumerate(new, self._counts[rank] + 1))
                    self._counts[rank] += len(new)
        if any_new and self._leads and self._confirmed is None:
            self._confirm(way)

    def _wanted(self) -> list[int]:
        """The ranks to look for: those that have sent something, and some of the others in turn."""
        known = [rank for rank in self._others if rank in self._by]
        unknown = [rank for rank in self._others if rank not in self._by]
        if len(unknown) > PROBED:
            self._turn = (self._turn + PROBED) % len(unknown)
            unknown = (unknown[self._turn :] + unknown[: self._turn])[:PROBED]
        return known + unknown

    def _ways(self, *, sending: bool) -> list[_Way]:
        """The ways that there are and that have not failed lately."""
        before = None if self._shelf is None else self._shelf.store
        store = current_store(before)
        if store is None:
            self._shelf = None
        elif store is not before:
            self._shelf = _Shelf(store, self._run_id, self._process, self._leader)
            self._unsure = True
        ways: tuple[_Way | None, ...] = (self._folder, self._shelf)
        return [way for way in ways if way is not None and self._works(way, sending=sending)]

    def _works(self, way: _Way, *, sending: bool) -> bool:
        return time.monotonic() >= self._retry.get((way.name, sending), 0.0)

    def _use(self, name: str) -> None:
        if name != self.name:
            self.name = name
            logger.debug("what the ranks do is exchanged through %s", name)

    def _try(self, way: _Way, call: Callable[[], T], *, sending: bool = True) -> T | None:
        """Return what `call` returns; None if it fails, which is reported once."""
        try:
            return call()
        except Ending:
            return None
        except Exception as error:  # stores raise their own
            if isinstance(way, _Shelf) and current_store(way.store) is not way.store:
                return None  # the runtime has just been shut down
            self._retry[way.name, sending] = time.monotonic() + RETRY_S
            if self.name == way.name and sending is not self._leads:
                self.name = ""
            report_once(
                f"rank channel {way.name}",
                "what the ranks do is not exchanged through %s: %s: %s; it is tried again every %.0f s",
                "the run's folder" if way is self._folder else f"the store of {way.name}.distributed",
                type(error).__name__,
                without_credentials(str(error)),
                RETRY_S,
            )
            return None
