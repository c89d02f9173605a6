"""A job of several ranks whose journal is at a URL: the job's own records are there, too, and everything reads them."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from waits import until

import otel_goodput as goodput
from otel_goodput._journal.rundir import owner
from otel_goodput._tools.cli import main

COUNT = 3


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Continue on a machine: it has a folder for temporary files of its own."""

    def change(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))

    return change


def recorders(url: str) -> list[goodput.Recorder]:
    about: dict[str, Any] = {"run_id": "run", "directory": url, "exporters": "none", "process_count": COUNT}
    return [goodput.Recorder("ranks", process_index=rank, **about) for rank in range(COUNT)]


def train(url: str, first: int, last: int) -> None:
    """Run all ranks in this process; rank 1 has a slow loader, for which the others wait in each step for 10 ms."""
    ranks = recorders(url)
    meeting = threading.Barrier(COUNT)

    def run(rank: int) -> None:
        recorder = ranks[rank]
        with recorder.job():
            for number in range(first, last):
                with recorder.data_loading():
                    if rank == 1:
                        until(lambda: meeting.n_waiting == COUNT - 1, pause=0.001)
                        time.sleep(0.01)
                with recorder.step(number):
                    meeting.wait(20)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recorder in reversed(ranks):  # the leader last
        recorder.shutdown()


def names_in(bucket: str) -> list[str]:
    return sorted(path.partition("/run/")[2] for path in fsspec.filesystem("memory").find(bucket))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_jobs_own_records_follow_it_to_other_machines(
    bucket: str, machine: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine B makes them again, so that those that A has are old when the job comes back to it, and goes on."""
    viewer: goodput.Run | None = None
    for attempt, (name, merged) in enumerate([("a", True), ("b", True), ("a", False)]):
        machine(name)
        with monkeypatch.context() as patch:
            if not merged:
                patch.setattr("otel_goodput._live.leader.MERGED_BYTES", 0)
            train(bucket, attempt * 6, attempt * 6 + 8)
        whole = answer(capsys, "report", bucket, "--exact")
        with monkeypatch.context() as patch:
            patch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)  # the journals are too large to be merged
            recorded = answer(capsys, "report", bucket)
            (listed,) = answer(capsys, "runs", bucket)["runs"]
            viewer = viewer or goodput.open_run(bucket)
            viewer.refresh()
            seen = viewer.report().to_json()
        assert recorded["ranks"]["count"] == seen["ranks"]["count"] == COUNT
        assert recorded["attempts"] == whole["attempts"] == attempt + 1
        assert recorded["steps"] == seen["steps"] == whole["steps"] and whole["steps"]["kept"] == attempt * 6 + 8
        assert recorded["seconds"] == seen["seconds"]
        assert recorded["elapsed_s"] == seen["elapsed_s"] == listed["elapsed_s"] == whole["elapsed_s"]
        # If an attempt goes on with the records, the end of the one before, on which its ranks differ, is settled.
        assert recorded["seconds"] == (whole["seconds"] if merged else pytest.approx(whole["seconds"], abs=0.05))
        waits = {(one["rank"], one["category"]): one["seconds"] for one in recorded["ranks"]["waits"]}
        assert waits[1, "data_loading"] > (attempt + 1) * 0.05
    assert viewer is not None
    viewer.close()


def test_records_that_were_made_again_take_the_place_of_the_others(bucket: str, machine: Any) -> None:
    for attempt in range(2):
        machine(str(attempt))
        train(bucket, attempt * 10, attempt * 10 + 3)
        own = [name for name in names_in(bucket) if name.startswith("job/")]
        segments = [name for name in own if ".segment" in name]
        assert [name.partition("-p")[0] for name in segments] == [f"job/journal/a{attempt:04d}"], own
        assert {"job/run.json", "job/journal/p0000.waits"} < set(own)
        assert not [name for name in names_in(bucket) if name.endswith((".lock", ".updates", ".part"))]


def test_a_rank_uploads_its_own_files_and_those_of_the_dead(
    bucket: str, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has fetched of other ranks may be old, and would take the place of what they have uploaded since."""
    machine("a")
    sent: list[str] = []
    put = MemoryFileSystem.pipe_file

    def pipe_file(self: Any, path: str, *arguments: Any, **more: Any) -> None:
        sent.append(path.rpartition("/")[2])
        put(self, path, *arguments, **more)

    ranks = recorders(bucket)
    for rank in ranks:
        with rank.job(), rank.step(0):
            pass
        rank._opened.mirror.stop()  # type: ignore[union-attr]
    for thread in threading.enumerate():  # else one that is uploading now is heard of below
        if thread.name == "otel-goodput-mirror":
            thread.join(20)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)

    def uploaded_by(rank: int) -> set[int | None]:
        sent.clear()
        mirror = ranks[rank]._opened.mirror
        assert mirror is not None
        mirror._sent.clear()
        mirror.send(ranks[rank]._account.journal)
        return {owner(name) for name in sent} - {None}

    assert [uploaded_by(rank) for rank in range(3)] == [{0}, {1}, {2}]
    ranks[2].shutdown()
    assert [uploaded_by(rank) for rank in range(2)] == [{0, 2}, {1}]
    for rank in ranks[:2]:
        rank.shutdown()
