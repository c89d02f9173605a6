"""A job hangs on a disk that is full: the incident says where, and both files are there once there is room again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import warm

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import standstill

from .conftest import MountDisk

PROGRAM = """
import os, sys, time
from pathlib import Path
import otel_goodput as goodput
disk = Path(sys.argv[1])
recorder = goodput.configure(
    "job", directory=disk, watchdog="1s", incidents="0.2s", exporters="none", integrations="none", profile="off"
)
def hang():
    until = time.monotonic() + 30
    while not (incidents := recorder.report().to_json()["incidents"]) or not incidents[0]["line"]:
        assert time.monotonic() < until
        time.sleep(0.1)
with goodput.job():
    for number in range(50):
        with goodput.step(number):
            time.sleep(0.01)
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12, 1):
        try:
            while True:
                os.write(filler, bytes(size))
        except OSError:
            pass
    with goodput.step(50):
        hang()
    assert not [*disk.glob("*/journal/*.stacks")] and not [*disk.glob("*/journal/*.incidents")]
    os.unlink(disk / "filler")
    os.close(filler)
goodput.shutdown()
print("done")
"""


@pytest.mark.release
def test_a_hang_on_a_full_disk(mount: MountDisk, tmp_path: Path) -> None:
    disk = mount("size=16m")
    if disk is None:
        pytest.skip("only root may mount a disk")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = warm.run([sys.executable, str(program), str(disk)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr
    assert "the stacks of a job that stands still cannot be written" in done.stderr
    run = RecordedRun(RunDirectory(disk / "job"))
    (one,) = run.report().to_json()["incidents"]
    line = 1 + PROGRAM.splitlines().index("        time.sleep(0.1)")
    assert one["kind"] == "hang" and one["ended"] is not None and one["line"].startswith("program.py:")
    still = standstill(run)
    assert still.groups[0].place.frame.function == "hang"
    assert abs(still.groups[0].place.frame.line - line) < 4
