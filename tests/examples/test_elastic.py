"""The elastic example, run as a user runs it: a real data-parallel training that loses slices and regains them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warm
from exported import spans_of

pytestmark = pytest.mark.jax

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"
NS = 1_000_000_000


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    temporary = cwd / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(temporary)} | variables
    return warm.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        jax="-m" not in command,
    )


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # what it sets is taken back
    spec = importlib.util.spec_from_file_location("elastic", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spans(trace: Path) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """(name, start, end, attributes) of the exported spans."""
    for span in spans_of(trace.read_text().splitlines()):
        attributes = {each["key"]: next(iter(each["value"].values())) for each in span.get("attributes", ())}
        yield span["name"], int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]), attributes


def efficiencies(changes: list[tuple[int, int, int]], until: int) -> dict[str, float]:
    """Time-weighted means of (ns, active, available) of four slices, in exact integers up to the last division."""
    ends = [*(time for time, *_ in changes[1:]), until]
    spent = [end - time for (time, *_), end in zip(changes, ends, strict=True)]
    return {
        state: sum(change[at] * ns for change, ns in zip(changes, spent, strict=True)) / (4 * sum(spent))
        for at, state in enumerate(("stepping", "available"), 1)
    }


def test_slices_that_come_and_go_are_accounted_for(tmp_path: Path) -> None:
    done = run(str(EXAMPLE), "--directory", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    answer = run("-m", "otel_goodput", "report", "run", "--json", cwd=tmp_path)
    report = json.loads(answer.stdout)
    seconds = report["seconds"]
    assert sum(round(value * NS) for value in seconds.values()) == round(report["elapsed_s"] * NS)
    assert (report["ended"], report["attempts"], report["excluded_s"]) == (True, 1, 0)

    # Every 10 steps a snapshot; the step in which a slice was lost has not completed.
    losses = [int(step) for step in re.findall(r"step (\d+): slice \d is lost, 3 of 4", done.stdout)]
    assert len(losses) == len(re.findall(r"slice \d is back, 4 of 4", done.stdout)) == 2
    snapshots = [step // 10 * 10 for step in losses]
    assert all(snapshot < step for snapshot, step in zip(snapshots, losses, strict=True)), "else nothing is to repeat"
    repeated = sum(losses) - sum(snapshots)
    assert report["steps"] == {"executed": 120 + repeated, "kept": 120, "lost": repeated + len(losses)}
    assert report["max_productive_step"] == 119
    assert report["at_risk_s"] == 0, "the last step is saved"
    assert report["disruption_reasons"] == {"rollback": 2}
    assert report["warnings"] == [], "it has said that it restores what it goes back to"
    rollbacks = report["disruption_list"]
    assert [(each["from_step"], each["to_step"]) for each in rollbacks] == list(zip(losses, snapshots, strict=True))
    assert {(each["attempt"], each["recovery_s"]) for each in rollbacks} == {(None, 0)}, "the process has not died"
    assert 0 < sum(each["wasted_s"] for each in rollbacks) <= seconds["wasted_progress"]
    assert seconds["infrastructure_recovery"] == 0

    [trace] = (tmp_path / "run").rglob("traces-*.jsonl")
    seen = list(spans(trace))
    elastic = sorted(
        (start, end, f"elastic_{more.get('goodput.elastic.kind', 'reinitialization')}")
        for name, start, end, more in seen
        if name in ("elastic_wait", "elastic_reinit")
    )
    down, up, reinit = "elastic_slice_down", "elastic_scale_up", "elastic_reinitialization"
    assert [category for *_, category in elastic] == [down, reinit, up, reinit] * 2
    for category in (down, up, reinit):
        took = [end - start for start, end, which in elastic if which == category]
        assert min(took) > 0
        assert round(seconds[category] * NS) == sum(took), "whatever else is open in it, such as a compilation"
    # The step is compiled for devices that it was not compiled for before.
    begin, end, _ = elastic[1]
    assert any(name == "compile" and begin <= start <= end for name, start, *_ in seen)
    failed = [int(more["goodput.step"]) for name, _, _, more in seen if name == "step" and more.get("error.type")]
    assert failed == losses

    [prepared] = [end for name, _, end, _ in seen if name == "training_prep"]
    [ended] = [end for name, _, end, _ in seen if name == "job"]
    changes = [(prepared, 4, 4)]
    for start, end, category in elastic:
        if category == down:
            changes.append((start, 3, 3))
        elif category == up:
            changes.append((start, 3, 4))
        elif changes[-1][1:] == (3, 4):
            changes.append((end, 4, 4))
    efficiency = report["slice_efficiency"]
    assert efficiency == pytest.approx(efficiencies(changes, ended), rel=0.01)
    assert efficiency["stepping"] < efficiency["available"] < 1
    assert list((tmp_path / "tmp").iterdir()) == [], "its directory is all it leaves behind"


def test_two_away_at_once_and_one_for_good(tmp_path: Path) -> None:
    schedule = ["--steps", "24", "--save-every", "4", "--lose-at", "9", "6", "--regain-at", "15"]
    flags = f"--xla_force_host_platform_device_count=2 --xla_dump_to={tmp_path / 'dump'}"
    done = run(str(EXAMPLE), *schedule, cwd=tmp_path, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"step (\d+): slice \d is (\w+), (\d)", done.stdout) == [
        ("6", "lost", "3"),
        ("9", "lost", "2"),
        ("15", "back", "3"),
    ]
    assert "ok    steps kept 24, lost 5, rollbacks 2" in done.stdout  # 4 to 6, 8 and 9
    assert any("train_step" in dump.name for dump in (tmp_path / "dump").iterdir()), "flags of the user's are obeyed"
    assert sorted(left.name for left in tmp_path.rglob("*") if "dump" not in left.parts) == ["tmp"]


def test_a_wrong_report_is_found(tmp_path: Path) -> None:
    """Waits are not recorded, and available slices not told apart from active ones."""
    program = f"""
import runpy, sys
from contextlib import nullcontext
import otel_goodput as goodput

counts = goodput.slice_counts
goodput.elastic_wait = lambda kind: nullcontext()
goodput.slice_counts = lambda active, available, total: counts(active, active, total)
sys.argv[1:] = ["--steps", "20"]
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    done = run("-c", program, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    failures = re.findall(r"^FAIL  (\w+ ?\w+)", done.stdout, re.MULTILINE)
    assert sorted(failures) == ["elastic_scale_up 0", "elastic_slice_down 0", "slices available"], done.stdout


REPORT: dict[str, Any] = {
    "elapsed_s": 10.0,
    "seconds": {"productive": 4.0, "wasted_progress": 2.0, "elastic_slice_down": 3.0, "other": 1.0},
    "steps": {"executed": 5, "kept": 4, "lost": 2},
    "disruption_reasons": {"rollback": 1},
    "slice_efficiency": {"stepping": 0.75, "available": 0.875},
}


@pytest.mark.parametrize(
    ("changes", "losses", "failure"),
    [
        ({"seconds": REPORT["seconds"] | {"other": 1.000000001}}, {}, "sum to the elapsed time"),
        ({"seconds": REPORT["seconds"] | {"productive": 4.5, "other": 0.5}}, {}, "productive 4.5"),
        ({"seconds": REPORT["seconds"] | {"productive": 5.5, "wasted_progress": 0.5}}, {}, "wasted_progress 0.5"),
        ({"seconds": REPORT["seconds"] | {"elastic_slice_down": 2.0, "other": 2.0}}, {}, "elastic_slice_down 2"),
        ({"elapsed_s": 11.0, "seconds": REPORT["seconds"] | {"other": 2.0}}, {}, "elapsed 11"),
        ({"steps": REPORT["steps"] | {"kept": 3}}, {}, "steps kept 3"),
        ({"steps": REPORT["steps"] | {"lost": 1}}, {}, "lost 1"),
        ({"disruption_reasons": {}}, {}, "rollbacks 0"),
        ({"slice_efficiency": {"stepping": 0.74, "available": 0.875}}, {}, "slices stepping 74"),
        ({"slice_efficiency": None}, {}, "slices available 0"),
        ({}, {1: [8.0, 8.1]}, "seen again"),
        ({}, {3: [9.0]}, "at last"),
    ],
)
def test_each_check_finds_what_it_is_for(
    changes: dict[str, Any], losses: dict[int, list[float]], failure: str, example: ModuleType
) -> None:
    watch = example.Stopwatch()
    # Steps of a second: 0 and 1, lost in 2, back to 1.
    watch.took = [(step, NS - 1000, NS + 1000) for step in (0, 1, 2, 1, 2, 3)]
    watch.took += [("elastic_slice_down", 3 * NS - 1000, 3 * NS + 1000), ("elapsed", 10 * NS - 1000, 10 * NS + 1000)]
    watch.slices = [(0, 4, 4), (5 * NS, 2, 3), (10 * NS, 0, 0)]
    watch.losses.update({0: [9.0], 1: [8.0, 8.00001], 2: [7.0], 3: [6.0]})
    assert [text for holds, text in example.checks(REPORT, watch) if not holds] == []
    watch.losses.update(losses)
    failures = [text for holds, text in example.checks(REPORT | changes, watch) if not holds]
    assert any(failure in text for text in failures), failures


@pytest.mark.parametrize(
    "arguments",
    [
        ("--steps", "19"),
        ("--save-every", "0"),
        ("--lose-at", "5", "--regain-at", "4"),  # before it is lost
        ("--lose-at", "5", "--regain-at", "5"),
        ("--lose-at", "5", "6", "7", "8", "--regain-at", "30"),  # none is left
        ("--lose-at", "120"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: tuple[str, ...], example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["elastic.py", *arguments])
    with pytest.raises(SystemExit) as refused:
        example.arguments()
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
