"""Commits: the part of checkpoint saves that goes on in the background, and when it is known to be safely stored."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from opentelemetry import trace as trace_api
from opentelemetry.trace import Status, StatusCode
from opentelemetry.util import types

from otel_goodput.recording.short_span import error_name
from otel_goodput.recording.tracer import PhaseTracer
from otel_goodput.semconv import (
    ERROR_TYPE,
    GOODPUT_BLOCKING,
    GOODPUT_CHECKPOINT_DURABLE,
    GOODPUT_INTERRUPTED,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    Phase,
)


def step_number(step: Any) -> int | None:
    """`step` as an int from 0; None where it is none, for such a save has a span but no number."""
    try:
        number = operator.index(step)
    except TypeError:
        return None
    return number if number >= 0 else None


class Promise:
    """Whether the checkpoint of a ``checkpoint_save`` span is durable: once all that is saved in it is, and not before.

    What its user said when opening it holds until Orbax saves in it, which knows better.
    """

    def __init__(self, tracer: PhaseTracer, span: trace_api.Span) -> None:
        self._tracer = tracer
        self._key = span.get_span_context().span_id
        self._pending = 0
        self._kept = False
        self._failed = False
        self._lock = threading.Lock()

    def begin(self, span: trace_api.Span) -> None:
        """Something is being saved in `span`."""
        with self._lock:
            self._pending += 1
        span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)

    def skip(self, span: trace_api.Span) -> None:
        """Nothing was saved in `span` this time."""
        with self._lock:
            nothing = not (self._kept or self._pending)
        if nothing:
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, False)

    def end(self, span: trace_api.Span | None, kept: bool, moment: int) -> None:
        """What was being saved is stored since `moment` (ns), or never will be."""
        with self._lock:
            self._pending -= 1
            self._kept |= kept
            self._failed |= not kept
            fulfilled = not self._pending and not self._failed
        if not fulfilled:
            return
        if span is not None and span.is_recording():
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
        if span is None or not span.is_recording():  # or has ended in between: then said twice is said once
            self._tracer.account.durable(self._key, moment)


_promises: Final[WeakKeyDictionary[trace_api.Span, Promise]] = WeakKeyDictionary()


def promise_of(tracer: PhaseTracer, span: trace_api.Span) -> Promise:
    """The promise of a save's span: one, however many checkpoints are saved in it."""
    promise = _promises.get(span)
    if promise is None:
        promise = _promises[span] = Promise(tracer, span)
    return promise


class Commit:
    """A commit going on: a span that holds up nothing, from now until somebody learns how it ended.

    Any number of threads may ask its owner at once, and an error is told to only one of them: it is safe when one has
    learned that it is over, and none of the others comes back with an error.

    Args:
        tracer: what records.
        save: the span of what blocked.
        promise: to be kept, of that span.
        step: of the checkpoint.
        owners: Orbax's objects that know how it ends.
        start: ns, by default now.
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
        self._owners = tuple(map(ref, owners))  # alive or not: that is not for us to decide
        self._asking = 0
        self._over: int | None = None
        self._lock = threading.Lock()
        attributes: dict[str, types.AttributeValue] = {
            GOODPUT_PHASE: Phase.CHECKPOINT_SAVE,
            GOODPUT_BLOCKING: False,
            GOODPUT_CHECKPOINT_DURABLE: False,
        }
        if step is not None:
            attributes[GOODPUT_STEP] = step
        with trace_api.use_span(save):
            self._span = tracer.start_span(Phase.CHECKPOINT_SAVE, attributes, start)

    def of(self, owner: object) -> bool:
        """Whether `owner` knows how it ends."""
        return any(known() is owner for known in self._owners)

    def ask(self) -> None:
        """A thread is about to learn something of it; it must :meth:`answer`."""
        with self._lock:
            self._asking += 1

    def answer(self, error: BaseException | None, over: bool) -> None:
        """A thread that asked is back, with an error or without; `over`: it would have waited for the end."""
        failure = error if isinstance(error, Exception) else None  # Ctrl-C of one who waits is no failed commit
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
        """Nobody will learn how it ends."""
        with self._lock:
            if self.decided.is_set():
                return
            self.decided.set()
        if self._span.is_recording():
            self._span.set_attribute(GOODPUT_INTERRUPTED, True)
            self._span.set_status(Status(StatusCode.ERROR, "nobody knows how the commit ended"))
            self._span.end(self._tracer.clock())

    def _end(self, failure: Exception | None) -> None:
        span = self._span
        if not span.is_recording() or self._tracer.closed:
            return  # shut down meanwhile, which ended it
        if failure is None:
            span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
        else:
            span.record_exception(failure)
            span.set_attribute(ERROR_TYPE, error_name(failure))
            span.set_status(Status(StatusCode.ERROR, f"{type(failure).__name__}: {failure}"))
        moment = self._over if self._over is not None and failure is None else self._tracer.clock()
        self._promise.end(self._save, failure is None, moment)
        span.end(moment)
