"""What the attempts of a run tell together of how they were started, from the facts that each left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_goodput import Recorder, open_run
from otel_goodput._journal.facts import Facts, Startups, summed
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.hooks import Hooks
from otel_goodput.reports.run import FollowedRun, RecordedRun

NS = 10**9


def facts(attempt: int, scheduling: dict[str, float] | None = None, **resource: Any) -> Facts:
    named = {f"k8s.{name.replace('_', '.')}": value for name, value in resource.items()}
    return Facts(attempt, 0, 0, "", named, {}, {}, {}, {}, {}, scheduling or {}, {})


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        (facts(0, pod_name="a"), facts(1, pod_name="b"), 1),
        (facts(0, pod_name="a", node_name="n"), facts(1, pod_name="a", node_name="n"), 0),
        (facts(0, pod_name="a", node_name="n"), facts(1, pod_name="a", node_name="m"), 1),
        (facts(0, pod_name="a", pod_uid="1"), facts(1, pod_name="a", pod_uid="2"), 1),
        (facts(0, pod_name="a", pod_uid="1", node_name="n"), facts(1, {"queued": 3.0}, pod_uid="1", node_name="m"), 0),
        (facts(0, pod_name="a", pod_uid="1"), facts(1, pod_name="b"), 1),
        # A pod of a StatefulSet keeps its name: that it waited for a node tells that it is another one.
        (facts(0, {"queued": 3.0}, pod_name="a"), facts(1, {"queued": 0.0, "program_start": 1.0}, pod_name="a"), 1),
        (facts(0, {"queued": 3.0}, pod_name="a"), facts(1, {"container_start": 2.0}, pod_name="a"), 0),
        (facts(0, {"queued": 3.0}), facts(1, {"queued": 3.0}), 1),
        (facts(0, {"queued": 3.0}), facts(1), 0),
        (facts(0), facts(1, pod_name="b"), 0),
    ],
)
def test_when_a_run_was_placed_again(before: Facts, after: Facts, again: int) -> None:
    assert summed([before, after]).reschedules == again


def test_outside_of_kubernetes_there_is_no_such_section() -> None:
    assert summed([facts(0), facts(1)]).to_json() == summed([]).to_json() == {}


def test_waits_of_the_first_attempt_are_not_mixed_with_later_ones() -> None:
    startups = summed([facts(0, {"queued": 100.0}), facts(1, {"queued": 2.0}), facts(3, {"queued": 3.0, "odd": 9.0})])
    assert startups.to_json() == {
        "scheduling": {"reschedules": 2, "first_s": {"queued": 100.0}, "later_s": {"queued": 5.0}}
    }


def test_an_attempt_without_facts_is_passed_over() -> None:
    """The first one left none: what the second waited is not the first one's."""
    startups = summed([facts(1, {"queued": 2.0}, pod_name="a"), facts(4, pod_name="a"), facts(5, pod_name="b")])
    assert (startups.reschedules, startups.first, startups.later) == (1, {}, {"queued": 2.0})


# --- of real runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Runs an attempt in a pod of a name, with waits and hits of the cache, and returns the run's folder."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")

    def run(pod: str, waits: dict[str, int], hits: int = 0, *, fails: bool = True) -> Path:
        monkeypatch.setenv("POD_NAME", pod)
        recorder = Recorder("job", run_id="run", directory=tmp_path, exporters="none", integrations="none")
        hooks: Hooks = recorder.tracer.hooks  # type: ignore[union-attr]
        hooks.waits = waits
        for _ in range(hits):
            hooks.compile_cache.add(hit=True)
            hooks.compile_cache.save(1.5)
        if hits:
            hooks.compile_cache.add(hit=False)
        try:
            with recorder.job(), recorder.step(0):
                if fails:
                    raise RuntimeError("a device is gone")
        except RuntimeError:
            pass
        recorder.shutdown()
        assert recorder.path is not None
        return recorder.path

    yield run


def test_a_report_tells(attempt: Callable[..., Path]) -> None:
    attempt("a", {"queued": 90 * NS, "container_start": 30 * NS})
    between = time.time()
    attempt("b", {"queued": 5 * NS}, hits=2)
    attempt("b", {"container_start": NS}, hits=1)
    folder = attempt("c", {"queued": 5 * NS, "container_start": NS}, fails=False)
    run = open_run(folder)
    fields = run.report().to_json()
    assert fields["scheduling"] == {
        "reschedules": 2,
        "first_s": {"queued": 90.0, "container_start": 30.0},
        "later_s": {"queued": 10.0, "container_start": 2.0},
    }
    assert fields["compile_cache"] == {"hits": 3, "misses": 2, "saved_s": 4.5}
    text = str(run.report()).splitlines()
    assert [line for line in text if "waited" in line or "resched" in line or "compilation cache" in line] == [
        "  scheduling  attempt 1 waited 2 min 00 s: queued 1 min 30 s, container start 30.0 s",
        "              rescheduled 2 times",
        "              later attempts waited 12.0 s: queued 10.0 s, container start 2.0 s",
        "  compilation cache  3 hits, 2 misses; saved 4.5 s of compilation",
    ]
    then = run.report(at=between).to_json()
    assert then["scheduling"]["reschedules"] == 0 and "compile_cache" not in then
    followed = FollowedRun(RunDirectory(folder))
    assert followed.report().to_json()["scheduling"] == fields["scheduling"]


def test_damaged_facts_cost_only_what_they_tell(attempt: Callable[..., Path]) -> None:
    for pod in "abc":
        folder = attempt(pod, {"queued": NS})
    run = RunDirectory(folder)
    run.file("facts", 1, 0).write_bytes(b'{"format": 1, "attempt": 1, "pro')
    assert summed(RecordedRun(run).all_facts()).reschedules == 1
    run.file("facts", 0, 0).unlink()
    assert summed(RecordedRun(run).all_facts()) == Startups(0, {}, {"queued": 1.0})
