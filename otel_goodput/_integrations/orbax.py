"""Record what Orbax saves and restores as spans, without the user's help.

The public methods of ``CheckpointManager`` and ``AsyncCheckpointer`` are wrapped on the classes, also for managers made
before. ``CheckpointManager.save`` is a ``checkpoint_save``, once it is known that it does not skip the step; so is
``wait_until_finished`` if there is a commit to wait for. The commit that ``AsyncCheckpointer.save`` leaves to a thread
is a second, non-blocking one: it ends, and the checkpoint is durable, once the first thread that waits, usually Orbax's
own finalizing thread, returns without an error. (On several hosts that is behind a barrier: the primary host commits,
and the others learn of it.) Stages are parts, see ``orbax_log``.

Inside a phase of the same kind that the user has opened, no second one is opened. The user's checkpoint is then as
durable as what Orbax saves in it, even if it was opened with ``durable=False``.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from opentelemetry import trace as trace_api

from otel_goodput._integrations.commits import Commit, Place, Promise, promise_of, step_number
from otel_goodput._integrations.orbax_log import CheckpointLogger, StageListener
from otel_goodput._integrations.wrapping import Before, Done, wrap
from otel_goodput._recording.contexts import RestoreContext, SaveContext, enclosing
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing
from otel_goodput.semconv import GOODPUT_CHECKPOINT_DURABLE, Phase

PACKAGE: Final = "orbax.checkpoint"

_hooks: Final[dict[PhaseTracer, Hook]] = {}
_changing: Final = threading.Lock()


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record what Orbax does from now on, from any thread. Return what ends it, or None while Orbax is not imported."""
    package = sys.modules.get(PACKAGE)
    manager, checkpointer = getattr(package, "CheckpointManager", None), getattr(package, "AsyncCheckpointer", None)
    if manager is None or checkpointer is None:
        return None
    with containing("orbax"), _changing:
        if tracer not in _hooks:
            _hooks[tracer] = Hook(tracer, manager, checkpointer)
        return _hooks[tracer].remove
    return None


def checkpoint_logger(
    find: Callable[[], PhaseTracer | None], leads: Callable[[], bool] = lambda: True
) -> CheckpointLogger:
    """Return a logger for ``CheckpointManager(…, logger=CompositeLogger(checkpoint_logger(), StandardLogger()))``.

    It is an alternative to wrapped methods, and records nothing while :func:`install` is in effect.
    """
    import_module(f"{PACKAGE}.logging").AbstractLogger.register(CheckpointLogger)

    def unwatched() -> PhaseTracer | None:
        tracer = find()
        return None if tracer in _hooks else tracer

    return CheckpointLogger(unwatched, leads)


class Saving:
    """One call of ``CheckpointManager.save``. Nothing is recorded until it is known that the step is not skipped."""

    def __init__(self, tracer: PhaseTracer, manager: Any, step: int | None) -> None:
        self.manager = manager
        self.step = step
        self._tracer = tracer
        self._start = tracer.clock()
        self._context: SaveContext | None = None
        self._span: trace_api.Span | None = None
        self._promise: Promise | None = None
        self.promised = False  # a commit has begun; the call may return before it ends

    def begin(self) -> Place | None:
        """Open the span, or use the user's: the step is not skipped. Return it and the step; None: nothing records."""
        if self._span is not None:
            return self._span, self.step
        span = enclosing(Phase.CHECKPOINT_SAVE)
        if span is None:
            context = SaveContext(
                _open(self._tracer), Phase.CHECKPOINT_SAVE, step=self.step, durable=True, start_time=self._start
            )
            save = context.__enter__()
            if not save.is_recording():
                return None
            self._context, span = context, save.span
        elif self.step is not None:
            self._tracer.saves(self.step, span.get_span_context().span_id)
        self._span = span
        self._promise = promise_of(self._tracer, span)
        self._promise.begin(span)
        return span, self.step

    def commit(self, *owners: Any) -> Commit | None:
        """Open a commit; one of `owners` will know how it ends. Return None if nothing is recorded."""
        self.begin()
        if self._span is None or self._promise is None:
            return None
        if self.promised:
            self._promise.begin(self._span)
        self.promised = True
        return Commit(self._tracer, self._span, self._promise, self.step, owners)

    def end(self, saved: bool, error: BaseException | None, record_stages: Callable[[], None]) -> None:
        """End the call; `saved`: it has saved the step. `record_stages` does so inside of its span."""
        if saved:
            self.begin()
        record_stages()
        if self._span is None or self._promise is None:
            around = enclosing(Phase.CHECKPOINT_SAVE)
            if around is not None:
                promise_of(self._tracer, around).skip(around)
            return
        if not self.promised:
            self._promise.end(self._span, saved, self._tracer.clock())
        if self._context is not None:
            _leave(self._context, error)


def _open(tracer: PhaseTracer) -> Callable[[], PhaseTracer | None]:
    return lambda: None if tracer.closed else tracer


def _leave(context: SaveContext | RestoreContext, error: BaseException | None) -> None:
    context.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


class Hook:
    """Orbax's classes ``CheckpointManager`` and ``AsyncCheckpointer``, wrapped for one tracer."""

    def __init__(self, tracer: PhaseTracer, manager: type, checkpointer: type) -> None:
        self._tracer = tracer
        self._here = threading.local()
        self._commits: list[Commit] = []  # replaced, never mutated, because any thread reads it
        self._lock = threading.Lock()
        self._removed = False
        self._latest: Place | None = None  # of the latest save
        methods: tuple[tuple[type, str, Before], ...] = (
            (manager, "save", self._save),
            (manager, "restore", self._restore),
            (manager, "wait_until_finished", self._wait),
            (checkpointer, "save", self._commit),
            (checkpointer, "wait_until_finished", functools.partial(self._ask, True)),
            (checkpointer, "check_for_errors", functools.partial(self._ask, False)),
            (checkpointer, "cancel", self._cancel),
        )
        self._unwrap = [self._wrap(owner, name, before) for owner, name, before in methods if hasattr(owner, name)]
        self._stages = StageListener(tracer, self._wrap, self._around_deletion)

    def remove(self) -> None:
        """Stop recording. Commits under way end as interrupted: they are not known to be durable."""
        with _changing:
            if _hooks.get(self._tracer) is self:
                del _hooks[self._tracer]
            self._removed = True
            while self._unwrap:
                self._unwrap.pop()()
            self._stages.close()
        for commit in self._commits:
            commit.abandon()
        self._commits = []

    def _wrap(self, owner: type, name: str, before: Before) -> Callable[[], None]:
        """Wrap a method, as long as this records anything."""

        def guarded(this: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
            return None if self._removed or self._tracer.closed else before(this, args, kwargs)

        return wrap(owner, name, guarded, "orbax")

    def _saving(self) -> Saving | None:
        """The innermost save that this thread is in."""
        saving: Saving | None = getattr(self._here, "saving", None)
        return saving

    # Called with the manager:

    def _save(self, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        outer = self._saving()
        step = step_number(args[0] if args else kwargs.get("step"))
        self._here.saving = saving = Saving(self._tracer, manager, step)
        record_stages = self._stages.collect(manager)

        def done(result: Any, error: BaseException | None) -> None:
            self._here.saving = outer
            try:
                # Saving goes on, but no AsyncCheckpointer has begun a commit: only the manager knows when it ends.
                if error is None and result and not saving.promised and manager.is_saving_in_progress():
                    self._follow(saving.commit(manager))
            finally:
                saving.end(bool(result), error, record_stages)

        return done

    def _restore(self, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        record_stages = self._stages.collect(manager)
        step = args[0] if args else kwargs.get("step")
        if step is None and len(args) < 4 and kwargs.get("directory") is None:
            step = manager.latest_step()
        tracer, number = self._tracer, step_number(step)
        around, context = enclosing(Phase.CHECKPOINT_RESTORE), None
        if around is None:
            context = RestoreContext(_open(tracer), Phase.CHECKPOINT_RESTORE, step=number)
            context.__enter__()

        def done(_: Any, error: BaseException | None) -> None:
            record_stages()
            if context is not None:
                _leave(context, error)
            elif around is not None and error is None and number is not None:
                tracer.restored(number, around.get_span_context().span_id)

        return done

    def _wait(self, manager: Any, *_: object) -> Done:
        saving = self._saving()
        if saving is not None and saving.manager is manager:
            self._latest = saving.begin()  # save() waits for the previous save only if it does not skip this step
        commits = self._undecided(manager)
        context = save = None
        if commits and saving is None and enclosing(Phase.CHECKPOINT_SAVE) is None:
            context = SaveContext(_open(self._tracer), Phase.CHECKPOINT_SAVE, step=commits[-1].step, durable=False)
            save = context.__enter__()
        for commit in commits:  # last: a thread interrupted before this never calls answer()
            commit.ask()

        def done(_: Any, error: BaseException | None) -> None:
            self._answer(commits, error, True)
            if context is not None and save is not None:
                save.set_attribute(GOODPUT_CHECKPOINT_DURABLE, all(commit.kept for commit in commits))
                _leave(context, error)

        return done

    def _around_deletion(self) -> Place | None:
        """Return the save because of which an old checkpoint is deleted on this thread: about always the latest."""
        saving = self._saving()
        return self._latest if saving is None else saving.begin()

    # Called with the checkpointer:

    def _commit(self, checkpointer: Any, *_: object) -> Done | None:
        saving = self._saving()
        if saving is None:
            return None  # used without a manager: the step is unknown
        self._latest = saving.begin()

        def done(_: Any, error: BaseException | None) -> None:
            if error is None:
                self._follow(saving.commit(saving.manager, checkpointer))

        return done

    def _ask(self, waits: bool, checkpointer: Any, *_: object) -> Done | None:
        commits = self._undecided(checkpointer)
        for commit in commits:
            commit.ask()
        return (lambda _, error: self._answer(commits, error, waits)) if commits else None

    def _cancel(self, checkpointer: Any, *_: object) -> Done:
        def done(*_: object) -> None:
            for commit in self._undecided(checkpointer):
                commit.abandon()

        return done

    def _follow(self, commit: Commit | None) -> None:
        if commit is None:
            return
        with self._lock:
            self._commits = [*(each for each in self._commits if not each.decided.is_set()), commit]
        if self._removed:
            commit.abandon()

    def _undecided(self, owner: Any) -> list[Commit]:
        """Return the commits of which `owner` will know how they end."""
        return [commit for commit in self._commits if commit.of(owner) and not commit.decided.is_set()]

    @staticmethod
    def _answer(commits: list[Commit], error: BaseException | None, waited: bool) -> None:
        for commit in commits:
            commit.answer(error, waited)
