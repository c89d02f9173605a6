"""``otel-goodput replay``: the sample timelines and the options, through the command."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from accounting.test_cases import CASES, check_slices, check_times
from timelines import replay

from .commands import PATIENCE_S, SMALL, environment, failed, finished, goodput, succeeded, total_ns, write_timeline


def answer(*arguments: str | Path, **more: Any) -> dict[str, Any]:
    return json.loads(succeeded(goodput("replay", *arguments, "--json", **more)))


def options(name: str, spans: list[list[float]]) -> list[str]:
    return [text for a, b in spans for text in (name, str(a), str(b))]


@pytest.mark.parametrize("name", CASES)
def test_sample_timelines(name: str, tmp_path: Path) -> None:
    case, truth = CASES[name], CASES[name]["truth"]
    path = write_timeline(tmp_path / "timeline.jsonl", case["events"])
    windows = case.get("intervals", [])
    answered = answer(path, "--at", str(case["query_at"]), *options("--window", windows))
    check_times(answered, truth)
    check_slices(answered, truth)
    assert answered["max_productive_step"] == truth["max_productive_step"]
    assert answered["disruptions"] == truth["disruptions"]
    assert len(answered["windows"]) == len(windows)
    for window, wanted in zip(answered["windows"], truth.get("intervals", []), strict=True):
        check_times(window, wanted)
    # The same as the library says, to the last digit.
    assert answered == json.loads(json.dumps(replay(case["events"], at=case["query_at"], windows=windows)))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "exclusions" in case])
def test_sample_timelines_with_exclusions(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = write_timeline(tmp_path / "timeline.jsonl", case["events"])
    answered = answer(path, "--at", str(case["query_at"]), *options("--exclude", case["exclusions"]))
    check_times(answered, case["truth"]["exclusions"])
    assert answered["excluded_s"] == pytest.approx(case["truth"]["exclusions"]["excluded_s"], abs=1e-6)


def test_the_whole_of_a_small_one(tmp_path: Path) -> None:
    answered = answer(write_timeline(tmp_path / "small.jsonl", SMALL))
    assert answered["elapsed_s"] == 20.0
    assert answered["goodput"] == 0.6
    assert answered["seconds"] == {"productive": 12.0, "training_prep": 4.0, "custom": {"eval": 3.0}, "other": 1.0}
    assert answered["ideal_step_time_s"] == 4.0
    assert answered["attempts"] == 1


def test_at_asks_for_an_earlier_time(tmp_path: Path) -> None:
    answered = answer(write_timeline(tmp_path / "small.jsonl", SMALL), "--at", "10")
    assert answered["seconds"] == {"productive": 4.0, "training_prep": 4.0, "in_flight": 2.0}
    assert answered["in_flight_step"] == 1


def test_windows_and_exclusions_may_be_repeated(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "small.jsonl", SMALL)
    more = ["--window", "0", "6", "--window", "10", "30", "--exclude", "13", "14", "--exclude", "18", "19.5"]
    answered = answer(path, *more)
    assert answered["excluded_s"] == 2.5
    assert total_ns(answered["seconds"]) == 17_500_000_000
    first, second = answered["windows"]
    assert (first["start"], first["end"], first["elapsed_s"]) == (0.0, 6.0, 6.0)
    assert first["seconds"] == {"productive": 2.0, "training_prep": 4.0}
    assert second["elapsed_s"] == 7.5
    assert second["seconds"] == {"productive": 5.0, "custom": {"eval": 2.0}, "other": 0.5}


def test_the_ideal_step_time_may_be_given(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "small.jsonl", SMALL)
    assert answer(path, "--ideal-step-time", "2.5")["ideal_step_time_s"] == 2.5


def test_text_for_people(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "small.jsonl", SMALL)
    text = succeeded(goodput("replay", path, "--window", "0", "6"))
    assert text.startswith("Goodput of timeline, 1 attempt")
    assert "goodput 60.00 % of 20.0 s" in text
    assert "12.000 s   60.00 %" in text
    assert "custom eval" in text
    assert "window 1970-01-01 00:00:00 to 00:00:06 UTC (6.0 s)" in text
    assert "The largest loss: 4.0 s (20.00 %)" in text.splitlines()[-1]


def test_standard_input() -> None:
    text = "".join(json.dumps(row) + "\n" for row in SMALL)
    assert answer("-", text=text)["elapsed_s"] == 20.0


def test_standard_input_may_be_a_socket() -> None:
    """As some supervisors give it; /dev/stdin cannot be opened then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall("".join(json.dumps(row) + "\n" for row in SMALL).encode())
        ours.shutdown(socket.SHUT_WR)
        done = warm.run(
            [sys.executable, "-m", "otel_goodput", "replay", "-", "--json"],
            stdin=theirs, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert json.loads(succeeded(done))["elapsed_s"] == 20.0


def test_a_run_directory(tmp_path: Path) -> None:
    finished("job", tmp_path / "runs")
    answered = answer(tmp_path / "runs" / "job")
    assert answered["run_id"] == "job"
    assert answered["steps"]["kept"] == 10


def test_rows_that_make_no_sense_are_left_out_and_reported(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "odd.jsonl", [*SMALL, {"kind": "lunch", "start": 1}, {"kind": "step", "start": 2}])
    done = goodput("replay", path, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["elapsed_s"] == 20.0
    assert "lunch" in done.stderr
    assert "2 rows" in done.stderr
    assert all(line.startswith("otel-goodput: ") for line in done.stderr.splitlines())


def test_an_empty_timeline(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "empty.jsonl", [])
    assert answer(path)["goodput"] is None
    assert "no job has started" in succeeded(goodput("replay", path))


def test_no_such_file(tmp_path: Path) -> None:
    assert "nowhere.jsonl" in failed(goodput("replay", tmp_path / "nowhere.jsonl"))


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (b'{"kind": "step", "start": 1,\n', "line 2"),
        (b"[1, 2]\n", "line 2"),
        (b"kind,start,end\n", "line 2"),
        (b'{"kind": "custom", "name": "caf\xe9", "start": 1}\n', "broken.jsonl"),
    ],
    ids=["cut", "no object", "no JSON", "no UTF-8"],
)
def test_a_broken_file(second: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b'{"kind": "job", "start": 0, "end": 9}\n' + second)
    line = failed(goodput("replay", path))
    assert problem in line
    assert "broken.jsonl" in line


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    assert "holds no run" in failed(goodput("replay", tmp_path))


@pytest.mark.parametrize("option", ["--window", "--exclude"])
def test_a_reversed_window(option: str, tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "small.jsonl", SMALL)
    assert "5.0 .. 3.0" in failed(goodput("replay", path, option, "5", "3"))
