"""The figures of docs/migration.md are those of both packages, for the same calls."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from compat.calls import BEGIN, JOB, LOGGER, Call, entry

from otel_goodput._tools import cli

PAGE = (Path(__file__).parents[2] / "docs/migration.md").read_text(encoding="utf-8")
STEP_S = 10


def job(start: float, end: float | None, starts: list[tuple[int, float]], *more: Call) -> list[Call]:
    """The calls of one attempt; without an end it was killed."""
    calls: list[Call] = [("job_start", start, None), *(("step_start", at, step) for step, at in starts), *more]
    if end is not None:
        calls.append(("job_end", end, None))
    return sorted(calls, key=lambda call: call[1])


def steps(first: int, at: float, count: int) -> list[tuple[int, float]]:
    return [(first + each, at + each * STEP_S) for each in range(count)]


def pair(kind: str, start: float, end: float, name: str | None = None) -> list[Call]:
    return [(f"{kind}_start", start, name), (f"{kind}_end", end, name)]


KILLED = job(0, None, steps(0, 0, 5))
JOBS: dict[str, list[Call]] = {
    "ten steps, nothing else": job(0, 100, steps(0, 0, 10)),
    "each step starts after a data load of 2 s": job(
        0,
        102,
        steps(0, 2, 10),
        *(call for each in range(10) for call in pair("data_loading", each * 10, each * 10 + 2)),
    ),
    "10 s of evaluation before the first step": job(
        0, 110, steps(0, 10, 10), *pair("custom_badput_event", 0, 10, "eval")
    ),
    "killed in step 4; a restart repeats step 3": [*KILLED, *job(100, 170, steps(3, 100, 7))],
    "killed in step 4; a restart continues with step 5": [*KILLED, *job(100, 150, steps(5, 100, 5))],
    "steps are numbered 0, 2, 4, …": job(0, 100, [(step * 2, at) for step, at in steps(0, 0, 10)]),
    "the first step takes 30 s, one later step 50 s": job(
        0, 200, [(0, 0.0), *((1 + each, 30.0 + each * 10 + (40 if each > 4 else 0)) for each in range(13))]
    ),
}
ROWS = dict(re.findall(r"^\| ([^|]+) \| (\d[^|]*\| \d[^|]*) \|", PAGE, re.MULTILINE))


class Log:
    """Cloud Logging, as far as a calculator of ml-goodput-measurement asks it."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries

    def read_cloud_logging_entries(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], tuple[datetime, str]]:
        return self._entries, (datetime.fromtimestamp(BEGIN, timezone.utc), "last")


def test_each_row_has_its_job() -> None:
    assert ROWS.keys() == JOBS.keys()


@pytest.mark.parametrize("name", JOBS)
def test_the_figures_of_this_package(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "entries.json"
    file.write_text(json.dumps([{"jsonPayload": entry(call)} for call in JOBS[name]]))
    assert cli.main(["replay", "--format", "ml-goodput", "--json", str(file)]) == 0
    report = json.loads(capsys.readouterr().out)
    cell = ROWS[name].split("|")[1]
    assert f"{report['goodput'] * 100:.1f} %" in cell
    assert "one disruption" not in cell or report["disruptions"] == 1
    assert ("`eval`" in cell) == ("eval" in report["seconds"].get("custom", {}))


@pytest.mark.parametrize("name", JOBS)
def test_the_figures_of_the_original(name: str, tmp_path: Path) -> None:
    original = pytest.importorskip("ml_goodput_measurement.src.goodput")
    log = Log([entry(call) for call in JOBS[name]])
    goodput, badput, _ = original.GoodputCalculator(JOB, LOGGER, log, cache_dir=str(tmp_path)).get_job_goodput(True)
    cell = ROWS[name].split("|")[0]
    assert f"{goodput:.1f} %" in cell
    assert ("`OTHER`" not in cell) or badput[original.BadputType.OTHER] > 9
