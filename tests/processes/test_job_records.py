"""The job's own records: one process writes them, whatever others of the run do."""

from __future__ import annotations

from pathlib import Path

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live.job_records import JobRecords


def test_a_second_process_that_leads_keeps_its_records_in_memory(tmp_path: Path) -> None:
    """It neither removes those of the first one, to make them again, nor writes beside it."""
    run = RunDirectory(tmp_path / "run")
    run.create({"run_id": "run"})
    first = JobRecords(run, ())
    there = sorted(path.name for path in run.of_job.journal.iterdir())
    second = JobRecords(run, (), anew=True)
    assert first.journal is not None and second.journal is None
    assert {*there} <= {path.name for path in run.of_job.journal.iterdir()}
    second.close()
    first.close()
    third = JobRecords(run, (), anew=True)  # after the first one
    assert third.journal is not None and third.journal.attempt == first.journal.attempt + 1
    third.close()
