"""``otel-goodput doctor --gcp``: checks everything between a job and Google Cloud, and says how to fix it."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._disruption.metadata import FLAVOR, address, metadata_host
from otel_goodput._resources.gcp import Machine, Unknown, look_up
from otel_goodput._runtime import files
from otel_goodput._runtime.answers import BoundedResponse
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput._settings.options import Settings
from otel_goodput._text.quantities import format_duration
from otel_goodput._tools.doctor import settings
from otel_goodput._tools.doctor.findings import OK, PROBLEM, WARNING, Finding, ok, problem, warning
from otel_goodput._tools.doctor.services import GOOGLE, PROBES, ServiceChecks, clock_lead
from otel_goodput._tools.waiting import begin, looking_at, result, within
from otel_goodput.exporters import registry
from otel_goodput.exporters.google.connection import PROJECT_SOURCES, TRACE, Connection, load
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


class File(NamedTuple):
    """The file of credentials that Google's libraries would use; texts are empty where the file does not say."""

    where: str  # its path, and the variable that names it
    type: str = ""  # a key of ``KINDS``
    owner: str = ""  # e-mail address of the credentials' owner
    project: str = ""
    wrong: str = ""  # why the file cannot be used
    do: str = ""  # what to do then
    hidden: tuple[str, ...] = ()  # texts that no message may contain

    def __str__(self) -> str:
        return f"{KINDS.get(self.type, 'credentials')}{f', {self.owner},' if self.owner else ''} ({self.where})"


def find(environ: Mapping[str, str]) -> File | None:
    """Return the file of credentials; None if the credentials come from the metadata server instead."""
    given = environ.get(VARIABLE, "")
    if given.strip():
        correct = f"set {VARIABLE} to the path of a credentials file"
        if _PASTED.match(given) or len(given) > _LONGEST_PATH:
            return File(VARIABLE, wrong="holds credentials instead of a path", do=correct, hidden=tuple(_lines(given)))
        return _read(Path(given), f"{given}, from {VARIABLE}", correct)
    try:
        folder = Path(environ.get(GCLOUD, "").strip() or Path(environ.get("HOME", "~")).expanduser() / ".config/gcloud")
    except RuntimeError:  # the user has no home, as in a container with a random user id
        return None
    path = folder / WELL_KNOWN
    try:
        there = path.is_file()
    except OSError:  # no permission to enter a parent folder: the file's own error says which
        there = True
    return _read(path, str(path), "`gcloud auth application-default login` writes another one") if there else None


def _read(path: Path, where: str, do: str) -> File:
    bad = partial(File, where, do=do)
    try:
        if path.exists() and not path.is_file():
            return bad(wrong="is not a file")
        with files.open_named(path) as file:
            raw = file.read(_LONGEST)
    except (OSError, ValueError) as error:
        return bad(wrong=f"cannot be read: {getattr(error, 'strerror', None) or error}")
    text = raw.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return bad(wrong="holds no credentials: it is not JSON", hidden=tuple(_lines(text)))
    hidden = tuple(_secrets(content))
    kind = content.get("type") if isinstance(content, dict) else None
    if kind not in KINDS:
        return bad(wrong=f"holds no credentials: its type is not one of {', '.join(KINDS)}", hidden=hidden)
    impersonated = _IMPERSONATED.search(str(content.get("service_account_impersonation_url", "")))
    owners = (impersonated and impersonated[1], content.get("client_email"), content.get("account"))
    owner = next(filter(None, (_shaped(one, EMAIL) for one in owners)), "")
    return File(where, kind, owner, _shaped(content.get("project_id"), PROJECT), hidden=hidden)


def _shaped(given: object, shape: re.Pattern[str]) -> str:
    """Return the value of a field if it has the expected shape; else "", as a secret in the wrong field."""
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


_CREDENTIALS: Final = "credentials"
_QUOTA: Final = "quota project"
_NO_MACHINE: Final = "this machine does not appear to run on Google Cloud"
# Google's libraries write these words before they quote an answer, or give advice that does not apply here.
_BEFORE: Final = ("Response:", "Response details:", "metadata service: ", " To set up")
_HTML: Final = re.compile(r"<(!doctype )?html", re.IGNORECASE)


def _words(error: Exception) -> str:
    """Return the message of an error without the server's answer that it may quote, which may contain a token."""
    text = str(error.args[0] if error.args else "")
    for words in _BEFORE:
        text = text.partition(words)[0]
    if _HTML.search(text):
        return "the answer is an HTML page, perhaps from a proxy"
    return short(text.strip() or type(error).__name__)


_USUAL: Final = tuple(name for name, spec in GOOGLE.items() if spec.automatic)  # what `auto` selects on Google Cloud
_DISTRIBUTIONS: Final = (
    "google-auth",
    "google-cloud-monitoring",
    "google-cloud-trace",
    "grpcio",
    "opentelemetry-exporter-gcp-monitoring",
    "opentelemetry-exporter-gcp-trace",
)

_PLACE: Final = "google cloud"
_METADATA: Final = "metadata server"
_PROJECT: Final = "project"
_CLOCK: Final = "clock"

# For a clock that is ahead or behind: limits in seconds, each with the level and the reason.
_DATED: Final = "spans and points get wrong times"
_AHEAD: Final = ((300.0, PROBLEM, "points from more than 5 min ahead are refused"), (60.0, WARNING, _DATED))
_BEHIND: Final = ((3600.0, PROBLEM, f"tokens signed with a key expire at once, and {_DATED}"), (60.0, WARNING, _DATED))


class Google:
    """Checks the packages, credentials, project, services and clock that exporting to Google Cloud needs.

    `hidden` lists the texts that no finding may contain; it is complete after the last check. Each connection and each
    answer may take `timeout_s`.
    """

    def __init__(self, environ: Mapping[str, str], names: Collection[str], timeout_s: float) -> None:
        self._environ = environ
        self._names = [name for name in names if name in GOOGLE]
        self._timeout_s = timeout_s
        self._patience_s = 2 * timeout_s + 1  # twice, to allow for imports or a retry
        self._connection = Connection(environ)
        self._host = metadata_host(environ)
        self._machine: Machine | None = None
        self._file = None if self._connection.plaintext else find(environ)
        self._owner = "" if self._file is None else self._file.owner
        self._project_id = ""
        self._probed = list(PROBES)
        self._blocked = ""  # why no requests are sent to services
        self._clocks: list[tuple[str, float]] = []  # whose clock, and s that ours is ahead; the most reliable last
        self.hidden = [] if self._file is None else list(self._file.hidden)

    def check(self) -> Iterator[Finding]:
        """Yield everything that requests show too."""
        for thing, checks in (
            ("packages", self._packages),
            ("metadata server", self._metadata),
            ("credentials", self._credentials),
            ("project", self._project),
            ("services", self._services),
            ("clock", self._clock),
        ):
            with looking_at(f"Google's {thing}"):
                yield from checks()

    def local(self) -> Iterator[Finding]:
        """Yield what is known without sending any request."""
        yield self._known()
        sources = self._sources()
        if sources:
            yield _named(*next(iter(sources.items())), sources)
        elif self._connection.plaintext:
            yield _no_project()
        yield ok(_PLACE, "the settings were read; `otel-goodput doctor --gcp` also sends requests")

    def _packages(self) -> Iterator[Finding]:
        if not self._names:
            what = f"no active exporter sends there; it is used by {' and '.join(_USUAL)}"
            do = f"set {Settings.exporters.variable}={','.join(_USUAL)}, or {OTEL_GOODPUT_GCP_PROJECT.name}"
            yield warning(_PLACE, what, do)
        usable = [name for name in GOOGLE if not registry.missing(name, self._environ)]
        for name in GOOGLE:
            if name in usable or name in self._names:  # missing packages of exporters in force were reported before
                continue
            needed = name in _USUAL and not self._names
            what = f"what exporter {name} needs is not installed" + ("" if needed else "; no active exporter needs it")
            level = PROBLEM if needed else OK
            yield Finding(level, _PLACE, what, registry.spec(name).hint, f"packages of exporter {name} are missing")
        failure = _imported() if usable else ""
        if failure:
            do = "reinstall them in compatible versions (see pip check)"
            yield problem(_PLACE, failure, do, "Google's packages cannot be imported")
        if failure or not usable:
            self._blocked = "the packages for it are missing or broken"
            return
        installed = registry.importable
        self._probed = [one for one in PROBES if all(installed(probe.package) for probe in PROBES[one])]
        versions = ", ".join(f"{name} {number}" for name, number in settings.installed(_DISTRIBUTIONS).items())
        yield ok(_PLACE, f"installed for {', '.join(usable)}: {versions}")

    def _metadata(self) -> Iterator[Finding]:
        host = self._host
        if host is None:
            yield ok(_METADATA, _NO_MACHINE)
            return
        began = time.monotonic()
        try:
            # The timeout of the request does not cover the DNS lookup.
            one = self._machine = within(2 * self._timeout_s, lambda: look_up(host, self._timeout_s))
        except (Unknown, TimeoutError) as why:
            do = (
                "without it the resource does not describe the machine, and preemption notices are not seen: check "
                "GCE_METADATA_HOST, http_proxy and no_proxy, and in Kubernetes the network policies"
            )
            yield warning(_METADATA, str(why), do)
            return
        took = time.monotonic() - began
        cluster = f"{one.cluster} in {one.cluster_location}" if one.cluster_location else one.cluster
        known = {"project": one.project, "zone": one.zone, "machine": one.name, "type": one.type, "cluster": cluster}
        machine = ", ".join(f"{name} {value}" for name, value in known.items() if value)
        yield ok(_METADATA, f"{host} answered in {took * 1000:.0f} ms: {machine}")
        if place := address(host):
            connection = http.client.HTTPConnection(*place, timeout=self._timeout_s)
            connection.response_class = BoundedResponse
            measure = partial(clock_lead, connection, "/computeMetadata/v1/instance/id", host, dict([FLAVOR]))
            with suppress(TimeoutError):
                seconds = within(2 * self._timeout_s, measure)
                if seconds is not None:
                    self._clocks.append(("the metadata server's", seconds))

    def _known(self) -> Finding:
        """Return what is known about the credentials without sending any request."""
        if self._connection.plaintext:
            return ok(_CREDENTIALS, f"none are needed: {OTEL_GOODPUT_GCP_ENDPOINT.name} is plaintext")
        if self._file is not None and self._file.wrong:
            return self._unusable(f"{self._file.where}: {self._file.wrong}", self._file.do)
        if self._file is not None or self._host is not None:
            return ok(_CREDENTIALS, self._whose())
        return warning(_CREDENTIALS, self._whose(), advice_on(_CREDENTIALS, TRACE, "", ""))

    def _credentials(self) -> Iterator[Finding]:
        """Load the credentials and request a token, as an exporter would."""
        known = self._known()
        if self._blocked or self._connection.plaintext:
            yield known
            return
        self._blocked = "there are no credentials for it"  # until a token was issued
        if known.level == PROBLEM:
            yield known
            return
        try:
            credentials = within(self._patience_s, self._connection.credentials)
        except TimeoutError:
            yield self._bad(f"the search for them has not ended after {self._patience_s:g} s")
            return
        except Exception as error:
            yield self._bad(_words(error))
            return
        yield self._refresh(credentials)
        named = str(getattr(credentials, "quota_project_id", None) or "")
        if named:
            role = "roles/serviceusage.serviceUsageConsumer"
            shown = named if PROJECT.fullmatch(named) else "a project with an invalid id"
            yield ok(_QUOTA, f"requests count against {shown}, where {self._owner or 'the job'} needs {role}")
        elif self._file is not None and self._file.type in USER:
            what = "no quota project is set; some services refuse user credentials without one"
            project = next(iter(self._sources().values()), "") or "PROJECT"
            yield warning(_QUOTA, what, advice_on(_QUOTA, TRACE, "", project))

    def _refresh(self, credentials: Any) -> Finding:
        began = time.monotonic()
        try:
            within(self._patience_s, lambda: credentials.refresh(self._connection.token_request()))
        except Exception as error:
            return self._bad(f"no token is issued: {_words(error)}")
        took = time.monotonic() - began
        self._blocked = ""
        self.hidden += filter(None, (str(getattr(credentials, name, None) or "") for name in ("token", "id_token")))
        self._owner = _shaped(getattr(credentials, "service_account_email", None), EMAIL) or self._owner
        what = f"{self._whose()}: a token was issued in {took * 1000:.0f} ms"
        expiry = getattr(credentials, "expiry", None)
        if isinstance(expiry, datetime):
            left = (expiry.replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)).total_seconds()
            what += f", good for {format_duration(left)}"
        return ok(_CREDENTIALS, what)

    def _bad(self, why: str) -> Finding:
        advice = (do for words, do in _ADVICE if re.search(words, why, re.IGNORECASE))
        return self._unusable(f"{self._whose()}: {why}", next(advice, "") or advice_on(_CREDENTIALS, TRACE, "", ""))

    def _unusable(self, what: str, do: str) -> Finding:
        return problem(_CREDENTIALS, what, do, "the credentials cannot be used")

    def _whose(self) -> str:
        if self._file is not None:
            return str(self._file)
        if self._host is not None:
            return f"those of the machine or pod{f', {self._owner}' if self._owner else ''}, from the metadata server"
        return f"there is no credentials file, and {_NO_MACHINE}"

    def _sources(self) -> dict[str, str]:
        """Return the projects by their source; the first one is used."""
        sources = {name: text for name in PROJECT_SOURCES if (text := self._environ.get(name, "").strip())}
        for source, holder in (("the credentials file", self._file), ("the metadata server", self._machine)):
            if holder is not None and holder.project:
                sources[source] = holder.project
        return sources

    def _project(self) -> Iterator[Finding]:
        sources = self._sources()
        source, project = next(iter(sources.items()), ("", ""))
        if source not in PROJECT_SOURCES and not self._blocked:
            try:
                # Google's library may find one elsewhere; for an emulator, only variables count.
                project = within(self._patience_s, lambda: self._connection.project)
            except Exception:
                project = ""
            source = next((name for name, value in sources.items() if value == project), "Google's library")
        if not project:
            self._blocked = self._blocked or "no project is known"
            yield _no_project()
            return
        self._project_id = project
        yield _named(source, project, sources)

    def _services(self) -> Iterator[Finding]:
        needed = frozenset(service for name in self._names or _USUAL for service in GOOGLE[name].services.values())
        services = ServiceChecks(
            self._connection, self._timeout_s, needed, self._owner, self._project_id, self._blocked
        )
        calls = {service: begin(partial(services.check, service)) for service in self._probed}
        until = time.monotonic() + services.longest_s
        for service, call in calls.items():
            target = self._connection.target(service)
            try:
                findings, ahead_s = result(call, until - time.monotonic())
            except Exception as error:
                late = isinstance(error, TimeoutError)
                why = f"no result after {services.longest_s:g} s" if late else f"{type(error).__name__}: {error}"
                do = "check that the host can be reached from here and its name resolved" if late else ""
                yield services.judged(service, PROBLEM, f"{target}: {short(why)}", do)
                continue
            yield from findings
            if ahead_s is not None:
                self._clocks.append(("Google's" if target == service.host else f"{target}'s", ahead_s))

    def _clock(self) -> Iterator[Finding]:
        """Compare clocks: with Google's if known, because a metadata server may use the clock of this machine."""
        if not self._clocks:
            yield ok(_CLOCK, "no server reported a time to compare it with")
            return
        whose, seconds = self._clocks[-1]
        off = f"{format_duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'} {whose}"
        for bound, level, why in _AHEAD if seconds > 0 else _BEHIND:
            if abs(seconds) > bound:
                do = "correct this machine's clock, and keep it correct with NTP"
                yield Finding(level, _CLOCK, f"{off}: {why}", do, "this machine's clock is off")
                return
        yield ok(_CLOCK, f"{off}, within the tolerance")


def _named(source: str, project: str, sources: Mapping[str, str]) -> Finding:
    """Report the project in use, and whether other sources name another one.

    A project number and a project id are not compared: they may be the same project.
    """
    others = [
        f"{value} from {name}"
        for name, value in sources.items()
        if value != project and value.isdecimal() == project.isdecimal()
    ]
    if not PROJECT.fullmatch(project):
        what = f"{project!r}, from {source}, does not look like a project id"
        return warning(_PROJECT, what, "`gcloud projects list` shows ids and names")
    if others:
        what = f"{project}, from {source}; but {', '.join(others)}"
        return warning(_PROJECT, what, f"nothing to do if that is intended; otherwise set {PROJECT_SOURCES[0]}")
    return ok(_PROJECT, f"{project}, from {source}")


def _no_project() -> Finding:
    what = "no Google Cloud project is known"
    return problem(_PROJECT, what, advice_on(_PROJECT, TRACE, "", ""), what)


def _imported() -> str:
    """Import the client packages in advance, which takes a second or more; returns the error, or an empty string."""
    packages = dict.fromkeys(one.package for questions in PROBES.values() for one in questions)
    for package in ("grpc", "google.auth.transport.grpc", "google.auth.transport.requests", *packages):
        try:
            if registry.importable(package):
                load(package)
        except Exception as error:  # incompatible versions may raise anything
            return f"{package} cannot be imported: {type(error).__name__}: {short(str(error))}"
    return ""
