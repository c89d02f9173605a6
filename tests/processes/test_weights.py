"""Ranks that do not step together count by their devices, live and in reports (rule R11)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun

pytest.importorskip("jax")
pytestmark = pytest.mark.jax

RANK = """
import json, os, sys, time
from pathlib import Path
import otel_goodput as goodput
rank = int(os.environ["RANK"])
goodput.configure("weights", run_id="run", directory=Path(sys.argv[1]), exporters="none", device_clock="host")
with goodput.job():
    with goodput.accelerator_init():
        import jax
        jax.local_devices()
    def loader():
        for number in range(40 if rank else 20):
            time.sleep(0.006)
            yield number
    for number, _ in goodput.steps(loader()):
        time.sleep(0.002 if rank else 0.02)
if not rank:
    while goodput.report().ranks is None or not goodput.totals().ended:  # until the other has published its end
        time.sleep(0.01)
    print(json.dumps(goodput.report().to_json()))
"""
DEVICES = 2, 6


def flat(seconds: dict[str, Any]) -> dict[str, int]:
    """Times by category and custom name, ns."""
    each = {name: spent if isinstance(spent, dict) else {"": spent} for name, spent in seconds.items()}
    return {f"{name} {inner}": round(one * 1e9) for name, spent in each.items() for inner, one in spent.items()}


def test_a_process_counts_by_the_devices_that_jax_has_there(tmp_path: Path) -> None:
    processes = [
        warm.Process(
            [sys.executable, "-c", RANK, str(tmp_path)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            jax=True,
        )
        for rank, count in enumerate(DEVICES)
    ]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    live = json.loads(outputs[0][0].splitlines()[-1])
    run = RecordedRun(RunDirectory(tmp_path / "run"))
    report = run.report(exact=True).to_json()
    assert not report["ranks"]["together"]
    assert report["steps"]["kept"] == 40 and report["kept_by_rank"] == live["kept_by_rank"] == {
        "fewest": 20,
        "most": 40,
    }
    assert "each rank has kept 20 to 40" in str(run.report(exact=True))
    assert live["seconds"] == report["seconds"] and live["elapsed_s"] == report["elapsed_s"]
    ranks = [run.facts(0, rank) for rank in range(2)]
    assert [0 if one is None else one.devices for one in ranks] == [*DEVICES]
    # Each category has the share that it has of the time of all eight devices, to the nanosecond.
    alone = [run.report(process=rank).to_json() for rank in range(2)]
    parts = [flat(one["seconds"]) for one in alone]
    whole, elapsed = flat(report["seconds"]), round(report["elapsed_s"] * 1e9)
    devices = sum(count * round(one["elapsed_s"] * 1e9) for count, one in zip(DEVICES, alone, strict=True))
    assert sum(whole.values()) == elapsed
    for name, spent in whole.items():
        share = Fraction(elapsed * sum(n * part.get(name, 0) for n, part in zip(DEVICES, parts, strict=True)), devices)
        assert spent in (share // 1, -(-share // 1)), name
    even = sum(part["data_loading "] for part in parts) / sum(round(one["elapsed_s"] * 1e9) for one in alone)
    assert abs(whole["data_loading "] / elapsed - even) > 0.02, "the weights make a difference here"
