"""The stages of Orbax's saves and restores: what the account has of them is what Orbax itself says."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from orbax.checkpoint import logging
from waits import until

from otel_goodput._integrations import orbax
from otel_goodput._integrations.orbax_log import ENTRIES
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView
from otel_goodput.semconv import CHECKPOINT_STAGES, CheckpointStage

from .test_orbax import RESTORE, SAVE, STATE, GatedArgs, Job, attribute, pytestmark

__all__ = ["pytestmark"]

AbstractLogger = logging.AbstractLogger
OF_ENTRY = {kind: (entry.total, *entry.stages) for kind, entry in ENTRIES.items()}


class Listener(AbstractLogger):  # type: ignore[misc]
    """A logger of the user's own, which keeps the entries."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def log_entry(self, entry: dict[str, Any], **_: Any) -> None:
        self.entries.append(entry)

    def lengths(self, kind: str) -> dict[str, list[float]]:
        """Seconds by name of the part."""
        mine = [entry for entry in self.entries if entry["event_type"] == kind]
        return {
            stage.name: seconds
            for stage in OF_ENTRY[kind]
            if (seconds := [entry[stage.seconds] for entry in mine if entry[stage.seconds] is not None])
        }


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def job(bare: Job) -> Job:
    bare.install()
    return bare


def stages(job: Job) -> Mapping[str, Any]:
    checkpoints: Mapping[str, Any] = job.recorder.totals().to_json().get("checkpoints", {})
    return checkpoints


def fits(stage_figures: Mapping[str, Any], lengths: list[float]) -> None:
    """The statistics are those of Orbax's own figures, to the ns that the account counts in."""
    assert stage_figures["count"] == len(lengths)
    near = {"abs": 2e-9, "rel": 1e-9}
    assert stage_figures["min_s"] == pytest.approx(max(0.0, min(lengths)), **near)
    assert stage_figures["mean_s"] == pytest.approx(statistics.fmean(lengths), **near)
    assert stage_figures["max_s"] == pytest.approx(max(lengths), **near)
    assert stage_figures["deviation_s"] == pytest.approx(statistics.stdev(lengths) if len(lengths) > 1 else 0.0, **near)


def parts(job: Job, name: str) -> list[ReadableSpan]:
    return [span for span in job.exporter.all() if attribute(span, "part.name") == name]


def save_some(job: Job, manager: Any, *numbers: int) -> None:
    for number in numbers:
        job.steps(number)
        assert manager.save(number, args=ocp.args.StandardSave(STATE))


@pytest.mark.parametrize("background", [False, True])
def test_saves_and_restores_have_the_lengths_that_orbax_logs(job: Job, background: bool) -> None:
    listener = Listener()
    manager = job.manager(background=background, logger=listener, options={"max_to_keep": 2})
    with job.recorder.job():
        save_some(job, manager, 0, 1, 2, 3, 4)
        manager.wait_until_finished()
        for number in (3, 4):
            manager.restore(number, args=ocp.args.StandardRestore(STATE))
        until(lambda: stages(job)["save"].get("delete_old", {"count": 0})["count"] == 3)
        recorded = stages(job)
    for kind in ("save", "restore"):
        for name, lengths in listener.lengths(kind).items():
            operation, stage = CHECKPOINT_STAGES[name]
            fits(recorded[operation][stage], lengths)
    assert set(recorded["restore"]) == {"total", "read"} and recorded["restore"]["read"]["count"] == 2
    assert ("commit" in recorded["save"]) is background
    if background:  # the blocking part, then the commit in the background
        commits = [span for span in job.spans(SAVE) if attribute(span, "blocking") is False]
        fits(recorded["save"]["commit"], [(span.end_time - span.start_time) / 1e9 for span in commits])
    assert 0 < recorded["save"]["delete_old"]["min_s"] < 60


@pytest.mark.parametrize("background", [False, True])
def test_old_checkpoints_that_a_thread_of_its_own_deletes(job: Job, background: bool) -> None:
    options = {"max_to_keep": 1, "enable_background_delete": True}
    manager = job.manager(background=background, options=options)
    with job.recorder.job():
        save_some(job, manager, 0, 1, 2)
        manager.wait_until_finished()
        until(lambda: len(parts(job, CheckpointStage.SAVE_DELETE_OLD)) == 2)
        assert stages(job)["save"]["delete_old"]["count"] == 2
    around = {span.context.span_id for span in job.spans(SAVE) if span.context is not None}
    parents = [span.parent for span in parts(job, CheckpointStage.SAVE_DELETE_OLD)]
    assert [parent is not None and parent.span_id in around for parent in parents] == [True, True]


def test_stages_are_parts_inside_of_the_span_of_their_save(job: Job) -> None:
    manager = job.manager(background=False, options={"max_to_keep": 1})
    with job.recorder.job():
        save_some(job, manager, 0, 1)
        manager.restore(1, args=ocp.args.StandardRestore(STATE))
    around = {attribute(span, "step"): span for span in job.spans(SAVE)}
    for name in (CheckpointStage.SAVE_WAIT, CheckpointStage.SAVE_COPY, CheckpointStage.SAVE_FIND_OLD):
        assert [attribute(span, "step") for span in parts(job, name)] == [0, 1]
        for span in parts(job, name):
            save = around[attribute(span, "step")]
            assert span.name == name and attribute(span, "phase") == "part"
            assert span.parent is not None and save.context is not None
            assert span.parent.span_id == save.context.span_id
            assert save.start_time <= span.start_time <= span.end_time <= save.end_time
    (wait, _), (copy, _) = parts(job, CheckpointStage.SAVE_WAIT), parts(job, CheckpointStage.SAVE_COPY)
    assert wait.end_time <= copy.start_time
    (deleted,) = parts(job, CheckpointStage.SAVE_DELETE_OLD)
    assert attribute(deleted, "step") == 1 and around[1].start_time <= deleted.start_time <= around[1].end_time
    ((restore,), (read,)) = job.spans(RESTORE), parts(job, CheckpointStage.RESTORE_READ)
    assert restore.start_time <= read.start_time <= read.end_time <= restore.end_time
    # The span of the phase shows the whole already.
    assert not parts(job, CheckpointStage.SAVE_TOTAL) and not parts(job, CheckpointStage.RESTORE_TOTAL)
    assert job.recorder.totals().run.categories[SAVE] == sum(
        span.end_time - span.start_time for span in around.values()
    )


def test_waiting_for_the_previous_save(job: Job) -> None:
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        opener = job.open_later(job.gates_of(manager)[0], saves=3)
        job.steps(1)
        manager.save(1, args=GatedArgs(STATE))
        opener.join()
        job.gates_of(manager)[1].open()
        until(lambda: stages(job)["save"].get("commit", {"count": 0})["count"] == 2)
        recorded = stages(job)["save"]
        assert recorded["wait_for_previous"]["count"] == 2
    first, second = (span.end_time - span.start_time for span in parts(job, CheckpointStage.SAVE_WAIT))
    assert first < second == round(recorded["wait_for_previous"]["max_s"] * 1e9)


def test_a_failed_commit_and_a_skipped_step_have_no_stages(job: Job) -> None:
    manager, other = job.manager(gated=True), job.manager("other", background=False, every=10)
    with job.recorder.job():
        job.steps(0)
        assert stages(job) == {}
        manager.save(0, args=GatedArgs(STATE))
        job.gates_of(manager)[0].open(OSError("no space left"))
        until(lambda: len(job.spans(SAVE)) == 2)
        with pytest.raises(OSError, match="no space left"):
            manager.wait_until_finished()
        assert "commit" not in stages(job)["save"] and stages(job)["save"]["total"]["count"] == 1
        assert other.save(0, args=ocp.args.StandardSave(STATE))
        assert not other.save(5, args=ocp.args.StandardSave(STATE))
        assert "commit" not in stages(job)["save"] and stages(job)["save"]["total"]["count"] == 2


def test_loggers_that_pass_an_entry_on_tell_it_once(job: Job) -> None:
    composite = getattr(logging, "CompositeLogger", None) or logging.composite_logger.CompositeLogger
    ours = orbax.checkpoint_logger(lambda: job.recorder.tracer)
    one, other = (
        job.manager("one", background=False, logger=Listener()),
        job.manager("other", background=False, logger=composite(Listener(), ours)),
    )
    with job.recorder.job():
        save_some(job, one, 0)
        save_some(job, other, 1)
        assert stages(job)["save"]["total"]["count"] == 2


def test_loggers_are_as_they_were_after_removal(bare: Job) -> None:
    before = dict(vars(Listener))
    remove = bare.install()
    manager = bare.manager(background=False, logger=Listener())
    with bare.recorder.job():
        save_some(bare, manager, 0)
        assert vars(Listener)["log_entry"] is not before["log_entry"]
        remove()
        assert dict(vars(Listener)) == before
        save_some(bare, manager, 1)
        assert stages(bare)["save"]["total"]["count"] == 1


def test_the_logger_tells_them_too(bare: Job) -> None:
    composite = getattr(logging, "CompositeLogger", None) or logging.composite_logger.CompositeLogger
    listener = Listener()
    ours = orbax.checkpoint_logger(lambda: bare.recorder.tracer)
    manager = bare.manager(logger=composite(ours, listener))
    with bare.recorder.job():
        save_some(bare, manager, 0, 1, 2)
        manager.wait_until_finished()
        manager.restore(2, args=ocp.args.StandardRestore(STATE))
        until(lambda: stages(bare)["save"].get("commit", {"count": 0})["count"] == 3)
        recorded = stages(bare)
    for kind in ("save", "restore"):
        for name, lengths in listener.lengths(kind).items():
            operation, stage = CHECKPOINT_STAGES[name]
            fits(recorded[operation][stage], lengths)


def test_an_emergency_restore_has_a_broadcast(bare: Job) -> None:
    """As Orbax's emergency manager, which needs several slices, fills the entry in."""
    from orbax.checkpoint.logging import step_statistics

    logger = orbax.checkpoint_logger(lambda: bare.recorder.tracer)
    entry = step_statistics.EmergencyRestoreStepStatistics(
        step=7,
        checkpoint_manager_start_time=100.0,
        checkpointer_start_time=100.5,
        checkpointer_duration_secs=2.0,
        broadcast_start_time=102.5,
        broadcast_duration_secs=1.0,
        checkpoint_manager_duration_secs=4.0,
    )
    with bare.recorder.job():
        logger.log_entry(vars(entry))
        recorded = stages(bare)["emergency_restore"]
    assert {stage: of_stage["mean_s"] for stage, of_stage in recorded.items()} == {
        "total": 4.0,
        "read": 2.0,
        "broadcast": 1.0,
    }
    (restore,), (broadcast,) = bare.spans(RESTORE), parts(bare, CheckpointStage.EMERGENCY_BROADCAST)
    assert broadcast.start_time - restore.start_time == 2_500_000_000


def test_they_outlast_the_process_and_add_up_over_attempts(tmp_path: Path) -> None:
    for first in (0, 3):
        job = Job(tmp_path)
        job.install()
        try:
            manager = job.manager(background=False)
            with job.recorder.job():
                save_some(job, manager, first, first + 1, first + 2)
                known = stages(job)
        finally:
            job.close()
    run = RunDirectory(tmp_path / "runs" / "run")
    report = RecordedRun(run).report()
    assert report.to_json()["checkpoints"] == known
    assert known["save"]["total"]["count"] == 6
    assert RecordedRun(run).report(at=report.totals.at).to_json()["checkpoints"] == known  # replayed
    session = RunView.open(RecordedRun(run))
    assert dict(session.overview.stages) == dict(report.totals.stages)
    text = str(report)
    assert "save blocking copy" in text and "deviation" in text and "slowest process" not in text


# What entries of versions to come, or of somebody's own managers, may hold.
odd = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.integers(), st.floats(), st.lists(st.integers(), max_size=1)
)
FIELDS = sorted({field for stages_of_entry in OF_ENTRY.values() for stage in stages_of_entry for field in stage[1:]})


@settings(
    max_examples=2 * settings.default.max_examples // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    entry=st.dictionaries(st.sampled_from([*FIELDS, "step", "synchronous", "directory"]), odd),
    kind=st.sampled_from([*OF_ENTRY, "other"]),
)
def test_any_entry_is_taken_or_left(bare: Job, entry: dict[str, Any], kind: str) -> None:
    logger = orbax.checkpoint_logger(lambda: bare.recorder.tracer, lambda: False)
    with bare.recorder.job():
        logger.log_entry({**entry, "event_type": kind})
    for of_operation in stages(bare).values():
        for one in of_operation.values():
            assert 0 <= one["min_s"] <= one["mean_s"] <= one["max_s"] < 400 * 86400


def test_the_statistics_are_those_of_googles_calculator(job: Job) -> None:
    """A witness: the same entries, by another's hand. It has the same sample deviation."""
    calculator = pytest.importorskip("ml_goodput_measurement.src.checkpoint_badput_calculator")
    listener = Listener()
    manager = job.manager(logger=listener)
    with job.recorder.job():
        save_some(job, manager, *range(6))
        manager.wait_until_finished()
        for number in range(4):
            manager.restore(number, args=ocp.args.StandardRestore(STATE))
        recorded = stages(job)
    theirs = calculator.CheckpointBadputCalculator(calculator.CheckpointLoggerOptions(use_goodput_logger=True))
    theirs.entries = listener.entries
    saves = theirs.calculate_save_operation_checkpoint_manager_blocking_time()
    restores = theirs.calculate_restore_operation_checkpoint_manager_blocking_time()
    figures = {"min_s": "minimum", "mean_s": "average", "max_s": "maximum", "deviation_s": "standard_deviation"}
    for entry, operation, named in (
        (saves, "save", ("total", "checkpoint_manager_blocking")),
        (saves, "save", ("blocking_copy", "checkpointer_blocking")),
        (saves, "save", ("wait_for_previous", "wait_for_prev")),
        (saves, "save", ("find_old", "get_old_steps")),
        (restores, "restore", ("total", "checkpoint_manager")),
        (restores, "restore", ("read", "restore")),
    ):
        for ours, words in figures.items():
            known = getattr(entry, f"{words}_{named[1]}_time")
            assert recorded[operation][named[0]][ours] == pytest.approx(known, abs=2e-9, rel=1e-9), (named, ours)
