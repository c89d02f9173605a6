"""``otel-goodput send``: what the exporter `file` wrote arrives as it was exported; and what becomes of the rest."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
import warm
from exporters.backends import grpc_backend
from exporters.telemetry import rich_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from waits import until

from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext

from ..commands import PATIENCE_S, environment, goodput, succeeded
from .receivers import TAKE, Say, http_receiver
from .sending import (
    BACKENDS,
    GRPC,
    HTTP,
    LATER,
    PARTLY,
    RECEIVERS,
    REFUSED,
    UNSURE,
    answer,
    arrived,
    lines,
    plain,
    send,
)  # fmt: skip


@pytest.mark.parametrize("wire", BACKENDS)
def test_everything_arrives_as_it_was_exported_and_once(wire: str, run: Path) -> None:
    with BACKENDS[wire]() as received:
        there: dict[str, Any] = {"to": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=hush-hush", "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
        output = succeeded(goodput("send", run.parent, OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, **headers))
        assert arrived(received.traces) == lines(run, "traces")
        assert arrived(received.metrics) == lines(run, "metrics")
        assert received.headers[0]["x-key"] == "hush-hush"
        assert f"({len(received.span_names())} spans) sent to http://127.0.0.1:" in output
        count = len(received.traces) + len(received.metrics)
        assert all("0 requests" in line for line in succeeded(send(run, **there)).splitlines())
        assert len(received.traces) + len(received.metrics) == count
        succeeded(send(run, "--again", **there))
        assert len(received.traces) + len(received.metrics) == 2 * count
    states = list(run.glob("*.jsonl.sent"))
    assert len(states) == 2
    for state in states:
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        assert "hush" not in state.read_text()


@pytest.mark.parametrize("wire", BACKENDS)
def test_every_field_arrives(wire: str, tmp_path: Path) -> None:
    exporter = open_exporter("file", ExporterContext("job", "run", attempt=0, process_index=0, directory=tmp_path))
    assert exporter.span_exporter is not None
    exporter.span_exporter.export(rich_spans())
    exporter.span_exporter.shutdown()
    with BACKENDS[wire]() as received:
        succeeded(send(tmp_path, "--endpoint", received.endpoint, "--protocol", wire, to="http://127.0.0.1:9"))
        assert arrived(received.traces) == lines(tmp_path, "traces")


@pytest.mark.parametrize("wire", BACKENDS)
def test_a_receiver_that_is_down_and_then_up(wire: str, run: Path, port: int) -> None:
    closed = f"http://127.0.0.1:{port}"
    down = send(run, "--timeout", "0.5", to=closed, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
    count = len(lines(run, "traces")) + len(lines(run, "metrics"))
    assert down.returncode == 1
    assert f"; {count} requests are left; run this command again to continue" in down.stderr
    assert "Traceback" not in down.stderr
    with BACKENDS[wire]() as received:
        output = succeeded(send(run, "--json", to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert json.loads(output)["done"]
        assert arrived(received.traces) == lines(run, "traces")
        assert arrived(received.metrics) == lines(run, "metrics")
        assert "twice" not in output


def test_it_waits_for_a_receiver_that_comes(traces: Path, port: int) -> None:
    variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL=HTTP)
    command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(traces), "--json"]
    with warm.Process(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        # It has begun, and found nobody.
        until(traces.with_name(f"{traces.name}.sent").exists)
        with http_receiver(lambda _: TAKE, port) as received:
            output, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert arrived(received.traces) == lines(traces.parent, "traces")
    assert json.loads(output)["files"][0]["repeated"] == 0


@pytest.mark.parametrize("wire", RECEIVERS)
def test_what_is_refused_for_now_comes_again_and_what_is_refused_is_left_out(wire: str, traces: Path) -> None:
    script = {1: LATER[wire], 2: LATER[wire], 6: REFUSED[wire]}
    with RECEIVERS[wire](lambda number: script.get(number, TAKE)) as received:
        done = send(traces, "--json", to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        expected = lines(traces.parent, "traces")
        del expected[4]  # two came again before it
        assert arrived(received.traces) == expected
        (account,) = answer(done)["files"]
        # Over gRPC a receiver's UNAVAILABLE looks as one that comes of a broken connection.
        assert (done.returncode, account["refused"], account["repeated"]) == (1, 1, int(wire == GRPC))
        assert f"{traces.name}:5: refused: " in done.stderr
        assert send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire).returncode == 1
        assert arrived(received.traces) == expected


@pytest.mark.parametrize("wire", RECEIVERS)
@pytest.mark.parametrize("bad", [{4}, {4, 5, 6}, {0, 2}], ids=str)
def test_lines_at_which_a_receiver_fails_do_not_stop_the_others(wire: str, bad: set[int], traces: Path) -> None:
    expected = lines(traces.parent, "traces")
    bad_ids = {expected[number]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"] for number in bad}

    def fails(request: ExportTraceServiceRequest) -> Say | None:
        span = request.resource_spans[0].scope_spans[0].spans[0]
        return UNSURE[wire] if span.span_id.hex() in bad_ids else None

    with RECEIVERS[wire](lambda _: TAKE, by_content=fails) as received:
        done = send(traces, "--json", to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        (account,) = answer(done)["files"]
        assert (done.returncode, account["refused"], account["left"]) == (1, len(bad), 0)
        for number in bad:
            assert f"{traces.name}:{number + 1}: refused: " in done.stderr
        assert arrived(received.traces) == [line for number, line in enumerate(expected) if number not in bad]


@pytest.mark.parametrize("wire", RECEIVERS)
def test_a_receiver_that_fails_costs_no_line(wire: str, run: Path, traces: Path) -> None:
    expected = lines(run, "traces")
    last = traces.with_name("traces-z.jsonl")
    last.write_bytes(traces.read_bytes().splitlines(keepends=True)[0])
    there = {"OTEL_EXPORTER_OTLP_PROTOCOL": wire}
    with RECEIVERS[wire](lambda number: TAKE if number < 3 else UNSURE[wire]) as received:
        done = send(traces, last, "--json", to=received.endpoint, **there)
        assert [account["left"] for account in answer(done)["files"]] == [len(expected) - 3, 1]
        assert (done.returncode, len(received.traces)) == (1, 3)
        assert f"; {len(expected) - 2} requests are left; run this command again to continue" in done.stderr
    # At the last line nothing follows that could tell: it is left, and other files go.
    with RECEIVERS[wire](lambda number: UNSURE[wire] if number == len(expected) - 1 else TAKE) as received:
        done = send(traces, last, "--json", to=received.endpoint, **there)
        assert [account["left"] for account in answer(done)["files"]] == [1, 0]
        assert done.returncode == 1
        output = succeeded(send(traces, last, to=received.endpoint, **there))
        assert "twice" not in output
        assert arrived(received.traces) == [*expected[:-1], expected[0], expected[-1]]


@pytest.mark.parametrize("wire", RECEIVERS)
def test_a_failure_that_passes_costs_no_line(wire: str, traces: Path) -> None:
    expected = lines(traces.parent, "traces")
    with RECEIVERS[wire](lambda number: UNSURE[wire] if number == 2 else TAKE) as received:
        succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert arrived(received.traces) == [*expected[:2], expected[3], expected[2], *expected[4:]]


@pytest.mark.parametrize("wire", RECEIVERS)
def test_files_sent_out_of_turn_are_reported_when_cut_off(wire: str, traces: Path) -> None:
    script = {2: UNSURE[wire], 4: Say(grpc.StatusCode.UNAUTHENTICATED) if wire == GRPC else Say(401)}
    there = {"OTEL_EXPORTER_OTLP_PROTOCOL": wire}
    with RECEIVERS[wire](lambda number: script.get(number, TAKE)) as received:
        assert send(traces, to=received.endpoint, **there).returncode == 1
        output = succeeded(send(traces, to=received.endpoint, **there))
        assert "one request may arrive twice" in output
        assert arrived(received.traces)[4:] == lines(traces.parent, "traces")[3:]


@pytest.mark.parametrize("wire", RECEIVERS)
def test_a_lost_answer_is_reported(wire: str, traces: Path) -> None:
    over = threading.Event()
    lost = Say(keep=True, drop=True) if wire == HTTP else Say(keep=True, hang=over)
    with RECEIVERS[wire](lambda number: lost if number == 0 else TAKE) as received:
        try:
            short = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.3", "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
            output = succeeded(send(traces, to=received.endpoint, **short))
        finally:
            over.set()
        assert ", 1 possibly duplicated" in output
        expected = lines(traces.parent, "traces")
        assert arrived(received.traces) == [expected[0], *expected]


@pytest.mark.parametrize("wire", RECEIVERS)
def test_a_wish_to_be_asked_later_is_respected(wire: str, traces: Path) -> None:
    long = {
        GRPC: Say(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=3600),
        HTTP: Say(429, headers=(("retry-after", "3600"),)),
    }
    with RECEIVERS[wire](lambda _: long[wire]) as received:
        done = send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        assert done.returncode == 1
        assert len(received.headers) == 1  # an hour is more than it has


@pytest.mark.parametrize("when", ["Mon, 01 Jan 2024 00:00:00 +9999999999999999", "soon", "9" * 400])
def test_a_moment_that_is_none_is_no_wish(when: str, traces: Path) -> None:
    odd = Say(503, headers=(("retry-after", when),))
    with RECEIVERS[HTTP](lambda number: odd if number == 0 else TAKE) as received:
        done = send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=HTTP)
        assert "Traceback" not in done.stderr
        if when.isdecimal():
            assert done.returncode == 1, "more than any time that it has"
        else:
            succeeded(done)
            assert arrived(received.traces) == lines(traces.parent, "traces")


CLOSED = {
    "grpc credentials": (GRPC, Say(grpc.StatusCode.UNAUTHENTICATED)),
    "grpc service": (GRPC, Say(grpc.StatusCode.UNIMPLEMENTED)),
    "http credentials": (HTTP, Say(401)),
    "http place": (HTTP, Say(404)),
    "http redirection": (HTTP, Say(302, headers=(("location", "http://127.0.0.1:9/"),))),
    "http page": (HTTP, Say(200, headers=(("content-type", "text/html"),), body=b"<p>sign in")),
}


@pytest.mark.parametrize("case", CLOSED)
def test_a_wrong_place_or_wrong_credentials_cost_no_line(case: str, traces: Path) -> None:
    wire, say = CLOSED[case]
    with RECEIVERS[wire](lambda number: say if number == 3 else TAKE) as received:
        done = send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        assert done.returncode == 1
        assert "run this command again to continue" in done.stderr
        assert case != "http redirection" or "a redirect to http://127.0.0.1:9/" in done.stderr
        assert len(received.headers) == 4
        output = succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert "twice" not in output
        assert arrived(received.traces) == lines(traces.parent, "traces")


NO_OTLP = {
    "text": Say(200, keep=True, headers=(("content-type", "text/plain"),), body=b"OK"),
    "no message": Say(200, keep=True, headers=(("content-type", "application/x-protobuf"),), body=b"\xff" * 9),
    "too long": Say(200, keep=True, headers=(("content-type", "application/x-protobuf"),), body=bytes(2**20 + 1)),
}


@pytest.mark.parametrize("case", NO_OTLP)
def test_a_success_that_is_not_otlp_s_costs_no_line(case: str, traces: Path) -> None:
    there = {"OTEL_EXPORTER_OTLP_PROTOCOL": HTTP}
    with RECEIVERS[HTTP](lambda number: NO_OTLP[case] if number == 3 else TAKE) as received:
        done = send(traces, to=received.endpoint, **there)
        assert done.returncode == 1
        assert "run this command again to continue" in done.stderr
        assert "1 possibly duplicated" in succeeded(send(traces, to=received.endpoint, **there))
        expected = lines(traces.parent, "traces")
        assert arrived(received.traces) == [*expected[:4], *expected[3:]]


@pytest.mark.parametrize("wire", RECEIVERS)
def test_the_rejected_part_of_a_request_is_reported(wire: str, traces: Path) -> None:
    with RECEIVERS[wire](lambda number: PARTLY if number == 2 else TAKE) as received:
        done = send(traces, "--json", to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        (account,) = answer(done)["files"]
        assert (done.returncode, account["rejected"]) == (1, 1)
        assert account["spans"] == len(received.span_names()) - 1
        assert f"{traces.name}:3: 1 of " in done.stderr and "not accepted: too old" in done.stderr


def test_parts_go_in_order(traces: Path) -> None:
    content = traces.read_bytes().splitlines(keepends=True)
    stem = traces.name.removesuffix(".jsonl")
    for number, line in enumerate(content[1:11], 1):
        traces.with_name(f"{stem}.{number}.jsonl").write_bytes(line)
    traces.write_bytes(content[0])
    with grpc_backend() as received:
        succeeded(send(traces.parent, traces, to=received.endpoint))
        assert arrived(received.traces) == [plain(json.loads(line)) for line in content[:11]]


def test_a_damaged_line_is_left_out(traces: Path) -> None:
    content = traces.read_bytes().splitlines(keepends=True)
    expected = [plain(json.loads(line)) for line in (content[1], *content[3:])]
    traces.write_bytes(b"".join([b"\0" * 40 + b"\n", content[1], content[2][:40] + b"\n", *content[3:]]))
    with grpc_backend() as received:
        done = send(traces, to=received.endpoint)
        assert done.returncode == 1
        assert "2 unreadable" in done.stdout
        assert f"{traces.name}:1: not an OTLP JSON line" in done.stderr
        assert arrived(received.traces) == expected
        assert "0 requests, 2 unreadable" in send(traces, to=received.endpoint).stdout
        assert arrived(received.traces) == expected
