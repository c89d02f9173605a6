"""The checks before every answer of the server: who may request it, by which host name, with which method.

* Only GET and HEAD: the server changes nothing.
* The Host header must name this server. Otherwise a page elsewhere could have its own name resolve to this machine
  (DNS rebinding), and read them in the browser of a user who may.
* An Origin header must name it too: a page elsewhere has no business here.
* A token is needed: once in the address (``?token=``), after that in a cookie; or in the Authorization header, for
  programs. Without it, every user of this machine could read files that only their owner may read.
* Every answer forbids other pages to embed or read it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

METHODS: Final = ("GET", "HEAD")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Hosts:
    """The host names that requests to a server bound to `bound` may have; `more` are those of a proxy before it.

    If it is bound to all addresses, any literal address is one, too: no foreign name can resolve to it.
    """

    def __init__(self, bound: str, more: Iterable[str] = ()) -> None:
        self._names = LOOPBACK | {bound.lower(), *(name.lower() for name in more)}
        self._any_address = bound in WILDCARDS

    def known(self, header: str) -> bool:
        """Whether the Host `header` is one of them, with whatever port: a tunnel may have another one."""
        host = header.strip().lower()
        if host.startswith("["):
            name, closed, port = host[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                return False
        else:
            name, _, port = host.partition(":")
        if port.lstrip(":") and not port.lstrip(":").isdecimal():
            return False
        name = name.removesuffix(".")
        return bool(name) and (name in self._names or (self._any_address and _literal(name)))


def _literal(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Gate:
    """ASGI middleware with these rules.

    Args:
        app: answers the requests that are allowed.
        hosts: names of this server.
        token: that must be shown; None: none is needed.
        cookie: name of the cookie that keeps it. Cookies do not know ports, so servers on several need several names.

    Attributes:
        requested_at: when the last request came or was still being answered, by the monotonic clock.
        under_way: how many are being answered now.
    """

    def __init__(self, app: App, hosts: Hosts, token: str | None, cookie: str) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._cookie = cookie
        self.requested_at = time.monotonic()
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here: the server closes it
        self.under_way += 1
        try:
            await self._answer(scope, receive, _guarded(send))
        finally:
            self.under_way -= 1
            self.requested_at = time.monotonic()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in METHODS:
            await refuse(
                send, 405, "only GET and HEAD are allowed: this server changes nothing", [(b"allow", b"GET, HEAD")]
            )
            return
        named = [value for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1 or not self._hosts.known(named[0].decode("latin-1")):
            await refuse(send, 421, "this host name is not allowed (see --allow-host)")
            return
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if not all(self._hosts.known(origin.decode("latin-1").partition("://")[2]) for origin in origins):
            await refuse(send, 403, "requests from other sites' pages are not allowed (see --allow-host)")
            return
        if self._token is not None and not await self._shown(scope, send, self._token):
            return
        await self._app(scope, receive, send)

    async def _shown(self, scope: Scope, send: Send, token: str) -> bool:
        """Whether the request shows the token; if not, or if it goes to a cookie first, it has been answered."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            if not _same(given[-1], token):
                await refuse(send, 403, "the token is wrong: open the address that the server printed")
                return False
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # The token leaves the address bar, the history and what is bookmarked. Relative: never another origin, and
            # right behind a proxy that serves this below a path of its own.
            there = "./" + quote(scope["path"].rpartition("/")[2], safe="") + (f"?{rest}" if rest else "")
            kept = f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict"
            await refuse(send, 303, "", [(b"location", there.encode("latin-1")), (b"set-cookie", kept.encode("ascii"))])
            return False
        for name, value in scope["headers"]:
            text = value.decode("latin-1")
            if name == b"cookie" and _same(_cookie(text, self._cookie), token):
                return True
            if name == b"authorization" and _same(text.partition(" ")[2].strip(), token):
                return True
        why = "a token is needed: open the address that the server printed, which ends in ?token="
        await refuse(send, 401, why, [(b"www-authenticate", b"Bearer")])
        return False


def _cookie(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _same(given: str, token: str) -> bool:
    """Whether two texts are equal; the time that this takes does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def _guarded(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: Headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += _ALWAYS
            if b"content-security-policy" not in names:
                headers.append((b"content-security-policy", _POLICY))
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return guarded


async def refuse(send: Send, status: int, why: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with an HTTP `status` and a reason, as JSON."""
    body = json.dumps({"error": why}).encode()
    about = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})
