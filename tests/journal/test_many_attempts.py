"""A run of many attempts: what its page opens grows with their number, not with the square of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal import records
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.segment_file import SIZE

NS = 1_000_000_000
BEGAN = 1_750_000_000 * NS

# Counts the files that are opened.
PAGE = """
import json, sys
opened = 0
def hear(event, _):
    global opened
    opened += event == "open"
from pathlib import Path
from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.reports.session import Session
from otel_goodput.viewer.document import document
RunDirectory(Path(sys.argv[1])).segments()
sys.addaudithook(hear)
session = Session.open(RunDirectory(Path(sys.argv[1])))
document(session)
print(json.dumps({"opened": opened, "attempts": session.report.to_json()["attempts"]}))
"""


def write(run: RunDirectory, attempts: int) -> None:
    """As many attempts as asked, each of three steps that take a second."""
    run.create({"run_id": "run", "job_name": "job", "created_at": BEGAN / NS})
    for attempt in range(attempts):
        at = BEGAN + attempt * 10 * NS
        told = [
            (ev.ATTEMPT, 0, 0, 0, 0, attempt, at),
            (ev.START, rules.JOB, 0, 0, 1, ev.NO_STEP, at),
            *(
                row
                for number in range(3)
                for row in (
                    (ev.START, rules.STEP, 0, 0, 2 + number, 3 * attempt + number, at + number * NS),
                    (ev.END, rules.STEP, 0, 0, 2 + number, ev.NO_STEP, at + (number + 1) * NS),
                )
            ),
        ]
        data = records.encode_header(attempt, 0, 0, 1) + b"".join(records.seal(records.BODY.pack(*row)) for row in told)
        with run.segment_path(attempt, 0, 0).open("wb") as file:
            file.write(data)
            file.truncate(SIZE)


def opened(folder: Path, attempts: int) -> int:
    run = RunDirectory(folder)
    write(run, attempts)
    done = subprocess.run(
        [sys.executable, "-c", PAGE, str(folder)], capture_output=True, text=True, timeout=120, check=True
    )
    told = json.loads(done.stdout)
    assert told["attempts"] == attempts
    return int(told["opened"])


def test_the_page_opens_each_segment_a_few_times(tmp_path: Path) -> None:
    few, many = (opened(tmp_path / str(attempts), attempts) for attempts in (20, 100))
    assert many < 8 * few, "five times as many attempts"
