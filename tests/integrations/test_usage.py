"""Samples of processor and memory by real jobs, compared with the operating system's figures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools.commands import environment
from waits import until

from otel_goodput._integrations import usage
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage import Machine, Usage, read_usage
from otel_goodput._journal.usage_now import UNKNOWN, UsageNow
from otel_goodput._settings import config

JOB = """
import json, os, sys, time
import otel_goodput as goodput

if {hidden!r}:
    sys.modules["psutil"] = None  # as where it is not installed
goodput.configure("used", run_id="used", directory={directory!r}, exporters="none")
began, used = time.time_ns(), time.process_time_ns()
with goodput.job():
    for number, _ in goodput.steps(range(3)):
        end = time.process_time() + 0.4 * {busy!r}
        while time.process_time() < end:
            pass
        time.sleep(0.4 * (not {busy!r}))
used = time.process_time_ns() - used
lasted = time.time_ns() - began
print("done", flush=True)
if {waits!r}:
    time.sleep(600)
goodput.shutdown()
print(json.dumps([used, lasted, time.process_time_ns(), os.cpu_count()]))
"""


def started(tmp_path: Path, *, hidden: bool = False, waits: bool = False, **more: str) -> subprocess.Popen[str]:
    busy = not hidden and not waits  # else it sleeps: nobody looks at what it used
    code = JOB.format(directory=str(tmp_path), hidden=hidden, waits=waits, busy=busy)
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_processor_time_is_what_the_process_used(tmp_path: Path) -> None:
    job = started(tmp_path, OTEL_GOODPUT_USAGE_INTERVAL="1s")
    out, errors = job.communicate(timeout=60)
    assert job.returncode == 0 and errors == ""
    used, lasted, most, cores = json.loads(out.splitlines()[-1])
    machine, samples = read_usage(RunDirectory(tmp_path / "used"), 0, 0)
    tick = 10_000_000  # the kernel counts in hundredths of a second
    short = usage._LEAST_NS  # what is left at the end may be too short for a sample
    assert used - short - 4 * tick <= sum(one.process_cpu for one in samples) <= most + 4 * tick
    assert sum(one.length for one in samples) >= lasted - short
    assert machine.cores == cores and machine.accelerator_memory == UNKNOWN
    for one in samples:
        assert 10 * 2**20 < one.process_memory <= one.machine_memory <= machine.memory
        assert one.machine_cpu <= (one.length + 4 * tick) * cores + 4 * tick
        assert one.accelerator_memory == UNKNOWN


def test_a_killed_job_leaves_samples(tmp_path: Path) -> None:
    job = started(tmp_path, waits=True, OTEL_GOODPUT_USAGE_INTERVAL="1s")
    run = RunDirectory(tmp_path / "used")
    until(lambda: run.file("usage", 0, 0).exists())
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=60)
    assert read_usage(run, 0, 0)[1]


@pytest.mark.parametrize("more", [{}, {"OTEL_GOODPUT_USAGE_INTERVAL": "0"}])
def test_nothing_is_sampled_unless_asked_for(tmp_path: Path, more: dict[str, str]) -> None:
    job = started(tmp_path, hidden=True, **more)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 0 and errors == ""
    assert not list(tmp_path.glob("**/*.usage"))


def test_without_psutil_there_is_a_warning_and_training_continues(tmp_path: Path) -> None:
    job = started(tmp_path, hidden=True, OTEL_GOODPUT_USAGE_INTERVAL="1s")
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 0 and errors.count("psutil is not installed") == 1
    assert not list(tmp_path.glob("**/*.usage"))


def test_an_invalid_interval_is_warned_about(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_USAGE_INTERVAL", "10ms")
    assert config.read("job").usage_interval is None
    assert "usage is sampled once a second at most" in caplog.text
    assert config.read("job", usage_interval=10).usage_interval == 10 * 10**9
    assert config.read("job", usage_interval="1m30s").usage_interval == 90 * 10**9


class Sheet:
    """Takes samples."""

    def __init__(self) -> None:
        self.taken: list[tuple[Machine, Usage]] = []

    def add(self, machine: Machine, one: Usage, now: UsageNow) -> None:
        self.taken.append((machine, one))
        self.now = now


def sampled(monkeypatch: pytest.MonkeyPatch, **modules: object) -> tuple[Machine, Usage]:
    """The first sample of this process with such modules loaded."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name.replace("_", "."), module)
    sheet = Sheet()
    sampler = usage.UsageSampler(sheet, 10**9, time.time_ns)  # type: ignore[arg-type]
    until(lambda: bool(sheet.taken))
    sampler.close(5)
    return sheet.taken[0]


def test_memory_of_accelerators_as_jax_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The figures that a GPU's or a TPU's device gives; a CPU's gives None, see above.
    device = SimpleNamespace(
        memory_stats=lambda: {"bytes_in_use": 3 * 2**30, "bytes_limit": 16 * 2**30, "num_allocs": 4}
    )
    jax = SimpleNamespace(local_devices=lambda: [device, device])
    monkeypatch.setattr(usage.flops, "backend_started", lambda: True)
    machine, one = sampled(monkeypatch, jax=jax)
    assert (one.accelerator_memory, machine.accelerator_memory) == (6 * 2**30, 32 * 2**30)


def test_memory_of_accelerators_as_torch_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_allocated=lambda device: (2**30, 0)[device],
        memory_reserved=lambda device: (2**31, 0)[device],
        get_device_properties=lambda device: SimpleNamespace(total_memory=80 * 2**30),
    )
    monkeypatch.setattr(usage.flops, "backend_started", lambda: False)
    machine, one = sampled(monkeypatch, torch_cuda=cuda)
    assert (one.accelerator_memory, machine.accelerator_memory) == (2**30, 80 * 2**30)


def test_a_library_that_raises_costs_samples_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("no devices any more")

    monkeypatch.delenv("OTEL_GOODPUT_STRICT")
    monkeypatch.setattr(usage.flops, "backend_started", lambda: True)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=broken))
    sheet = Sheet()
    sampler = usage.UsageSampler(sheet, 10**9, time.time_ns)  # type: ignore[arg-type]
    until(lambda: "no devices any more" in caplog.text)
    sampler.close(5)
    assert sheet.taken == []
