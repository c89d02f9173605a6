"""Ranks that take more steps than can be published one by one: no step is missing in what is counted (rule R11)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from waits import until

import otel_goodput as goodput
from otel_goodput._accounting import rank_updates
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import leader, publisher
from otel_goodput._live import ranks as live_ranks
from otel_goodput._live.rank_messages import RankMessage, encode
from otel_goodput.reports.run import RecordedRun

TESTS = Path(__file__).parent.parent
COUNT = 2
GROUPED = 64  # steps that an update can hold here, so that a short loop is published in groups
STEPS, BACK, LAST = 700, 507, 1100  # that end before it fails; to which it goes back, in the middle of a group; in all


@pytest.fixture(autouse=True)
def largest(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the largest groups that were published."""
    sizes = list[int]()

    def encoded(message: RankMessage) -> bytes:
        sizes.append(max((step.steps for step in message.update.steps), default=0))
        return encode(message)

    monkeypatch.setattr(rank_updates, "MOST", GROUPED)
    monkeypatch.setattr(live_ranks, "FIRST_S", 0.1)
    monkeypatch.setattr(publisher, "encode", encoded)
    yield sizes
    assert max(sizes, default=0) >= 4, "they were groups"


def recorders(folder: Path) -> list[goodput.Recorder]:
    about: dict[str, Any] = {"run_id": "run", "directory": str(folder), "exporters": "none", "process_count": COUNT}
    return [goodput.Recorder("ranks", process_index=rank, **about) for rank in range(COUNT)]


def begin(
    ranks: list[goodput.Recorder], parts: list[tuple[int, int]], *, hangs: bool = False
) -> list[threading.Thread]:
    """Have all ranks take the steps of each part. Before the next one, a step fails; after the last, it may hang."""
    meeting = threading.Barrier(len(ranks))

    def run(recorder: goodput.Recorder) -> None:
        with recorder.job():
            for part, (first, last) in enumerate(parts):
                if part:
                    with recorder.checkpoint_restore(first - 1):
                        pass
                for number in range(first, last):
                    with recorder.data_loading():
                        pass
                    with recorder.step(number):
                        meeting.wait(20)
                if part < len(parts) - 1:
                    with pytest.raises(RuntimeError), recorder.step(last):
                        meeting.wait(20)
                        raise RuntimeError("once more")
            if hangs:
                threading.Event().wait()

    threads = [threading.Thread(target=run, args=(recorder,), daemon=hangs) for recorder in ranks]
    for thread in threads:
        thread.start()
    return threads


def finish(ranks: list[goodput.Recorder], threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
    for recorder in reversed(ranks):  # the leader last
        recorder.shutdown()


def steps_by(leader: goodput.Recorder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the live report, that of the job's own records, and that of all journals say of the steps."""
    run = RecordedRun(RunDirectory(folder / "run"))
    exact, live = run.report(exact=True), leader.report()
    monkeypatch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)  # the journals are too large to be merged
    every = {"exact": exact.to_json(), "live": live.to_json(), "recorded": run.report().to_json()}
    for one in every.values():
        assert one["ranks"]["together"] and one["elapsed_s"] == every["exact"]["elapsed_s"]
        mean = one["step_time"]["mean_s"] / every["exact"]["step_time"]["mean_s"]
        assert 0.5 < mean < 2, "the time of a group is divided among its steps"
    return {name: one["steps"] for name, one in every.items()}


def test_every_step_is_counted_and_those_that_a_loop_goes_back_behind_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = recorders(tmp_path)
    finish(ranks, begin(ranks, [(0, STEPS), (BACK, LAST)]))
    counts = {"executed": STEPS + LAST - BACK, "kept": LAST, "lost": STEPS - BACK + 1}  # and the one that failed
    assert steps_by(ranks[0], tmp_path, monkeypatch) == dict.fromkeys(("exact", "live", "recorded"), counts)


def killed(folder: Path) -> None:
    """The first attempt: all is published, and it hangs."""
    rank_updates.MOST, live_ranks.FIRST_S = GROUPED, 0.1  # type: ignore[misc]
    ranks = recorders(folder)
    begin(ranks, [(0, STEPS)], hangs=True)
    until(lambda: (report := ranks[0].report()).ranks is not None and report.to_json()["steps"]["kept"] == STEPS)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("merged", [True, False], ids=["journals", "own records"])
def test_a_restart_goes_back_to_the_middle_of_a_group(
    merged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys, pathlib, processes.test_fast_steps as own; own.killed(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    process = warm.Process([sys.executable, "-c", code, str(tmp_path)], env=environment)
    try:
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
    if not merged:
        monkeypatch.setattr(leader, "MERGED_BYTES", 0)  # the leader goes on with the records of the first attempt
    ranks = recorders(tmp_path)
    finish(ranks, begin(ranks, [(BACK, LAST)]))
    counts = {"executed": STEPS + LAST - BACK, "kept": LAST, "lost": STEPS - BACK}
    assert steps_by(ranks[0], tmp_path, monkeypatch) == dict.fromkeys(("exact", "live", "recorded"), counts)
