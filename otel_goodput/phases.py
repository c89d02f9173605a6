"""The phases of a training job, as users write them: context managers and decorators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Generic, SupportsIndex, TypeVar

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.trace import INVALID_SPAN, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput.errors import PhaseError
from otel_goodput.guard import contain, refuse
from otel_goodput.semconv import (
    ELASTIC_WAITS,
    ERROR_TYPE,
    GOODPUT_BLOCKING,
    GOODPUT_CHECKPOINT_DURABLE,
    GOODPUT_CUSTOM_NAME,
    GOODPUT_ELASTIC_KIND,
    GOODPUT_PHASE,
    GOODPUT_STEP,
    REASONS,
    Phase,
    Reason,
)
from otel_goodput.spans import F, FastSpan, decorate, error_name
from otel_goodput.step_loop import Steps
from otel_goodput.tracer import PhaseTracer

T = TypeVar("T")

Find = Callable[[], "PhaseTracer | None"]


def checked_step(step: SupportsIndex | None, phase: str) -> int:
    """`step` as an int from 0.

    Raises:
        PhaseError: it is none.
    """
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        raise PhaseError(phase, f"{phase}() needs a step number, an int from 0, not {step!r}") from None
    if number < 0:
        raise PhaseError(phase, f"{phase}() needs a step number from 0, not {number}")
    return number


def checked_times(phase: str, *times: object) -> None:
    """Raises:
    PhaseError: one of `times` is neither None nor an integer of ns.
    """
    for time in times:
        if time is not None and not isinstance(time, int):
            raise PhaseError(phase, f"{phase}() takes times as integers of ns since the epoch, not {time!r}")


class PhaseContext:
    """One phase: ``with phase as span:``, or a decorator that opens a new one at every call.

    Finds its tracer when it is entered, so that decorators may be applied before ``configure()``.
    """

    __slots__ = ("_arguments", "_find", "_phase", "_span", "_token")

    def __init__(self, find: Find, phase: str, **arguments: Any) -> None:
        self._find = find
        self._phase = phase
        self._arguments = arguments
        self._span: trace_api.Span | None = None
        self._token: Any = None

    def __enter__(self) -> Any:
        begin = perf_counter_ns()
        tracer = None
        try:
            tracer = self._find()
            if tracer is not None:
                checked_times(self._phase, self._arguments.get("start_time"), self._arguments.get("end_time"))
                self._span = span = self._begin(tracer)
                self._token = context_api.attach(trace_api.set_span_in_context(span))
                return self._yielded(tracer, span)
        except PhaseError as error:
            refuse(error)
        except Exception as error:
            contain("phase start", error)
        finally:
            if tracer is not None:
                tracer.overhead += perf_counter_ns() - begin
        return self._yielded(None, INVALID_SPAN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        span, self._span = self._span, None
        token, self._token = self._token, None
        if span is None:
            return
        begin = perf_counter_ns()
        tracer = None
        try:
            tracer = self._find()
            if kind is not None and error is not None and not _clean_exit(error):
                if isinstance(error, Exception):
                    span.record_exception(error)
                span.set_attribute(ERROR_TYPE, error_name(kind))
                span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {error}"))
            if not span.is_recording():
                pass  # shut down meanwhile, which ended it
            elif tracer is not None:
                self._finish(tracer, error)
                span.end(self._end_time(tracer, span))
            else:
                span.end()
        except Exception as trouble:
            contain("phase end", trouble)
        finally:
            if token is not None:
                context_api.detach(token)
            if tracer is not None:
                tracer.overhead += perf_counter_ns() - begin

    def _begin(self, tracer: PhaseTracer) -> trace_api.Span:
        """Start the span."""
        arguments = self._arguments
        phase = name = self._phase
        attributes: dict[str, types.AttributeValue] = {GOODPUT_PHASE: phase}
        if phase == Phase.CUSTOM:
            name = str(arguments["name"]).strip()
            if not name:
                raise PhaseError(phase, "custom(name) needs a name")
            attributes[GOODPUT_CUSTOM_NAME] = name
        elif phase == Phase.ELASTIC_WAIT:
            if arguments["name"] not in ELASTIC_WAITS:
                raise PhaseError(
                    phase, f"elastic_wait() takes one of {', '.join(ELASTIC_WAITS)}, not {arguments['name']!r}"
                )
            attributes[GOODPUT_ELASTIC_KIND] = arguments["name"]
        if arguments.get("step") is not None:
            attributes[GOODPUT_STEP] = checked_step(arguments["step"], phase)
        blocking = arguments.get("blocking")
        if blocking is not None or not tracer.blocks(None):
            # Which thread it was does not show in a trace.
            attributes[GOODPUT_BLOCKING] = bool(blocking)
        return tracer.start_span(name, attributes, arguments.get("start_time"))

    def _yielded(self, tracer: PhaseTracer | None, span: trace_api.Span) -> Any:
        """What the ``with`` statement yields."""
        return span

    def _finish(self, tracer: PhaseTracer, error: BaseException | None) -> None:
        """The span is about to end."""

    def _end_time(self, tracer: PhaseTracer, span: trace_api.Span) -> int:
        end: int | None = self._arguments.get("end_time")
        if end is None:
            return tracer.clock()
        start: int | None = getattr(span, "start_time", None)
        return tracer.check_end(start, end) if start is not None and end < start else end

    def __call__(self, function: F) -> F:
        return decorate(lambda: type(self)(self._find, self._phase, **self._arguments), function)


def _clean_exit(error: BaseException) -> bool:
    """Leaving by ``sys.exit(0)``, or because a generator was closed, is no failure."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


class JobContext(PhaseContext):
    """The whole of an attempt."""

    __slots__ = ()

    def _begin(self, tracer: PhaseTracer) -> trace_api.Span:
        return tracer.start_job({GOODPUT_PHASE: Phase.JOB}, self._arguments.get("start_time"))

    def _finish(self, tracer: PhaseTracer, error: BaseException | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            tracer.account.notice(REASONS.index(Reason.SIGNAL), tracer.clock())


class SaveContext(PhaseContext):
    """A checkpoint being saved; yields a :class:`Save`."""

    __slots__ = ()

    def _begin(self, tracer: PhaseTracer) -> trace_api.Span:
        tracer.thinner.cut()
        span = super()._begin(tracer)
        span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, bool(self._arguments["durable"]))
        return span

    def _yielded(self, tracer: PhaseTracer | None, span: trace_api.Span) -> Save:
        return Save(tracer, span)


class FastContext(PhaseContext):
    """A step or a data load asked for before ``configure()``, or used wrongly."""

    __slots__ = ()

    def __enter__(self) -> Any:
        tracer = self._find()
        if tracer is None:
            return INVALID_SPAN
        arguments = self._arguments
        times = (arguments.get("start_time"), arguments.get("end_time"), arguments.get("blocking"))
        try:
            checked_times(self._phase, *times[:2])
            if self._phase == Phase.STEP:
                span = tracer.step(checked_step(arguments["step"], self._phase), *times)
            else:
                span = tracer.load(*times)
        except PhaseError as error:
            refuse(error)
            return INVALID_SPAN
        self._span = span
        return span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        span, self._span = self._span, None
        if isinstance(span, FastSpan):
            span.__exit__(kind, error, traceback)


class Save(trace_api.Span):
    """The span of a checkpoint save, and the place to say that the checkpoint is durable."""

    def __init__(self, tracer: PhaseTracer | None, span: trace_api.Span) -> None:
        self._tracer = tracer
        self._span = span

    def durable(self) -> None:
        """The checkpoint is safely stored: what it covers is no longer at risk.

        Needed only after ``checkpoint_save(step, durable=False)``, for saves that go on in the background.
        """
        try:
            if self._span.is_recording():
                self._span.set_attribute(GOODPUT_CHECKPOINT_DURABLE, True)
            elif self._tracer is not None:
                self._tracer.account.durable(self._span.get_span_context().span_id, self._tracer.clock())
        except Exception as error:
            contain("checkpoint durable", error)

    def end(self, end_time: int | None = None) -> None:
        self._span.end(end_time)

    def get_span_context(self) -> SpanContext:
        return self._span.get_span_context()

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        self._span.set_attributes(attributes)

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self._span.set_attribute(key, value)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        self._span.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        self._span.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self._span.update_name(name)

    def is_recording(self) -> bool:
        return self._span.is_recording()

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._span.set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self._span.record_exception(exception, attributes, timestamp, escaped)


class Phases(Generic[T]):
    """The phases of one job. The module's functions are those of the configured default."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def job(self, *, start_time: int | None = None, end_time: int | None = None) -> PhaseContext:
        """One attempt at the job, from its start to its end; everything else happens in it. Times in ns."""
        return JobContext(self._find, Phase.JOB, start_time=start_time, end_time=end_time)

    def accelerator_init(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> PhaseContext:
        """Accelerators and the distributed runtime come up."""
        return PhaseContext(
            self._find, Phase.ACCELERATOR_INIT, start_time=start_time, end_time=end_time, blocking=blocking
        )

    def training_prep(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> PhaseContext:
        """Model, optimizer and data pipeline are set up."""
        return PhaseContext(
            self._find, Phase.TRAINING_PREP, start_time=start_time, end_time=end_time, blocking=blocking
        )

    def data_loading(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> FastSpan | PhaseContext:
        """A batch is fetched."""
        tracer = self._find()
        if tracer is None or start_time is not None or end_time is not None:
            return FastContext(
                self._find, Phase.DATA_LOADING, start_time=start_time, end_time=end_time, blocking=blocking
            )
        return tracer.load(None, None, blocking)

    def step(
        self,
        step: SupportsIndex,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        blocking: bool | None = None,
    ) -> FastSpan | PhaseContext:
        """The training step numbered `step`, an int from 0."""
        tracer = self._find()
        if tracer is None or step.__class__ is not int or step < 0 or start_time is not None or end_time is not None:
            return FastContext(
                self._find, Phase.STEP, step=step, start_time=start_time, end_time=end_time, blocking=blocking
            )
        return tracer.step(step, None, None, blocking)

    def steps(self, batches: Iterable[T], *, start: int = 0) -> Steps[T]:
        """Iterate over `batches` as (step number from `start`, batch), with a data load and a step for each."""
        number = 0
        try:
            number = checked_step(start, "steps")
        except PhaseError as error:
            refuse(error)
        return Steps(self._find(), batches, number)

    def checkpoint_save(
        self,
        step: SupportsIndex | None = None,
        *,
        durable: bool = True,
        start_time: int | None = None,
        end_time: int | None = None,
        blocking: bool | None = None,
    ) -> PhaseContext:
        """A checkpoint is saved after `step`; with ``durable=False`` it counts only after ``save.durable()``."""
        return SaveContext(
            self._find,
            Phase.CHECKPOINT_SAVE,
            step=step,
            durable=durable,
            start_time=start_time,
            end_time=end_time,
            blocking=blocking,
        )

    def checkpoint_restore(
        self,
        step: SupportsIndex | None = None,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        blocking: bool | None = None,
    ) -> PhaseContext:
        """A checkpoint, that of `step`, is restored."""
        return PhaseContext(
            self._find, Phase.CHECKPOINT_RESTORE, step=step, start_time=start_time, end_time=end_time, blocking=blocking
        )

    def custom(
        self, name: str, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> PhaseContext:
        """Anything else that holds up training, such as ``"eval"``; few different names."""
        return PhaseContext(
            self._find, Phase.CUSTOM, name=name, start_time=start_time, end_time=end_time, blocking=blocking
        )

    def elastic_wait(
        self, kind: str, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> PhaseContext:
        """Waiting for slices: `kind` is ``"slice_down"`` or ``"scale_up"``."""
        return PhaseContext(
            self._find, Phase.ELASTIC_WAIT, name=kind, start_time=start_time, end_time=end_time, blocking=blocking
        )

    def elastic_reinit(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> PhaseContext:
        """Setting up again after the number of slices changed."""
        return PhaseContext(
            self._find, Phase.ELASTIC_REINIT, start_time=start_time, end_time=end_time, blocking=blocking
        )

    def exclusion(self, *, start_time: int | None = None, end_time: int | None = None) -> PhaseContext:
        """Time that is left out of the account altogether (rule R7)."""
        return PhaseContext(self._find, Phase.EXCLUSION, start_time=start_time, end_time=end_time)

    def slice_counts(self, active: int, available: int, total: int, *, time: int | None = None) -> None:
        """From `time` (ns, by default now) on, `active` of `total` slices are stepping and `available` are there."""
        tracer = self._find()
        if tracer is None:
            return
        try:
            stepping, there, all_of_them = (checked_step(count, "slice_counts") for count in (active, available, total))
            tracer.account.slice_counts(stepping, there, all_of_them, tracer.clock() if time is None else time)
        except PhaseError as error:
            refuse(error)
        except Exception as error:
            contain("slice_counts", error)
