"""Make text from outside safe to print, log and send: without credentials and control characters."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from otel_goodput._text.secret_patterns import named_values, names_secret, option, without_issued

HIDDEN: Final = "(hidden)"

_REST: Final = re.compile(r"://(\S+)")
_END_OF_AUTHORITY: Final = re.compile(r"[/?#]")
_QUERY: Final = re.compile(r"(://\S*?)\?\S*")
# user:password@host without a scheme, as in gRPC addresses and proxies. Not matched: e-mail addresses (no colon), image
# digests (a slash before the @), IAM members (`serviceAccount:NAME@…`).
_USER_INFO: Final = re.compile(
    r"""(?<![\w/:@.*-])(?!serviceAccount:)[^\s/:@"'<>()\[\]{},;=]{1,256}:(?!//|:)[^\s@]{1,256}@(?=[\w\[])"""
)
# What is before a secret: a literal that is in it, in lower case, and a pattern of what stays and what is hidden.
_AFTER: Final = (
    # Parameters of a URL that are secret there, and too general elsewhere.
    ("=", re.compile(r"""([?&;#](?:sig|key|auth|code|pass|pwd|jwt)=)[^&;#\s"'<>]+""", re.IGNORECASE)),
    (
        "authorization",
        re.compile(r"((?:proxy-)?authorization['\"]?\s*[:=]\s*)(?!\s|\(hidden\))[^\r\n,;]+", re.IGNORECASE),
    ),
    ("cookie", re.compile(r"(\b(?:set-)?cookie['\"]?:\s*)(?!\s|\(hidden\))[^\r\n]+", re.IGNORECASE)),
    ("bearer", re.compile(r"\b(bearer(?:\s|%20|\+)+)(?!tokens?\b)[\w.~+/=%-]{6,}", re.IGNORECASE)),
    ("basic", re.compile(r"\b((?:[Bb]asic|BASIC)(?:\s|%20)+)(?=[\w+/]*[0-9A-Z=])[\w+/]{8,}={0,2}(?![\w+/])")),
)
# Shorter parts of a header (in characters) are not secret, and replacing them would garble every message.
_LEAST: Final = 4
# Nor are shorter values of variables; and a path is not, such as that of a file with credentials.
_LEAST_NAMED: Final = 8
_PATH: Final = re.compile(r"[~.]{0,2}/|[A-Za-z]:[\\/]")
_SHORT: Final = 256  # characters of a text that is remembered: the same ones come again and again


def printable(text: str) -> str:
    """Replace each unprintable character, line breaks included, by ``?``: a job's name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def encodable(text: str) -> str:
    """Replace lone surrogates by ``?``: UTF-8 cannot encode them. ``os.fsdecode`` makes them of invalid bytes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def without_credentials(text: str) -> str:
    """Hide credentials: in addresses, queries and headers, by their form, and by the name or option before them."""
    return _remembered(text) if len(text) <= _SHORT else _without_credentials(text)


def _without_credentials(text: str) -> str:
    if "://" in text:
        text = _REST.sub(_without_user, text)
    if "@" in text:
        text = _USER_INFO.sub("***@", text)
    lower = text.lower()
    for literal, pattern in _AFTER:
        if literal in lower:
            text = pattern.sub(rf"\1{HIDDEN}", text)
    text = without_issued(text, HIDDEN)
    pieces: list[str] = []
    reached = 0
    for begin, end in named_values(text):
        pieces += text[reached:begin], HIDDEN
        reached = end
    return "".join(pieces) + text[reached:]


_remembered = lru_cache(maxsize=4096)(_without_credentials)


def without(hidden: Collection[str], text: str) -> str:
    """Hide credentials, and the texts in `hidden` wherever they stand."""
    for one in hidden:
        text = text.replace(one, HIDDEN)
    return without_credentials(text)


def without_secrets(name: str, value: Any, hidden: Collection[str] = ()) -> Any:
    """Return the value of an attribute without what is secret in it, which is all of it if `name` says so.

    In a list of texts, the one after an option such as ``--password`` is secret.
    """
    if names_secret(name, value) and value not in (None, ""):
        return HIDDEN
    if isinstance(value, str):
        return without(hidden, value)
    if isinstance(value, (list, tuple)):
        return [HIDDEN if _opened(value, at) else without_secrets("", one, hidden) for at, one in enumerate(value)]
    if isinstance(value, Mapping):
        return {without(hidden, str(key)): without_secrets(str(key), one, hidden) for key, one in value.items()}
    return value


def _opened(words: Sequence[Any], at: int) -> bool:
    """Whether a word of a command is the value of a secret option before it."""
    before = words[at - 1] if at else None
    return isinstance(before, str) and isinstance(words[at], str) and option(before)


def shown(text: str) -> str:
    """Return `text` for a person to read: without credentials, and as one printable line."""
    return printable(without_credentials(text))


def redact(text: str, hidden: Collection[str] = ()) -> str:
    """Do as :func:`shown` does, and also hide the texts in `hidden` and the query of every URL."""
    return printable(_QUERY.sub(r"\1?***", without(hidden, text)))


class Redacted(logging.Filter):
    """A filter that hides credentials and passes every record; for a logger, or a handler of other loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = shown(record.getMessage()), ()
        except Exception:
            return True  # the message does not fit its arguments: the handler reports that
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Handlers use this text instead of formatting the traceback themselves.
            text = without_credentials(logging.Formatter().formatException(record.exc_info))
            record.exc_text = "\n".join(map(printable, text.split("\n")))
        return True


REDACTED: Final = Redacted()


def redacting_logger(name: str) -> logging.Logger:
    """Return the logger `name`, whose records contain neither credentials nor control characters."""
    logger = logging.getLogger(name)
    logger.addFilter(REDACTED)  # adding the same filter again has no effect
    return logger


def redact_loggers(package: str) -> None:
    """Do as :func:`redacting_logger` does with the loggers that the imported modules of `package` have."""
    for name in tuple(logging.root.manager.loggerDict):  # not inherited: a filter is only for records of its own logger
        if f"{name}.".startswith(f"{package}."):
            redacting_logger(name)


def secret(name: str) -> bool:
    """Return whether the value of the environment variable `name` must not be shown."""
    return name.startswith("OTEL_EXPORTER_") and name.endswith("HEADERS")


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the texts in `environ` that no message may contain, longest first.

    They are those of OTLP's headers, and the values of variables whose names say so, such as HF_TOKEN: a key without a
    form of its own is known by nothing else.
    """
    hidden = set()
    for name, value in environ.items():
        if secret(name):
            for item in (value, *value.split(",")):
                content = item.partition("=" if "=" in item else ":")[2].strip()
                hidden |= {item.strip(), content, unquote(content), *content.split(), *unquote(content).split()}
        elif len(value) >= _LEAST_NAMED and names_secret(name, _typed(value)) and not _PATH.match(value):
            hidden.add(value)
    return sorted((text for text in hidden if len(text) >= _LEAST), key=len, reverse=True)


def _typed(value: str) -> str | int:
    return int(value[:_SHORT]) if value.isdecimal() else value


def _without_user(match: re.Match[str]) -> str:
    rest = match[1]
    before, at, after = rest.rpartition("@")
    # An unquoted / ? or # in a password ends the authority early. So a colon before the last @ is enough to hide it.
    if at and (":" in before or not _END_OF_AUTHORITY.search(before)):
        rest = f"***@{after}"
    return "://" + rest
