"""A strict stand-in for Cloud Trace, Cloud Monitoring and telemetry.googleapis.com, on one local port.

    with GoogleEmulator() as google:
        …                       # write to google.endpoint
        google.spans, google.series, google.refusals

`python -m emulators.google` runs it by itself.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import trustme
from google.api.metric_pb2 import MetricDescriptor
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from emulators import picture
from emulators.access_rules import CALLER_RULES, CallerCase
from emulators.cloud_monitoring import CloudMonitoring
from emulators.cloud_trace import CloudTrace
from emulators.faults import Fault, Faults, Gone
from emulators.records import Method, Point, Records, Refusal, Refused, Request, SeriesBook, SeriesKey
from emulators.telemetry import Telemetry

THREADS = 32
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1))


class GoogleEmulator:
    """Google Cloud's telemetry services for these projects; a context manager.

    `tokens`, where given, are the access tokens that are taken (looked up at each call); `tls` serves with a
    certificate for localhost and 127.0.0.1 whose authority is the file `certificate`; `now` tells the time in ns;
    `span_quota` is how many writes of spans a minute may see.

    Lists are the emulator's own and grow while one looks on (clearing them forgets what was in them); dicts are
    copies made at the moment.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        projects: Sequence[str] = ("test-project",),
        tls: bool = False,
        tokens: Collection[str] | None = None,
        now: Callable[[], int] = time.time_ns,
        span_quota: int = 4800,
    ) -> None:
        self._port, self._tls, self._tokens, self._now = port, tls, tokens, now
        self._records, self._faults = Records(), Faults()
        services = (
            CloudTrace(self._records, projects, span_quota),
            CloudMonitoring(self._records, projects),
            Telemetry(self._records, projects),
        )
        self._methods = {path: method for service in services for path, method in service.methods.items()}
        self._exits = ExitStack()
        self.endpoint = ""
        self.certificate = ""

    def __enter__(self) -> GoogleEmulator:
        with ExitStack() as exits:
            pool = exits.enter_context(ThreadPoolExecutor(THREADS, "google"))
            server = grpc.server(pool, (_Handlers(self._methods, self._answer),), options=OPTIONS)
            address = f"127.0.0.1:{self._port}"
            if self._tls:
                credentials = self._certify(Path(exits.enter_context(tempfile.TemporaryDirectory())))
                self.endpoint = f"127.0.0.1:{server.add_secure_port(address, credentials)}"
            else:
                self.endpoint = f"http://127.0.0.1:{server.add_insecure_port(address)}"
            server.start()
            exits.callback(lambda: server.stop(None).wait())  # waiting clients get an error, and write nothing any more
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _certify(self, folder: Path) -> grpc.ServerCredentials:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        self.certificate = str(folder / "authority.pem")
        authority.cert_pem.write_to_path(self.certificate)
        chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
        return grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])

    @property
    def spans(self) -> list[Any]:
        """Spans of Cloud Trace (the raw protobuf messages `Span.pb()`), one of each name."""
        return self._records.traces.spans

    @property
    def otlp_spans(self) -> list[OtlpSpan]:
        return self._records.otlp_traces.spans

    @property
    def series(self) -> dict[SeriesKey, list[Point]]:
        return self._series(self._records.metrics)

    @property
    def otlp_series(self) -> dict[SeriesKey, list[Point]]:
        """By the metric's name and the `prometheus_target` that the resource makes; numbers are floats."""
        series = self.target_series
        return {key._replace(type=key.type.split("/", 1)[1].rpartition("/")[0]): of for key, of in series.items()}

    @property
    def target_series(self) -> dict[SeriesKey, list[Point]]:
        """The same, by the types that the metrics have in Cloud Monitoring."""
        return self._series(self._records.otlp_metrics)

    @property
    def descriptors(self) -> dict[str, MetricDescriptor]:
        with self._records.lock:
            return dict(self._records.metrics.descriptors)

    @property
    def requests(self) -> list[Request]:
        return self._records.requests

    @property
    def refusals(self) -> list[Refusal]:
        """The items that broke a rule; not those that were refused along with them."""
        return self._records.refusals

    @property
    def notes(self) -> list[Refusal]:
        return self._records.notes

    def fail(
        self,
        method: str,
        code: grpc.StatusCode | str,
        times: int | None = 1,
        *,
        after_write: bool = False,
        text: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        """Answer the next calls (`times` None: all until `heal`) of a method (`*`: of any) with an error.

        `after_write`: what they bring is stored all the same. `text` "" says what Google says.
        """
        code = grpc.StatusCode[code] if isinstance(code, str) else code
        self._faults.fail(Fault(method, code, times, after_write, text, retry_after_s))

    def deny(self, metric: str, code: grpc.StatusCode, text: str) -> None:
        """Write a request's other series until `heal`, and answer with this code and `text` about this metric's."""
        self._records.denied[metric] = Refused(code, text)

    def hang(self, method: str = "*") -> None:
        """Take calls and do not answer until `heal`; whoever still waits then gets an answer."""
        self._faults.wait(method, None)

    def slow(self, method: str, seconds: float) -> None:
        """Answer after this time; what a client brings that has left by then is not stored."""
        self._faults.wait(method, seconds)

    def heal(self) -> None:
        self._faults.heal()
        self._records.denied.clear()

    def _series(self, book: SeriesBook) -> dict[SeriesKey, list[Point]]:
        with self._records.lock:
            return {key: list(points) for key, points in book.series.items()}

    def _answer(self, method: Method, message: Any, context: grpc.ServicerContext) -> Any:
        metadata = dict(context.invocation_metadata())
        request = Request(method.name, self._now(), method.items(message), "", metadata)
        self._records.requests.append(request)
        try:
            answer = self._consider(method, message, request, context)
        except Gone:
            request.code = grpc.StatusCode.CANCELLED.name
            return None
        except Refused as refused:
            request.code = refused.code.name
            context.set_trailing_metadata(refused.trailers())
            context.abort(refused.code, refused.text)
        request.code = grpc.StatusCode.OK.name
        return answer

    def _consider(self, method: Method, message: Any, request: Request, context: grpc.ServicerContext) -> Any:
        case = CallerCase(str(request.metadata.get("authorization", "")), self._tokens)
        refused = self._records.refuse(CALLER_RULES, case, method.name)
        if refused is not None:
            raise refused
        self._faults.hold(method.name, context)
        fault = self._faults.take(method.name)
        if fault is not None and not fault.after_write:
            raise fault.error(method.name)
        with self._records.lock:
            try:
                answer = method.answer(message, self._now())
            except Refused:
                if fault is None:
                    raise
        if fault is not None:
            raise fault.error(method.name)
        return answer


class _Handlers(grpc.GenericRpcHandler):
    """The methods by their path; what is not there is UNIMPLEMENTED."""

    def __init__(self, methods: dict[str, Method], answer: Callable[[Method, Any, grpc.ServicerContext], Any]) -> None:
        self._methods, self._answer = methods, answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: self._answer(method, message, context),
            request_deserializer=method.request.FromString,
            response_serializer=lambda answer: b"" if answer is None else answer.SerializeToString(),  # the client left
        )


def arrived(google: GoogleEmulator) -> str:
    """What arrived, for people."""
    parts = {
        "Cloud Trace": picture.tree(google.spans) if google.spans else "",
        "Cloud Monitoring": picture.table(google.series) if google.series else "",
        "OTLP spans": picture.tree(google.otlp_spans) if google.otlp_spans else "",
        "OTLP series": picture.table(google.otlp_series) if google.otlp_series else "",
        "Refused": "\n".join(f"{refusal.rule}: {refusal.what}: {refusal.text}" for refusal in google.refusals),
    }
    return "\n\n".join(f"{title}\n\n{text}" for title, text in parts.items() if text) or "Nothing arrived."


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser("emulators.google", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0, the default: a free one")
    parser.add_argument("--tls", action="store_true", help="serve with a certificate made for this run")
    parser.add_argument("--project", nargs="+", default=["test-project"], help="ids of the projects that there are")
    parser.add_argument("--print", action="store_true", help="at the end, print what arrived")
    given = parser.parse_args(arguments)
    ends = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # a handler would not be run if it came just before the wait
    with GoogleEmulator(port=given.port, tls=given.tls, projects=given.project) as google:
        print(google.endpoint, google.certificate, flush=True)
        signal.sigwait(ends)
    if given.print:
        print(arrived(google))
    return 0


if __name__ == "__main__":
    sys.exit(main())
