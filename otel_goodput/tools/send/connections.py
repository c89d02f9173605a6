"""HTTP connections that notify a :class:`Passage` when they are established and when a request is fully written."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from functools import partial
from typing import Any

from otel_goodput.answers import BoundedResponse
from otel_goodput.tools.send.exchange import Passage


class Posted(urllib.request.Request):
    """A POST request with its passage."""

    def __init__(self, url: str, body: bytes, headers: dict[str, str], passage: Passage) -> None:
        super().__init__(url, body, headers, method="POST")
        self.passage = passage


class _Connection(http.client.HTTPConnection):
    response_class = BoundedResponse

    def __init__(self, passage: Passage, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._passage = passage

    def connect(self) -> None:
        super().connect()
        self._passage.enter(self.sock)

    def getresponse(self) -> http.client.HTTPResponse:
        self._passage.handed = True
        return super().getresponse()


class _Encrypted(_Connection, http.client.HTTPSConnection):
    """The same over TLS; it is established after the TLS handshake."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the headers, including credentials, to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        assert isinstance(request, Posted)
        return self.do_open(partial(_Connection, request.passage), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        assert isinstance(request, Posted)
        connection = partial(_Encrypted, request.passage)
        return self.do_open(connection, request, context=self._tls)


def opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Return an opener for `Posted` requests that uses the environment's proxies, and `context` for TLS."""
    return urllib.request.build_opener(_NoRedirect(), _Http(), *([_Https(context)] if context else []))
