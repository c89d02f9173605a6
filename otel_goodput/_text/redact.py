"""Make text from outside safe to print, log and send: without credentials and control characters.

Secrets are known by their form, by what they are called, and by the option of a command before them. The forms are
those that the issuers publish, as collected by gitleaks (``config/gitleaks.toml``), detect-secrets
(``detect_secrets/plugins``) and GitHub's secret scanning. A form without a distinctive beginning, such as forty
hexadecimal digits, is no form: it is also that of a commit. Such a secret is only known by its name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote


class Form(NamedTuple):
    """How the secrets of an issuer look."""

    issuer: str
    literals: tuple[str, ...]  # of which one is in each of them
    pattern: str


FORMS: Final = (
    Form("PEM", ("PRIVATE KEY-----",),
         r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    Form("JSON web token", ("eyJ",), r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"),
    Form("Hugging Face", ("hf_", "api_org_"), r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    Form("GitHub", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    Form("GitHub", ("github_pat_",), r"\bgithub_pat_\w{20,}"),
    Form("GitLab", ("gl",), r"\bgl(?:pat|dt|rt|cbt|ptt|ft|agent|imt|soat|oas)-[\w-]{16,}"),
    Form("AWS", ("AKIA", "ASIA", "ABIA", "ACCA", "A3T"), r"\b(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}\b"),
    Form("Google", ("AIza", "ya29.", "GOCSPX-", "1//0"),
         r"\bAIza[\w-]{30,}|\bya29\.[\w.-]+|\bGOCSPX-[\w-]{20,}|\b1//0[\w-]{20,}"),
    # A digit must be among the letters: words of a language have none.
    Form("OpenAI", ("sk-",), r"\bsk-(?:(?:proj|svcacct|admin)-[\w-]{16,}|(?=[A-Za-z]*\d)[A-Za-z0-9]{20,})"),
    Form("Anthropic, OpenRouter", ("sk-ant-", "sk-or-"), r"\bsk-(?:ant|or)-[\w-]{16,}"),
    Form("Groq", ("gsk_",), r"\bgsk_[A-Za-z0-9]{30,}"),
    Form("Replicate", ("r8_",), r"\br8_[A-Za-z0-9]{30,}"),
    Form("Perplexity", ("pplx-",), r"\bpplx-[A-Za-z0-9]{30,}"),
    Form("xAI", ("xai-",), r"\bxai-[A-Za-z0-9]{40,}"),
    Form("Weights & Biases", ("wandb_v",), r"\bwandb_v\d_\w{20,}"),
    Form("Neptune", ("eyJhcGlf",), r"\beyJhcGlf[\w+/=-]{20,}"),
    Form("LangSmith", ("lsv2_",), r"\blsv2_(?:pt|sk)_\w{20,}"),
    Form("Kaggle", ("KGAT_",), r"\bKGAT_\w{20,}"),
    Form("Databricks", ("dapi",), r"\bdapi[0-9a-f]{32}(?:-\d)?\b"),
    Form("Slack", ("xox", "xapp-"), r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-\d-[\w-]{10,}"),
    Form("Slack's webhooks", ("hooks.slack.com/",), r"(?<=hooks\.slack\.com/)(?:services|workflows)/[\w/-]{20,}"),
    Form("Discord's webhooks", ("/api/webhooks/",), r"(?<=/api/webhooks/)\d{8,}/[\w-]{20,}"),
    Form("Telegram", (":AA",), r"\b\d{8,10}:AA[\w-]{33}\b"),
    Form("npm", ("npm_",), r"\bnpm_[A-Za-z0-9]{36}\b"),
    Form("PyPI", ("pypi-AgE",), r"\bpypi-AgE[\w-]{16,}"),
    Form("Docker", ("dckr_",), r"\bdckr_[a-z]{3}_[\w-]{20,}"),
    Form("Grafana", ("glsa_", "glc_"), r"\bgl(?:sa|c)_[\w+/=-]{32,}"),
    Form("New Relic", ("NRAK-",), r"\bNRAK-[A-Z0-9]{20,}"),
    Form("Honeycomb", ("ik_",), r"\bhc[a-z]ik_[a-z0-9]{50,}"),
    Form("Sentry", ("sntry",), r"\bsntry[su]_[\w+/=-]{20,}"),
    Form("Stripe", ("k_live_", "k_test_", "whsec_"), r"\b[rs]k_(?:live|test)_\w{10,}|\bwhsec_[\w+/=]{20,}"),
    Form("SendGrid", ("SG.",), r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
    Form("Mailgun", ("key-",), r"\bkey-[0-9a-f]{32}\b"),
    Form("Twilio", ("SK",), r"\bSK[0-9a-f]{32}\b"),
    Form("DigitalOcean", ("_v1_",), r"\bdo[opr]_v1_[0-9a-f]{40,}"),
    Form("Pulumi", ("pul-",), r"\bpul-[0-9a-f]{40}\b"),
    Form("Linear", ("lin_api_",), r"\blin_api_\w{30,}"),
    Form("Shopify", ("shp",), r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b"),
    Form("HashiCorp", ("hvs.", "hvb.", "hvr.", ".atlasv1."),
         r"\bhv[sbr]\.[\w-]{20,}|\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{50,}"),
    Form("age", ("AGE-SECRET-KEY-1",), r"\bAGE-SECRET-KEY-1[0-9A-Z]{50,}"),
)  # fmt: skip
_FORMS: Final = tuple((form.literals, re.compile(form.pattern)) for form in FORMS)


# --- names ------------------------------------------------------------------------------------------------------------

_KEYS: Final = (
    "access|account|api|auth|consumer|deploy|encryption|hmac|license|master|private|secret|service|session|shared|"
    "signing|ssh|subscription"
)
# Last words of names whose values are secret; `-`, `_` or nothing is between the words.
_ALWAYS: Final = (
    r"passw(?:or)?ds?|passphrase|passcode|secrets?|credentials?|connection[-_]?string|"
    rf"(?:{_KEYS})[-_]?keys?(?:[-_]?id)?"
)
# Tokens of a vocabulary, and numbers of them, are no secrets.
_VOCABULARY: Final = (
    "pad|eos|bos|unk|sep|cls|mask|image|video|audio|special|start|end|stop|first|last|next|prev|new|num|max|min|total|"
    "per|of|decoder|forced|suppress|prefix|suffix|separator|fim|n"
)
# And of names of which a text is secret, but a number is not.
# Tokens are those of a data set, unless it is said that they open something.
_TEXTS: Final = (
    r"pass|pwd|auth|authorization|cookies?|jwt|headers?|dsn|\w*token|"
    r"(?:access|api|auth|bearer|github|hf|refresh|secret|session|user)_?tokens"
)

_SECRET_NAME: Final = re.compile(rf"(?:{_ALWAYS})$")
_SECRET_TEXT: Final = re.compile(rf"(?:^|_)(?:{_TEXTS})$")
_OF_VOCABULARY: Final = re.compile(rf"(?:^|_)(?:{_VOCABULARY})_?tokens?$")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")


def names_secret(name: str, value: object = "") -> bool:
    """Whether `value` must not be shown because it is called `name`; only the name after the last dot counts."""
    return not isinstance(value, bool) and _names_secret(name, isinstance(value, str))


@lru_cache(maxsize=4096)
def _names_secret(name: str, text: bool) -> bool:
    words = _WORDS.sub("_", name.rpartition(".")[2]).lower().strip("_")
    of_text = text and _SECRET_TEXT.search(words) and not _OF_VOCABULARY.search(words)
    return bool(of_text or _SECRET_NAME.search(words))


# --- names in a text, before their values -----------------------------------------------------------------------------

_STRONG: Final = rf"passw(?:or)?d|passphrase|passcode|connection[-_]?string|(?:{_KEYS})[-_]?key(?:[-_]?id)?"
_WEAK: Final = "secret|credentials?|token|signature|googleaccessid"
_NAME: Final = re.compile(rf"(?:(?P<strong>{_STRONG})|{_WEAK})(?![\w.-])")  # in lower case: the search is faster so
_LITERALS: Final = (
    "passw", "passphrase", "passcode", "string", "key", "accessid", "signature", "secret", "cred", "token",
)  # fmt: skip
# What may stand before such a name, at the end of what is there.
_BEFORE: Final = 64  # characters
_IS_VOCABULARY: Final = re.compile(rf"(?:^|[^a-z0-9])(?:{_VOCABULARY})[-_]?$", re.IGNORECASE)
_IS_OPTION: Final = re.compile(r"(?:^|[^\w-])--?[\w-]*$")

_SPACE: Final = r"\s{0,8}"
# A value in quotes ends with them, whatever is inside. A value is not hidden twice, and there must be one.
_QUOTED: Final = r"""(?P<{0}>b?(?P<{0}q>["'])(?:\\.|(?!(?P={0}q)).){{2,}}(?:(?P={0}q)|\Z))"""
_PLAIN: Final = r"""(?P<{}>(?!\(hidden\)|(?i:none|null|true|false)\b)[^&;#,\s"'<>)\]}}]+)"""
# What follows has a digit, or is the last word of a line or a text: prose goes on after a colon, too.
_NO_PROSE: Final = r"""(?=[^\s"']*\d|[^\s"',;}\]]+\s*(?:$|["',;}\]]))"""
_LONG: Final = r"""(?=[^\s"']{12,})(?=[^\s"']*\d)"""


def _values(*ways: tuple[str, str]) -> re.Pattern[str]:
    """A pattern of what follows a name: in each way, what is before a value, and the value."""
    patterns = (f"{before}{value.format(f'v{at}')}" for at, (before, value) in enumerate(ways))
    return re.compile("|".join(patterns), re.DOTALL | re.MULTILINE)


_ASSIGNED: Final = rf"""["']?{_SPACE}={_SPACE}"""  # name=value, "name" = "value"
_COLON: Final = rf"""["']?{_SPACE}:{_SPACE}"""  # name: value, "name": "value"
_NEXT: Final = rf"""(?:["']{_SPACE},{_SPACE}|[ \t]{{1,8}})(?!-)"""  # --name value; in a list '--name', 'value'
_WAYS: Final = ((_ASSIGNED, _QUOTED), (_ASSIGNED, _PLAIN), (_COLON, _QUOTED))
_AFTER_STRONG: Final = _values(*_WAYS, (_COLON + _NO_PROSE, _PLAIN))
_AFTER_WEAK: Final = _values(*_WAYS, (_COLON + _LONG, _PLAIN))
_AFTER_OPTION: Final = _values((_NEXT, _QUOTED), (_NEXT, _PLAIN))
_OPTION: Final = re.compile(rf"--?[\w-]*?(?:{_STRONG}|{_WEAK})", re.IGNORECASE)


def option(word: str) -> bool:
    """Whether the word of a command is an option whose value, the next word, is secret."""
    return _OPTION.fullmatch(word) is not None and not _IS_VOCABULARY.search(word[: -len("token")])


def named_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield from where to where in `text` values stand that are called secrets: ``token=…``, ``--password …``."""
    lower = text.lower()
    if len(lower) != len(text):  # some letters are two in lower case
        lower = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    if not any(literal in lower for literal in _LITERALS):
        return
    reached = 0
    for name in _NAME.finditer(lower):
        begin, end = name.span()
        if begin < reached:
            continue
        before = text[max(reached, begin - _BEFORE) : begin]
        if name[0] == "token" and _IS_VOCABULARY.search(before):
            continue
        match = (_AFTER_STRONG if name["strong"] else _AFTER_WEAK).match(text, end)
        if match is None and _IS_OPTION.search(before):
            match = _AFTER_OPTION.match(text, end)
        if match is not None:
            reached = match.end()
            yield next(match.span(way) for way in match.re.groupindex if way[-1] != "q" and match[way] is not None)


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
    ("authorization", re.compile(r"((?:proxy-)?authorization['\"]?\s*[:=]\s*)(?!\s|\(hidden\))[^\r\n,;]+", re.I)),
    ("cookie", re.compile(r"(\b(?:set-)?cookie['\"]?:\s*)(?!\s|\(hidden\))[^\r\n]+", re.IGNORECASE)),
    ("bearer", re.compile(r"\b(bearer(?:\s|%20|\+)+)(?!tokens?\b)[\w.~+/=%-]{6,}", re.IGNORECASE)),
    ("basic", re.compile(r"\b((?:[Bb]asic|BASIC)(?:\s|%20)+)(?=[\w+/]*[0-9A-Z=])[\w+/]{8,}={0,2}(?![\w+/])")),
)
# Shorter parts of a header (in characters) are not secret, and replacing them would garble every message.
_LEAST: Final = 4
# Nor are shorter values of variables; and a path is not, such as that of a file with credentials.
_LEAST_NAMED: Final = 8
_PATH: Final = re.compile(r"[~.]{0,2}/|[A-Za-z]:[\\/]")
_ADDRESSES: Final = "_GOODPUT_NOTIFY"  # a variable with URLs, in which tokens stand anywhere
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]*)://")
_TOKEN: Final = re.compile(r"(?=.*[0-9A-Z])[\w%~+-]{8,}")  # no host has such a name
_SHORT: Final = 256  # characters of a text that is remembered: the same ones come again and again


def printable(text: str) -> str:
    """Replace each unprintable character, line breaks included, by ``?``: a job's name must not move the cursor."""
    if text.isprintable():
        return text
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
    for literals, pattern in _FORMS:
        # Looking for a literal first is some fifty times faster than a search with a pattern.
        if any(literal in text for literal in literals):
            text = pattern.sub(HIDDEN, text)
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
    return name.endswith(_ADDRESSES) or (name.startswith("OTEL_EXPORTER_") and name.endswith("HEADERS"))


def without_address(text: str) -> str:
    """Return the schemes of the URLs in `text`, whose hosts and paths are secret: ``slack://(hidden)``."""
    schemes = [f"{scheme}://{HIDDEN}" for scheme in _SCHEME.findall(text)]
    return ", ".join(schemes) or (HIDDEN if text else "")


def address_secrets(text: str) -> set[str]:
    """Return the texts in the URLs of `text` that no message may contain: what is after a scheme, and tokens in it."""
    hidden = set()
    for url in re.split(r"[\s,]+(?=[A-Za-z][\w+.-]*://)", text.strip()):
        rest = url.partition("://")[2] or url
        password = rest.rpartition("@")[0].partition(":")[2]
        pieces = {piece for piece in re.split(r"[/@:?&=,;#]+", rest) if _TOKEN.fullmatch(piece)}
        hidden |= {rest, rest.rstrip("/"), password, unquote(password), *pieces, *map(unquote, pieces)}
    return {piece for piece in hidden if len(piece) >= _LEAST}


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the texts in `environ` that no message may contain, longest first.

    They are those of OTLP's headers and of the URLs to notify, and the values of variables whose names say so, such as
    HF_TOKEN.
    """
    hidden = set()
    for name, value in environ.items():
        if name.endswith(_ADDRESSES):
            hidden |= address_secrets(value)
        elif secret(name):
            for item in (value, *value.split(",")):
                content = item.partition("=" if "=" in item else ":")[2].strip()
                hidden |= {item.strip(), content, unquote(content), *content.split(), *unquote(content).split()}
        elif len(value) >= _LEAST_NAMED and not _PATH.match(value):
            number = int(value[:_SHORT]) if value.isdecimal() else value
            if names_secret(name, number):
                hidden.add(value)
    return sorted((text for text in hidden if len(text) >= _LEAST), key=len, reverse=True)


def _without_user(match: re.Match[str]) -> str:
    rest = match[1]
    before, at, after = rest.rpartition("@")
    # An unquoted / ? or # in a password ends the authority early. So a colon before the last @ is enough to hide it.
    if at and (":" in before or not _END_OF_AUTHORITY.search(before)):
        rest = f"***@{after}"
    return "://" + rest
