"""``otel-goodput export``: traces for Perfetto, held to the rules of its importer."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from waits import until

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.reader import all_events

from .commands import PATIENCE_S, environment, failed, finished, goodput, job, killed, succeeded
from .journals import MS, START, Written, steady
from .perfetto_rules import Trace, chrome


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "runs"
    killed("alpha", folder, 0, 10)
    finished("alpha", folder, 6, 20)
    return folder


def exported(run: Path, folder: Path, *arguments: str, status: int = 0) -> Trace:
    """The trace of a run."""
    answer = goodput("export", run, "--perfetto", folder / "trace.json", *arguments)
    assert answer.returncode == status, answer.stdout + answer.stderr
    return chrome(folder / "trace.json")


def test_a_run_that_was_killed_and_resumed(runs: Path, tmp_path: Path) -> None:
    trace = exported(runs / "alpha", tmp_path)
    report = json.loads(succeeded(goodput("report", runs / "alpha", "--json")))
    assert sorted(trace.groups.values()) == ["attempt 1", "attempt 2", "run alpha"]
    fates = [one.args["goodput.step.state"] for one in trace.of("steps")]
    assert {fate: fates.count(fate) for fate in set(fates)} == {
        name: report["steps"][name] for name in ("kept", "lost")
    }
    lost = [one.args["goodput.step"] for one in trace.of("steps", "attempt 1") if one.name == "step (lost)"]
    assert lost == [6, 7, 8, 9, 10]
    assert [one.args.get("goodput.interrupted") for one in trace.of("job")] == [True, None]
    assert [one.args["goodput.attempt"] for one in trace.of("job")] == [0, 1]  # as on the resource of their spans
    jobs = trace.of("job")
    assert ("job", jobs[0].begin, "job", jobs[1].begin) in trace.arrows()
    [again] = [one for one in trace.of("steps", "attempt 2") if one.args["goodput.step"] == 6]
    assert ("job", jobs[1].begin, again.name, again.begin) in trace.arrows()  # to where the restart went back
    assert len(trace.arrows()) == 2 + sum(one.name.startswith("commit") for one in trace.slices)
    [(_, moment, name, args)] = trace.moments
    assert (name, moment, args["to_step"]) == ("disruption: crash", jobs[1].begin, 6)
    assert args["recovery_s"] == pytest.approx((jobs[1].begin - jobs[0].end) / 1e9)
    # Every phase of the journal is there, with its times.
    begun = sum(event.kind == ev.START for event in all_events(RunDirectory(runs / "alpha")))
    assert len(trace.slices) == begun
    assert trace.values["goodput of the run"][-1][1] == pytest.approx(100 * report["goodput"])
    assert trace.values["at risk"][-1][1] == pytest.approx(report["at_risk_s"])
    assert max(value for _, value in trace.values["at risk"]) > 0.004


def test_checkpoints_devices_and_rollbacks(tmp_path: Path) -> None:
    made = Written(tmp_path, "made")
    whole = made.phase(rules.JOB, 0, None)
    steps = [made.phase(rules.STEP, at * 10 * MS, (at * 10 + 2) * MS, at, ev.ON_DEVICE) for at in range(4)]
    for at, key in enumerate(steps):
        made.add(ev.DEVICE_END, rules.STEP, key, time=(at * 10 + 9 + 2 * (at == 0)) * MS)
    save = made.phase(rules.SAVE, 40 * MS, 45 * MS, 3, ev.PENDING)
    made.phase(rules.SAVE, 50 * MS, 52 * MS, 3, ev.PENDING)  # never durable
    made.add(ev.DURABLE, key=save, time=60 * MS)
    made.phase(rules.STEP, 61 * MS, 62 * MS, 4)
    made.phase(rules.STEP, 63 * MS, 64 * MS, 2)  # back from 4
    made.phase(rules.STEP, 65 * MS, 66 * MS, 3, ev.FAILED)
    made.add(ev.NOTICE, 1, time=67 * MS)
    made.add(ev.SLICES, step=3, key=4, flags=4, time=67 * MS)
    made.add(ev.END, rules.JOB, whole, time=70 * MS)
    trace = exported(made.close(), tmp_path)
    device = [
        ((one.begin - START) // MS, (one.end - START) // MS, one.args["goodput.step"]) for one in trace.of("device")
    ]
    assert device == [(0, 11, 0), (11, 19, 1), (20, 29, 2), (30, 39, 3)]
    commits = [*trace.of("checkpoints being committed"), *trace.of("checkpoints being committed 2")]
    assert [(one.name, (one.begin - START) // MS, (one.end - START) // MS) for one in commits] == [
        ("commit", 45, 60), ("commit, never durable", 52, 70)
    ]  # fmt: skip
    assert [(one[0], one[2]) for one in trace.arrows()] == [
        ("checkpoint_save", "commit"), ("checkpoint_save", "commit, never durable")
    ]  # fmt: skip
    fates = [(one.args["goodput.step"], one.args["goodput.step.state"]) for one in trace.of("steps")]
    assert fates == [(0, "kept"), (1, "kept"), (2, "lost"), (3, "lost"), (4, "lost"), (2, "kept"), (3, "lost")]
    assert sorted(moment[2] for moment in trace.moments) == ["disruption: rollback", "notice of preemption"]
    assert trace.values["active slices"] == [(START + 67 * MS, 3.0)]


def test_phases_that_overlap_get_tracks_of_their_own(tmp_path: Path) -> None:
    made = Written(tmp_path, "made")
    whole = made.phase(rules.JOB, 0, None)
    made.add(ev.START, rules.DATA_LOADING, 100, 1, 10 * MS)
    made.add(ev.START, rules.CUSTOM_PHASE, 101, time=15 * MS)
    made.add(ev.START, rules.CUSTOM_PHASE, 102, time=15 * MS)
    made.add(ev.END, key=102, time=15 * MS)  # no length
    made.add(ev.END, key=100, time=20 * MS)  # before what began in it
    made.add(ev.END, key=101, time=25 * MS)
    made.phase(rules.CUSTOM_PHASE, 5 * MS, 12 * MS)  # recorded later
    made.phase(rules.CUSTOM_PHASE, 30 * MS, 35 * MS)
    made.phase(rules.CUSTOM_PHASE, 35 * MS, 35 * MS)
    made.add(ev.END, rules.JOB, whole, time=50 * MS)
    trace = exported(made.close(), tmp_path)
    assert sum(len(trace.of(name)) for name in ("blocking phases", "blocking phases 2", "blocking phases 3")) == 6
    assert not trace.of("blocking phases 4")


def test_several_processes(tmp_path: Path) -> None:
    for process in (0, 2):
        made = Written(tmp_path, "ranks", process=process)
        made.phase(rules.JOB, process * MS, 90 * MS)
        made.phase(rules.STEP, (10 + process) * MS, 20 * MS, 0)
        made.close()
    trace = exported(tmp_path / "ranks", tmp_path)
    assert sorted(trace.groups.values()) == ["attempt 1, process 0", "attempt 1, process 2", "run ranks"]
    [two] = exported(tmp_path / "ranks", tmp_path, "--process", "2").of("steps")
    assert two.begin == START + 12 * MS


def test_a_living_run(tmp_path: Path) -> None:
    with job("live", tmp_path, 0, 3, "wait"):
        assert exported(tmp_path / "live", tmp_path).of("steps")[-1].name == "step (in_flight)"


def test_no_step_and_no_run(tmp_path: Path) -> None:
    empty = Written(tmp_path, "empty").close()
    assert exported(empty, tmp_path).slices == []
    assert "holds no run" in failed(goodput("export", tmp_path / "none", "--perfetto", tmp_path / "x.json"))
    (tmp_path / "void" / "journal").mkdir(parents=True)
    assert "left no journal" in failed(goodput("export", tmp_path / "void", "--perfetto", tmp_path / "x.json"))
    assert "choose one with --run" in failed(goodput("export", tmp_path, "--perfetto", tmp_path / "x.json"))
    assert not list(tmp_path.glob("x.json*"))


@pytest.mark.parametrize("newer", [False, True])
def test_a_damaged_or_newer_journal(newer: bool, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "alpha", tmp_path / "alpha")
    first = min((tmp_path / "alpha" / "journal").glob("a0001-*.segment*"))
    data = bytearray(first.read_bytes())
    data[8:10] = (9).to_bytes(2, "little") if newer else data[8:10]
    data[64 + 32 * 4 : 64 + 32 * 6] = data[64 + 32 * 4 : 64 + 32 * 6] if newer else b"?" * 64
    first.write_bytes(data)
    trace = exported(tmp_path / "alpha", tmp_path, status=3)
    assert trace.of("steps", "attempt 1")


def test_names_and_places(runs: Path, tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz"):
        done = succeeded(goodput("export", runs / "alpha", "--perfetto", tmp_path / name))
        assert name in done and "events; open it at ui.perfetto.dev" in done
        assert chrome(tmp_path / name).slices
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
    assert succeeded(goodput("export", runs / "alpha", "--perfetto", "-")) == (tmp_path / "a.json").read_text()
    assert "No such file" in failed(goodput("export", runs / "alpha", "--perfetto", tmp_path / "no" / "a.json"))


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    run = steady(tmp_path / "runs", "long", 150_000)  # long enough to be interrupted by whoever looks late
    target = tmp_path / "out" / "trace.json"
    target.parent.mkdir()
    target.write_text("as it was")
    command = [sys.executable, "-m", "otel_goodput", "export", str(run), "--perfetto", str(target)]
    with warm.Process(command, env=environment(), stderr=subprocess.PIPE) as process:
        until(lambda: len(list(target.parent.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert [path.name for path in target.parent.iterdir()] == ["trace.json"] and target.read_text() == "as it was"
