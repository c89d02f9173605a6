"""The steps of a PyTorch loop that nobody instruments: by its data loader, its optimizer, and its model's mode.

If the loop gets its batches from a ``DataLoader``, a step lasts from the arrival of a batch to the request for the
first batch after ``Optimizer.step()``; so batches whose gradients are accumulated are one step. Otherwise a step lasts
from the end of one ``Optimizer.step()`` to that of the next: all that the loop does in between counts as the step, but
for evaluations, saves and loads. Of several optimizers, the first one counts.

A pass over a loader without gradients is an evaluation. So is the time from ``model.eval()`` to ``model.train()`` of
the model that is trained, or to the end of such a pass. What a framework's callback or the user records goes first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Final, TypeVar
from weakref import WeakSet, ref

from otel_goodput._integrations.trainer_loop import EVALUATION, trains
from otel_goodput._recording.contexts import PhaseContext
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.loading import Proxy, begin_pass
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain
from otel_goodput.semconv import GOODPUT_PHASE, Phase

T = TypeVar("T")
AWAY: Final = 2  # steps of the optimizer outside of all passes, after which loaders do not delimit steps any more


class TorchLoop:
    """The loop of one recorder. All methods may be called on any thread, and do something on the one that trains.

    Args:
        grad: returns whether gradients are recorded now.
    """

    def __init__(self, tracer: PhaseTracer, grad: Callable[[], bool]) -> None:
        self._tracer = tracer
        self._grad = grad
        self._thread = 0  # that of the first step; 0 before
        self._optimizer: Callable[[], Any] = lambda: None
        self._others = 0  # steps of other optimizers since the last one of the optimizer that counts
        self._step: FastSpan | None = None
        self._stepped = False  # the optimizer has, in the open step
        self._arrived = 0  # when the first batch came of which it is not known whether it belongs to a step, ns
        self._by_loader = False
        self._away = 0  # steps of the optimizer outside of passes
        self._passes = 0  # that are open, with gradients
        self._loaders: WeakSet[Any] = WeakSet()  # that the loop was seen to train with
        self._evaluation: AbstractContextManager[Any] | None = None
        self._mode = False  # the evaluation is one from eval() to train()
        self._trained_in_eval = False
        self.removed = False
        tracer.hooks.give_way = self.give_way

    def remove(self) -> None:
        """Record nothing more."""
        self.removed = True

    # --- who records --------------------------------------------------------------------------------------------------

    def _active(self) -> bool:
        """Whether this thread trains, and nobody else records its steps."""
        tracer = self._tracer
        if self.removed or tracer.closed or not tracer.blocks(None) or trains(tracer):
            return False
        return self._thread in (0, get_ident())

    def _others_step(self) -> bool:
        step = self._tracer.open_step
        return step is not None and step is not self._step

    def _in_a_phase(self) -> bool:
        """Whether the user, or another integration, has opened a phase around the caller."""
        for span in tuple(self._tracer.spans.phases.values()):
            phase = (span.attributes or {}).get(GOODPUT_PHASE)
            if phase not in (Phase.JOB, None) and not (self._evaluation is not None and phase == Phase.CUSTOM):
                return True
        return False

    def give_way(self, left: bool) -> None:
        """End what is open, because the job ends, or somebody else records steps from now on."""
        self._end_evaluation()
        if left:
            self._leave_step(self._tracer.clock())

    # --- steps --------------------------------------------------------------------------------------------------------

    def _begin_step(self, at: int, *, late: bool = False) -> None:
        """Begin the next step at `at` (ns); `late`: that is over."""
        tracer = self._tracer
        self._step = step = tracer.step(tracer.next_number(), at if late else None)
        step.numbered = False
        self._stepped, self._arrived, self._thread = False, 0, get_ident()
        step.open(at)

    def _end_step(self, at: int) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.close(at)

    def _leave_step(self, at: int) -> None:
        """End the open step before its end: it is done if the optimizer has stepped in it; else its work decides."""
        step, self._step = self._step, None
        self._arrived = 0
        if step is None:
            return
        if self._stepped:
            step.close(at)
        else:
            step.abandon(at, left=True, took=None if self._by_loader else 0)

    def before_optimizer(self, optimizer: Any) -> None:
        """The optimizer begins to step."""
        try:
            if not self._active() or self._others_step():
                return
            if self._evaluation is not None:
                self._trained_in_eval = self._trained_in_eval or self._mode
                self._end_evaluation()
            if self._step is None:
                self._by_loader = self._by_loader or bool(self._arrived)
                now = self._tracer.clock()
                self._begin_step(self._arrived or now, late=bool(self._arrived))
        except Exception as error:
            contain("optimizer step", error)

    def after_optimizer(self, optimizer: Any) -> None:
        """The optimizer has stepped."""
        try:
            if self._step is None or not self._active() or self._step is not self._tracer.open_step:
                return
            if self._optimizer() is not optimizer:
                self._others += 1
                if self._optimizer() is not None and self._others < AWAY:
                    return
                self._optimizer = ref(optimizer)
            self._others = 0
            self._stepped = True
            if self._passes:
                self._away = 0
                return
            self._away += 1
            if self._by_loader and self._away >= AWAY:
                self._by_loader = False
            now = self._tracer.clock()
            self._end_step(now)
            if not self._by_loader:
                self._begin_step(now)
        except Exception as error:
            contain("optimizer step", error)

    # --- passes over loaders ------------------------------------------------------------------------------------------

    def pass_over(self, loader: Any, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Begin a pass over `loader` by `begin`, and return it; wrapped, if it may be recorded."""
        tracer = self._tracer
        try:
            if not self._active() or tracer.spans.loading() or self._in_a_phase():
                return begin()
            if self._grad():
                self._close_before(tracer.clock())
            else:
                self._evaluate()
                return Pass(self, loader, begin(), evaluates=True)
        except Exception as error:
            contain("data loader", error)
            return begin()
        return Pass(self, loader, begin_pass(lambda: tracer, begin), evaluates=False)

    def _close_before(self, now: int) -> None:
        """End the step whose optimizer has stepped, and the evaluation, because a batch is asked for at `now`."""
        self._end_evaluation()
        if self._step is not None and self._stepped:
            self._end_step(now)

    def ask(self) -> FastSpan | None:
        """A batch is asked for; return the load, or None if none is recorded."""
        tracer = self._tracer
        if not self._active() or tracer.spans.loading() or not self._grad() or self._in_a_phase():
            return None
        now = tracer.clock()
        if self._by_loader or not self._stepped:
            self._close_before(now)
        load = tracer.load()
        load.open(now)
        return load

    def came(self, load: FastSpan, loader: Any) -> None:
        """The batch is there that `load` waited for."""
        now = self._tracer.clock()
        load.close(now)
        if self._step is None and not self._others_step():
            if self._by_loader and loader in self._loaders:
                self._begin_step(now)
            elif not self._arrived:
                self._arrived = now

    def ended(self) -> None:
        """A pass with gradients is over."""
        self._arrived = 0
        if self._by_loader and self._active():
            self._leave_step(self._tracer.clock())

    def open_pass(self, change: int) -> None:
        self._passes = max(0, self._passes + change)

    def learn(self, loader: Any) -> None:
        """If the optimizer steps with the batches of `loader`, the next ones begin steps."""
        if self._by_loader and self._stepped:
            self._loaders.add(loader)

    # --- evaluations --------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        if self._evaluation is None:
            if not self._by_loader or self._stepped:
                self._leave_step(self._tracer.clock())
            tracer = self._tracer
            self._evaluation = phase = PhaseContext(lambda: tracer, Phase.CUSTOM, name=EVALUATION)
            phase.__enter__()

    def _end_evaluation(self) -> None:
        phase, self._evaluation, self._mode = self._evaluation, None, False
        if phase is not None:
            phase.__exit__(None, None, None)

    def evaluated(self) -> None:
        """A pass without gradients is over, or the model is in training mode again."""
        if self._evaluation is None or not self._active():
            return
        self._end_evaluation()
        if not self._by_loader and self._thread and self._step is None and not self._others_step():
            self._begin_step(self._tracer.clock())

    def eval_mode(self, model: Any) -> None:
        """A model was put into evaluation mode."""
        optimizer = self._optimizer()
        if optimizer is None or self._trained_in_eval or not self._active() or self._in_a_phase():
            return
        if self._evaluation is None and not self._others_step() and _holds(model, optimizer):
            self._evaluate()
            self._mode = True

    def train_mode(self) -> None:
        """A model was put into training mode."""
        if self._mode:
            self.evaluated()


def _holds(model: Any, optimizer: Any) -> bool:
    """Whether a model has the first and the last parameter of `optimizer`: a part of it, or another one, has not."""
    groups = [group["params"] for group in optimizer.param_groups if group["params"]]
    if not groups:
        return False
    wanted = {id(groups[0][0]), id(groups[-1][-1])}
    return wanted <= set(map(id, model.parameters()))


class Pass(Proxy[T]):
    """One pass over a loader, on the thread that trains. Passes for the iterator that it wraps."""

    __slots__ = ("_evaluates", "_loader", "_loop", "_open")
    _loop: TorchLoop

    def __init__(self, loop: TorchLoop, loader: Any, batches: Iterator[T], *, evaluates: bool) -> None:
        super().__init__(lambda: None, batches)
        for name, value in (("_loop", loop), ("_loader", loader), ("_evaluates", evaluates), ("_open", True)):
            object.__setattr__(self, name, value)
        if not evaluates:
            loop.open_pass(1)

    def __iter__(self) -> Pass[T]:
        return self

    def __next__(self) -> T:
        batches: Iterator[T] = self._batches
        loop, load = self._loop, None
        try:
            if not self._evaluates:
                loop.learn(self._loader)
                load = loop.ask()
        except Exception as error:
            contain("data loader", error)
        try:
            batch = next(batches)
        except BaseException as error:
            self._over(load, failed=not isinstance(error, StopIteration))
            raise
        try:
            if load is not None:
                loop.came(load, self._loader)
        except Exception as error:
            contain("data loader", error)
        return batch

    def _over(self, load: FastSpan | None, *, failed: bool) -> None:
        try:
            if load is not None:
                load.abandon(self._loop._tracer.clock(), failed=failed)
            if not self._open:
                return
            object.__setattr__(self, "_open", False)
            if self._evaluates:
                self._loop.evaluated()
            else:
                self._loop.open_pass(-1)
                if not failed:
                    self._loop.ended()
        except Exception as error:
            contain("data loader", error)

    def __del__(self) -> None:
        if self._open and not sys.is_finalizing():
            self._over(None, failed=False)
