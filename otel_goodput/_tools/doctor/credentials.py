"""The credentials that a job would use for Google: their file, their owner, and whether they yield a token."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from otel_goodput._disruption.metadata import metadata_host
from otel_goodput._runtime import files
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT
from otel_goodput._text.quantities import format_duration
from otel_goodput._tools.background import within
from otel_goodput._tools.doctor.findings import PROBLEM, Finding, ok, problem, warning
from otel_goodput.exporters.google.connection import TRACE, Connection
from otel_goodput.exporters.google.delivery import advice_on, short

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
_PUBLIC: Final = frozenset(
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
_ADVICE: Final = (
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
    """Return the file of credentials; None if the credentials come from the metadata server instead."""
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
    return next((do for words, do in _ADVICE if re.search(words, text, re.IGNORECASE)), "")


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
    elif isinstance(content, str) and name not in _PUBLIC:
        yield from _lines(content)


def _lines(text: str) -> Iterator[str]:
    """Yield a text and its lines, both as they are and as JSON escapes them."""
    for line in (text, json.dumps(text)[1:-1], *text.splitlines(), *text.split("\\n")):
        if len(line.strip()) >= _LEAST:
            yield line.strip()


ABOUT: Final = "credentials"
QUOTA: Final = "quota project"
_BRIEF: Final = "the credentials cannot be used"
NO_MACHINE: Final = "this machine does not appear to run on Google Cloud"
_QUOTA_ROLE: Final = "roles/serviceusage.serviceUsageConsumer"
# Google's libraries write these words before they quote an answer, or give advice that does not apply here.
_BEFORE: Final = ("Response:", "Response details:", "metadata service: ", " To set up")
_HTML: Final = re.compile(r"<(!doctype )?html", re.IGNORECASE)


class Identity:
    """The credentials that a job would have.

    Args:
        environ: environment of the job.
        connection: the connection to Google.
        timeout_s: seconds for each answer.
    """

    def __init__(self, environ: Mapping[str, str], connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._patience_s = 2 * timeout_s + 1  # twice, to allow for imports or a retry
        self._metadata = metadata_host(environ) is not None
        self.file = None if connection.plaintext else find(environ)
        self.owner = "" if self.file is None else self.file.owner
        self.hidden = [] if self.file is None else list(self.file.hidden)
        self.good = connection.plaintext

    def known(self) -> Finding:
        """Return what is known about the credentials without sending any request."""
        if self._connection.plaintext:
            what = f"none are needed: {OTEL_GOODPUT_GCP_ENDPOINT.name} is plaintext"
            return ok(ABOUT, what)
        if self.file is not None and self.file.wrong:
            return problem(ABOUT, f"{self.file.where}: {self.file.wrong}", self.file.do, _BRIEF)
        if self.file is not None or self._metadata:
            return ok(ABOUT, self._whose())
        return warning(ABOUT, f"there is no credentials file, and {NO_MACHINE}", advice_on(ABOUT, TRACE, "", ""))

    def check(self, project: str) -> Iterator[Finding]:
        """Load the credentials and request a token; `good` is then whether that succeeded.

        `project` is named in the advice on a missing quota project.
        """
        known = self.known()
        if self._connection.plaintext or known.level == PROBLEM:
            yield known
            return
        try:
            credentials = within(self._patience_s, self._connection.credentials)
        except TimeoutError:
            yield self._bad(f"the search for them has not ended after {self._patience_s:g} s")
        except Exception as error:
            yield self._bad(_words(error))
        else:
            yield self._refresh(credentials)
            yield from self._quota(credentials, project)

    def _refresh(self, credentials: Any) -> Finding:
        """Request a token, as an exporter would."""
        began = time.monotonic()
        try:
            within(self._patience_s, lambda: credentials.refresh(self._connection.token_request()))
        except Exception as error:
            return self._bad(f"no token is issued: {_words(error)}")
        took = time.monotonic() - began
        self.good = True
        self.hidden += filter(None, (str(getattr(credentials, name, None) or "") for name in ("token", "id_token")))
        owner = str(getattr(credentials, "service_account_email", None) or "")
        self.owner = owner if EMAIL.fullmatch(owner) else self.owner
        what = f"{self._whose()}: a token was issued in {took * 1000:.0f} ms"
        expiry = getattr(credentials, "expiry", None)
        if isinstance(expiry, datetime):
            left = (expiry.replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)).total_seconds()
            what += f", good for {format_duration(left)}"
        return ok(ABOUT, what)

    def _quota(self, credentials: Any, project: str) -> Iterator[Finding]:
        """Report the project whose quota is used, if the credentials name one, or a user's credentials name none."""
        named = str(getattr(credentials, "quota_project_id", None) or "")
        if named:
            shown = named if PROJECT.fullmatch(named) else "a project with an invalid id"
            what = f"requests count against {shown}, where {self.owner or 'the job'} needs {_QUOTA_ROLE}"
            yield ok(QUOTA, what)
        elif self.file is not None and self.file.type in USER:
            what = "no quota project is set; some services refuse user credentials without one"
            yield warning(QUOTA, what, advice_on(QUOTA, TRACE, "", project or "PROJECT"))

    def _bad(self, why: str) -> Finding:
        return problem(ABOUT, f"{self._whose()}: {why}", advice(why) or advice_on(ABOUT, TRACE, "", ""), _BRIEF)

    def _whose(self) -> str:
        if self.file is not None:
            return str(self.file)
        if self._metadata:
            return f"those of the machine or pod{f', {self.owner}' if self.owner else ''}, from the metadata server"
        return f"there is no credentials file, and {NO_MACHINE}"


def _words(error: Exception) -> str:
    """Return the message of an error without the server's answer that it may quote, which may contain a token."""
    text = str(error.args[0] if error.args else "")
    for words in _BEFORE:
        text = text.partition(words)[0]
    if _HTML.search(text):
        return "the answer is an HTML page, perhaps from a proxy"
    return short(text.strip() or type(error).__name__)
