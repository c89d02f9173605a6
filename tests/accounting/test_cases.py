"""The sample timelines with right answers: the oracle and the ledger, each on its own, against the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from timelines import replay

from .oracle import account

CASES = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "cases").glob("*.json"))}
# The truths are in Google's words.
BADPUT = {
    "accelerator_init": "TPU_INITIALIZATION",
    "training_prep": "TRAINING_PREP",
    "program_startup": "PROGRAM_STARTUP",
    "data_loading": "DATA_LOADING_SYNC",
    "checkpoint_save": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "checkpoint_restore": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "wasted_progress": "WASTED_PROGRESS_FROM_DISRUPTION",
    "infrastructure_recovery": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "elastic_slice_down": "ELASTIC_SLICE_DOWN",
    "elastic_scale_up": "ELASTIC_SCALE_UP",
    "elastic_reinitialization": "ELASTIC_REINITIALIZATION",
    "in_flight": "OTHER",
    "other": "OTHER",
}
KINDS = {"restart": "graceful_restarts", "rollback": "in_process_rollbacks"}  # every other reason is a crash


def near(expected: Any) -> Any:
    """The truths are rounded to a millionth (of a second, of a percent)."""
    return pytest.approx(expected, abs=1e-6, rel=0)


def badput(seconds: dict[str, Any]) -> dict[str, Any]:
    badput_by_name: dict[str, Any] = {}
    for category, value in seconds.items():
        if category == "custom":
            badput_by_name["CUSTOM_BADPUT_EVENTS"] = {name.upper(): s for name, s in value.items()}
        elif category != "productive":
            badput_by_name[BADPUT[category]] = badput_by_name.get(BADPUT[category], 0.0) + value
    return badput_by_name


def check_times(answer: dict[str, Any], truth: dict[str, Any]) -> None:
    """The part of an answer that windows and exclusions have too."""
    assert answer["elapsed_s"] == near(truth["elapsed_s"])
    assert answer["seconds"].get("productive", 0.0) == near(truth["productive_s"])
    assert answer["goodput"] * 100 == near(truth["goodput_pct"])
    wanted = dict(truth["badput_s"])
    seconds = badput(answer["seconds"])
    assert seconds.pop("CUSTOM_BADPUT_EVENTS", {}) == near(wanted.pop("CUSTOM_BADPUT_EVENTS", {}))
    assert seconds == near(wanted)


def check_slices(answer: dict[str, Any], truth: dict[str, Any]) -> None:
    if "slice_efficiency" in truth:
        assert answer["slice_efficiency"] == {
            "stepping": near(truth["slice_efficiency"]["stepping_slice_efficiency"]),
            "available": near(truth["slice_efficiency"]["available_slice_efficiency"]),
        }


@pytest.mark.parametrize("solve", [replay, account], ids=["ledger", "oracle"])
@pytest.mark.parametrize("name", CASES)
def test_truth(name: str, solve: Any) -> None:
    case = CASES[name]
    truth = case["truth"]
    answer = solve(case["events"], at=case["query_at"], windows=case.get("intervals", ()))

    check_times(answer, truth)
    check_slices(answer, truth)
    assert answer["max_productive_step"] == truth["max_productive_step"]
    assert answer["last_step"] == truth["last_step"]
    assert answer["excluded_s"] == 0.0
    assert answer["steps"] == {
        "executed": truth["steps"]["completed"],
        "kept": truth["steps"]["kept"],
        "lost": truth["steps"]["lost"],
    }

    assert answer["disruptions"] == truth["disruptions"]
    kinds = dict.fromkeys(truth["disruption_kinds"], 0)
    for reason, count in answer["disruption_reasons"].items():
        kinds[KINDS.get(reason, "crash_restarts")] += count
    assert kinds == truth["disruption_kinds"]
    assert len(answer["disruption_list"]) == truth["disruptions"]

    assert len(answer["windows"]) == len(truth.get("intervals", ()))
    for window, wanted in zip(answer["windows"], truth.get("intervals", ()), strict=True):
        assert [window["start"], window["end"]] == wanted["window"]
        check_times(window, wanted)
        check_slices(window, wanted)
        assert window["max_productive_step"] == wanted["max_productive_step"]


@pytest.mark.parametrize("solve", [replay, account], ids=["ledger", "oracle"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "exclusions" in case])
def test_truth_with_exclusions(name: str, solve: Any) -> None:
    case = CASES[name]
    truth = case["truth"]["exclusions"]
    answer = solve(case["events"], at=case["query_at"], exclusions=case["exclusions"])
    check_times(answer, truth)
    assert answer["excluded_s"] == near(truth["excluded_s"])


@pytest.mark.parametrize("solve", [replay, account], ids=["ledger", "oracle"])
@pytest.mark.parametrize("name", CASES)
def test_net_step_times(name: str, solve: Any) -> None:
    """The truth speaks of the kept steps' net times before start-up is taken apart."""
    case = CASES[name]
    step_time = solve(case["events"], at=case["query_at"])["step_time"]
    truth = case["truth"]["net_step_s"]
    assert step_time["median_s"] == near(truth["median"])
    assert step_time["min_s"] == near(truth["min"])
    assert step_time["max_s"] == near(truth["max"])
    assert step_time["count"] == case["truth"]["steps"]["kept"]
