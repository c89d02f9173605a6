"""Check the headers in OTEL_EXPORTER_OTLP_HEADERS before an exporter is opened.

OpenTelemetry drops items that it cannot parse and logs them with their values; gRPC fails every export if it cannot
send a header. So such items are reported here, by variable and position only: any part of a malformed item may be the
secret.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from opentelemetry.util.re import parse_env_headers

from otel_goodput.exporters.otlp_variables import GRPC, HTTP, variables

# An item that OpenTelemetry parses as a header.
_HEADER: Final = re.compile(r"""[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*""")
# Valid names and values: of gRPC's text metadata, and of HTTP fields.
_SENDABLE: Final = {
    GRPC: (re.compile(r"(?!grpc-)(?!.*-bin$)[0-9a-z_.-]+"), re.compile(r"[ -~]*")),
    HTTP: (re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t -~\xa0-\xff]*")),
}
_PARSER: Final = "opentelemetry.util.re"


class Headers(NamedTuple):
    """The headers of a signal.

    Attributes:
        found: values by name; names are in lower case.
        malformed: messages about items that are not headers; OpenTelemetry drops them.
        unsendable: messages about headers that the protocol cannot carry.
    """

    found: dict[str, str]
    malformed: tuple[str, ...]
    unsendable: tuple[str, ...]


def headers(environ: Mapping[str, str], signal: str, wire: str) -> Headers:
    """Return the headers of `signal` (`traces` or `metrics`) from its own standard variable, else the common one."""
    variable, text = next(
        ((name, value) for name in variables(signal, "HEADERS") if (value := environ.get(name, "").strip())), ("", "")
    )
    found: dict[str, str] = {}
    malformed, unsendable = [], []
    names, values = _SENDABLE[wire]
    for place, item in enumerate(map(str.strip, text.split(",")), 1):
        if not item:
            continue
        if not _HEADER.fullmatch(item):
            instead = ", not NAME: VALUE" if ":" in item.partition("=")[0] else ""
            malformed.append(f"item {place} of {variable} is not a header: write NAME=VALUE{instead}")
            continue
        parsed = parse_env_headers(item, liberal=True)
        if any(names.fullmatch(name) and values.fullmatch(value) for name, value in parsed.items()):
            found |= parsed
        else:
            unsendable.append(
                f"item {place} of {variable} cannot be sent over {wire}: it contains characters that are not allowed"
            )
    return Headers(found, tuple(malformed), tuple(unsendable))


@contextmanager
def unsaid() -> Iterator[None]:
    """Suppress what OpenTelemetry logs about headers in this thread: it contains their values."""
    mine = threading.get_ident()

    def others(_: logging.LogRecord) -> bool:
        return threading.get_ident() != mine

    logger = logging.getLogger(_PARSER)
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)
