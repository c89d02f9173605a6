"""Deliver requests: try again as long as that may help, then report the failure once, with what would help.

``google.api_core.retry`` is not used: it sleeps through the beginning of a shutdown, and so misses its deadline.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_goodput._runtime.deadline import LAST_WORD_S, ShutdownSignal
from otel_goodput._runtime.guard import logger, report_once
from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import shown
from otel_goodput.exporters import otlp_answers
from otel_goodput.exporters.google.connection import Connection, NoProject, Service, load
from otel_goodput.exporters.otlp_answers import retry_delay, status_details
from otel_goodput.semconv import DROPPED

T = TypeVar("T")
Send = Callable[[float], object]
"""Sends the request, given the seconds that the answer may take."""


class Outcome(Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # the request is at fault
    TIMED_OUT = "timed out"  # it may help to send it again later
    CIRCUIT_OPEN = "circuit open"  # requests are not sent for some time


class RequestResult(NamedTuple):
    """What became of a request, and the server's message.

    `repeated`: an earlier try got no answer and may have been accepted. `written`: how many items of a refused request
    were accepted all the same; None if the server does not say.
    """

    outcome: Outcome
    text: str = ""
    repeated: bool = False
    written: int | None = None


TRANSIENT: Final = otlp_answers.LATER | otlp_answers.UNSURE
PERMANENT: Final = otlp_answers.CLOSED | {"credentials", "project", "package"}  # causes known before a request is sent

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 16.0
FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 600.0
MOST_REASONS: Final = 5
_FIGURES: Final = re.compile(r"\d+")

# Patterns of error messages that tell the cause better than the status code. The first match counts.
_CAUSES: Final = {
    "credentials": r"metadata from plugin failed|determine credentials|credentials were not found|invalid_grant|reauth",
    "api": r"SERVICE_DISABLED|has not been used in project|it is disabled|is not enabled",
    "proxy": r"http1\.x|http2 header with status|content-type|<html|Stream removed|"
    r"HTTP proxy returned|ProxyError|Tunnel connection failed|WRONG_VERSION_NUMBER",
    "scopes": r"authentication scopes|SCOPE_INSUFFICIENT",
    "quota project": r"requires a quota project|USER_PROJECT_DENIED|serviceusage",
}
_ADVICE: Final = {
    "credentials": "on Google Cloud attach a service account to the machine or pod; elsewhere run `gcloud auth "
    "application-default login` or point GOOGLE_APPLICATION_CREDENTIALS to a key",
    "project": "set OTEL_GOODPUT_GCP_PROJECT",
    "package": "reinstall it: {install}",
    "api": "enable it: `gcloud services enable {api} --project {project}`",
    "proxy": "something between here and {target}, such as a proxy, answers instead: check https_proxy and no_proxy",
    "scopes": "give the machine the access scope cloud-platform (`gcloud compute instances set-service-account` with "
    "--scopes=cloud-platform; on GKE a node pool that has it, or Workload Identity)",
    "quota project": "`gcloud auth application-default set-quota-project {project}`, and in that project the role "
    "roles/serviceusage.serviceUsageConsumer",
    "PERMISSION_DENIED": "grant the job's service account {role} in project {project}",
    "UNAUTHENTICATED": "the credentials have expired or belong to another service; renew them (`gcloud auth "
    "application-default login`, or the service account's key)",
    "NOT_FOUND": "is {project!r} the right project? It is chosen by OTEL_GOODPUT_GCP_PROJECT",
    "UNIMPLEMENTED": "is {target} the right address? It is chosen by OTEL_GOODPUT_GCP_ENDPOINT",
    "RESOURCE_EXHAUSTED": "ask for more quota of {api} in project {project}, or export less often "
    "(OTEL_METRIC_EXPORT_INTERVAL, OTEL_GOODPUT_STEP_SAMPLING)",
}


class Failure(NamedTuple):
    """An error of a call: gRPC's status code, the message, the wait that it suggests (s), and items accepted anyway."""

    code: str
    text: str
    wait_s: float | None = None
    written: int | None = None

    @property
    def cause(self) -> str:
        """Key of the table of advice: the cause according to the message, else the code."""
        return next((cause for cause, words in _CAUSES.items() if re.search(words, self.text, re.I)), self.code)


@dataclass(eq=False)
class Delivery:
    """Delivers requests to one service, with retries and a circuit breaker.

    `items` is what is sent, a plural noun for messages, and `rpc_s` the timeout of one request. `report` is called like
    :func:`~otel_goodput._runtime.guard.report_once` with why nothing can be delivered.
    """

    service: Service
    items: str
    connection: Connection
    stopping: ShutdownSignal
    rpc_s: float
    report: Callable[..., object] = report_once
    _open_until = 0.0  # monotonic s
    _openings = 0  # of the circuit in a row
    _silent_since = 0.0  # when deliveries began to fail, monotonic s; 0: they do not
    _reported: set[str] = field(default_factory=set, init=False)

    def __call__(self, send: Send, budget_s: float) -> RequestResult:
        """Send a request, and try again until an answer settles it, `budget_s` are over, or the process has to end.

        `send` raises the errors of gRPC or Google's client.
        """
        begun = time.monotonic()
        if begun < self._open_until and not self.stopping.begun:
            return RequestResult(Outcome.CIRCUIT_OPEN)
        until = begun + budget_s
        wait, repeated, renewed = FIRST_WAIT_S, False, False
        failure: Failure | None = None
        while (left := self._left(until)) > 0:
            seconds = min(left, self.rpc_s)
            try:
                self.connection.authorize(seconds)
                send(seconds)
            except Exception as error:
                failure = failure_of(error)
            else:
                self._arrived()
                return RequestResult(Outcome.DELIVERED)
            if failure.code == "UNAUTHENTICATED" and not renewed:
                renewed = True
                self.connection.renew()
                continue
            if failure.cause == "credentials" or (failure.code in PERMANENT and failure.written is None):
                return self._open_circuit(failure, repeated)
            # An answer that counts what was written is about single items, whatever its code is. Those that were
            # written must not be sent again along with the others.
            if failure.written or failure.code not in TRANSIENT:
                return RequestResult(Outcome.REFUSED, failure.text, repeated, failure.written)
            repeated = repeated or failure.code not in otlp_answers.UNTOUCHED
            pause = failure.wait_s if failure.wait_s is not None else wait * random.uniform(0.7, 1.3)
            if pause >= self._left(until):
                break
            self.stopping.wait(pause)
            wait = min(2 * wait, LONGEST_WAIT_S)
        if failure is None:  # no time for a try: earlier requests used it and reported why, or the exporter was late
            return RequestResult(Outcome.TIMED_OUT)
        self._silent_since = self._silent_since or time.monotonic()
        # A service that does not answer in time has mostly been reported; this time there was too little time.
        if failure.code != "DEADLINE_EXCEEDED" or self.service.name not in self.connection.failing:
            what = "cannot be reached" if failure.code == "UNAVAILABLE" else f"does not accept {self.items}"
            self._report(failure, what, "it is retried")
        return RequestResult(Outcome.TIMED_OUT, failure.text, repeated)

    def batch(self, request: Callable[[Sequence[T]], Send], items: Sequence[T], budget_s: float) -> RequestResult:
        """Send the request that `request` makes of some items. If it cannot make one, they count as refused."""
        try:
            send = request(items)
        except ImportError as error:  # a package is missing; the items are not at fault
            return self._open_circuit(failure_of(error))
        except Exception as error:  # an encoder may raise anything for an odd value
            return RequestResult(Outcome.REFUSED, f"{type(error).__name__}: {error}", written=0)
        return self(send, budget_s)

    def project(self, budget_s: float) -> str | None:
        """Return the project; None if it or the credentials are not known, which is handled as a failed delivery."""
        lookup = self(lambda _: self.connection.project, budget_s)
        return self.connection.project if lookup.outcome is Outcome.DELIVERED else None

    def _left(self, until: float) -> float:
        """Return the seconds left for further tries. If the process stops, its end counts, not `until`."""
        if self.stopping.begun:
            return self.stopping.left(math.inf) - LAST_WORD_S
        return until - time.monotonic()

    def refused(self, what: str, count: int, text: str) -> None:
        """Log that the service refused `count` items, such as `what`: each reason once, `MOST_REASONS` in all."""
        reason = _FIGURES.sub("", text)
        if reason in self._reported or len(self._reported) >= MOST_REASONS:
            return
        self._reported.add(reason)
        more = f" and {count - 1} more are" if count > 1 else " is"
        logger.warning(
            "%s: %s%s not accepted: %s; %s counts all refused items",
            self.service.name, what, more, short(text), DROPPED.name,
        )  # fmt: skip

    def _arrived(self) -> None:
        self._openings, self._open_until = 0, 0.0
        self.connection.failing.discard(self.service.name)
        if self._silent_since:
            lasted, self._silent_since = time.monotonic() - self._silent_since, 0.0
            logger.info("%s accepts data again, after %.0f s", self.service.name, lasted)

    def _open_circuit(self, failure: Failure, repeated: bool = False) -> RequestResult:
        self._silent_since = self._silent_since or time.monotonic()
        self._open_until = time.monotonic() + min(FIRST_PAUSE_S * 2**self._openings, LONGEST_PAUSE_S)
        self._openings += 1
        minutes = LONGEST_PAUSE_S / 60
        self._report(failure, f"refuses {self.items}", f"it is retried after pauses of {minutes:.0f} min at most")
        return RequestResult(Outcome.CIRCUIT_OPEN, failure.text, repeated)

    def _report(self, failure: Failure, what: str, then: str) -> None:
        service, text = self.service, short(failure.text).rstrip(".")
        self.connection.failing.add(service.name)
        project = "?"
        with suppress(Exception):  # a missing project may be the very failure to report
            project = self.connection.project
        help_ = advice_on(failure.cause, service, self.connection.target(service), project)
        then = "The process stops" if self.stopping.begun else f"Training goes on; {then}"
        self.report(
            f"{service.name} {failure.cause}",
            "%s %s: %s: %s%s. %s",
            service.name, what, failure.code, text, f"; {help_}" if help_ else "", then,
        )  # fmt: skip


def advice_on(cause: str, service: Service, target: str, project: str) -> str:
    """Return what may help against the cause of a failure; empty if nothing is known."""
    install = install_command("gcp", "gcp-otlp", options="--force-reinstall") if cause == "package" else ""
    return _ADVICE.get(cause, "").format(
        api=service.api, role=service.role, target=target, project=project, install=install
    )


def short(text: str) -> str:
    """Return the server's message as one line of at most 300 characters, without credentials."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= 300 else line[:299] + "…"


def failure_of(error: Exception) -> Failure:
    """Return the failure that an error of a call means. An unreadable one is ``UNKNOWN``, and may be tried again."""
    try:
        if isinstance(error, (NoProject, ImportError)):
            return Failure("project" if isinstance(error, NoProject) else "package", str(error))
        return _read(error)
    except Exception as another:  # such as gRPC's error for a contradictory answer
        return Failure("UNKNOWN", f"{type(error).__name__}: {error!r}, whose text cannot be read: {another!r}")


def _read(error: Exception) -> Failure:
    auth = load("google.auth.exceptions")
    if isinstance(error, auth.GoogleAuthError):
        # The other arguments have the token server's whole answer, which may contain a token.
        text = str(error.args[0] if error.args else error)
        passing = isinstance(error, auth.TransportError) or error.retryable
        return Failure("UNAVAILABLE" if passing else "credentials", text)
    # Google's clients wrap gRPC's error, which has most details.
    wrapped = next((one for one in getattr(error, "errors", ()) if hasattr(one, "code")), error)
    code: Any = getattr(wrapped, "code", None)
    if not callable(code):
        return Failure("UNKNOWN", f"{type(error).__name__}: {error}")
    status = code()
    name = getattr(status, "name", str(status))
    text = str(wrapped.details() or name) if hasattr(wrapped, "details") else str(error)
    details, written = status_details(wrapped), None
    for detail in details:
        if detail.type_url.endswith("CreateTimeSeriesSummary"):
            types = load("google.cloud.monitoring_v3.types")
            summary = types.CreateTimeSeriesSummary.pb(types.CreateTimeSeriesSummary())
            written = summary.success_point_count if detail.Unpack(summary) else written
    return Failure(name, text, retry_delay(details), written)


# After so many items were rejected and none accepted, a rejected batch is dropped without being halved.
HOPELESS: Final = 16
# As long as Google's own client tries. Meanwhile new spans wait in the processor's queue.
PATIENCE_S: Final = 120.0


class DeliveredSpanExporter(SpanExporter):
    """A span exporter whose requests are delivered; a rejected batch is halved until the bad spans are alone."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._refused = 0

    def request(self, spans: Sequence[ReadableSpan]) -> Send:
        """Make one request of some spans, and return the function that sends it."""
        raise NotImplementedError

    @property
    def refused(self) -> int:
        return self._refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        until = time.monotonic() + PATIENCE_S
        waiting = [spans] if spans else []
        accepted, before = False, self._refused
        while waiting:
            batch = waiting.pop()
            answer = self._delivery.batch(self.request, batch, until - time.monotonic())
            if answer.outcome is Outcome.DELIVERED:
                accepted = True
            elif answer.outcome is not Outcome.REFUSED:
                return SpanExportResult.FAILURE
            elif len(batch) == 1 or (not accepted and self._refused - before >= HOPELESS):
                self._refused += len(batch)
                self._delivery.refused(f"span {str(batch[0].name)!r}", len(batch), answer.text)
            else:
                middle = len(batch) // 2
                waiting += [batch[middle:], batch[:middle]]
        return SpanExportResult.SUCCESS
