"""The page tells the stages of checkpoints as the report does, and which rank is slowest."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_goodput import Recorder
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.page import of_run
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import CheckpointStage

from .browser import Look

MS = 1_000_000


@pytest.fixture
def page(tmp_path: Path) -> Path:
    for process, length in ((1, 40), (0, 10)):
        recorder = Recorder(
            "stages", run_id="run", directory=tmp_path, exporters="none", process_index=process, process_count=2
        )
        tracer = recorder.tracer
        assert tracer is not None
        with recorder.job():
            for number in (0, 1):
                with recorder.step(number):
                    pass
                end = tracer.clock()
                with recorder.checkpoint_save(number, start_time=end - 2 * length * MS, end_time=end):
                    tracer.stage(CheckpointStage.SAVE_COPY, number, end - (length + number) * MS, end)
                    if not number:
                        tracer.stage(CheckpointStage.SAVE_FIND_OLD, number, end, end)
        recorder.shutdown()
    place = tmp_path / "page.html"
    place.write_text(of_run(RecordedRun(RunDirectory(tmp_path / "run"))), encoding="utf-8")
    return place


def test_stages_of_the_leader_and_the_slowest_rank(page: Path, look: Look) -> None:
    look.open(page)
    cells = look.page.eval_on_selector_all(
        "#checkpoints tr[data-stage]", "(all) => all.map((one) => [...one.cells].map((cell) => cell.innerText))"
    )
    (stage, count, least, mean, most, deviation, slowest), (other, *_, single, slowest_other) = cells
    assert (stage, other) == ("save blocking copy", "save find old")
    assert (count, least, mean, most, deviation) == ("2", "10.0 ms", "10.5 ms", "11.0 ms", "707 µs")
    assert slowest == "1: 40.5 ms, median 25.5 ms"
    assert single == "–" and slowest_other.startswith("0: ")
    kinds = look.js("Array.from(goodput.model.leader.phases.phase, (kind) => goodput.model.phase_names[kind])")
    assert kinds.count("part") == 3 and kinds.count("checkpoint_save") == 2  # they are in its timeline, too
    assert look.messages == []
