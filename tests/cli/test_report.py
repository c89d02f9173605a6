"""``otel-goodput report``: a run's folder, several runs, a URL, a living job."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .commands import NS, failed, finished, goodput, job, killed, succeeded, total_ns


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs: `alpha` was killed in step 10 and resumed at 6, `beta` went well at once."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    killed("alpha", folder, 0, 10)
    finished("alpha", folder, 6, 20)
    finished("beta", folder, 0, 7)
    return folder


def report(*arguments: str | Path, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(succeeded(goodput("report", *arguments, "--json", **more)))
    assert total_ns(found["seconds"]) == round(found["elapsed_s"] * NS), "the categories sum to the elapsed time"
    return found


def check_alpha(found: dict[str, Any]) -> None:
    assert (found["run_id"], found["job_name"], found["ended"]) == ("alpha", "alpha", True)
    assert found["attempts"] == 2
    assert found["disruption_reasons"] == {"crash": 1}
    # Steps 6..9 were done twice, step 10 died in flight and came again.
    assert found["steps"] == {"executed": 24, "kept": 20, "lost": 5}
    assert found["max_productive_step"] == 19
    [disruption] = found["disruption_list"]
    assert (disruption["from_step"], disruption["to_step"]) == (10, 6)
    assert found["seconds"]["custom"]["look"] >= 0.004


def test_the_folder_of_a_run(runs: Path) -> None:
    check_alpha(report(runs / "alpha"))


def test_one_of_several_runs(runs: Path) -> None:
    check_alpha(report(runs, "--run", "alpha"))
    assert report(runs, "--run", "beta")["attempts"] == 1


def test_several_runs_one_after_the_other(runs: Path) -> None:
    lines = succeeded(goodput("report", runs, "--json")).splitlines()
    assert [json.loads(line)["run_id"] for line in lines] == ["alpha", "beta"]
    text = succeeded(goodput("report", runs))
    titles = [line for line in text.splitlines() if line.startswith("Goodput of ")]
    assert [title.split(",")[0] for title in titles] == ["Goodput of alpha", "Goodput of beta"]


def test_text_for_people(runs: Path) -> None:
    text = succeeded(goodput("report", runs / "alpha"))
    assert text.startswith("Goodput of alpha, 2 attempts, since 2")
    for word in ("ended", "productive", "wasted_progress", "infrastructure_recovery", "custom look", "100.00 %"):
        assert word in text, text
    assert "24 executed, 20 kept, up to number 19, 5 lost" in text
    assert "crash (attempt 2)" in text
    assert "from step 10 back to 6" in text


def test_where_runs_are_looked_for(runs: Path, tmp_path: Path) -> None:
    check_alpha(report("--run", "alpha", OTEL_GOODPUT_DIR=runs))
    shutil.copytree(runs, tmp_path / "goodput")
    check_alpha(report("--run", "alpha", cwd=tmp_path))


def test_a_url(runs: Path) -> None:
    check_alpha(report(f"file://{runs}", "--run", "alpha"))
    lines = succeeded(goodput("report", f"file://{runs}", "--json")).splitlines()
    assert [json.loads(line)["run_id"] for line in lines] == ["alpha", "beta"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_is_no_run_is_passed_over(scheme: str, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs" / "another folder").mkdir()
    (tmp_path / "runs" / "a file").write_text("and its text")
    lines = succeeded(goodput("report", f"{scheme}{tmp_path}/runs", "--json")).splitlines()
    assert [json.loads(line)["run_id"] for line in lines] == ["alpha", "beta"]


def test_an_earlier_time_windows_and_exclusions(runs: Path) -> None:
    whole = report(runs / "beta")
    start, elapsed = whole["started_at"], whole["elapsed_s"]
    middle = start + elapsed / 2
    early = report(runs / "beta", "--at", repr(middle))
    assert early["elapsed_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert early["ended"] is False
    cut = report(runs / "beta", "--window", repr(start), repr(middle), "--exclude", repr(middle), repr(start + 1e6))
    [window] = cut["windows"]
    assert window["elapsed_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert total_ns(window["seconds"]) == round(window["elapsed_s"] * NS)
    assert cut["elapsed_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert cut["excluded_s"] == pytest.approx(elapsed / 2, abs=1e-5)
    assert report(runs / "beta", "--ideal-step-time", "0.5")["ideal_step_time_s"] == 0.5


def test_a_living_job(tmp_path: Path) -> None:
    with job("alive", tmp_path, 0, 10, "wait"):
        found = report(tmp_path)
        assert found["ended"] is False
        assert found["in_flight_step"] == 10
        assert found["seconds"]["in_flight"] > 0
        later = report(tmp_path)
        assert later["seconds"]["in_flight"] > found["seconds"]["in_flight"], "a hang is seen at once"
        assert "step 10 is in flight" in succeeded(goodput("report", tmp_path))


def test_a_killed_job(tmp_path: Path) -> None:
    killed("dead", tmp_path)
    found = report(tmp_path)
    assert found["attempts"] == 1
    assert found["steps"]["kept"] == 10


def test_no_such_run(runs: Path) -> None:
    line = failed(goodput("report", runs, "--run", "gamma"))
    assert "'gamma'" in line
    assert "alpha, beta" in line
    assert "'gamma'" in failed(goodput("report", f"file://{runs}", "--run", "gamma"))


def test_no_such_process(runs: Path) -> None:
    assert "process 3" in failed(goodput("report", runs / "beta", "--process", "3"))


def test_nothing_there(tmp_path: Path) -> None:
    assert "holds no run" in failed(goodput("report", tmp_path))
    assert "holds no run" in failed(goodput("report", tmp_path / "nowhere"))
    assert "goodput holds no run" in failed(goodput("report", cwd=tmp_path))
    assert "nowhere" in failed(goodput("report", f"file://{tmp_path}/nowhere"))
    assert "nosuch" in failed(goodput("report", "nosuch://bucket/runs"))
    assert list(tmp_path.iterdir()) == [], "asking makes nothing"


def test_a_reversed_window(runs: Path) -> None:
    assert "5.0 .. 3.0" in failed(goodput("report", runs / "beta", "--window", "5", "3"))
