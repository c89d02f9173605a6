"""A run's folder whose names are read once says what the folder said at that moment."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import otel_goodput as goodput
from otel_goodput._journal.rundir import ListedRun, RunDirectory
from otel_goodput._runtime import files
from otel_goodput._timeline.overviews import overview_of


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Two processes of which one was started twice; of a third only a pace, of a fourth only a digest."""
    for process in (0, 1, 1):
        recorder = goodput.Recorder(
            "listed", run_id="listed", directory=tmp_path, exporters="none", process_index=process, process_count=5
        )
        with recorder.job():
            for number in range(5):
                with recorder.step(number):
                    pass
        recorder.shutdown()
    run = RunDirectory(tmp_path / "listed")
    run.file("pace", 2).write_bytes(b"{}")
    run.file("digest", 3).write_bytes(run.file("digest", 1).read_bytes())
    return run


def test_it_says_what_the_folder_says(run: RunDirectory) -> None:
    listed = ListedRun(run.path)
    assert listed.there == {0, 1, 2, 3}
    assert [listed.recorded(process) for process in range(5)] == [True, True, False, True, False]
    assert listed.processes() == run.processes() == [0, 1]
    assert listed.pace_paths() == run.pace_paths()
    for process in range(5):
        assert listed.attempts(process) == run.attempts(process)
        assert [one.path for one in listed.segments(process)] == [one.path for one in run.segments(process)]
    assert listed.attempts(1) == [0, 1]
    for process in (0, 1, 3):
        read, expected = overview_of(listed, process), overview_of(run, process)
        assert read is not None and expected is not None
        assert read.overview == expected.overview


def test_names_are_read_once(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ListedRun(run.path)
    monkeypatch.setattr(files, "names", None)
    assert listed.attempts(1) == [0, 1]
    assert overview_of(listed, 1) is not None


def test_a_segment_that_was_packed_since_is_read(run: RunDirectory) -> None:
    listed = ListedRun(run.path)
    [segment, *_] = run.segments(0)
    packed = segment.path.with_name(segment.path.name + ".gz")
    packed.write_bytes(gzip.compress(segment.path.read_bytes()))
    segment.path.unlink()
    assert listed.segments(0)[0].path == packed


def test_a_folder_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    listed = ListedRun(tmp_path / "nowhere")
    assert listed.there == set() and listed.attempts(0) == [] and not listed.recorded(0)
