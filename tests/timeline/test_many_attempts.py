"""A run of many attempts: what is read for its page and its report grows with their number, not with its square."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import warm

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.records import SEGMENT_BYTES
from otel_goodput._journal.rundir import RunDirectory

NS = 1_000_000_000
BEGAN = 1_750_000_000 * NS

# Reads the same folder twice, so that what is imported and kept does not count, and counts what the second one takes.
READER = """
import json, sys
from pathlib import Path
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.time_index import TimeIndex
from otel_goodput.reports.run_view import RunView
from otel_goodput._viewer.document import document
from otel_goodput.reports.run import FollowedRun, RecordedRun

counts = {"open": 0, "os.listdir": 0}
def count(event, arguments):
    if event == "open" or (event == "os.listdir" and str(arguments[0]).startswith(sys.argv[1])):  # not an import's
        counts[event] += 1
sys.addaudithook(count)

def read():
    for line in Path("/proc/self/io").read_text().splitlines():
        name, number = line.split(": ")
        counts[name] = int(number)
    return dict(counts)

def page(run):
    session = RunView.open(RecordedRun(run))
    document(session)
    return session.report

def report(run):
    return RecordedRun(run).report()

def followed(run):
    return FollowedRun(run).report()

def windows(run):
    index = TimeIndex(run)
    for begin in range(0, 100 * 10**9, 20 * 10**9):
        assert index.between(int(sys.argv[3]) + begin, int(sys.argv[3]) + begin + 10**9).parts
    return RecordedRun(run).report(others=False)

reader = globals()[sys.argv[2]]
reader(RunDirectory(Path(sys.argv[1])))
before = read()
result = reader(RunDirectory(Path(sys.argv[1])))
after = read()
spent = {name: after[name] - before[name] for name in ("open", "os.listdir", "rchar", "syscr")}
print(json.dumps({**spent, "attempts": result.to_json()["attempts"]}))
"""


def write(run: RunDirectory, attempts: int) -> None:
    """As many attempts as asked, each of three steps that take a second."""
    run.create({"run_id": "run", "job_name": "job", "created_at": BEGAN / NS})
    for attempt in range(attempts):
        at = BEGAN + attempt * 10 * NS
        rows = [
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
        data = records.encode_header(attempt, 0, 0, 1) + b"".join(records.seal(records.BODY.pack(*row)) for row in rows)
        with run.segment_path(attempt, 0, 0).open("wb") as file:
            file.write(data)
            file.truncate(SEGMENT_BYTES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    by_attempts = {attempts: tmp_path_factory.mktemp(f"of{attempts}") for attempts in (50, 200)}
    for attempts, folder in by_attempts.items():
        write(RunDirectory(folder), attempts)
    return by_attempts


def spent(folder: Path, attempts: int, reader: str) -> dict[str, int]:
    done = warm.run(
        [sys.executable, "-c", READER, str(folder), reader, str(BEGAN)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    figures: dict[str, int] = json.loads(done.stdout)
    assert figures.pop("attempts") == attempts
    return figures


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="what a process reads is counted by Linux")
@pytest.mark.parametrize("reader", ["page", "report", "followed", "windows"])
def test_each_attempt_takes_a_few_opened_files_and_none_lists_the_folder(reader: str, folders: dict[int, Path]) -> None:
    """However many there are, and although its segment has room for 32,768 records."""
    (few, before), (many, after) = folders.items()
    small, large = spent(before, few, reader), spent(after, many, reader)
    each = {name: (large[name] - small[name]) / (many - few) for name in small}
    assert each["os.listdir"] == 0
    assert 1 <= each["open"] <= 16, "of which a file that is opened counts two: its descriptor and its stream"
    assert each["rchar"] < 128 * 1024 and each["syscr"] < 32
