"""What the attempts of a run ran with: in the report's JSON, in `Run`, and where two runs differ."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.commands import environment, goodput, succeeded
from waits import until

from otel_goodput import Recorder, open_run, testing
from otel_goodput.reports.comparison import compare
from otel_goodput.reports.run import runs_at
from otel_goodput.version import __version__

SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"
SAMPLING = "OTEL_GOODPUT_STEP_SAMPLING"

KILLED = """
import os, signal, sys
from pathlib import Path
import otel_goodput as goodput

recorder = goodput.Recorder("run", run_id="run", directory=sys.argv[1], exporters="none", hyperparameters={"lr": 0.5})
recorder.job().__enter__()
with recorder.step(0):
    pass
while not list(Path(sys.argv[1]).glob("run/journal/*.facts")):
    recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def trained(directory: Path, name: str, hyperparameters: dict[str, Any] | None, **options: Any) -> None:
    with (
        Recorder(
            name, run_id=name, directory=directory, exporters="none", hyperparameters=hyperparameters, **options
        ) as recorder,
        recorder.job(),
        recorder.step(0),
    ):
        pass


def test_the_report_has_what_its_attempts_ran_with(tmp_path: Path) -> None:
    given = {"lr": 0.1, "model": {"depth": 3, "norm": None}, "token": SECRET}
    for _ in range(3):
        trained(tmp_path, "run", given)
    trained(tmp_path, "run", {**given, "lr": 0.2}, step_sampling=7)
    run = open_run(tmp_path)
    first, second = run.report().to_json()["configurations"]
    assert [(one["first_attempt"], one["last_attempt"]) for one in (first, second)] == [(1, 3), (4, 4)]
    assert {**first["hyperparameters"], "lr": 0.2} == second["hyperparameters"]
    assert first["hyperparameters"] == {
        "lr": 0.1, "model.depth": 3, "model.norm": None, "token": first["hyperparameters"]["token"]
    }  # fmt: skip
    assert first["settings"][SAMPLING] == {"value": "100", "source": "default"}
    assert second["settings"][SAMPLING] == {"value": "7", "source": "configure()"}
    assert (first["versions"]["python"], first["versions"]["otel_goodput"]) == (platform.python_version(), __version__)
    printed = succeeded(goodput("report", tmp_path, "--json"))
    assert json.loads(printed)["configurations"] == [first, second]
    assert SECRET not in printed

    attempts = run.attempts()
    assert [one.attempt for one in attempts] == [1, 2, 3, 4]
    assert [one.hyperparameters["lr"] for one in attempts] == [0.1, 0.1, 0.1, 0.2]
    assert [one.settings[SAMPLING] for one in attempts] == ["100", "100", "100", "7"]
    assert attempts[0].versions == first["versions"] and attempts[0].resource["service.name"] == "run"
    assert attempts[0].started_ns < attempts[3].started_ns

    then = run.report(at=attempts[3].started_ns / 1e9 - 1e-6).to_json()["configurations"]
    assert [(one["first_attempt"], one["last_attempt"]) for one in then] == [(1, 3)]


def test_a_living_job_has_them_in_its_own_report(tmp_path: Path) -> None:
    trained(tmp_path, "run", {"lr": 0.1})
    with (
        Recorder("run", run_id="run", directory=tmp_path, exporters="none", hyperparameters={"lr": 0.2}) as recorder,
        recorder.job(),
        recorder.step(1),
    ):
        until(lambda: "configurations" in recorder.report().to_json())  # once those of the first attempt are read
        own = recorder.report().to_json()["configurations"]
    assert [one["hyperparameters"] for one in own] == [{"lr": 0.1}, {"lr": 0.2}]
    assert recorder.report().to_json()["configurations"] == own
    assert open_run(tmp_path).report().to_json()["configurations"] == own
    with testing.run(hyperparameters={"token": SECRET}) as recording:
        (configuration,) = recording.report().to_json()["configurations"]
    assert configuration["first_attempt"] == 1 and SECRET not in str(configuration)


def test_a_killed_attempt_has_left_what_it_ran_with(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment(), timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    trained(tmp_path, "run", {"lr": 0.25})
    configurations = open_run(tmp_path).report().to_json()["configurations"]
    assert [one["hyperparameters"] for one in configurations] == [{"lr": 0.5}, {"lr": 0.25}]


def test_a_run_that_left_nothing_of_it(tmp_path: Path) -> None:
    trained(tmp_path, "run", {"lr": 0.1})
    for facts in (tmp_path / "run" / "journal").glob("*.facts"):
        facts.unlink()
    trained(tmp_path, "other", {"lr": 0.1})
    run = open_run(tmp_path, "run")
    assert "configurations" not in run.report().to_json() and run.attempts() == []
    comparison = json.loads(succeeded(goodput("compare", "run", "other", "--dir", tmp_path, "--json")))
    assert comparison["configuration"] is None
    assert "what they ran with" not in succeeded(goodput("compare", "run", "other", "--dir", tmp_path))


@pytest.mark.parametrize("same", [True, False])
def test_compare_shows_what_differs(tmp_path: Path, same: bool) -> None:
    trained(tmp_path, "a", {"lr": 0.1, "warmup": 10, "<b>": "</td>x"})
    trained(tmp_path, "b", {"lr": 0.1, "warmup": 10, "<b>": "</td>x"} if same else {"lr": 0.2, "<b>": "&"},
            **({} if same else {"step_sampling": 7}))  # fmt: skip
    page = tmp_path / "page.html"
    text = succeeded(goodput("compare", "a", "b", "--dir", tmp_path, "--html", page))
    configuration = json.loads(succeeded(goodput("compare", "a", "b", "--dir", tmp_path, "--json")))["configuration"]
    html = page.read_text()
    shown = html.partition('<script type="application/json" id="comparison">')[2].partition("</script>")[0]
    assert json.loads(shown)["configuration"] == configuration and "<" not in shown
    if same:
        assert configuration == []
        assert "what they ran with" not in text
        return
    assert configuration == [
        {"kind": "hyperparameters", "name": "<b>", "a": "</td>x", "b": "&"},
        {"kind": "hyperparameters", "name": "lr", "a": 0.1, "b": 0.2},
        {"kind": "hyperparameters", "name": "warmup", "a": 10, "b": None},
        {"kind": "settings", "name": SAMPLING, "a": "100", "b": "7"},
    ]
    (lr,) = [line.split() for line in text.splitlines() if " lr " in line]
    assert lr == ["hyperparameter", "lr", "0.1", "0.2"]
    (warmup,) = [line.split() for line in text.splitlines() if " warmup " in line]
    assert warmup == ["hyperparameter", "warmup", "10", "-"]
    assert "</td>x" not in html


def test_versions_are_compared(tmp_path: Path) -> None:
    for name in "ab":
        trained(tmp_path, name, None)
    place = tmp_path / "b" / "journal" / "a0000-p0000.facts"
    from otel_goodput._journal.sidecars import checked_json  # as the process writes it

    content = json.loads(place.read_bytes())
    del content["checksum"]
    content["versions"]["opentelemetry-sdk"] = "0.1"
    place.write_bytes(checked_json(content))
    with runs_at(str(tmp_path)) as listed:
        a, b = sorted(listed, key=lambda one: one.run_id)
        (one,) = compare(a, b).differences or ()
    assert (one.kind, one.name, one.b) == ("versions", "opentelemetry-sdk", "0.1")
