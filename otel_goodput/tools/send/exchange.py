"""One request and its answer, under one deadline over all of it, and what is known of it when that is over.

Time limits of sockets hold for each piece: a receiver that sends a byte a second is never too late for them, and a
name that is looked up has none. So a request goes in a thread of its own, and whoever waits for it stops in time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Final, NamedTuple

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"  # this request, for what is in it
LATER: Final = "later"  # the same request may be accepted later
UNSURE: Final = "unsure"  # this request for what is in it, or any: what becomes of the next tells
CLOSED: Final = "closed"  # no request will be accepted: wrong place, wrong credentials

_TICK_S: Final = 0.1
# What a thread needs to see that its connection is shut: not more than can be told from the deadline.
_LAST_WORDS_S: Final = 0.2


class Answer(NamedTuple):
    """What became of a request.

    Attributes:
        outcome: one of this module's.
        said: the receiver's words, or what went wrong.
        rejected: spans or points that were not taken of an accepted request.
        wait_s: seconds after which the receiver wants to be asked again, if it said so.
        perhaps: whether it may have been accepted all the same.
    """

    outcome: str
    said: str = ""
    rejected: int = 0
    wait_s: float = 0.0
    perhaps: bool = False


class TooLate(Exception):
    """Nobody waits for this request any more: it must not be sent, for it may be on its way again."""


class NotBegun(Exception):
    """What `begins` raised, `error`: not to be taken for the network's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Passage:
    """How far a request has come: written by the thread that sends it, read by the one that waits.

    Args:
        timeout_s: seconds for all of it.
        begins: called once, before anything of it is handed to the receiver; an OSError of it ends the request.

    Attributes:
        handed: whether the receiver may have all of it.
        known: what is known already of an answer that is not there as a whole.
    """

    def __init__(self, timeout_s: float, begins: Callable[[], None]) -> None:
        self.timeout_s = timeout_s
        self.handed = False
        self.known: Answer | None = None
        self._until = monotonic() + timeout_s
        self._begins = begins
        self._lock = threading.Lock()
        self._entered = self._over = False
        self._connection: socket.socket | None = None

    def left(self) -> float:
        """Seconds, 0 at least."""
        return max(self._until - monotonic(), 0.0)

    def enter(self, connection: socket.socket | None = None) -> None:
        """There is a connection, and the request goes now.

        Raises:
            TooLate: it must not.
            NotBegun: it cannot be remembered that it goes.
        """
        with self._lock:  # also while it begins: the answer may come first, and what it leads to is remembered next
            if self._over:
                raise TooLate
            self._entered, self._connection = True, connection
            try:
                self._begins()
            except OSError as error:
                raise NotBegun(error) from error

    def give_up(self) -> None:
        """Whoever sends it is not waited for: what it reads from ends, and what it has not begun to send stays."""
        with self._lock:
            self._over = True
            connection = self._connection
        if connection is not None:
            with suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)

    def late(self) -> Answer:
        """What is known of it when its time is over."""
        if self.known is not None:
            return self.known
        within = f"within {self.timeout_s:.3g} s"
        if not self._entered:
            return Answer(LATER, f"no connection {within}")
        if not self.handed:
            return Answer(LATER, f"it did not read what it was sent {within}")
        return Answer(LATER, f"no answer {within}", perhaps=True)


def exchange(
    ask: Callable[[Passage], Answer], timeout_s: float, begins: Callable[[], None], waiting: Callable[[], None]
) -> Answer:
    """Send a request by `ask` and wait for its answer, `timeout_s` seconds at most.

    Args:
        ask: sends it, in a thread of its own, and says how far it has come.
        begins: called while the request is handed to the receiver, never after this returns.
        waiting: called now and then while there is no answer.

    Raises:
        OSError: what `begins` raises.
        Exception: what `ask` or `waiting` raise.
    """
    passage = Passage(timeout_s, begins)
    found: list[Answer | BaseException] = []

    def work() -> None:
        try:
            found.append(ask(passage))
        except BaseException as error:  # it is raised where somebody waits
            found.append(error)

    thread = threading.Thread(target=work, name="goodput-send", daemon=True)
    thread.start()
    try:
        while not found and passage.left():
            thread.join(min(passage.left(), _TICK_S))
            if not found:
                waiting()
        if not found:
            passage.give_up()
            thread.join(_LAST_WORDS_S)
            return passage.late()  # and not what it found: a half answer looks like one where the connection ends
    finally:
        passage.give_up()
    if isinstance(found[0], NotBegun):
        raise found[0].error
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def pause(seconds: float, waiting: Callable[[], None]) -> None:
    """Wait so long, and call `waiting` now and then."""
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0:
        sleep(min(left, _TICK_S))
        waiting()
