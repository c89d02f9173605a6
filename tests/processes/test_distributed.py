"""Real distributed jobs of several local processes: one account, one trace, and who holds the others up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from crash.exported import ERROR, Span, read_spans
from waits import until

from everyday.lateness import Lateness
from otel_goodput._accounting.rules import DATA_LOADING_TIME
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.ranks import account_of_ranks

from . import jobs, marked

pytest.importorskip("jax")
pytestmark = [pytest.mark.jax, pytest.mark.crash]


class Job(jobs.Job):
    """A job of ``rank``."""

    def __init__(self, directory: Path, count: int, first: int = 0, last: int = 40, slow: int = -1) -> None:
        super().__init__("processes.rank", directory, count, first, last, slow, jax=True)

    def wait_for_step(self, index: int, step: int, timeout: float = 90) -> None:
        def there() -> bool:
            seen = any(entry.get("step") == step for entry in own(self.directory, index))
            assert seen or self.processes[index].poll() is None, self.errors()
            return seen

        until(there, timeout, self.errors)


def own(directory: Path, index: int) -> list[dict[str, Any]]:
    """What the process noted by itself."""
    path = directory / f"own-{index}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    entries = []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except ValueError:
            assert line is lines[-1], "only the last line may be torn"
    return entries


def step_time(entries: list[dict[str, Any]]) -> float:
    """Seconds between the starts and ends of steps."""
    spent, began = 0, None
    for entry in entries:
        if entry["what"] == "start":
            began = entry["at"]
        elif entry["what"] == "end" and began is not None:
            spent += entry["at"] - began
            began = None
    return spent / 1e9


def traces(spans: list[Span]) -> set[str]:
    return {span.trace for span in spans}


def what_the_job_waited_for(directory: Path, count: int) -> None:
    """The journals of all ranks, against what they noted: steps begin on the last rank, for which the others wait."""
    account = account_of_ranks(RunDirectory(directory / "run"), spread=1_000_000)
    assert account.together
    noted = [own(directory, index) for index in range(count)]
    begins, ends, overs = (
        [[entry["at"] for entry in entries if entry["what"] == what] for entries in noted]
        for what in ("start", "end", "over")
    )
    opened = [[entry["opened"] for entry in entries if entry["what"] == "start"] for entries in noted]
    last_opened, last_begins, last_ends, last_overs = (
        [max(moments) for moments in zip(*each, strict=True)] for each in (opened, begins, ends, overs)
    )
    others = [sorted(moments)[-2] for moments in zip(*begins, strict=True)]
    seconds = account.totals().run.to_json()["seconds"]
    on_steps = (sum(last_ends) - sum(last_begins)) / 1e9
    first = (last_ends[0] - last_begins[0]) / 1e9  # some of it is start-up
    # A step begins between the moments noted before and in it, and is over between those noted in and behind it.
    assert on_steps - first - 0.05 < seconds["productive"] <= (sum(last_overs) - sum(last_opened)) / 1e9
    waited = {
        cause.rank: spent / 1e9 for cause, spent in account.costs.whole.items() if cause.category == DATA_LOADING_TIME
    }
    assert max(waited, key=waited.__getitem__) == count - 1
    lost = sum(last - max(other, end) for last, other, end in zip(last_begins[1:], others[1:], last_ends, strict=False))
    at_first = last_begins[0] - others[0]  # as much of this as the last rank was loading counts, too
    assert 0.9 * lost / 1e9 - 0.05 <= waited[count - 1] <= 1.1 * (lost + at_first) / 1e9 + 0.05


@pytest.mark.parametrize("count", [2, 4])
def test_the_leader_accounts_and_all_share_the_trace(tmp_path: Path, count: int) -> None:
    job = Job(tmp_path, count, last=40, slow=count - 1)
    report = job.end()
    assert report["steps"]["kept"] == 40 and report["attempts"] == 1
    seconds = report["seconds"]
    known = sum(sum(held.values()) if isinstance(held, dict) else held for held in seconds.values())
    assert round(known * 1e9) == round(report["elapsed_s"] * 1e9)
    on_steps = seconds["productive"] + seconds.get("program_startup", 0.0)
    assert on_steps >= 0.95 * step_time(own(tmp_path, count - 1))  # the job's steps begin when the last rank's do
    what_the_job_waited_for(tmp_path, count)
    processes = report["processes"]
    assert processes["count"] == count
    assert set(processes["paces"]) <= {str(index) for index in range(count)} and "0" in processes["paces"]

    # Long after the end all paces are there, and the one with the slow loader is the one that was waited for.
    whole = json.loads(
        warm.run(
            [sys.executable, "-m", "otel_goodput", "report", str(tmp_path), "--json"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
    )
    answer = whole["processes"]
    assert set(answer["paces"]) == {str(index) for index in range(count)}
    assert all(pace["steps"] == 40 for pace in answer["paces"].values())
    longest = whole["ranks"]["waits"][0]
    assert (longest["rank"], longest["category"]) == (count - 1, "data_loading") and longest["host"]
    assert answer["late"] is None and answer["straggler"] is None, "paces do not say it better"

    spans = read_spans(tmp_path / "run")
    assert len(traces(spans)) == 1
    steps = [span for span in spans if span.name == "step"]
    assert len(steps) == 40 * count
    assert {span.resource["goodput.process.index"] for span in steps} == set(range(count))
    (root,) = [span for span in spans if not span.parent]
    assert root.name == "attempt" and root.resource["goodput.process.index"] == 0
    assert [span.parent for span in spans if span.name == "job"] == [root.key] * count
    known_ids = {span.key for span in spans}
    assert all(not span.parent or span.parent in known_ids for span in spans)


@pytest.mark.parametrize("victim", [1, 0], ids=["follower", "leader"])
def test_killed_and_restarted(tmp_path: Path, victim: int) -> None:
    first = Job(tmp_path, 2, last=100_000)
    first.wait_for_step(0, 25)
    first.kill(victim)
    died, other = own(tmp_path, 0), own(tmp_path, 1)
    reached = min(max(one["step"] for one in each if one["what"] == "end") for each in (died, other))
    begun = max(one["step"] for one in (*died, *other) if one["what"] == "start")
    resume = 20
    report = Job(tmp_path, 2, first=resume, last=50).end()
    assert report["attempts"] == 2 and report["disruption_reasons"] == {"crash": 1}
    assert report["steps"]["kept"] == 50 and report["max_productive_step"] == 49
    # What was done again is lost; the step in progress counts where it had begun. A step is noted within its span.
    assert reached - resume + 1 <= report["steps"]["lost"] <= begun - resume + 2
    wasted = report["seconds"]["wasted_progress"]
    # Steps of the job are from the last rank's begin to the last one's end.
    entries = [entry for entry in (*died, *other) if entry.get("step", -1) >= resume]
    begins, ends = (
        {
            one["step"]: max(each["at"] for each in entries if each["step"] == one["step"] and each["what"] == what)
            for one in entries
            if one["what"] == what
        }
        for what in ("start", "end")
    )
    # The latest one may be the one in which the other died.
    whole = sorted(ends)[:-1]
    assert wasted >= 0.9 * sum(ends[step] - begins[step] for step in whole) / 1e9
    assert report["seconds"]["infrastructure_recovery"] > 0
    spans = read_spans(tmp_path / "run")
    assert len(traces(spans)) == 2
    known_ids = {span.key for span in spans}
    assert all(not span.parent or span.parent in known_ids for span in spans)
    # The survivor saw the collective fail and ended its job by that; what it exported itself may come twice.
    jobs = {
        (span.resource["goodput.attempt"], span.resource["goodput.process.index"]): span
        for span in spans
        if span.name == "job"
    }
    assert set(jobs) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert jobs[0, victim].interrupted and jobs[0, 1 - victim].status == ERROR
    assert not any(jobs[1, process].interrupted or jobs[1, process].status == ERROR for process in (0, 1))


def test_what_the_devices_of_several_processes_do_is_the_steps(tmp_path: Path) -> None:
    """Nobody waits for a device: the marks of each process tell when a step's sum over all processes was there."""
    with Lateness() as late:
        report = jobs.Job("processes.marked", tmp_path, 2, jax=True).end()
    assert report["clock"] == "device" and report["steps"]["kept"] == marked.STEPS
    for name in ("productive", "data_loading"):
        ours, theirs = report["seconds"][name], report["truth"][name]
        assert late.agree(ours * 1e9, theirs * 1e9, 0.05, wakes=2 * marked.STEPS), f"{name}: {report}; {late}"
