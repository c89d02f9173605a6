"""Checks stage by stage whether a Google service can be reached from here, and compares its clock with ours."""

from __future__ import annotations

import http.client
import os
import pkgutil
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from otel_goodput._runtime.answers import BoundedResponse
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT
from otel_goodput.errors import GoodputError
from otel_goodput.exporters.registry import importable

ROOTS: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_BUNDLED: Final = ("grpc", "_cython/_credentials/roots.pem")
_PROXIES: Final = ("grpc", "https", "http")  # gRPC reads the variables NAME_proxy in this order

_TUNNEL: Final = "Tunnel connection failed: "  # http.client's message when a proxy refuses

_ADDRESS: Final = f"set {OTEL_GOODPUT_GCP_ENDPOINT.name} to host:port or http://host:port"
_NAMES: Final = "check the DNS resolver of this machine and the spelling of the name"
_FIREWALL: Final = (
    "check that firewall and routes allow the connection (without an external address: Private Google Access)"
)
_PROXY: Final = "check https_proxy, and list in no_proxy the hosts to reach without it"
_AUTHORITY: Final = f"if a proxy inspects TLS traffic, put its CA certificate into {ROOTS}"
_PLAINTEXT: Final = f"write http:// in {OTEL_GOODPUT_GCP_ENDPOINT.name} if that is an emulator"


class Unreachable(GoodputError):
    """A server cannot be reached; `do` says what may help."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(why)
        self.do = do


class Reached(NamedTuple):
    """A successful connection: seconds of each stage, and seconds that our clock is ahead (None: unknown)."""

    stages: Mapping[str, float]
    ahead_s: float | None

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in self.stages.items())


def reach(target: str, *, encrypted: bool, timeout_s: float) -> Reached:
    """Connect to a server as gRPC would: through the proxy, if there is one, and with gRPC's trusted certificates.

    Args:
        target: ``host:port``.
        encrypted: whether to use TLS; if so, the server's clock is read too.
        timeout_s: seconds that each stage may take, except for DNS, which has no time limit.

    Raises:
        Unreachable: the server cannot be reached.
    """
    host, port = _address(target)
    proxy = _proxy(host)
    peer = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
    via = "" if proxy is None else "the proxy "
    connection = http.client.HTTPConnection(*peer, timeout=timeout_s)
    connection.response_class = BoundedResponse
    if proxy is not None:
        connection.set_tunnel(host, port, _authorization(proxy))
    stages: dict[str, float] = {}
    ahead_s = None
    try:
        with _failing(f"{via}{peer[0]}:{peer[1]}", timeout_s, _FIREWALL if proxy is None else _PROXY):
            with _timed(stages, "DNS"):
                socket.getaddrinfo(*peer, type=socket.SOCK_STREAM)
            with _timed(stages, "TCP" if proxy is None else f"proxy {peer[0]}:{peer[1]}"):
                connection.connect()
        if encrypted:
            with _failing(f"{host}:{port}", timeout_s, _FIREWALL), _timed(stages, "TLS"):
                connection.sock = _context().wrap_socket(connection.sock, server_hostname=host)
            ahead_s = ahead(connection, "/", host)
    finally:
        connection.close()
    return Reached(stages, ahead_s)


def ahead(
    connection: http.client.HTTPConnection, path: str, host: str, headers: Mapping[str, str] | None = None
) -> float | None:
    """Return the seconds that this machine's clock is ahead of an HTTP server's; None if the server does not tell."""
    try:
        began = time.time()
        connection.request("GET", path, headers={"Host": host, **(headers or {})})
        there = parsedate_to_datetime(connection.getresponse().headers["Date"]).timestamp()
    except (OSError, http.client.HTTPException, TypeError, ValueError, OverflowError):
        return None
    # The header holds whole seconds, truncated, and was written while the request was under way.
    return (began + time.time()) / 2 - (there + 0.5)


def _address(target: str) -> tuple[str, int]:
    with suppress(ValueError):  # such as UnicodeError for an invalid host name
        parts = urlsplit(f"//{target}")
        if parts.hostname and parts.netloc == target and parts.hostname.encode("idna"):
            return parts.hostname, parts.port or 443
    raise Unreachable(f"{target!r} is not an address", _ADDRESS)


def _proxy(host: str) -> SplitResult | None:
    """Return the URL of the proxy that gRPC would use for `host`, if any. Raises Unreachable if that URL is wrong."""
    proxies = getproxies()
    url = next((proxies[name] for name in _PROXIES if name in proxies), "")
    if not url or proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    with suppress(ValueError):
        if parts.hostname and parts.port != 0:
            return parts
    raise Unreachable("the URL of the proxy has no valid host and port", _PROXY)


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _context() -> ssl.SSLContext:
    """Return a context that trusts gRPC's certificate authorities, which are not the system's. Raises Unreachable."""
    given = os.environ.get(ROOTS) or None
    bundled = None if given or not importable(_BUNDLED[0]) else pkgutil.get_data(*_BUNDLED)
    try:
        return ssl.create_default_context(cafile=given, cadata=bundled and bundled.decode("ascii"))
    except OSError as error:
        why = f"the certificates of {ROOTS} cannot be read: {error.strerror or error}"
        raise Unreachable(why, f"correct {ROOTS} or unset it") from None


@contextmanager
def _timed(stages: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    stages[name] = time.monotonic() - began


@contextmanager
def _failing(where: str, timeout_s: float, do: str) -> Iterator[None]:
    """Raise socket, TLS and HTTP errors as :class:`Unreachable`, with a message for people."""
    try:
        yield
    except socket.gaierror as error:
        raise Unreachable(f"the name of {where} cannot be resolved ({error.strerror})", _NAMES) from None
    except ConnectionRefusedError:
        raise Unreachable(f"nothing listens at {where}", do) from None
    except TimeoutError:
        raise Unreachable(f"{where} does not answer within {timeout_s:g} s", do) from None
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(f"the certificate of {where} is not trusted: {error.verify_message}", _AUTHORITY) from None
    except ssl.SSLError as error:
        raise Unreachable(f"{where} does not speak TLS ({error.reason or error})", _PLAINTEXT) from None
    except http.client.HTTPException as error:
        raise Unreachable(f"{where} does not answer with HTTP ({type(error).__name__})", do) from None
    except OSError as error:
        if str(error).startswith(_TUNNEL):
            why = f"{where} refuses to connect to it ({str(error).removeprefix(_TUNNEL)})"
            raise Unreachable(why, do) from None
        raise Unreachable(f"{where} cannot be reached ({error.strerror or error})", do) from None
