"""The logger for those who want no methods of Orbax wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import logging
from waits import until

from otel_goodput._integrations import orbax

from .test_orbax import RESTORE, SAVE, STATE, GatedArgs, Job, attribute, pytestmark

__all__ = ["pytestmark"]

# Orbax 0.6 has them one module deeper.
CompositeLogger = getattr(logging, "CompositeLogger", None) or logging.composite_logger.CompositeLogger
StandardLogger = getattr(logging, "StandardLogger", None) or logging.standard_logger.StandardLogger


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def logger(job: Job, *, leads: bool = True) -> Any:
    ours = orbax.checkpoint_logger(lambda: job.recorder.tracer, lambda: leads)
    return CompositeLogger(ours, StandardLogger())  # which takes only what Orbax knows as a logger


def test_saves_and_restores(job: Job) -> None:
    manager = job.manager(background=False, every=10, logger=logger(job))
    with job.recorder.job():
        job.steps(0)
        assert manager.save(0, args=ocp.args.StandardSave(STATE))
        assert job.at_risk() == 0
        assert not manager.save(1, args=ocp.args.StandardSave(STATE))
        manager.restore(0, args=ocp.args.StandardRestore(STATE))
        with job.recorder.checkpoint_restore(0):
            manager.restore(0, args=ocp.args.StandardRestore(STATE))
        categories = job.recorder.totals().run.categories
    (save,), restores = job.spans(SAVE), job.spans(RESTORE)
    assert (attribute(save, "step"), attribute(save, "blocking"), attribute(save, "checkpoint.durable")) == (
        0,
        None,
        True,
    )
    assert [attribute(span, "step") for span in restores] == [0, 0]
    assert categories[SAVE] == save.end_time - save.start_time > 0
    assert categories[RESTORE] == sum(span.end_time - span.start_time for span in restores) > 0


def test_a_commit_is_looked_for_in_the_storage(job: Job) -> None:
    manager = job.manager(gated=True, logger=logger(job))
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        (blocking,) = job.spans(SAVE)
        assert attribute(blocking, "checkpoint.durable") is False
        assert job.at_risk() > 0
        job.gates_of(manager)[0].open()
        until(lambda: len(job.spans(SAVE)) == 2)
        assert job.at_risk() == 0
    commit = job.spans(SAVE)[1]
    assert (attribute(commit, "step"), attribute(commit, "blocking"), attribute(commit, "checkpoint.durable")) == (
        0,
        False,
        True,
    )
    assert commit.start_time == blocking.end_time


def test_a_commit_that_is_not_there_at_the_next_save_has_failed(job: Job) -> None:
    manager = job.manager(gated=True, logger=logger(job))
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        job.gates_of(manager)[0].open(OSError("no space left"))
        with pytest.raises(OSError, match="no space left"):
            manager.wait_until_finished()
        job.steps(1)
        manager.save(1, args=GatedArgs(STATE))
        until(lambda: len(job.spans(SAVE)) == 3)
        (failed,) = [span for span in job.spans(SAVE) if attribute(span, "blocking") is False]
        assert (attribute(failed, "step"), attribute(failed, "interrupted")) == (0, True)
        assert attribute(failed, "checkpoint.durable") is False
        assert job.at_risk() > 0
        job.gates_of(manager)[1].open()
        until(lambda: job.at_risk() == 0)


def test_a_step_that_is_written_over_is_not_taken_for_the_new_one(job: Job) -> None:
    """Orbax removes it before it logs the save, also where the manager did not know of it."""
    manager, other = job.manager(gated=True, logger=logger(job)), job.manager()
    with job.recorder.job():
        job.steps(0)
        other.save(0, args=ocp.args.StandardSave(STATE))
        other.wait_until_finished()
        manager.save(0, args=GatedArgs(STATE))
        assert job.gates_of(manager)[0].begun.wait(30)
        assert job.at_risk() > 0
        job.gates_of(manager)[0].open()
        until(lambda: job.at_risk() == 0)


def test_within_the_users_own_phase(job: Job) -> None:
    manager = job.manager(gated=True, logger=logger(job))
    with job.recorder.job():
        job.steps(0)
        with job.recorder.checkpoint_save(0, durable=False):
            manager.save(0, args=GatedArgs(STATE))
        assert len(job.spans(SAVE)) == 1
        assert job.at_risk() > 0
        job.gates_of(manager)[0].open()
        until(lambda: job.at_risk() == 0)
        until(lambda: len(job.spans(SAVE)) == 2)


def test_nothing_counts_twice_with_the_automatic_hook(job: Job) -> None:
    job.install()
    manager = job.manager(background=False, logger=logger(job))
    with job.recorder.job():
        manager.save(0, args=ocp.args.StandardSave(STATE))
        manager.restore(0, args=ocp.args.StandardRestore(STATE))
    assert [len(job.spans(name)) for name in (SAVE, RESTORE)] == [1, 1]


def test_processes_that_do_not_account_do_not_look(job: Job) -> None:
    manager = job.manager(logger=logger(job, leads=False))
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=ocp.args.StandardSave(STATE))
        manager.wait_until_finished()
    (blocking,) = job.spans(SAVE)
    assert attribute(blocking, "checkpoint.durable") is False


def test_without_a_recorder_and_with_entries_of_any_kind(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "0")
    entries: list[Any] = ["text", None, {}, {"event_type": "save", "step": "x"}, {"event_type": "restore", "step": -1}]
    for find in (lambda: None, lambda: job.recorder.tracer):
        ours = orbax.checkpoint_logger(find)
        for entry in entries:
            ours.log_entry(entry)
    ours.log_entry({"event_type": "save", "step": 1, "checkpoint_manager_blocking_duration_secs": "long"})
    job.recorder.shutdown()
    ours.log_entry({"event_type": "save", "step": 2})
