"""Notices of Google Compute Engine, of host maintenance and preemption, from the machine's metadata server.

Each key is watched by hanging GETs, which the server answers when the value changes, on a thread of its own: taking
turns would notice a preemption late, and its grace period is 30 s.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._disruption.metadata import NotGoogles, address, ask
from otel_goodput._disruption.notices import Notices
from otel_goodput._runtime.guard import logger, report_once
from otel_goodput._runtime.host import Clock
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
    """Watches the metadata server in daemon threads.

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
        self.host = host or ""
        self.wait_s = wait_s
        self.patience_s = patience_s
        self.backoff_s = backoff_s
        self.stopping = threading.Event()
        self._watches = [_Watch(self, key) for key in KEYS]

    def start(self) -> bool:
        """Start watching; return False if there is nothing to watch. Call once."""
        if not self.host:
            return False
        if address(self.host) is None:
            self.refuse("its address is not valid")
            return False
        try:
            for watch in self._watches:
                watch.start()
        except RuntimeError as error:
            self.stop()
            report_once("metadata server", "notices of maintenance and preemption are not watched: %s", error)
            return False
        return True

    def stop(self) -> None:
        """Stop watching. Takes at most a second, even if a thread is stuck in a name lookup."""
        self.stopping.set()
        until = time.monotonic() + 1.0
        for watch in self._watches:
            watch.hang_up()
        for watch in self._watches:
            if watch.is_alive() and watch is not threading.current_thread():
                watch.join(max(0.0, until - time.monotonic()))

    @property
    def watching(self) -> bool:
        """Whether a thread is running."""
        return any(watch.is_alive() for watch in self._watches)

    def refuse(self, why: str) -> None:
        """Give the server up."""
        if not self.stopping.is_set():
            report_once(
                "metadata server",
                "the metadata server %s is not Google's: %s; notices of maintenance and preemption are not watched",
                printable(self.host),
                why,
            )
        self.stopping.set()
        for watch in self._watches:
            watch.hang_up()


class _Watch(threading.Thread):
    """The requests for one key, one after another."""

    def __init__(self, owner: Maintenance, key: Key) -> None:
        super().__init__(name="goodput-maintenance", daemon=True)
        self._owner = owner
        self._key = key
        self._connection: socket.socket | None = None
        self._failures = 0
        self._etag = ""  # empty: the next request returns the present value at once
        self._value = ""

    def run(self) -> None:
        pause: float | None = 0.0
        try:
            while pause is not None and not self._owner.stopping.wait(pause):
                pause = self._next()
        except NotGoogles as lie:
            self._owner.refuse(str(lie))
        except Exception as error:
            report_once(
                "metadata server",
                "notices of maintenance and preemption are no longer watched: %s: %s",
                type(error).__name__,
                error,
            )

    def hang_up(self) -> None:
        """End the request under way; from any thread."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _hold(self, connection: socket.socket) -> None:
        self._connection = connection
        if self._owner.stopping.is_set():
            self.hang_up()

    def _next(self) -> float | None:
        """Send a request and wait for its answer. Return the seconds until the next one; None: there is no such key.

        Raises:
            NotGoogles: the answer is not from Google's metadata server.
        """
        owner, key = self._owner, self._key
        began, target, timeout_s = time.monotonic(), key.path, owner.patience_s
        if self._etag:
            wait = max(1, round(owner.wait_s))
            target += f"?wait_for_change=true&last_etag={quote(self._etag, safe='')}&timeout_sec={wait}"
            timeout_s += owner.wait_s
        try:
            answer = ask(owner.host, target, timeout_s, _LONGEST, self._hold)
        except TimeoutError:
            return self._failed("no answer in time")
        except (OSError, UnicodeError) as error:
            return self._failed(str(error))
        if answer.status >= 500 or answer.status == 429:
            return self._failed(f"status {answer.status}")
        if answer.status == 404:
            logger.debug("the metadata server has no %s", key.path)
            return None
        value = answer.body.strip()
        if answer.status != 200 or value not in key.reasons:
            raise NotGoogles(f"{key.path} is {printable(value[:60])!r} (status {answer.status})")
        if self._failures:
            logger.info("the metadata server %s answers again", printable(owner.host))
        self._failures, self._etag = 0, answer.etag
        if value != self._value:
            self._change(value)
        # Always pause between two requests, whatever the server answers.
        return max(0.0, began + owner.backoff_s[0] - time.monotonic())

    def _failed(self, why: str) -> float:
        """Return the pause before the next request, which doubles with each failure."""
        least, most = self._owner.backoff_s
        pause: float = min(most, least * 2 ** min(self._failures, 16))
        self._failures += 1
        self._etag = ""  # ask for the present value, a change meanwhile must not be missed
        if not self._owner.stopping.is_set():
            report_once(
                "metadata server unreachable",
                "a request to the metadata server %s for %s failed: %s; it will be retried",
                printable(self._owner.host),
                self._key.path,
                why,
            )
        return pause

    def _change(self, value: str) -> None:
        before, self._value = self._key.reasons.get(self._value), value
        reason = self._key.reasons[value]
        about: dict[str, Any] = {GOODPUT_NOTICE_SOURCE: self._key.path, GOODPUT_NOTICE_VALUE: value}
        if reason is not None:
            self._owner.notices.announce(reason, self._owner.clock(), **about)
        elif before is not None:
            self._owner.notices.withdraw(before, self._owner.clock(), **about)
