"""The sample timelines recorded through the live API with explicit times: the answers are the right ones."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm
from backfill import CASES, NS, ORDERS, dies, read_case, rows_of
from recorded import Recording, sum_ns
from timelines import replay

import otel_goodput as goodput
from otel_goodput._accounting import events as ev

NAMES = sorted(path.stem for path in CASES.glob("*.json"))
# What the truths call the categories.
WORDS = {
    "TPU_INITIALIZATION": "accelerator_init",
    "TRAINING_PREP": "training_prep",
    "PROGRAM_STARTUP": "program_startup",
    "DATA_LOADING_SYNC": "data_loading",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": "checkpoint_save",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": "checkpoint_restore",
    "WASTED_PROGRESS_FROM_DISRUPTION": "wasted_progress",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": "infrastructure_recovery",
    "ELASTIC_SLICE_DOWN": "elastic_slice_down",
    "ELASTIC_SCALE_UP": "elastic_scale_up",
    "ELASTIC_REINITIALIZATION": "elastic_reinitialization",
}


def tell(
    case: dict[str, Any], name: str, order: str, base: int, record: Callable[..., Recording], runs: Path
) -> Recording:
    """The whole case, an attempt after the other; those that died did so for real, in processes of their own."""
    last = max(row.get("attempt", 1) for row in case["events"])
    for attempt in range(1, last):
        assert dies(case, attempt)
        command = [sys.executable, "-m", "backfill", name, str(attempt), str(base), str(runs), order]
        path = os.pathsep.join((str(CASES.parents[1]), os.environ["PYTHONPATH"]))
        done = warm.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
    recording = record()
    ORDERS[order](rows_of(case, last), base)
    return recording


def on_axis(report: dict[str, Any], base: int) -> dict[str, Any]:
    """The report, with the moments of its disruptions counted from `base`, where the timeline begins."""
    entries = [
        {**entry, **{name: entry[name] and entry[name] - base / NS for name in ("time", "died_at")}}
        for entry in report["disruption_list"]
    ]
    return {**report, "disruption_list": entries}


def check_truth(report: dict[str, Any], truth: dict[str, Any]) -> None:
    assert report["elapsed_s"] == pytest.approx(truth["elapsed_s"], abs=1e-6)
    assert report["seconds"].get("productive", 0.0) == pytest.approx(truth["productive_s"], abs=1e-6)
    badput = dict(truth["badput_s"])
    custom = {name.lower(): value for name, value in badput.pop("CUSTOM_BADPUT_EVENTS", {}).items()}
    assert {name.lower(): value for name, value in report["seconds"].get("custom", {}).items()} == pytest.approx(custom)
    other = badput.pop("OTHER", 0.0)
    assert sum(report["seconds"].get(name, 0.0) for name in ("other", "in_flight")) == pytest.approx(other, abs=1e-6)
    rest = {
        name: value
        for name, value in report["seconds"].items()
        if name not in ("productive", "custom", "other", "in_flight")
    }
    assert rest == pytest.approx({WORDS[name]: value for name, value in badput.items()}, abs=1e-6)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_backfilled(name: str, order: str, record: Callable[..., Recording], base: int, tmp_path: Path) -> None:
    case = read_case(name)
    truth = case["truth"]
    recording = tell(case, name, order, base, record, tmp_path / "runs")
    live = recording.report()
    goodput.shutdown()
    disk = recording.report_on_disk()
    for report in (live, disk):
        check_truth(report, truth)
        assert sum_ns(report) == round(report["elapsed_s"] * NS)
        assert report["max_productive_step"] == truth["max_productive_step"]
        assert report["last_step"] == truth["last_step"]
        assert report["disruptions"] == truth["disruptions"]
        assert report["steps"] == {
            "executed": truth["steps"]["completed"],
            "kept": truth["steps"]["kept"],
            "lost": truth["steps"]["lost"],
        }
        for state, share in truth.get("slice_efficiency", {}).items():
            assert report["slice_efficiency"][state.partition("_")[0]] == pytest.approx(share, abs=1e-6)

    # All else is what the same timeline gives offline.
    offline = replay(case["events"], at=case["query_at"])
    for report in (live, disk):
        assert {key: on_axis(report, base)[key] for key in offline} == offline


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [name for name in NAMES if {"intervals", "exclusions"} & set(read_case(name))])
def test_windows_and_exclusions(
    name: str, order: str, record: Callable[..., Recording], base: int, tmp_path: Path
) -> None:
    case = read_case(name)
    recording = tell(case, name, order, base, record, tmp_path / "runs")
    at = base + round(case["query_at"] * NS)

    def moments(pairs: list[list[float]]) -> list[tuple[int, int]]:
        return [(base + round(start * NS), base + round(end * NS)) for start, end in pairs]

    if "intervals" in case:
        report = recording.report_on_disk(at=at, windows=moments(case["intervals"]))
        assert len(report["windows"]) == len(case["truth"]["intervals"])
        for window, truth in zip(report["windows"], case["truth"]["intervals"], strict=True):
            check_truth(window, truth)
            assert window["max_productive_step"] == truth["max_productive_step"]
    if "exclusions" in case:
        report = recording.report_on_disk(at=at, exclusions=moments(case["exclusions"]))
        check_truth(report, case["truth"]["exclusions"])
        assert report["excluded_s"] == pytest.approx(case["truth"]["exclusions"]["excluded_s"])


def test_a_runtime_that_is_only_imported_marks_nothing(
    record: Callable[..., Recording], base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phases recorded whole, one after the other: a mark of nothing, ready at once, would own what they hold."""
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", SimpleNamespace(_default_backend=None))
    case = read_case("23_custom_nested_types")
    recording = record()
    ORDERS["in start order"](case["events"], base)
    check_truth(recording.report(), case["truth"])
    assert not [event for event in recording.events() if event.kind in (ev.MARK, ev.DEVICE_END)]


@pytest.mark.parametrize("order", ORDERS)
def test_exclusions_added_live(order: str, record: Callable[..., Recording], base: int) -> None:
    case = read_case("91_exclusion_simple")
    rows = [*case["events"]]
    for start, end in case["exclusions"]:
        rows.append({"kind": "exclusion", "start": start, "end": end, "attempt": 1})
    recording = record()
    ORDERS[order](rows, base)
    check_truth(recording.report(), case["truth"]["exclusions"])
    check_truth(recording.report_on_disk(), case["truth"]["exclusions"])


def test_the_past_is_asked_for(record: Callable[..., Recording], base: int) -> None:
    """At any moment of the run, the account as it was then."""
    case = read_case("59_in_process_rollback")
    recording = record()
    ORDERS["as it happened"](case["events"], base)
    for at in (0.0, 5.0, 31.0, 40.5, 77.0, 78.5, 92.0, 107.0, 500.0):
        report = recording.report_on_disk(at=base + round(at * NS))
        offline = replay(case["events"], at=at)
        assert {key: on_axis(report, base)[key] for key in offline} == offline
