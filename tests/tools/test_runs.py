"""``otel-goodput runs``: the table of runs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from troubled import NS, trouble

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._text.quantities import format_moment

from .commands import failed, finished, goodput, job, killed, succeeded
from .journals import Written


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs: `alpha` was killed and resumed, `beta` went well, `gamma` was killed."""
    folder = tmp_path_factory.mktemp("runs") / "runs"
    killed("alpha", folder, 0, 10)
    finished("alpha", folder, 6, 20)
    finished("beta", folder, 0, 7)
    killed("gamma", folder, 0, 4)
    return folder


def table(*arguments: str | Path, status: int = 0) -> list[dict[str, Any]]:
    answer = goodput("runs", *arguments, "--json")
    assert answer.returncode == status, answer.stderr
    whole = json.loads(answer.stdout)
    assert list(whole) == ["runs"]
    rows: list[dict[str, Any]] = whole["runs"]
    return rows


def test_the_newest_first_with_its_figures(runs: Path) -> None:
    rows = table(runs)
    shown = [(row["run_id"], row["job_name"], row["state"], row["attempts"]) for row in rows]
    assert shown == [("gamma", "gamma", "died", 1), ("beta", "beta", "ended", 1), ("alpha", "alpha", "ended", 2)]
    for row in rows:
        report = json.loads(succeeded(goodput("report", runs, "--run", row["run_id"], "--json")))
        for name in ("goodput", "at_risk_s", "elapsed_s", "started_at"):
            assert row[name] == report[name]
        assert row["started_at"] < row["last_sign_of_life"] <= row["started_at"] + row["elapsed_s"] + 1e-3
        assert not row["damaged"] and row["error"] is None


def test_text_for_people(runs: Path) -> None:
    lines = succeeded(goodput("runs", runs)).splitlines()
    assert lines[0] == f"3 runs in {runs}"
    assert (
        " ".join(lines[2].split())
        == "run job state attempts began elapsed goodput last 1 h at risk last sign of life incidents"
    )
    assert [line.split()[0] for line in lines[3:]] == ["gamma", "beta", "alpha"]
    assert succeeded(goodput("runs", OTEL_GOODPUT_DIR=runs)).splitlines()[0] == lines[0]


def test_a_url(runs: Path) -> None:
    assert [row["run_id"] for row in table(f"file://{runs}")] == ["gamma", "beta", "alpha"]


def test_a_living_run_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    with job("live", tmp_path, 0, 3, "wait"):
        [row] = table(tmp_path)
        assert row["state"] == "running" and row["goodput"] > 0
        assert (row["incidents"], row["open_incidents"]) == (0, [])
        began = time.time_ns() - 10 * NS
        trouble(RunDirectory(tmp_path / "live"), began)
        [row] = table(tmp_path)
        [wrong] = row["open_incidents"]
        assert row["incidents"] == 2 and wrong == {
            "kind": "slowdown",
            "cause": "step",
            "phase": "",
            "rank": None,
            "line": "train.py:88",
            "began": (began + 4 * NS) / NS,
        }
        assert f"slowdown since {format_moment(wrong['began'])}; 2 in all" in succeeded(goodput("runs", tmp_path))
    [row] = table(tmp_path)
    assert row["state"] != "running" and (row["incidents"], row["open_incidents"]) == (2, []), "they ended with the job"
    assert succeeded(goodput("runs", tmp_path)).splitlines()[3].endswith("UTC  2")


def test_a_run_without_a_step(tmp_path: Path) -> None:
    Written(tmp_path, "empty").close()
    [row] = table(tmp_path)
    assert (row["run_id"], row["started_at"], row["goodput"], row["elapsed_s"]) == ("empty", None, None, 0)
    assert "empty" in succeeded(goodput("runs", tmp_path))


def test_what_cannot_be_read_is_a_row_that_says_so(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    (folder / "nothing" / "journal").mkdir(parents=True)
    for segment in (folder / "beta" / "journal").glob("*.segment*"):
        segment.write_bytes(b"rubbish")
    for snapshot in (folder / "beta" / "journal").glob("*.snapshot"):
        snapshot.unlink()
    rows = {row["run_id"]: row for row in table(folder, status=3)}
    assert rows["alpha"]["error"] is None and rows["alpha"]["goodput"] > 0
    assert "left no journal" in rows["nothing"]["error"]
    assert rows["beta"]["state"] == "not readable" and rows["beta"]["error"]
    answer = goodput("runs", folder)
    assert answer.returncode == 3 and "not readable" in answer.stdout and "Traceback" not in answer.stderr


def test_names_do_not_steer_the_terminal(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "beta", tmp_path / "evil")
    (tmp_path / "evil" / "run.json").write_bytes(checked_json({"run_id": "\x1b[2Jevil", "job_name": "a\nb"}))
    text = succeeded(goodput("runs", tmp_path))
    assert "\x1b" not in text and "?[2Jevil" in text and "a?b" in text


def test_no_run(tmp_path: Path) -> None:
    assert "holds no run" in failed(goodput("runs", tmp_path))
    assert "holds no run" in failed(goodput("runs", tmp_path / "missing"))
    assert "cannot be read" in failed(goodput("runs", f"file://{tmp_path}/missing"))
