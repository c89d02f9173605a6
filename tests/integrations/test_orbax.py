"""Orbax seen by itself: real managers, real handlers, real directories.

Longer than other files: it goes through Orbax's managers and checkpointers, one after the other.
"""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from exported import Spans
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode
from waits import until

from otel_goodput import Recorder
from otel_goodput._integrations import orbax
from otel_goodput._integrations.commits import Commit, promise_of
from otel_goodput._recording.contexts import SaveContext

# Orbax 0.6 leaves the event loops of its threads open, for the garbage collector to find.
pytestmark = [
    pytest.mark.jax,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LEAKS = metadata.version("orbax-checkpoint").startswith("0.6.")

SAVE, RESTORE = "checkpoint_save", "checkpoint_restore"
STATE = {"weights": np.arange(8.0)}
LONG = 30.0  # seconds; nothing here takes so long


class Gate:
    """A commit operation that lasts until a test ends it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()
        self.error: Exception | None = None

    def result(self, timeout: float | None = None) -> None:
        self.begun.set()
        assert self.end.wait(LONG)
        if self.error is not None:
            raise self.error

    def open(self, error: Exception | None = None) -> None:
        self.error = error
        self.end.set()


class GatedHandler(ocp.StandardCheckpointHandler):  # type: ignore[misc]
    """Orbax's standard handler, with a gate before the end of every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[Gate] = []

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        commits = await super().async_save(directory, *args, **kwargs)
        self.gates.append(Gate())
        return [*(commits or []), self.gates[-1]]


@ocp.args.register_with_handler(GatedHandler, for_save=True, for_restore=True)
class GatedArgs(ocp.args.StandardSave):  # type: ignore[misc]
    pass


class Starts(SpanProcessor):
    """The spans that have begun."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.names.append(span.name)


class Job:
    """A recorder, the spans it exported, and managers that save in its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exporter = Spans()
        self.starts = Starts()
        self.recorder = Recorder(
            "orbax",
            run_id="run",
            directory=path / "runs",
            exporters="none",
            integrations="none",
            span_processors=[self.exporter.processor, self.starts],
        )
        self.gates: list[Gate] = []
        self.managers: list[Any] = []
        self.removers: list[Callable[[], None]] = []

    def install(self) -> Callable[[], None]:
        assert self.recorder.tracer is not None
        remove = orbax.install(self.recorder.tracer)
        assert remove is not None
        self.removers.append(remove)
        return remove

    def manager(self, name: str = "checkpoints", *, background: bool = True, gated: bool = False, **more: Any) -> Any:
        handler = GatedHandler() if gated else None
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=background, save_interval_steps=more.pop("every", 1), **more.pop("options", {})
        )
        made = ocp.CheckpointManager(self.path / name, options=options, item_handlers=handler, **more)
        self.managers.append((made, handler))
        return made

    def gates_of(self, manager: Any) -> list[Gate]:
        return next(handler.gates for made, handler in self.managers if made is manager)

    def steps(self, *numbers: int) -> None:
        for number in numbers:
            with self.recorder.step(number):
                pass

    def open_later(self, gate: Gate, saves: int) -> threading.Thread:
        """Open the gate as soon as so many saves have begun; returns the thread that does it."""
        ready = partial(until, lambda: self.starts.names.count(SAVE) == saves)
        thread = threading.Thread(target=lambda: (ready(), gate.open()))
        thread.start()
        return thread

    def spans(self, name: str) -> list[ReadableSpan]:
        if self.recorder.tracer is not None:
            self.recorder.tracer.emitter.catch_up()  # else in the background, soon
        return self.exporter.named(name)

    def at_risk(self) -> int:
        until(lambda: self.recorder.totals().pending == 0)  # what is on the device is not at risk yet
        return self.recorder.totals().at_risk

    def close(self) -> None:
        for manager, handler in self.managers:
            for gate in handler.gates if handler is not None else ():
                gate.end.set()
            try:
                manager.close()
            except Exception as error:  # what failed here has been looked at by the test
                print(f"closing: {error!r}")
        for remove in self.removers:
            remove()
        self.recorder.shutdown()
        self.managers.clear()
        if LEAKS:
            gc.collect()


@pytest.fixture(autouse=True)
def _orbax_as_it_was() -> Iterator[None]:
    before = [(each, dict(vars(each))) for each in (ocp.CheckpointManager, ocp.AsyncCheckpointer)]
    yield
    for each, members in before:
        for name, member in members.items():
            if vars(each).get(name) is not member:
                setattr(each, name, member)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def job(bare: Job) -> Job:
    bare.install()
    return bare


def attribute(span: ReadableSpan, key: str) -> Any:
    return (span.attributes or {}).get(f"goodput.{key}")


def exceptions(span: ReadableSpan) -> list[Any]:
    return [event.attributes["exception.message"] for event in span.events if event.name == "exception"]


def test_the_methods_are_as_they_were_after_removal(bare: Job) -> None:
    before = [dict(vars(each)) for each in (ocp.CheckpointManager, ocp.AsyncCheckpointer)]
    remove = bare.install()
    assert bare.install() == remove
    assert vars(ocp.CheckpointManager)["save"] is not before[0]["save"]
    assert ocp.CheckpointManager.save.__doc__ == before[0]["save"].__doc__
    remove()
    remove()
    assert [dict(vars(each)) for each in (ocp.CheckpointManager, ocp.AsyncCheckpointer)] == before
    manager = bare.manager(background=False)
    assert manager.save(1, args=ocp.args.StandardSave(STATE))
    assert not bare.spans(SAVE)


def test_somebody_elses_wrapper_stays(bare: Job) -> None:
    remove = bare.install()
    ours = ocp.CheckpointManager.save

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    ocp.CheckpointManager.save = theirs
    remove()
    assert ocp.CheckpointManager.save is theirs
    assert bare.manager(background=False).save(1, args=ocp.args.StandardSave(STATE))
    assert not bare.spans(SAVE)


def test_a_synchronous_save_is_durable_when_it_is_over(job: Job) -> None:
    with job.recorder.job():
        job.steps(0, 1, 2)
        assert job.at_risk() > 0
        assert job.manager(background=False).save(2, args=ocp.args.StandardSave(STATE))
        assert job.at_risk() == 0
    (span,) = job.spans(SAVE)
    assert (attribute(span, "step"), attribute(span, "blocking"), attribute(span, "checkpoint.durable")) == (
        2,
        None,
        True,
    )
    assert job.recorder.totals().run.categories["checkpoint_save"] == span.end_time - span.start_time


def test_an_asynchronous_save_is_durable_when_its_commit_is_over(job: Job) -> None:
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0, 1)
        assert manager.save(1, args=GatedArgs(STATE))
        (gate,) = job.gates_of(manager)
        assert gate.begun.wait(LONG)
        (blocking,) = job.spans(SAVE)
        assert (attribute(blocking, "step"), attribute(blocking, "checkpoint.durable")) == (1, False)
        risk = job.at_risk()
        assert risk > 0
        gate.open()
        until(lambda: len(job.spans(SAVE)) == 2)  # by itself: nobody waits
        assert job.at_risk() == 0
        saving = job.recorder.totals().run.categories["checkpoint_save"]
        assert saving == blocking.end_time - blocking.start_time
    commit = job.spans(SAVE)[1]
    assert (attribute(commit, "step"), attribute(commit, "blocking"), attribute(commit, "checkpoint.durable")) == (
        1,
        False,
        True,
    )
    assert commit.parent is not None and blocking.context is not None
    assert commit.parent.span_id == blocking.context.span_id
    assert commit.start_time <= blocking.end_time < commit.end_time
    assert commit.status.status_code is StatusCode.UNSET


def test_what_waits_for_a_commit_is_blocked_by_it(job: Job) -> None:
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        opener = job.open_later(job.gates_of(manager)[0], saves=3)
        manager.wait_until_finished()
        opener.join()
        assert job.at_risk() == 0
        manager.wait_until_finished()  # nothing to wait for
    spans = job.spans(SAVE)
    assert [attribute(span, "blocking") for span in spans] == [None, False, None]
    assert [attribute(span, "checkpoint.durable") for span in spans] == [False, True, True]
    assert spans[2].start_time < spans[1].end_time <= spans[2].end_time


def test_a_failed_commit_is_not_durable(job: Job) -> None:
    manager = job.manager(gated=True)
    failure = OSError("no space left")
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        job.gates_of(manager)[0].open(failure)
        until(lambda: len(job.spans(SAVE)) == 2)
        commit = job.spans(SAVE)[1]
        assert exceptions(commit) == ["no space left"]
        assert commit.status.status_code is StatusCode.ERROR
        assert attribute(commit, "checkpoint.durable") is False
        assert (commit.attributes or {})["error.type"] == "OSError"
        with pytest.raises(OSError, match="no space left") as raised:
            manager.wait_until_finished()
        assert raised.value is failure
        assert job.at_risk() > 0
        job.steps(1)
        manager.save(1, args=GatedArgs(STATE))
        job.gates_of(manager)[1].open()
        until(lambda: job.at_risk() == 0)


def test_a_removed_directory_fails_the_commit(job: Job) -> None:
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        assert job.gates_of(manager)[0].begun.wait(LONG)
        shutil.rmtree(job.path / "checkpoints")
        job.gates_of(manager)[0].open()
        until(lambda: len(job.spans(SAVE)) == 2)
        assert len(exceptions(job.spans(SAVE)[1])) == 1
        assert job.at_risk() > 0


def test_an_error_that_somebody_else_took_is_seen(job: Job) -> None:
    """``check_for_errors`` tells an error once: Orbax's own finalizing thread may then believe that all is well."""
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        job.gates_of(manager)[0].open(OSError("no space left"))
        with suppress(OSError):
            until(lambda: manager.check_for_errors() or len(job.spans(SAVE)) == 2)
        until(lambda: len(job.spans(SAVE)) == 2)
        assert exceptions(job.spans(SAVE)[1]) == ["no space left"]
        assert job.at_risk() > 0


def test_a_commit_is_over_when_all_who_ask_are_back(job: Job) -> None:
    tracer = job.recorder.tracer
    assert tracer is not None
    failure = OSError("no space left")
    interrupt = KeyboardInterrupt()
    stories: list[tuple[list[tuple[BaseException | None, bool]], bool | None]] = [
        ([(None, True)], True),
        ([(None, True), (None, True), (None, False)], True),
        ([(None, True), (failure, False)], False),  # the other one got the error
        ([(failure, True), (None, True)], False),
        ([(None, False), (interrupt, True)], None),
        ([(interrupt, True), (None, True)], True),
    ]
    for answers, kept in stories:
        with job.recorder.checkpoint_save(0, durable=False):
            span = trace.get_current_span()
            promise = promise_of(tracer, span)
            promise.begin(span)
            commit = Commit(tracer, span, promise, 0, [job])
        assert commit.of(job) and not commit.of(tracer)
        for _ in answers:
            commit.ask()
        for error, over in answers:
            commit.answer(error, over)
        assert (commit.kept if commit.decided.is_set() else None) == kept, answers


def test_who_was_interrupted_before_asking_does_not_keep_a_commit_open(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: SaveContext) -> None:
        raise KeyboardInterrupt

    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        with monkeypatch.context() as context:
            context.setattr(SaveContext, "__enter__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.wait_until_finished()
        job.gates_of(manager)[0].open()
        manager.wait_until_finished()
        until(lambda: job.at_risk() == 0)
    (commit,) = [span for span in job.spans(SAVE) if attribute(span, "blocking") is False]
    assert attribute(commit, "checkpoint.durable") is True and attribute(commit, "interrupted") is None


def test_the_next_save_waits_for_the_one_before(job: Job) -> None:
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        opener = job.open_later(job.gates_of(manager)[0], saves=3)
        job.steps(1)
        manager.save(1, args=GatedArgs(STATE))
        opener.join()
        assert job.at_risk() > 0  # that of step 1
        job.gates_of(manager)[1].open()
        until(lambda: len(job.spans(SAVE)) == 4)
        assert job.at_risk() == 0
    spans = job.spans(SAVE)
    listed = [(attribute(span, "step"), attribute(span, "blocking")) for span in spans]
    assert listed == [(0, None), (0, False), (1, None), (1, False)]
    assert spans[2].start_time < spans[1].end_time < spans[2].end_time


def test_a_save_that_is_skipped_leaves_no_span(job: Job) -> None:
    manager = job.manager(background=False, every=10)
    with job.recorder.job():
        job.steps(0)
        assert manager.save(0, args=ocp.args.StandardSave(STATE))
        job.steps(1)
        assert manager.save(1, args=ocp.args.StandardSave(STATE)) is False
        assert job.at_risk() > 0
    assert [attribute(span, "step") for span in job.spans(SAVE)] == [0]


def test_a_save_that_fails_is_seen_and_its_error_passes(job: Job) -> None:
    manager = job.manager(background=False)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=ocp.args.StandardSave(STATE))
        job.steps(1)
        with pytest.raises(ValueError, match="already exists"):
            manager.save(0, args=ocp.args.StandardSave(STATE), force=True)
        with pytest.raises(ValueError, match="Must provide"):
            manager.save(1)
        assert job.at_risk() > 0
    first, second = job.spans(SAVE)
    assert attribute(first, "checkpoint.durable") is True
    assert attribute(second, "checkpoint.durable") is False
    assert second.status.status_code is StatusCode.ERROR
    assert "already exists" in exceptions(second)[0]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("between", ["", "serialize"])
def test_within_the_users_own_phase_there_is_no_second_one(job: Job, durable: bool, between: str) -> None:
    """Whatever the phase was opened with, it is durable when the commit is known: Orbax knows better."""
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        inner = job.recorder.custom(between) if between else nullcontext()
        with job.recorder.checkpoint_save(0, durable=durable), inner:
            manager.save(0, args=GatedArgs(STATE))
        assert job.at_risk() > 0
        (outer,) = job.spans(SAVE)
        assert attribute(outer, "checkpoint.durable") is False
        job.gates_of(manager)[0].open()
        until(lambda: len(job.spans(SAVE)) == 2)
        assert job.at_risk() == 0
        assert [attribute(span, "blocking") for span in job.spans(SAVE)] == [None, False]
        run = job.recorder.totals().run
        saving = run.categories["checkpoint_save"] + run.custom.get(between, 0)
        assert saving == outer.end_time - outer.start_time


def test_the_users_phase_waits_for_all_that_is_saved_in_it(job: Job) -> None:
    first, second = job.manager("one", gated=True), job.manager("two", gated=True)
    with job.recorder.job():
        job.steps(0)
        with job.recorder.checkpoint_save(0, durable=False):
            first.save(0, args=GatedArgs(STATE))
            job.gates_of(first)[0].open()
            until(lambda: len(job.spans(SAVE)) == 1)
            second.save(0, args=GatedArgs(STATE))
        (outer,) = [span for span in job.spans(SAVE) if attribute(span, "blocking") is None]
        assert attribute(outer, "checkpoint.durable") is False
        job.gates_of(second)[0].open(OSError("gone"))
        until(lambda: len(job.spans(SAVE)) == 3)


@pytest.mark.parametrize("durable", [True, False])
def test_the_users_phase_around_a_synchronous_save_is_durable(job: Job, durable: bool) -> None:
    manager = job.manager(background=False)
    with job.recorder.job():
        job.steps(0)
        with job.recorder.checkpoint_save(0, durable=durable):
            manager.save(0, args=ocp.args.StandardSave(STATE))
        assert job.at_risk() == 0
    (span,) = job.spans(SAVE)
    assert attribute(span, "checkpoint.durable") is True


def test_the_users_phase_around_nothing_saved_is_not_durable(job: Job) -> None:
    manager = job.manager(background=False, every=10)
    with job.recorder.job():
        manager.save(0, args=ocp.args.StandardSave(STATE))
        job.steps(1)
        with job.recorder.checkpoint_save(1):
            assert not manager.save(1, args=ocp.args.StandardSave(STATE))
        assert job.at_risk() > 0
    _, span = job.spans(SAVE)
    assert attribute(span, "checkpoint.durable") is False


def test_restores(job: Job) -> None:
    manager = job.manager(background=False)
    with job.recorder.job():
        manager.save(3, args=ocp.args.StandardSave(STATE))
        with pytest.raises((FileNotFoundError, ValueError)):
            manager.restore(7, args=ocp.args.StandardRestore(STATE))
        restored = manager.restore(3, args=ocp.args.StandardRestore(STATE))
        assert (restored["weights"] == STATE["weights"]).all()
        manager.restore(None, args=ocp.args.StandardRestore(STATE))
        with job.recorder.checkpoint_restore(3):
            manager.restore(3, args=ocp.args.StandardRestore(STATE))
    spans = job.spans(RESTORE)
    assert [attribute(span, "step") for span in spans] == [7, 3, 3, 3]
    assert [bool(exceptions(span)) for span in spans] == [True, False, False, False]
    restoring = job.recorder.totals().run.categories["checkpoint_restore"]
    assert restoring == sum(span.end_time - span.start_time for span in spans)


@pytest.mark.parametrize("wrapped", [False, True], ids=["by itself", "inside of the user's phases"])
def test_a_restored_checkpoint_stands_for_what_was_done_whatever_its_label(job: Job, wrapped: bool) -> None:
    manager, recorder = job.manager(background=False), job.recorder
    with recorder.job():
        for number in range(10):
            with recorder.step(number):
                pass
            if number % 4 == 3:
                with recorder.checkpoint_save() if wrapped else nullcontext():
                    manager.save(number // 4, args=ocp.args.StandardSave(STATE))
        with recorder.checkpoint_restore() if wrapped else nullcontext():
            manager.restore(1, args=ocp.args.StandardRestore(STATE))
        numbers = [number for number, _ in recorder.steps(range(4))]
    totals = recorder.totals()  # the device's clock knows the last steps when the job is over
    assert numbers == [8, 9, 10, 11]
    assert (totals.kept, totals.lost, totals.last_step) == (12, 2, 11)


def test_two_managers_commit_each_its_own(job: Job) -> None:
    first, second = job.manager("one", gated=True), job.manager("two", gated=True)
    with job.recorder.job():
        job.steps(0)
        first.save(0, args=GatedArgs(STATE))
        job.steps(1)
        second.save(1, args=GatedArgs(STATE))
        job.gates_of(first)[0].open(OSError("gone"))
        until(lambda: len(job.spans(SAVE)) == 3)
        assert attribute(job.spans(SAVE)[2], "step") == 0
        assert job.at_risk() > 0
        job.gates_of(second)[0].open()
        until(lambda: len(job.spans(SAVE)) == 4)
        assert attribute(job.spans(SAVE)[3], "step") == 1
        assert job.at_risk() == 0


def test_a_save_on_another_thread_holds_up_nothing(job: Job) -> None:
    manager = job.manager(background=False)
    with job.recorder.job():
        job.steps(0)
        thread = threading.Thread(target=lambda: manager.save(0, args=ocp.args.StandardSave(STATE)))
        thread.start()
        thread.join()
        assert job.at_risk() == 0
        assert not job.recorder.totals().run.categories.get("checkpoint_save")
    (span,) = job.spans(SAVE)
    assert attribute(span, "blocking") is False


def test_a_shutdown_in_mid_commit(job: Job) -> None:
    manager = job.manager(gated=True)
    with job.recorder.job():
        job.steps(0)
        manager.save(0, args=GatedArgs(STATE))
    job.recorder.shutdown()
    commit = job.spans(SAVE)[1]
    assert (attribute(commit, "interrupted"), attribute(commit, "checkpoint.durable")) == (True, False)
    job.gates_of(manager)[0].open()
    manager.wait_until_finished()  # with the hook still there
    assert manager.save(1, args=GatedArgs(STATE))
    assert len(job.spans(SAVE)) == 2
    assert job.at_risk() > 0


def test_a_recorder_that_follows_another(job: Job, tmp_path: Path) -> None:
    """Each records what happens while it lives, and the hooks may be taken back in any order."""
    following = Job(tmp_path / "following")
    following.install()
    job.recorder.shutdown()
    job.removers.pop()()
    try:
        with following.recorder.job():
            following.manager(background=False).save(0, args=ocp.args.StandardSave(STATE))
            following.manager("more").save(0, args=ocp.args.StandardSave(STATE))
            until(lambda: len(following.spans(SAVE)) == 3)
        assert not job.spans(SAVE)
    finally:
        following.close()


def test_removal_in_mid_commit(bare: Job) -> None:
    remove = bare.install()
    manager = bare.manager(gated=True)
    with bare.recorder.job():
        bare.steps(0)
        manager.save(0, args=GatedArgs(STATE))
        remove()
        commit = bare.spans(SAVE)[1]
        assert (attribute(commit, "interrupted"), attribute(commit, "checkpoint.durable")) == (True, False)
        bare.gates_of(manager)[0].open()
        manager.wait_until_finished()
        assert bare.at_risk() > 0


def test_errors_of_ours_never_reach_orbax(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "0")
    manager = job.manager(gated=True)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    assert job.recorder.tracer is not None
    monkeypatch.setattr(job.recorder.tracer, "start_span", broken)
    assert manager.save(0, args=GatedArgs(STATE))
    job.gates_of(manager)[0].open()
    manager.wait_until_finished()
    assert manager.save(1, args=GatedArgs(STATE))
    job.gates_of(manager)[1].open()
    manager.wait_until_finished()
    assert manager.all_steps() == [0, 1]
