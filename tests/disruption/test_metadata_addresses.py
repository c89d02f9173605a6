"""A name with several addresses, of which some are silent: all of them share one time limit."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from otel_goodput._disruption.metadata import ask
from otel_goodput._resources.kubernetes import Cluster, submission_of

from .metadata_server import MAINTENANCE, metadata_server

TARGET = MAINTENANCE.removeprefix("/computeMetadata/v1/")


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of one whose queue of connections is full: the next ones hang."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            caller = opened.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_addresses(*ports: int) -> None:
        infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)

    return set_addresses


def test_all_addresses_share_the_time(silent: int, resolve: Any) -> None:
    resolve(*[silent] * 6)
    begin = time.monotonic()
    with pytest.raises(OSError, match="timed out"):
        ask("several.example", TARGET, 0.6)
    assert time.monotonic() - begin < 1.5
    begin = time.monotonic()
    assert submission_of(Cluster("several.example", 80, "ml", "pod", "", "token", None), 0.6) is None
    assert time.monotonic() - begin < 1.5


def test_a_silent_address_leaves_time_for_the_next(silent: int, resolve: Any) -> None:
    with metadata_server() as server:
        resolve(silent, server.port)
        assert ask("several.example", TARGET, 2.0).body == "NONE"
