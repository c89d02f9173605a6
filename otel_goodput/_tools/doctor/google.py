"""``otel-goodput doctor --gcp``: checks everything between a job and Google Cloud, and says how to fix it."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from importlib import metadata as distributions
from typing import Final

from otel_goodput._disruption.metadata import FLAVOR, address, metadata_host
from otel_goodput._resources.gcp import Machine, Unknown, look_up
from otel_goodput._runtime.answers import BoundedResponse
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_PROJECT
from otel_goodput._settings.options import Settings
from otel_goodput._text.quantities import format_duration
from otel_goodput._tools.background import BackgroundCall, within
from otel_goodput._tools.doctor.credentials import NO_MACHINE, PROJECT, Identity
from otel_goodput._tools.doctor.findings import OK, PROBLEM, WARNING, Finding, ok, problem, warning
from otel_goodput._tools.doctor.services import GOOGLE, PROBES, ServiceChecks, clock_lead
from otel_goodput.exporters import registry
from otel_goodput.exporters.google.connection import (
    PROJECT_SOURCES,
    TRACE,
    Connection,
    load,
)
from otel_goodput.exporters.google.delivery import advice_on, short

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

_METADATA_HELP: Final = (
    "without it the resource does not describe the machine, and preemption notices are not seen: check "
    "GCE_METADATA_HOST, http_proxy and no_proxy, and in Kubernetes the network policies"
)
# For a clock that is ahead or behind: limits in seconds, each with the level and the reason.
_DATED: Final = "spans and points get wrong times"
_AHEAD: Final = ((300.0, PROBLEM, "points from more than 5 min ahead are refused"), (60.0, WARNING, _DATED))
_SET_IT: Final = "correct this machine's clock, and keep it correct with NTP"
_BEHIND: Final = (
    (3600.0, PROBLEM, f"tokens signed with a key expire at once, and {_DATED}"),
    (60.0, WARNING, _DATED),
)


class Google:
    """Checks the packages, credentials, project, services and clock that exporting to Google Cloud needs.

    `hidden` lists the texts that no finding may contain; it is complete after the last check.

    Args:
        environ: environment of the job.
        names: names of the exporters in force.
        timeout_s: seconds for each connection and each answer.
    """

    def __init__(self, environ: Mapping[str, str], names: Collection[str], timeout_s: float) -> None:
        self._environ = environ
        self._names = [name for name in names if name in GOOGLE]
        self._timeout_s = timeout_s
        self._connection = Connection(environ)
        self._identity = Identity(environ, self._connection, timeout_s)
        self._machine: Machine | None = None
        self._project_id = ""
        self._probed = list(PROBES)
        self._blocked = ""  # why no requests are sent to services
        self._clocks: list[tuple[str, float]] = []  # whose clock, and s that ours is ahead; the most reliable last

    @property
    def hidden(self) -> list[str]:
        return self._identity.hidden

    @property
    def checks(self) -> tuple[tuple[str, Callable[[], Iterator[Finding]]], ...]:
        """The checks in their order, each with the name of what it checks."""
        return (
            ("Google's packages", self._packages),
            ("Google's metadata server", self._metadata),
            ("Google's credentials", self._credentials),
            ("Google's project", self._project),
            ("Google's services", self._services),
            ("Google's clock", self._clock),
        )

    def local(self) -> Iterator[Finding]:
        """Yield what is known without sending any request."""
        yield self._identity.known()
        sources = self._sources()
        if sources:
            yield _named(*next(iter(sources.items())), sources)
        elif self._connection.plaintext:
            yield _no_project()
        yield ok(_PLACE, "the settings were read; `otel-goodput doctor --gcp` also sends requests")

    # --- packages -----------------------------------------------------------------------------------------------------

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
        yield ok(_PLACE, f"installed for {', '.join(usable)}: {', '.join(_versions())}")

    # --- metadata server ----------------------------------------------------------------------------------------------

    def _metadata(self) -> Iterator[Finding]:
        host = metadata_host(self._environ)
        if host is None:
            yield ok(_METADATA, NO_MACHINE)
            return
        began = time.monotonic()
        try:
            # The timeout of the request does not cover the DNS lookup.
            one = self._machine = within(2 * self._timeout_s, lambda: look_up(host, self._timeout_s))
        except (Unknown, TimeoutError) as why:
            yield warning(_METADATA, str(why), _METADATA_HELP)
            return
        took = time.monotonic() - began
        cluster = f"{one.cluster} in {one.cluster_location}" if one.cluster_location else one.cluster
        known = {"project": one.project, "zone": one.zone, "machine": one.name, "type": one.type, "cluster": cluster}
        machine = ", ".join(f"{name} {value}" for name, value in known.items() if value)
        yield ok(_METADATA, f"{host} answered in {took * 1000:.0f} ms: {machine}")
        self._compare(host)

    def _compare(self, host: str) -> None:
        """Compare this machine's clock with that of the metadata server `host`."""
        place = address(host)
        if place is None:
            return
        connection = http.client.HTTPConnection(*place, timeout=self._timeout_s)
        connection.response_class = BoundedResponse
        measure = partial(clock_lead, connection, "/computeMetadata/v1/instance/id", host, dict([FLAVOR]))
        try:
            seconds = within(2 * self._timeout_s, measure)
        except TimeoutError:
            return
        if seconds is not None:
            self._clocks.append(("the metadata server's", seconds))

    # --- credentials and project --------------------------------------------------------------------------------------

    def _credentials(self) -> Iterator[Finding]:
        if self._blocked:
            yield self._identity.known()
            return
        yield from self._identity.check(next(iter(self._sources().values()), ""))
        if not self._identity.good:
            self._blocked = "there are no credentials for it"

    def _sources(self) -> dict[str, str]:
        """Return the projects by their source; the first one is used."""
        sources = {name: text for name in PROJECT_SOURCES if (text := self._environ.get(name, "").strip())}
        file, machine = self._identity.file, self._machine
        if file is not None and file.project:
            sources["the credentials file"] = file.project
        if machine is not None and machine.project:
            sources["the metadata server"] = machine.project
        return sources

    def _project(self) -> Iterator[Finding]:
        sources = self._sources()
        source, project = next(iter(sources.items()), ("", ""))
        if source not in PROJECT_SOURCES and not self._blocked:
            try:
                # Google's library may find one elsewhere; for an emulator, only variables count.
                project = within(2 * self._timeout_s + 1, lambda: self._connection.project)
            except Exception:
                project = ""
            source = next((name for name, value in sources.items() if value == project), "Google's library")
        if not project:
            self._blocked = self._blocked or "no project is known"
            yield _no_project()
            return
        self._project_id = project
        yield _named(source, project, sources)

    # --- services and clock -------------------------------------------------------------------------------------------

    def _services(self) -> Iterator[Finding]:
        needed = frozenset(service for name in self._names or _USUAL for service in GOOGLE[name].services.values())
        services = ServiceChecks(
            self._connection, self._timeout_s, needed, self._identity.owner, self._project_id, self._blocked
        )
        calls = {service: BackgroundCall(partial(services.check, service)) for service in self._probed}
        until = time.monotonic() + services.longest_s
        for service, call in calls.items():
            target = self._connection.target(service)
            try:
                checked = call.result(max(until - time.monotonic(), 0.0))
            except Exception as error:
                late = isinstance(error, TimeoutError)
                why = f"no result after {services.longest_s:g} s" if late else f"{type(error).__name__}: {error}"
                do = "check that the host can be reached from here and its name resolved" if late else ""
                yield services.judged(service, PROBLEM, f"{target}: {short(why)}", do)
                continue
            yield from checked.findings
            if checked.ahead_s is not None:
                self._clocks.append(("Google's" if target == service.host else f"{target}'s", checked.ahead_s))

    def _clock(self) -> Iterator[Finding]:
        """Compare clocks: with Google's if known, because a metadata server may use the clock of this machine."""
        if not self._clocks:
            yield ok(_CLOCK, "no server reported a time to compare it with")
            return
        whose, seconds = self._clocks[-1]
        off = f"{format_duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'} {whose}"
        for bound, level, why in _AHEAD if seconds > 0 else _BEHIND:
            if abs(seconds) > bound:
                yield Finding(level, _CLOCK, f"{off}: {why}", _SET_IT, "this machine's clock is off")
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


def _versions() -> Iterator[str]:
    for name in _DISTRIBUTIONS:
        try:
            yield f"{name} {distributions.version(name)}"
        except distributions.PackageNotFoundError:
            continue
