"""How far the clock of this host is ahead of the leader's, and of that of the server of the run's folder (rule R11).

With the leader it is a two-way exchange through the key-value store of the runtime: one at the start, and then seldom.
It is on a thread of its own, and nobody waits for it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final

from otel_goodput._accounting.clock_readings import Reading, Readings, exchanged, stamped
from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._live.rank_messages import ClockSigns
from otel_goodput._live.stores import Ending, Patience, Store, current_store
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import started
from otel_goodput._runtime.host import ahead_of_monotonic
from otel_goodput._text.redact import redacting_logger, without_credentials

logger = redacting_logger(__name__)

AGAIN_S: Final = 300.0  # from one measurement to the next,
RETRY_S: Final = 30.0  # if it succeeded; else
ROUNDS: Final = 8  # of one exchange
LOOK_S: Final = 1.0  # how often the leader looks for ranks that want to exchange
_PATIENCE_S: Final = 15.0  # for the first answer of the leader, who does not know this rank at first,
_QUICK_S: Final = 3.0  # and for the others
_OFTEN_S: Final = 0.001
_SELDOM_S: Final = 0.25, 2.0
_BUSY_S: Final = 0.3  # a leader that is asked looks for more so long

_WANTED: Final = Struct("<Q")  # number
_LEADER: Final = Struct("<Q")  # its host
_ANSWER: Final = Struct("<IQqq")  # rank, number, when it was seen, when it was answered (monotonic, ns)
_LEAP: Final = 40_000_000  # ns; the clock is set forward by more if the machine was suspended
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def this_host() -> int:
    """Return a number that all processes share whose monotonic clock is the same one; another one if not known."""
    try:
        boot = files.read_named(_BOOT)
    except OSError:
        return secrets.randbits(61) + 1
    with suppress(OSError):  # a container may have monotonic clocks of its own
        boot += os.fsencode(Path("/proc/self/ns/time").readlink())
    return (int.from_bytes(hashlib.blake2b(boot, digest_size=8).digest(), "big") >> 3) or 1


class FolderClock:
    """How far this process's monotonic clock is ahead of the server of the run's folder, by the times of its files."""

    def __init__(self, run: RunDirectory, process: int) -> None:
        self._path = run.file("clock", process)
        self._readings = Readings()
        self._due = 0.0

    def reading(self) -> Reading | None:
        """Return what is known now, after another measurement if it is time for one. May wait for the disk."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + AGAIN_S
            with suppress(OSError):
                before = time.monotonic_ns()
                files.write_privately(self._path, b"\n")
                after = time.monotonic_ns()
                with files.opened(self._path) as file:  # opened, because NFS looks at the server only then
                    self._readings.add(stamped(before, os.fstat(file.fileno()).st_mtime_ns, after))
                files.remove(self._path)
        return self._readings.best(time.monotonic_ns())

    def forget(self) -> None:
        """Forget what was measured: the monotonic clock has stood still."""
        self._readings.clear()


class ClockExchange:
    """Exchanges times with the leader, on a thread of its own.

    Args:
        run_id: the id that was asked for, the same in all processes.
        process: index of this process.
        host: number of this host.
        measuring: returns the ranks that the leader answers; None if this process is not the leader.
    """

    def __init__(
        self, run_id: str, process: int, host: int, measuring: Callable[[], Sequence[int]] | None = None
    ) -> None:
        self._root = f"otel_goodput/{folder_name(run_id)}/clocks"
        self._process, self._host, self._measuring = process, host, measuring
        self._store: Store | None = None
        self._patience = Patience()
        self._readings = Readings()
        self._leader = 0  # host of the leader
        self._answers: dict[int, tuple[int, int, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-goodput-clocks", daemon=True)

    def start(self) -> None:
        started(self._thread, "the clocks of hosts are not compared")

    def stop(self) -> None:
        self._stop.set()

    def reading(self) -> tuple[int, int, int] | None:
        """Return the host of the leader, and by how much at least and at most this one's clock is ahead, ns."""
        best = self._readings.best(time.monotonic_ns())
        return None if best is None else (self._leader, best.least, best.most)

    def forget(self) -> None:
        """Forget what was measured: the monotonic clock has stood still."""
        self._readings.clear()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            pause = LOOK_S
            try:
                self._store = store = current_store(self._store)
                if store is None:
                    continue
                if self._measuring is not None:
                    self._answer(store, self._measuring())
                else:
                    pause = AGAIN_S if self._ask(store) else RETRY_S
            except Ending:
                return
            except Exception as error:  # stores raise their own; what travels through them has been reported
                logger.debug("clocks are not compared: %s", without_credentials(str(error)))
                pause = RETRY_S

    def _ask(self, store: Store) -> bool:
        """Exchange times with the leader; return whether it answered."""
        number, answered = secrets.randbits(62), 0
        sent = self._send(store, number)
        pause, until = _SELDOM_S[0], time.monotonic() + _PATIENCE_S
        while not self._stop.wait(pause) and time.monotonic() < until:
            data, returned = self._patience.call(lambda: (store.get(f"{self._root}/answers"), time.monotonic_ns()))
            rows = _ANSWER.iter_unpack(data[_LEADER.size :]) if data else ()
            row = next((row for row in rows if row[:2] == (self._process, number)), None)
            if row is None:
                pause = pause if answered else min(1.5 * pause, _SELDOM_S[1])
                continue
            (leader,) = _LEADER.unpack_from(data)
            if leader != self._leader:
                self._readings.clear()
                self._leader = leader
            self._readings.add(exchanged(sent, row[2], row[3], returned))
            answered += 1
            if answered == ROUNDS:
                break
            number += 1
            sent = self._send(store, number)
            pause, until = _OFTEN_S, time.monotonic() + _QUICK_S
        return answered > 0

    def _send(self, store: Store, number: int) -> int:
        def send() -> int:
            sent = time.monotonic_ns()
            store.set(f"{self._root}/ask/{self._process}", _WANTED.pack(number))
            return sent

        return self._patience.call(send)

    def _answer(self, store: Store, ranks: Sequence[int]) -> None:
        """Answer the ranks that ask, and look for more from them for a moment."""
        names, until = {str(rank): rank for rank in ranks}, time.monotonic()
        while names and not self._stop.is_set():
            waiting, seen = self._patience.call(
                lambda: (list(store.several(f"{self._root}/ask", list(names))), time.monotonic_ns())
            )
            fresh = {
                names[name]: number
                for name, data in waiting
                if name in names and len(data) == _WANTED.size
                for (number,) in [_WANTED.unpack(data)]
                if self._answers.get(names[name], (0,))[0] != number
            }
            if fresh:
                now = time.monotonic_ns()
                self._answers.update({rank: (number, seen, now) for rank, number in fresh.items()})
                rows = b"".join(_ANSWER.pack(rank, *answer) for rank, answer in self._answers.items())
                data = _LEADER.pack(self._host) + rows
                self._patience.call(partial(store.set, f"{self._root}/answers", data))
                until = time.monotonic() + _BUSY_S
            elif time.monotonic() >= until:
                return
            self._stop.wait(_OFTEN_S)


class OwnClock:
    """What this process knows of its clock.

    Args:
        clock: the clock, ns.
        process: index of this process.
    """

    def __init__(self, clock: Callable[[], int], process: int) -> None:
        self.host = this_host()
        self._anchor = ahead_of_monotonic(clock)[1]
        self._clock, self._process = clock, process
        self._folder: FolderClock | None = None
        self._exchange: ClockExchange | None = None

    def compare(self, run: RunDirectory | None) -> None:
        """Compare the clock with that of the folder of the run from now on, if there is one."""
        self._folder = None if run is None else FolderClock(run, self._process)

    def start(self, run_id: str, measuring: Callable[[], Sequence[int]] | None) -> None:
        """Start to exchange times with the leader; for the arguments see :class:`ClockExchange`."""
        self._exchange = ClockExchange(run_id, self._process, self.host, measuring)
        self._exchange.start()

    def stop(self) -> None:
        if self._exchange is not None:
            self._exchange.stop()

    def signs(self) -> ClockSigns:
        """Return what is known now. May wait for the disk."""
        if abs((anchor := ahead_of_monotonic(self._clock)[1]) - self._anchor) > _LEAP:
            self._anchor = anchor
            for one in (self._folder, self._exchange):
                if one is not None:
                    one.forget()
        anchor = self._anchor
        folder = None if self._folder is None else self._folder.reading()
        leader = None if self._exchange is None else self._exchange.reading()
        return ClockSigns(
            self.host, anchor, None if folder is None else (folder.least + anchor, folder.most + anchor), leader
        )
