"""The file of Application Default Credentials: where it is, what it is, whose, and what of it is never shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_goodput import files

VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
GCLOUD: Final = "CLOUDSDK_CONFIG"
WELL_KNOWN: Final = "application_default_credentials.json"

KINDS: Final = {
    "service_account": "the key of a service account",
    "authorized_user": "a user's credentials",
    "external_account": "workload identity federation",
    "external_account_authorized_user": "workforce identity federation",
    "impersonated_service_account": "an impersonated service account",
    "gdch_service_account": "a service account of Google Distributed Cloud",
}
USER: Final = frozenset({"authorized_user", "external_account_authorized_user"})

EMAIL: Final = re.compile(r"[\w.+-]{1,64}@[\w-]+(\.[\w-]+)+", re.ASCII)
PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,20}")
_PASTED: Final = re.compile(r"\s*(\{|-----BEGIN|ya29\.|AIza|1//)")
_IMPERSONATED: Final = re.compile(r"/serviceAccounts/([^/:]+):")
# What may be told of a file; everything else in it is a secret.
_TOLD: Final = frozenset(
    {"type", "client_email", "account", "project_id", "quota_project_id", "universe_domain", "audience"}
    | {"service_account_impersonation_url", "subject_token_type", "token_uri", "token_url", "auth_uri"}
    | {"auth_provider_x509_cert_url", "client_x509_cert_url"}
)
_LEAST: Final = 8  # letters; shorter ones are no secret, and to hide them would spoil every message
_LONGEST: Final = 1 << 20  # bytes
_LONGEST_PATH: Final = 1 << 10

_CORRECT: Final = f"{VARIABLE} is to be the path of a file of credentials"
_LOG_IN: Final = "`gcloud auth application-default login` writes another one"

# What the words of a refused refresh say, and what may help then. The first that matches counts.
_CURES: Final = (
    (
        r"timeframe|iat and exp|Token used too",
        "set the clock of this machine right: what the key signs bears its time",
    ),
    (
        r"Invalid JWT Signature|account not found|account (has been )?(disabled|deleted)",
        "the key or its service account was deleted or disabled: `gcloud iam service-accounts keys create` makes one",
    ),
    (r"reauth|rapt|expired or revoked|invalid_grant", "log in again: `gcloud auth application-default login`"),
    (
        r"getaccesstoken|iam\.serviceAccounts|impersonat",
        "grant this identity roles/iam.serviceAccountTokenCreator on the service account",
    ),
    (r"HTML", "something answers in the place of Google: see https_proxy and no_proxy"),
    (
        r"Max retries|Connection|resolve|timed out|no answer|unavailable",
        "see that the server of the tokens can be reached from here: resolver, firewall, https_proxy and no_proxy",
    ),
)


@dataclass(frozen=True)
class File:
    """A file of credentials, as Google's libraries would take it.

    Attributes:
        where: its path, and what names it.
        type: what it says that it is.
        owner: whom the credentials belong to, an e-mail address; empty where the file does not say.
        project: its id, likewise.
        wrong: why it cannot be used, and `do` what to do; empty where nothing is known against it.
        hidden: texts that no message may hold.
    """

    where: str
    type: str = ""
    owner: str = ""
    project: str = ""
    wrong: str = ""
    do: str = ""
    hidden: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{KINDS.get(self.type, 'credentials')}{f', {self.owner},' if self.owner else ''} ({self.where})"


def find(environ: Mapping[str, str]) -> File | None:
    """The file that there is, if there is one: else credentials come from the metadata server."""
    given = environ.get(VARIABLE, "")
    if given.strip():
        if _PASTED.match(given) or len(given) > _LONGEST_PATH:
            return File(VARIABLE, wrong="holds credentials instead of a path", do=_CORRECT, hidden=tuple(_lines(given)))
        return _read(Path(given), f"{given}, by {VARIABLE}", _CORRECT)
    folder = Path(environ.get(GCLOUD, "").strip() or Path(environ.get("HOME", "~")).expanduser() / ".config/gcloud")
    path = folder / WELL_KNOWN
    return _read(path, str(path), _LOG_IN) if path.is_file() else None


def advice(text: str) -> str:
    """What may help against the failure of a refresh, told in these words."""
    return next((do for words, do in _CURES if re.search(words, text, re.IGNORECASE)), "")


def _read(path: Path, where: str, do: str) -> File:
    try:
        if path.exists() and not path.is_file():
            return File(where, wrong="is no file", do=do)
        with files.open_named(path) as file:
            raw = file.read(_LONGEST)
    except (OSError, ValueError) as error:
        return File(where, wrong=f"cannot be read: {getattr(error, 'strerror', None) or error}", do=do)
    text = raw.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return File(where, wrong="holds no credentials: it is no JSON", do=do, hidden=tuple(_lines(text)))
    hidden = tuple(_secrets(content))
    kind = content.get("type") if isinstance(content, dict) else None
    if kind not in KINDS:
        return File(where, wrong=f"holds no credentials: its type is none of {', '.join(KINDS)}", do=do, hidden=hidden)
    return File(
        where,
        type=kind,
        owner=_owner(content),
        project=_shaped(content.get("project_id"), PROJECT),
        hidden=hidden,
    )


def _owner(content: Mapping[str, Any]) -> str:
    impersonated = _IMPERSONATED.search(str(content.get("service_account_impersonation_url", "")))
    candidates = (impersonated and impersonated[1], content.get("client_email"), content.get("account"))
    return next(filter(None, (_shaped(one, EMAIL) for one in candidates)), "")


def _shaped(given: object, shape: re.Pattern[str]) -> str:
    """What a field says, where it looks like what belongs there: a key in the wrong field is not shown either."""
    return given if isinstance(given, str) and shape.fullmatch(given) else ""


def _secrets(content: object, name: str = "") -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _secrets(value, str(key))
    elif isinstance(content, list):
        for value in content:
            yield from _secrets(value, name)
    elif isinstance(content, str) and name not in _TOLD:
        yield from _lines(content)


def _lines(text: str) -> Iterator[str]:
    """A text and the lines of it, as such and as JSON writes them."""
    for line in (text, json.dumps(text)[1:-1], *text.splitlines(), *text.split("\\n")):
        if len(line.strip()) >= _LEAST:
            yield line.strip()
