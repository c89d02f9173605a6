"""The file with the usage of processor and memory: what was written is read, what is damaged is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from otel_goodput._journal.records import NewerVersion
from otel_goodput._journal.rundir import USAGE, RunDirectory, bound
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._journal.usage import MOST, ROWS, Machine, Usage, UsageSheet, read_usage, throttled, usages
from otel_goodput.semconv import THROTTLE_REASONS

MACHINE = Machine(8, 2**40, 2**37)
S = 1_000_000_000
START = 1_795_000_000 * S


def sample(at: int) -> Usage:
    accelerators = (8 * S, 6 * S + at, 2 * S, 3_200_000, (at % 4) << 1)
    return Usage(START + (at + 1) * S, S, 2 * S, 5 * S, 2**33 + at, 2**39 + at, 2**36 + at, *accelerators)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.make()
    return made


def written(run: RunDirectory, attempt: int = 0, process: int = 0, count: int = 3) -> Path:
    sheet = UsageSheet(attempt, process)
    for at in range(count):
        sheet.add(MACHINE, sample(at))
    sheet.keep(run, last=True)
    return run.file("usage", attempt, process)


def test_what_was_sampled_is_read(run: RunDirectory) -> None:
    path = written(run)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_usage(run, 0, 0) == (MACHINE, [sample(0), sample(1), sample(2)])


def test_the_largest_file_stays_within_its_bound(run: RunDirectory) -> None:
    path = written(run, count=MOST - 1)
    assert path.stat().st_size <= USAGE == bound(path.name)
    assert len(read_usage(run, 0, 0)[1]) == MOST - 1


def test_nothing_sampled_leaves_no_file(run: RunDirectory) -> None:
    UsageSheet(0, 0).keep(run, last=True)
    assert not run.file("usage", 0, 0).exists()


def test_a_file_that_cannot_be_written_is_reported_once_and_tried_again(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    sheet = UsageSheet(0, 0)
    sheet.add(MACHINE, sample(0))
    run.file("usage", 0, 0).mkdir()
    sheet.keep(run, last=True)
    sheet.keep(run, last=True)
    assert caplog.text.count("cannot be saved") == 1
    run.file("usage", 0, 0).rmdir()
    sheet.keep(run, last=True)
    assert len(read_usage(run, 0, 0)[1]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 1},
        {"process": 3},
        {"machine": [0, 2**40, 2**37]},
        {"machine": ["many", 2**40, 2**37]},
        {"machine": [8, 2**40]},
        {"end": [5]},
        {"end": [START, START, START]},
        {"length": [S, 0, S]},
        {"process_cpu": [-5, 1, 1]},
        {"process_memory": None},
        {"accelerator_memory": 7},
        {"accelerator_memory": [1]},
        {"accelerator_memory": [1, 1, -2]},
        {"accelerator_busy": [1]},
        {"accelerator_energy": [1, 1, -1]},
        {"throttled": [0, 0, 1 << len(THROTTLE_REASONS)]},
    ],
)
def test_what_is_damaged_is_refused_and_left_out(run: RunDirectory, change: dict[str, Any]) -> None:
    path = written(run)
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_bytes(checked_json({**content, **change}))
    with pytest.raises(ValueError, match=r"."):
        read_usage(run, 0, 0)
    assert usages(run, START + 99 * S) == []


def test_an_older_file_is_read(run: RunDirectory) -> None:
    """It knows nothing of what accelerators did."""
    path = written(run)
    content = json.loads(path.read_text())
    del content["checksum"]
    for name in Usage._field_defaults:
        del content[name]
    path.write_bytes(checked_json(content))
    older = [Usage(*sample(at)[: -len(Usage._field_defaults)]) for at in range(3)]
    assert read_usage(run, 0, 0) == (MACHINE, older)
    assert throttled(usages(run, START + 99 * S), 0, START, START + 99 * S) == ()


def test_why_clocks_were_held_down_in_some_time(run: RunDirectory) -> None:
    written(run, count=4)  # nothing in the first second, then thermal, power_brake, both
    written(run, process=1, count=1)
    read = usages(run, START + 99 * S)

    def between(since: int, until: int, process: int = 0) -> tuple[str, ...]:
        return throttled(read, process, START + since, START + until)

    assert between(0, S) == ()
    assert between(0, S + 1) == ("thermal",)
    assert between(2 * S, 3 * S) == ("power_brake",)
    assert between(0, 99 * S) == ("thermal", "power_brake")
    assert between(4 * S, 99 * S) == between(0, 99 * S, process=1) == between(0, 99 * S, process=2) == ()


def test_a_newer_version_is_reported(run: RunDirectory) -> None:
    path = written(run)
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_bytes(checked_json({**content, "format": 2}))
    with pytest.raises(NewerVersion):
        read_usage(run, 0, 0)


def test_all_processes_and_attempts_until_a_moment(run: RunDirectory) -> None:
    for process, attempt in ((1, 0), (0, 0), (0, 1)):
        written(run, attempt, process)
    read = usages(run, START + 2 * S)
    assert [(one.process, one.attempt, len(one.usages)) for one in read] == [(0, 1, 2), (0, 2, 2), (1, 1, 2)]


def test_many_processes_are_thinned(run: RunDirectory) -> None:
    for process in range(80):
        written(run, 0, process, 1000)
    read = usages(run, START + 2000 * S)
    assert len(read) == 80 and sum(len(one.usages) for one in read) <= ROWS
    assert all(sum(one.length for one in each.usages) == 1000 * S for each in read)
