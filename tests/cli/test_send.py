"""``otel-goodput send``: what the `file` outlet wrote arrives as it was exported, once, however often it is sent."""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import json
import os
import pty
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
from exporters.backends import Received, grpc_backend, http_backend, poll
from exporters.telemetry import rich_spans
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_goodput.cli import main
from otel_goodput.exporters import Surroundings, open_outlet

from .commands import PATIENCE_S, environment, failed, finished, goodput, succeeded
from .receivers import TAKE, Say, grpc_receiver, http_receiver

GRPC, HTTP = "grpc", "http/protobuf"
BACKENDS = {GRPC: grpc_backend, HTTP: http_backend}
RECEIVERS = {GRPC: grpc_receiver, HTTP: http_receiver}
LATER = {GRPC: Say(grpc.StatusCode.UNAVAILABLE), HTTP: Say(503)}
REFUSED = {GRPC: Say(grpc.StatusCode.INVALID_ARGUMENT), HTTP: Say(400)}

RECORDER = """
import itertools, pathlib, sys, time
import otel_goodput as goodput

goodput.configure("job", directory=sys.argv[1], exporters="file")
over = pathlib.Path(sys.argv[2])
with goodput.job():
    for step, _ in goodput.steps(itertools.count()):
        if step >= 100 and over.exists():
            break
        time.sleep(0.002)
        if step % 20 == 5:
            with goodput.checkpoint_save(step), goodput.custom("look"):
                time.sleep(0.002)
"""


def recorder(directory: Path, over: Path) -> subprocess.Popen[bytes]:
    """A real job that exports to files, often; after a hundred steps it ends once `over` is there."""
    often = environment(OTEL_BSP_SCHEDULE_DELAY="15", OTEL_METRIC_EXPORT_INTERVAL="40")
    command = [sys.executable, "-W", "error", "-c", RECORDER, str(directory), str(over)]
    return subprocess.Popen(command, env=often)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    with recorder(directory, directory) as process:
        assert process.wait(PATIENCE_S) == 0
    return directory / "job"


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """The folder of a real run, with more than ten lines of spans and more than two of metrics."""
    shutil.copytree(recorded, tmp_path / "runs" / "job")
    assert len(lines(recorded, "traces")) > 10 and len(lines(recorded, "metrics")) > 2
    return tmp_path / "runs" / "job"


@pytest.fixture
def traces(run: Path) -> Path:
    (path,) = run.glob("traces-*.jsonl")
    return path


def lines(folder: Path, signal_: str) -> list[Any]:
    """Every whole line that was written, as JSON."""
    return [
        plain(json.loads(line))
        for path in sorted(folder.glob(f"{signal_}-*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def arrived(messages: list[Any]) -> list[Any]:
    """What arrived, written as OTLP JSON."""
    return [plain(_hex(MessageToDict(message, use_integers_for_enums=True))) for message in messages]


# Here a zero is a value; elsewhere it is as good as nothing, and protobuf leaves it out.
_VALUES = {"asInt", "asDouble", "intValue", "doubleValue", "boolValue", "stringValue", "sum", "min", "max"}


def plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items() if key in _VALUES or value not in (0, "", "0", [])}
    return [plain(item) for item in node] if isinstance(node, list) else node


def _hex(node: Any) -> Any:
    if isinstance(node, list):
        return [_hex(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64decode(value).hex() if key in ("traceId", "spanId", "parentSpanId") else _hex(value)
        for key, value in node.items()
    }


def send(*arguments: str | Path, to: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, which is sooner there than one of its own."""
    called = ["send", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": to, **variables}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(called)
        finally:
            gc.enable()
    return subprocess.CompletedProcess(called, status, out.getvalue(), err.getvalue())


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("wire", BACKENDS)
def test_everything_arrives_as_it_was_exported_and_once(wire: str, run: Path) -> None:
    with BACKENDS[wire]() as received:
        there: dict[str, Any] = {"to": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=hush-hush", "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
        said = succeeded(goodput("send", run.parent, OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, **headers))
        assert arrived(received.traces) == lines(run, "traces")
        assert arrived(received.metrics) == lines(run, "metrics")
        assert received.headers[0]["x-key"] == "hush-hush"
        assert f"({len(received.span_names())} spans) sent to http://127.0.0.1:" in said
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
    outlet = open_outlet("file", Surroundings("job", "run", attempt=0, process_index=0, directory=tmp_path))
    assert outlet.span_exporter is not None
    outlet.span_exporter.export(rich_spans())
    outlet.span_exporter.shutdown()
    with BACKENDS[wire]() as received:
        succeeded(send(tmp_path, "--endpoint", received.endpoint, "--protocol", wire, to="http://127.0.0.1:9"))
        assert arrived(received.traces) == lines(tmp_path, "traces")


def test_the_command_line_goes_before_the_variables_and_gzip_is_understood(run: Path) -> None:
    with http_backend() as received:
        succeeded(
            send(
                run,
                "--endpoint",
                received.endpoint.replace("http://", "http://user:pass%20word@"),
                "--protocol",
                HTTP,
                to="http://127.0.0.1:9",
                OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://127.0.0.1:9/v1/traces",
                OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc",
                OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            )
        )
        assert arrived(received.traces) == lines(run, "traces")
        assert received.headers[0]["content-encoding"] == "gzip"
        assert received.headers[0]["authorization"] == "Basic " + base64.b64encode(b"user:pass word").decode()
    for state in run.glob("*.sent"):
        assert "pass" not in state.read_text()


@pytest.mark.parametrize("wire", RECEIVERS)
@pytest.mark.parametrize("taken", [False, True], ids=["before it was taken", "after it was taken"])
def test_killed_while_a_request_is_under_way(wire: str, taken: bool, traces: Path) -> None:
    over = threading.Event()
    script = lambda number: Say(keep=taken, hang=over) if number == 5 else TAKE  # noqa: E731
    with RECEIVERS[wire](script) as received:
        variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(traces)]
        try:
            with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as process:
                poll(lambda: len(received.headers) == 6)
                other = failed(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
                assert f"is being sent by another process ({process.pid})" in other
                process.send_signal(signal.SIGKILL)
        finally:
            over.set()
        assert len(received.headers) == 6
        said = succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert "an earlier send was cut off; one request may be there twice" in said
        found = arrived(received.traces)
        assert found.pop(6 if taken else 5) == lines(traces.parent, "traces")[5]
        assert found == [line for number, line in enumerate(lines(traces.parent, "traces")) if taken or number != 5]
        again = succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert "twice" not in again


@pytest.mark.parametrize("wire", BACKENDS)
def test_a_receiver_that_is_down_and_then_up(wire: str, run: Path) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    down = send(run, "--timeout", "0.5", to=closed, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
    count = len(lines(run, "traces")) + len(lines(run, "metrics"))
    assert down.returncode == 1
    assert f"; {count} requests are left; called again it goes on" in down.stderr
    assert "Traceback" not in down.stderr
    with BACKENDS[wire]() as received:
        said = succeeded(send(run, "--json", to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert json.loads(said)["done"]
        assert arrived(received.traces) == lines(run, "traces")
        assert arrived(received.metrics) == lines(run, "metrics")
        assert "twice" not in said


def test_it_waits_for_a_receiver_that_comes(traces: Path) -> None:
    port = free_port()
    variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL=HTTP)
    command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(traces), "--json"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        # It has begun, and found nobody.
        poll(traces.with_name(f"{traces.name}.sent").exists)
        with http_receiver(lambda _: TAKE, port) as received:
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert arrived(received.traces) == lines(traces.parent, "traces")
    assert json.loads(said)["files"][0]["repeated"] == 0


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
        succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert arrived(received.traces) == expected


@pytest.mark.parametrize("wire", RECEIVERS)
def test_a_lost_answer_is_told(wire: str, traces: Path) -> None:
    over = threading.Event()
    lost = Say(keep=True, drop=True) if wire == HTTP else Say(keep=True, hang=over)
    with RECEIVERS[wire](lambda number: lost if number == 0 else TAKE) as received:
        try:
            short = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.3", "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
            said = succeeded(send(traces, to=received.endpoint, **short))
        finally:
            over.set()
        assert ", 1 perhaps there twice" in said
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
        assert "called again it goes on" in done.stderr
        assert len(received.headers) == 4
        said = succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert "twice" not in said
        assert arrived(received.traces) == lines(traces.parent, "traces")


@pytest.mark.parametrize("wire", RECEIVERS)
def test_what_was_not_taken_of_a_request_is_told(wire: str, traces: Path) -> None:
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 1
    response.partial_success.error_message = "too old"
    partly = Say(keep=True, body=response.SerializeToString(), headers=(("content-type", "application/x-protobuf"),))
    with RECEIVERS[wire](lambda number: partly if number == 2 else TAKE) as received:
        done = send(traces, "--json", to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        (account,) = answer(done)["files"]
        assert (done.returncode, account["rejected"]) == (1, 1)
        assert account["spans"] == len(received.span_names()) - 1
        assert f"{traces.name}:3: 1 of " in done.stderr and "not taken: too old" in done.stderr


def test_a_torn_last_line_waits_for_its_end(traces: Path) -> None:
    content = traces.read_bytes()
    keep = content[:-1].rfind(b"\n") + 1
    traces.write_bytes(content[: keep + 20])
    with grpc_backend() as received:
        assert "20 bytes of an unfinished last line" in succeeded(send(traces, to=received.endpoint))
        assert arrived(received.traces) == lines(traces.parent, "traces")
        with traces.open("ab") as file:
            file.write(content[keep + 20 :])
        assert "unfinished" not in succeeded(send(traces, to=received.endpoint))
        assert arrived(received.traces) == lines(traces.parent, "traces")


def test_files_that_grow(tmp_path: Path) -> None:
    over = tmp_path / "over"
    with grpc_backend() as received, recorder(tmp_path, over) as process:
        try:
            for _ in range(4):
                poll(lambda: len(lines(tmp_path / "job", "traces")) > len(received.traces))
                before = len(received.traces)
                succeeded(send(tmp_path, to=received.endpoint))
                assert len(received.traces) > before
        finally:
            over.touch()
        assert process.wait(PATIENCE_S) == 0
        succeeded(send(tmp_path, to=received.endpoint))
        assert arrived(received.traces) == lines(tmp_path / "job", "traces")
        assert arrived(received.metrics) == lines(tmp_path / "job", "metrics")
        assert Counter(received.span_names())["job"] == 1


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
        assert f"{traces.name}:1: not a line of OTLP JSON" in done.stderr
        assert arrived(received.traces) == expected
        succeeded(send(traces, to=received.endpoint))


def test_sending_again_is_resumed_too(run: Path, traces: Path) -> None:
    count, beside = len(lines(run, "traces")), traces.with_name("traces-other.jsonl")
    shutil.copy(traces, beside)
    with grpc_receiver(lambda number: CLOSED["grpc service"][1] if number == 2 * count + 3 else TAKE) as received:
        both = (traces, beside)
        succeeded(send(*both, to=received.endpoint))
        cut = send(*both, "--again", to=received.endpoint)
        assert f"; {2 * count - 3} requests are left; called again, without --again, it goes on" in cut.stderr
        succeeded(send(*both, to=received.endpoint))
        expected = lines(run, "traces")  # of both files
        assert arrived(received.traces) == 2 * expected


def test_another_endpoint_has_an_offset_of_its_own(traces: Path) -> None:
    with grpc_backend() as one, http_backend() as two:
        succeeded(send(traces, to=one.endpoint))
        succeeded(send(traces, to=two.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=HTTP))
        succeeded(send(traces, to=one.endpoint))
        assert len(one.traces) == len(two.traces) == len(lines(traces.parent, "traces"))


def test_a_copy_goes_on_and_another_file_begins(traces: Path, tmp_path: Path) -> None:
    with grpc_backend() as received:
        succeeded(send(traces, to=received.endpoint))
        count = len(received.traces)
        moved = tmp_path / "elsewhere"
        shutil.copytree(traces.parent, moved)
        succeeded(send(moved / traces.name, to=received.endpoint))
        assert len(received.traces) == count
        content = traces.read_bytes().splitlines(keepends=True)
        traces.write_bytes(b"".join(content[1:]))
        assert "another file than the one that was sent before" in succeeded(send(traces, to=received.endpoint))
        assert len(received.traces) == 2 * count - 1


def test_a_memory_that_does_not_fit(traces: Path) -> None:
    state = traces.with_name(f"{traces.name}.sent")
    with grpc_backend() as received:
        succeeded(send(traces, to=received.endpoint))
        content = traces.read_bytes()
        count = len(received.traces)
        remembered = json.loads(state.read_bytes())
        (entry,) = remembered["receivers"].values()
        entry["offset"] -= 1
        state.write_text(json.dumps(remembered))
        assert "--again" in failed(send(traces, to=received.endpoint))
        state.write_text("{}")
        assert "cannot be understood" in failed(send(traces, to=received.endpoint))
        assert len(received.traces) == count
        assert traces.read_bytes() == content


def test_wrong_use(run: Path, tmp_path: Path) -> None:
    empty, other, pretty = tmp_path / "empty", tmp_path / "other.jsonl", tmp_path / "pretty.json"
    empty.mkdir()
    other.write_text('{"kind": "step", "step": 0}\n' * 3)
    pretty.write_text(json.dumps({"resourceSpans": []}, indent=1) + "\n")
    binary = tmp_path / "binary"
    binary.write_bytes(os.urandom(64).replace(b"{", b"x").replace(b"\0", b"x"))
    for file, words in (
        (tmp_path / "nowhere", "does not exist"), (empty, "holds no traces-*.jsonl"),
        (other, "holds no OTLP JSON"), (pretty, "holds no OTLP JSON"), (binary, "holds no OTLP JSON"),
    ):  # fmt: skip
        wrong = send(run, file, to="http://127.0.0.1:9")
        assert (wrong.returncode, wrong.stdout) == (2, ""), wrong
        assert words in wrong.stderr and wrong.stderr.count("\n") == 1
    nothing = send(run, "--protocol", HTTP, "--endpoint", "localhost:4318", to="")
    assert nothing.returncode == 2
    assert "http://" in nothing.stderr
    assert not list(run.glob("*.sent*"))


def test_a_dry_run_leaves_nothing_behind(run: Path) -> None:
    before = sorted(run.rglob("*"))
    said = succeeded(send(run, "--dry-run", to="http://user:word@127.0.0.1:9"))
    assert "would go to http://127.0.0.1:9" in said and "word" not in said
    assert sorted(run.rglob("*")) == before


def test_quiet_and_a_terminal(run: Path) -> None:
    with grpc_backend() as received:
        assert succeeded(send(run, "--quiet", to=received.endpoint)) == ""
        assert received.traces
        for more, shown in (((), True), (("--quiet",), False)):
            assert (b" MiB, " in on_terminal(run, received, *more)) is shown


def on_terminal(run: Path, received: Received, *more: str) -> bytes:
    """What stands on a terminal's standard error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(run), "--again", *more]
    variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint)
    done = subprocess.run(
        command, env=variables, stdout=subprocess.DEVNULL, stderr=theirs, timeout=PATIENCE_S, check=False
    )
    os.close(theirs)
    assert done.returncode == 0
    return b"".join(_until_closed(ours))


def _until_closed(terminal: int) -> Iterator[bytes]:
    try:
        while data := os.read(terminal, 4096):
            yield data
    except OSError:  # as Linux says that nobody has the other end any more
        pass
    finally:
        os.close(terminal)


def test_a_run_without_files(tmp_path: Path) -> None:
    finished("job", tmp_path)
    assert send(tmp_path, to="http://127.0.0.1:9").returncode == 2
