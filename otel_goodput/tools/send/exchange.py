"""Sends one request and waits for its answer under one deadline.

Socket timeouts apply to each read and write: a receiver that sends one byte per second never exceeds them, and DNS
lookups have none. Therefore each request is sent in its own thread, and the caller stops waiting at the deadline.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Final, NamedTuple

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"  # this request will never be accepted, because of its content
LATER: Final = "later"  # the same request may be accepted later
UNSURE: Final = "unsure"  # either this request is refused, or the receiver fails; the next requests show which
CLOSED: Final = "closed"  # no request will be accepted: wrong endpoint or wrong credentials

_TICK_S: Final = 0.1
# Time for a thread to notice that its connection was shut down; short compared with the deadline.
_LAST_WORDS_S: Final = 0.2


class Answer(NamedTuple):
    """The result of a request.

    Attributes:
        outcome: one of this module's constants.
        said: the receiver's message, or the error.
        rejected: number of spans or points of an accepted request that the receiver rejected.
        wait_s: seconds that the receiver asks to wait before a retry; 0 if it does not say.
        perhaps: whether the request may have been accepted although that is not known.
    """

    outcome: str
    said: str = ""
    rejected: int = 0
    wait_s: float = 0.0
    perhaps: bool = False


class TooLate(Exception):
    """The caller no longer waits for this request. It must not be sent, because the caller may be retrying it."""


class NotBegun(Exception):
    """`begins` raised `error`; a separate type, so that it is not taken for a network error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Passage:
    """The state of a request, shared by the thread that sends it and the thread that waits for it.

    Args:
        timeout_s: seconds for the whole request.
        begins: called once, before anything is sent to the receiver; if it raises OSError, the request ends.

    Attributes:
        handed: whether the receiver may have the whole request.
        known: the answer as far as it is known before all of it has arrived.
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
        """Return the seconds until the deadline, at least 0."""
        return max(self._until - monotonic(), 0.0)

    def enter(self, connection: socket.socket | None = None) -> None:
        """Note that the request is about to be sent over `connection`, and call `begins`.

        Raises:
            TooLate: the caller no longer waits; the request must not be sent.
            NotBegun: `begins` failed.
        """
        with self._lock:  # held during `begins` too, so that it never runs after the caller has gone on
            if self._over:
                raise TooLate
            self._entered, self._connection = True, connection
            try:
                self._begins()
            except OSError as error:
                raise NotBegun(error) from error

    def give_up(self) -> None:
        """Stop waiting for the sending thread: shut down its connection, and forbid sending if it has not begun."""
        with self._lock:
            self._over = True
            connection = self._connection
        if connection is not None:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)

    def late(self) -> Answer:
        """Return the answer for a request whose deadline has passed."""
        if self.known is not None:
            return self.known
        within = f"within {self.timeout_s:.3g} s"
        if not self._entered:
            return Answer(LATER, f"no connection {within}")
        if not self.handed:
            return Answer(LATER, f"it did not read the request {within}")
        return Answer(LATER, f"no answer {within}", perhaps=True)


def exchange(
    ask: Callable[[Passage], Answer], timeout_s: float, begins: Callable[[], None], waiting: Callable[[], None]
) -> Answer:
    """Send a request with `ask` and wait for its answer, at most `timeout_s` seconds.

    Args:
        ask: sends the request, in its own thread, and reports its state to the passage.
        timeout_s: seconds for the whole exchange.
        begins: called before the request is sent to the receiver, never after this function has returned.
        waiting: called about every 0.1 s while there is no answer.

    Raises:
        OSError: raised by `begins`.
        Exception: raised by `ask` or `waiting`.
    """
    passage = Passage(timeout_s, begins)
    found: list[Answer | BaseException] = []

    def work() -> None:
        try:
            found.append(ask(passage))
        except BaseException as error:  # re-raised in the waiting thread
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
            return passage.late()  # ignore `found`: after the shutdown, a truncated answer looks complete
    finally:
        passage.give_up()
    if isinstance(found[0], NotBegun):
        raise found[0].error
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def pause(seconds: float, waiting: Callable[[], None]) -> None:
    """Sleep for `seconds`, calling `waiting` about every 0.1 s."""
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0:
        sleep(min(left, _TICK_S))
        waiting()
