"""Exports spans that are not created by an SDK tracer: steps, loads, parts, compilations, summaries, roots."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Final

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
)

from otel_goodput._runtime.guard import contain, report_once, started
from otel_goodput.semconv import DROPPED

_FORWARDING = (ConcurrentMultiSpanProcessor, SynchronousMultiSpanProcessor)
MANY_WAITING: Final = 128  # spans that wait; the background is woken
MOST_WAITING: Final = 16_384  # spans of steps, loads and parts that wait; further ones are dropped
LAST_WAITING: Final = 2 * MOST_WAITING  # spans of any kind that wait
LONGEST_WAIT_S: Final = 0.1
LONGEST_CATCHING_UP_S: Final = 1.0
TICK_S: Final = 0.25
_LAYERS: Final = 64  # objects looked through for the tracer that a provider wraps


def processor_of(*holders: object) -> SpanProcessor | None:
    """Return what the tracer of the SDK passes spans to that a provider and its tracer wrap, or that a span is of."""
    layers, known = list(holders), set[int]()
    while layers and len(known) < _LAYERS:
        layer = layers.pop(0)
        if id(layer) in known:
            continue
        known.add(id(layer))
        processor = getattr(layer, "span_processor", None)
        if isinstance(processor, SpanProcessor):
            return processor
        for value in _held(layer):
            if isinstance(layer, ReadableSpan) and isinstance(value, SpanProcessor):
                return value
            if isinstance(value, (trace_api.TracerProvider, trace_api.Tracer)):
                layers.append(value)
    return None


def _held(layer: object) -> Iterator[object]:
    yield from tuple(getattr(layer, "__dict__", {}).values())
    for kind in type(layer).__mro__:
        names = getattr(kind, "__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(layer, name, None)


class SpanEmitter(SpanProcessor):
    """Passes spans to the span processors of the exporters; as the processor of a provider, all that it has ended.

    Spans of steps, loads and parts wait for a thread of this object's own: a processor may take as long as it likes,
    and neither training nor the journal waits for it.

    Args:
        background: postpone spans until :meth:`catch_up`, or until the thread has emitted them.

    Attributes:
        starters: the processors that are notified of starts.
        dropped: number of spans that were dropped because too many waited.
    """

    def __init__(self, processors: Sequence[SpanProcessor], resource: Resource, *, background: bool = False) -> None:
        self.resource = resource
        self._processors = tuple(processors)
        self.starters = tuple(each for each in processors if _hears_starts(each))
        self.dropped = 0
        self._waiting: deque[Callable[[], ReadableSpan | None]] = deque()
        self._emitting = threading.Lock()  # so that two threads keep the order
        self._busy = 0  # id of the thread that emits
        self._hanging = False  # a processor has not returned in time
        self._background = background
        self._closed = False
        self._wake: SimpleQueue[None] = SimpleQueue()  # reentrant, unlike an event: a signal handler may end spans
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-spans", daemon=True)

    def follow(self, span: object) -> None:
        """Pass spans to where `span` goes, which the user's provider has begun, if that is not known yet."""
        processor = None if self._processors else processor_of(span)
        if processor is not None:
            self._processors = (processor,)
            self.starters = (processor,) if _hears_starts(processor) else ()

    def announce(self, span: trace_api.Span, within: Context) -> None:
        """Notify processors of the start of `span`, which was opened in the context `within` and will be emitted."""
        for processor in self.starters:
            try:
                processor.on_start(span, within)  # type: ignore[arg-type]
            except Exception as error:
                contain("span processor", error)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass on a span that a tracer of the SDK has ended: at once if no other waits, like the SDK does."""
        if self._waiting:
            self.postpone(lambda: span, LAST_WAITING)
        else:
            self._pass_on(span)

    def emit(self, span: ReadableSpan) -> None:
        """Have a finished span passed to all processors, after those that wait, and soon."""
        self.postpone(lambda: span, LAST_WAITING)
        if self._background and self._wake.empty():
            self._wake.put(None)

    def _pass_on(self, span: ReadableSpan) -> None:
        for processor in self._processors:
            try:
                processor.on_end(span)
            except Exception as error:
                contain("span processor", error)

    def postpone(self, make: Callable[[], ReadableSpan], most: int = MOST_WAITING) -> None:
        """Have the span that `make` returns emitted in order, in the background if there is one, unless `most` wait."""
        waiting = self._waiting
        before = len(waiting)
        if before >= most and self._thread.is_alive():
            self.dropped += 1
            report_once(
                "waiting spans",
                "spans are dropped, because a span processor does not return, or takes longer than the steps "
                "themselves (counted in %s). To export fewer: OTEL_GOODPUT_STEP_SAMPLING",
                DROPPED.name,
            )
            return
        waiting.append(make)
        if not self._background:
            self._emit_here()
        elif before == MANY_WAITING - 1:
            self._wake.put(None)

    def start(self) -> None:
        if self._background and not started(self._thread, "spans are exported by the thread that ends them"):
            self._background = False

    def _loop(self) -> None:
        while not self._closed:
            with suppress(Empty):
                self._wake.get(timeout=TICK_S)
            with self._emitting:
                self._emit()

    def catch_up(self, seconds: float | None = None) -> bool:
        """Wait until what was postponed is emitted; returns False if it took more `seconds` (by default, a moment)."""
        if not self._waiting or self._busy == get_ident():  # a processor opens phases itself
            return True
        if not self._thread.is_alive():
            self._emit_here()
            return not self._waiting
        if seconds is None:
            if self._hanging:  # do not wait again
                return False
            seconds = LONGEST_CATCHING_UP_S
        reached = threading.Event()
        self._waiting.append(reached.set)
        self._wake.put(None)
        done = reached.wait(max(seconds, 0.0))
        self._hanging = not done and seconds > LONGEST_WAIT_S  # on a busy machine, a moment tells nothing
        return done

    def _emit_here(self) -> None:
        # Waits only a moment for another thread that emits, and not again for a processor that hangs.
        if self._busy == get_ident():
            return
        if not self._emitting.acquire(timeout=0 if self._hanging else LONGEST_WAIT_S):
            self._hanging = True
            return
        try:
            self._hanging = False
            self._emit()
        finally:
            self._emitting.release()

    def _emit(self) -> None:
        waiting = self._waiting
        self._busy = get_ident()
        try:
            while waiting:
                try:
                    span = waiting[0]()
                    if span is not None:
                        self._pass_on(span)
                        self._hanging = False
                except Exception as error:
                    contain("span", error)
                waiting.popleft()  # only now, so that whoever finds none waiting is really behind all of them
        finally:
            self._busy = 0

    def drop(self) -> None:
        """Forget what waits, in a forked child, which has no background."""
        self._waiting.clear()
        self._background = False
        self._emitting = threading.Lock()  # the parent's background may have held it

    def close(self) -> None:
        """Stop emitting spans, after those that wait unless a processor hangs."""
        self.catch_up()
        self._processors = ()
        self._closed, self._background = True, False
        self._wake.put(None)


def _hears_starts(processor: SpanProcessor) -> bool:
    """Whether a processor's ``on_start`` does anything; those of the SDK's exporting processors are empty overrides."""
    kind = type(processor)
    if kind.__module__.startswith("opentelemetry.sdk.trace"):
        return isinstance(processor, _FORWARDING)  # to processors of any kind, and also to those added later
    return kind.on_start is not SpanProcessor.on_start
