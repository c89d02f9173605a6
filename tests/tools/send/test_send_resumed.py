"""``otel-goodput send`` called again: it goes on where it was, knows a file by its content, and forgets no loss."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import grpc
import pytest
import warm
from exporters.backends import grpc_backend, http_backend
from waits import until

from otel_goodput._journal.sidecars import CHECK, checked_json

from ..commands import PATIENCE_S, environment, failed, succeeded
from .receivers import TAKE, Say, grpc_receiver
from .sending import HTTP, LATER, PARTLY, RECEIVERS, REFUSED, answer, arrived, lines, recorder, send


@pytest.mark.parametrize("wire", RECEIVERS)
@pytest.mark.parametrize("taken", [False, True], ids=["before it was taken", "after it was taken"])
def test_killed_while_a_request_is_under_way(wire: str, taken: bool, traces: Path) -> None:
    over = threading.Event()
    script = lambda number: Say(keep=taken, hang=over) if number == 5 else TAKE  # noqa: E731
    with RECEIVERS[wire](script) as received:
        variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire)
        command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(traces)]
        try:
            with warm.Process(command, env=variables, stdout=subprocess.DEVNULL) as process:
                until(lambda: len(received.headers) == 6)
                other = failed(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
                assert f"is being sent by another process ({process.pid})" in other
                process.send_signal(signal.SIGKILL)
        finally:
            over.set()
        assert len(received.headers) == 6
        output = succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert "an earlier send was interrupted; one request may arrive twice" in output
        requests = arrived(received.traces)
        assert requests.pop(6 if taken else 5) == lines(traces.parent, "traces")[5]
        assert requests == [line for number, line in enumerate(lines(traces.parent, "traces")) if taken or number != 5]
        again = succeeded(send(traces, to=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=wire))
        assert "twice" not in again


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


def written(folder: Path, signal_: str) -> int:
    """How many whole lines there are."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"{signal_}-*.jsonl"))


def test_files_that_grow(tmp_path: Path) -> None:
    over = tmp_path / "over"
    with grpc_backend() as received, recorder(tmp_path, over, metrics_ms=200) as process:
        try:
            for _ in range(4):
                until(lambda: written(tmp_path / "job", "traces") > len(received.traces))
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


def test_sending_again_is_resumed_too(run: Path, traces: Path) -> None:
    count, other = len(lines(run, "traces")), traces.with_name("traces-other.jsonl")
    shutil.copy(traces, other)
    with grpc_receiver(
        lambda number: Say(grpc.StatusCode.UNIMPLEMENTED) if number == 2 * count + 3 else TAKE
    ) as received:
        both = (traces, other)
        succeeded(send(*both, to=received.endpoint))
        cut = send(*both, "--again", to=received.endpoint)
        assert (
            f"; {2 * count - 3} requests are left; run this command again, without --again, to continue" in cut.stderr
        )
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
        assert "the file was replaced since the last send" in succeeded(send(traces, to=received.endpoint))
        assert len(received.traces) == 2 * count - 1


def test_a_memory_that_does_not_fit(traces: Path) -> None:
    state = traces.with_name(f"{traces.name}.sent")
    with grpc_backend() as received:
        succeeded(send(traces, to=received.endpoint))
        content = traces.read_bytes()
        count = len(received.traces)
        remembered = json.loads(state.read_bytes())
        (entry,) = remembered["entries"]
        del remembered[CHECK]
        for offset in (entry["offset"] - 1, entry["offset"] + 1, 2**62):  # no file can be as long as the last one
            entry["offset"] = offset
            state.write_bytes(checked_json(remembered))
            assert "--again" in failed(send(traces, to=received.endpoint))
        state.write_text("{}")
        assert "cannot be parsed" in failed(send(traces, to=received.endpoint))
        assert len(received.traces) == count
        assert traces.read_bytes() == content


@pytest.mark.parametrize("wire", RECEIVERS)
def test_what_did_not_arrive_is_not_forgotten(wire: str, traces: Path) -> None:
    content = traces.read_bytes().splitlines(keepends=True)
    traces.write_bytes(b"".join([*content[:4], b"{no line\n", *content[4:]]))
    script = {1: REFUSED[wire], 2: PARTLY, 6: LATER[wire]}
    there = {"OTEL_EXPORTER_OTLP_PROTOCOL": wire}
    with RECEIVERS[wire](lambda number: script.get(number, TAKE)) as received:
        # Cut off after what was lost, then to its end, then with nothing left to send, then with lines that came later.
        assert send(traces, "--timeout", "0.001", to=received.endpoint, **there).returncode == 1
        for more in (b"", b"", content[0]):
            with traces.open("ab") as file:
                file.write(more)
            done = send(traces, "--json", to=received.endpoint, **there)
            (account,) = answer(done)["files"]
            assert (done.returncode, answer(done)["done"], account["left"]) == (1, False, 0)
            assert [account[name] for name in ("refused", "unreadable", "rejected")] == [1, 1, 1]
            assert (
                "lost when it was sent before: 1 refused, 1 unreadable, 1 spans or points not accepted" in done.stderr
            )
        traces.write_bytes(b"".join(content))
        output = succeeded(send(traces, "--again", to=received.endpoint, **there))
        assert f"{len(content)} requests" in output and "refused" not in output
        succeeded(send(traces, to=received.endpoint, **there))


def test_a_collector_s_file_that_was_renamed(traces: Path, tmp_path: Path) -> None:
    content = traces.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "collector"
    folder.mkdir()
    file = folder / "goodput.otlp.json"
    first, second = (folder / f"goodput.otlp-2026-11-{day}T00-00-00.000-size.json" for day in (21, 22))

    def written(*numbers: int) -> None:
        with file.open("ab") as stream:
            stream.writelines(content[number] for number in numbers)

    with grpc_backend() as received:
        written(0, 1)
        succeeded(send(file, to=received.endpoint))
        written(2)
        file.rename(first)
        written(3)
        succeeded(send(folder, to=received.endpoint))
        assert len(received.traces) == 4
        written(4)
        file.rename(second)
        written(5)
        # By its new name alone, when the old one is another's.
        succeeded(send(second, to=received.endpoint))
        succeeded(send(first, to=received.endpoint))
        assert len(received.traces) == 5
        # And as a folder.
        output = succeeded(send(folder, to=received.endpoint))
        assert [Path(line.partition(": ")[0]).name for line in output.splitlines() if "requests" in line] == [
            first.name, second.name, file.name,
        ]  # fmt: skip
        for files in ((folder,), (file,), (first, second)):
            succeeded(send(*files, to=received.endpoint))
        assert arrived(received.traces) == lines(traces.parent, "traces")[:6]


def test_a_collector_s_files_go_oldest_first(traces: Path) -> None:
    content = traces.read_bytes().splitlines(keepends=True)
    names = ("-2026-11-21T23-59-59.009-size", "-2026-11-22T00-00-00.000", "-2026-11-22T00-00-00.010-size", "")
    folder = traces.parent.parent  # with runs in it
    for line, name in zip(content, names, strict=False):
        (folder / f"goodput.otlp{name}.json").write_bytes(line)
    with grpc_backend() as received:
        succeeded(send(folder, to=received.endpoint))
        expected = lines(traces.parent, "traces")
        assert arrived(received.traces) == [*expected[:4], *expected]


def test_a_renamed_file_that_somebody_still_sends(traces: Path, tmp_path: Path) -> None:
    file, over = tmp_path / "goodput.otlp.json", threading.Event()
    shutil.copy(traces, file)
    script = lambda number: Say(keep=True, hang=over) if number == 5 else TAKE  # noqa: E731
    with grpc_receiver(script) as received:
        variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint)
        command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(file)]
        try:
            with warm.Process(command, env=variables, stdout=subprocess.DEVNULL) as process:
                until(lambda: len(received.headers) == 6)
                renamed = file.rename(tmp_path / "goodput.otlp-2026-11-22T00-00-00.000-size.json")
                file.write_bytes(traces.read_bytes().splitlines(keepends=True)[-1])
                other = failed(send(renamed, to=received.endpoint))
                assert f"is being sent by another process ({process.pid})" in other
                over.set()
                assert process.wait(PATIENCE_S) == 0
        finally:
            over.set()
        assert arrived(received.traces) == lines(traces.parent, "traces")
        assert "0 requests" in succeeded(send(renamed, to=received.endpoint))


def test_a_file_of_both_signals_goes_by_both_places(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "goodput.otlp.json"
    file.write_bytes(b"".join(path.read_bytes() for path in sorted(run.glob("*.jsonl"), reverse=True)))
    with grpc_backend() as spans, grpc_backend() as before, grpc_backend() as after:
        for values in (before, before, after, after):
            succeeded(send(file, to=spans.endpoint, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=values.endpoint))
        for values in (before, after):
            assert arrived(values.metrics) == lines(run, "metrics")
        # A file of spans alone has nothing to do with where metrics go.
        count = len(spans.traces)
        (own,) = run.glob("traces-*.jsonl")
        for values in (before, after):
            succeeded(send(own, to=spans.endpoint, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=values.endpoint))
        assert len(spans.traces) == count + len(lines(run, "traces"))
