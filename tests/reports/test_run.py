"""One run, whoever asks: the same report in the same words, by a short way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from recorded import Recording
from viewer.story import story_run

import otel_goodput
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.errors import JournalError
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.reports.run_view import RunView

PACKAGE = str(Path(otel_goodput.__file__).parent)
MOST = 15


def handed(call: Callable[[], object]) -> set[str]:
    """The modules of the package to which a run, or its folder, is handed."""
    files: set[str] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), (RunDirectory, RecordedRun)) for name in names):
                files.add(code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    """Four processes, an attempt that was killed, and one that went on."""
    return RecordedRun(story_run(tmp_path))


def test_a_run_is_handed_to_few_modules(run: RecordedRun) -> None:
    assert 1 < len(handed(run.report)) <= MOST
    assert 1 < len(handed(lambda: RunView.open(run))) <= MOST


def test_however_it_is_read_the_report_is_the_same(run: RecordedRun) -> None:
    report = run.report().to_json()
    listed = run.listed()
    assert listed.report().to_json() == listed.report().to_json() == report
    assert RunView.open(run).report.to_json() == report
    followed = FollowedRun(run.folder)
    assert followed.report().to_json() == followed.report().to_json() == report
    at = run.report().totals.at - 10**9
    assert followed.report(at=at).to_json() == run.report(at=at).to_json() != report
    assert followed.report().to_json() == report


@pytest.mark.parametrize("kind", [RecordedRun, FollowedRun])
def test_without_a_journal_it_says_so(kind: type[RecordedRun], tmp_path: Path) -> None:
    run = kind(RunDirectory(tmp_path / "run"))
    with pytest.raises(JournalError, match="run 'run': process 0 left no journal"):
        run.report()


def test_a_damaged_small_file_hides_no_journal(record: Callable[..., Recording]) -> None:
    """A run without phases so far has none, also if its identity cannot be read."""
    folder = record().folder
    otel_goodput.flush()
    (folder / "run.json").write_bytes(b"\xb6")
    detail = RecordedRun(RunDirectory(folder)).detail()
    assert not detail.steps and not detail.phases
