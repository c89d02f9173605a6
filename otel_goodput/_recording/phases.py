"""The public API of phases of a training job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from types import TracebackType
from typing import Any, ParamSpec, Protocol, SupportsIndex, TypeVar, cast

from opentelemetry.trace import Span

from otel_goodput._accounting.rules import STEP
from otel_goodput._journal.records import LARGEST
from otel_goodput._recording import contexts, plain
from otel_goodput._recording.contexts import UNRECORDED, FastContext, PhaseContext, Unrecorded
from otel_goodput._recording.decorators import F, decorate, forgiving
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.loading import Loading, Loads, record_passes
from otel_goodput._recording.nesting import innermost
from otel_goodput._recording.ready_batches import QueueDepth
from otel_goodput._recording.step_loop import Steps
from otel_goodput._recording.tracer import Find, Save
from otel_goodput._runtime.guard import contain, refuse, report_once, unrecorded
from otel_goodput.errors import PhaseError
from otel_goodput.semconv import Phase

Batches = TypeVar("Batches", bound=Iterable[Any])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", covariant=True)


class Opening(Protocol[S]):
    """A phase: ``with … as span:``, or a decorator that opens a new one at every call.

    One type instead of a union, because mypy treats a function as untyped if its decorator is a union.
    """

    def __enter__(self) -> S: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __call__(self, function: F) -> F: ...

    def until(self, end: int) -> None: ...


def _times(start_time: int | None, end_time: int | None, blocking: bool | None) -> dict[str, Any]:
    return {"start_time": start_time, "end_time": end_time, "blocking": blocking}


@forgiving
class Phases:
    """The phases of one job. The functions of the package are the methods of the default instance.

    A phase is a context manager, which yields its span, and a decorator. A phase that is used wrongly, such as a step
    without a number, does not raise: it is logged and left out. With ``OTEL_GOODPUT_STRICT=true`` it raises PhaseError.

    Args of most phases:
        start_time: when it began, in ns since 1970, if it has begun already; by default now.
        end_time: when it ended, in ns since 1970; by default when the block or function is left.
        blocking: whether it holds up training; by default, whether it is opened on the training thread. That is the
            thread that opened the job, until another one opens steps.
    """

    def __init__(self, find: Find, trains: Callable[[], object] = lambda: None) -> None:
        self._find = find
        self._trains = trains  # called when a job, or steps that are not recorded, are about to begin

    def job(self, *, start_time: int | None = None, end_time: int | None = None) -> Opening[Span]:
        """One attempt at the job, from its start to its end; all other phases are inside it. Times in ns."""
        self._trains()
        return contexts.JobContext(self._find, Phase.JOB, start_time=start_time, end_time=end_time)

    def accelerator_init(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> Opening[Span]:
        """Starting the accelerators and the distributed runtime."""
        return PhaseContext(self._find, Phase.ACCELERATOR_INIT, **_times(start_time, end_time, blocking))

    def training_prep(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> Opening[Span]:
        """Setting up the model, the optimizer and the data pipeline."""
        return PhaseContext(self._find, Phase.TRAINING_PREP, **_times(start_time, end_time, blocking))

    def data_loading(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> Opening[FastSpan]:
        """Fetching a batch."""
        try:
            tracer = self._find()
            if tracer is not None and start_time is None and end_time is None:
                return tracer.load(None, None, plain.flag(blocking, "blocking", None))
        except Exception as error:
            contain("phase start", error)
        return FastContext(self._find, Phase.DATA_LOADING, **_times(start_time, end_time, blocking))

    def step(
        self,
        step: SupportsIndex,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        blocking: bool | None = None,
    ) -> Opening[FastSpan]:
        """The training step numbered `step`, an int from 0.

        Args:
            step: its number; repeating a number is a rollback to it.
        """
        try:
            tracer = self._find()
            if (
                tracer is not None
                and type(step) is int
                and 0 <= step <= LARGEST
                and start_time is None
                and end_time is None
                and (blocking is None or type(blocking) is bool)
            ):
                return tracer.step(step, None, None, blocking)
        except Exception as error:
            contain("phase start", error)
        self._trains()
        return FastContext(self._find, Phase.STEP, step=step, **_times(start_time, end_time, blocking))

    def steps(self, batches: Iterable[T], *, start: int | None = None) -> Steps[T]:
        """Iterate over `batches` as (step number from `start`, batch), with a data load and a step for each.

        A step completes when the loop asks for the next one. In the loop, :meth:`observe` and :meth:`current_step` act
        on the open step.

        Args:
            batches: an iterable of batches.
            start: number of the first step. By default, numbers continue those of the previous loop in this process, or
                follow the checkpoint restored since; the first loop begins at 0.
        """
        number = None
        try:
            number = None if start is None else plain.numbered(start, "steps")
        except PhaseError as error:
            refuse(error)
        self._trains()
        return Steps(self._find(), batches, number)

    def observe(self, output: object) -> None:
        """Declare that the open step has left the device when `output` is ready.

        The step is that of the caller's context (its thread or asyncio task), else the open step of the training
        thread. Outside a step, this does nothing and logs a warning once. Costs about a microsecond; never blocks.

        Args:
            output: a jax array, or a tree, of which the smallest array is watched. It must not be donated to the next
                step; the loss is a good choice.
        """
        try:
            tracer = self._find()
            if tracer is not None:
                step = self.current_step()
                if step.is_recording():
                    step.observe(output)
                else:
                    report_once(
                        "observe outside",
                        "goodput.observe() was called outside of a step and has no effect; call it in the body of "
                        "`for step, batch in goodput.steps(loader):` or of `with goodput.step(n):`",
                    )
        except Exception as error:
            contain("observe", error)

    def current_step(self) -> FastSpan | Unrecorded:
        """Return the span of the open step, to set attributes and add events; outside of a step, one that records none.

        The step is that of the caller's context (its thread or asyncio task), else the open step of the training
        thread.
        """
        try:
            tracer = self._find()
            if tracer is not None:
                around = innermost()
                while around is not None and not (
                    isinstance(around, FastSpan) and around.phase == STEP and around.nesting is tracer.nesting
                ):
                    around = around.outer
                step = around or tracer.open_step
                if isinstance(step, FastSpan) and step.is_recording():
                    return step
        except Exception as error:
            contain("current_step", error)
        return UNRECORDED

    def loading(self, batches: Batches, *, queue_depth: QueueDepth | None = None) -> Batches:
        """Return `batches` with a data load but no step around each ``next()``; for loops that open their steps.

        A DataLoader of PyTorch is returned itself. Loaders that a framework creates from it, over the same dataset, are
        recorded too. Anything else is wrapped in an object with its attributes.

        Args:
            batches: an iterable of batches.
            queue_depth: a function that returns how many batches are ready, or the queue that holds them; for the gauge
                ``goodput.loading.queue_depth``.
        """
        if type(batches) in (Loading, Loads) and queue_depth is None:
            return batches
        if record_passes(self._find, batches, queue_depth):
            return batches
        wrapper = Loads if isinstance(batches, Iterator) else Loading
        return cast(Batches, wrapper(self._find, batches, queue_depth))

    def traced_step(self, function: Callable[P, R], *, start: int | None = None) -> Callable[P, R]:
        """Return `function` with a step around each call, numbered as in :meth:`steps`; observe its smallest output.

        If parts of the output are donated to the next call (state), the function finds one that is not after a few
        steps. Without an output (a model changed in place), the step is marked like any other. The step of a
        coroutine or a generator lasts until that ends; what a generator yields is not observed.

        Args:
            function: what does one step when it is called.
            start: number of the first step; by default as in :meth:`steps`.
        """
        first = None
        try:
            first = None if start is None else plain.numbered(start, "traced_step")
        except PhaseError as error:
            refuse(error)
        numbers = None if first is None else count(first)

        def again() -> Opening[FastSpan]:
            tracer = self._find()
            following = 0 if tracer is None else tracer.next_number()
            made = self.step(following if numbers is None else next(numbers))
            if numbers is None and isinstance(made, FastSpan):
                made.numbered = False
            return made

        def observe(span: object, output: object) -> None:
            # A result without arrays is no mistake in a program that does not use jax.
            if isinstance(span, FastSpan) and output is not None and "jax" in sys.modules:
                span.observe(output)

        return decorate(again, function, observe)

    def part(self, name: str) -> Opening[FastSpan]:
        """A part of the open step, such as ``"forward"``: its time stays the step's; use few different names.

        Args:
            name: its name, which is also the name of its span.
        """
        try:
            tracer = self._find()
            if tracer is not None and type(name) is str and name and name[0] > " ":
                return FastSpan.of_part(tracer, name)
        except Exception as error:
            contain("phase start", error)
        return FastContext(self._find, Phase.PART, name=name)

    def checkpoint_save(
        self,
        step: SupportsIndex | None = None,
        *,
        durable: bool = True,
        start_time: int | None = None,
        end_time: int | None = None,
        blocking: bool | None = None,
    ) -> Opening[Save]:
        """Saving a checkpoint after `step`; with ``durable=False`` it counts only after ``save.durable()``.

        Args:
            step: number of the step after which it is saved; by default that of the open step, if there is one.
            durable: whether the checkpoint is safely stored once the phase has ended. False for saves that continue in
                the background.
        """
        times = _times(start_time, end_time, blocking)
        return contexts.SaveContext(self._find, Phase.CHECKPOINT_SAVE, step=step, durable=durable, **times)

    def checkpoint_restore(
        self,
        step: SupportsIndex | None = None,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        blocking: bool | None = None,
    ) -> Opening[Span]:
        """Restoring the checkpoint of `step`.

        Args:
            step: number of the step after which the checkpoint was saved; :meth:`steps` continues after it.
        """
        times = _times(start_time, end_time, blocking)
        return contexts.RestoreContext(self._find, Phase.CHECKPOINT_RESTORE, step=step, **times)

    def custom(
        self, name: str, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> Opening[Span]:
        """Anything else that blocks training, such as ``"eval"``; use few different names.

        Args:
            name: its name, which is also the name of its span and an attribute of metrics.
        """
        return PhaseContext(self._find, Phase.CUSTOM, name=name, **_times(start_time, end_time, blocking))

    def elastic_wait(
        self, kind: str, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> Opening[Span]:
        """Waiting for slices: `kind` is ``"slice_down"`` or ``"scale_up"``.

        Args:
            kind: ``"slice_down"`` after slices were lost, ``"scale_up"`` while more slices join.
        """
        return PhaseContext(self._find, Phase.ELASTIC_WAIT, name=kind, **_times(start_time, end_time, blocking))

    def elastic_reinit(
        self, *, start_time: int | None = None, end_time: int | None = None, blocking: bool | None = None
    ) -> Opening[Span]:
        """Setting up again after the number of slices changed."""
        return PhaseContext(self._find, Phase.ELASTIC_REINIT, **_times(start_time, end_time, blocking))

    def exclusion(self, *, start_time: int | None = None, end_time: int | None = None) -> Opening[Span]:
        """Time that the account excludes altogether (rule R7)."""
        return PhaseContext(self._find, Phase.EXCLUSION, start_time=start_time, end_time=end_time)

    def slice_counts(self, active: int, available: int, total: int, *, time: int | None = None) -> None:
        """Record that since `time` (ns; by default now) `active` of `total` slices do steps and `available` are up.

        Args:
            active: slices that do steps.
            available: slices that are up.
            total: slices that the job is configured for.
            time: since when, in ns since 1970; by default now.
        """
        tracer = self._find()
        if tracer is None:
            return
        try:
            stepping, there, all_of_them = (
                plain.numbered(count, "slice_counts", "a number of slices") for count in (active, available, total)
            )
            since = plain.moment(time, "slice_counts")
            if stepping is not None and there is not None and all_of_them is not None:
                tracer.account.slice_counts(stepping, there, all_of_them, tracer.clock() if since is None else since)
        except Exception as error:
            unrecorded("slice_counts", error)
