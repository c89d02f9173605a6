"""Compilations as phases, from the events that a compiler gives while it traces, lowers and compiles.

The stages of one compilation follow each other within microseconds on one thread, and inside of them others may nest.
What is recorded is their union, as one ``compile`` span: open from its first stage on, so that a compilation that takes
forever is seen while it does.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from opentelemetry import trace as trace_api
from opentelemetry.trace import SpanContext
from opentelemetry.util import types

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.journal.account import EndedPhase
from otel_goodput.journal.records import EXPORT, PARENT, signed
from otel_goodput.semconv import (
    GOODPUT_BLOCKING,
    GOODPUT_COMPILE_CACHE_HIT,
    GOODPUT_COMPILE_CACHE_RETRIEVAL,
    GOODPUT_COMPILE_FUNCTION,
    GOODPUT_COMPILE_RECOMPILATION,
    GOODPUT_COMPILE_STAGES,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    Phase,
)
from otel_goodput.spans import ids
from otel_goodput.spans.fast import FastSpan
from otel_goodput.spans.finished import PhaseReadableSpan
from otel_goodput.spans.tracer import PhaseTracer

TRACE, LOWER, BACKEND = range(3)
ADJACENT: Final = 50_000_000  # ns between two stages of one compilation at most
IDLE: Final = 200_000_000  # ns after which no further stage is waited for


class Compilation:
    """One compilation in progress."""

    __slots__ = (
        "again",
        "aside",
        "end",
        "function",
        "hit",
        "key",
        "parent",
        "retrieval",
        "since",
        "stages",
        "start",
        "step",
    )

    def __init__(self, key: int, function: str, start: int, parent: SpanContext, step: int, aside: bool) -> None:
        self.key = key
        self.function = function
        self.start = self.since = self.end = start
        self.parent = parent
        self.step = step
        self.aside = aside
        self.stages = [0, 0, 0]  # ns in each
        self.again = False
        self.hit: bool | None = None
        self.retrieval = 0


class _Thread(threading.local):
    depth = 0
    current: Compilation | None = None


class Compilations:
    """Follows the compilations of all threads.

    What runs on a compiling thread appends records and tuples; spans are built by :meth:`tick`.
    """

    def __init__(self, tracer: PhaseTracer) -> None:
        self._tracer = tracer
        self._thread = _Thread()
        # Between two stages, by thread. Whoever pops an entry owns it: no lock that the keeper could hold.
        self._between: dict[int, Compilation] = {}
        self._done: deque[Compilation] = deque()
        self._named: set[str] = set()
        self._compiled: set[str] = set()

    # --- on the compiling thread --------------------------------------------------------------------------------------

    def begin(self, function: str) -> None:
        """A stage begins here and now."""
        thread = self._thread
        thread.depth += 1
        if thread.depth > 1:
            return
        thread.current = self._take_up(function, self._tracer.clock())

    def end(self, stage: int, function: str, duration: int) -> None:
        """A stage that took `duration` ns is over."""
        thread = self._thread
        now = self._tracer.clock()
        if thread.depth == 0:
            # Its beginning was not told: an older jax, or we came in between.
            current: Compilation | None = self._take_up(function, now - duration)
        else:
            thread.depth -= 1
            if thread.depth:
                return
            current, thread.current = thread.current, None
        if current is None:
            return
        current.end = now
        current.stages[stage] += now - current.since
        if stage != BACKEND:
            self._between[threading.get_ident()] = current
            return
        current.again = current.function in self._compiled
        if current.function:
            self._compiled.add(current.function)
        self._finish(current)

    def cached(self, hit: bool | None = None, retrieval: int = 0) -> None:
        """What the persistent cache said within this thread's stage; `retrieval` in ns."""
        current = self._thread.current
        if current is not None and self._thread.depth == 1:
            if hit is not None:
                current.hit = hit
            current.retrieval += retrieval

    def _take_up(self, function: str, start: int) -> Compilation:
        """The compilation of which a stage began at `start` (ns): the one before it goes on, or a new one."""
        current = self._between.pop(threading.get_ident(), None)
        if current is not None and (start - current.end > ADJACENT or function != current.function):
            self._finish(current)
            current = None
        if current is None:
            current = self._open(function, start)
        current.since = start
        return current

    def _open(self, function: str, start: int) -> Compilation:
        tracer = self._tracer
        step = tracer.hold()
        around = trace_api.get_current_span()
        if isinstance(around, FastSpan):
            around.keep()
        parent = around.get_span_context()
        if not parent.is_valid or (parent.trace_id != tracer.job_context.trace_id and not tracer.own_traces):
            parent = tracer.job_context
        aside = not tracer.blocks(None)
        key = tracer.new_key()
        # The ledger takes a name that it has seen for a recompilation, but the function may just have been traced yet.
        known = function if function in self._compiled or function not in self._named else ""
        self._named.add(function)
        flags = EXPORT | ev.NONBLOCKING if aside else EXPORT
        tracer.account.start(rules.COMPILE, key, ev.NO_STEP, flags, known, start)
        if parent.span_id != tracer.job_context.span_id:
            tracer.append(PARENT, 0, 0, 0, key, signed(parent.span_id), start)
        return Compilation(key, function, start, parent, -1 if step is None else step.step, aside)

    def _finish(self, done: Compilation) -> None:
        account = self._tracer.account
        account.end(rules.COMPILE, done.key, EXPORT, done.end)
        if account.on_phases is not None:
            account.phases.append(EndedPhase(rules.COMPILE, "", not done.aside, "", done.end - done.start))
        self._done.append(done)

    # --- in the background --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Close what no further stage comes for, export what is done."""
        idle = self._tracer.clock() - IDLE
        self._close_since(idle)
        for _ in range(len(self._done)):
            try:
                done = self._done.popleft()
            except IndexError:  # another thread was quicker
                break
            self._tracer.emit(self._span(done))

    def close(self) -> None:
        """No stage is waited for any more."""
        self._close_since(self._tracer.clock())
        self.tick()

    def _close_since(self, moment: int) -> None:
        for thread, compilation in tuple(self._between.items()):
            if compilation.end <= moment and self._between.pop(thread, None) is compilation:
                self._finish(compilation)

    def _span(self, done: Compilation) -> PhaseReadableSpan:
        tracer = self._tracer
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: Phase.COMPILE}
        if done.function:
            attributes[GOODPUT_COMPILE_FUNCTION] = done.function
        if done.step >= 0:
            attributes[GOODPUT_STEP] = done.step
        if done.again:
            attributes[GOODPUT_COMPILE_RECOMPILATION] = True
        if done.aside:
            attributes[GOODPUT_BLOCKING] = False
        if done.hit is not None:
            attributes[GOODPUT_COMPILE_CACHE_HIT] = done.hit
        if done.retrieval:
            attributes[GOODPUT_COMPILE_CACHE_RETRIEVAL] = done.retrieval
        stages = zip(GOODPUT_COMPILE_STAGES, done.stages, strict=True)
        attributes |= {name: duration for name, duration in stages if duration}
        return PhaseReadableSpan(
            Phase.COMPILE,
            SpanContext(done.parent.trace_id, done.key, False, ids.SAMPLED),
            done.parent,
            tracer.resource,
            attributes,
            start_time=done.start,
            end_time=done.end,
            instrumentation_scope=tracer.scope,
        )
