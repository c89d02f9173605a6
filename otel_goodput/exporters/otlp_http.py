"""Sessions for OpenTelemetry's exporters over HTTP that take for a success only what OTLP calls one.

OpenTelemetry's exporters count every status below 400 as a success, do not read the answer, and let its body be of any
length. So the answers are judged here, in the transport that these exporters are given. What is no success is reported
once, with what to do, instead of at each export.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from otel_goodput._runtime.answers import TooLong, bound, whole
from otel_goodput._runtime.guard import report_once
from otel_goodput.exporters.otlp_answers import NotAccepted, Rejections, read
from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES, HTTP, Endpoint
from otel_goodput.exporters.spec import ExporterUnavailable

if TYPE_CHECKING:
    import requests
    from requests.adapters import BaseAdapter

# OpenTelemetry's variables for sessions that sign what they send, and where such sessions are registered.
_PROVIDER_VARIABLES: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}_CREDENTIAL_PROVIDER",
)
_PROVIDERS: Final = "opentelemetry_otlp_credential_provider"
_REPORTED: Final = "reported_by_otel_goodput"  # an attribute of errors
_LOGGERS: Final = tuple(f"{EXPORTER_MODULES[HTTP]}.{name}" for name in ("trace_exporter", "metric_exporter"))


def _failure(what: str, reported: bool) -> Exception:
    """Return an error that OpenTelemetry's exporters take for a failed export, and do not retry at once."""
    from requests.exceptions import RequestException

    error = RequestException(what)
    setattr(error, _REPORTED, reported)
    return error


def _unreported(record: logging.LogRecord) -> bool:
    """Whether OpenTelemetry may log this: not an answer that we have reported, again at each export."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(getattr(one, _REPORTED, False) for one in arguments)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class _Checked:
    """Passes requests on to `adapter`, and judges the answers of the receiver at `place`."""

    def __init__(self, adapter: BaseAdapter, place: Endpoint, rejections: Rejections) -> None:
        self._adapter = adapter
        self._place = place
        self._rejections = rejections

    def send(self, request: requests.PreparedRequest, *args: Any, **settings: Any) -> requests.Response:
        request.headers["Accept-Encoding"] = "identity"  # an answer has some ten bytes
        try:
            # A session passes `stream` by name.
            response = self._adapter.send(request, *args, **{**settings, "stream": True})
            body = _body(response)
            if response.status_code < 400:
                self._rejections.note(read(self._place.signal, response.status_code, response.headers, body))
        except Exception as error:
            judged = next((one for one in causes(error) if isinstance(one, (NotAccepted, TooLong))), None)
            if judged is None:
                raise
            what = str(judged)
            where = f"{self._place.signal} to {self._place}"
            report_once(f"answer {where}", "%s: %s; %s", where, what, self._place.advice(what))
            raise _failure(what, reported=True) from error
        response.raw = io.BytesIO(body)  # what reads it further finds only this much
        return response

    def close(self) -> None:
        self._adapter.close()


def _body(response: requests.Response) -> bytes:
    """Return the body of an answer, as it was sent. That of a failure is not needed: empty if it cannot be read.

    Raises:
        RequestException: it cannot be read. What was sent has arrived, so it is not sent again at once.
    """
    try:
        return whole(partial(response.raw.read, decode_content=False))
    except Exception as error:
        response.close()
        if response.status_code >= 400:
            return b""
        raise _failure(f"its answer cannot be read: {error}", reported=False) from error


def session(environ: Mapping[str, str], place: Endpoint, rejections: Rejections) -> requests.Session:
    """Return the session that OpenTelemetry would use, with checks; `rejections` counts what the receiver rejects.

    Raises:
        ExporterUnavailable: OpenTelemetry's variable for credentials names a provider that is not installed.
    """
    common, own = (environ.get(name.format(place.signal.upper()), "") for name in _PROVIDER_VARIABLES)
    import requests

    made = _provided(common or own) if common or own else requests.Session()
    bound(made)
    for prefix, adapter in list(made.adapters.items()):
        made.mount(prefix, _Checked(adapter, place, rejections))  # type: ignore[arg-type]  # it has what a session uses
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_unreported)  # adding the same filter again has no effect
    return made


def _provided(name: str) -> requests.Session:
    """Return the session that an installed package provides under `name`. OpenTelemetry does not pass it on."""
    import requests

    for provider in entry_points(group=_PROVIDERS, name=name):
        made = provider.load()()
        if isinstance(made, requests.Session):
            return made
        raise ExporterUnavailable("otlp", f"the credential provider {name!r} does not make a requests.Session")
    raise ExporterUnavailable("otlp", f"the credential provider {name!r} is not installed")
