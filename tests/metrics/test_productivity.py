"""ML productivity goodput through a recorder's life, its restart and the report from the disk."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput import Recorder
from otel_goodput._journal.sidecars import checked_json


def job(directory: Path, *, first: int = 0, **options: Any) -> dict[str, Any]:
    """An attempt of ten steps of 10 ms, from the step `first` on; the run's report when it has ended."""
    recorder = Recorder("productive", run_id="run", directory=directory, exporters="none", **options)
    with recorder.job():
        for number in range(first, first + 10):
            with recorder.step(number):
                time.sleep(0.01)
    recorder.shutdown()
    return dict(recorder.report().to_json())


def on_disk(directory: Path, status: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "otel_goodput", "report", str(directory), "--json"]
    done = warm.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return dict(json.loads(done.stdout))


def test_the_product_of_three(tmp_path: Path) -> None:
    submitted = time.time() - 100
    report = job(tmp_path, submitted_at=submitted, flops_per_step=2e10, peak_flops=8e12)
    waited = report["elapsed_s"] * (1 / report["scheduling_goodput"] - 1)
    assert waited == pytest.approx(100, abs=5)
    assert report["program_goodput"] == pytest.approx(10 * 2e10 / (report["seconds"]["productive"] * 8e12))
    assert report["productivity_goodput"] == pytest.approx(
        report["scheduling_goodput"] * report["goodput"] * report["program_goodput"]
    )
    figures = on_disk(tmp_path)
    for name in ("scheduling_goodput", "program_goodput", "productivity_goodput"):
        assert figures[name] == pytest.approx(report[name])
    kept = tmp_path / "run" / "journal" / "productivity.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_restart_knows_the_figures_of_the_first_attempt(tmp_path: Path) -> None:
    submitted = time.time() - 1000
    first = job(tmp_path, submitted_at=submitted, flops_per_step=2e10, peak_flops=8e12)
    # The scheduler that starts it again calls that a submission.
    second = job(tmp_path, first=10, submitted_at=time.time())
    assert second["attempts"] == 2
    assert second["program_goodput"] > 0 and first["program_goodput"] > 0
    waited = second["elapsed_s"] * (1 / second["scheduling_goodput"] - 1)
    assert waited == pytest.approx(first["elapsed_s"] * (1 / first["scheduling_goodput"] - 1), abs=0.1)


def test_what_was_kept_may_be_damaged(tmp_path: Path) -> None:
    job(tmp_path, flops_per_step=2e10, peak_flops=8e12)
    for damage, status in (
        ("", 3),
        ("\0", 3),
        ("[]", 3),
        ('{"flops_per_step": 2e10, "peak_flops": 8e12}', 3),
        (checked_json({"flops_per_step": "many", "peak_flops": 8e12}).decode(), 0),
    ):
        (tmp_path / "run" / "journal" / "productivity.json").write_text(damage)
        assert "program_goodput" not in on_disk(tmp_path, status)
    assert job(tmp_path, first=10, flops_per_step=2e10, peak_flops=8e12)["program_goodput"] > 0


def test_what_cannot_be_kept_is_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run" / "journal" / "productivity.json").mkdir(parents=True)
    recorder = Recorder("kept", run_id="run", directory=tmp_path, exporters="none", flops_per_step=1.0)
    recorder.flush()
    recorder.shutdown()
    assert len([text for text in caplog.messages if "ML productivity" in text]) == 1


COUNTED = """
import sys
import otel_goodput as goodput
from otel_goodput._integrations import flops
{kind}
recorder = goodput.configure(
    "counted", run_id="run", directory=sys.argv[1], exporters="none", device_clock="host", {options}
)
import jax, jax.numpy as jnp

@jax.jit
def train_step(w, x):
    loss = lambda w: jnp.mean((x @ w) ** 2)
    return w - 0.1 * jax.grad(loss)(w)

w, x = jnp.ones((32, 16)), jnp.ones((64, 32))
with goodput.job():
    counted = {count}
    for number in range(3):
        with goodput.step(number):
            w = train_step(w, x).block_until_ready()
    goodput.flush()
    goodput.flush()
goodput.shutdown()
import json
print(json.dumps([counted, goodput.report().to_json()]))
"""
# A chip that is known, in the place of the CPU's name, which has no stated peak.
CPU_IS_KNOWN = 'flops.CHIPS = (flops.Chip("this CPU", "cpu", 1e13, 1, "made up"),)'


def counted(directory: Path, options: str = "", count: str = "None", kind: str = "") -> tuple[Any, dict[str, Any], str]:
    code = COUNTED.format(options=options, count=count, kind=kind)
    # Each step waits for its result, so the host's clock is right; the three may be over before the device's marker is
    # prepared, and by that clock the program goodput would be unknown then.
    command = [sys.executable, "-c", code, str(directory)]
    done = warm.run(command, capture_output=True, text=True, timeout=120, jax=True)
    assert done.returncode == 0, done.stderr
    number, report = json.loads(done.stdout.splitlines()[-1])
    return number, report, done.stderr


@pytest.mark.jax
def test_counted_flops_and_the_peak_of_the_devices(tmp_path: Path) -> None:
    number, report, _ = counted(tmp_path, count="goodput.count_flops(train_step, w, x)", kind=CPU_IS_KNOWN)
    assert number == 2 * 2 * 64 * 32 * 16
    assert report["program_goodput"] == pytest.approx(3 * number / (report["seconds"]["productive"] * 1e13))
    assert on_disk(tmp_path)["program_goodput"] == pytest.approx(report["program_goodput"])


@pytest.mark.jax
def test_flops_that_are_given_need_no_peak_either(tmp_path: Path) -> None:
    _, report, _ = counted(tmp_path, "flops_per_step=1e6", kind=CPU_IS_KNOWN)
    assert report["program_goodput"] == pytest.approx(3e6 / (report["seconds"]["productive"] * 1e13))


@pytest.mark.jax
def test_an_unknown_chip_has_no_number_but_a_hint(tmp_path: Path) -> None:
    _, report, errors = counted(tmp_path, "flops_per_step=1e6")
    assert "program_goodput" not in report
    assert errors.count("a CPU has no stated peak") == 1


def test_a_program_goodput_above_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    report = job(tmp_path, flops_per_step=2e12, peak_flops=8e12, submitted_at=time.time() - 100)
    assert report.get("program_goodput") is None and report.get("productivity_goodput") is None
    assert any("of the peak of 8e+12 FLOP/s" in note["text"] for note in report["warnings"])
    assert on_disk(tmp_path).get("program_goodput") is None
    assert job(tmp_path, first=10, flops_per_step=2e10)["program_goodput"] > 0
