"""The README's tables say what the package says, and ``docs/tables.py`` keeps them so."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from exported import metrics
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_goodput
from otel_goodput import semconv
from otel_goodput.accounting.paces import Pace
from otel_goodput.journal.rundir import RunDirectory

ROOT = Path(__file__).parents[2]
PACKAGE = Path(otel_goodput.__file__).parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "docs" / "tables.py"), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", load().FILES)
def test_the_tables_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert load().renewed(name, text) == text, "run python docs/tables.py"
    assert tables("--check").returncode == 0


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("docs/reference/metrics.md", "`goodput.time` | ", "`goodput.tide` | "),
        ("docs/collector/faults.md", "| answers that are lost |", "| answers that are late |"),
    ],
)
def test_tables_that_are_out_of_date_are_found_and_renewed(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    for each in ("docs/tables.py", "tests/otelcol/outcomes.py", *load().FILES):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / each)
    readme = tmp_path / name
    good = readme.read_text(encoding="utf-8")
    readme.write_text(good.replace(right, wrong, 1), encoding="utf-8")
    stale = tables("--check", root=tmp_path)
    assert stale.returncode == 1
    assert f"out of date: {name}; run python docs/tables.py" in stale.stderr
    assert wrong in readme.read_text(encoding="utf-8"), "--check changes nothing"
    assert tables(root=tmp_path).returncode == 0
    assert readme.read_text(encoding="utf-8") == good


def test_markers_are_needed() -> None:
    with pytest.raises(ValueError, match="'phases'"):
        load().renewed("docs/reference/phases.md", "no tables here")


def test_what_the_collector_survives_is_shown_by_tests_that_there_are() -> None:
    folder = ROOT / "tests/otelcol"
    shown = [each for outcome in load().outcomes().ELSEWHERE for each in outcome.shown]
    assert len(shown) > 10
    for each in shown:
        file, _, test = each.partition("::")
        assert f"\ndef {test}(" in (folder / file).read_text(encoding="utf-8"), each


def test_metrics_in_the_table_are_those_that_are_exported(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    for _ in range(2):  # a run that has been restarted
        with otel_goodput.Recorder("job", directory=tmp_path, run_id="run", exporters="none") as before, before.job():
            pass
    recorder = otel_goodput.Recorder(
        "job", run_id="run", directory=tmp_path, exporters="none", metric_readers=[reader], submitted_at=1e9,
        flops_per_step=1e9, peak_flops=1e12, process_count=2,
    )  # fmt: skip
    run = RunDirectory(tmp_path / recorder.run_id)
    other = Pace(1, time.time_ns(), 20, 10**6, 10**6, 0)
    run.pace_path(1).write_text(json.dumps({"attempt": recorder.attempt, **other._asdict()}))
    assert recorder.tracer is not None
    recorder.tracer.hooks.compile_cache.use()
    recorder.tracer.hooks.scheduled(dict.fromkeys(semconv.SCHEDULING_STAGES, 10**9))
    with recorder.job():
        recorder.slice_counts(1, 1, 1)
        with recorder.training_prep():
            pass
        for number in recorder.loading((*range(12), *range(8, 12)), queue_depth=lambda: 3):
            with recorder.step(number), recorder.part("forward"):
                pass
    recorder.flush(10)
    found = set(metrics(reader))
    recorder.shutdown(10)
    listed = set(re.findall(r"^\| `([\w.]+)`", load().metrics(), re.MULTILINE))
    assert listed == found
