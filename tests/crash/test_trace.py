"""The spans that a killed job did not export are exported by the next attempt, or by `otel-goodput recover`."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .exported import check_run, check_tree, job_identity, read_spans
from .runner import Run, delays

pytestmark = pytest.mark.crash

DELAYS_MS = ("20", "5000")  # of the exporter: it runs all the time, or never before the kill


def killed_run(
    base: Path, seed: int, kills: int, delay: str, least: float = 0.05, most: float = 0.6, steps: int = 120
) -> Run:
    """A run killed `kills` times, its last life well ended after so many steps."""
    base.mkdir()
    run = Run(base, f"run {seed}", environment={"OTEL_BSP_SCHEDULE_DELAY": delay})
    style = random.Random(seed).choice(["iterator", "with"])
    for number, moment in enumerate(delays(seed, kills, least, most)):
        run.live_and_die(moment, seed=seed * 10 + number, style=style, ids=True)
    run.live(seed=seed * 10 + kills, style=style, ids=True, steps=steps)
    return run


@pytest.mark.parametrize("delay", DELAYS_MS)
@pytest.mark.parametrize("kills", [1, 3])
def test_the_next_attempt_completes_the_trace(kills: int, delay: str, tmp_path: Path) -> None:
    def one(seed: int) -> None:
        run = killed_run(tmp_path / str(seed), seed, kills, delay)
        check_run(read_spans(run.folder), run.run_id, run.lives)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(kills * 10, kills * 10 + 4 - kills // 2)))


def test_a_short_attempt_still_exports_what_it_owes(tmp_path: Path) -> None:
    def one(seed: int) -> None:
        run = killed_run(tmp_path / str(seed), seed, 1, "5000", 0.0, 0.1, steps=3 * seed)
        check_run(read_spans(run.folder), run.run_id, run.lives)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))


def test_attempts_that_die_at_once_leave_their_spans_to_the_one_that_lives(tmp_path: Path) -> None:
    """A crash loop: no attempt lives long enough to export the spans of the one before it."""
    run = killed_run(tmp_path / "run", 3, 3, "5000", 0.0, 0.03)
    check_run(read_spans(run.folder), run.run_id, run.lives)


@pytest.mark.parametrize("delay", DELAYS_MS)
def test_recover_completes_the_trace_without_a_restart(delay: str, tmp_path: Path) -> None:
    run = Run(tmp_path, environment={"OTEL_BSP_SCHEDULE_DELAY": delay})
    run.live_and_die(0.4, seed=4, ids=True)
    completed = run.command("recover", str(run.directory))
    assert "exported through file" in completed.stdout
    spans = read_spans(run.folder)
    check_run(spans, run.run_id, run.lives)

    again = run.command("recover", str(run.directory))
    assert "already recovered" in again.stdout and len(read_spans(run.folder)) == len(spans), "once is enough"
    run.command("recover", str(run.directory), "--again")
    check_run(read_spans(run.folder), run.run_id, run.lives)


def test_a_restart_after_recover_agrees_with_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.live_and_die(0.3, seed=5, ids=True)
    run.command("recover", str(run.directory))
    run.live(seed=6, ids=True, steps=120)
    check_run(read_spans(run.folder), run.run_id, run.lives)


def test_recover_of_several_deaths(tmp_path: Path) -> None:
    """The second attempt dies before it exports the spans of the first one; nobody starts a third."""
    run = Run(tmp_path, environment={"OTEL_BSP_SCHEDULE_DELAY": "5000"})
    run.live_and_die(0.1, seed=7, ids=True)
    run.live_and_die(0.0, seed=8, ids=True)
    run.command("recover", str(run.directory))
    check_run(read_spans(run.folder), run.run_id, run.lives)


def test_recover_leaves_a_living_job_alone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    process = run.start(seed=9)
    process.wait_for("j")
    completed = run.command("recover", str(run.directory))
    assert "is still running" in completed.stdout
    run.kill(process)


def test_own_traces_survive_the_process(tmp_path: Path) -> None:
    """With a trace for each step, what the next attempt closes stays in the step's own trace."""
    run = Run(tmp_path, environment={"OTEL_GOODPUT_STEP_TRACES": "own", "OTEL_BSP_SCHEDULE_DELAY": "5000"})
    run.live_and_die(0.3, seed=10, style="with", ids=True)
    run.live(seed=11, style="with", ids=True, steps=120)
    spans = read_spans(run.folder)
    by_id = check_tree(spans)
    assert job_identity(run.run_id, 0) in by_id
    steps = [span for span in spans if span.name == "step"]
    job = job_identity(run.run_id, 0)
    assert all(span.trace != job[0] for span in steps), "each step is in its own trace"
    traces = [span.trace for span in steps]
    assert len(set(traces)) == len(
        {(span.attributes["goodput.step"], span.resource["goodput.attempt"]) for span in steps}
    )
    loads = [span for span in spans if span.name == "data_loading"]
    between = [span for span in loads if not span.parent]
    stepped = {(span.attributes["goodput.step"], span.resource["goodput.attempt"]): span.trace for span in steps}
    loaded = {(span.attributes["goodput.step"], span.resource["goodput.attempt"]): span.trace for span in between}
    assert loaded.keys() & stepped.keys() and job[0] not in loaded.values()
    assert {at: loaded[at] for at in loaded.keys() & stepped.keys()}.items() <= stepped.items()
    linked = {job, job_identity(run.run_id, 1)}
    assert all(set(span.links) & linked for span in (*steps, *between)), "linked to the job"
