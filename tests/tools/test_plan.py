"""``otel-goodput plan`` as a person calls it; what it computes is tested with the formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .commands import failed, finished, goodput, succeeded

BY_HAND = ("--mtbf", "36000", "--save", "30", "--restore", "60", "--reschedule", "120")


def test_by_hand() -> None:
    plan = json.loads(succeeded(goodput("plan", *BY_HAND, "--json")))
    # Young: the root of 2 x 30 x 36,000.
    assert plan["choices"]["young"]["interval_s"] == pytest.approx(1469.7, abs=0.1)
    assert plan["choices"]["best"]["goodput"] >= plan["choices"]["young"]["goodput"] > 0.9
    text = succeeded(goodput("plan", *BY_HAND))
    assert "Young             24 min 29 s" in text and "is best" in text


def test_of_a_run_and_of_its_report(tmp_path: Path) -> None:
    finished("planned", tmp_path / "runs")
    first = json.loads(succeeded(goodput("plan", tmp_path / "runs", *BY_HAND, "--json")))
    assert first["name"] and first["step_s"] > 0
    report = tmp_path / "report.json"
    report.write_text(succeeded(goodput("report", tmp_path / "runs", "--json")), encoding="utf-8")
    again = json.loads(succeeded(goodput("plan", report, *BY_HAND, "--json")))
    assert again["step_s"] == pytest.approx(first["step_s"])


def test_what_is_missing_is_reported(tmp_path: Path) -> None:
    assert "holds no run" in failed(goodput("plan", tmp_path))
    finished("planned", tmp_path / "runs")
    assert "--mtbf" in failed(goodput("plan", tmp_path / "runs"))
    wrong = goodput("plan", "--mtbf", "-3", "--save", "1")
    assert wrong.returncode == 2 and "--mtbf" in wrong.stderr
