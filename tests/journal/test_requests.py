"""Requests of commands to a living job, through its folder: who carries them out, how often, and what is answered."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import waits
from recorded import Record

import otel_goodput as goodput
from otel_goodput._journal import requests
from otel_goodput._journal.mirror import open_spool
from otel_goodput._journal.requests import DONE, HELD, REFUSED, TAKEN, Answer, Inbox, Request, Respond
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput.errors import JournalError

NOW = 1_790_000_000_000_000_000


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look counts."""
    monkeypatch.setattr(requests, "LOOK_S", 0.0)
    monkeypatch.setattr(requests.time, "time_ns", lambda: NOW)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create({})
    return run


def inbox(run: RunDirectory, attempt: int = 0, process: int = 0, at: int = NOW) -> tuple[Inbox, list[Request]]:
    carried: list[Request] = []

    def carry(request: Request, respond: Respond) -> None:
        carried.append(request)
        respond(TAKEN)
        respond(DONE, "it is done", "a0000-p0000.some")

    box = Inbox(lambda: (run, attempt), process, lambda: at)
    box.on("some", carry)
    return box, carried


def test_each_process_carries_out_a_request_once(run: RunDirectory) -> None:
    boxes = [inbox(run, process=process) for process in range(3)]
    request = requests.make("some", 0, steps=5, how="fast", all=True)
    requests.post(run, request)
    for _ in range(3):
        requests.post(run, request)  # a command that waits does this again and again
        for box, _ in boxes:
            box.look()
    assert [carried for _, carried in boxes] == [[request]] * 3
    assert request.parameters == {"steps": 5, "how": "fast", "all": True}
    answer = Answer(request.id, DONE, NOW, "it is done", "a0000-p0000.some")
    assert requests.answers(run, request) == dict.fromkeys(range(3), answer)


def test_only_those_meant_carry_it_out(run: RunDirectory) -> None:
    boxes = [inbox(run, process=process) for process in range(3)]
    dead, living = inbox(run, attempt=0), inbox(run, attempt=1)
    requests.post(run, requests.make("some", 0, [2]))
    for box, _ in (*boxes, living):
        box.look()
    assert [len(carried) for _, carried in (*boxes, dead, living)] == [0, 0, 1, 0, 0]


def test_a_later_attempt_and_a_later_hour_leave_it(run: RunDirectory) -> None:
    request = requests.make("some", 0)
    requests.post(run, request)
    for attempt, later in ((1, 0), (0, requests.VALID_NS), (0, -requests.VALID_NS)):
        box, carried = inbox(run, attempt=attempt, at=NOW + later)
        box.look()
        assert not carried
    assert requests.answers(run, request) == {}


def test_files_stay_small_and_private(run: RunDirectory) -> None:
    box, carried = inbox(run)
    made = [requests.make("some", 0) for _ in range(5 * HELD)]
    for request in made:
        requests.post(run, request)
        box.look()
    assert carried == made
    assert [len(requests.answers(run, request)) for request in made] == [0] * 4 * HELD + [1] * HELD
    for path in (run.requests_path, run.file("answers", 0, 0)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_size < 10_000


def test_what_cannot_be_done_is_refused(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "0")
    box, _ = inbox(run)

    def broken(*_: object) -> None:
        raise RuntimeError("it is broken")

    box.on("broken", broken)
    made = [requests.make(kind, 0) for kind in ("broken", "unknown\x1b", "some")]
    for request in made:
        requests.post(run, request)
    box.look()
    given = [requests.answers(run, request)[0] for request in made]
    assert [one.state for one in given] == [REFUSED, REFUSED, DONE]
    assert given[0].text == "it is broken"
    assert given[1].text.startswith("this process does not know requests of the kind unknown") and (
        "\x1b" not in given[1].text
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_root_asks_the_job_can_read(run: RunDirectory) -> None:
    os.chown(run.journal, 4711, 4712)
    requests.post(run, requests.make("some", 0))
    about = run.requests_path.stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (4711, 4712, 0o600)


def forged(**changed: object) -> bytes:
    whole = {"id": "x", "kind": "some", "at": NOW, "attempt": 0, "processes": [], "parameters": {}, **changed}
    return checked_json({"format": 1, "requests": [whole]})


HOSTILE: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda path: path.write_bytes(b"{"),
    "no checksum": lambda path: path.write_bytes(b'{"format": 1, "requests": []}'),
    "too many": lambda path: path.write_bytes(checked_json({"format": 1, "requests": [{}] * 10_000})),
    "too large": lambda path: path.write_bytes(forged(kind="k" * 2_000_000)),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "a moment that is none": lambda path: path.write_bytes(forged(at=float("nan"))),
    "an object as a parameter": lambda path: path.write_bytes(forged(parameters={"steps": {"of": []}})),
    "a process below 0": lambda path: path.write_bytes(forged(processes=[-1])),
    "a newer version": lambda path: path.write_bytes(checked_json({"format": 2, "requests": []})),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_others_put_there_does_no_harm(run: RunDirectory, what: str) -> None:
    box, carried = inbox(run)
    HOSTILE[what](run.requests_path)
    box.look()
    assert not carried
    request = requests.make("some", 0)
    if what == "a folder":
        with pytest.raises(OSError, match="requests"):
            requests.post(run, request)
        return
    requests.post(run, request)  # replaces it
    box.look()
    assert carried == [request]
    place = run.file("answers", 0, 0)
    place.unlink()
    HOSTILE[what](place)
    assert requests.answers(run, request) == {}


def test_a_living_job_answers(record: Record) -> None:
    recording = record()
    with goodput.job(), goodput.step(0):
        run = RunDirectory(recording.folder)
        assert requests.living(run) == (0, [0])
        assert requests.local_runs(str(recording.folder))[0].path == recording.folder
        request = requests.make("unknown", 0)
        requests.post(run, request)
        waits.until(lambda: requests.answers(run, request))
    assert requests.answers(run, request)[0].state == REFUSED
    recording.recorder.shutdown()
    with pytest.raises(JournalError, match="is not running"):
        requests.living(run)


def test_of_a_url_the_local_copy_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(JournalError, match="run it there"):
        requests.local_runs("memory://here/runs")
    folder = RunDirectory(open_spool("memory://here/runs") / "job-17")
    folder.create({})
    for place in ("memory://here/runs", "memory://here/runs/", "memory://here/runs/job-17"):
        assert [run.path for run in requests.local_runs(place)] == [folder.path]
