"""``otel-goodput doctor`` and exporters: against real receivers, silent ones and dead ports."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from exporters.backends import grpc_backend, http_backend, silent_backend, stalled_grpc_backend
from http_server import HttpServer, Request, Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_server import otlp_server

from otel_goodput._runtime.installation import install_command

from ..commands import goodput
from .examined import checked, doctor, doctor_without, findings

DEAD = "http://127.0.0.1:9"


def test_a_machine_on_which_nothing_is_set(place: Path) -> None:
    done = doctor(place)
    answer = checked(done)
    assert (done.returncode, answer["problems"], answer["warnings"]) == (0, 0, 0), done.stdout
    assert answer["verdict"] == "Ready: the job keeps a journal and exports with file"
    assert answer["run_id"] is None
    assert answer["directory"] == "goodput"
    assert {"python", "opentelemetry-api", "opentelemetry-sdk"} <= answer["versions"].keys()
    assert str(place / "goodput") in findings(done, "journal", "ok")
    where = str(place / "goodput" / "<run id>")
    assert answer["exports"] == [
        {"exporter": "file", "signal": "traces", "where": f"{where}/traces-*.jsonl"},
        {"exporter": "file", "signal": "metrics", "where": f"{where}/metrics-*.jsonl"},
    ]


def test_text_for_people(place: Path) -> None:
    done = goodput("doctor", cwd=place, OTEL_GOODPUT_EXPORTERS="file,floppy", OTEL_SERVICE_NAME="llama")
    assert done.returncode == 1
    assert done.stdout.startswith("1 problem: OTEL_GOODPUT_EXPORTERS is ignored\n\nok ")
    assert "\nproblem  settings: OTEL_GOODPUT_EXPORTERS is ignored; 'auto' is used: " in done.stdout
    assert "\nok       run: run 'llama' has no journal on this machine yet\n" in done.stdout


@pytest.mark.parametrize(
    ("variables", "status", "line"),
    [
        ({"OTEL_GOODPUT_EXPORTERS": "none"}, 0, "Ready: the job keeps a journal, and this process exports nothing"),
        (
            {"OTEL_GOODPUT_EXPORTERS": "file,console", "OTEL_GOODPUT_EXPORTER": "x", "OTEL_GOODPUT_RUN": "x"},
            0,
            "Ready: the job keeps a journal and exports with file, console; 2 warnings",
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "OTEL_GOODPUT_PROCESSES": "leader"},
            0,
            "Ready: the job keeps a journal, and this process exports nothing",
        ),
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "2",
                "OTEL_GOODPUT_EXPORTERS": "file,workload",  # which has metrics alone
                "OTEL_GOODPUT_GCP_ENDPOINT": DEAD,
                "OTEL_GOODPUT_GCP_PROJECT": "test-project",
            },
            0,
            "Ready: the job keeps a journal and exports with file",
        ),
        ({"OTEL_SDK_DISABLED": "true"}, 0, "Off: OTEL_SDK_DISABLED is set, so nothing is recorded; 1 warning"),
        (
            {"OTEL_GOODPUT_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": DEAD, "OTEL_GOODPUT_WINDOWS": "x"},
            1,
            "2 problems: OTEL_GOODPUT_WINDOWS is ignored, exporter otlp cannot send traces and metrics",
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "2", "OTEL_GOODPUT_DIR": "/proc/none", "OTEL_GOODPUT_EXPORTER": "x"},
            1,
            "2 problems: RANK contradicts WORLD_SIZE, the journal cannot be written; 1 warning",
        ),
        (
            dict.fromkeys(
                (
                    "OTEL_GOODPUT_WINDOWS",
                    "OTEL_GOODPUT_EXPORTERS",
                    "OTEL_GOODPUT_GRACE_PERIOD",
                    "OTEL_METRIC_EXPORT_INTERVAL",
                    "OTEL_BSP_SCHEDULE_DELAY",
                    "OTEL_EXPORTER_OTLP_PROTOCOL",
                ),
                "nonsense",
            ),
            1,
            "and 2 more",
        ),
    ],
)
def test_the_verdict(variables: dict[str, str], status: int, line: str, place: Path) -> None:
    done = doctor(place, **variables)
    answer = checked(done)
    assert (done.returncode, answer["verdict"].endswith(line)) == (status, True), answer["verdict"]
    people = goodput("doctor", cwd=place, TMPDIR=place.parent / "tmp", **variables)
    assert (people.returncode, people.stdout.splitlines()[:2]) == (status, [answer["verdict"], ""])


@pytest.mark.parametrize("wire", ["grpc", "http/protobuf"])
def test_a_receiver_that_takes_everything(wire: str, place: Path) -> None:
    with grpc_backend() if wire == "grpc" else http_backend() as received:
        done = doctor(
            place,
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=wire,
            OTEL_EXPORTER_OTLP_HEADERS="x-key=swordfish",
        )
        assert findings(done, "exporter otlp", "problem") == ""
        ok = findings(done, "exporter otlp", "ok")
        assert received.endpoint in ok
        assert f"({wire}): works (it accepted an empty export)" in ok
        assert received.headers[0]["x-key"] == "swordfish", "it is the real protocol"
        assert len(received.traces) == len(received.metrics) == 1
        assert received.span_names() == []
        assert received.metric_names() == set()
    assert "swordfish" not in done.stdout
    exports = {(one["exporter"], one["signal"]): one["where"] for one in json.loads(done.stdout)["exports"]}
    added = "" if wire == "grpc" else "/v1/traces"
    assert exports["otlp", "traces"] == f"{received.endpoint}{added} ({wire})"


PLAIN = {
    "headers": ("http://192.0.2.7:4317", {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=swordfish"}),
    "headers of a signal": ("http://192.0.2.7:4317", {"OTEL_EXPORTER_OTLP_METRICS_HEADERS": "x-key=swordfish"}),
    "no scheme": (
        "192.0.2.7:4317",
        {"OTEL_EXPORTER_OTLP_INSECURE": "true", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=swordfish"},
    ),
    "in the URL": ("http://me:swordfish@192.0.2.7:4318", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}),
}
NOT_PLAIN = {
    "nothing secret": ("http://192.0.2.7:4317", {}),
    "TLS": ("https://192.0.2.7:4317", {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=swordfish"}),
    "TLS by default": ("192.0.2.7:4317", {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=swordfish"}),
    "on this machine": ("http://127.0.0.1:9", {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=swordfish"}),
    "by name": ("http://localhost:9", {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=swordfish"}),
}


@pytest.mark.parametrize("case", [*PLAIN, *NOT_PLAIN])
def test_credentials_in_plain_text(case: str, place: Path) -> None:
    endpoint, variables = {**PLAIN, **NOT_PLAIN}[case]
    done = doctor(place, "--timeout", "0.3", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **variables)
    assert ("sent to 192.0.2.7 unencrypted" in findings(done, "exporter otlp", "warning")) is (case in PLAIN)
    assert "swordfish" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://me:swordfish@192.0.2.7:9/runs", True),
        ("simplecache::http://192.0.2.7:9/runs?sig=swordfish", True),
        ("https://me:swordfish@192.0.2.7:9/runs", False),
        ("http://me:swordfish@127.0.0.1:9/runs", False),
    ],
)
def test_credentials_of_a_journal_in_plain_text(url: str, plain: bool, place: Path) -> None:
    done = doctor(place, "--timeout", "0.3", OTEL_GOODPUT_DIR=url)
    assert ("sent to 192.0.2.7 unencrypted" in findings(done, "journal", "warning")) is plain
    assert "swordfish" not in done.stdout + done.stderr


def test_a_dead_port(place: Path) -> None:
    done = doctor(place, OTEL_EXPORTER_OTLP_ENDPOINT=DEAD)
    finding = findings(done, "exporter otlp", "problem")
    assert "traces and metrics to http://127.0.0.1:9 (grpc): nothing listens at 127.0.0.1:9 -> " in finding


@pytest.mark.parametrize("wire", ["grpc", "http/protobuf"])
def test_a_receiver_that_never_answers(wire: str, place: Path) -> None:
    started = time.monotonic()
    with silent_backend() as endpoint:
        done = doctor(place, "--timeout", "0.5", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
    assert endpoint in findings(done, "exporter otlp", "problem")
    assert time.monotonic() - started < 20


def test_a_receiver_that_takes_a_request_and_stalls(place: Path) -> None:
    with stalled_grpc_backend() as endpoint:
        done = doctor(place, "--timeout", "0.5", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert "DEADLINE_EXCEEDED" in findings(done, "exporter otlp", "problem")


def test_a_receiver_of_traces_alone(place: Path) -> None:
    """As tracing backends are."""
    with otlp_server(lambda *_: ExportTraceServiceResponse()) as endpoint:
        done = doctor(place, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert findings(done, "exporter otlp", "ok").startswith(f"traces to {endpoint}")
    finding = findings(done, "exporter otlp", "problem")
    assert finding.startswith(f"metrics to {endpoint}")
    assert "UNIMPLEMENTED" in finding
    assert "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" in finding


def test_a_path_that_is_not_there(place: Path) -> None:
    with http_backend() as received:
        done = doctor(
            place,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"{received.endpoint}/v1/traces",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
    finding = findings(done, "exporter otlp", "problem")
    assert "404" in finding
    assert "is the base URL" in finding


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_shown_with_where_it_leads(status: int, place: Path) -> None:
    def redirect(request: Request) -> Response:
        return Response(status, headers={"location": f"https://there.test{request.path}"})

    with HttpServer(redirect) as server:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        done = doctor(place, **variables)
    assert done.returncode == 1
    finding = findings(done, "exporter otlp", "problem")
    for signal in ("traces", "metrics"):
        problem = (
            f"it answers {status}, a redirect to https://there.test/v1/{signal} -> set OTEL_EXPORTER_OTLP_ENDPOINT"
        )
        assert f"{signal} to {server.url}/v1/{signal} (http/protobuf): {problem}" in finding


def test_signals_with_endpoints_of_their_own(place: Path) -> None:
    with grpc_backend() as over_grpc, http_backend() as over_http:
        done = doctor(
            place,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=over_grpc.endpoint,
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{over_http.endpoint}/v1/metrics",
            OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="http/protobuf",
        )
        assert len(over_grpc.traces) == len(over_http.metrics) == 1
    finding = findings(done, "exporter otlp", "ok")
    assert f"traces to {over_grpc.endpoint} (grpc): works" in finding
    assert f"metrics to {over_http.endpoint}/v1/metrics (http/protobuf): works" in finding


@pytest.mark.parametrize(
    ("endpoint", "wire", "problem"),
    [
        ("http://nosuch.invalid:4317", "grpc", "nosuch.invalid cannot be resolved"),
        ("127.0.0.1:9", "grpc", "nothing listens at 127.0.0.1:9 -> without http:// the connection is encrypted"),
        ("127.0.0.1:9", "http/protobuf", "needs http:// or https://"),
        ("http://127.0.0.1:99999", "grpc", "invalid endpoint"),
        ("http://", "http/protobuf", "invalid endpoint"),
        ("unix:///nowhere/socket", "grpc", "UNAVAILABLE"),
        (f"http://{'a' * 64}.example:4317", "grpc", "UnicodeError"),
    ],
)
def test_endpoints_that_lead_nowhere(endpoint: str, wire: str, problem: str, place: Path) -> None:
    done = doctor(
        place,
        "--timeout",
        "2",
        OTEL_GOODPUT_EXPORTERS="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=wire,
    )
    finding = findings(done, "exporter otlp", "problem")
    assert problem in finding, done.stdout


def test_the_ports_are_easily_confused() -> None:
    from otel_goodput.exporters.otlp_variables import endpoint

    over_http = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in endpoint(over_http, "traces").advice("it failed")
    over_grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in endpoint(over_grpc, "traces").advice("it failed")


def test_behind_a_proxy_there_is_nothing_to_connect_to(place: Path) -> None:
    """The name of the receiver need not even be known here; whether the proxy lets it through, the export tells."""
    done = doctor(
        place,
        "--timeout", "2",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://collector.invalid:4318", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        http_proxy=DEAD, no_proxy="",
    )  # fmt: skip
    finding = findings(done, "exporter otlp", "problem")
    assert "cannot be resolved" not in finding
    assert "collector.invalid:4318" in finding


def test_exporters_that_are_not_there(place: Path) -> None:
    unknown = doctor(place, OTEL_GOODPUT_EXPORTERS="file,floppy")
    assert "unknown exporter 'floppy'" in findings(unknown, "settings", "problem")
    nothing = doctor(place, OTEL_GOODPUT_EXPORTERS="none")
    assert "none is configured" in findings(nothing, "exporters", "ok")
    assert json.loads(nothing.stdout)["exports"] == []


@pytest.mark.parametrize("exporters", ["otlp", "auto"])
def test_the_extra_is_not_installed(exporters: str, place: Path) -> None:
    with grpc_backend() as received:
        done = doctor_without(
            "opentelemetry.exporter.otlp.proto.grpc",
            place,
            OTEL_GOODPUT_EXPORTERS=exporters,
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
        )
    assert install_command("otlp") in findings(done, "exporter otlp", "problem")
    assert ("reachable (the port accepts connections)" in findings(done, "exporter otlp", "ok")) == (
        exporters == "otlp"
    )


def test_complaints_of_exporters_are_shown_without_the_secret(place: Path) -> None:
    done = doctor(
        place,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://me:swordfish@127.0.0.1:9",
        OTEL_EXPORTER_OTLP_HEADERS="authorization swordfish",
    )
    assert "item 1 of OTEL_EXPORTER_OTLP_HEADERS is not a header" in findings(done, "exporter otlp", "warning")
    assert "http://***@127.0.0.1:9" in findings(done, "exporter otlp", "problem")
    assert "swordfish" not in done.stdout


def test_processes_that_do_not_export(place: Path) -> None:
    done = doctor(place, OTEL_GOODPUT_EXPORTERS="file", OTEL_GOODPUT_PROCESSES="leader", RANK="1", WORLD_SIZE="2")
    assert json.loads(done.stdout)["exports"] == []
    assert "the leading process exports the spans" in findings(done, "exporters", "ok")
    assert "the leading process exports the metrics" in findings(done, "exporters", "ok")


def test_usage_without_its_extra(place: Path) -> None:
    missing = doctor_without("psutil", place, OTEL_GOODPUT_USAGE_INTERVAL="10s")
    assert missing.returncode == 0
    assert f"psutil is not installed: nothing is sampled -> {install_command('usage')}" in findings(
        missing, "settings", "warning"
    )
    assert "psutil" not in doctor_without("psutil", place).stdout
    assert "psutil" not in doctor(place, OTEL_GOODPUT_USAGE_INTERVAL="10s").stdout
