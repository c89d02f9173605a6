"""Sends requests to a receiver over gRPC or HTTP under a deadline, and interprets its answers.

The deadline is that of a whole request, however slowly its receiver drips, and it must be known whether the request was
handed over. HTTP libraries limit single operations, so they would need the same threads; gRPC is sent here anyway.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import importlib
import math
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from otel_goodput._runtime import files
from otel_goodput._runtime.answers import BoundedResponse, TooLong, whole
from otel_goodput._tools.background import BackgroundCall
from otel_goodput._tools.send.lines import TRACES, Request
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters import status_codes
from otel_goodput.exporters.otlp_answers import (
    LONGEST_WORDS,
    PROTOBUF,
    Accepted,
    NotAccepted,
    accepted,
    answer_type,
    read,
    redirection,
)
from otel_goodput.exporters.otlp_variables import GRPC, Endpoint, headers, timeout, variables
from otel_goodput.exporters.status_codes import retry_delay, status_details

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
        message: the receiver's, or the error.
        rejected: number of spans or points of an accepted request that the receiver rejected.
        wait_s: seconds that the receiver asks to wait before a retry; 0 if it does not say.
        maybe_delivered: whether the request may have been accepted although no answer says so.
    """

    outcome: str
    message: str = ""
    rejected: int = 0
    wait_s: float = 0.0
    maybe_delivered: bool = False


class TooLate(Exception):
    """The caller no longer waits for this request. It must not be sent, because the caller may be retrying it."""


class NotBegun(Exception):
    """`before_sending` raised `error`; a separate type, so that it is not taken for a network error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class InFlight:
    """The state of a request, shared by the thread that sends it and the thread that waits for it.

    Args:
        timeout_s: seconds for the whole request.
        before_sending: called once, before anything is sent to the receiver; if it raises OSError, the request ends.

    Attributes:
        maybe_delivered: whether the receiver may have the whole request.
        partial_answer: the answer as far as it is known before all of it has arrived.
    """

    def __init__(self, timeout_s: float, before_sending: Callable[[], None]) -> None:
        self.timeout_s = timeout_s
        self.maybe_delivered = False
        self.partial_answer: Answer | None = None
        self._until = monotonic() + timeout_s
        self._before_sending = before_sending
        self._lock = threading.Lock()
        self._entered = self._over = False
        self._connection: socket.socket | None = None

    def left(self) -> float:
        """Return the seconds until the deadline, at least 0."""
        return max(self._until - monotonic(), 0.0)

    def enter(self, connection: socket.socket | None = None) -> None:
        """Note that the request is about to be sent over `connection`, and call `before_sending`.

        Raises:
            TooLate: the caller no longer waits; the request must not be sent.
            NotBegun: `before_sending` failed.
        """
        with self._lock:  # held during `before_sending` too, so that it never runs after the caller has gone on
            if self._over:
                raise TooLate
            self._entered, self._connection = True, connection
            try:
                self._before_sending()
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
        if self.partial_answer is not None:
            return self.partial_answer
        within = f"within {self.timeout_s:.3g} s"
        if not self._entered:
            return Answer(LATER, f"no connection {within}")
        if not self.maybe_delivered:
            return Answer(LATER, f"it did not read the request {within}")
        return Answer(LATER, f"no answer {within}", maybe_delivered=True)


def exchange(
    send: Callable[[InFlight], Answer],
    timeout_s: float,
    before_sending: Callable[[], None],
    waiting: Callable[[], None],
) -> Answer:
    """Send a request with `send` and wait for its answer, at most `timeout_s` seconds.

    Args:
        send: sends the request, in its own thread, and reports its state to the `InFlight`.
        timeout_s: seconds for the whole exchange.
        before_sending: called before the request is sent to the receiver, never after this function has returned.
        waiting: called about every 0.1 s while there is no answer.

    Raises:
        OSError: raised by `before_sending`.
        Exception: raised by `send` or `waiting`.
    """
    in_flight = InFlight(timeout_s, before_sending)
    call = BackgroundCall(partial(send, in_flight))
    try:
        while in_flight.left() and not call.over(min(in_flight.left(), _TICK_S)):
            waiting()
        if not call.over():
            in_flight.give_up()
            call.over(_LAST_WORDS_S)
            return in_flight.late()  # ignore the result: after the shutdown, a truncated answer looks complete
        return call.result()
    except NotBegun as error:
        raise error.error from None
    finally:
        in_flight.give_up()


def pause(seconds: float, waiting: Callable[[], None]) -> None:
    """Sleep for `seconds`, calling `waiting` about every 0.1 s."""
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0:
        sleep(min(left, _TICK_S))
        waiting()


class Posted(urllib.request.Request):
    """A POST request, and what is known of it while it is in flight."""

    def __init__(self, url: str, body: bytes, headers: dict[str, str], in_flight: InFlight) -> None:
        super().__init__(url, body, headers, method="POST")
        self.in_flight = in_flight


class _Connection(http.client.HTTPConnection):
    response_class = BoundedResponse

    def __init__(self, in_flight: InFlight, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._in_flight = in_flight

    def connect(self) -> None:
        super().connect()
        self._in_flight.enter(self.sock)

    def getresponse(self) -> http.client.HTTPResponse:
        self._in_flight.maybe_delivered = True
        return super().getresponse()


class _Encrypted(_Connection, http.client.HTTPSConnection):
    """The same over TLS; it is established after the TLS handshake."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the headers, including credentials, to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections that report to the `InFlight` of a `Posted` request."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = context

    def http_open(self, request: Any) -> http.client.HTTPResponse:
        return self.do_open(partial(_Connection, request.in_flight), request)

    def https_open(self, request: Any) -> http.client.HTTPResponse:
        return self.do_open(partial(_Encrypted, request.in_flight), request, context=self._tls)


_STATUSES: Final = {
    400: REFUSED, 413: REFUSED, 422: REFUSED, 500: UNSURE, 408: LATER, 429: LATER, 502: LATER, 503: LATER, 504: LATER,
}  # fmt: skip
_CODES: Final = {
    **dict.fromkeys(status_codes.LATER | status_codes.OTLP_LATER, LATER),
    **dict.fromkeys(status_codes.UNSURE, UNSURE),
    "INVALID_ARGUMENT": REFUSED,
}
_METHODS: Final = {
    signal: f"/opentelemetry.proto.collector.{word}.v1.{word.title()}Service/Export"
    for signal, word in ((TRACES, "trace"), ("metrics", "metrics"))
}
_NO_CONNECTION: Final = ("failed to connect", "errors resolving", "DNS resolution failed")
# Reconnect quickly when the receiver is available again.
_CHANNEL: Final = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 1000),
                   ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.max_send_message_length", -1)]  # fmt: skip
_LONGER_S: Final = 1.0
_NOTHING_S: Final = 0.05


def open_destination(where: Endpoint, environ: Mapping[str, str]) -> Destination:
    """Create the destination for an endpoint, configured by OTLP's standard variables in `environ`.

    Raises:
        ConfigurationError: the endpoint is not valid, or a header cannot be sent.
        ImportError: the packages for its protocol are not installed.
        OSError: a certificate cannot be read.
    """
    try:
        where.address()
        return (_Grpc if where.wire == GRPC else _Http)(where, environ)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{receiver(where)} cannot be the endpoint of {where.signal}: {error}") from error


def receiver(where: Endpoint) -> str:
    """Return the endpoint's URL without its secrets: user, password and query."""
    parts = urlsplit(where.url if "://" in where.url else f"//{where.url}")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).removeprefix("//")


class Destination:
    """A receiver of one signal, configured by OTLP's standard variables in `environ`."""

    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        def setting(name: str) -> str:
            values = (environ.get(variable, "").strip() for variable in variables(where.signal, name))
            return next(filter(None, values), "")

        self.timeout_s = timeout(environ, where.signal, math.inf)
        sent = headers(environ, where.signal, where.wire)
        for wrong in (*sent.malformed, *sent.unsendable):
            raise ConfigurationError(wrong)
        self._headers = {name.lower(): value for name, value in sent.values.items()}
        self._compress = setting("COMPRESSION").lower() == "gzip"
        self._insecure = setting("INSECURE").lower() == "true"
        self._authority, self._certificate, self._key = (
            setting(name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
        )

    def send(self, request: Request, in_flight: InFlight) -> Answer:
        """Send a request and report its state to `in_flight`; returns the answer.

        Raises:
            TooLate: the caller no longer waits for the request.
            NotBegun: the progress could not be saved before sending.
        """
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _taken(answer: Accepted) -> Answer:
    return Answer(ACCEPTED, answer.message, answer.rejected)


class _Grpc(Destination):
    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        super().__init__(where, environ)
        self._grpc = grpc = importlib.import_module("grpc")
        parts = urlsplit(where.url)
        plain = parts.scheme == "http" or (parts.scheme != "https" and self._insecure)
        target = receiver(where).partition("://")[2].partition("/")[0] if parts.netloc else where.url
        compression = grpc.Compression.Gzip if self._compress else grpc.Compression.NoCompression
        if plain:
            self._channel = grpc.insecure_channel(target, _CHANNEL, compression)
        else:
            paths = (self._authority, self._key, self._certificate)
            pieces = [files.read_named(Path(path)) if path else None for path in paths]
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(*pieces), _CHANNEL, compression)
        self._call = self._channel.stream_unary(
            _METHODS[where.signal],
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_type(where.signal).FromString,
        )

    def send(self, request: Request, in_flight: InFlight) -> Answer:
        trouble: list[Exception] = []
        begun = threading.Event()

        def message() -> Iterator[Any]:
            yield request.message
            # gRPC asks for the next message once it has passed the first to a connection, unless the call ends before.
            begun.wait()
            try:
                in_flight.enter()
                in_flight.maybe_delivered = True
            except (TooLate, NotBegun) as error:
                trouble.append(error)
                call.cancel()

        call = self._call.future(message(), timeout=in_flight.left(), metadata=[*self._headers.items()])
        begun.set()
        try:
            return _taken(accepted(call.result()))
        except self._grpc.FutureCancelledError:
            raise trouble[0] from None
        except self._grpc.RpcError as error:
            code, details = error.code().name, (error.details() or "")[:LONGEST_WORDS]
            if code == "DEADLINE_EXCEEDED" and in_flight.left() < _NOTHING_S:
                return in_flight.late()  # our own deadline has passed
            outcome = _CODES.get(code, CLOSED)
            if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
                outcome = REFUSED
            wait_s = retry_delay(status_details(error)) or 0.0
            # gRPC does not distinguish an answer of the receiver from a broken connection, unless there never was one.
            answered = wait_s or details.startswith(_NO_CONNECTION)
            return Answer(
                outcome,
                f"{code}: {details}",
                wait_s=wait_s,
                maybe_delivered=code in status_codes.BROKEN and not answered,
            )

    def close(self) -> None:
        self._channel.close()


class _Http(Destination):
    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        super().__init__(where, environ)
        self._signal = where.signal
        parts = urlsplit(where.url)
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        own = {"content-type": PROTOBUF[0], "user-agent": "otel-goodput"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            own["authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        self._headers = own | self._headers | ({"content-encoding": "gzip"} if self._compress else {})
        context = None
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._authority or None)
            if self._certificate:
                context.load_cert_chain(self._certificate, self._key or None)
        self._opener = urllib.request.build_opener(
            _NoRedirect(), _Handler(context)
        )  # by the proxies in the environment

    def send(self, request: Request, in_flight: InFlight) -> Answer:
        body = request.message.SerializeToString()
        if self._compress:
            body = gzip.compress(body)
        posted = Posted(self._url, body, self._headers, in_flight)
        try:
            # The socket's timeout must be longer than that of the waiting thread, which reports it better.
            with self._opener.open(posted, timeout=in_flight.left() + _LONGER_S) as answered:
                return _taken(read(self._signal, answered.status, answered.headers, whole(answered.read)))
        except NotAccepted as error:
            return Answer(CLOSED, str(error), maybe_delivered=error.arrived)
        except TooLong as error:
            return Answer(CLOSED, str(error), maybe_delivered=True)
        except urllib.error.HTTPError as error:
            outcome, words = _STATUSES.get(error.code, CLOSED), f"{error.code} {error.reason}"
            if error.code < 400:
                words = redirection(error.code, error.headers)
            # If the body never ends, the status must still count; otherwise every line of the file would time out.
            in_flight.partial_answer = Answer(CLOSED if outcome == CLOSED else LATER, words)
            with error:
                text = "" if error.fp is None else error.read(LONGEST_WORDS).decode("utf-8", "replace")
                wait_s = _retry_after(error.headers.get("retry-after", ""))
            if text and text.isprintable():  # not a binary protobuf message
                words = f"{words}: {text}"
            return Answer(outcome, words, wait_s=wait_s)
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                return Answer(CLOSED, str(reason))
            return Answer(LATER, str(reason), maybe_delivered=in_flight.maybe_delivered)
        except (OSError, http.client.HTTPException) as error:
            return Answer(LATER, str(error) or type(error).__name__, maybe_delivered=in_flight.maybe_delivered)

    def close(self) -> None:
        self._opener.close()


def _retry_after(text: str) -> float:
    """Return the seconds to wait by a Retry-After header, which is a number or a date; 0 without one."""
    try:
        return float(text) if text.strip().isdecimal() else max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
    except (ValueError, OverflowError):
        return 0.0
