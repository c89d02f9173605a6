"""Every way for a process to go: in its first moments, in its last ones, by signals, by itself, by an exception."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .exported import ERROR, check_run, check_tree, job_identity, read_spans
from .runner import Run

pytestmark = pytest.mark.crash


def test_killed_while_it_configures(tmp_path: Path) -> None:
    """At every ms of the first moments, again and again on one run; then the run goes on as if nothing had been."""

    def one(number: int) -> None:
        run = Run(tmp_path / str(number))
        run.base.mkdir()
        for kill in range(4):
            process = run.start(seed=kill)
            process.wait_for("a")
            time.sleep((number + 3 * kill) / 1000)
            run.kill(process)
        run.live(seed=9, steps=10)
        account = run.check(run.report_of_command())
        assert account.attempts == sum(bool(life.edges) for life in run.lives)
        check_tree(read_spans(run.folder))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))


def test_killed_while_it_shuts_down(tmp_path: Path) -> None:
    """After the job's end nothing is lost any more: not an ns of the account, not a span of the trace."""

    def one(number: int) -> None:
        run = Run(tmp_path / str(number))
        run.base.mkdir()
        process = run.start(seed=number, steps=20, ids=True)
        process.wait_for("s")
        time.sleep(number * 0.002)
        process.popen.send_signal(signal.SIGKILL)
        assert process.end() in (0, -signal.SIGKILL)
        run.mark_dead(process, dead=time.time_ns(), ending="restart")
        report = run.report()
        run.check(report)
        assert report["ended"]
        run.live(seed=number + 50, steps=80, ids=True)
        run.check(run.report())
        check_run(read_spans(run.folder), run.run_id, run.lives)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(8)))


def test_terminated(tmp_path: Path) -> None:
    """Nobody handles SIGTERM: Python dies of it without a word."""
    run = Run(tmp_path, environment={"OTEL_GOODPUT_INTEGRATIONS": "none"})
    process = run.start(seed=1, ids=True)
    process.wait_for("j")
    time.sleep(0.3)
    run.kill(process, signal.SIGTERM)
    run.check(run.report())
    run.live(seed=2, steps=100, ids=True)
    run.check(run.report_of_command())
    check_run(read_spans(run.folder), run.run_id, run.lives)


def test_left_without_goodbye(tmp_path: Path) -> None:
    """os._exit(): no exit handler runs."""
    run = Run(tmp_path)
    process = run.start(seed=3, steps=30, ending="leave", ids=True)
    assert process.end() == 3
    run.mark_dead(process, dead=time.time_ns())
    run.check(run.report())
    run.live(seed=4, steps=100, ids=True)
    run.check(run.report_of_command())
    check_run(read_spans(run.folder), run.run_id, run.lives)


def test_an_exception_leaves_the_job(tmp_path: Path) -> None:
    """It propagates untouched; the attempt has ended, but not well."""
    run = Run(tmp_path)
    process = run.live(seed=5, steps=30, ending="raise", status=1, ids=True)
    errors = process.errors.read_text()
    assert errors.rstrip().endswith("RuntimeError: the loss is not a number")
    assert "otel_goodput" not in errors.split("Traceback", 1)[0]
    report = run.report()
    run.check(report)
    assert report["ended"]
    run.live(seed=6, steps=10, ids=True)
    account = run.check(run.report_of_command())
    assert account.disruptions.get("crash") == 1
    spans = read_spans(run.folder)
    check_run(spans, run.run_id, run.lives)
    job = check_tree(spans)[job_identity(run.run_id, 0)]
    assert job.status == ERROR and job.attributes["error.type"] == "RuntimeError"
    assert not job.interrupted


def test_an_exit_from_within_the_job_is_a_clean_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.live(seed=7, steps=30, ending="exit", ids=True)
    run.check(run.report())
    run.live(seed=8, steps=30, ids=True)
    account = run.check(run.report_of_command())
    assert account.disruptions.get("restart") == 1
    job = check_tree(read_spans(run.folder))[job_identity(run.run_id, 0)]
    assert job.status != ERROR and not job.interrupted


def test_interrupted_from_the_keyboard(tmp_path: Path) -> None:
    """SIGINT ends the job by KeyboardInterrupt; the next attempt's disruption is put down to a signal."""
    run = Run(tmp_path)
    process = run.start(seed=9, ids=True)
    process.wait_for("j")
    time.sleep(0.3)
    process.popen.send_signal(signal.SIGINT)
    assert process.end() == -signal.SIGINT
    assert process.errors.read_text().rstrip().endswith("KeyboardInterrupt")
    first = run.report()
    assert first["ended"] and first["in_flight_step"] is None
    run.mark_dead(process, dead=None)
    run.live(seed=10, steps=60, ids=True)
    report = run.report()
    assert report["disruption_reasons"].get("signal") == 1 and "crash" not in report["disruption_reasons"]
    spans = check_tree(read_spans(run.folder))
    job = spans[job_identity(run.run_id, 0)]
    assert job.status == ERROR and job.attributes["error.type"] == "KeyboardInterrupt"
