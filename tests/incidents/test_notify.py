"""Incidents are reported straight from the job: once at each end, in plain words, and the address is in no log."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from http_server import HttpServer, Request, Response, hang
from waits import until

from otel_goodput import Recorder
from otel_goodput._accounting.incidents import Incident, Source
from otel_goodput._incidents import notify
from otel_goodput._incidents.notify import Notifier, Subject, closing, opening, wanted
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime import guard
from otel_goodput._settings import config as configuration
from otel_goodput._tools.doctor import settings
from otel_goodput.errors import ConfigurationError
from otel_goodput.semconv import INCIDENT_KINDS, IncidentKind

NS = 10**9
BEGAN = 1_767_225_600 * NS
SUBJECT = Subject("llama", "llama-7", 2, "/runs/llama-7")
TOKEN = "hush8Tokens0NotShown"


INCIDENT = Incident(
    1,
    IncidentKind.HANG,
    Source("data_loading", rank=3),
    BEGAN,
    BEGAN + 60 * NS,
    cost=125 * NS,
    line="dataset.py:41",
    evidence=("7 ranks wait in all_reduce at train.py:88",),
)


def numbered(number: int) -> Incident:
    return INCIDENT._replace(number=number)


class Reporting:
    """A notifier to a server, and the sheet of incidents that it looks into."""

    def __init__(
        self,
        *addresses: str,
        attempt: int = 1,
        settle_s: float = 0.0,
        only: str = "",
        begins: bool = True,
        **known: Any,
    ) -> None:
        environ = {"OTEL_GOODPUT_NOTIFY": " ".join(addresses), "OTEL_GOODPUT_NOTIFY_ONLY": only}
        self.sheet = IncidentSheet(attempt, 0)
        self.notifier = Notifier(
            configuration.read("llama", environ=environ), lambda: SUBJECT, self.sheet, lambda: (known, {}),
            settle_s=settle_s, pauses_s=(0.01, 0.01),
        )  # fmt: skip
        self.begun = begins and self.notifier.begin()

    def open(self, incident: Incident = INCIDENT) -> None:
        self.notifier.opened(incident)

    def close(self, incident: Incident = INCIDENT) -> None:
        self.notifier.ended(incident._replace(ended=BEGAN + 300 * NS))

    def shutdown(self, seconds: float = 10) -> bool:
        return self.notifier.shutdown(seconds)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(lambda request: Response()) as server:
        yield server


@pytest.fixture
def notifier(server: HttpServer) -> Iterator[Reporting]:
    made = Reporting(address(server))
    assert made.begun
    yield made
    made.shutdown(0)


@pytest.fixture(autouse=True)
def reports_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "contained", type(guard.contained)())


def address(server: HttpServer) -> str:
    return f"json://user:{TOKEN}@127.0.0.1:{server.port}/{TOKEN}/?-X-Key={TOKEN}"


def sent(server: HttpServer) -> list[tuple[str, str, str]]:
    bodies = [json.loads(request.body) for request in server.requests]
    return [(body["title"], body["message"], body["type"]) for body in bodies]


def test_once_when_it_opens_and_once_when_it_ends(server: HttpServer, notifier: Reporting) -> None:
    notifier.open()
    notifier.close(INCIDENT._replace(cost=290 * NS))
    notifier.close()
    notifier.close(numbered(2))  # its opening was not reported
    assert notifier.shutdown()
    (first, text, kind), (last, end, over) = sent(server)
    assert first == "llama, llama-7: training hangs" and kind == "failure"
    assert text.splitlines() == [
        (
            "Since 2026-01-01 00:00:00 UTC: no step has been completed; the time goes to data_loading of rank 3, at "
            "dataset.py:41."
        ),
        "- 7 ranks wait in all_reduce at train.py:88",
        "Lost so far: 2 min 05 s, in attempt 2.",
        "Look:",
        "  otel-goodput stacks /runs/llama-7",
        "  otel-goodput report /runs/llama-7",
        "  otel-goodput serve /runs/llama-7",
    ]
    assert last == "llama, llama-7: over: training hangs" and over == "success"
    assert end.splitlines() == [
        (
            "It began at 2026-01-01 00:00:00 UTC and is over after 5 min 00 s: no step was completed; the time went to "
            "data_loading of rank 3, at dataset.py:41."
        ),
        "Lost: 4 min 50 s.",
    ]


def test_a_rank_that_has_nothing_to_report_has_no_thread(server: HttpServer) -> None:
    """A deputy reports once it stands in for the leader."""
    reporting = Reporting(address(server), begins=False)
    assert not any(thread.name == "goodput-notify" for thread in threading.enumerate())
    reporting.open()
    assert reporting.shutdown() and len(server.requests) == 1
    reporting = Reporting(address(server), begins=False)
    assert reporting.shutdown(0)
    reporting.open()
    assert len(server.requests) == 1, "nothing begins after the end"


def test_a_slowdown_waits_for_its_line(server: HttpServer) -> None:
    slow = INCIDENT._replace(kind=IncidentKind.SLOWDOWN, before=NS, after=2 * NS)
    reporting = Reporting(address(server), settle_s=0.2)
    reporting.open(slow._replace(line="", evidence=()))
    reporting.sheet.put(slow)
    until(lambda: server.requests)
    assert "dataset.py:41" in sent(server)[0][1] and "all_reduce" in sent(server)[0][1]
    reporting = Reporting(address(server), settle_s=60)
    reporting.open(slow)
    assert reporting.shutdown() and len(server.requests) == 2, "the end of the job waits for nothing"


def test_every_kind_has_words_of_its_own() -> None:
    evaluation, crash = Source("custom", "eval"), Source("infrastructure_recovery", "crash")
    slow = INCIDENT._replace(kind=IncidentKind.SLOWDOWN, source=evaluation, before=NS, after=2 * NS, line="")
    assert opening(slow, SUBJECT).title == "llama, llama-7: training has become slower"
    assert "custom eval" in opening(slow, SUBJECT).body and "2.0 s instead of 1.0 s" in opening(slow, SUBJECT).body
    again = INCIDENT._replace(kind=IncidentKind.RESTART_LOOP, source=crash, line="")
    assert opening(again, Subject("llama", "llama")).title == "llama: it restarts without progress"
    assert "otel-goodput" not in opening(again, Subject("llama", "llama")).body
    assert notify._TITLES.keys() == notify._LOOK.keys() == {*INCIDENT_KINDS}


def test_a_restart_loop_is_reported_once_over_all_attempts(server: HttpServer, tmp_path: Path) -> None:
    """Each attempt notices it again, and ends without it being over."""
    loop = INCIDENT._replace(kind=IncidentKind.RESTART_LOOP, source=Source("infrastructure_recovery", "crash"))
    run = RunDirectory(tmp_path)
    run.journal.mkdir(parents=True)
    for attempt in (0, 1):
        reporting = Reporting(address(server), attempt=attempt)
        reporting.notifier._subject = lambda attempt=attempt: SUBJECT._replace(attempt=attempt + 1)  # type: ignore[misc]
        reporting.sheet.keep(run)
        reporting.sheet.put(loop)
        reporting.open(loop)
        if attempt == 0:
            reporting.notifier.ending = True
        reporting.close(loop)
        reporting.sheet.keep(run, last=True)
        assert reporting.shutdown()
    assert [title for title, _, _ in sent(server)] == [
        "llama, llama-7: it restarts without progress",
        "llama, llama-7: over: it restarts without progress",
    ]


def test_what_ends_with_the_job_is_not_said_to_be_over() -> None:
    body = closing(INCIDENT._replace(ended=BEGAN + NS), SUBJECT, with_job=True).body
    assert "ended with the job after 1.0 s" in body


def test_secrets_and_control_characters_do_not_leave_with_a_message() -> None:
    hf = "hf" + "_" + "abcdefghijklmnopqrstuvwxyz"
    incident = INCIDENT._replace(line=f"{hf}.py:1", evidence=(f"token={TOKEN}\x1b[2J\nCause: none", "x" * 10_000))
    for message in (opening(incident, SUBJECT), closing(incident, SUBJECT)):
        assert hf not in message.body and TOKEN not in message.body
        assert all(line.isprintable() and len(line) <= notify.LONGEST for line in message.body.splitlines())


def test_another_try_after_a_failure(server: HttpServer, notifier: Reporting) -> None:
    answers = iter([Response(503), Response(500), Response()])
    server.answer = lambda request: next(answers)
    notifier.open()
    assert notifier.shutdown() and len(server.requests) == 3


@pytest.mark.parametrize("status", [404, 503])
def test_who_cannot_be_notified_is_named_without_the_secret(
    status: int, server: HttpServer, notifier: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where everything is logged, by whoever logs it."""
    caplog.set_level(logging.DEBUG)
    server.answer = lambda request: Response(status)
    notifier.open()
    notifier.open(numbered(2))
    assert notifier.shutdown() and len(server.requests) == 6
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert (
        len(warnings) == 1 and "could not be reported to json://(hidden)" in warnings[0] and str(status) in warnings[0]
    )
    assert TOKEN not in caplog.text


def test_nobody_answers(notifier: Reporting, server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    server.close()
    server.__exit__ = lambda *_: None  # type: ignore[method-assign]
    notifier.open()
    assert notifier.shutdown()
    assert "could not be reported to json://(hidden)" in caplog.text and TOKEN not in caplog.text


def test_whoever_opens_an_incident_does_not_wait(server: HttpServer, notifier: Reporting) -> None:
    server.answer, before = hang, set(threading.enumerate())
    began = time.monotonic()
    for number in range(notify.MOST_AN_HOUR):
        notifier.open(numbered(number))
    assert time.monotonic() - began < 0.5
    until(lambda: server.requests)
    # The interpreter waits for none of them at its end: not for a pool, whose threads are daemons, but are waited for.
    new = set(threading.enumerate()) - before
    assert all(thread.daemon and "Pool" not in thread.name for thread in new)
    began = time.monotonic()
    assert not notifier.shutdown(0.2), "the end of the job waits no longer than it may"
    assert time.monotonic() - began < 2


def test_what_waits_is_bounded(server: HttpServer, notifier: Reporting, caplog: pytest.LogCaptureFixture) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def slow(request: Request) -> Response:
        arrived.set()
        go_on.wait(10)
        return Response()

    server.answer = slow
    notifier.open()
    assert arrived.wait(10)
    for number in range(2, 12):
        notifier.open(numbered(number))
        notifier.close(numbered(number))
    assert "another one is left out" in caplog.text
    go_on.set()
    assert notifier.shutdown(30) and len(server.requests) == 1 + notify.MOST_WAITING


def test_not_more_than_a_dozen_in_an_hour(
    server: HttpServer, notifier: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        notifier.open(numbered(number))
        until(lambda: not notifier.notifier._unsent)
    assert notifier.shutdown() and len(server.requests) == notify.MOST_AN_HOUR
    assert "further ones are recorded, but not reported" in caplog.text


def test_an_address_that_is_not_understood_is_named_at_once(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Reporting(f"slakc://{TOKEN}/x", address(server))
    until(lambda: "not reported to slakc://(hidden)" in caplog.text)
    notifier.open()
    assert notifier.shutdown() and len(server.requests) == 1, "the others are served"
    assert TOKEN not in caplog.text


def test_without_apprise_one_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    for _ in range(2):
        notifier = Reporting("slack://a/b/c")
        assert not notifier.begun
        notifier.open()
        assert notifier.shutdown(0)
    (record,) = caplog.records
    assert "pip install" in record.getMessage() and "[notify]" in record.getMessage()


@pytest.mark.parametrize(
    ("only", "known", "answer"),
    [
        ((), {}, True),
        (("team=prod",), {"team": "prod"}, True),
        (("team=prod",), {"team": "research"}, False),
        (("team=prod",), {}, False),
        (("team",), {"team": "research"}, True),
        (("team", "size=7"), {"team": "research", "size": 7}, True),
        (("team", "size=7"), {"size": 7}, False),
        (("k8s.pod.labels.a = b",), {"k8s.pod.labels.a": "b"}, True),
    ],
)
def test_only_runs_with_a_label(only: tuple[str, ...], known: dict[str, Any], answer: bool) -> None:
    assert wanted(only, known) is wanted(only, {}, known) is answer


def test_a_run_without_the_label_is_not_reported(server: HttpServer) -> None:
    for team in ("research", "prod"):
        reporting = Reporting(address(server), only="team=prod", team=team)
        reporting.open()
        reporting.close()
        assert reporting.shutdown()
    assert len(server.requests) == 2


def test_several_addresses_and_labels_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = f"slack://{TOKEN}/a, mailto://me:pw@example.com?to=a@x.org,b@x.org\njson://localhost"
    environ = {"OTEL_GOODPUT_NOTIFY": given, "OTEL_GOODPUT_NOTIFY_ONLY": "team=prod, size"}
    config = configuration.read("job", environ=environ)
    assert config.notify == (
        f"slack://{TOKEN}/a",
        "mailto://me:pw@example.com?to=a@x.org,b@x.org",
        "json://localhost",
    )
    assert config.notify_only == ("team=prod", "size")
    assert TOKEN not in str(config.settings) and "slack://(hidden)" in str(config.settings)


def test_what_is_no_url_is_refused_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    wrong = f"hooks.slack.com/{TOKEN}"
    with pytest.raises(ConfigurationError) as refused:
        configuration.read("job", environ={}, notify=wrong)
    assert TOKEN not in str(refused.value)
    assert configuration.read("job", environ={"OTEL_GOODPUT_NOTIFY": wrong}).notify is None
    assert "OTEL_GOODPUT_NOTIFY" in caplog.text and TOKEN not in caplog.text


def test_doctor_says_whether_it_works_and_sends_a_test(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def findings(*, send: bool = False, **variables: str) -> list[tuple[str, str]]:
        config = configuration.read("llama", environ={f"OTEL_GOODPUT_{name}": text for name, text in variables.items()})
        return [(one.level, f"{one.what}; {one.do}") for one in settings.check_notifications(config, send=send)]

    assert findings() == []
    ((level, text),) = findings(send=True)
    assert level == "problem" and "OTEL_GOODPUT_NOTIFY is not set" in text
    ((level, text), (_, only)) = findings(NOTIFY=address(server), NOTIFY_ONLY="team=prod")
    assert (level, server.requests) == ("ok", []) and "json://(hidden)" in text and "team=prod" in only
    ((level, _),) = findings(NOTIFY=address(server), send=True)
    assert level == "ok" and sent(server)[0][0] == "llama: this is a test"
    server.answer = lambda request: Response(403)
    for url in (address(server), f"slakc://{TOKEN}"):
        ((level, text),) = findings(NOTIFY=url, send=True)
        assert level == "problem" and TOKEN not in text
    monkeypatch.setitem(sys.modules, "apprise", None)
    ((level, text),) = findings(NOTIFY=address(server))
    assert level == "problem" and "[notify]" in text


def test_commands_do_not_show_the_address(tmp_path: Path, server: HttpServer) -> None:
    environ = {**os.environ, "OTEL_GOODPUT_NOTIFY": f"{address(server)} hooks://{TOKEN}/{TOKEN}"}
    for command in (["env"], ["doctor", "--notify", "--json"]):
        done = warm.run(
            [sys.executable, "-m", "otel_goodput", *command],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "OTEL_GOODPUT_NOTIFY" in done.stdout or "json://(hidden)" in done.stdout
        assert TOKEN not in done.stdout + done.stderr
    assert len(server.requests) == 1


def test_a_job_that_hangs_is_reported(tmp_path: Path, server: HttpServer) -> None:
    recorder = Recorder(
        "llama", run_id="llama-7", directory=tmp_path, exporters="none", integrations="none", device_clock="host",
        notify=address(server), incidents="100ms", profile="off", resource_attributes={"team": "prod"},
        notify_only="team=prod",
    )  # fmt: skip
    with recorder.job():
        for number in range(30):
            with recorder.step(number):
                time.sleep(0.01)
        with recorder.step(30):
            until(lambda: recorder.report().to_json().get("incidents"))
    recorder.shutdown(10)
    (title, text, _), (over, _, _) = sent(server)
    assert title == "llama, llama-7: training hangs" and over == "llama, llama-7: over: training hangs"
    assert f"otel-goodput stacks {tmp_path / 'llama-7'}" in text
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"json://(hidden)" in written and TOKEN.encode() not in written
