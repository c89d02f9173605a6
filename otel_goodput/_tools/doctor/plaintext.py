"""Finds credentials that would be sent without TLS to another machine, where others can read them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from otel_goodput._text.redact import HIDDEN, without_credentials
from otel_goodput._tools.doctor.findings import Finding, warning
from otel_goodput.exporters.otlp_variables import GRPC, Endpoint, headers, variables

# Unencrypted protocols of fsspec filesystems.
_PLAIN: Final = frozenset({"http", "ftp", "webdav", "webhdfs"})


def check_endpoint(about: str, one: Endpoint, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Warn if OTLP headers or credentials in the endpoint's URL are sent in plain text."""
    if not _plain(one, environ):
        return
    host = _host(one.url)
    held = "the URL" if _opens(one.url) else ""
    if headers(environ, one.signal, one.wire).values:
        named = next(name for name in variables(one.signal, "HEADERS") if environ.get(name, "").strip())
        held = f"the headers of {named}"
    if held and not _here(host):
        what = f"{held} may contain credentials, which are sent to {host} unencrypted"
        yield warning(about, what, "use https://, or a collector on this machine that adds the credentials")


def check_journal(url: str) -> Iterator[Finding]:
    """Warn if credentials in the journal's URL go in plain text; URLs may be chained (``simplecache::http://…``)."""
    for part in url.split("::"):
        if part.partition("://")[0] in _PLAIN and _opens(part) and not _here(host := _host(part)):
            yield warning(
                "journal", f"the credentials in its URL are sent to {host} unencrypted", "use an encrypted protocol"
            )


def _opens(url: str) -> bool:
    """Whether the URL contains credentials."""
    visible = without_credentials(url if "://" in url else f"//{url}")
    return "***@" in visible or HIDDEN in visible


def _plain(one: Endpoint, environ: Mapping[str, str]) -> bool:
    """Whether the endpoint is used without TLS, decided as OpenTelemetry's exporters do."""
    scheme = one.url.partition("://")[0].lower() if "://" in one.url else ""
    if one.wire != GRPC:
        return scheme == "http"
    insecure = next(filter(None, (environ.get(name, "").strip() for name in variables(one.signal, "INSECURE"))), "")
    return scheme != "https" and (insecure.lower() == "true" if insecure else scheme == "http")


def _host(url: str) -> str:
    """Return the host of a URL; empty if it has none, such as ``unix:``."""
    if url.startswith("unix:"):
        return ""
    with suppress(ValueError):
        parts = urlsplit(url if "://" in url else f"//{url}")
        # dns:///host:port
        return parts.hostname or urlsplit(f"//{parts.path.strip('/')}").hostname or ""
    return ""


def _here(host: str) -> bool:
    if host in ("", "localhost") or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
