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
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS: Final = ("GET", "HEAD")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-store",
}  # of every answer that has no others


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
        if self._any_address:
            with suppress(ValueError):
                ipaddress.ip_address(name)
                return True
        return bool(name) and name in self._names


class Gate:
    """ASGI middleware with these rules, before an `app` that answers the requests that are allowed.

    A `token` must be shown, unless it is None. A `cookie` of this name keeps it; cookies do not know ports, so servers
    on several need several names.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, token: str | None, cookie: str) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._cookie = cookie
        self.requested_at = time.monotonic()  # when the last request came or was still being answered
        self.under_way = 0  # how many are being answered now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here: the server closes it
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": list(message.get("headers", ()))}
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self.under_way += 1
        try:
            refusal = self._refusal(Request(scope))
            await (self._app if refusal is None else refusal)(scope, receive, guarded)
        finally:
            self.under_way -= 1
            self.requested_at = time.monotonic()

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not allowed; None if it is."""
        if request.method not in METHODS:
            why = "only GET and HEAD are allowed: this server changes nothing"
            return refused(405, why, {"allow": ", ".join(METHODS)})
        named = request.headers.getlist("host")
        if len(named) != 1 or not self._hosts.known(named[0]):
            return refused(421, "this host name is not allowed (see --allow-host)")
        if not all(self._hosts.known(origin.partition("://")[2]) for origin in request.headers.getlist("origin")):
            return refused(403, "requests from other sites' pages are not allowed (see --allow-host)")
        return None if self._token is None else self._without_token(request, self._token)

    def _without_token(self, request: Request, token: str) -> Response | None:
        """Return the answer to a request that does not show the token, or whose token goes to a cookie first."""
        from starlette.responses import RedirectResponse

        given = request.query_params.getlist("token")
        if given:
            if not _same(given[-1], token):
                return refused(403, "the token is wrong: open the address that the server printed")
            rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
            # The token leaves the address bar, the history and what is bookmarked. Relative: never another origin, and
            # right behind a proxy that serves this below a path of its own.
            there = "./" + quote(request.scope["path"].rpartition("/")[2], safe="") + (f"?{rest}" if rest else "")
            kept = f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict"
            return RedirectResponse(there, 303, {"set-cookie": kept})
        bearer = request.headers.get("authorization", "").partition(" ")[2].strip()
        if any(_same(shown, token) for shown in (request.cookies.get(self._cookie, ""), bearer)):
            return None
        why = "a token is needed: open the address that the server printed, which ends in ?token="
        return refused(401, why, {"www-authenticate": "Bearer"})


def _same(given: str, token: str) -> bool:
    """Whether two texts are equal; the time that this takes does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": why}, status, headers)
