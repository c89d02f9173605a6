"""What Orbax logs of saves and restores: their stages, and a logger that records them as phases.

Orbax logs one entry when the blocking part of a save or a restore is over, and none if it failed. An entry has begins
(seconds since the epoch by the wall clock) and lengths (seconds). They are placed on the account's clock by the moment
at which the entry came: that is when the manager's call was over. Commits are not logged, so for the logger a thread
looks for the step among the finished ones in the storage, at growing intervals.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry import trace as trace_api

from otel_goodput._integrations.commits import Commit, Place, promise_of, step_number
from otel_goodput._recording.contexts import RestoreContext, SaveContext, enclosing
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, containing, guarded, started
from otel_goodput.semconv import (
    CheckpointStage,
    Phase,
)

FIRST_LOOK: Final = 0.05  # s; first pause between two looks at the storage, doubled after each look
LAST_LOOK: Final = 10.0  # s; longest pause
_LONGEST_S: Final = 366 * 86400.0  # longer times are invalid

# Events of jax.monitoring at the end of the deletion of one checkpoint, with its length in seconds.
DELETED: Final = frozenset(
    f"/jax/orbax/checkpoint_manager/{which}_checkpoint_deleter/duration" for which in ("standard", "threaded")
)


class Stage(NamedTuple):
    """A stage as an entry has it."""

    name: str  # of the part
    begin: str  # name of a field, as the next one
    seconds: str


class Entry(NamedTuple):
    """A kind of entry: the phase that it is about, the manager's call as a whole, and the stages inside of it."""

    phase: str
    total: Stage
    stages: tuple[Stage, ...]


def _stage(name: str, field: str) -> Stage:
    return Stage(name, f"{field}_start_time", f"{field}_duration_secs")


LoggedEntry: TypeAlias = "tuple[Mapping[str, Any], int | None, int]"  # its step, and when it was logged, ns
ENTRIES: Final[Mapping[str, Entry]] = {
    "save": Entry(
        Phase.CHECKPOINT_SAVE,
        _stage(CheckpointStage.SAVE_TOTAL, "checkpoint_manager_blocking"),
        (
            _stage(CheckpointStage.SAVE_WAIT, "wait_for_prev"),
            _stage(CheckpointStage.SAVE_COPY, "checkpointer_blocking"),
            _stage(CheckpointStage.SAVE_FIND_OLD, "get_old_steps"),
        ),
    ),
    "restore": Entry(
        Phase.CHECKPOINT_RESTORE,
        _stage(CheckpointStage.RESTORE_TOTAL, "checkpoint_manager"),
        (_stage(CheckpointStage.RESTORE_READ, "checkpointer"),),
    ),
    "emergency_restore": Entry(
        Phase.CHECKPOINT_RESTORE,
        _stage(CheckpointStage.EMERGENCY_TOTAL, "checkpoint_manager"),
        (
            _stage(CheckpointStage.EMERGENCY_READ, "checkpointer"),
            _stage(CheckpointStage.EMERGENCY_BROADCAST, "broadcast"),
        ),
    ),
}


def record_stages(tracer: PhaseTracer, entry: Any, step: int | None, end: int) -> None:
    """Record the stages of an entry that Orbax logged at `end` (ns by the account's clock), inside the current span.

    Missing and invalid fields are left out.
    """
    kind = ENTRIES.get(str(entry.get("event_type"))) if isinstance(entry, Mapping) else None
    if kind is None:
        return
    whole = length_of(entry.get(kind.total.seconds))
    if whole is None:
        return
    # The phase's own span shows the whole, so that is only counted.
    tracer.stage(kind.total.name, step, end - whole, end, shown=False)
    first = _seconds(entry.get(kind.total.begin))
    for stage in kind.stages:
        begin, length = _seconds(entry.get(stage.begin)), length_of(entry.get(stage.seconds))
        if begin is None or length is None or first is None:
            continue
        start = end - whole + round((begin - first) * 1e9)
        start = max(end - whole, min(start, end - length))  # the wall clock may have been set meanwhile
        tracer.stage(stage.name, step, start, start + length)


def _seconds(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def length_of(value: Any) -> int | None:
    """Return `value` (s) in ns, at least 0; None if it is not a length."""
    seconds = _seconds(value)
    return None if seconds is None or seconds > _LONGEST_S else max(0, round(seconds * 1e9))


class StageListener:
    """Records what managers log, and the deletions that Orbax reports to ``jax.monitoring``, as stages.

    `wrap` wraps a method of a class: calls a function ahead of it, and returns what unwraps it. `around` returns the
    save that a deletion on this thread belongs to, and its step; None if there is none.
    """

    def __init__(
        self,
        tracer: PhaseTracer,
        wrap: Callable[[type, str, Callable[..., None]], Callable[[], None]],
        around: Callable[[], Place | None],
    ) -> None:
        self._tracer = tracer
        self._wrap = wrap
        self._around = around
        self._here = threading.local()
        self._lock = threading.Lock()
        self._unwrap: dict[type, Callable[[], None]] = {}  # by class of loggers
        self._closed = False
        self._monitoring = monitoring = getattr(sys.modules.get("jax"), "monitoring", None)
        self._deletions = self._deleted  # one object, by which it is found again
        if monitoring is not None and hasattr(monitoring, "register_event_duration_secs_listener"):
            monitoring.register_event_duration_secs_listener(self._deletions)

    def collect(self, manager: Any) -> Callable[[], None]:
        """Collect what `manager` logs on this thread; the function returned ends that and records the stages."""
        logger = type(getattr(manager, "_logger", None))
        with self._lock:
            if not self._closed and logger not in self._unwrap and callable(getattr(logger, "log_entry", None)):
                self._unwrap[logger] = lambda: None
                try:
                    self._unwrap[logger] = self._wrap(logger, "log_entry", self._log)
                except (AttributeError, TypeError) as error:  # a class that cannot be changed
                    contain("orbax logger", error)
        outer: list[LoggedEntry] | None = getattr(self._here, "entries", None)
        self._here.entries = entries = list[LoggedEntry]()

        def over() -> None:
            self._here.entries = outer
            for each in entries:
                with containing("orbax stages"):
                    record_stages(self._tracer, *each)

        return over

    def close(self) -> None:
        """Record nothing from now on."""
        with self._lock:
            self._closed = True
        while self._unwrap:
            self._unwrap.popitem()[1]()
        try:
            if self._monitoring is not None:
                self._monitoring.unregister_event_duration_listener(self._deletions)
        except Exception:
            return  # jax before 0.9 cannot remove it, or somebody has cleared all; it does nothing by now

    def _log(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entries: list[LoggedEntry] | None = getattr(self._here, "entries", None)
        entry = args[0] if args else kwargs.get("entry")
        # Of several entries the first counts: loggers pass an entry on to each other.
        if entries is not None and not entries and isinstance(entry, Mapping):
            entries.append((dict(entry), step_number(entry.get("step")), self._tracer.clock()))

    def _deleted(self, event: str, seconds: float, /, **_: object) -> None:
        if event not in DELETED or self._closed or self._tracer.closed:
            return
        with containing("orbax deletion"):
            length, around = length_of(seconds), self._around()
            if length is not None and around is not None:
                end = self._tracer.clock()
                with trace_api.use_span(around[0]):
                    self._tracer.stage(CheckpointStage.SAVE_DELETE_OLD, around[1], end - length, end)


class CheckpointLogger:
    """An Orbax logger (registered as an ``AbstractLogger``) that records spans. Never raises: that would end the save.

    `leads` returns whether this process does the accounting; other processes do not look for commits.
    """

    def __init__(self, find: Callable[[], PhaseTracer | None], leads: Callable[[], bool]) -> None:
        self._find = find
        self._leads = leads
        self._over: dict[str, threading.Event] = {}  # by directory: its latest commit is over

    @guarded(None)
    def log_entry(self, entry: Any, *_: object, **__: object) -> None:
        """Record one entry of Orbax's, on the thread that saved or restored."""
        tracer = self._find()
        kind = ENTRIES.get(str(entry.get("event_type"))) if isinstance(entry, Mapping) else None
        if tracer is None or kind is None:
            return
        end = tracer.clock()
        start = end - (length_of(entry.get(kind.total.seconds)) or 0)
        step, around = step_number(entry.get("step")), enclosing(kind.phase)
        if kind.phase == Phase.CHECKPOINT_RESTORE:
            if around is None:
                with RestoreContext(lambda: tracer, kind.phase, step=step, start_time=start, end_time=end):
                    record_stages(tracer, entry, step, end)
                return
            record_stages(tracer, entry, step, end)
            if step is not None:
                tracer.restored(step, around.get_span_context().span_id)
            return
        before = self._over.pop(str(entry.get("directory")), None)
        if before is not None:
            before.set()  # Orbax has waited for the previous commit
        if around is None:
            with SaveContext(
                lambda: tracer, kind.phase, step=step, durable=True, start_time=start, end_time=end
            ) as save:
                self._save(tracer, save.span, entry, step, end)
            return
        if step is not None:
            tracer.saves(step, around.get_span_context().span_id)
        self._save(tracer, around, entry, step, end)

    def _save(self, tracer: PhaseTracer, span: trace_api.Span, entry: Any, step: int | None, end: int) -> None:
        record_stages(tracer, entry, step, end)
        promise = promise_of(tracer, span)
        promise.begin(span)
        if entry.get("synchronous"):
            promise.end(span, True, end)
        elif self._leads():
            directory = str(entry.get("directory"))
            commit = Commit(tracer, span, promise, step, start=end)
            self._over[directory] = over = threading.Event()
            watch = threading.Thread(
                target=_watch, args=(tracer, commit, directory, over), name="goodput-commit", daemon=True
            )
            started(watch, "when checkpoints are committed is not known")


def _watch(tracer: PhaseTracer, commit: Commit, directory: str, over: threading.Event) -> None:
    """Look for `commit` among the finished steps of its directory, a last time once it is `over`."""
    pause = FIRST_LOOK
    while not tracer.closed:
        last = over.is_set()
        try:
            if commit.step in import_module("orbax.checkpoint.utils").checkpoint_steps(directory):
                commit.ask()
                commit.answer(None, over=True)
                return
        except OSError:
            pass  # a storage that does not answer now may answer later
        except Exception as error:
            contain("looking for a commit", error)
            last = True
        if last:
            commit.abandon()
            return
        over.wait(pause)
        pause = min(2 * pause, LAST_LOOK)
