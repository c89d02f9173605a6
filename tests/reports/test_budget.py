"""How much of the error budget is used: in the report, live and recorded, over restarts, in words and as JSON."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from otel_goodput import Recorder, open_run, testing
from otel_goodput.reports.text import headline

NS = 10**9


@pytest.fixture(autouse=True)
def no_signs_of_life_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """These jobs are of minutes ago: no sign of life is of now."""
    monkeypatch.setattr("otel_goodput._live.keeper.HEARTBEAT_NS", 1 << 62)


def attempt(directory: Path, begin: int, **options: Any) -> dict[str, Any]:
    """A job of a hundred seconds, ninety of which are a step; its report when it is over."""
    fixed: dict[str, Any] = {"exporters": "none", "integrations": "none", "device_clock": "host"}
    recorder = Recorder("llama", run_id="run", directory=directory, **fixed, **options)
    with recorder.job(start_time=begin, end_time=begin + 100 * NS):
        number = begin // NS % 1_000_000  # rising from attempt to attempt
        with recorder.step(number, start_time=begin, end_time=begin + 90 * NS):
            pass
        with recorder.custom("eval", start_time=begin + 90 * NS, end_time=begin + 100 * NS):
            pass
    recorder.shutdown(5)
    return dict(recorder.report().to_json())


def test_it_is_what_was_lost_over_what_may_be_lost(tmp_path: Path) -> None:
    report = attempt(tmp_path, (int(time.time()) - 200) * NS, objective="80%")
    assert (report["objective"], round(report["error_budget_used"], 9)) == (0.8, 0.5)
    recorded = open_run(tmp_path, "run").report()
    assert recorded.to_json()["objective"] == 0.8 and recorded.to_json()["error_budget_used"] == 0.5
    assert "  error budget of the objective 80 %: 20.0 s; 50% of it is used\n" in str(recorded)
    assert headline(recorded.to_json()).endswith("; 50% of the error budget used")
    windows = [one["window"] for one in recorded.to_json()["rolling"]]
    assert windows == ["1h", "24h", "5m", "30m", "6h", "72h"]


def test_a_restart_goes_on_with_it_and_may_change_it_or_give_it_up(tmp_path: Path) -> None:
    """The budget is the run's; what it may lose is what its latest attempt says."""
    begin = (int(time.time()) - 1000) * NS
    first = attempt(tmp_path, begin, objective=0.95)
    assert round(first["error_budget_used"], 6) == 2
    second = attempt(tmp_path, begin + 100 * NS, objective=0.9)
    assert second["attempts"] == 2 and second["objective"] == 0.9 and round(second["error_budget_used"], 3) == 1
    third = attempt(tmp_path, begin + 200 * NS)
    assert "objective" not in third and "error_budget_used" not in third
    assert "error budget" not in str(open_run(tmp_path, "run").report())


def test_it_is_not_known_before_time_has_passed_or_steps_are_known() -> None:
    with testing.run(objective=0.9) as run:
        report = run.report()
        assert report.to_json()["objective"] == 0.9 and report.to_json()["error_budget_used"] is None
        assert "error budget" not in str(report) and "error budget" not in headline(report.to_json())
