"""``otel-goodput reason PLACE ATTEMPT REASON``: what a person says afterwards, and who shows it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
import warm
from waits import PATIENCE_S, until

from otel_goodput import open_run
from otel_goodput._journal.notes import append_reasons, read_reasons, statement
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._text.quantities import format_moment
from otel_goodput._tools.cli import command_parser
from otel_goodput._tools.reason.command import run_reason
from otel_goodput._viewer.document import document
from otel_goodput.errors import JournalError
from otel_goodput.reports.run import FollowedRun, RecordedRun, runs_at
from otel_goodput.reports.run_view import RunView

from ..commands import environment, failed, finished, goodput, job, killed, succeeded


def disrupted_run(place: Path) -> Path:
    """A run of three attempts; the first two were killed."""
    killed("job", place)
    killed("job", place, 6, 12)
    finished("job", place, 8, 14)
    return place / "job"


def entries(place: Path | str) -> dict[int, dict[str, Any]]:
    report = json.loads(succeeded(goodput("report", place, "--json")))
    assert sum(report["disruption_reasons"].values()) == report["disruptions"]
    return {one["attempt"]: one for one in report["disruption_list"]}


def test_a_statement_is_in_every_view(tmp_path: Path) -> None:
    folder = disrupted_run(tmp_path / "runs")
    runs = folder.parent
    before = json.loads(succeeded(goodput("report", runs, "--json")))
    assert before["disruption_reasons"] == {"crash": 2}
    assert [(one["first_reason"], one["said_by"], one["note"]) for one in before["disruption_list"]] == [
        ("crash", None, None)
    ] * 2
    output = succeeded(goodput("reason", runs, 2, "maintenance", "--by", "alice@host", "--note", "rack 7 was moved"))
    assert output == "run 'job': attempt 2: maintenance, recorded by alice@host; originally crash\n"

    text = succeeded(goodput("report", runs))
    assert "disruptions  2: 1 crash, 1 maintenance" in text
    first, second = (format_moment(one["died_at"]) for one in before["disruption_list"])
    assert (
        f"    maintenance at {first} (attempt 2; set by alice@host, “rack 7 was moved”; originally crash)\n      cost "
        in text
    )
    assert f"    crash at {second} (attempt 3)\n      cost " in text
    after = json.loads(succeeded(goodput("report", runs, "--json")))
    assert after["disruption_reasons"] == {"crash": 1, "maintenance": 1}
    shown = after["disruption_list"][0]
    assert (shown["reason"], shown["first_reason"], shown["said_by"]) == (
        "maintenance",
        "crash",
        "alice@host",
    )
    others = {"disruption_reasons", "disruption_list"}
    assert {k: v for k, v in after.items() if k not in others} == {k: v for k, v in before.items() if k not in others}

    # The whole journal is read for a question about the past; before attempt 2 there is nothing to correct.
    windowed = json.loads(succeeded(goodput("report", runs, "--json", "--at", "1h", "--window", "0", "1h")))
    assert windowed["disruption_reasons"] == {"crash": 1, "maintenance": 1}
    early = json.loads(succeeded(goodput("report", runs, "--json", "--at", "1ms")))
    assert (early["disruption_reasons"], early["disruption_list"]) == ({}, [])

    report = open_run(folder).report()
    assert report.totals.disruptions == {"crash": 1, "maintenance": 1}
    assert str(report) == text
    followed = FollowedRun(RunDirectory(folder))
    assert followed.report().to_json()["disruption_list"] == after["disruption_list"]

    session = RunView.open(RecordedRun(RunDirectory(folder)))
    assert [loss.reason for loss in session.overview.disruptions] == ["maintenance", "crash"]
    data = document(session)
    assert b'"said_by": "alice@host"' in data or b'"said_by":"alice@host"' in data

    compared = json.loads(succeeded(goodput("compare", folder, folder, "--json")))
    assert compared["a"]["disruption_reasons"] == {"crash": 1, "maintenance": 1}
    trace = json.loads(succeeded(goodput("export", runs, "--perfetto", "-")))
    shown = [one["args"] for one in trace["traceEvents"] if one.get("name", "").startswith("disruption: ")]
    assert [(one["goodput.disruption.reason"], one.get("said_by"), one.get("first_reason")) for one in shown] == [
        ("maintenance", "alice@host", "crash"),
        ("crash", None, None),
    ]


def test_the_latest_counts_and_the_first_stays(tmp_path: Path) -> None:
    folder = disrupted_run(tmp_path)
    for reason in ("maintenance", "preemption", "crash"):
        succeeded(goodput("reason", tmp_path, 3, reason, "--by", f"by {reason}"))
        entry = entries(tmp_path)[3]
        assert (entry["reason"], entry["first_reason"], entry["said_by"]) == (reason, "crash", f"by {reason}")
    lines = (folder / "journal" / "disruptions.reasons").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["maintenance", "preemption", "crash"]
    listed = json.loads(succeeded(goodput("reason", tmp_path, "--json")))["runs"][0]
    assert [(one["reason"], one["in_force"]) for one in listed["statements"]] == [
        ("maintenance", False),
        ("preemption", False),
        ("crash", True),
    ]
    assert listed["disruptions"] == [{"attempt": 2, "reason": "crash"}, {"attempt": 3, "reason": "crash"}]
    text = succeeded(goodput("reason", folder))
    assert "attempt 2: crash; no reason was recorded afterwards" in text
    assert text.count("(replaced)") == 2


def test_who_says_so_is_this_user_on_this_machine(tmp_path: Path) -> None:
    folder = disrupted_run(tmp_path)
    succeeded(goodput("reason", tmp_path, 2, "preemption", LOGNAME="alice"))
    by = entries(tmp_path)[2]["said_by"]
    assert by.startswith("alice@") and len(by) > len("alice@")
    path = folder / "journal" / "disruptions.reasons"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disrupted_run(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1", "crash"), "attempt 1 of run 'job' began the run"),
        (("4", "crash"), "run 'job' has 3 attempts, and no attempt 4"),
        (("0", "crash"), "run 'job' has 3 attempts, and no attempt 0"),
        (("2",), "REASON is missing"),
        (("2", "crash", "--run", "other"), "holds no run 'other'"),
        (("2", "crash", "--dry-run"), "--dry-run works only with --import"),
        (("2", "crash", "--json"), "--json works only with the list"),
        (("--note", "x"), "--note works only with ATTEMPT and REASON"),
        (("--margin", "5m"), "--margin works only with --import"),
        (("2", "crash", "--import", "x"), "leave out ATTEMPT and REASON"),
    ],
)
def test_invalid_statements_are_refused(run: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in failed(goodput("reason", run, *arguments))
    assert not (run / "journal" / "disruptions.reasons").exists()


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("earthquake", "'earthquake' is not a reason; expected one of crash, preemption, maintenance, signal, restart"),
        ("rollback", "a rollback is what steps within a process do"),
    ],
)
def test_reasons_that_there_are_not(run: Path, reason: str, message: str) -> None:
    answer = goodput("reason", run, 2, reason)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr
    assert not (run / "journal" / "disruptions.reasons").exists()


def test_one_run_of_several_is_named(tmp_path: Path) -> None:
    disrupted_run(tmp_path)
    finished("other", tmp_path)
    assert "choose one with --run" in failed(goodput("reason", tmp_path, 2, "crash"))
    succeeded(goodput("reason", tmp_path, 2, "signal", "--run", "job"))
    text = succeeded(goodput("reason", tmp_path))
    assert "run 'job': 3 attempts" in text and "run 'other': 1 attempt\n" in text


def test_what_cannot_be_read_is_left_out_and_reported(tmp_path: Path) -> None:
    folder = disrupted_run(tmp_path)
    succeeded(goodput("reason", tmp_path, 2, "maintenance", "--by", "alice"))
    path = folder / "journal" / "disruptions.reasons"
    with path.open("ab") as file:
        file.write(b'{"format": 1, "attempt": 3, "reason": "maint')  # its writer died
    succeeded(goodput("reason", tmp_path, 3, "preemption", "--by", "bob"))
    report = json.loads(succeeded(goodput("report", tmp_path, "--json")))
    assert report["disruption_reasons"] == {"maintenance": 1, "preemption": 1}
    assert "1 line cannot be read" in next(one["text"] for one in report["warnings"] if one["kind"] == "reasons")
    path.write_bytes(b"x" * (2**20 + 1))
    report = json.loads(succeeded(goodput("report", tmp_path, "--json")))
    assert report["disruption_reasons"] == {"crash": 2}
    assert "holds more than" in next(one["text"] for one in report["warnings"] if one["kind"] == "reasons")
    assert "holds more than" in failed(goodput("reason", tmp_path, 3, "preemption"))


def test_a_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    folder = disrupted_run(tmp_path / "runs")
    victim = tmp_path / "victim"
    victim.write_text("as it was\n")
    (folder / "journal" / "disruptions.reasons").symlink_to(victim)
    assert "link" in failed(goodput("reason", folder, 2, "maintenance"))
    assert victim.read_text() == "as it was\n"
    assert entries(folder)[2]["reason"] == "crash"


def test_texts_are_shown_as_texts(tmp_path: Path) -> None:
    folder = disrupted_run(tmp_path / "runs")
    note = "<script>alert(1)</script>\x1b[31m token=ghp_0123456789abcdefghij0123456789abcdef"
    succeeded(goodput("reason", folder, 2, "maintenance", "--by", "mallory\x1b[2J", "--note", note))
    page = tmp_path / "page.html"
    succeeded(goodput("report", folder, "--html", page))
    assert "<script>alert(1)" not in page.read_text()
    for text in (succeeded(goodput("report", folder)), succeeded(goodput("reason", folder))):
        assert "\x1b" not in text
        assert "ghp_0123456789abcdefghij0123456789abcdef" not in text


LIVING = """
import sys
import otel_goodput as goodput

goodput.configure("job", directory=sys.argv[1], exporters="none")
with goodput.job():
    with goodput.step(int(sys.argv[2])):
        pass
    with goodput.step(int(sys.argv[2]) + 1):
        print("waiting", flush=True)
        sys.stdin.readline()
        print(dict(goodput.report().totals.disruptions), flush=True)
"""


def test_a_living_run_is_corrected_in_reports_and_not_in_its_own_counters(tmp_path: Path) -> None:
    killed("job", tmp_path)
    command = [sys.executable, "-W", "error", "-c", LIVING, str(tmp_path), "10"]
    with warm.Process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None and process.stderr is not None
            assert process.stdout.readline() == "waiting\n", process.stderr.read()
            succeeded(goodput("reason", tmp_path, 2, "preemption", "--by", "alice"))
            report = json.loads(succeeded(goodput("report", tmp_path, "--json")))
            assert report["state"] == "running"
            assert report["disruption_reasons"] == {"preemption": 1}
            assert report["disruption_list"][0]["said_by"] == "alice"
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "{'crash': 1}\n"
            assert process.wait(PATIENCE_S) == 0
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
    # The statement is still there after the next restart, which reads its own journal only.
    finished("job", tmp_path, 12, 14, OTEL_GOODPUT_RUN_ID="job")
    assert entries(tmp_path)[2]["reason"] == "preemption"
    succeeded(goodput("reason", tmp_path, 3, "maintenance"))
    assert entries(tmp_path)[3]["reason"] == "maintenance"


def test_at_a_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    (tmp_path / "local").mkdir()
    more = {"OTEL_GOODPUT_RUN_ID": "job", "TMPDIR": str(tmp_path / "local")}
    for first in (0, 8):
        finished("job", url, first, first + 10, **more)
    succeeded(goodput("reason", url, 2, "maintenance", "--by", "alice"))
    assert entries(url)[2]["said_by"] == "alice"
    # The next attempt fetches the statements, and does not send them back over what is recorded meanwhile.
    with job("job", url, 18, 20, "wait", **more) as living:
        spooled = list((tmp_path / "local").rglob("disruptions.reasons"))
        assert [len(path.read_bytes().splitlines()) for path in spooled] == [1]
        until(lambda: 3 in entries(url), lacking=lambda: entries(url), pause=0.2)
        succeeded(goodput("reason", url, 3, "preemption", "--by", "bob"))
        living.terminate()
        living.wait(PATIENCE_S)
    finished("job", url, 20, 25, **more)
    by_attempt = entries(url)
    assert {at: (one["reason"], one["first_reason"], one["said_by"]) for at, one in by_attempt.items()} == {
        2: ("maintenance", "restart", "alice"),
        3: ("preemption", "restart", "bob"),
        4: ("signal", "signal", None),
    }
    stored = tmp_path / "store" / "job" / "journal" / "disruptions.reasons"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600


def test_at_an_object_storage(tmp_path: Path) -> None:
    """One that only replaces whole objects, in the memory of this process."""
    storage = fsspec.filesystem("memory")
    url = f"memory://{tmp_path.name}"
    killed("job", tmp_path)
    finished("job", tmp_path, 5, 12)
    storage.put(str(tmp_path / "job"), f"/{tmp_path.name}/job", recursive=True)
    try:
        for reason in ("maintenance", "preemption"):
            options = command_parser().parse_args(["reason", url, "2", reason, "--by", "alice"])
            assert run_reason(options) == 0
        with runs_at(url) as listed:
            assert [one.reason for one in read_reasons(listed[0].folder).statements] == ["maintenance", "preemption"]
            assert listed[0].report().totals.disruptions == {"preemption": 1}
        with open_run(url) as opened:
            run_reason(command_parser().parse_args(["reason", url, "2", "signal"]))
            assert opened.report().totals.disruptions == {"preemption": 1}
            opened.refresh()
            assert opened.report().totals.disruptions == {"signal": 1}
    finally:
        storage.rm(f"/{tmp_path.name}", recursive=True)


def test_many_who_speak_at_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.make()

    def speak(name: str) -> None:
        for number in range(50):
            one = statement(2, "signal", "crash", f"{name} {number}", person=True, recorded_at=1.0, note="x" * 150)
            append_reasons(run, [one])

    threads = [threading.Thread(target=speak, args=(f"speaker {at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reasons = read_reasons(run)
    assert reasons.note is None
    assert sorted(one.author for one in reasons.statements) == sorted(
        f"speaker {at} {number}" for at in range(4) for number in range(50)
    )


def test_a_full_file_is_reported(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.make()
    many = [statement(2, "signal", "crash", "alice", person=True, recorded_at=1.0, note="x" * 200)] * 2000
    append_reasons(run, many)
    with pytest.raises(JournalError, match="is full"):
        append_reasons(run, many)
    assert len(read_reasons(run).statements) == 2000
