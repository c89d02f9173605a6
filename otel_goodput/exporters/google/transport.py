"""What Google's library asks the metadata server with: not through proxies, as its own does, and within bounds."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from otel_goodput.answers import BoundedResponse, whole

TIMEOUT_S: Final = 30.0  # in a call without a timeout


class MetadataAnswer(NamedTuple):
    """What ``google.auth.transport.Response`` has; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class MetadataRequest:
    """Asks as ``google.auth.transport.Request`` does; `error` is the library's TransportError, which it raises."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> MetadataAnswer:
        parts = urlsplit(url)
        if parts.scheme != "http":
            raise self._error(f"the metadata server is asked over http, not over {parts.scheme}")
        connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S if timeout is None else timeout)
        connection.response_class = BoundedResponse
        try:
            connection.request(method, parts._replace(scheme="", netloc="").geturl(), body, headers or {})
            answer = connection.getresponse()
            given = {name.lower(): value for name, value in answer.getheaders()}
            return MetadataAnswer(answer.status, given, whole(answer.read))
        except (http.client.HTTPException, OSError) as error:
            raise self._error(error) from error
        finally:
            connection.close()
