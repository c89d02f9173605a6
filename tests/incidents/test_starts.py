"""A job hangs before its first step: the others wait there for a rank that never begins, and the incident names it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import warm
from waits import until

from otel_goodput._journal.incidents import incidents_of
from otel_goodput._journal.rundir import RunDirectory

RANKS = 3
PROGRAM = """
import sys, time
from pathlib import Path
from otel_goodput._live import ranks
ranks.EVERY_S = ranks.FIRST_S = 0.3
import otel_goodput as goodput

rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
goodput.configure(
    "job", directory=folder / "runs", exporters="none", integrations="none", incidents="0.5s", profile="off",
    watchdog="start=18s", process_index=rank, process_count=count,
)
def restore():
    time.sleep(600)  # restore

def wait_for_all():
    (folder / f"step-{rank}").touch()
    while len(list(folder.glob("step-*"))) < count:
        time.sleep(0.01)

with goodput.job():
    if rank == count - 1:
        with goodput.checkpoint_restore():
            restore()
    with goodput.step(0):
        wait_for_all()
"""


@pytest.mark.release
def test_the_rank_that_has_not_begun_its_first_step_is_named_early(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    line = 1 + next(at for at, text in enumerate(PROGRAM.splitlines()) if text.endswith("# restore"))
    words = [str(RANKS), str(tmp_path)]
    processes = [
        warm.Process([sys.executable, str(program), str(rank), *words], env={**os.environ}) for rank in range(RANKS)
    ]
    run = RunDirectory(tmp_path / "runs" / "job")

    def known() -> list[tuple[str, str, int, str]]:
        return [(one.kind, one.source.category, one.source.rank, one.line) for _, one in incidents_of(run, {})]

    try:
        until(lambda: known() == [("hang", "checkpoint_restore", RANKS - 1, f"program.py:{line}")], 60, known)
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
    ((_, one),) = incidents_of(run, {})
    assert 3 <= (one.opened - one.began) / 1e9 < 12, "a sixth of the limit"
    assert any("2 ranks wait" in text and "rank 2 is in restore" in text for text in one.evidence), one.evidence
