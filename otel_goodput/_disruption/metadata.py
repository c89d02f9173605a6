"""The metadata server of Google Compute Engine: requests to it, and its notices of host maintenance and preemption.

Each key with notices is watched by hanging GETs, which the server answers when the value changes, on a thread of its
own: taking turns would notice a preemption late, and its grace period is 30 s.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput._disruption.notices import Notices
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import logger, report_once, started
from otel_goodput._runtime.host import Clock
from otel_goodput._text.redact import printable
from otel_goodput.semconv import GOODPUT_NOTICE_SOURCE, GOODPUT_NOTICE_VALUE, Reason

if TYPE_CHECKING:
    from http.client import HTTPMessage

METADATA_HOST: Final = "GCE_METADATA_HOST"
HOST: Final = "metadata.google.internal"
LINK_LOCAL: Final = "169.254.169.254"  # the address of HOST on every machine of Google's that has IPv4
PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
PRODUCTS: Final = frozenset({"Google", "Google Compute Engine"})
FLAVOR: Final = ("Metadata-Flavor", "Google")
LONGEST: Final = 1 << 16  # bytes of an answer at most; a value has some ten
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class MetadataAnswer(NamedTuple):
    """An answer that has the header which identifies the metadata server."""

    status: int
    etag: str
    body: str


class NotGoogles(Exception):
    """The answer does not come from Google's metadata server."""


def metadata_host(environ: Mapping[str, str] | None = None, product: Path = PRODUCT) -> str | None:
    """Return ``host`` or ``host:port`` of the metadata server; None outside Google Compute Engine."""
    given = (os.environ if environ is None else environ).get(METADATA_HOST, "").strip()
    if given:
        return given
    try:
        name = files.read_named(product).decode("utf-8", "replace").strip()
    except OSError:
        return None
    return HOST if name in PRODUCTS else None


def address(host: str) -> tuple[str, int] | None:
    """Return name and port of a server given as ``host`` or ``host:port``; None if that is not an address."""
    parts = _ADDRESS.fullmatch(host)
    if parts is None or int(parts[2] or 80) > 0xFFFF:
        return None
    return parts[1].strip("[]"), int(parts[2] or 80)


def connect(host: str, port: int, until: float) -> socket.socket:
    """Return a connection to the first address of `host` that takes one, before `until` (monotonic s).

    Unlike ``socket.create_connection``, whose timeout starts again for each address. A name lookup has no timeout.
    Raises OSError if there is none in time, UnicodeError if the host's name is invalid.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    trouble: OSError = TimeoutError("timed out")
    for tried, (family, kind, protocol, _, where) in enumerate(addresses):
        # Each gets its share of the time that is left, so that a silent one does not take that of the next.
        left = (until - time.monotonic()) / (len(addresses) - tried)
        if left <= 0:
            break
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(left)
            connection.connect(where)
            return connection
        except OSError as error:
            trouble = error
            if connection is not None:
                connection.close()
    raise trouble


def exchange(connection: socket.socket, message: bytes, until: float, longest: int) -> tuple[int, HTTPMessage, bytes]:
    """Send a request, and return the answer's status, headers and body. `until` (monotonic s) bounds all of it.

    Raises OSError if there is no whole answer in time, ValueError if it is not HTTP or has more than `longest` bytes.
    """
    # Takes some 20 ms, spent only on machines with such a server.
    from http.client import HTTPException, IncompleteRead, RemoteDisconnected

    from otel_goodput._runtime.answers import BoundedResponse, TooLong, whole

    connection.settimeout(max(1e-3, until - time.monotonic()))
    connection.sendall(message)
    connection.settimeout(max(1e-3, until - time.monotonic()))
    response = BoundedResponse(connection, method="GET", longest=longest)
    try:
        response.begin()
        body = whole(response.read)
        if response.length:
            raise IncompleteRead(body, response.length)
        return response.status, response.headers, body
    except (IncompleteRead, RemoteDisconnected):
        raise ConnectionError("the connection was closed before the answer was complete") from None
    except TooLong:
        raise ValueError(f"an answer of more than {longest} bytes") from None
    except HTTPException as error:
        raise ValueError(f"the answer is not HTTP ({type(error).__name__})") from None
    finally:
        response.close()


def ask(
    host: str,
    target: str,
    timeout_s: float,
    longest: int = LONGEST,
    hold: Callable[[socket.socket], object] = lambda _: None,
) -> MetadataAnswer:
    """Request `target`, a path below ``/computeMetadata/v1/``, and return the answer, of at most `longest` bytes.

    `timeout_s` bounds the whole exchange, not each of its pieces. `hold` is called with the connection, so that another
    thread can shut it down. Raises as :func:`connect`; and NotGoogles if the answer is not from Google's server.
    """
    until = time.monotonic() + timeout_s
    place = address(host)
    if place is None:
        raise NotGoogles("its address is not valid")
    name, port = place
    header, flavor = FLAVOR
    request = (
        f"GET /computeMetadata/v1/{target} HTTP/1.1\r\nHost: {host}\r\n{header}: {flavor}\r\nConnection: close\r\n\r\n"
    )
    with connect(LINK_LOCAL if name == HOST else name, port, until) as connection:
        hold(connection)
        try:
            status, headers, body = exchange(connection, request.encode("ascii"), until, longest)
        except ValueError as error:
            raise NotGoogles(str(error)) from None
    if headers.get(header) != flavor:
        raise NotGoogles(f"no {header}: {flavor} in its answer (status {status})")
    return MetadataAnswer(status, headers.get("ETag", "").strip(), body.decode("utf-8", "replace"))


_LONGEST: Final = 1 << 13  # bytes of an answer at most; its headers have some hundreds, a value some ten


# The keys, and the reason that each of their values announces; None if it announces nothing.
KEYS: Final[Mapping[str, Mapping[str, str | None]]] = {
    "instance/maintenance-event": {
        "NONE": None,
        "MIGRATE_ON_HOST_MAINTENANCE": Reason.MAINTENANCE,
        "TERMINATE_ON_HOST_MAINTENANCE": Reason.MAINTENANCE,
    },
    "instance/preempted": {"FALSE": None, "TRUE": Reason.PREEMPTION},
}


class Maintenance:
    """Watches the metadata server at `host`, ``host`` or ``host:port``, in daemon threads.

    A server that cannot be reached is retried for ever; one that does not answer as Google's does is given up. Each is
    logged once. Raises nothing.

    Args:
        wait_s: seconds that the server may hold a request while the value does not change.
        patience_s: seconds that it may take beyond that, or to answer at all.
        backoff_s: least and most seconds before the next request for a key after a failure; the least is also kept
            between any two requests.
    """

    def __init__(
        self,
        notices: Notices,
        clock: Clock,
        host: str,
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
        self.stopping = threading.Event()
        self._watches = [_Watch(self, *each) for each in KEYS.items()]

    def start(self) -> bool:
        """Start watching; return False if that is impossible. Call once."""
        if not all(started(watch, "notices of maintenance and preemption are not watched") for watch in self._watches):
            self.stop()
            return False
        return True

    def hang_up(self) -> None:
        self.stopping.set()
        for watch in self._watches:
            watch.hang_up()

    def stop(self) -> None:
        """Stop watching. Takes at most a second, even if a thread is stuck in a name lookup."""
        until = time.monotonic() + 1.0
        self.hang_up()
        for watch in self._watches:
            if watch.is_alive() and watch is not threading.current_thread():
                watch.join(max(0.0, until - time.monotonic()))

    def refuse(self, why: str) -> None:
        if not self.stopping.is_set():
            text = "the metadata server %s is not Google's: %s; notices of maintenance and preemption are not watched"
            report_once("metadata server", text, printable(self.host), why)
        self.hang_up()


class _Watch(threading.Thread):
    def __init__(self, owner: Maintenance, key: str, reasons: Mapping[str, str | None]) -> None:
        super().__init__(name="goodput-maintenance", daemon=True)
        self._owner = owner
        self._key, self._reasons = key, reasons
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
            text = "notices of maintenance and preemption are no longer watched: %s: %s"
            report_once("metadata server", text, type(error).__name__, error)

    def hang_up(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _hold(self, connection: socket.socket) -> None:
        self._connection = connection
        if self._owner.stopping.is_set():
            self.hang_up()

    def _next(self) -> float | None:
        """Send a request and wait for its answer. Return the seconds until the next one; None: there is no such key.

        Raises NotGoogles.
        """
        owner, key = self._owner, self._key
        began, target, timeout_s = time.monotonic(), key, owner.patience_s
        if self._etag:
            wait = max(1, round(owner.wait_s))
            target += f"?wait_for_change=true&last_etag={quote(self._etag, safe='')}&timeout_sec={wait}"
            timeout_s += owner.wait_s
        try:
            answer = ask(owner.host, target, timeout_s, _LONGEST, self._hold)
        except (OSError, UnicodeError) as error:
            return self._failed("no answer in time" if isinstance(error, TimeoutError) else str(error))
        if answer.status >= 500 or answer.status == 429:
            return self._failed(f"status {answer.status}")
        if answer.status == 404:
            logger.debug("the metadata server has no %s", key)
            return None
        value = answer.body.strip()
        if answer.status != 200 or value not in self._reasons:
            raise NotGoogles(f"{key} is {printable(value[:60])!r} (status {answer.status})")
        if self._failures:
            logger.info("the metadata server %s answers again", printable(owner.host))
        self._failures, self._etag = 0, answer.etag
        if value != self._value:
            before, reason = self._reasons.get(self._value), self._reasons[value]
            about: dict[str, Any] = {GOODPUT_NOTICE_SOURCE: key, GOODPUT_NOTICE_VALUE: value}
            self._value = value
            if reason is not None:
                owner.notices.announce(reason, owner.clock(), **about)
            elif before is not None:
                owner.notices.withdraw(before, owner.clock(), **about)
        # Always pause between two requests, whatever the server answers.
        return max(0.0, began + owner.backoff_s[0] - time.monotonic())

    def _failed(self, why: str) -> float:
        """Return the pause before the next request, which doubles with each failure."""
        least, most = self._owner.backoff_s
        pause: float = min(most, least * 2 ** min(self._failures, 16))
        self._failures += 1
        self._etag = ""  # ask for the present value, a change meanwhile must not be missed
        if not self._owner.stopping.is_set():
            text = "a request to the metadata server %s for %s failed: %s; it will be retried"
            report_once("metadata server unreachable", text, printable(self._owner.host), self._key, why)
        return pause
