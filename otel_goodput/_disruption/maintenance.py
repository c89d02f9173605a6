"""Notices of Google Compute Engine, of host maintenance and preemption, from the machine's metadata server.

Both keys are watched by hanging GETs, which the server answers when the value changes. One thread holds both requests
open on non-blocking sockets and waits for either, and for :meth:`Maintenance.stop`, in one ``select``. Taking turns
with short timeouts would notice a preemption late, and its grace period is 30 s.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._disruption.metadata import FLAVOR, LONGEST, MetadataAnswer, NotGoogles, Reception, address, request
from otel_goodput._disruption.notices import Notices
from otel_goodput._runtime.clock import Clock
from otel_goodput._runtime.guard import logger, report_once
from otel_goodput._text.redact import printable
from otel_goodput.semconv import GOODPUT_NOTICE_SOURCE, GOODPUT_NOTICE_VALUE, Reason

_LONGEST: Final = 1 << 13  # bytes of an answer at most; its headers have some hundreds, a value some ten


class Key(NamedTuple):
    """A key of the metadata server, and the reason that each of its values announces; None if it announces nothing."""

    path: str
    reasons: Mapping[str, str | None]


KEYS: Final = (
    Key(
        "instance/maintenance-event",
        {
            "NONE": None,
            "MIGRATE_ON_HOST_MAINTENANCE": Reason.MAINTENANCE,
            "TERMINATE_ON_HOST_MAINTENANCE": Reason.MAINTENANCE,
        },
    ),
    Key("instance/preempted", {"FALSE": None, "TRUE": Reason.PREEMPTION}),
)


class Maintenance:
    """Watches the metadata server in one daemon thread.

    Args:
        notices: where changes are announced.
        clock: ns since the epoch.
        host: ``host`` or ``host:port`` of the server; if None, :meth:`start` does nothing.
        wait_s: seconds that the server may hold a request while the value does not change.
        patience_s: seconds that it may take beyond that, or to answer at all.
        backoff_s: least and most seconds before the next request for a key after a failure; the least is also kept
            between any two requests.

    A server that cannot be reached is retried for ever; one that does not answer as Google's does is given up. Each is
    logged once. Raises nothing.
    """

    def __init__(
        self,
        notices: Notices,
        clock: Clock,
        host: str | None,
        *,
        wait_s: float = 60.0,
        patience_s: float = 5.0,
        backoff_s: tuple[float, float] = (1.0, 60.0),
    ) -> None:
        self.notices = notices
        self.clock = clock
        self.host = host
        self.wait_s = wait_s
        self.patience_s = patience_s
        self.backoff_s = backoff_s
        self._stopping = threading.Event()
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Start watching; return False if there is nothing to watch. Call once."""
        if self.host is None:
            return False
        place = address(self.host)
        if place is None:
            self._refuse("its address is not valid")
            return False
        woken = None
        try:
            woken, self._waker = socket.socketpair()
            thread = threading.Thread(target=self._watch, args=(place, woken), name="goodput-maintenance", daemon=True)
            thread.start()
            self._thread = thread
        except (OSError, RuntimeError) as error:
            if woken is not None:
                woken.close()
            report_once("metadata server", "notices of maintenance and preemption are not watched: %s", error)
            return False
        return True

    def stop(self) -> None:
        """Stop watching. Takes at most a second, even if the thread is stuck in a name lookup."""
        self._stopping.set()
        if self._waker is not None:
            self._waker.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    @property
    def watching(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def _refuse(self, why: str) -> None:
        report_once(
            "metadata server",
            "the metadata server %s is not Google's: %s; notices of maintenance and preemption are not watched",
            printable(self.host or ""),
            why,
        )

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _watch(self, address: tuple[str, int], woken: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, woken:
            selector.register(woken, selectors.EVENT_READ, None)
            watches = [_Watch(self, key, address, selector) for key in KEYS]
            try:
                while watches and not self._stopping.is_set():
                    self._turn(watches, selector)
            except NotGoogles as lie:
                self._refuse(str(lie))
            except Exception as error:
                report_once(
                    "metadata server",
                    "notices of maintenance and preemption are no longer watched: %s: %s",
                    type(error).__name__,
                    error,
                )
            finally:
                for watch in watches:
                    watch.hang_up()

    def _turn(self, watches: list[_Watch], selector: selectors.BaseSelector) -> None:
        for watch in watches:
            watch.attend()
        wait = min(watch.due for watch in watches) - time.monotonic()
        for ready, _ in selector.select(max(0.0, wait)):
            if ready.data is not None and not self._stopping.is_set():
                ready.data.proceed()
        watches[:] = [watch for watch in watches if not watch.unknown]


class _Watch:
    """The requests for one key, one after another."""

    def __init__(
        self, owner: Maintenance, key: Key, address: tuple[str, int], selector: selectors.BaseSelector
    ) -> None:
        self._owner = owner
        self._key = key
        self._address = address
        self._selector = selector
        self._socket: socket.socket | None = None
        self._received = Reception(_LONGEST)
        self._failures = 0
        self._began = 0.0
        self._etag = ""  # empty: the next request returns the present value at once
        self._value = ""
        self.due = 0.0  # monotonic s: when to send the next request, or when the answer is overdue
        self.unknown = False  # the server has no such key

    def attend(self) -> None:
        """Do what is due: send a request, or give up waiting for the answer."""
        now = time.monotonic()
        if now < self.due:
            return
        if self._socket is not None:
            self._fail("no answer in time")
            return
        self._began = now
        try:
            self._connect()
        except (OSError, UnicodeError) as error:
            self._fail(str(error))

    def proceed(self) -> None:
        """Send or receive, whichever the connection is ready for."""
        connection = self._socket
        assert connection is not None
        try:
            if self._selector.get_key(connection).events == selectors.EVENT_WRITE:
                trouble = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if trouble:
                    raise OSError(trouble, os.strerror(trouble))
                connection.sendall(self._request())
                self._selector.modify(connection, selectors.EVENT_READ, self)
                return
            received = connection.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))
            return
        answer = self._received.take(received)
        if answer is not None:
            self._judge(answer)
        elif not received:
            self._fail("the connection was closed before the answer was complete")

    def hang_up(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self._received = Reception(_LONGEST)

    def _connect(self) -> None:
        found = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[self._failures % len(found)]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            trouble = connection.connect_ex(where)
            if trouble not in (0, errno.EINPROGRESS):
                raise OSError(trouble, os.strerror(trouble))
            self._selector.register(connection, selectors.EVENT_WRITE, self)
        except BaseException:
            connection.close()
            raise
        self._socket = connection
        self.due = self._began + self._owner.patience_s + (self._owner.wait_s if self._etag else 0.0)

    def _request(self) -> bytes:
        target = self._key.path
        if self._etag:
            wait = max(1, round(self._owner.wait_s))
            target += f"?wait_for_change=true&last_etag={quote(self._etag, safe='')}&timeout_sec={wait}"
        return request(self._owner.host or "", target)

    def _fail(self, why: str) -> None:
        """Close the connection and try again later, after a pause that doubles with each failure."""
        self.hang_up()
        least, most = self._owner.backoff_s
        self.due = time.monotonic() + min(most, least * 2 ** min(self._failures, 16))
        self._failures += 1
        self._etag = ""  # ask for the present value, a change meanwhile must not be missed
        report_once(
            "metadata server unreachable",
            "a request to the metadata server %s for %s failed: %s; it will be retried",
            printable(self._owner.host or ""),
            self._key.path,
            why,
        )

    def _judge(self, answer: MetadataAnswer) -> None:
        """Process an answer.

        Raises:
            NotGoogles: it is not from Google's metadata server.
        """
        if not answer.flavored:
            raise NotGoogles(f"no {': '.join(FLAVOR)} in its answer (status {answer.status})")
        if answer.status >= 500 or answer.status == 429:
            self._fail(f"status {answer.status}")
            return
        if answer.status == 404:
            logger.debug("the metadata server has no %s", self._key.path)
            self.unknown = True
            self.hang_up()
            return
        value = answer.body.strip()
        if answer.status != 200 or value not in self._key.reasons:
            raise NotGoogles(f"{self._key.path} is {printable(value[:60])!r} (status {answer.status})")
        self.hang_up()
        if self._failures:
            logger.info("the metadata server %s answers again", printable(self._owner.host or ""))
        self._failures = 0
        self._etag = answer.etag
        # Always pause between two requests, whatever the server answers.
        self.due = max(time.monotonic(), self._began + self._owner.backoff_s[0])
        if value != self._value:
            self._change(value)

    def _change(self, value: str) -> None:
        before, self._value = self._key.reasons.get(self._value), value
        reason = self._key.reasons[value]
        about: dict[str, Any] = {GOODPUT_NOTICE_SOURCE: self._key.path, GOODPUT_NOTICE_VALUE: value}
        if reason is not None:
            self._owner.notices.announce(reason, self._owner.clock(), **about)
        elif before is not None:
            self._owner.notices.withdraw(before, self._owner.clock(), **about)
