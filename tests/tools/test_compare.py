"""``otel-goodput compare``: two runs side by side, and conditions for CI."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput.reports.comparison import compare
from otel_goodput.reports.run import RecordedRun

from .commands import failed, finished, goodput, job, killed, succeeded
from .journals import Written, steady


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs: `alpha` was killed and resumed, `beta` went well, `even` and `odd` are made by hand."""
    folder = tmp_path_factory.mktemp("compare") / "runs"
    killed("alpha", folder, 0, 70)
    finished("alpha", folder, 60, 120)
    finished("beta", folder, 0, 80)
    steady(folder, "even", 200)
    steady(folder, "device", 200, device=True)
    steady(folder, "unknown", 200, clock=False)
    Written(folder, "empty").close()
    return folder


def compared(runs: Path, a: str, b: str, *arguments: str | Path, status: int = 0) -> dict[str, Any]:
    answer = goodput("compare", a, b, "--dir", runs, "--json", *arguments)
    assert answer.returncode == status, answer.stdout + answer.stderr
    comparison: dict[str, Any] = json.loads(answer.stdout)
    return comparison


def test_the_figures_are_those_of_the_reports(runs: Path) -> None:
    comparison = compared(runs, "alpha", "beta")
    for side, run_id in (("a", "alpha"), ("b", "beta")):
        report = json.loads(succeeded(goodput("report", runs, "--run", run_id, "--json")))
        for name, value in comparison[side].items():
            if name in report:
                assert value == report[name], name
        shares = sum(source[f"{side}_share"] for source in comparison["sources"])
        assert shares == pytest.approx(1)
        assert comparison["step_time"]["median"][f"{side}_s"] > 0.0015
        productive = next(one for one in comparison["sources"] if one["category"] == "productive")
        assert productive[f"{side}_s"] == pytest.approx(report["seconds"]["productive"])
        # The mean of the net step times is what a kept step holds of the productive time.
        assert comparison["step_time"]["mean"][f"{side}_s"] == pytest.approx(productive[f"{side}_per_step_s"])
        assert sum(bucket[2 if side == "a" else 3] for bucket in comparison["histogram"]) == report["steps"]["kept"]
    assert comparison["figures"]["disruptions"] == {"kind": "count", "a": 1, "b": 0}
    assert comparison["verdict"].endswith(".")


def test_known_step_times(runs: Path) -> None:
    """By the host's clock a step takes 10 ms; on the device 11 ms, for it works on while the next batch is loaded."""
    comparison = compared(runs, "even", "device")
    median = comparison["step_time"]["median"]
    assert (median["a_s"], median["b_s"]) == pytest.approx((0.010, 0.011), rel=0.02)
    assert median["ratio"] == pytest.approx(1.1, rel=0.02) and median["low"] <= median["ratio"] <= median["high"]
    assert "10.0 % slower per step" in comparison["verdict"]
    assert comparison["figures"]["data_loading_per_step"]["a"] == pytest.approx(0.002)


def test_exchanged(runs: Path) -> None:
    there, back = (
        compare(RecordedRun(RunDirectory(runs / a)), RecordedRun(RunDirectory(runs / b)))
        for a, b in (("alpha", "beta"), ("beta", "alpha"))
    )
    for name, ratio in there.ratios.items():
        assert ratio.value == pytest.approx(1 / back.ratios[name].value)
        assert ratio.low is not None and ratio.low == pytest.approx(1 / (back.ratios[name].high or 0))
    for name, figure in there.figures.items():
        assert (figure.a, figure.b) == (back.figures[name].b, back.figures[name].a)
    one, other = there.to_json(), back.to_json()
    for name in ("median", "p90", "mean"):
        assert one["step_time"][name]["difference_s"] == -other["step_time"][name]["difference_s"]
    assert [[low, high, b, a] for low, high, a, b in one["histogram"]] == other["histogram"]


def test_a_run_with_itself(runs: Path) -> None:
    comparison = compared(runs, "alpha", "alpha", "--fail-if", "goodput < 0 pp", "--fail-if", "step_time > 0 %")
    assert comparison["same_run"]
    assert comparison["step_time"]["median"]["difference_s"] == 0
    assert "no significant difference" in comparison["verdict"]
    assert "A and B are the same run" in succeeded(goodput("compare", "alpha", "alpha", "--dir", runs))


def test_text_for_people(runs: Path) -> None:
    text = succeeded(goodput("compare", "even", "device", "--dir", runs))
    lines = text.splitlines()
    assert lines[:2] == ["A: run even, 1 attempt, ended", "B: run device, 1 attempt, ended"]
    assert lines[3].startswith("B is 10.0 % slower per step (95 % interval ")
    for word in ("goodput", "pp", "median", "p90", "where the time went", "data_loading", "at risk"):
        assert word in text
    assert all(len(line) <= 120 for line in lines)


def test_how_runs_are_named(runs: Path, tmp_path: Path) -> None:
    """An id in DIR, a path, a URL, the default folder."""
    side = compared(runs, "alpha", "beta")["b"]
    assert compared(runs, str(runs / "alpha"), str(runs / "beta"))["b"] == side
    assert compared(runs, "alpha", f"file://{runs}/beta")["b"] == side
    ids = goodput("compare", "alpha", "beta", "--json", OTEL_GOODPUT_DIR=runs)
    assert json.loads(succeeded(ids))["b"] == side
    assert json.loads(succeeded(goodput("compare", "alpha", "beta", "--json", "--dir", f"file://{runs}")))["b"] == side
    assert (
        json.loads(succeeded(goodput("compare", "alpha", "./beta", "--json", cwd=runs, OTEL_GOODPUT_DIR=runs)))["b"]
        == side
    )
    assert "holds no run 'delta'" in failed(goodput("compare", "alpha", "delta", "--dir", runs))
    assert "name one of them" in failed(goodput("compare", "alpha", str(runs), "--dir", runs))
    assert "holds no run" in failed(goodput("compare", "a", "b", "--dir", tmp_path))


def test_the_status_tells_what_holds(runs: Path) -> None:
    good = "step_time > 50 %"
    bad = "step_time > 5 %"
    assert not any(one["holds"] for one in compared(runs, "even", "device", "--fail-if", good)["conditions"])
    answer = goodput("compare", "even", "device", "--dir", runs, "--fail-if", good, "--fail-if", bad)
    assert answer.returncode == 5
    errors = answer.stderr.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith(f"otel-goodput: does not hold: {good}: step_time ")
    assert errors[1].startswith(f"otel-goodput: holds: {bad}: step_time 10 ms in A, 11 ms in B")


def test_what_is_not_known_is_never_taken_for_good(runs: Path) -> None:
    condition = ("--fail-if", "goodput < -50 %")
    comparison = compared(runs, "even", "unknown", *condition, status=4)
    assert comparison["b"]["goodput"] is None and comparison["b"]["reason"]
    assert comparison["step_time"]["median"]["b_s"] is None and comparison["conditions"][0]["holds"] is None
    assert "not known" in comparison["verdict"]
    assert compared(runs, "even", "unknown")["figures"]["at_risk"]["b"] is None
    # What is known is held against it all the same, and what holds outweighs what is not known.
    compared(runs, "even", "unknown", *condition, "--fail-if", "attempts >= 0", status=5)
    compared(runs, "even", "empty", "--fail-if", "step_time > 1 %", status=4)
    assert "nothing to compare" in compared(runs, "even", "empty")["verdict"]
    assert "not known: goodput" in goodput("compare", "even", "unknown", "--dir", runs, *condition).stderr


@pytest.mark.parametrize("condition", ["goodput", "nonsense < 1 %", "goodput < 2 ms", "disruptions > 1 pp"])
def test_wrong_conditions_are_wrong_use(runs: Path, condition: str) -> None:
    answer = goodput("compare", "even", "device", "--dir", runs, "--fail-if", condition)
    assert answer.returncode == 2 and "--fail-if" in answer.stderr and answer.stdout == ""


def test_a_living_run(runs: Path, tmp_path: Path) -> None:
    with job("live", tmp_path, 0, 60, "wait"):
        comparison = compared(runs, "even", str(tmp_path / "live"))
        assert comparison["b"]["state"] == "running" and comparison["step_time"]["median"]["b_s"] > 0


def test_a_damaged_journal(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    [segment] = (folder / "even" / "journal").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[64 + 32 * 100 : 64 + 32 * 110] = b"x" * 320
    segment.write_bytes(data)
    comparison = compared(folder, "even", "device", status=3)
    assert comparison["a"]["damaged"] and not comparison["b"]["damaged"]
    compared(folder, "even", "device", "--fail-if", "step_time > 5 %", status=5)
    segment.write_bytes(b"rubbish")
    assert "otel-goodput: run 'even'" in goodput("compare", "even", "device", "--dir", folder).stderr


def test_a_page(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs / "alpha", folder / "alpha")
    shutil.copytree(runs / "beta", folder / "beta")
    hostile = "<script>alert(1)</script>"
    (folder / "beta" / "run.json").write_bytes(checked_json({"run_id": hostile, "job_name": hostile}))
    page = tmp_path / "page.html"
    text = succeeded(goodput("compare", "alpha", folder / "beta", "--dir", folder, "--html", page))
    written = page.read_text()
    assert hostile not in written and "connect-src &#x27;none&#x27;" in written
    data = written.partition('<script type="application/json" id="comparison">')[2].partition("</script>")[0]
    shown = json.loads(data)
    assert shown["b"]["run_id"] == hostile
    assert " ".join(text.split("\n\n")[1].split()) == shown["verdict"]
    assert failed(goodput("compare", "alpha", "alpha", "--dir", runs, "--html", tmp_path / "no" / "page.html"))
