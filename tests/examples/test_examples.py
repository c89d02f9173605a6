"""The examples, run as a user runs them: real processes, a real SIGKILL, real checkpoints."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warm

from everyday.lateness import Lateness

pytestmark = pytest.mark.jax

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")
NS = 1_000_000_000


def run(
    script: str, *arguments: str, cwd: Path, jax: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`jax`: it is the example itself that uses jax, not a process that it starts."""
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    environment = os.environ | variables
    return warm.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False, jax=jax
    )


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def total_ns(seconds: dict[str, Any]) -> int:
    """The categories' sum, worked out here again and not by the example's own function."""
    flat = {name: value for name, value in seconds.items() if name != "custom"} | seconds.get("custom", {})
    return sum(round(value * NS) for value in flat.values())


def test_quickstart_prints_its_report(tmp_path: Path) -> None:
    done = run("quickstart.py", cwd=tmp_path, jax=True, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
    for category in ("productive", "training_prep", "program_startup", "checkpoint_save"):
        assert category in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_the_clocks_disagree_and_the_devices_is_right(tmp_path: Path) -> None:
    with Lateness() as late:
        done = run("async_loader.py", *["--steps", "20", "--step-ms", "40", "--load-ms", "30"], cwd=tmp_path, jax=True)
    busy = float(re.findall(r"the device was busy for +([\d.]+) s", done.stdout)[-1])
    device, host = re.findall(r"off by ([+-][\d.]+)%, the host's sees ([\d.]+)%", done.stdout)[0]
    assert late.agree((1 + float(device) / 100) * busy * NS, busy * NS, 0.03, wakes=20), f"{done.stdout}; {late}"
    assert float(host) < 20.0
    assert done.returncode == (abs(float(device)) > 3.0), done.stderr


def test_the_loader_refuses_what_cannot_be_done(tmp_path: Path) -> None:
    done = run("async_loader.py", "--steps", "0", cwd=tmp_path, jax=True)
    assert done.returncode == 2 and "--steps" in done.stderr


def as_words(report: str) -> set[str]:
    """What begins the lines of a report: names of categories, and the titles of its parts."""
    return set(re.findall(r"^ *`*([A-Za-z][\w ]*?)(?:  |[ :]*\d|,|:|$| \()", report, re.MULTILINE))


@pytest.mark.crash
def test_preempted_job_is_accounted_for(tmp_path: Path, compiled: dict[str, str]) -> None:
    """As `make demo-gcp` runs it: as `make demo` does, and what arrives at Google is compared, too."""
    arguments = ("--steps", "30", "--kill-after-step", "16", "--directory", "run", "--keep")
    command = [sys.executable, "-m", "emulators.demonstration", *arguments]
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ["PYTHONPATH"]])
    cheap = {**compiled, "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # to compile, that is
    for _ in range(2):
        done = warm.run(
            command, cwd=tmp_path, env={**os.environ, **cheap, "PYTHONPATH": paths}, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
        # On a busy machine a step's end may be seen late; a wrong figure is wrong each time.
        if not failed or not all(line.startswith("FAIL  productive") for line in failed):
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout and done.stdout.count("\nok  ") > 30
    assert "workload/goodput_time" in done.stdout
    typed = [line.removeprefix("$ ") for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert len(typed) == 2
    for line in typed:  # as it stands there, without an activated environment
        again = subprocess.run(
            line, shell=True, cwd=tmp_path, capture_output=True, timeout=60, env={"PATH": "/usr/bin:/bin"}
        )
        assert again.returncode == 0, (line, again.stderr)
    printed, shown = as_words(done.stdout), as_words(README.split("<!-- begin: report -->")[1].split("<!-- end")[0])
    assert len(shown) > 15 and shown - printed - {"text"} <= {"checkpoint_restore", "data_loading", "other"}, (
        "see README.md"
    )

    answer = warm.run(
        [sys.executable, "-m", "otel_goodput", "report", str(tmp_path / "run" / "goodput"), "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    report = json.loads(answer.stdout)
    assert total_ns(report["seconds"]) == round(report["elapsed_s"] * NS)
    assert report["attempts"] == 2
    assert report["disruptions"] == 1
    assert report["disruption_reasons"] == {"crash": 1}
    assert report["ended"] is True
    assert report["steps"]["kept"] == 30
    assert report["max_productive_step"] == 29
    # Every 3 steps a checkpoint: the latest before the kill is 14's, or an older one if its commit was still under way.
    [disruption] = report["disruption_list"]
    assert disruption["from_step"] in (17, 18)
    assert disruption["to_step"] in (3, 6, 9, 12, 15)
    assert report["steps"]["lost"] == disruption["from_step"] - disruption["to_step"] + 1
    assert disruption["recovery_s"] == pytest.approx(report["seconds"]["infrastructure_recovery"])
    present = {
        "productive",
        "accelerator_init",
        "training_prep",
        "program_startup",
        "checkpoint_save",
        "checkpoint_restore",
        "wasted_progress",
        "infrastructure_recovery",
        "custom",
    }
    assert present <= report["seconds"].keys()
    assert report["seconds"]["custom"]["eval"] > 0
    assert report["overlapped_data_loading_s"] > 0

    losses = [json.loads(line) for line in (tmp_path / "run" / "losses.jsonl").read_text().splitlines()]
    assert len({record["pid"] for record in losses}) == 2
    assert {record["step"] for record in losses} == set(range(30))
    assert losses[-1]["loss"] < 0.7 * losses[0]["loss"]
    traces = sorted((tmp_path / "run").rglob("traces-*.jsonl"))
    assert traces
    assert all(str(trace.relative_to(tmp_path)) in done.stdout for trace in traces)
    assert (tmp_path / "run" / "checkpoints" / "29").is_dir()


@pytest.mark.parametrize("arguments", [("--steps", "19"), ("--steps", "40", "--kill-after-step", "39")])
def test_preempted_refuses_what_cannot_be_done(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run("preempted.py", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert arguments[-2] in done.stderr.splitlines()[-1]


def test_preempted_says_when_the_job_fails(tmp_path: Path) -> None:
    done = run("preempted.py", "--directory", "run", cwd=tmp_path, JAX_PLATFORMS="no_such_platform")
    assert done.returncode == 1
    assert "the training job ended with status 1" in done.stderr.splitlines()[-1]


STEPS = list(range(40))
REPORT: dict[str, Any] = {
    "elapsed_s": 9.0,
    "attempts": 2,
    "disruptions": 1,
    "disruption_reasons": {"crash": 1},
    "max_productive_step": 39,
    "seconds": {"productive": 4.0, "infrastructure_recovery": 3.0, "custom": {"eval": 2.0}},
    "steps": {"executed": 45, "kept": 40, "lost": 6},
}
# 0.1 s a step.
LOSSES = [{"step": step, "loss": 6.0 - step / 10, "seconds": 0.1} for step in [*range(25), *range(20, 40)]]


def failures(changes: dict[str, Any], losses: list[dict[str, Any]]) -> list[str]:
    example = load("preempted.py")
    first = example.Attempt(100.0, STEPS[:26], [102.0 + 0.1 * step for step in STEPS[:26]], 104.6)
    second = example.Attempt(104.7, STEPS[20:], [108.5 + 0.1 * step for step in range(20)], 112.0)
    return [check.text for check in example.checks(REPORT | changes, first, second, losses, 0.0) if not check.holds]


@pytest.mark.parametrize(
    ("changes", "losses", "failure"),
    [
        ({"seconds": REPORT["seconds"] | {"productive": 4.000000001}}, LOSSES, "sum to the elapsed time"),
        ({"seconds": REPORT["seconds"] | {"productive": 1.0, "infrastructure_recovery": 6.0}}, LOSSES, "recovery"),
        ({"seconds": {"productive": 4.0}, "elapsed_s": 4.0}, LOSSES, "by the clock of this one"),
        ({"disruptions": 0, "disruption_reasons": {}}, LOSSES, "disruptions"),
        ({"steps": REPORT["steps"] | {"kept": 39}}, LOSSES, "steps kept"),
        ({"steps": REPORT["steps"] | {"lost": 8}}, LOSSES, "steps lost"),
        ({"seconds": REPORT["seconds"] | {"productive": 5.0, "other": -1.0}}, LOSSES, "stopwatch"),
        ({}, [*LOSSES[:-1], LOSSES[22] | {"loss": 9.0}], "done twice"),
        ({}, [record | {"loss": 5.0} for record in LOSSES], "at last"),
    ],
)
def test_preempted_finds_a_wrong_report(changes: dict[str, Any], losses: list[dict[str, Any]], failure: str) -> None:
    assert failures({}, LOSSES) == []
    assert any(failure in text for text in failures(changes, losses))


def test_batches_depend_on_the_step_alone() -> None:
    text = load("preempted_job/text.py").Text(batch=4, context=16, seed=7)
    resumed = list(text.prefetched(5, 9))
    assert [batch.shape for batch in resumed] == [(4, 17)] * 4
    assert [batch.tolist() for batch in resumed] == [text.batch(step).tolist() for step in range(5, 9)]
    assert text.batch(5).tolist() != text.batch(6).tolist()


def test_an_error_of_the_prefetch_thread_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    text = load("preempted_job/text.py").Text(batch=4, context=16, seed=7)
    good = text.batch(0)

    def broken(step: int) -> Any:
        if step == 2:
            raise OSError("the disk is gone")
        return good

    monkeypatch.setattr(text, "batch", broken)
    batches = text.prefetched(0, 5)
    assert [len(next(batches)), len(next(batches))] == [4, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
