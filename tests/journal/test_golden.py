"""Run folders as version 0.2.0 writes them, kept in `golden/`, are read and continued.

What a later version owes to these folders: it reads each of them, continues its run, and says of it what is written
beside it, figure by figure. What it says in addition is free. Where a rule of the account changes on purpose, the new
figure is named in `CHANGES` with that rule; the folders are not written anew once a version with them is published.
Until then, `python tests/journal/golden/writer.py` writes all of them anew.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recorded import NS, Recording, sum_ns

import otel_goodput as goodput
from otel_goodput._accounting import Ledger, Partition, Totals
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events
from otel_goodput.reports.run import RecordedRun

GOLDEN = Path(__file__).with_name("golden")
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


class Change(NamedTuple):
    """A figure that this version gives otherwise: where, what instead, by which rule."""

    folder: str
    figure: str
    now: Any
    rule: str


CHANGES: list[Change] = []


class Golden(NamedTuple):
    name: str
    run: RunDirectory
    then: dict[str, Any]

    @property
    def questions(self) -> dict[str, Any]:
        stored = self.then["questions"]
        return {"at": stored["at"], **{key: [tuple(pair) for pair in stored[key]] for key in ("windows", "exclusions")}}


def unpack(name: str, place: Path) -> None:
    """By hand: extractall() warns without its argument `filter`, which not every Python has that we run on."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is not None:
                path = place / entry.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """A copy of the folder, where a run called "run" is looked for."""
    name: str = request.param
    unpack(name, tmp_path / "runs")
    then = json.loads((GOLDEN / f"{name}.json").read_text())
    return Golden(name, RunDirectory(tmp_path / "runs" / "run"), then)


def partitions(totals: Totals) -> Iterator[Partition]:
    yield totals.run
    for _, _, partition in totals.windows:
        yield partition
    for _, partition in totals.rolling:
        yield partition


def assert_exact(totals: Totals) -> None:
    for partition in partitions(totals):
        assert sum(partition.categories.values()) + sum(partition.custom.values()) == partition.elapsed
        assert min((*partition.categories.values(), *partition.custom.values())) >= 0


def test_all_kinds_of_folders_are_there() -> None:
    assert {"live", "dead", "ended", "sealed", "mirrored", "observed", "observed-dead", "disrupted"} <= set(NAMES)


@pytest.mark.parametrize("question", ["report", "answers"])
def test_it_is_read_as_it_was(golden: Golden, question: str, caplog: pytest.LogCaptureFixture) -> None:
    report = RecordedRun(golden.run).report(**(golden.questions if question == "answers" else {}))
    assert_exact(report.totals)
    changed = {change.figure: change.now for change in CHANGES if change.folder == golden.name}
    read, then = (
        flat(report.to_json()),
        {f"{question}.{key}": value for key, value in flat(golden.then[question]).items()},
    )
    read = {f"{question}.{key}": value for key, value in read.items()}
    expected = then | {figure: now for figure, now in changed.items() if figure.startswith(f"{question}.")}
    expected = {key: value for key, value in expected.items() if not key.endswith(".text")}  # no figure
    assert {key: read.get(key) for key in expected} == expected
    assert not caplog.records, "it is sound"


def flat(answer: Any, path: str = "") -> dict[str, Any]:
    """The figures of a JSON answer by their paths; a figure that holds no time may be left out of it or be 0."""
    if isinstance(answer, (dict, list)) and answer:
        pairs = answer.items() if isinstance(answer, dict) else enumerate(answer)
        inner = [flat(value, f"{path}.{key}" if path else str(key)) for key, value in pairs]
        whole = {key: value for each in inner for key, value in each.items()}
        return {key: value for key, value in whole.items() if value or "seconds." not in key}
    return {path: answer}


def test_the_journal_alone_says_the_same(golden: Golden) -> None:
    """Without the snapshot, and replayed offline, all segments read."""
    report = RecordedRun(golden.run).report().to_json()
    golden.run.file("snapshot", 0).unlink(missing_ok=True)
    if golden.name != "mirrored":  # the segment at the URL was cut when its attempt died
        alone = RecordedRun(golden.run).report().to_json()
        # Where windows became much finer, those before began anew, and are missing from the snapshot.
        assert [one for one in alone["rolling"] if one in report["rolling"]] == report["rolling"]
        assert alone | {"rolling": report["rolling"]} == report
    events = list(all_events(golden.run))
    ledger = Ledger()
    ledger.feed(events)
    totals = ledger.totals(max(event.time for event in events))
    assert_exact(totals)
    assert totals.run.elapsed == round(report["elapsed_s"] * NS)
    assert flat(totals.to_json()["seconds"], "seconds") == flat(report["seconds"], "seconds")


# What another attempt may take from a category: the in-flight step and what is not saved turn to lost ones, the time
# until the restart is the infrastructure's, and what first steps took above the median is start-up (R2, R4, R5).
GIVES = {"in_flight", "productive", "wasted_progress", "program_startup"}
TAKES = {"wasted_progress", "program_startup", "productive", "infrastructure_recovery"}


def test_another_attempt_goes_on_with_it(golden: Golden, record: Callable[..., Recording]) -> None:
    before = RecordedRun(golden.run).report().totals
    assert before.last_step is not None
    first = before.last_step + 1
    start = before.at + 1000 * NS
    recording = record(job_name="golden", directory=golden.run.path.parent)
    assert recording.recorder.attempt == before.attempts and recording.recorder.run_id == "run"
    with (
        goodput.job(start_time=start, end_time=start + 100 * NS),
        goodput.custom("eval", start_time=start, end_time=start + 5 * NS),
    ):
        pass
    for number in range(10):
        moment = start + (10 + number) * NS
        with goodput.step(first + number, start_time=moment, end_time=moment + NS // 2):
            pass
    after = recording.recorder.totals()
    goodput.shutdown()
    assert_exact(after)
    assert recording.report_on_disk() == recording.report()
    assert sum_ns(recording.report()) == after.run.elapsed
    assert after.started_at == before.started_at and after.attempts == before.attempts + 1
    assert sum(after.disruptions.values()) == sum(before.disruptions.values()) + 1
    assert after.last_step == first + 9 and after.kept >= before.kept + 10 - (before.in_flight_step is not None)
    for name, duration in before.run.categories.items():
        assert after.run.categories[name] >= duration or name in GIVES, name
    for name, duration in before.run.custom.items():
        assert after.run.custom[name] == duration + (5 * NS if name == "eval" else 0)
    assert after.run.custom["eval"] >= 5 * NS
    unchanged = set(before.run.categories) - GIVES - TAKES - {"other"}
    assert {name: after.run.categories[name] for name in unchanged} == {
        name: before.run.categories[name] for name in unchanged
    }
    assert before.started_at is not None
    assert after.run.elapsed + after.excluded == start + 100 * NS - before.started_at


def test_started_again_without_an_id(golden: Golden) -> None:
    """One that had finished is followed by a run of its own, and stays what it was; another one goes on."""
    base, before = golden.run.path.parent, RecordedRun(golden.run).report().to_json()
    recorder = goodput.Recorder("run", directory=base, exporters="none")
    with recorder.job():
        pass
    recorder.shutdown()
    if golden.then["report"]["ended"]:
        assert (recorder.run_id, recorder.attempt, recorder.totals().attempts) == ("run-2", 0, 1)
        assert RecordedRun(golden.run).report().to_json() == before
    else:
        assert (recorder.run_id, recorder.attempt) == ("run", before["attempts"])


def test_going_back_behind_what_it_held_loses_it(golden: Golden, record: Callable[..., Recording]) -> None:
    """From step 5 on everything is run again: what was kept is wasted, to the nanosecond."""
    before = RecordedRun(golden.run).report().totals
    start = before.at + 1000 * NS
    recording = record(job_name="golden", directory=golden.run.path.parent)
    with goodput.job(start_time=start, end_time=start + 100 * NS):
        for number in range(2):
            moment = start + (10 + number) * NS
            with goodput.step(5 + number, start_time=moment, end_time=moment + NS):
                pass
    after = recording.recorder.totals()
    goodput.shutdown()
    assert_exact(after)
    first = min(5, before.kept)
    assert after.kept == first + 2
    assert after.last_step == 6 and after.at_risk <= after.run.productive
    assert recording.report_on_disk() == recording.report()


def test_a_mirror_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its URL, from a machine that has never seen it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unpack("mirrored", tmp_path / "bucket")
    then = json.loads((GOLDEN / "mirrored.json").read_text())["report"]
    recorder = goodput.Recorder("golden", run_id="run", directory=f"file://{tmp_path}/bucket", exporters="none")
    with recorder.job():
        for number in range(then["last_step"] + 1, then["last_step"] + 4):
            with recorder.step(number):
                pass
    recorder.shutdown()
    totals = recorder.totals()
    assert_exact(totals)
    assert totals.attempts == then["attempts"] + 1 and totals.kept == then["steps"]["kept"] + 3
    at_the_url = RecordedRun(RunDirectory(tmp_path / "bucket" / "run")).report().totals
    assert_exact(at_the_url)
    assert at_the_url.kept == totals.kept and at_the_url.run.categories == totals.run.categories
