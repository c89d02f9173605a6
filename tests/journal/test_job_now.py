"""What the ranks of a job do, as it is saved and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.rank_updates import Opened
from otel_goodput._accounting.ranks import STEP_TIME
from otel_goodput._accounting.rules import CATEGORY_INDEX, CUSTOM, CUT_OUT
from otel_goodput._journal.job_now import RANKS, JobNow, RankDoing, read_now, write_now
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput.semconv import Category

LOAD = CATEGORY_INDEX[Category.DATA_LOADING]
AT = 1_790_000_000_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory(tmp_path / "run").of_job
    folder.create({})
    return folder


def doing(rank: int, opened: Opened | None, *, silent: bool = False) -> RankDoing:
    return RankDoing(rank, f"n{rank // 8}", 1000 + rank, AT - rank, silent, opened)


def test_what_is_read_is_what_was_written(folder: RunDirectory) -> None:
    some = [
        Opened(STEP_TIME, "", 7, AT - 9),
        Opened(CUSTOM, "eval – 'a'", NO_STEP, AT - 8),
        Opened(LOAD, "", 7, AT),
        *(Opened(category, "", 7, AT - 5) for category in sorted(CUT_OUT)),
        None,
    ]
    ranks = [doing(rank, opened, silent=rank == 3) for rank, opened in enumerate(some)]
    for now in (JobNow(AT, 512, ranks, Cause(1, CUSTOM, "eval – 'a'"), AT - 8), JobNow(AT, 4, ranks), JobNow(0, 2, [])):
        assert write_now(folder, now)
        assert read_now(folder) == now


def test_of_thousands_of_ranks_those_are_kept_that_matter(folder: RunDirectory) -> None:
    ranks = [doing(rank, Opened(STEP_TIME, "", 7, AT), silent=rank == 3999) for rank in range(4000)]
    write_now(folder, JobNow(AT, 4000, ranks, Cause(2500, LOAD, ""), AT))
    kept = [one.rank for one in read_now(folder).ranks]
    assert kept == [*range(RANKS - 2), 2500, 3999]
    assert folder.file("now", 0).stat().st_size < 200_000


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": [[0, "n0", 1, AT, False, "no category", "", 1, 0]]},
        {"ranks": [[-1, "n0", 1, AT, False, "", "", 1, 0]]},
        {"ranks": [[0, 7, 1, AT, False, "", "", 1, 0]]},
        {"waiting": [[0, "", "", 0]]},
        {"waiting": [[0, "data_loading", "", 0], [1, "data_loading", "", 0]]},
        {"at": "now"},
        {"expected": None},
    ],
)
def test_a_forged_file_is_an_error(folder: RunDirectory, change: dict[str, object]) -> None:
    write_now(folder, JobNow(AT, 2, [doing(0, None)]))
    path = folder.file("now", 0)
    members = json.loads(path.read_bytes())
    del members["checksum"]
    path.write_bytes(checked_json(members | change))
    with pytest.raises(ValueError, match=r"\w"):
        read_now(folder)
