"""Notices from a metadata server: that of Google's kind, and those that hang, lie, vanish or never were."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_server import Answer, Request, dripping, hang
from waits import until

from otel_goodput import Recorder
from otel_goodput._disruption.metadata import HOST, Maintenance, metadata_host
from otel_goodput._disruption.notices import Notices

from .metadata_server import MAINTENANCE, PREEMPTED, MetadataServer, answer, metadata_server


class Announced:
    """What the notices announced, in order."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, str, str]] = []
        self.retracted: list[tuple[str | None, str]] = []
        self.called = 0
        self.source = Notices(self._tell, lambda _: None, on_withdrawal=self._retract)
        self.source.on_preemption(self._call)

    def _tell(self, reason: str, moment: int, about: dict[str, Any]) -> None:
        assert abs(moment - time.time_ns()) < 60 * 10**9
        self.notices.append((reason, about["goodput.notice.source"], about["goodput.notice.value"]))

    def _retract(self, left: str | None, moment: int, about: dict[str, Any]) -> None:
        self.retracted.append((left, about["goodput.notice.value"]))

    def _call(self) -> None:
        self.called += 1


def watching_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "goodput-maintenance"]


@contextmanager
def watching(host: str, **patience: Any) -> Iterator[tuple[Maintenance, Announced]]:
    watch = Announced()
    settings: dict[str, Any] = {"wait_s": 30.0, "patience_s": 10.0, "backoff_s": (0.02, 0.1), **patience}
    maintenance = Maintenance(watch.source, time.time_ns, host, **settings)
    assert maintenance.start()
    try:
        yield maintenance, watch
    finally:
        begin = time.monotonic()
        maintenance.stop()
        assert time.monotonic() - begin < 1.0
        until(lambda: not watching_threads())
        watch.source.close()


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with metadata_server() as running:
        yield running


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def asks_to_wait(server: MetadataServer) -> bool:
    """Whether both keys are asked for by hanging GETs."""
    return {request.path for request in server.requests if "wait_for_change" in request.query} == {
        MAINTENANCE,
        PREEMPTED,
    }


# --- Google's --------------------------------------------------------------------------------------------------------


def test_a_preemption_is_announced_at_once(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    with watching(server.host) as (_, watch):
        until(lambda: asks_to_wait(server))
        server.set(PREEMPTED, "TRUE")
        until(lambda: watch.notices and watch.called, 5)
        assert watch.notices == [("preemption", "instance/preempted", "TRUE")]
    assert not warnings(caplog)
    for request in server.requests:
        if request.query:
            assert set(request.query) == {"wait_for_change", "last_etag", "timeout_sec"}
            assert request.query["wait_for_change"] == "true" and request.query["timeout_sec"] == "30"


def test_maintenance_that_comes_and_goes(server: MetadataServer) -> None:
    with watching(server.host) as (_, watch):
        for round_ in (1, 2):
            server.set(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
            until(lambda: len(watch.notices) == round_)  # noqa: B023
            server.set(MAINTENANCE, "NONE")
            until(lambda: len(watch.retracted) == round_)  # noqa: B023
        assert watch.notices == [("maintenance", "instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")] * 2
        assert watch.retracted == [(None, "NONE")] * 2


def test_both_keys_are_watched_at_once(server: MetadataServer) -> None:
    with watching(server.host) as (_, watch):
        until(lambda: asks_to_wait(server))
        assert [thread.name for thread in threading.enumerate()].count("goodput-maintenance") == 2
        server.set(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
        until(lambda: len(watch.notices) == 1)
        server.set(PREEMPTED, "TRUE")
        until(lambda: len(watch.notices) == 2)
        assert [notice[0] for notice in watch.notices] == ["maintenance", "preemption"]


def test_what_was_announced_before_the_start_is_recorded(server: MetadataServer) -> None:
    server.set(PREEMPTED, "TRUE")
    with watching(server.host) as (_, watch):
        until(lambda: watch.notices)


def test_a_wait_that_runs_out_is_no_failure(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    with watching(server.host, wait_s=1.0) as (_, watch):
        until(lambda: server.count(PREEMPTED) >= 3)
        server.set(PREEMPTED, "TRUE")
        until(lambda: watch.notices)
    assert not warnings(caplog)


def test_a_key_that_the_server_does_not_have(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    """GKE's metadata server has a few keys only."""
    del server.values[MAINTENANCE]
    with watching(server.host) as (_, watch):
        until(lambda: server.count(MAINTENANCE))
        server.set(PREEMPTED, "TRUE")
        until(lambda: watch.notices)
        assert server.count(MAINTENANCE) == 1
    assert not warnings(caplog)


def test_without_any_key_the_thread_ends(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    server.values.clear()
    with watching(server.host):
        until(lambda: not watching_threads())
    assert not warnings(caplog)


def test_an_answer_in_pieces(server: MetadataServer) -> None:
    def piecemeal(request: Request) -> Iterator[bytes]:
        value = server.values[request.path.partition("?")[0]]
        for piece in (
            "HTTP/1.1 200 ",
            "OK\r\nMetadata-Flavor: Goo",
            "gle\r\nTransfer-Encoding: chunked\r\n\r\n",
            f"{len(value):x}\r\n{value[:2]}",
            f"{value[2:]}\r\n0\r",
            "\n\r\n",
        ):
            yield piece.encode()
            time.sleep(0.01)

    server.set(PREEMPTED, "TRUE")
    server.misbehave = piecemeal
    with watching(server.host) as (_, watch):
        until(lambda: watch.notices == [("preemption", "instance/preempted", "TRUE")])


# --- those that are none ---------------------------------------------------------------------------------------------

HTML = "<!doctype html><title>Log in to the hotel's network</title>"

LIES: dict[str, Answer] = {
    "html": lambda _: answer(HTML, flavor=None, kind="text/html"),
    "html with the header": lambda _: answer(HTML, kind="text/html"),
    "no header": lambda _: answer("FALSE", flavor=None),
    "another header": lambda _: answer("FALSE", flavor="Amazon"),
    "wrong value": lambda _: answer("MAYBE"),
    "nothing": lambda _: answer(""),
    "a control sequence": lambda _: answer("\x1b[2J"),
    "a redirect": lambda _: answer("", status=302, flavor=None),
    "not found": lambda _: answer("", status=404, flavor=None),
    "forbidden": lambda _: answer("no", status=403),
    "endless": lambda _: answer("F" * 10**6),
    "no HTTP": lambda _: [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "a broken status": lambda _: [b"HTTP/1.1 soon\r\n\r\n"],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies(lie: str, server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, and it is left alone."""
    server.misbehave = LIES[lie]
    with watching(server.host) as (_, watch):
        until(lambda: not watching_threads())
        assert not watch.notices
    messages = warnings(caplog)
    assert (
        len(messages) == 1 and "is not Google's" in messages[0] and "\x1b" not in messages[0] and len(messages[0]) < 300
    )
    assert len(server.requests) <= 2


def test_a_server_that_turns_out_a_liar_later(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    with watching(server.host) as (_, watch):
        until(lambda: asks_to_wait(server))
        server.set(PREEMPTED, "PERHAPS")
        until(lambda: not watching_threads())
        assert not watch.notices
    assert len(warnings(caplog)) == 1


def test_a_server_that_hangs(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    """Taken for dead after a while, warned about once, and used again when it recovers."""
    server.misbehave = hang
    with watching(server.host, patience_s=0.05) as (_, watch):
        until(lambda: len(server.requests) >= 6)
        server.misbehave = None
        server.set(PREEMPTED, "TRUE")
        until(lambda: watch.notices)
    messages = warnings(caplog)
    assert len(messages) == 1 and "no answer in time" in messages[0]


def test_a_server_that_trickles(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    head = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 100000\r\n\r\n"
    server.misbehave = dripping(head, b"F", pause=0.01)
    with watching(server.host, patience_s=0.1):
        until(lambda: warnings(caplog))
    assert len(warnings(caplog)) == 1


def test_a_server_that_vanishes_and_comes_back(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    with watching(server.host) as (_, watch):
        until(lambda: asks_to_wait(server))
        for _ in range(2):
            server.vanish()
            until(lambda: warnings(caplog))
            server.requests.clear()
            server.come_back()
            until(lambda: asks_to_wait(server))
        server.vanish()
        server.set(PREEMPTED, "TRUE")  # what happens meanwhile is not missed
        server.come_back()
        until(lambda: watch.notices)
        assert len(watch.notices) == 1
    messages = warnings(caplog)
    assert len(messages) == 1 and "will be retried" in messages[0]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(
    status: int, server: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.misbehave = lambda _: answer("try later", status=status)
    with watching(server.host) as (_, watch):
        until(lambda: server.count(PREEMPTED) >= 3)
        server.misbehave = None
        server.set(PREEMPTED, "TRUE")
        until(lambda: watch.notices)
    assert len(warnings(caplog)) == 1


def test_a_server_that_does_not_wait_is_not_asked_without_pause(server: MetadataServer) -> None:
    server.misbehave = lambda request: answer(server.values[request.path.partition("?")[0]])
    begin = time.monotonic()
    with watching(server.host, backoff_s=(0.1, 1.0)):
        until(lambda: server.count(PREEMPTED) >= 4)
    assert time.monotonic() - begin >= 0.3


def test_failures_make_it_ask_less_often(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: refuses
        with watching(f"127.0.0.1:{taken.getsockname()[1]}", backoff_s=(0.01, 0.05)):
            until(lambda: warnings(caplog))
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("host", ["http://127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999", "a b", "host\r\nX: y"])
def test_an_address_that_is_none(host: str, caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(lambda *_: None, lambda _: None)
    maintenance = Maintenance(notices, time.time_ns, host)
    assert maintenance.start()
    until(lambda: not watching_threads())
    maintenance.stop()
    notices.close()
    assert len(warnings(caplog)) == 1


def test_a_name_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    with watching("metadata.invalid"):
        until(lambda: warnings(caplog))
    assert len(warnings(caplog)) == 1


def test_stopping_twice_and_without_a_start(server: MetadataServer) -> None:
    notices = Notices(lambda *_: None, lambda _: None)
    maintenance = Maintenance(notices, time.time_ns, server.host)
    maintenance.stop()
    maintenance = Maintenance(notices, time.time_ns, server.host)
    assert maintenance.start()
    maintenance.stop()
    maintenance.stop()
    assert not watching_threads()
    notices.close()


# --- where it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "host"),
    [("Google Compute Engine\n", HOST), ("Google\n", HOST), ("Standard PC (Q35)\n", None), ("", None), (None, None)],
)
def test_only_google_s_machines_have_one(tmp_path: Path, product: str | None, host: str | None) -> None:
    file = tmp_path / "product_name"
    if product is not None:
        file.write_text(product)
    assert metadata_host({}, file) == host
    assert metadata_host({"GCE_METADATA_HOST": " 127.0.0.1:80 "}, file) == "127.0.0.1:80"


def test_outside_nothing_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if metadata_host() is None:  # who runs the tests on a machine of Google's knows better
        with Recorder("job", directory=tmp_path, exporters="none", integrations="maintenance"):
            assert not watching_threads()
        assert not caplog.records


def test_where_no_thread_can_be_started_the_rest_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    maintenance = Maintenance(Announced().notices, time.time_ns, "127.0.0.1:1")
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", fail)
        assert not maintenance.start()
    maintenance.stop()
    assert not watching_threads()
    (warning,) = warnings(caplog)
    assert "not watched: can't start new thread" in warning
