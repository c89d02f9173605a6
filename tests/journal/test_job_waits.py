"""For which ranks a job waited, as it is saved and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_goodput._accounting.job import Costs
from otel_goodput._accounting.ranks import Stretch
from otel_goodput._accounting.rules import CATEGORY_INDEX, CUSTOM
from otel_goodput._journal.job_waits import JobWaits, read_waits, write_waits
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput.semconv import Category

LOAD, SAVE = CATEGORY_INDEX[Category.DATA_LOADING], CATEGORY_INDEX[Category.CHECKPOINT_SAVE]
SECOND = 1_000_000_000
AT = 1_790_000_000 * SECOND


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory(tmp_path / "run").of_job
    folder.create({})
    return folder


def waits() -> JobWaits:
    costs = Costs()
    for minute in range(600):
        begin = AT + 60 * minute * SECOND
        costs.add(Stretch(begin, begin + 5 * SECOND, LOAD, "", 2, True))
        costs.add(Stretch(begin + 5 * SECOND, begin + 6 * SECOND, CUSTOM, "eval – 'a'", 7, True))
    costs.add(Stretch(begin + 6 * SECOND, begin + 9 * SECOND, SAVE, "", 511, True))
    return JobWaits(512, True, AT + 36000 * SECOND, costs)


def test_what_is_read_is_what_was_written_and_goes_on(folder: RunDirectory) -> None:
    saved = waits()
    assert write_waits(folder, saved)
    again = read_waits(folder)
    assert again[:3] == saved[:3]
    for one in (saved.costs, again.costs):
        one.add(Stretch(saved.until, saved.until + SECOND, LOAD, "", 2, True))
    assert vars(again.costs.over_time) | {"_begin": 0} == vars(saved.costs.over_time) | {"_begin": 0}
    assert (again.costs.whole, again.costs.latest) == (saved.costs.whole, saved.costs.latest)


@pytest.mark.parametrize(
    "change",
    [
        {"causes": [[2, "no category", "", 1, 0, 1]]},
        {"causes": [[-2, "data_loading", "", 1, 0, 1]]},
        {"bins": [[0, 999, 1]]},
        {"bins": [[0, 0, 1], [10**9, 0, 1]]},
        {"width": 3},
        {"width": 10**9},
        {"ranks": "many"},
        {"until": 10**40},
        {"causes": None},
    ],
)
def test_a_forged_file_is_an_error(folder: RunDirectory, change: dict[str, object]) -> None:
    write_waits(folder, waits())
    path = folder.file("waits", 0)
    members = json.loads(path.read_bytes())
    del members["checksum"]
    path.write_bytes(checked_json(members | change))
    with pytest.raises(ValueError, match=r"\w"):
        read_waits(folder)
