"""``otel-goodput stacks``: the arguments, the answer as text and JSON, and what PyTorch and NCCL say beside it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from stacked import ALL_REDUCE, LOAD, NS, Ranks

from otel_goodput._tools import stacks
from otel_goodput._tools.cli import main

ANSWER = "Job summary\n  (group # in a table)\n#0: 1 of 2 ranks is missing\x1b[0m\n"


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


@pytest.fixture
def nccl() -> Iterator[int]:
    """What NCCL's RAS answers; returns its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as stream:
                assert stream.readline().startswith(b"CLIENT PROTOCOL ")
                stream.write(b"SERVER PROTOCOL 2\n")
                stream.flush()
                assert stream.readline().startswith(b"TIMEOUT ") and stream.readline() == b"STATUS\n"
                stream.write(f"OK\n{ANSWER}".encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def answered(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["stacks", *map(str, arguments)]) == status
    return capsys.readouterr().out


def test_text_and_json(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        ranks.add(rank, LOAD if rank == 3 else ALL_REDUCE)
    ranks.add(0, LOAD, attempt=1, ago=0.5)
    folder = ranks.run.path
    text = answered(capsys, folder, "--attempt", 1)
    assert "3 ranks wait in all_reduce at train.py:88; rank 3 is in read_shard at dataset.py:41" in text
    whole = json.loads(answered(capsys, folder.parent, "--run", "job", "--json", "--attempt", 1))
    assert (whole["run_id"], whole["attempt"], whole["ranks"], whole["waits_for"]) == ("job", 1, 4, [3])
    assert whole["verdict"] in text and "threads" not in whole
    assert [(group["ranks"], group["line"]) for group in whole["groups"]] == [
        ([0, 1, 2], "train.py:88"), ([3], "dataset.py:41"),
    ]  # fmt: skip
    assert whole["groups"][1]["frames"][0] == {"path": "/app/dataset.py", "line": 41, "function": "read_shard"}
    assert len(json.loads(answered(capsys, f"file://{folder}", "--json", "--all", "--attempt", 1))["threads"]) == 8
    assert json.loads(answered(capsys, folder, "--json"))["attempt"] == 2


def test_errors(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answered(capsys, tmp_path / "nothing", status=1)
    ranks.live(0)
    assert "there are no stacks" in answered(capsys, ranks.run.path)
    ranks.run.file("stacks", 0, 0).mkdir()
    answered(capsys, ranks.run.path, status=3)
    ranks.run.file("lock", 0, 0).touch()
    answered(capsys, ranks.run.path, "--now", status=1)  # nobody is alive
    answered(capsys, ranks.run.path, "--now", "--attempt", 1, status=1)
    with pytest.raises(SystemExit, match="2"):
        main(["stacks", str(ranks.run.path), "--attempt", "0"])


def test_the_flight_recorder(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said where the dumps are, and they are not read: a pickle may run anything."""
    for rank in range(3):
        (path := tmp_path / f"trace_{rank}").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
        if rank == 2:
            os.utime(path, ns=(1, ranks.now - 3600 * NS))  # of an earlier job
        ranks.add(rank, ALL_REDUCE, about={"flight_recorder": f"{path}{os.pathsep}/nowhere"})
    text = answered(capsys, ranks.run.path)
    assert text.count("flight recorder of rank") == 2 and f"{tmp_path}/trace_0, 25 bytes, written 20" in text
    [one, _] = json.loads(answered(capsys, ranks.run.path, "--json"))["flight_recorder"]
    assert (one["rank"], one["path"], one["bytes"]) == (0, f"{tmp_path}/trace_0", 25)


def test_what_nccl_says(ranks: Ranks, nccl: int, capsys: pytest.CaptureFixture[str]) -> None:
    ranks.add(0, ALL_REDUCE, about={"ras": f"localhost:{nccl}"})
    assert json.loads(answered(capsys, ranks.run.path, "--json"))["ras"] is None  # the job does not live here
    lock = ranks.run.lock(0, 0)
    lock.acquire()
    try:
        text = answered(capsys, ranks.run.path)
    finally:
        lock.release()
    assert "NCCL says of its ranks (RAS):\n    Job summary\n" in text
    assert "    #0: 1 of 2 ranks is missing?[0m" in text


@pytest.mark.parametrize("manner", ["silent", "trickles", "never ends"])
def test_a_server_that_never_answers_delays_no_stacks(
    ranks: Ranks, manner: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stacks are printed before NCCL is asked, once and not for each rank, and for a bounded time."""
    monkeypatch.setattr(stacks, "RAS_S", 0.3)
    printed: list[str] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                printed.append(capsys.readouterr().out)
                if manner == "never ends":
                    connection.sendall(b"SERVER PROTOCOL 2\nOK\nJob summary\n")
                while manner != "silent" and not over.wait(0.01):
                    connection.sendall(b"." if manner == "trickles" else b"and more\n")
                over.wait(30)

        threading.Thread(target=serve, daemon=True).start()
        locks = [ranks.run.lock(0, rank) for rank in range(4)]
        for rank, lock in enumerate(locks):
            ranks.add(rank, ALL_REDUCE, about={"ras": f"localhost:{server.getsockname()[1]}"})
            lock.acquire()
        began = time.monotonic()
        assert main(["stacks", str(ranks.run.path)]) == 0
        took = time.monotonic() - began
        over.set()
        for lock in locks:
            lock.release()
    assert "ranks 0-3 are in all_reduce at train.py:88" in printed[0]
    assert ("Job summary" in capsys.readouterr().out) == (manner == "never ends")
    assert took < 2


@pytest.mark.parametrize("place", ["example.com:28028", "localhost:x", "", "localhost:99999", "10.0.0.1:1"])
def test_nobody_else_is_asked(ranks: Ranks, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    ranks.add(0, ALL_REDUCE, about={"ras": place})
    lock = ranks.run.lock(0, 0)
    lock.acquire()
    try:
        assert json.loads(answered(capsys, ranks.run.path, "--json"))["ras"] is None
    finally:
        lock.release()
