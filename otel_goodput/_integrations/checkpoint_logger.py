"""A logger for Orbax's ``CheckpointManager`` that records its saves and restores as spans.

Orbax logs one entry when the blocking part of a save or a restore is over, and none if it failed. Of an entry only the
step, the directory and the durations of the manager as a whole can be trusted. Commits are not logged, so a thread
looks for the step among the finished ones in the storage, at growing intervals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from opentelemetry import trace as trace_api

from otel_goodput._integrations.checkpoint_stages import ENTRIES, length_of, record_stages
from otel_goodput._integrations.commits import Commit, promise_of, step_number
from otel_goodput._recording.contexts import RestoreContext, SaveContext, enclosing
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, guarded, started
from otel_goodput.semconv import Phase

FIRST_LOOK: Final = 0.05  # s; first pause between two looks at the storage, doubled after each look
LAST_LOOK: Final = 10.0  # s; longest pause


# The phase that each kind of entry is about.
PHASES: Final = {
    "save": Phase.CHECKPOINT_SAVE,
    "restore": Phase.CHECKPOINT_RESTORE,
    "emergency_restore": Phase.CHECKPOINT_RESTORE,
}


class CheckpointLogger:
    """An Orbax logger (registered as an ``AbstractLogger``) that records spans. Never raises: that would end the save.

    Args:
        find: returns the tracer to record with, or None.
        leads: returns whether this process looks for commits.
    """

    def __init__(self, find: Callable[[], PhaseTracer | None], leads: Callable[[], bool]) -> None:
        self._find = find
        self._leads = leads
        self._watches: dict[str, Watch] = {}  # the latest watch of each directory

    @guarded(None)
    def log_entry(self, entry: Any, *_: object, **__: object) -> None:
        """Record one entry of Orbax's, on the thread that saved or restored."""
        tracer = self._find()
        kind = str(entry.get("event_type")) if isinstance(entry, Mapping) else ""
        if tracer is None or kind not in PHASES:
            return
        phase = PHASES[kind]
        end = tracer.clock()
        start = end - (length_of(entry.get(ENTRIES[kind].total.seconds)) or 0)
        step = step_number(entry.get("step"))
        if phase == Phase.CHECKPOINT_RESTORE:
            if (around := enclosing(phase)) is not None:
                record_stages(tracer, entry, step, end)
                if step is not None:
                    tracer.restored(step, around.get_span_context().span_id)
                return
            with RestoreContext(lambda: tracer, phase, step=step, start_time=start, end_time=end):
                record_stages(tracer, entry, step, end)
            return
        directory = str(entry.get("directory"))
        before = self._watches.pop(directory, None)
        if before is not None:
            before.last_look()  # Orbax has waited for the previous commit
        around = enclosing(phase)
        if around is not None:
            if step is not None:
                tracer.saves(step, around.get_span_context().span_id)
            self._save(tracer, around, entry, step, end)
            return
        with SaveContext(lambda: tracer, phase, step=step, durable=True, start_time=start, end_time=end) as save:
            self._save(tracer, save.span, entry, step, end)

    def _save(
        self, tracer: PhaseTracer, span: trace_api.Span, entry: Mapping[str, Any], step: int | None, end: int
    ) -> None:
        record_stages(tracer, entry, step, end)
        promise = promise_of(tracer, span)
        promise.begin(span)
        if entry.get("synchronous"):
            promise.end(span, True, end)
        elif self._leads():
            directory = str(entry.get("directory"))
            commit = Commit(tracer, span, promise, step, start=end)
            self._watches[directory] = watch = Watch(tracer, commit, directory)
            started(watch, "when checkpoints are committed is not known")


class Watch(threading.Thread):
    """A thread that looks for a commit among the finished steps of its directory."""

    def __init__(self, tracer: PhaseTracer, commit: Commit, directory: str) -> None:
        super().__init__(name="goodput-commit", daemon=True)
        self._tracer = tracer
        self._commit = commit
        self._directory = directory
        self._over = threading.Event()

    def last_look(self) -> None:
        """Look once more, now, because the commit is over."""
        self._over.set()

    def run(self) -> None:
        pause = FIRST_LOOK
        while not self._tracer.closed:
            over = self._over.is_set()
            try:
                steps = import_module("orbax.checkpoint.utils").checkpoint_steps(self._directory)
                if self._commit.step in steps:
                    self._commit.ask()
                    self._commit.answer(None, over=True)
                    return
            except OSError:
                pass  # a storage that does not answer now may answer later
            except Exception as error:
                contain("looking for a commit", error)
                over = True
            if over:
                self._commit.abandon()
                return
            self._over.wait(pause)
            pause = min(2 * pause, LAST_LOOK)
