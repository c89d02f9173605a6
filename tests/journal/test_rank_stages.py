"""Which process of a run takes longest in a stage of its checkpoints, from what every process left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import warm

from otel_goodput import Recorder
from otel_goodput._accounting.checkpoints import slowest
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.overviews import rank_stages
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.reports.run_view import RunView
from otel_goodput.semconv import CheckpointStage

COPY, COMMIT = CheckpointStage.SAVE_COPY, CheckpointStage.SAVE_COMMIT
MS = 1_000_000
KILLED = """
import os, signal, sys
from otel_goodput import Recorder
recorder = Recorder("ranks", run_id="run", directory=sys.argv[1], exporters="none", process_index=2, process_count=4)
with recorder.job():
    now = recorder.tracer.clock()
    recorder.tracer.stage("checkpoint.save.blocking_copy", 0, now - 9_000_000, now)
    recorder.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def record(directory: Path, process: int, lengths: list[int]) -> None:
    recorder = Recorder(
        "ranks", run_id="run", directory=directory, exporters="none", process_index=process, process_count=4
    )
    tracer = recorder.tracer
    assert tracer is not None
    with recorder.job():
        for length in lengths:
            now = tracer.clock()
            tracer.stage(COPY, 0, now - length * MS, now)
        if process == 0:
            tracer.stage(COMMIT, 0, now - MS, now, shown=False)
    recorder.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    record(tmp_path, 1, [30, 50])
    record(tmp_path, 3, [4])
    assert warm.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False).returncode == -9
    record(tmp_path, 0, [3])
    return RunDirectory(tmp_path / "run")


def test_every_process_counts_even_one_that_was_killed(run: RunDirectory) -> None:
    assert not run.file("digest", 2).exists()  # it did not live long enough for one
    report = RecordedRun(run).report()
    save = report.to_json()["checkpoints"]["save"]
    assert save["blocking_copy"]["slowest"] == {"process": 1, "mean_s": 0.04, "median_s": 0.0065}
    assert (save["blocking_copy"]["count"], save["blocking_copy"]["max_s"]) == (1, 0.003)  # the leader's own
    assert save["commit"]["slowest"] is None
    assert "slowest process: 1 (40 ms on average, median of all processes 6.5 ms)" in str(report)
    assert RunView.open(RecordedRun(run)).report.to_json()["checkpoints"]["save"] == save
    followed = FollowedRun(run)
    assert followed.report().to_json()["checkpoints"]["save"] == save
    assert RecordedRun(run).report(process=1).to_json()["checkpoints"]["save"]["blocking_copy"]["count"] == 2


def test_a_process_that_cannot_be_read_hides_no_other(run: RunDirectory) -> None:
    run.file("digest", 1).write_bytes(b"OGDIGEST and no more")
    for snapshot in run.journal.glob("p0001*.snapshot"):
        snapshot.unlink()
    for segment in run.segments(1):
        segment.path.write_bytes(b"\xff" * 4096)
    ranks = rank_stages(run, 0, RecordedRun(run).report().totals.stages)
    assert {rank.process for rank in ranks} == {0, 2, 3}
    assert slowest(ranks, COPY) == {"process": 2, "mean_s": 0.009, "median_s": 0.004}
