"""The steps of a PyTorch loop that nobody instruments: by its data loader, its optimizer, and its model's mode.

If the loop gets its batches from a ``DataLoader``, a step lasts from the arrival of a batch to the request for the
first batch after ``Optimizer.step()``; so batches whose gradients are accumulated are one step. Otherwise a step lasts
from the end of one ``Optimizer.step()`` to that of the next: all that the loop does in between counts as the step, but
for evaluations, saves and loads. The first one lasts from its first ``backward()``. Of several optimizers, the first
one counts.

A pass over a loader without gradients is an evaluation. So is the time from ``model.eval()`` to ``model.train()`` of
the model that is trained, or to the end of such a pass. What a framework's callback or the user records goes first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, TypeVar
from weakref import WeakSet, ref

from otel_goodput._integrations.trainer_loop import EVALUATION, trains
from otel_goodput._integrations.wrapping import Done, wrap
from otel_goodput._recording import departure
from otel_goodput._recording.contexts import PhaseContext
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.loading import Proxy, begin_pass
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._recording.turns import Turns
from otel_goodput._runtime.guard import contain
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import GOODPUT_BLOCKING, GOODPUT_PHASE, Phase

logger = redacting_logger("otel_goodput")

T = TypeVar("T")

SITE: Final = "PyTorch loop"
AWAY: Final = 2  # steps of the optimizer outside of all passes, after which loaders do not delimit steps any more


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record what loops of PyTorch do from now on. Return what ends it, or None while PyTorch is being imported."""
    torch: Any = sys.modules.get("torch")
    loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    optimizers: Any = sys.modules.get("torch.optim.optimizer")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    importing = getattr(getattr(torch, "__spec__", None), "_initializing", False) and not hasattr(torch, "compiler")
    if importing or loader is None or optimizers is None or module is None or not hasattr(torch, "Tensor"):
        return None
    version = getattr(torch, "__version__", "")
    before, after = (getattr(optimizers, f"register_optimizer_step_{when}_hook", None) for when in ("pre", "post"))
    if before is None or after is None:
        logger.info("loops of PyTorch %s are not recorded: its optimizers have no hooks", version)
        return lambda: None
    loop = TorchLoop(tracer, torch.is_grad_enabled)
    compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", bool)
    handles = [before(_hook(loop.before_optimizer, compiling)), after(_hook(loop.after_optimizer, compiling))]
    undo = [
        *(handle.remove for handle in handles),
        _wrap_passes(loader, loop),
        wrap(module, "eval", lambda model, *_: lambda *_: loop.eval_mode(model), SITE),
        wrap(torch.Tensor, "backward", lambda *_: loop.before_backward(), SITE),
        wrap(module, "train", lambda _, args, kwargs: loop.mode_changes(args, kwargs), SITE),
        loop.remove,
    ]
    logger.info("loops of PyTorch %s are recorded by their loaders and optimizers", version)

    def remove() -> None:
        while undo:
            undo.pop()()

    return remove


def _hook(call: Callable[[Any], object], compiling: Callable[[], bool]) -> Callable[..., None]:
    """Return a hook of optimizers. If a step is compiled, TorchDynamo traces it, and must find nothing in it."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not compiling():
            call(optimizer)

    return hook


def _wrap_passes(loader: Any, loop: TorchLoop) -> Callable[[], None]:
    original = vars(loader)["__iter__"]

    @wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        return loop.pass_over(self, lambda: original(self), sys._getframe(1))

    def unwrap() -> None:
        if vars(loader)["__iter__"] is __iter__:
            loader.__iter__ = original

    loader.__iter__ = __iter__
    return unwrap


class TorchLoop:
    """The loop of one recorder. All methods may be called on any thread, and do something on the one that trains.

    Args:
        grad: returns whether gradients are recorded now.
    """

    def __init__(self, tracer: PhaseTracer, grad: Callable[[], bool]) -> None:
        self._tracer = tracer
        self._grad = grad
        self._spans = tracer.spans
        self._turns, self._place = Turns(tracer), departure.Place()
        self._thread = 0  # that of the first step; 0 before
        self._optimizer: Callable[[], Any] = lambda: None
        self._others = 0  # steps of other optimizers since the last one of the optimizer that counts
        self._step: FastSpan | None = None
        self._stepped = False  # the optimizer has, in the open step
        self._arrived = 0  # when the first batch came of which it is not known whether it belongs to a step, ns
        self._backward = 0  # when backward() began while no step was open, ns
        self._by_loader = False
        self._several = False  # the optimizer steps several times with one batch
        self._away = 0  # steps of the optimizer outside of passes
        self._passes = 0  # that are open, with gradients
        self._loaders: WeakSet[Any] = WeakSet()  # that the loop was seen to train with
        self._evaluation: AbstractContextManager[Any] | None = None
        self._mode = False  # the evaluation is one from eval() to train()
        self._trained_in_eval = False
        self.removed = False
        tracer.hooks.at_others_steps(self.give_way)

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
        phases = self._tracer.spans.phases
        if len(phases) == 1 and self._tracer.traces.job_key in phases:
            return False
        for span in tuple(phases.values()):
            attributes = span.attributes or {}
            phase = attributes.get(GOODPUT_PHASE)
            ours = phase == Phase.JOB or (self._evaluation is not None and phase == Phase.CUSTOM)
            if not ours and attributes.get(GOODPUT_BLOCKING) is not False:
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
        self._stepped, self._arrived, self._backward, self._thread = False, 0, 0, get_ident()
        step.loop = self._place
        step.open(at)
        if not late:
            self._turns.follow(step)

    def _end_step(self, at: int) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.close(at)

    def _leave_step(self, at: int, failed: bool = False) -> None:
        """End the open step before its end: it is done if the optimizer has stepped in it; else its work decides."""
        step, self._step = self._step, None
        self._arrived = 0
        if step is None:
            return
        if self._stepped:
            step.close(at)
        else:
            whole = self._by_loader and not self._several
            step.abandon(at, failed=failed, left=not failed, took=None if whole else 0)

    def before_backward(self) -> None:
        """Gradients are computed; return nothing to be called after it."""
        if self._step is None and not self._backward and self._active():
            self._backward = self._tracer.clock()

    def before_optimizer(self, optimizer: Any) -> None:
        """The optimizer begins to step."""
        try:
            step = self._step
            if step is not None and step is self._spans.step and not self._stepped and self._evaluation is None:
                return
            if not self._active() or self._others_step():
                return
            if self._evaluation is not None:
                self._trained_in_eval = self._trained_in_eval or self._mode
                self._end_evaluation()
            now = self._tracer.clock()
            if self._step is None:
                self._by_loader = self._by_loader or bool(self._arrived)
                begun = self._arrived or self._backward
                self._begin_step(begun or now, late=bool(begun))
            elif self._stepped and self._optimizer() is optimizer:
                self._several = True
                self._end_step(now)
                self._begin_step(now)
        except Exception as error:
            contain("optimizer step", error)

    def after_optimizer(self, optimizer: Any) -> None:
        """The optimizer has stepped."""
        try:
            step = self._step
            if step is None or step is not self._spans.step or get_ident() != self._thread:
                return
            if self._optimizer() is not optimizer:
                self._others += 1
                if self._optimizer() is not None and self._others < AWAY:
                    return
                self._optimizer = ref(optimizer)
            self._others = 0
            self._stepped = True
            if self._by_loader and self._passes:
                self._away = 0
                if not self._several:
                    return
            else:
                self._away += 1
                self._by_loader = self._by_loader and self._away < AWAY
            now = self._tracer.clock()
            self._end_step(now)
            if self._several or not self._by_loader:
                self._begin_step(now)
        except Exception as error:
            contain("optimizer step", error)

    # --- passes over loaders ------------------------------------------------------------------------------------------

    def pass_over(self, loader: Any, begin: Callable[[], Iterator[T]], frame: FrameType) -> Iterator[T]:
        """Begin a pass over `loader` by `begin`, for `frame`, and return it; wrapped, if it may be recorded."""
        tracer, place = self._tracer, (frame.f_code, frame.f_lasti)
        try:
            if not self._active() or tracer.spans.loading() or self._in_a_phase():
                return begin()
            if not self._grad() or (self._mode and loader not in self._loaders):
                self._evaluate()
                return Pass(self, loader, begin(), place, evaluates=True)
            self._ask(tracer.clock())
        except Exception as error:
            contain("data loader", error)
            return begin()
        return Pass(self, loader, begin_pass(lambda: tracer, begin), place, evaluates=False)

    def _ask(self, now: int) -> None:
        """End the evaluation, and the step whose optimizer has stepped, because a batch is asked for at `now` (ns)."""
        if self._evaluation is not None:
            self.evaluated()
        if self._by_loader and (self._stepped or self._several):
            self._leave_step(now)

    def ask(self, *, trains: bool) -> FastSpan | None:
        """A batch is asked for, of a loader that `trains`; return the load, or None if none is recorded."""
        tracer = self._tracer
        if not self._active() or tracer.spans.loading() or not self._grad() or self._in_a_phase():
            return None
        now, step = tracer.clock(), self._step
        if trains and self._stepped and not self._several and step is not None and self._evaluation is None:
            load = self._turns.load(step, step.step + 1, now)
            if load is not None:
                self._step = None
                return load
        self._ask(now)
        load = tracer.load()
        load.open(now)
        return load

    def came(self, load: FastSpan, *, trains: bool) -> None:
        """The batch is there that `load` waited for."""
        if self._step is None and trains and (step := self._turns.step(load, load.step)) is not None:
            self._step, self._stepped = step, False
            return
        now = self._tracer.clock()
        load.close(now)
        if self._step is None and not self._others_step():
            if trains:
                self._begin_step(now)
            elif not self._arrived:
                self._arrived = now

    def ended(self, failed: bool) -> None:
        """A pass with gradients is over, or an error has left it."""
        self._arrived = 0
        if self._by_loader and self._active():
            self._leave_step(self._tracer.clock(), failed)

    def open_pass(self, change: int) -> None:
        self._passes = max(0, self._passes + change)

    def trains_with(self, loader: Any, *, known: bool) -> bool:
        """Whether the batches of `loader` begin steps: if it is `known`, or the optimizer steps with them now."""
        if not known and self._by_loader and self._stepped:
            self._loaders.add(loader)
        return self._by_loader and (known or loader in self._loaders)

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

    def mode_changes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        """A model is put into another mode; return what is done once it is."""
        if not self._mode or not (args[0] if args else kwargs.get("mode", True)):
            return None
        return lambda *_: self.evaluated()


def _holds(model: Any, optimizer: Any) -> bool:
    """Whether a model has the first and the last parameter of `optimizer`: a part of it, or another one, has not."""
    groups = [group["params"] for group in optimizer.param_groups if group["params"]]
    if not groups:
        return False
    wanted = {id(groups[0][0]), id(groups[-1][-1])}
    return wanted <= set(map(id, model.parameters()))


class Pass(Proxy[T]):
    """One pass over a loader, on the thread that trains. Passes for the iterator that it wraps."""

    __slots__ = ("_evaluates", "_loader", "_loop", "_open", "_place", "_trains")
    _loop: TorchLoop

    def __init__(
        self, loop: TorchLoop, loader: Any, batches: Iterator[T], place: tuple[CodeType, int], *, evaluates: bool
    ) -> None:
        super().__init__(lambda: None, batches)
        members = {"_loop": loop, "_loader": loader, "_evaluates": evaluates, "_place": place}
        members |= {"_open": True, "_trains": False}
        for name, value in members.items():
            object.__setattr__(self, name, value)
        if not evaluates:
            loop.open_pass(1)

    def __iter__(self) -> Pass[T]:
        return self

    def __next__(self) -> T:
        batches: Iterator[T] = self._batches
        loop, load, trains = self._loop, None, self._trains
        try:
            if not self._evaluates:
                if loop.trains_with(self._loader, known=trains) != trains:
                    trains = not trains
                    object.__setattr__(self, "_trains", trains)
                load = loop.ask(trains=trains)
        except Exception as error:
            contain("data loader", error)
        try:
            batch = next(batches)
        except BaseException as error:
            self._over(load, failed=not isinstance(error, StopIteration))
            raise
        try:
            if load is not None:
                loop.came(load, trains=trains)
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
                self._loop.ended(failed)
        except Exception as error:
            contain("data loader", error)

    def __del__(self) -> None:
        if getattr(self, "_open", False) and not sys.is_finalizing():
            failed, _ = departure.way_left(*self._place)
            self._over(None, failed=failed)
