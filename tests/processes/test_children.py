"""Children of multiprocessing: importing their parent's main module is nothing, their own work is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from exported import written

from otel_goodput._journal.rundir import RunDirectory, runs
from otel_goodput.reports.run import RecordedRun

# A script as many people write it: what is not guarded runs again in every spawned child.
UNGUARDED = """
import multiprocessing, sys
import otel_goodput as goodput

recorder = goodput.configure("parent")

@goodput.on_preemption
def save():
    pass

@goodput.custom("augment")
def fetch(number):
    with goodput.data_loading():
        return number * 2

def main():
    with goodput.job(), multiprocessing.get_context(sys.argv[1]).Pool(2) as workers:
        for step, batch in goodput.steps(workers.imap(fetch, range(20))):
            assert batch == 2 * step
        print(workers.apply(count), flush=True)

def count():
    return goodput.configure is not None and goodput.totals() is None

if __name__ == "__main__":
    main()
"""

# As torch.multiprocessing.spawn does it: every child is a rank that configures itself.
TARGETS = """
import multiprocessing, os, sys
import otel_goodput as goodput

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    goodput.configure("ranks", run_id="run")
    with goodput.job():
        for step, _ in goodput.steps(range(5)):
            pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ranks = [context.Process(target=train, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    print([rank.exitcode for rank in ranks])
"""

ALONE = """
import multiprocessing, sys
import otel_goodput as goodput

goodput.configure("both")

def train():
    goodput.configure("child")
    with goodput.job():
        for step, _ in goodput.steps(range(5)):
            pass

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    child.start()
    child.join()
    print(child.exitcode)
"""


def start(script: str, folder: Path, method: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `script` in `folder` with this way to start children; its stderr must be empty."""
    (folder / "train.py").write_text(script)
    done = warm.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork.*:DeprecationWarning", "train.py", method],
        cwd=folder,
        env={**os.environ, "OTEL_GOODPUT_EXPORTERS": "file", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done


def reports_in(folder: Path) -> dict[str, dict[str, Any]]:
    return {run.path.name: RecordedRun(run).report().to_json() for run in runs(folder / "goodput")}


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_importing_the_main_module_again_is_nothing(method: str, tmp_path: Path) -> None:
    done = start(UNGUARDED, tmp_path, method)
    assert done.stdout == ("False\n" if method == "fork" else "True\n")
    (report,) = reports_in(tmp_path).values()
    assert report["run_id"] == "parent" and report["attempts"] == 1
    assert report["steps"]["executed"] == report["steps"]["kept"] == 20
    assert "augment" not in report["seconds"].get("custom", {})
    names = {path.name.rsplit("-", 1)[0] for path in (tmp_path / "goodput" / "parent").glob("traces-*")}
    assert len(names) == 1, "the parent's spans alone"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_child_that_configures_itself_is_a_process(method: str, tmp_path: Path) -> None:
    assert start(TARGETS, tmp_path, method).stdout == "[0, 0]\n"
    assert list(reports_in(tmp_path)) == ["run"]
    run = RunDirectory(tmp_path / "goodput" / "run")
    for rank in range(2):
        report = RecordedRun(run).report(process=rank).to_json()
        assert report["steps"]["kept"] == 5 and report["ended"]
        assert not list(run.journal.glob(f"a0000-p{rank:04d}-000001*")), "it was shut down: nothing is laid ready"
    exported = [span["name"] for span in written(run.path)]
    assert exported.count("step") == 10 and exported.count("job") == 2


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_child_that_configures_itself_next_to_its_parent(method: str, tmp_path: Path) -> None:
    """The module's configure() is the parent's, the target's is the child's."""
    assert start(ALONE, tmp_path, method).stdout == "0\n"
    reports = reports_in(tmp_path)
    assert set(reports) == {"both", "child"}
    assert reports["child"]["steps"]["kept"] == 5 and not reports["both"]["elapsed_s"]
