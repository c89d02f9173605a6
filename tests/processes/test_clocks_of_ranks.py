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
from waits import until

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


HANGING = """
import json, os, sys, threading, time
from pathlib import Path
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
real, ahead = time.time_ns, int(float(sys.argv[2]) * 1e9) * rank
time.time_ns = lambda: real() + ahead
from otel_goodput._live import clock_exchange, ranks
ranks.EVERY_S, clock_exchange._BOOT = 0.2, folder / f"boot-{rank}"
clock_exchange._BOOT.write_text(str(rank))
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import otel_goodput as goodput
reader = InMemoryMetricReader()
goodput.configure("hanging", run_id="run", directory=folder / "runs", exporters="none", metric_readers=[reader])

def waits():
    metrics = [metric for one in reader.get_metrics_data().resource_metrics for scope in one.scope_metrics
               for metric in scope.metrics if metric.name == "goodput.rank.wait.time"]
    points = [point for metric in metrics for point in metric.data.data_points]
    return {point.attributes["goodput.rank"]: point.value for point in points}

def answer():
    for _ in sys.stdin:
        print(json.dumps({**goodput.report().to_json(), "metrics": waits()}), flush=True)

threading.Thread(target=answer, daemon=True).start()
with goodput.job():
    for number in range(10):
        with goodput.data_loading():
            while number == 9 and rank == 1:
                time.sleep(1)
        with goodput.step(number):
            (folder / f"{number}-{rank}").touch()
            while not (folder / f"{number}-{1 - rank}").exists():
                time.sleep(0.001)
"""


@pytest.mark.parametrize("ahead", [pytest.param(600, marks=pytest.mark.release), -600])
def test_the_rank_that_hangs_is_the_one_that_is_accused_whatever_its_clock_says(
    ahead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live, in metrics, in the report of merged journals, and in that from the job's own records."""
    pipe = subprocess.PIPE
    processes = [
        warm.Process(
            [sys.executable, "-c", HANGING, str(tmp_path), str(ahead)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for rank in range(2)
    ]
    leader = processes[0]

    def live() -> dict[str, Any]:
        assert leader.stdin is not None and leader.stdout is not None
        leader.stdin.write("\n")
        leader.stdin.flush()
        report: dict[str, Any] = json.loads(leader.stdout.readline())
        return report

    def accused(report: Mapping[str, Any]) -> tuple[int, str] | None:
        who = report.get("ranks", {}).get("waiting_for")
        return None if who is None else (who["rank"], who["category"])

    try:
        until((tmp_path / "9-0").exists)
        until(lambda: accused(live()) == (1, "data_loading"))
        before = live()["metrics"]
        until(lambda: live()["metrics"].get("1", 0.0) > before.get("1", 0.0) + 0.5)
        report = live()
        assert report["metrics"].get("0", 0.0) - before.get("0", 0.0) < 0.25, "some of its steps were not decided"
        folder = RunDirectory(tmp_path / "runs" / "run")

        def waited(one: Mapping[str, Any]) -> float:
            return sum(each["seconds"] for each in one["ranks"]["waits"] if each["rank"] == 1)

        def merged() -> dict[str, Any]:  # as of the latest moment up to which both journals have been written
            return RecordedRun(folder).report(exact=True).to_json()

        until(lambda: accused(merged()) == (1, "data_loading") and waited(merged()) > 0.5)
        reports = [report, merged()]
        assert all(0.5 < waited(one) < one["elapsed_s"] < 60 for one in reports)
        monkeypatch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)
        reports.append(RecordedRun(folder).report().to_json())  # from the job's own records
        for one in reports:
            assert accused(one) == (1, "data_loading")
            doing = {each["rank"]: each["phase"] for each in one["ranks"]["open"]}
            assert doing == {0: "step", 1: "data_loading"}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
