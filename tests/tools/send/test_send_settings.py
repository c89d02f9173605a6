"""``otel-goodput send``: how it is called, what it says, and what it refuses to begin."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from exporters.backends import Received, grpc_backend, http_backend

from ..commands import PATIENCE_S, environment, finished, goodput, succeeded
from .sending import BACKENDS, HTTP, arrived, lines, send


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


UNSENDABLE = {
    "a line break": "authorization=Bearer%20s3cr3t%0Atoken",
    "a broken pair": "authorization=Basic%20s3cr3t%0D%0As3cr3t",
    "not Latin-1": "authorization=Bearer%20s3cr3t%E2%82%AC",
    "a quotation mark": 'authorization=Bearer "s3cr3t"',
    "a name with a space": "authorization: Bearer s3cr3t==",
}


@pytest.mark.parametrize("wire", BACKENDS)
@pytest.mark.parametrize("case", UNSENDABLE)
def test_a_header_that_cannot_be_sent_is_named_and_not_shown(case: str, wire: str, traces: Path) -> None:
    with BACKENDS[wire]() as received:
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"x-key=1,{UNSENDABLE[case]}", "OTEL_EXPORTER_OTLP_PROTOCOL": wire}
        called = goodput("send", traces, "--json", OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, **headers)
        assert (called.returncode, called.stdout) == (2, ""), called
        assert "otel-goodput: item 2 of OTEL_EXPORTER_OTLP_HEADERS " in called.stderr
        assert "s3cr3t" not in called.stderr and called.stderr.count("\n") == 1
        assert received.headers == []
    assert not list(traces.parent.glob("*.sent*"))


def test_what_grpc_calls_binary_or_its_own_is_no_header(traces: Path) -> None:
    for header in ("trace-bin=AAAA", "grpc-timeout=1", "name=caf%C3%A9"):
        wrong = send(traces, to="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_HEADERS=header)
        assert (wrong.returncode, wrong.stdout) == (2, ""), wrong
        assert "item 1 of OTEL_EXPORTER_OTLP_HEADERS cannot be sent over grpc" in wrong.stderr
    with http_backend() as received:
        latin = {"OTEL_EXPORTER_OTLP_HEADERS": "name=caf%C3%A9", "OTEL_EXPORTER_OTLP_PROTOCOL": HTTP}
        succeeded(send(traces, to=received.endpoint, **latin))
        assert received.headers[0]["name"] == "caf\xe9"


def test_a_dry_run_leaves_nothing_behind(run: Path) -> None:
    before = sorted(run.rglob("*"))
    output = succeeded(send(run, "--dry-run", to="http://user:word@127.0.0.1:9"))
    assert "would go to http://127.0.0.1:9" in output and "word" not in output
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
    done = warm.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=theirs, timeout=PATIENCE_S, check=False)
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
