"""Finds and reads the file of Application Default Credentials: its kind, its owner, and the secrets to hide."""

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
# Fields of the file that may be shown; all others are secret.
_TOLD: Final = frozenset(
    {"type", "client_email", "account", "project_id", "quota_project_id", "universe_domain", "audience"}
    | {"service_account_impersonation_url", "subject_token_type", "token_uri", "token_url", "auth_uri"}
    | {"auth_provider_x509_cert_url", "client_x509_cert_url"}
)
_LEAST: Final = 8  # characters; shorter texts are no secrets, and hiding them would garble messages
_LONGEST: Final = 1 << 20  # bytes
_LONGEST_PATH: Final = 1 << 10

_CORRECT: Final = f"set {VARIABLE} to the path of a credentials file"
_LOG_IN: Final = "`gcloud auth application-default login` writes another one"

# Patterns for the error of a failed token refresh, each with what may help. The first match counts.
_CURES: Final = (
    (
        r"timeframe|iat and exp|Token used too",
        "correct this machine's clock: tokens signed with the key carry its time",
    ),
    (
        r"Invalid JWT Signature|account not found|account (has been )?(disabled|deleted)",
        "the key or its service account was deleted or disabled; `gcloud iam service-accounts keys create` makes one",
    ),
    (r"reauth|rapt|expired or revoked|invalid_grant", "log in again: `gcloud auth application-default login`"),
    (
        r"getaccesstoken|iam\.serviceAccounts|impersonat",
        "grant this identity roles/iam.serviceAccountTokenCreator on the service account",
    ),
    (r"HTML", "something other than Google answers: check https_proxy and no_proxy"),
    (
        r"Max retries|Connection|resolve|timed out|no answer|unavailable",
        "check that the token server can be reached from here: resolver, firewall, https_proxy and no_proxy",
    ),
)


@dataclass(frozen=True)
class File:
    """The file of credentials that Google's libraries would use.

    Attributes:
        where: its path, and the variable that names it.
        type: its field ``type``, a key of ``KINDS``.
        owner: e-mail address of the credentials' owner; empty if the file does not say.
        project: id of the project; empty if the file does not say.
        wrong: why the file cannot be used; empty if nothing is wrong.
        do: what to do if it cannot be used.
        hidden: texts that no message may contain.
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
    """Return the file of credentials; None if there is none, so that they come from the metadata server."""
    given = environ.get(VARIABLE, "")
    if given.strip():
        if _PASTED.match(given) or len(given) > _LONGEST_PATH:
            return File(VARIABLE, wrong="holds credentials instead of a path", do=_CORRECT, hidden=tuple(_lines(given)))
        return _read(Path(given), f"{given}, from {VARIABLE}", _CORRECT)
    try:
        folder = Path(environ.get(GCLOUD, "").strip() or Path(environ.get("HOME", "~")).expanduser() / ".config/gcloud")
    except RuntimeError:  # the user has no home, as in a container with a random user id
        return None
    path = folder / WELL_KNOWN
    try:
        there = path.is_file()
    except OSError:  # no permission to enter a parent folder: the file's own error says which
        there = True
    return _read(path, str(path), _LOG_IN) if there else None


def advice(text: str) -> str:
    """Return what may help if a token refresh failed with the error `text`; empty if unknown."""
    return next((do for words, do in _CURES if re.search(words, text, re.IGNORECASE)), "")


def _read(path: Path, where: str, do: str) -> File:
    try:
        if path.exists() and not path.is_file():
            return File(where, wrong="is not a file", do=do)
        with files.open_named(path) as file:
            raw = file.read(_LONGEST)
    except (OSError, ValueError) as error:
        return File(where, wrong=f"cannot be read: {getattr(error, 'strerror', None) or error}", do=do)
    text = raw.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return File(where, wrong="holds no credentials: it is not JSON", do=do, hidden=tuple(_lines(text)))
    hidden = tuple(_secrets(content))
    kind = content.get("type") if isinstance(content, dict) else None
    if kind not in KINDS:
        return File(
            where, wrong=f"holds no credentials: its type is not one of {', '.join(KINDS)}", do=do, hidden=hidden
        )
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
    """Return the value of a field if it has the expected shape, else an empty string.

    A secret in the wrong field must not be shown.
    """
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
    """Yield a text and its lines, both as they are and as JSON escapes them."""
    for line in (text, json.dumps(text)[1:-1], *text.splitlines(), *text.split("\\n")):
        if len(line.strip()) >= _LEAST:
            yield line.strip()
