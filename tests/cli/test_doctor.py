"""``otel-goodput doctor``: against real receivers, dead ports, broken places and real runs."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from exporters.backends import grpc_backend, http_backend, silent_backend, stalled_grpc_backend
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from .commands import PATIENCE_S, Answer, environment, failed, finished, goodput, job, killed, succeeded

DEAD = "http://127.0.0.1:9"


def findings(done: Answer, about: str, level: str) -> str:
    """The findings of this kind, one a line."""
    answer = json.loads(done.stdout)
    assert done.returncode == (1 if answer["problems"] else 0)
    assert done.stderr == ""
    return "\n".join(
        f"{one['what']} -> {one['do']}" for one in answer["findings"] if one["about"] == about and one["level"] == level
    )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where the doctor is called; it leaves nothing there."""
    folder, temporary = tmp_path / "here", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    yield folder
    assert list(folder.iterdir()) == []
    assert list(temporary.iterdir()) == []


def doctor(place: Path, *arguments: str, **variables: str | Path) -> Answer:
    """`otel-goodput doctor --json` in `place`."""
    return goodput(
        "doctor", "--json", "--timeout", "5", *arguments, cwd=place, TMPDIR=place.parent / "tmp", **variables
    )


# --- outlets ----------------------------------------------------------------------------------------------------------


def test_a_machine_on_which_nothing_is_set(place: Path) -> None:
    done = doctor(place)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["problems"], answer["warnings"]) == (0, 0, 0), done.stdout
    assert answer["run_id"] is None
    assert answer["directory"] == "goodput"
    assert {"python", "opentelemetry-api", "opentelemetry-sdk"} <= answer["versions"].keys()
    assert str(place / "goodput") in findings(done, "journal", "ok")
    where = str(place / "goodput" / "<run id>")
    assert answer["exports"] == [
        {"outlet": "file", "signal": "traces", "where": f"{where}/traces-*.jsonl"},
        {"outlet": "file", "signal": "metrics", "where": f"{where}/metrics-*.jsonl"},
    ]


def test_text_for_people(place: Path) -> None:
    done = goodput("doctor", cwd=place, OTEL_GOODPUT_EXPORTERS="file,floppy", OTEL_SERVICE_NAME="llama")
    assert done.returncode == 1
    assert "\nproblem  settings: OTEL_GOODPUT_EXPORTERS is ignored; 'auto' is used: " in done.stdout
    assert "\nok       run: run 'llama' is new here\n" in done.stdout
    assert done.stdout.endswith("\n1 problem, 0 warnings\n")


@pytest.mark.parametrize("wire", ["grpc", "http/protobuf"])
def test_a_receiver_that_takes_everything(wire: str, place: Path) -> None:
    with grpc_backend() if wire == "grpc" else http_backend() as received:
        done = doctor(
            place,
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=wire,
            OTEL_EXPORTER_OTLP_HEADERS="x-key=swordfish",
        )
        assert findings(done, "outlet otlp", "problem") == ""
        ok = findings(done, "outlet otlp", "ok")
        assert received.endpoint in ok
        assert f"({wire}): accepted an empty export" in ok
        assert received.headers[0]["x-key"] == "swordfish", "it is the real protocol"
        assert len(received.traces) == len(received.metrics) == 1
        assert received.span_names() == []
        assert received.metric_names() == set()
    assert "swordfish" not in done.stdout
    exports = {(one["outlet"], one["signal"]): one["where"] for one in json.loads(done.stdout)["exports"]}
    added = "" if wire == "grpc" else "/v1/traces"
    assert exports["otlp", "traces"] == f"{received.endpoint}{added} ({wire})"


def test_a_dead_port(place: Path) -> None:
    done = doctor(place, OTEL_EXPORTER_OTLP_ENDPOINT=DEAD)
    found = findings(done, "outlet otlp", "problem")
    assert "traces and metrics to http://127.0.0.1:9 (grpc): nothing listens at 127.0.0.1:9 -> " in found


@pytest.mark.parametrize("wire", ["grpc", "http/protobuf"])
def test_a_receiver_that_never_answers(wire: str, place: Path) -> None:
    started = time.monotonic()
    with silent_backend() as endpoint:
        done = doctor(place, "--timeout", "0.5", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
    assert endpoint in findings(done, "outlet otlp", "problem")
    assert time.monotonic() - started < 20


def test_a_receiver_that_takes_a_request_and_stalls(place: Path) -> None:
    with stalled_grpc_backend() as endpoint:
        done = doctor(place, "--timeout", "0.5", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert "DEADLINE_EXCEEDED" in findings(done, "outlet otlp", "problem")


@contextmanager
def traces_only() -> Iterator[str]:
    """A receiver of traces, as tracing backends are."""

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
            return ExportTraceServiceResponse()

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_a_receiver_of_traces_alone(place: Path) -> None:
    with traces_only() as endpoint:
        done = doctor(place, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert findings(done, "outlet otlp", "ok").startswith(f"traces to {endpoint}")
    found = findings(done, "outlet otlp", "problem")
    assert found.startswith(f"metrics to {endpoint}")
    assert "UNIMPLEMENTED" in found
    assert "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" in found


def test_a_path_that_is_not_there(place: Path) -> None:
    with http_backend() as received:
        done = doctor(
            place,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"{received.endpoint}/v1/traces",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
    found = findings(done, "outlet otlp", "problem")
    assert "404" in found
    assert "is the base URL" in found


def test_signals_with_endpoints_of_their_own(place: Path) -> None:
    with grpc_backend() as over_grpc, http_backend() as over_http:
        done = doctor(
            place,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=over_grpc.endpoint,
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{over_http.endpoint}/v1/metrics",
            OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="http/protobuf",
        )
        assert len(over_grpc.traces) == len(over_http.metrics) == 1
    found = findings(done, "outlet otlp", "ok")
    assert f"traces to {over_grpc.endpoint} (grpc): accepted" in found
    assert f"metrics to {over_http.endpoint}/v1/metrics (http/protobuf): accepted" in found


@pytest.mark.parametrize(
    ("endpoint", "wire", "said"),
    [
        ("http://nosuch.invalid:4317", "grpc", "nosuch.invalid cannot be resolved"),
        ("127.0.0.1:9", "grpc", "nothing listens at 127.0.0.1:9 -> without http:// the connection is encrypted"),
        ("127.0.0.1:9", "http/protobuf", "needs http:// or https://"),
        ("http://127.0.0.1:99999", "grpc", "this is no endpoint"),
        ("http://", "http/protobuf", "this is no endpoint"),
        ("unix:///nowhere/socket", "grpc", "UNAVAILABLE"),
    ],
)
def test_endpoints_that_lead_nowhere(endpoint: str, wire: str, said: str, place: Path) -> None:
    done = doctor(
        place,
        "--timeout",
        "2",
        OTEL_GOODPUT_EXPORTERS="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=wire,
    )
    found = findings(done, "outlet otlp", "problem")
    assert said in found, done.stdout


def test_the_ports_are_easily_confused() -> None:
    from otel_goodput.doctor.endpoints import endpoint

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
    found = findings(done, "outlet otlp", "problem")
    assert "cannot be resolved" not in found
    assert "collector.invalid:4318" in found


def test_outlets_that_are_not_there(place: Path) -> None:
    done = doctor(place, OTEL_GOODPUT_EXPORTERS="gcp,file")
    assert "not part of this version" in findings(done, "outlet gcp", "problem")
    assert findings(done, "outlet file", "ok")
    unknown = doctor(place, OTEL_GOODPUT_EXPORTERS="file,floppy")
    assert "unknown outlet 'floppy'" in findings(unknown, "settings", "problem")
    nothing = doctor(place, OTEL_GOODPUT_EXPORTERS="none")
    assert "nothing is exported" in findings(nothing, "outlets", "ok")
    assert json.loads(nothing.stdout)["exports"] == []


WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from otel_goodput.cli import main
sys.exit(main(["doctor", "--json"]))
"""


def doctor_without(modules: str, place: Path, **variables: str | Path) -> Answer:
    """The doctor where these modules are not installed."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, modules],
        capture_output=True, text=True, cwd=place, timeout=PATIENCE_S, check=False,
        env=environment(TMPDIR=place.parent / "tmp", **variables),
    )  # fmt: skip


@pytest.mark.parametrize("asked", ["otlp", "auto"])
def test_the_extra_is_not_installed(asked: str, place: Path) -> None:
    with grpc_backend() as received:
        done = doctor_without(
            "opentelemetry.exporter.otlp.proto.grpc",
            place,
            OTEL_GOODPUT_EXPORTERS=asked,
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
        )
    assert "pip install 'otel-goodput[otlp]'" in findings(done, "outlet otlp", "problem")
    assert ("something listens there" in findings(done, "outlet otlp", "ok")) == (asked == "otlp")


def test_what_exporters_complain_of_is_told_without_the_secret(place: Path) -> None:
    done = doctor(
        place,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://me:swordfish@127.0.0.1:9",
        OTEL_EXPORTER_OTLP_HEADERS="authorization swordfish",
    )
    assert "Header format invalid" in findings(done, "outlet otlp", "warning")
    assert "http://***@127.0.0.1:9" in findings(done, "outlet otlp", "problem")
    assert "swordfish" not in done.stdout


def test_processes_that_do_not_export(place: Path) -> None:
    done = doctor(place, OTEL_GOODPUT_EXPORTERS="file", OTEL_GOODPUT_PROCESSES="leader", RANK="1", WORLD_SIZE="2")
    assert json.loads(done.stdout)["exports"] == []
    assert "not exported (leader)" in findings(done, "outlets", "ok")
    assert "leading process only" in findings(done, "outlets", "ok")


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "about", "level", "said"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "settings", "warning", "nothing is recorded at all"),
        ({"OTEL_GOODPUT_WINDOWS": "x"}, "settings", "problem", "OTEL_GOODPUT_WINDOWS is ignored; '1h,24h' is used"),
        ({"OTEL_GOODPUT_EXPORTER": "x"}, "settings", "warning", "did you mean OTEL_GOODPUT_EXPORTERS?"),
        ({"OTEL_GOODPUT_GCP_PROJECT": "x"}, "settings", "warning", "no effect in this version"),
        ({"OTEL_GOODPUT_SUBMITTED_AT": "9e9"}, "settings", "warning", "in the future"),
        ({"RANK": "2", "WORLD_SIZE": "4"}, "processes", "ok", "process 2 of 4 (RANK, WORLD_SIZE)"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "processes", "ok", "its phases are the run's account"),
        ({"JOB_COMPLETION_INDEX": "1"}, "processes", "ok", "of an unknown number"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "processes", "problem", "process 5 (RANK) of 2 (WORLD_SIZE)"),
        ({"RANK": "first"}, "processes", "problem", "RANK='first' is not a number"),
        ({"RANK": "²"}, "processes", "problem", "RANK='²' is not a number"),
        ({"WORLD_SIZE": "4"}, "processes", "warning", "each takes itself for process 0"),
        ({"RANK": "1", "SLURM_PROCID": "3"}, "processes", "warning", "SLURM_PROCID=3, RANK=1: SLURM_PROCID counts"),
        ({}, "processes", "ok", "the only process"),
    ],
)
def test_settings(variables: dict[str, str], about: str, level: str, said: str, place: Path) -> None:
    done = doctor(
        place, **variables, **({} if "OTEL_GOODPUT_EXPORTERS" in variables else {"OTEL_GOODPUT_EXPORTERS": "none"})
    )
    assert said in findings(done, about, level), done.stdout


def test_a_timeout_that_is_none(place: Path) -> None:
    assert "--timeout" in failed(goodput("doctor", "--timeout", "0", cwd=place))
    assert "--timeout" in failed(goodput("doctor", "--timeout", "nan", cwd=place))


# --- the journal's place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_place_that_cannot_be_written(below: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "file" / below)
    assert "cannot be written" in findings(done, "journal", "problem")
    assert doctor(place, OTEL_GOODPUT_DIR="/proc/goodput").returncode == 1


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from otel_goodput import config
    from otel_goodput.doctor import storage

    settings = config.read("job", directory=tmp_path, environ={})
    for free, level in ((2**34, "ok"), (2**28, "warning"), (2**20, "problem")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(2**40, 0, free))  # type: ignore[attr-defined]
        [finding] = storage.check(settings, 1.0)
        assert finding.level == level


def test_a_run_where_the_runs_should_be(place: Path, tmp_path: Path) -> None:
    finished("job", tmp_path / "runs")
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs" / "job")
    assert "the folder of one run" in findings(done, "journal", "warning")


def test_urls(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    there = doctor(place, OTEL_GOODPUT_DIR=f"file://{tmp_path}/bucket")
    assert "can be read" in findings(there, "journal", "ok")
    assert "on this machine only" in findings(there, "outlet file", "warning")
    assert list((tmp_path / "bucket").iterdir()) == []
    unknown = doctor(place, OTEL_GOODPUT_DIR="nosuch://me:swordfish@bucket/runs")
    assert "Protocol not known: nosuch" in findings(unknown, "journal", "problem")
    assert "swordfish" not in unknown.stdout
    bare = doctor_without("fsspec", place, OTEL_GOODPUT_DIR=f"file://{tmp_path}/bucket")
    assert "pip install 'otel-goodput[remote]'" in findings(bare, "journal", "problem")


def test_a_filesystem_that_does_not_answer(place: Path) -> None:
    with silent_backend() as endpoint:
        done = doctor(place, "--timeout", "0.5", OTEL_GOODPUT_DIR=endpoint.replace("http", "ftp") + "/runs")
    assert endpoint.rpartition("/")[2] in findings(done, "journal", "problem")


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_living_job_is_seen_and_not_disturbed(place: Path, tmp_path: Path) -> None:
    with job("job", tmp_path / "runs", 0, 10, "wait") as process:
        # (The job itself lays a spare segment ready meanwhile.)
        before = [path for path in sorted((tmp_path / "runs").rglob("*")) if path.suffix != ".segment"]
        done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_SERVICE_NAME="job")
        assert f"is being written by a living process (pid {process.pid}), attempt 1" in findings(
            done, "run", "warning"
        )
        assert [path for path in sorted((tmp_path / "runs").rglob("*")) if path.suffix != ".segment"] == before
        process.send_signal(signal.SIGKILL)
    report = json.loads(succeeded(goodput("report", tmp_path / "runs", "--json")))
    assert report["steps"]["kept"] == 10


def test_a_killed_and_an_ended_run(place: Path, tmp_path: Path) -> None:
    killed("dead", tmp_path / "runs")
    finished("over", tmp_path / "runs")
    both = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs")
    assert re.search(r"run 'dead' stopped .* ago in attempt 1 without ending its job", findings(both, "run", "ok"))
    assert re.search(r"run 'over' ended .* ago after 1 attempt;", findings(both, "run", "warning"))
    one = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="dead")
    assert "'over'" not in one.stdout
    assert json.loads(one.stdout)["run_id"] == "dead"
    new = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="new")
    assert "run 'new' is new here" in findings(new, "run", "ok")
    other = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs", OTEL_GOODPUT_RUN_ID="dead", RANK="1", WORLD_SIZE="2")
    assert "no journal of process 1 yet" in findings(other, "run", "ok")


def test_a_journal_that_is_damaged(place: Path, tmp_path: Path) -> None:
    finished("job", tmp_path / "runs")
    (tmp_path / "runs" / "job" / "journal" / "p0000.snapshot").write_bytes(b"rubbish")
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs")
    assert "p0000.snapshot is not used" in findings(done, "run", "warning")


DISPATCH = """
import sys, time
import otel_goodput as goodput

directory, taken = sys.argv[1], float(sys.argv[2])
goodput.configure("job", directory=directory, exporters="none")
start, ns = time.time_ns() - 3600 * 10**9, 10**9
with goodput.job(start_time=start, end_time=start + 60 * ns):
    for number in range(40):
        began = start + number * ns
        with goodput.step(number, start_time=began, end_time=began + round(taken * ns)):
            pass
        with goodput.data_loading(start_time=began + round(taken * ns), end_time=began + ns):
            pass
"""


@pytest.mark.parametrize(("taken", "suspected"), [(0.001, True), (0.9, False)])
def test_steps_that_only_dispatch(taken: float, suspected: bool, place: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", DISPATCH, str(tmp_path / "runs"), str(taken)]
    subprocess.run(command, env=environment(), check=True, timeout=PATIENCE_S)
    done = doctor(place, OTEL_GOODPUT_DIR=tmp_path / "runs")
    found = findings(done, "run", "warning")
    assert ("nothing tells when the device was done" in found) == suspected
    assert ("jax.block_until_ready" in found) == suspected


# --- while it waits ---------------------------------------------------------------------------------------------------


def test_on_a_terminal_it_says_what_it_waits_for(place: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with silent_backend() as endpoint:
            done = subprocess.run(
                [sys.executable, "-m", "otel_goodput", "doctor", "--timeout", "0.5"],
                stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, text=True, cwd=place, check=False,
                env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint), timeout=PATIENCE_S,
            )  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # everything was read, and nobody writes any more
                break
            if not part:
                break
            seen += part
    finally:
        os.close(ours)
    text = seen.decode()
    assert "looking at outlet otlp" in text
    assert text.endswith("\r"), "the line is gone in the end"
    assert text.rstrip("\r").rpartition("\r")[2].strip() == ""
    assert "looking at" not in done.stdout
