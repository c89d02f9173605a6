"""Make text from outside safe to print, log and send: without credentials and control characters."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "(hidden)"

_REST: Final = re.compile(r"://(\S+)")
_END_OF_AUTHORITY: Final = re.compile(r"[/?#]")
_QUERY: Final = re.compile(r"(://\S*?)\?\S*")
# user:password@host without a scheme, as in gRPC addresses and proxies. Not matched: e-mail addresses (no colon), image
# digests (a slash before the @), IAM members (`serviceAccount:NAME@…`).
_USER_INFO: Final = re.compile(
    r"""(?<![\w/:@.*-])(?!serviceAccount:)[^\s/:@"'<>()\[\]{},;=]{1,256}:(?!//|:)[^\s@]{1,256}@(?=[\w\[])"""
)
# Names of secrets. The first are too general to be matched outside a URL's query; the others are matched anywhere.
_PARAMETER: Final = re.compile(r"""([?&;#](?:sig|key|auth|code|pass|pwd|jwt)=)[^&;#\s"'<>]+""", re.IGNORECASE)
_NAMED: Final = re.compile(
    r"""((?<![\w.-])[\w.-]{0,64}(?:signature|credential|token|secret|passwo?r?d|api[-_]?key|(?:access|account|shared)[-_]?key|"""
    r"""accesskeyid|googleaccessid)=)(?!\(hidden\))[^&;#,\s"'<>]+""",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(r"((?:proxy-)?authorization['\"]?\s*[:=]\s*)(?!\(hidden\))[^\r\n,;]+", re.IGNORECASE)
_SCHEME: Final = re.compile(r"\b(bearer)((?:\s|%20|\+)+)(?!tokens?\b)[\w.~+/=%-]{6,}", re.IGNORECASE)
_BASIC: Final = re.compile(r"\b([Bb]asic|BASIC)((?:\s|%20)+)(?=[\w+/]*[0-9A-Z=])[\w+/]{8,}={0,2}(?![\w+/])")
# Tokens recognized by their form: JSON web tokens, and Google's access tokens.
_TOKEN: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?|\bya29\.[\w.-]+")
# Shorter parts of a header (in characters) are not secret, and replacing them would garble every message.
_LEAST: Final = 4


def printable(text: str) -> str:
    """Replace each unprintable character, line breaks included, by ``?``: a job's name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def encodable(text: str) -> str:
    """Replace lone surrogates by ``?``: UTF-8 cannot encode them. ``os.fsdecode`` makes them of invalid bytes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def without_credentials(text: str) -> str:
    """Hide user names and passwords in addresses, signatures and tokens in queries, and credentials in headers."""
    text = _USER_INFO.sub("***@", _REST.sub(_without, text))
    for pattern in (_PARAMETER, _NAMED, _HEADER):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    for pattern in (_SCHEME, _BASIC):
        text = pattern.sub(rf"\1\2{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def shown(text: str) -> str:
    """Return `text` for a person to read: without credentials, and as one printable line."""
    return printable(without_credentials(text))


def redact(text: str, hidden: Collection[str] = ()) -> str:
    """Do as :func:`shown` does, and also hide the texts in `hidden` and the query of every URL."""
    for one in hidden:
        text = text.replace(one, HIDDEN)
    return printable(_QUERY.sub(r"\1?***", without_credentials(text)))


class Redacted(logging.Filter):
    """A filter that hides credentials and passes every record; for a logger, or a handler of other loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = shown(record.getMessage()), ()
        except Exception:
            return True  # the message does not fit its arguments: the handler reports that
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Handlers use this text instead of formatting the traceback themselves.
            lines = logging.Formatter().formatException(record.exc_info).split("\n")
            record.exc_text = "\n".join(map(shown, lines))
        return True


REDACTED: Final = Redacted()


def redacting_logger(name: str) -> logging.Logger:
    """Return the logger `name`, whose records contain neither credentials nor control characters."""
    logger = logging.getLogger(name)
    logger.addFilter(REDACTED)  # adding the same filter again has no effect
    return logger


def secret(name: str) -> bool:
    """Return whether the value of the environment variable `name` must not be shown."""
    return name.startswith("OTEL_EXPORTER_") and name.endswith("HEADERS")


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the texts in `environ` that no message may contain, longest first."""
    found = set()
    for name, value in environ.items():
        if not secret(name):
            continue
        for item in (value, *value.split(",")):
            content = item.partition("=" if "=" in item else ":")[2].strip()
            found |= {item.strip(), content, unquote(content), *content.split(), *unquote(content).split()}
    return sorted((text for text in found if len(text) >= _LEAST), key=len, reverse=True)


def _without(match: re.Match[str]) -> str:
    rest = match[1]
    before, at, after = rest.rpartition("@")
    # An unquoted / ? or # in a password ends the authority early. So a colon before the last @ is enough to hide it.
    if at and (":" in before or not _END_OF_AUTHORITY.search(before)):
        rest = f"***@{after}"
    return "://" + rest
