"""The headers that OTEL_EXPORTER_OTLP_HEADERS asks for, read before an exporter is opened.

OpenTelemetry leaves out what it cannot read, and logs it with its value; gRPC refuses every export for a header that it
cannot send. What is wrong is told here, by the variable and its place in it: nothing of an item is shown, for in one
that is malformed any part may be the secret.
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

# What OpenTelemetry reads as a header.
_HEADER: Final = re.compile(r"""[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*""")
# What names and values may be made of: of HTTP's fields, and of gRPC's metadata that is text.
_SENDABLE: Final = {
    GRPC: (re.compile(r"(?!grpc-)(?!.*-bin$)[0-9a-z_.-]+"), re.compile(r"[ -~]*")),
    HTTP: (re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t -~\xa0-\xff]*")),
}
_PARSER: Final = "opentelemetry.util.re"


class Headers(NamedTuple):
    """The headers of a signal.

    Attributes:
        found: by name, in small letters.
        malformed: what is said of the items that are none; OpenTelemetry leaves them out.
        unsendable: what is said of those that the wire does not carry.
    """

    found: dict[str, str]
    malformed: tuple[str, ...]
    unsendable: tuple[str, ...]


def headers(environ: Mapping[str, str], signal: str, wire: str) -> Headers:
    """Of `traces` or `metrics`, by the standard variables: the signal's own one, else the one for all."""
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
    """What OpenTelemetry logs of headers in this thread meanwhile is not said: it has their values in it."""
    mine = threading.get_ident()

    def others(_: logging.LogRecord) -> bool:
        return threading.get_ident() != mine

    logger = logging.getLogger(_PARSER)
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)
