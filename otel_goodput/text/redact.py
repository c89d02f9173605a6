"""Text from outside, made fit for a screen, a log, a message or a wire: no credentials, no letters that steer."""

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
# user:password@host, as gRPC's addresses and proxies have it. An address of e-mail has no colon, an image's digest a /.
# `serviceAccount:` is how IAM calls a member.
_USER_INFO: Final = re.compile(
    r"""(?<![\w/:@.*-])(?!serviceAccount:)[^\s/:@"'<>()\[\]{},;=]{1,256}:(?!//|:)[^\s@]{1,256}@(?=[\w\[])"""
)
# What signs or opens: as a parameter of a query by names that say nothing elsewhere, and by those that always do.
_PARAMETER: Final = re.compile(r"""([?&;#](?:sig|key|auth|code|pass|pwd|jwt)=)[^&;#\s"'<>]+""", re.IGNORECASE)
_NAMED: Final = re.compile(
    r"""((?<![\w.-])[\w.-]{0,64}(?:signature|credential|token|secret|passwo?r?d|api[-_]?key|(?:access|account|shared)[-_]?key|"""
    r"""accesskeyid|googleaccessid)=)(?!\(hidden\))[^&;#,\s"'<>]+""",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(r"((?:proxy-)?authorization['\"]?\s*[:=]\s*)(?!\(hidden\))[^\r\n,;]+", re.IGNORECASE)
_SCHEME: Final = re.compile(r"\b(bearer)((?:\s|%20|\+)+)(?!tokens?\b)[\w.~+/=%-]{6,}", re.IGNORECASE)
_BASIC: Final = re.compile(r"\b([Bb]asic|BASIC)((?:\s|%20)+)(?=[\w+/]*[0-9A-Z=])[\w+/]{8,}={0,2}(?![\w+/])")
# Tokens that are known by their own look: JSON's of the web, and Google's.
_TOKEN: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?|\bya29\.[\w.-]+")
# Shorter pieces of a header are no secret, and replacing them would spoil every message.
_LEAST: Final = 4


def printable(text: str) -> str:
    """One line without control characters: a job's name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def encodable(text: str) -> str:
    """With ``?`` for what no encoding has: lone surrogates, of which ``os.fsdecode`` makes bytes that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def without_credentials(text: str) -> str:
    """Without user names and passwords of addresses, signatures and tokens of queries, and what headers prove with."""
    text = _USER_INFO.sub("***@", _REST.sub(_without, text))
    for pattern in (_PARAMETER, _NAMED, _HEADER):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    for pattern in (_SCHEME, _BASIC):
        text = pattern.sub(rf"\1\2{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def shown(text: str) -> str:
    """For a person to read: without credentials, and as one printable line."""
    return printable(without_credentials(text))


def redact(text: str, hidden: Collection[str] = ()) -> str:
    """The same, also without `hidden`, and with no query of any URL at all."""
    for one in hidden:
        text = text.replace(one, HIDDEN)
    return printable(_QUERY.sub(r"\1?***", without_credentials(text)))


class Redacted(logging.Filter):
    """Lets every record pass, as what may be shown: of a logger, or of a handler for what others log there."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = shown(record.getMessage()), ()
        except Exception:
            return True  # a message that does not fit its arguments is told by who handles it
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Handlers take this instead of what they would make of the error.
            lines = logging.Formatter().formatException(record.exc_info).split("\n")
            record.exc_text = "\n".join(map(shown, lines))
        return True


REDACTED: Final = Redacted()


def redacting_logger(name: str) -> logging.Logger:
    """The logger of this name, whose records tell no credentials and steer no terminal."""
    logger = logging.getLogger(name)
    logger.addFilter(REDACTED)  # once, however often it is asked for
    return logger


def secret(name: str) -> bool:
    """Whether the value of the environment variable `name` is never shown."""
    return name.startswith("OTEL_EXPORTER_") and name.endswith("HEADERS")


def secrets(environ: Mapping[str, str]) -> list[str]:
    """The texts of `environ` that no message may hold, longest first."""
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
    # An unquoted / ? or # in a password ends the authority early, so a colon before the last @ is reason enough.
    if at and (":" in before or not _END_OF_AUTHORITY.search(before)):
        rest = f"***@{after}"
    return "://" + rest
