"""The notes that a reader of the figures needs: with the report, live and from the disk, over restarts."""

from __future__ import annotations

import time
from pathlib import Path

from waits import until

import otel_goodput as goodput
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import Category

ADVICE = "save checkpoints more often"


def recorder(directory: Path) -> goodput.Recorder:
    return goodput.Recorder("noted", run_id="noted", directory=directory, exporters="none", integrations="none")


def test_a_note_stands_next_to_the_figures_and_withholds_its_advice(tmp_path: Path) -> None:
    text = "steps went back without a restore; write: for step, batch in goodput.steps(loader):"
    with recorder(tmp_path) as made:
        with made.job():
            for at, number in enumerate((1, 2, 3, 1)):
                if at == 3:  # the reason why it goes back is given: there is no note about it
                    with made.checkpoint_restore(0):
                        pass
                with made.step(number):
                    end = time.perf_counter() + 0.02  # far more than all else takes, on a busy machine too
                    while time.perf_counter() < end:
                        pass
        assert ADVICE in str(made.report())
        assert made.report().to_json()["warnings"] == []
        notes = made._account.notes
        assert notes.add("steps went back", "to be replaced", [Category.WASTED_PROGRESS])
        assert not notes.add("steps went back", text, [Category.WASTED_PROGRESS]), "said aloud once"
        report = made.report()
        assert report.to_json()["warnings"] == [
            {"kind": "steps went back", "text": text, "doubts": [Category.WASTED_PROGRESS]}
        ]
        assert text in " ".join(str(report).split())
        assert ADVICE not in str(report)
    run = RunDirectory(tmp_path / "noted")
    assert RecordedRun(run).report().to_json()["warnings"] == report.to_json()["warnings"]
    with recorder(tmp_path) as again:
        again._account.notes.add("continued", "this run goes on")
        assert [note.kind for note in again.report().notes] == ["steps went back", "continued"]
        until(lambda: len(RecordedRun(run).report().notes) == 2)
    assert [note.kind for note in RecordedRun(run).report().notes] == ["steps went back", "continued"]


def test_a_damaged_file_of_notes_is_none(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "noted")
    for spoilt in (b"", b"[", b"[1]", b'{"kind": 1}', b'[{"kind": "x"}]', b"\xff"):
        run.file("notes", 0).unlink(missing_ok=True)
        with recorder(tmp_path):
            pass
        run.file("notes", 0).write_bytes(spoilt)
        assert [note.kind.split()[0] for note in RecordedRun(run).report().notes] == ["damage"]
        with recorder(tmp_path) as made:
            assert [note.kind.split()[0] for note in made.report().notes] == ["set", "damage"]
