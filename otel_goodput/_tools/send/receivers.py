"""Sends requests to a receiver over gRPC or HTTP, and interprets its answers: what was sent may have arrived."""

from __future__ import annotations

import base64
import gzip
import importlib
import math
import ssl
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from otel_goodput._runtime import files
from otel_goodput._runtime.answers import TooLong, bound, whole
from otel_goodput._tools.send.lines import METRICS, TRACES, Request
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters import otlp_answers
from otel_goodput.exporters.otlp_variables import GRPC, Endpoint, headers, timeout, variables

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"  # this request will never be accepted, because of its content
LATER: Final = "later"  # the same request may be accepted later
UNSURE: Final = "unsure"  # either this request is refused, or the receiver fails; the next requests show which
CLOSED: Final = "closed"  # no request will be accepted: wrong endpoint or wrong credentials

_STATUSES: Final = {
    400: REFUSED, 413: REFUSED, 422: REFUSED, 500: UNSURE, 408: LATER, 429: LATER, 502: LATER, 503: LATER, 504: LATER,
}  # fmt: skip
_CODES: Final = {
    **dict.fromkeys(otlp_answers.LATER | otlp_answers.OTLP_LATER, LATER),
    **dict.fromkeys(otlp_answers.UNSURE, UNSURE),
    "INVALID_ARGUMENT": REFUSED,
}
_METHODS: Final = {
    signal: f"/opentelemetry.proto.collector.{word}.v1.{word.title()}Service/Export"
    for signal, word in ((TRACES, "trace"), (METRICS, "metrics"))
}
_NO_CONNECTION: Final = ("failed to connect", "errors resolving", "DNS resolution failed")
# Reconnect quickly when the receiver is available again.
_CHANNEL: Final = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 1000),
                   ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.max_send_message_length", -1)]  # fmt: skip
_EARLY_S: Final = 0.05  # gRPC may report the deadline this much before it


class Answer(NamedTuple):
    """The result of a request."""

    outcome: str  # one of this module's constants
    message: str = ""  # the receiver's, or the error
    rejected: int = 0  # spans or points of an accepted request that the receiver rejected
    wait_s: float = 0.0  # that the receiver asks to wait before a retry; 0 if it does not say
    maybe_delivered: bool = False  # the request may have been accepted although no answer says so


def late(timeout_s: float) -> Answer:
    """Return the answer for a request that may have arrived, whose receiver did not answer in time."""
    return Answer(LATER, f"no answer within {timeout_s:.3g} s", maybe_delivered=True)


def _unconnected(timeout_s: float) -> Answer:
    return Answer(LATER, f"no connection within {timeout_s:.3g} s")


def receiver(where: Endpoint) -> str:
    """Return the endpoint's URL without its secrets: user, password and query."""
    parts = urlsplit(where.url if "://" in where.url else f"//{where.url}")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).removeprefix("//")


def open_destination(where: Endpoint, environ: Mapping[str, str]) -> Destination:
    """Create the destination for an endpoint. Raises ConfigurationError, ImportError (packages), OSError (files)."""
    try:
        where.address()
        return (_Grpc if where.wire == GRPC else _Http)(where, environ)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{receiver(where)} cannot be the endpoint of {where.signal}: {error}") from error


class Destination:
    """A receiver of one signal, configured by OTLP's standard variables in `environ`."""

    close: Callable[[], object]

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
        self._paths = [setting(name) for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")]
        self._certificates = [files.read_named(Path(path)) if path else None for path in self._paths]

    def send(self, request: Request, timeout_s: float) -> Answer:
        """Send a request; connecting and waiting for the answer may each take `timeout_s` seconds."""
        raise NotImplementedError


def _taken(answer: otlp_answers.Accepted) -> Answer:
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
            credentials = grpc.ssl_channel_credentials(*self._certificates)
            self._channel = grpc.secure_channel(target, credentials, _CHANNEL, compression)
        self.close = self._channel.close
        self._call = self._channel.unary_unary(
            _METHODS[where.signal],
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=otlp_answers.answer_type(where.signal).FromString,
        )

    def send(self, request: Request, timeout_s: float) -> Answer:
        until = time.monotonic() + timeout_s - _EARLY_S
        try:
            return _taken(
                otlp_answers.accepted(self._call(request.message, timeout=timeout_s, metadata=[*self._headers.items()]))
            )
        except self._grpc.RpcError as error:
            code, details = error.code().name, (error.details() or "")[: otlp_answers.LONGEST_WORDS]
            if code == "DEADLINE_EXCEEDED" and time.monotonic() >= until:  # ours, not the receiver's
                # The core knows whether there is a connection: a subscriber's thread fails once the channel is closed.
                state = self._channel._channel.check_connectivity_state(False)
                ready = self._grpc.ChannelConnectivity.READY.value[0]
                return late(timeout_s) if state == ready else _unconnected(timeout_s)
            outcome = _CODES.get(code, CLOSED)
            if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
                outcome = REFUSED
            wait_s = otlp_answers.retry_delay(otlp_answers.status_details(error)) or 0.0
            # gRPC does not distinguish an answer of the receiver from a broken connection, unless there never was one.
            answered = wait_s or details.startswith(_NO_CONNECTION)
            maybe_delivered = code in otlp_answers.BROKEN and not answered
            return Answer(outcome, f"{code}: {details}", wait_s=wait_s, maybe_delivered=maybe_delivered)


class _Http(Destination):
    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        super().__init__(where, environ)
        requests, urllib3 = (importlib.import_module(name) for name in ("requests", "urllib3"))
        self._lost = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
        self._unconnected, self._unanswered = urllib3.exceptions.MaxRetryError, urllib3.exceptions.ReadTimeoutError
        self._signal = where.signal
        parts = urlsplit(where.url)
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        # A connection that was kept may be closed while a request is on its way, which would then be in doubt.
        own = {"content-type": otlp_answers.PROTOBUF[0], "user-agent": "otel-goodput", "connection": "close"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            own["authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        compressed = {"content-encoding": "gzip"} if self._compress else {}
        self._headers = own | self._headers | compressed | {"accept-encoding": "identity"}
        authority, key, certificate = self._paths
        self._session = requests.Session()  # uses the proxies in the environment
        self._session.verify = authority or True
        self._session.cert = (certificate, key) if certificate and key else certificate or None
        bound(self._session)
        self.close = self._session.close

    def send(self, request: Request, timeout_s: float) -> Answer:
        body = request.message.SerializeToString()
        try:
            with self._session.post(
                self._url,
                data=gzip.compress(body) if self._compress else body,
                headers=self._headers,
                timeout=timeout_s,
                allow_redirects=False,  # they would send the headers, including credentials, to another host
                stream=True,
            ) as response:
                if response.status_code >= 400:
                    return self._failed(response)
                content = whole(partial(response.raw.read, decode_content=False))
                return _taken(otlp_answers.read(self._signal, response.status_code, response.headers, content))
        except otlp_answers.NotAccepted as error:
            return Answer(CLOSED, str(error), maybe_delivered=error.arrived)
        except self._lost as error:
            return self._without_answer(error, timeout_s)

    def _failed(self, response: Any) -> Answer:
        outcome, words = _STATUSES.get(response.status_code, CLOSED), f"{response.status_code} {response.reason}"
        try:
            text = response.raw.read(otlp_answers.LONGEST_WORDS).decode("utf-8", "replace")
        except self._lost:  # it never ends; if the request counted as refused, every line could take this long
            return Answer(CLOSED if outcome == CLOSED else LATER, words)
        if text and text.isprintable():  # not a binary protobuf message
            words = f"{words}: {text}"
        return Answer(outcome, words, wait_s=_retry_after(response.headers.get("retry-after", "")))

    def _without_answer(self, error: BaseException, timeout_s: float) -> Answer:
        chain = list(otlp_answers.causes(error))
        first = chain[-1]
        if isinstance(first, ssl.SSLCertVerificationError):
            return Answer(CLOSED, str(first))
        if long := next((str(one) for one in chain if isinstance(one, TooLong)), ""):
            return Answer(CLOSED, long, maybe_delivered=True)
        connected = not any(isinstance(one, self._unconnected) for one in chain) and "handshake" not in str(first)
        if isinstance(first, TimeoutError):
            if not connected:
                return _unconnected(timeout_s)
            if not any(isinstance(one, self._unanswered) for one in chain):
                return Answer(LATER, f"it did not read the request within {timeout_s:.3g} s")
            return late(timeout_s)
        return Answer(LATER, str(first) or type(first).__name__, maybe_delivered=connected)


def _retry_after(text: str) -> float:
    """Return the seconds to wait by a Retry-After header, which is a number or a date; 0 without one."""
    try:
        seconds = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return max(seconds, 0.0)
