"""What processes used, in a report: as the files beside the journals say, in figures and in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from waits import until

from otel_goodput import Recorder
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage import Machine, Usage, UsageSheet
from otel_goodput.reports.run import RecordedRun

S = 10**9
GIB = 2**30
MACHINE = Machine(8, 64 * GIB, 80 * GIB)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    for process in range(3):
        recorder = Recorder(
            "used", run_id="run", directory=tmp_path, exporters="none", process_index=process, process_count=3
        )
        with recorder.job(), recorder.step(0):
            pass
        recorder.shutdown()
    return RunDirectory(tmp_path / "run")


def sample(run: RunDirectory, process: int, memory: int, **more: int) -> None:
    sheet, began = UsageSheet(0, process), run.began(0)
    assert began is not None
    used = Usage(began + 1, S, 2 * S, 4 * S, memory * GIB, 20 * GIB, -1)
    sheet.add(MACHINE, used._replace(**more))
    sheet.keep(run, last=True)


def usage_lines(run: RunDirectory) -> list[str]:
    lines = str(RecordedRun(run).report()).split("\n")
    first = next((at for at, line in enumerate(lines) if line.startswith("  usage")), len(lines))
    return [line for line in lines[first : first + 3] if line and not line.startswith("  goodput")]


def test_nothing_sampled_nothing_said(run: RunDirectory) -> None:
    report = RecordedRun(run).report()
    assert "usage" not in report.to_json() and usage_lines(run) == []


def test_processor_and_memory(run: RunDirectory) -> None:
    sample(run, 0, 3)
    assert RecordedRun(run).report().to_json()["usage"] == {
        "processes": 1,
        "cores": 2.0,
        "memory_bytes": 3 * GIB,
        "machine_cpu": 0.5,
        "machine_memory_bytes": 20 * GIB,
        "accelerator_memory_bytes": None,
        "accelerator_busy": None,
        "accelerator_watts": None,
        "throttled": None,
        "throttle_reasons": [],
        "throttled_processes": [],
    }
    assert usage_lines(run)[0] == "  usage  2.0 cores, at most 3.0 GiB; of the machine 50.0 % of its cores"


def test_accelerators_of_several_processes(run: RunDirectory) -> None:
    known = {"accelerator_memory": 70 * GIB, "accelerator_time": S, "accelerator_energy": 600_000}
    sample(run, 0, 3, **known, accelerator_busy=S)
    sample(run, 1, 5, **known, accelerator_busy=S // 2, throttled_time=S // 10, throttled=2)
    sample(run, 2, 4)  # it does not know
    used = RecordedRun(run).report().to_json()["usage"]
    assert (used["processes"], used["accelerator_busy"], used["accelerator_watts"]) == (3, 0.75, 600)
    assert (used["throttled"], used["throttle_reasons"], used["throttled_processes"]) == (0.05, ["thermal"], [1])
    assert usage_lines(run) == [
        "  usage  2.0 cores, at most 5.0 GiB in each of 3 processes; of the machine 50.0 % of its cores",
        "    accelerators  busy 75.0 % of the time, 600 W each, at most 70.0 GiB",
        "    clocks held down 5.0 % of the time (thermal): process 1",
    ]
    alone = RecordedRun(run).report(process=0).to_json()["usage"]
    assert (alone["processes"], alone["accelerator_busy"], alone["throttle_reasons"]) == (1, 1.0, [])


def test_a_job_that_goes_on_has_what_it_used_up_to_now(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    with Recorder("used", run_id="run", directory=tmp_path, exporters="none") as recorder, recorder.job():
        pass
    sample(RunDirectory(tmp_path / "run"), 0, 3)
    recorder = Recorder("used", run_id="run", directory=tmp_path, exporters="none", usage_interval="1s")
    with recorder.job(), recorder.step(0):
        until(lambda: len(recorder.report().usage) == 2, lacking=lambda: str(recorder.report().usage))
        report = recorder.report()
        assert [one.attempt for one in report.usage] == [1, 2] and report.usage[1].usages[0].process_memory > 2**20
        shown = report.to_json()["usage"]
        assert (shown["processes"], shown["memory_bytes"]) == (1, 3 * GIB) and "\n  usage  " in str(report)
    recorder.shutdown()
    assert [one.attempt for one in RecordedRun(RunDirectory(tmp_path / "run")).report().usage] == [1, 2]
