"""One request brought to an end: tried again as long as that may help, then reported once, with what would help."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from otel_goodput.deadline import ShutdownSignal
from otel_goodput.exporters.google.connection import Connection, NoProject, Service, load
from otel_goodput.exporters.status_details import retry_delay, status_details
from otel_goodput.guard import logger, report_once
from otel_goodput.semconv import DROPPED
from otel_goodput.text.redact import shown

T = TypeVar("T")
Send = Callable[[float], object]
"""Sends the request, given the seconds that the answer may take."""


class Outcome(Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # it is the request's fault
    LATE = "late"  # not in time; it may help to send it again later
    CIRCUIT_OPEN = "circuit open"  # nothing is let through at present


@dataclass(frozen=True)
class RequestResult:
    """What became of a request, in the server's words.

    `repeated`: an earlier try of it got no answer and may have been taken. `written`: of a refused request, how many
    of its items were taken all the same; None where the server does not say.
    """

    outcome: Outcome
    text: str = ""
    repeated: bool = False
    written: int | None = None


# gRPC status codes: https://grpc.io/docs/guides/status-codes/
TRANSIENT: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNKNOWN"}
)
PERMANENT: Final = frozenset(
    {"PERMISSION_DENIED", "UNAUTHENTICATED", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"}
    | {"credentials", "project", "package"}  # no codes, but what there is where nobody could be asked
)
# After one of these the server cannot have taken anything.
UNTOUCHED: Final = frozenset({"RESOURCE_EXHAUSTED", "UNAUTHENTICATED"})

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 16.0
FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 600.0
LAST_WORD_S: Final = 0.2  # kept at the end of the process for telling what was not delivered
MOST_TOLD: Final = 5
_FIGURES: Final = re.compile(r"\d+")

# What the words of an error tell of its cause, over and above its code. The first that matches counts.
_CAUSES: Final = (
    (
        r"metadata from plugin failed|determine credentials|credentials were not found|invalid_grant|reauth",
        "credentials",
    ),
    (r"SERVICE_DISABLED|has not been used in project|it is disabled|is not enabled", "api"),
    (r"http1\.x|http2 header with status|content-type|<html|Stream removed", "proxy"),
    (r"HTTP proxy returned|ProxyError|Tunnel connection failed|WRONG_VERSION_NUMBER", "proxy"),
    (r"authentication scopes|SCOPE_INSUFFICIENT", "scopes"),
    (r"requires a quota project|USER_PROJECT_DENIED|serviceusage", "quota project"),
)
_CURES: Final = {
    "credentials": "on Google Cloud attach a service account to the machine or pod; elsewhere run `gcloud auth "
    "application-default login` or point GOOGLE_APPLICATION_CREDENTIALS to a key",
    "project": "set OTEL_GOODPUT_GCP_PROJECT",
    "package": "reinstall it: pip install --force-reinstall 'otel-goodput[gcp,gcp-otlp]'",
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


@dataclass(frozen=True)
class Failure:
    """An error of a call: gRPC's status code, the server's words, what it suggests to wait (s), items taken anyway."""

    code: str
    text: str
    wait_s: float | None = None
    written: int | None = None

    @property
    def cause(self) -> str:
        """A key of the table of cures: the cause that the words tell of, else the code."""
        return next((cause for words, cause in _CAUSES if re.search(words, self.text, re.IGNORECASE)), self.code)


class Delivery:
    """Requests to one service.

    Args:
        service: which.
        items: what is sent to it, for people.
        connection: to it.
        stopping: tells when the process stops and until when it waits.
        rpc_s: seconds that one answer may take.
        report: is told, as :func:`~otel_goodput.guard.report_once` is, why nothing can be delivered.
    """

    def __init__(
        self,
        service: Service,
        items: str,
        connection: Connection,
        stopping: ShutdownSignal,
        rpc_s: float,
        report: Callable[..., object] = report_once,
    ) -> None:
        self._service = service
        self._items = items
        self._report_once = report
        self._connection = connection
        self._stopping = stopping
        self._rpc_s = rpc_s
        self._open_until = 0.0
        self._openings = 0
        self._silent_since: float | None = None  # nothing has been delivered
        self._told: set[str] = set()

    def __call__(self, send: Send, budget_s: float) -> RequestResult:
        """Send a request, again and again until an answer settles it.

        Args:
            send: raises what gRPC or Google's client raises.
            budget_s: seconds for all tries together; when the process stops, until its end.
        """
        begun = time.monotonic()
        if begun < self._open_until and not self._stopping.begun:
            return RequestResult(Outcome.CIRCUIT_OPEN)
        until = begun + budget_s
        wait, repeated, renewed = FIRST_WAIT_S, False, False
        failure: Failure | None = None
        while (left := self._left(until)) > 0:
            seconds = min(left, self._rpc_s)
            try:
                self._connection.authorize(seconds)
                send(seconds)
            except Exception as error:
                failure = failure_of(error)
            else:
                self._arrived()
                return RequestResult(Outcome.DELIVERED, repeated=repeated)
            if failure.code == "UNAUTHENTICATED" and not renewed:
                renewed = True
                self._connection.renew()
                continue
            if failure.code in PERMANENT or failure.cause == "credentials":
                self._open_circuit(failure)
                return RequestResult(Outcome.CIRCUIT_OPEN, failure.text, repeated)
            if failure.code not in TRANSIENT:
                return RequestResult(Outcome.REFUSED, failure.text, repeated, failure.written)
            repeated = repeated or failure.code not in UNTOUCHED
            pause = failure.wait_s if failure.wait_s is not None else wait * random.uniform(0.7, 1.3)
            if pause >= self._left(until):
                break
            self._stopping.wait(pause)
            wait = min(2 * wait, LONGEST_WAIT_S)
        if failure is None:  # not one try: those before have told why, or the exporter was late itself
            return RequestResult(Outcome.LATE)
        self._late(failure)
        return RequestResult(Outcome.LATE, failure.text, repeated)

    def batch(self, request: Callable[[Sequence[T]], Send], items: Sequence[T], budget_s: float) -> RequestResult:
        """Send what `request` makes of some items. If it can make nothing of them, they count as refused."""
        try:
            send = request(items)
        except ImportError as error:  # a package is missing, which is no item's fault
            failure = failure_of(error)
            self._open_circuit(failure)
            return RequestResult(Outcome.CIRCUIT_OPEN, failure.text)
        except Exception as error:  # whatever an encoder finds odd
            return RequestResult(Outcome.REFUSED, f"{type(error).__name__}: {error}", written=0)
        return self(send, budget_s)

    def _left(self, until: float) -> float:
        """Seconds for further tries. When the process stops its end is what counts, whatever was given before."""
        if self._stopping.begun:
            return self._stopping.left(math.inf) - LAST_WORD_S
        return until - time.monotonic()

    # --- what people are told -----------------------------------------------------------------------------------------

    def refused(self, what: str, count: int, text: str) -> None:
        """The service does not want `count` items, of which `what` is one. Each reason is told once, of some."""
        reason = _FIGURES.sub("", text)
        if reason in self._told or len(self._told) >= MOST_TOLD:
            return
        self._told.add(reason)
        more = f" and {count - 1} more are" if count > 1 else " is"
        logger.warning(
            "%s: %s%s not accepted: %s; %s counts all refused items",
            self._service.name, what, more, short(text), DROPPED.name,
        )  # fmt: skip

    def _arrived(self) -> None:
        self._openings, self._open_until = 0, 0.0
        if self._silent_since is not None:
            lasted, self._silent_since = time.monotonic() - self._silent_since, None
            logger.info("%s accepts data again, after %.0f s", self._service.name, lasted)

    def _open_circuit(self, failure: Failure) -> None:
        self._silence()
        pause = min(FIRST_PAUSE_S * 2**self._openings, LONGEST_PAUSE_S)
        self._openings += 1
        self._open_until = time.monotonic() + pause
        minutes = LONGEST_PAUSE_S / 60
        self._report(failure, f"refuses {self._items}", f"it is retried after pauses of {minutes:.0f} min at most")

    def _late(self, failure: Failure) -> None:
        self._silence()
        away = failure.code == "UNAVAILABLE"
        self._report(failure, "cannot be reached" if away else f"does not accept {self._items}", "it is retried")

    def _silence(self) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()

    def _report(self, failure: Failure, what: str, then: str) -> None:
        service, said = self._service, short(failure.text).rstrip(".")
        help_ = cure(failure.cause, service, self._connection.target(service), self._project())
        then = "The process stops" if self._stopping.begun else f"Training goes on; {then}"
        self._report_once(
            f"{service.name} {failure.cause}",
            "%s %s: %s: %s%s. %s",
            service.name, what, failure.code, said, f"; {help_}" if help_ else "", then,
        )  # fmt: skip

    def _project(self) -> str:
        try:
            return self._connection.project
        except Exception:  # that there is none is what is being reported
            return "?"


def cure(cause: str, service: Service, target: str, project: str) -> str:
    """What may help against the cause of a failure; empty where nothing is known to."""
    return _CURES.get(cause, "").format(api=service.api, role=service.role, target=target, project=project)


def short(text: str) -> str:
    """The server's words, fit for one line of a log."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= 300 else line[:299] + "…"


def failure_of(error: Exception) -> Failure:
    """What an error of a call tells; what cannot be read is ``UNKNOWN``, and may be tried again."""
    try:
        return _read(error)
    except Exception as another:  # such as gRPC's of an answer that contradicts itself
        return Failure("UNKNOWN", f"{type(error).__name__}: {error!r}, whose text cannot be read: {another!r}")


def _read(error: Exception) -> Failure:
    if isinstance(error, NoProject):
        return Failure("project", str(error))
    if isinstance(error, ImportError):
        return Failure("package", str(error))
    auth = load("google.auth.exceptions")
    if isinstance(error, auth.GoogleAuthError):
        # What follows is the whole answer of the token's server, which may hold one.
        text = str(error.args[0] if error.args else error)
        passing = isinstance(error, auth.TransportError) or error.retryable
        return Failure("UNAVAILABLE" if passing else "credentials", text)
    # Google's clients wrap gRPC's error, which knows most.
    wrapped = next((one for one in getattr(error, "errors", ()) if hasattr(one, "code")), error)
    code: Any = getattr(wrapped, "code", None)
    if not callable(code):
        return Failure("UNKNOWN", f"{type(error).__name__}: {error}")
    status = code()
    name = getattr(status, "name", str(status))
    text = str(wrapped.details() or name) if hasattr(wrapped, "details") else str(error)
    return Failure(name, text, *_details(wrapped))


def _details(error: Any) -> tuple[float | None, int | None]:
    """What the status's details say: seconds to wait, items written."""
    written = None
    details = status_details(error)
    for detail in details:
        if detail.type_url.endswith("CreateTimeSeriesSummary"):
            types = load("google.cloud.monitoring_v3.types")
            summary = types.CreateTimeSeriesSummary.pb(types.CreateTimeSeriesSummary())
            if detail.Unpack(summary):
                written = summary.success_point_count
    return retry_delay(details), written
