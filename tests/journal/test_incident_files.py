"""Files of incidents that are damaged, hostile or newer: the report comes without them, and says so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from troubled import incidents, trouble
from viewer.story import story_run

from benchmarks.long_run import BEGIN, NS
from otel_goodput._accounting.incidents import Source
from otel_goodput._journal import incidents as files_of_incidents
from otel_goodput._journal.incidents import MOST, IncidentSheet, read_incidents
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json, read_json
from otel_goodput._viewer.document import document
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

BEGAN = BEGIN + 4 * NS
HUGE = 2**62


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two attempts, each with two incidents."""
    run = story_run(tmp_path_factory.mktemp("incidents"))
    for attempt in (0, 1):
        trouble(run, BEGAN, attempt)
    return run


@pytest.fixture
def path(run: RunDirectory) -> Any:
    """The file of the latest attempt, which is as it was afterwards."""
    path = run.file("incidents", 1, 0)
    content = path.read_bytes()
    yield path
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def read(run: RunDirectory) -> Report:
    report = RecordedRun(run).report()
    assert str(report) and json.dumps(report.to_json(), allow_nan=False)
    return report


def members(path: Path, **changes: Any) -> bytes:
    """The content of the file, with other members in its first incident, and a checksum that fits."""
    content = read_json(path)
    content["incidents"][0].update(changes)
    return checked_json(content)


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "nothing": lambda path: b"",
    "no JSON": lambda path: b"\xff\x00{",
    "a list": lambda path: b"[]",
    "nested": lambda path: b'{"incidents": ' + b"[" * 100_000,
    "huge": lambda path: b" " * (65 << 20),
    "cut": lambda path: path.read_bytes()[:-20],
    "another checksum": lambda path: path.read_bytes().replace(b"train.py", b"other.py"),
    "without a checksum": lambda path: json.dumps(read_json(path)).encode(),
    "of another attempt": lambda path: checked_json(read_json(path) | {"attempt": 7}),
    "no list": lambda path: checked_json(read_json(path) | {"incidents": {"a": 1}}),
    "too many": lambda path: checked_json(read_json(path) | {"incidents": read_json(path)["incidents"] * MOST}),
    "an unknown kind": lambda path: members(path, kind="panic"),
    "a text for a number": lambda path: members(path, began="now"),
    "a number beyond 64 bits": lambda path: members(path, cost=10**40),
    "infinite": lambda path: members(path, cost=1).replace(b'"cost": 1', b'"cost": Infinity'),
    "negative": lambda path: members(path, began=-1),
    "a flag": lambda path: members(path, number=True),
    "no source": lambda path: members(path, source=["data_loading"]),
    "a share too few": lambda path: members(path, shares=[[]]),
    "evidence of numbers": lambda path: members(path, evidence=[1]),
    "too much evidence": lambda path: members(path, evidence=["x"] * 1000),
    "a job without ids": lambda path: checked_json(read_json(path) | {"jobs": [[1, "", "zz"]]}),
    "an id too long": lambda path: checked_json(read_json(path) | {"delivered": [["f" * 17, 1]]}),
    "a line of lists": lambda path: members(path, line=["a"]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_cannot_be_read_is_left_out_and_named(what: str, run: RunDirectory, path: Path) -> None:
    whole = read(run)
    path.write_bytes(HOSTILE[what](path))
    report = read(run)
    assert report.totals.run == whole.totals.run
    assert [(attempt, one.number) for attempt, one in report.incidents] == [(0, 1), (0, 2)]
    [damage] = report.damage
    assert damage.where == path.name and not damage.newer and damage.uncertain == 0
    assert path.name in str(report)


def test_a_newer_file_is_left_out_as_such(run: RunDirectory, path: Path) -> None:
    path.write_bytes(checked_json(read_json(path) | {"format": 2}))
    report = read(run)
    [damage] = report.damage
    assert damage.newer and len(report.incidents) == 2
    assert "newer version" in str(report)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_nothing_is_followed_or_waited_for(kind: str, run: RunDirectory, path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    report = read(run)
    if kind == "folder":
        path.rmdir()
    assert len(report.incidents) == 2 and [one.where for one in report.damage] == [path.name]


def test_whatever_is_valid_can_be_shown(run: RunDirectory, path: Path) -> None:
    """Incidents that no detector makes: the report, its JSON and the page have them."""
    odd: list[dict[str, Any]] = [
        {"began": HUGE, "ended": 0, "opened": 0, "cost": HUGE},
        {"began": 0, "ended": HUGE, "opened": 0, "before": 0, "after": HUGE},
        {"kind": "slowdown", "before": 1, "after": 0, "shares": [["step", "", -1, -HUGE]]},
        {"kind": "slowdown", "before": HUGE, "after": HUGE, "shares": []},
        {"kind": "restart_loop", "source": ["no category", "\u202e\x1b[2J" * 9, 2**40]},
        {"source": ["", "", -1], "line": "\n" * 100, "evidence": ["", "\0"], "number": 0},
        {"shares": [["a" * 1000, "b" * 1000, 7, HUGE]] * 100},
    ]
    for changes in odd:
        path.write_bytes(members(path, **changes))
        report = read(run)
        assert not report.damage and len(report.incidents) >= 3, changes
        assert not {"\x1b", "\0", "\u202e"} & set(str(report))
        assert document(RunView.open(RecordedRun(run)))


def test_a_restart_goes_on_though_the_files_of_before_cannot_be_read(run: RunDirectory, path: Path) -> None:
    path.write_bytes(b"[" * 1000)
    sheet = IncidentSheet(2, 0)
    sheet.put(incidents(BEGAN)[0])
    sheet.keep(run, last=True)
    assert [one[0] for one in sheet.of_run(())] == [0, 0, 2]
    assert len(read_incidents(run, 2, 0)) == 1
    run.file("incidents", 2, 0).unlink()


def test_as_of_a_moment_an_incident_is_open_that_ended_later(run: RunDirectory) -> None:
    def at(seconds: float) -> list[tuple[int, int | None, int]]:
        known = RecordedRun(run).report(at=BEGAN + round(seconds * NS)).incidents
        return [(one.number, one.ended, round(one.cost / NS, 3)) for attempt, one in known if attempt == 0]

    assert at(-1) == at(0.5) == [], "nobody had noticed any"
    assert at(1.5) == [(1, None, 1.0)]
    assert at(3.5) == [(1, BEGAN + 3 * NS, 2.0)]
    first, second = at(5.5)
    assert first == (1, BEGAN + 3 * NS, 2.0) and second[:2] == (2, None) and 0 < second[2] < 1


def test_what_is_written_is_bounded_and_has_no_secrets(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.make()
    sheet = IncidentSheet(0, 0)
    hang = incidents(BEGAN)[0]
    evil = Source(hang.source.category, "\ud800" + "x" * 100, 0)
    for number in range(1, MOST + 51):
        sheet.put(hang._replace(number=number, source=evil, evidence=("token=hf_" + "a1B2c3D4e5" * 4,) * 40))
    sheet.keep(run, last=True)
    kept = read_incidents(run, 0, 0)
    assert [one.number for one in kept] == [*range(51, MOST + 51)]
    assert len(kept[0].evidence) == files_of_incidents.EVIDENCE and "hf_" not in kept[0].evidence[0]


def test_what_is_written_can_be_read_however_much_there_is(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.make()
    sheet = IncidentSheet(0, 0)
    for number in range(1, MOST + 1):
        sheet.put(incidents(BEGAN)[0]._replace(number=number, evidence=("\u4e16" * 1000,) * 16))
    sheet.keep(run, last=True)
    kept = read_incidents(run, 0, 0)
    assert kept and kept[-1].number == MOST
