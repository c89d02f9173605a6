"""Checks each of Google's services: connects, and sends real but empty requests, which change nothing."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from otel_goodput import semconv
from otel_goodput.exporters import registry, status_codes
from otel_goodput.exporters.google import GoogleExporterSpec, service_client
from otel_goodput.exporters.google.connection import MONITORING, TELEMETRY, TRACE, Connection, Service, load
from otel_goodput.exporters.google.delivery import Failure, cure, failure_of, short
from otel_goodput.exporters.google.fitting import NOWHERE
from otel_goodput.exporters.google.otlp import stub
from otel_goodput.tools.doctor.findings import OK, PROBLEM, WARNING, Finding
from otel_goodput.tools.doctor.reachability import Unreachable, reach

# The exporters to Google Cloud, by name; first those that `auto` may choose.
GOOGLE: Final = {
    found.name: found
    for found in sorted(map(registry.spec, registry.OURS), key=lambda spec: not spec.automatic)
    if isinstance(found, GoogleExporterSpec)
}

Ask = Callable[[Connection, float], object]
"""Sends a request that holds nothing, given the seconds that the answer may take."""

_COLLECTORS: Final = "opentelemetry.proto.collector"


class Question(NamedTuple):
    """One request: the displayed name of its method, the package that it needs, and the function that sends it."""

    method: str
    package: str
    ask: Ask


def _write_spans(connection: Connection, seconds: float) -> object:
    types = load("google.cloud.trace_v2.types")
    request = types.BatchWriteSpansRequest(name=f"projects/{connection.project}")
    return service_client(TRACE, connection)().batch_write_spans(request=request, timeout=seconds, retry=None)


def _write_series(connection: Connection, seconds: float) -> object:
    types = load("google.cloud.monitoring_v3.types")
    request = types.CreateTimeSeriesRequest(name=f"projects/{connection.project}")
    return service_client(MONITORING, connection)().create_time_series(request=request, timeout=seconds, retry=None)


def _export(signal: str, request_name: str, group: str) -> Ask:
    """Return a function that exports a resource without spans or metrics; the resource names the project."""

    def ask(connection: Connection, seconds: float) -> object:
        messages = load(f"{_COLLECTORS}.{signal}.v1.{signal}_service_pb2")
        request: Any = getattr(messages, request_name)()
        attributes = getattr(request, group).add().resource.attributes
        for key, value in (
            (semconv.GCP_PROJECT_ID, connection.project),
            (semconv.LOCATION, NOWHERE),
            (semconv.SERVICE_NAME, __package__),
            (semconv.SERVICE_INSTANCE_ID, "doctor"),
        ):
            attributes.add(key=key).value.string_value = value
        return stub(signal, connection).Export(request, timeout=seconds)

    return ask


QUESTIONS: Final[dict[Service, tuple[Question, ...]]] = {
    TRACE: (Question("BatchWriteSpans", "google.cloud.trace_v2", _write_spans),),
    MONITORING: (Question("CreateTimeSeries", "google.cloud.monitoring_v3", _write_series),),
    TELEMETRY: (
        Question("traces", _COLLECTORS, _export("trace", "ExportTraceServiceRequest", "resource_spans")),
        Question("metrics", _COLLECTORS, _export("metrics", "ExportMetricsServiceRequest", "resource_metrics")),
    ),
}

# The meaning of a failure, by its cause (`Failure.cause`) or code.
_MEANINGS: Final = {
    "api": "its API is disabled",
    "credentials": "the credentials are invalid",
    "proxy": "something other than the service answers",
    "quota project": "there is no usable quota project",
    "scopes": "the machine's access scopes do not allow writing",
    "PERMISSION_DENIED": "the role or the project is missing",
    "UNAUTHENTICATED": "the credentials are not accepted",
    "NOT_FOUND": "there is no such project",
    "UNIMPLEMENTED": "the address belongs to another service",
    "DEADLINE_EXCEEDED": "there is no answer in time",
    "UNAVAILABLE": "there is no connection, or nothing answers",
    "RESOURCE_EXHAUSTED": "the quota is used up",
}
# A service may reject a request because it is empty. It does so only after it has granted access.
_LET_IN: Final = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE"})
_ABOUT_THE_PROJECT: Final = re.compile(r"\bname\b.*\binvalid|name must|invalid project|project\S* (was )?not", re.I)
_PASSING: Final = (status_codes.LATER | status_codes.UNSURE) - status_codes.NO_ANSWER
_AGAIN: Final = "this may be temporary: try again"
_BEYOND: Final = (
    "check what is behind that address: a proxy, an emulator (OTEL_GOODPUT_GCP_ENDPOINT), or an outage at Google"
)


class Checked(NamedTuple):
    """Findings about a service, and the seconds that this machine's clock is ahead of the service's (None: unknown)."""

    findings: list[Finding]
    ahead_s: float | None = None


@dataclass(frozen=True)
class Asker:
    """Checks services with the job's credentials and project.

    Attributes:
        connection: the connection to Google.
        timeout_s: seconds for each stage of a connection and for each answer.
        needed: services that the job would use; failures of other services are no problem.
        owner: e-mail address of the credentials' owner; empty if unknown.
        project: the project to write to; empty if unknown.
        unasked: why no requests are sent; empty if they are.
    """

    connection: Connection
    timeout_s: float
    needed: frozenset[Service]
    owner: str = ""
    project: str = ""
    unasked: str = ""

    @property
    def longest_s(self) -> float:
        """Seconds after which callers should stop waiting for :meth:`check`."""
        # DNS, TCP, TLS, the server's time, and two requests, one of them sent twice, each take `timeout_s` at most.
        return 7 * self.timeout_s + 1

    def check(self, service: Service) -> Checked:
        """Connect to a service and send it empty requests. Each step has a time limit, except for the DNS lookup."""
        target = self.connection.target(service)
        try:
            reached = reach(target, encrypted=not self.connection.plaintext, timeout_s=self.timeout_s)
        except Unreachable as error:
            return Checked([self.judged(service, PROBLEM, str(error), error.do)])
        where = f"{target} is reached ({reached})"
        if self.unasked:
            finding = Finding(OK, service.name, f"{where}; no request was sent: {self.unasked}")
            return Checked([finding], reached.ahead_s)
        took: list[str] = []
        failures: dict[str, tuple[list[str], Failure]] = {}
        for question in QUESTIONS[service]:
            began = time.monotonic()
            failure = self._answer(question)
            if failure is None:
                took.append(f"{question.method} in {(time.monotonic() - began) * 1000:.0f} ms")
            else:
                methods, _ = failures.setdefault(failure.text, ([], failure))
                methods.append(question.method)
        findings = [self._failed(service, where, ", ".join(methods), why) for methods, why in failures.values()]
        if not failures:
            findings = [Finding(OK, service.name, f"{where} and accepts {', '.join(took)} (empty)")]
        return Checked(findings, reached.ahead_s)

    def _answer(self, question: Question) -> Failure | None:
        failure = self._try(question)
        if failure is not None and failure.code == "UNAUTHENTICATED":
            self.connection.renew()  # as the exporters do: a token may have been revoked before its expiry
            failure = self._try(question)
        return failure

    def _try(self, question: Question) -> Failure | None:
        try:
            question.ask(self.connection, self.timeout_s)
        except Exception as error:
            return failure_of(error)
        return None

    def _failed(self, service: Service, where: str, method: str, failure: Failure) -> Finding:
        said, cause = f"{failure.code}: {short(failure.text)}", failure.cause
        if cause in _LET_IN and _ABOUT_THE_PROJECT.search(failure.text):
            cause = "NOT_FOUND"
        if cause in _LET_IN:
            return Finding(OK, service.name, f"{where} and grants access; it answers an empty {method} with {said}")
        meaning = _MEANINGS.get(cause, "it refuses")
        what = f"{where}, but {meaning}: {method}: {said}"
        level = WARNING if cause in _PASSING else PROBLEM
        return self.judged(service, level, what, self._help(service, cause), f"{service.name}: {meaning}")

    def _help(self, service: Service, cause: str) -> str:
        if cause == "PERMISSION_DENIED":
            return (
                f"if {self.project!r} is the right project, grant the role: `gcloud projects add-iam-policy-binding "
                f"{shlex.quote(self.project)} --member={self._member()} --role={service.role}`"
            )
        help_ = cure(cause, service, self.connection.target(service), self.project)
        return help_ or (_AGAIN if cause in _PASSING else _BEYOND)

    def _member(self) -> str:
        kind = "user" if self.owner and not self.owner.endswith(".gserviceaccount.com") else "serviceAccount"
        return f"{kind}:{self.owner or 'EMAIL'}"

    def judged(self, service: Service, level: str, what: str, do: str, brief: str = "") -> Finding:
        """Return a finding about a service; its level is OK if the job does not need the service."""
        if service in self.needed:
            return Finding(level, service.name, what, do, brief or f"{service.name} cannot be reached")
        return Finding(OK, service.name, f"no active exporter needs it; {what}", do)
