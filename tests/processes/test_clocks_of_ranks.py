"""Hosts whose clocks differ, as real processes each of which has a clock and a boot id of its own (rule R11)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._journal.clock_offsets import latest_offsets, read_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

RANK = """
import json, os, sys, time
from pathlib import Path
rank, count, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
real, ahead = time.time_ns, int(float(sys.argv[3 + rank]) * 1e9)
time.time_ns = lambda: real() + ahead
from otel_goodput._live import clock_exchange
clock_exchange._BOOT = folder / f"boot-{sys.argv[2].split(',')[rank]}"
import otel_goodput as goodput

def loader():
    for number in range(20):
        time.sleep(0.04 if rank == 2 else 0.004)
        yield number

def meet(number):
    (folder / f"{number}-{rank}").touch()
    while not all((folder / f"{number}-{other}").exists() for other in range(count)):
        time.sleep(0.001)

goodput.configure("clocks", run_id="run", directory=folder / "runs", exporters="none")
with goodput.job():
    for number, _ in goodput.steps(loader()):
        time.sleep(0.01)
        meet(number)
if rank == 0:
    while goodput.report().ranks is None or not goodput.totals().ended:  # until the others have published their ends
        time.sleep(0.01)
    print(json.dumps({**goodput.report().to_json(), "text": str(goodput.report())}))
"""


def train(folder: Path, boots: str, *ahead: float) -> dict[str, Any]:
    """Have a process for each of these clocks, s ahead, train in step; return the live report of the leader."""
    for boot in boots.split(","):
        (folder / f"boot-{boot}").write_text(boot)
    processes = [
        warm.Process(
            [sys.executable, "-c", RANK, str(folder), boots, *map(str, ahead)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(ahead))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(ahead))
    ]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(ahead), outputs
    live: dict[str, Any] = json.loads(outputs[0][0].splitlines()[-1])
    return live


def without(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in ("seconds", "elapsed_s", "steps", "goodput")} | {
        "waits": report["ranks"]["waits"],
        "clocks": report["ranks"]["clocks"],
        "spread": report["ranks"]["clock_spread"],
    }


def test_clocks_hours_apart_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 are on one host, whose clock was set in between; rank 2, the slow one, and 3 on others."""
    live = train(tmp_path, "a,a,b,c", 0, -1800.5, 3600.5, -7200.5)
    folder = RunDirectory(tmp_path / "runs" / "run")
    exact = RecordedRun(folder).report(exact=True)
    whole = exact.to_json()
    assert without(live) == without(whole)
    assert whole["ranks"]["together"] and whole["ranks"]["count"] == 4 and whole["steps"]["kept"] == 20
    assert whole["elapsed_s"] < 30 and whole["ranks"]["waits"][0]["rank"] == 2
    waited = sum(one["seconds"] for one in whole["ranks"]["waits"] if one["rank"] == 2)
    assert 0.5 < waited < whole["elapsed_s"]
    clocks = {one["rank"]: (one["ahead"], one["bound"]) for one in whole["ranks"]["clocks"]}
    assert clocks.keys() == {1, 2, 3} and clocks[1][1] == 0
    for rank, ahead in ((1, -1800.5), (2, 3600.5), (3, -7200.5)):
        assert abs(clocks[rank][0] - ahead) <= clocks[rank][1] + 0.001, "the true one is within the bound"
        assert clocks[rank][1] < 0.5
    for text in (str(exact), live["text"]):
        plain = " ".join(text.split())
        assert "that of rank 2 is 1 h 00 min ahead, that of rank 3 is 2 h 00 min behind" in plain, text
    assert latest_offsets(read_offsets(folder)).keys() == {1, 2, 3}
    monkeypatch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)  # the journals are too large to be merged
    recorded = RecordedRun(folder).report().to_json()
    assert without(recorded) == without(whole)


def test_clocks_that_agree_are_left_alone(tmp_path: Path) -> None:
    live = train(tmp_path, "a,b,a", 0, 0, 0)
    report = RecordedRun(RunDirectory(tmp_path / "runs" / "run")).report(exact=True).to_json()
    assert without(live) == without(report)
    assert report["ranks"]["together"] and report["ranks"]["clocks"] == [] and report["ranks"]["clock_spread"] == 0
    assert not [*tmp_path.glob("runs/run/journal/*.offsets")] and not [*tmp_path.glob("runs/run/journal/*.clock")]
