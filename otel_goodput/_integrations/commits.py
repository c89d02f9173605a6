"""Checkpoints that are saved in the background: when the checkpoint of a save is durable, and spans of commits."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary, ref

from opentelemetry import trace as trace_api
from opentelemetry.trace import Status, StatusCode

from otel_goodput._journal.records import LARGEST
from otel_goodput._recording.plain import error_name
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput.semconv import (
    ERROR_TYPE,
    GOODPUT_BLOCKING,
    GOODPUT_CHECKPOINT_DURABLE,
    GOODPUT_INTERRUPTED,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    CheckpointStage,
    Phase,
)


def step_number(step: Any) -> int | None:
    """Return `step` as an int that a record can hold, from 0; None if it is none: such a save has no step number."""
    try:
        number = operator.index(step)
    except TypeError:
        return None
    return number if 0 <= number <= LARGEST else None


class Promise:
    """Decides when the checkpoint of a save's span is durable: once all that a library saves in it is stored."""

    def __init__(self, tracer: PhaseTracer, span: trace_api.Span) -> None:
        self._tracer = tracer
        self._key = span.get_span_context().span_id
        self._pending = 0
        self._kept = False
        self._failed = False
        self._lock = threading.Lock()

    def begin(self, span: trace_api.Span) -> None:
        """Note that something is being saved in `span`."""
        with self._lock:
            self._pending += 1
        span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)

    def skip(self, span: trace_api.Span) -> None:
        """Note that a call saved nothing in `span`."""
        with self._lock:
            nothing = not (self._kept or self._pending)
        if nothing:
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)

    def end(self, span: trace_api.Span | None, kept: bool, moment: int) -> None:
        """Note that what was being saved is stored since `moment` (ns), or, if not `kept`, never will be."""
        with self._lock:
            self._pending -= 1
            self._kept |= kept
            self._failed |= not kept
            fulfilled = not self._pending and not self._failed
        if not fulfilled:
            return
        if span is not None and span.is_recording():
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
        if span is None or not span.is_recording():  # also if it ended just now: stating it twice is harmless
            self._tracer.account.durable(self._key, moment)


_promises: Final[WeakKeyDictionary[trace_api.Span, Promise]] = WeakKeyDictionary()


def promise_of(tracer: PhaseTracer, span: trace_api.Span) -> Promise:
    """Return the promise of a save's span: one, however many checkpoints are saved in it."""
    promise = _promises.get(span)
    if promise is None:
        promise = _promises[span] = Promise(tracer, span)
    return promise


class Commit:
    """A commit under way: a non-blocking span, from now until it is known how the commit ended.

    Any number of threads may ask the same owner at once, and Orbax raises an error in only one of them. So the commit
    is durable once one thread has seen its end and no other thread that asked comes back with an error. `save` is the
    span of the blocking part; `owners` are objects of the library that know how the commit ends.
    """

    def __init__(
        self,
        tracer: PhaseTracer,
        save: trace_api.Span,
        promise: Promise,
        step: int | None,
        owners: Sequence[Any] = (),
        start: int | None = None,
    ) -> None:
        self.step = step
        self.decided = threading.Event()
        self.kept = False
        self._tracer = tracer
        self._save = save
        self._promise = promise
        self._owners = tuple(map(ref, owners))  # weak references: a commit must not keep them alive
        self._asking = 0
        self._over: int | None = None
        self._lock = threading.Lock()
        kind = {GOODPUT_PHASE: Phase.CHECKPOINT_SAVE, GOODPUT_BLOCKING: False, GOODPUT_CHECKPOINT_DURABLE: False}
        attributes: dict[str, Any] = kind if step is None else {**kind, GOODPUT_STEP: step}
        with trace_api.use_span(save):
            self._span = tracer.start_span(Phase.CHECKPOINT_SAVE, attributes, start)

    def of(self, owner: object) -> bool:
        return any(known() is owner for known in self._owners)

    def ask(self) -> None:
        """Note that a thread is about to ask an owner; it must :meth:`answer`."""
        with self._lock:
            self._asking += 1

    def answer(self, error: BaseException | None, over: bool) -> None:
        """Note that a thread that asked is back, with or without an error; `over`: its call waits for the end."""
        failure = error if isinstance(error, Exception) else None  # Ctrl-C in a waiting thread does not fail the commit
        with self._lock:
            self._asking -= 1
            if error is None and over and self._over is None:
                self._over = self._tracer.clock()
            if self.decided.is_set() or (failure is None and (self._over is None or self._asking)):
                return
            self.kept = failure is None
            self.decided.set()
        self._end(failure)

    def abandon(self) -> None:
        """End the span as interrupted: it will not be known how the commit ended."""
        with self._lock:
            if self.decided.is_set():
                return
            self.decided.set()
        if self._span.is_recording():
            self._span.set_attribute(GOODPUT_INTERRUPTED, True)
            self._span.set_status(Status(StatusCode.ERROR, "it is unknown how the commit ended"))
            self._span.end(self._tracer.clock())

    def _end(self, failure: Exception | None) -> None:
        span = self._span
        if not span.is_recording() or self._tracer.closed:
            return  # the tracer was shut down meanwhile, which ended the span
        if failure is None:
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
        else:
            span.record_exception(failure)
            span.set_attribute(ERROR_TYPE, error_name(failure))
            span.set_status(Status(StatusCode.ERROR, f"{type(failure).__name__}: {failure}"))
        begun: int | None = getattr(span, "start_time", None)
        moment = self._over if self._over is not None and failure is None else self._tracer.clock()
        self._promise.end(self._save, failure is None, moment)
        span.end(moment)
        if failure is None and begun is not None:
            self._tracer.stage(CheckpointStage.SAVE_COMMIT, self.step, begun, moment, shown=False)


Place: TypeAlias = tuple[trace_api.Span, "int | None"]  # the span of a save, and its step
