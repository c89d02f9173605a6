"""A machine that was suspended: that time is in no category, in the process, by the command and after a restart.

The clocks are those of a machine that sleeps for eight hours: the wall clock and the clock of its boot time go on, the
monotonic clock stands.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._runtime.host import Suspensions, leaping

pytestmark = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux tells of a suspension")

SLEPT = 8 * 3600

CLOCKS = textwrap.dedent(f"""
    import sys, time
    real, slept = {{name: getattr(time, name) for name in ("time_ns", "time", "clock_gettime_ns")}}, 0
    def sleep():
        global slept
        slept = {SLEPT} * 10**9
    time.time_ns = lambda: real["time_ns"]() + slept
    time.time = lambda: real["time"]() + slept / 1e9
    time.clock_gettime_ns = lambda clock: real["clock_gettime_ns"](clock) + slept * (clock == time.CLOCK_BOOTTIME)
    """)
JOB = CLOCKS + textwrap.dedent("""
    import json, os
    import otel_goodput as goodput
    first, last = map(int, sys.argv[2:])
    if first:
        sleep()  # this machine has slept already
    goodput.configure("s", run_id="s", exporters="none", directory=sys.argv[1])
    with goodput.job():
        for step, _ in goodput.steps(range(last - first), start=first):
            time.sleep(0.005)
            if step == 30:
                sleep()
            if step == last - 1:
                print(json.dumps(goodput.report().to_json()), flush=True)
                sys.stdin.readline()
                os._exit(9)
    """)
REPORT = CLOCKS + "sleep()\nfrom otel_goodput._tools.cli import main\nsys.exit(main())\n"


def start(directory: Path, first: int, last: int) -> tuple[warm.Process, dict[str, Any]]:
    process = warm.Process(
        [sys.executable, "-c", JOB, str(directory), str(first), str(last)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def by_the_command(directory: Path) -> dict[str, Any]:
    done = warm.run(
        [sys.executable, "-c", REPORT, "report", str(directory / "s"), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_it_is_in_no_category_anywhere(tmp_path: Path) -> None:
    begun = time.monotonic()
    process, inside = start(tmp_path, 0, 60)
    try:
        outside = by_the_command(tmp_path)
        longest = time.monotonic() - begun
        for report in (inside, outside):
            assert report["suspended_s"] == pytest.approx(SLEPT, abs=1)
            assert report["excluded_s"] == 0
            assert 60 * 0.005 <= report["seconds"]["productive"] <= report["elapsed_s"] <= longest
            assert report["step_time"]["max_s"] <= longest and report["seconds"].get("stalled", 0) <= longest
    finally:
        process.communicate("\n", timeout=60)
    assert process.returncode == 9
    # It goes on from there, on a machine whose clocks tell the same.
    process, again = start(tmp_path, 60, 70)
    process.communicate("\n", timeout=60)
    longest = time.monotonic() - begun
    for report in (again, by_the_command(tmp_path)):
        assert report["attempts"] == 2 and report["suspended_s"] == pytest.approx(SLEPT, abs=1)
        assert report["elapsed_s"] <= longest and report["seconds"].get("infrastructure_recovery", 0) <= longest


def test_what_else_moves_the_clocks_is_no_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    suspensions = Suspensions()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + SLEPT * 10**9)
    assert suspensions.noticed() == 0, "the wall clock was set"
    booted = time.clock_gettime_ns
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: booted(clock) + SLEPT * 10**9)
    assert suspensions.noticed() == pytest.approx(SLEPT * 10**9, rel=1e-3)
    assert suspensions.noticed() == 0, "it is noticed once"
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert Suspensions().noticed() == 0, "and not at all where no clock tells of it"


def test_the_clock_can_be_set_forward() -> None:
    clock, leap = leaping()
    before = clock()
    leap(SLEPT * 10**9)
    assert 0 <= clock() - before - SLEPT * 10**9 < SLEPT * 10**9
