"""Sends requests to a receiver over gRPC or HTTP, and interprets its answers."""

from __future__ import annotations

import base64
import gzip
import http.client
import importlib
import math
import ssl
import threading
import urllib.error
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from otel_goodput import files
from otel_goodput.answers import TooLong, whole
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
from otel_goodput.tools.send.connections import Posted, opener
from otel_goodput.tools.send.exchange import (
    ACCEPTED,
    CLOSED,
    LATER,
    REFUSED,
    UNSURE,
    Answer,
    NotBegun,
    Passage,
    TooLate,
)
from otel_goodput.tools.send.lines import TRACES, Request

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


class Destination(Protocol):
    """A receiver of one signal."""

    timeout_s: float

    def send(self, request: Request, passage: Passage) -> Answer:
        """Send a request and report its state to `passage`; returns the answer.

        Raises:
            TooLate: the caller no longer waits for the request.
            NotBegun: the progress could not be saved before sending.
        """

    def close(self) -> None: ...


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


class _Settings:
    """The settings from the standard variables that gRPC and HTTP share."""

    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        def setting(name: str) -> str:
            values = (environ.get(variable, "").strip() for variable in variables(where.signal, name))
            return next(filter(None, values), "")

        self.timeout_s = timeout(environ, where.signal, math.inf)
        asked = headers(environ, where.signal, where.wire)
        for wrong in (*asked.malformed, *asked.unsendable):
            raise ConfigurationError(wrong)
        self.headers = asked.found
        self.compress = setting("COMPRESSION").lower() == "gzip"
        self.insecure = setting("INSECURE").lower()
        self.authority, self.certificate, self.key = (
            setting(name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
        )


def _taken(answer: Accepted) -> Answer:
    return Answer(ACCEPTED, answer.said, answer.rejected)


class _Grpc:
    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        self._grpc = grpc = importlib.import_module("grpc")
        settings = _Settings(where, environ)
        self.timeout_s = settings.timeout_s
        parts = urlsplit(where.url)
        plain = parts.scheme == "http" or (parts.scheme != "https" and settings.insecure == "true")
        target = receiver(where).partition("://")[2].partition("/")[0] if parts.netloc else where.url
        compression = grpc.Compression.Gzip if settings.compress else grpc.Compression.NoCompression
        if plain:
            self._channel = grpc.insecure_channel(target, _CHANNEL, compression)
        else:
            paths = (settings.authority, settings.key, settings.certificate)
            pieces = [files.read_named(Path(path)) if path else None for path in paths]
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(*pieces), _CHANNEL, compression)
        self._metadata = [(name.lower(), value) for name, value in settings.headers.items()]
        self._call = self._channel.stream_unary(
            _METHODS[where.signal],
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_type(where.signal).FromString,
        )

    def send(self, request: Request, passage: Passage) -> Answer:
        trouble: list[Exception] = []
        begun = threading.Event()

        def message() -> Iterator[Any]:
            yield request.message
            # gRPC asks for the next message once it has passed the first to a connection, unless the call ends before.
            begun.wait()
            try:
                passage.enter()
                passage.handed = True
            except (TooLate, NotBegun) as error:
                trouble.append(error)
                call.cancel()

        call = self._call.future(message(), timeout=passage.left(), metadata=self._metadata)
        begun.set()
        try:
            return _taken(accepted(call.result()))
        except self._grpc.FutureCancelledError:
            raise trouble[0] from None
        except self._grpc.RpcError as error:
            code, said = error.code().name, (error.details() or "")[:LONGEST_WORDS]
            if code == "DEADLINE_EXCEEDED" and passage.left() < _NOTHING_S:
                return passage.late()  # our own deadline has passed
            outcome = _CODES.get(code, CLOSED)
            if code == "RESOURCE_EXHAUSTED" and "larger than max" in said:
                outcome = REFUSED
            wait_s = retry_delay(status_details(error)) or 0.0
            # gRPC does not distinguish an answer of the receiver from a broken connection, unless there never was one.
            known = wait_s or said.startswith(_NO_CONNECTION)
            return Answer(outcome, f"{code}: {said}", wait_s=wait_s, perhaps=code in status_codes.BROKEN and not known)

    def close(self) -> None:
        self._channel.close()


class _Http:
    def __init__(self, where: Endpoint, environ: Mapping[str, str]) -> None:
        settings = _Settings(where, environ)
        self.timeout_s = settings.timeout_s
        self._signal = where.signal
        parts = urlsplit(where.url)
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        self._compress = settings.compress
        self._headers = {"content-type": PROTOBUF[0], "user-agent": "otel-goodput"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        self._headers |= {name.lower(): value for name, value in settings.headers.items()}
        if settings.compress:
            self._headers["content-encoding"] = "gzip"
        context = None
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=settings.authority or None)
            if settings.certificate:
                context.load_cert_chain(settings.certificate, settings.key or None)
        self._opener = opener(context)

    def send(self, request: Request, passage: Passage) -> Answer:
        body = request.message.SerializeToString()
        if self._compress:
            body = gzip.compress(body)
        posted = Posted(self._url, body, self._headers, passage)
        try:
            # The socket's timeout must be longer than that of the waiting thread, which reports it better.
            with self._opener.open(posted, timeout=passage.left() + _LONGER_S) as answered:
                return _taken(read(self._signal, answered.status, answered.headers, whole(answered.read)))
        except NotAccepted as error:
            return Answer(CLOSED, str(error), perhaps=error.arrived)
        except TooLong as error:
            return Answer(CLOSED, str(error), perhaps=True)
        except urllib.error.HTTPError as error:
            outcome, words = _STATUSES.get(error.code, CLOSED), f"{error.code} {error.reason}"
            if error.code < 400:
                words = redirection(error.code, error.headers)
            # If the body never ends, the status must still count; otherwise every line of the file would time out.
            passage.known = Answer(CLOSED if outcome == CLOSED else LATER, words)
            with error:
                said = "" if error.fp is None else error.read(LONGEST_WORDS).decode("utf-8", "replace")
                wait_s = _retry_after(error.headers.get("retry-after", ""))
            if said and said.isprintable():  # not a binary protobuf message
                words = f"{words}: {said}"
            return Answer(outcome, words, wait_s=wait_s)
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                return Answer(CLOSED, str(reason))
            return Answer(LATER, str(reason), perhaps=passage.handed)
        except (OSError, http.client.HTTPException) as error:
            return Answer(LATER, str(error) or type(error).__name__, perhaps=passage.handed)

    def close(self) -> None:
        self._opener.close()


def _retry_after(text: str) -> float:
    """Return the seconds to wait by a Retry-After header, which is a number or a date; 0 without one."""
    try:
        return float(text) if text.strip().isdecimal() else max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
    except (ValueError, OverflowError):
        return 0.0
