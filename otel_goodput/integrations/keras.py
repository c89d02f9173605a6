"""Keras 3: ``model.fit(…, callbacks=[GoodputCallback()])``.

Keras calls ``on_train_batch_begin`` before it fetches the batch, and does not call ``on_train_batch_end`` if there is
none left. So the callback marks the calls of ``fit`` that are recorded, and the rest is seen where it happens: a step
is the model's ``train_function`` from when it has its batch on, a load is the ``next`` of the epoch's iterator. A step
is one batch, with JAX also if ``compile(steps_per_execution=N)`` has several of them done in one call.

Steps are counted over all epochs. Keras always resumes at the begin of an epoch; if the backup was made in the middle
of it, Keras repeats the batches before. So the numbers go back to that begin, and what is repeated is lost progress.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar, Final
from weakref import WeakSet

from otel_goodput._integrations.wrapping import Before, Done, within, wrap
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import containing, report_once
from otel_goodput._text.redact import redacting_logger
from otel_goodput.integrations import new_loop

__all__ = ["GoodputCallback"]

logger = redacting_logger("otel_goodput")

keras: Any = import_module("keras")
_Callback: Any = keras.callbacks.Callback

KNOWN: Final = "3"  # major version
CALLBACKS: Final = 5  # place among the arguments of fit()
EVALUATIONS: Final = {"evaluate": "eval", "predict": "predict"}  # methods, and names of their custom phases
SAVES: Final = ("save", "save_weights")
# By backend: the module and the class of the iterator over one epoch. TensorFlow loads inside of a graph.
ITERATORS: Final = {
    "jax": ("keras.src.backend.jax.trainer", "JAXEpochIterator"),
    "torch": ("keras.src.backend.torch.trainer", "TorchEpochIterator"),
}
BATCHES: Final = "_get_iterator"  # its method that begins a pass over the batches
METADATA: Final = "training_metadata.json"  # what BackupAndRestore writes next to the weights

_loop = new_loop()  # of all callbacks: one call of fit at a time is recorded


class GoodputCallback(_Callback):  # type: ignore[misc]
    """Records the calls of ``fit`` that it is given to: steps, loads, validation, checkpoints."""

    async_safe = True  # Keras may go on calling the others' methods in a thread

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to record, if ``fit`` is not Keras' own, which has begun before."""
        with containing("keras"):
            if _known and _Fit.now is None:
                _Fit(self.model).begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Number the steps from the first epoch on."""
        with containing("keras"):
            if (fit := _Fit.now) is not None and fit.model is self.model:
                fit.begin_epoch(epoch, (self.params or {}).get("steps"))

    def on_train_end(self, logs: Any = None) -> None:
        """End the recording of a ``fit`` that is not Keras' own."""
        with containing("keras"):
            if (fit := _Fit.now) is not None and not fit.wrapped and fit.model is self.model:
                fit.end(None)


class _Fit:
    """A call of fit that is recorded; `wrapped`: it is told when that returns."""

    now: _Fit | None = None
    models: ClassVar[WeakSet[Any]] = WeakSet()  # that were fitted

    def __init__(self, model: Any, *, wrapped: bool = False) -> None:
        self.model = model
        self.wrapped = wrapped
        self.thread = get_ident()
        self.number = -1  # of the next step; -1: not known yet
        self.stepping = False  # in the train function
        self.aside = False  # in an evaluation
        self._restored = False
        self._repeated = 0  # batches of the epoch that the restored backup has, and that Keras will repeat
        self._function: tuple[Any, Any] = (None, None)  # the train function and its wrapper
        self._preparing: Done | None = None

    @property
    def here(self) -> bool:
        """Whether the caller is what goes on in this fit."""
        return self.thread == get_ident()

    def begin(self) -> None:
        _Fit.now = self
        _Fit.models.add(self.model)
        _loop.begin()
        self._preparing = within(_loop.preparation())

    def _prepared(self, error: BaseException | None = None) -> None:
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing(None, error)

    def end(self, error: BaseException | None) -> None:
        _Fit.now = None
        self._prepared(error)
        _loop.end(error)
        original, wrapper = self._function
        if wrapper is not None and self.model.train_function is wrapper:
            self.model.train_function = original

    def restore(self, path: Any) -> None:
        """Take note that the weights at `path` were loaded."""
        self._restored, self._repeated = True, 0
        metadata = Path(str(path)).with_name(METADATA)
        if metadata.exists():
            batch = int(json.loads(files.read_named(metadata))["batch"])  # the last one; 0: the epoch was over
            self._repeated = batch + 1 if batch > 0 else 0

    def begin_epoch(self, epoch: int, batches: int | None) -> None:
        self._prepared()
        if self.number < 0 and (tracer := _loop.tracer) is not None:
            resumed = self._restored or tracer.begun < 0
            self.number = self._begins_at(epoch, batches) if resumed else tracer.next_number()
        if self.number >= 0 and self.model.train_function is not self._function[1]:
            original = self.model.train_function
            self._function = original, self._stepping(original)
            self.model.train_function = self._function[1]

    def _begins_at(self, epoch: int, batches: int | None) -> int:
        """Return the number of the first step in the first epoch of a process, or after a restore."""
        optimizer = self.model.optimizer
        done = int(getattr(optimizer, "iterations", 0)) * int(getattr(optimizer, "gradient_accumulation_steps", 0) or 1)
        begin = epoch * (batches or 0)
        if batches:
            # The optimizer's count is right if epochs were longer or shorter before; but Keras goes back to the begin.
            return begin if begin <= done < begin + batches or not done else done
        return max(0, done - self._repeated)

    def begin_step(self) -> None:
        _loop.begin_step(self.number)

    def end_step(self) -> None:
        if _loop.stepping:
            _loop.end_step()
            self.number += 1

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the train function with a step around each batch."""

        def train_function(*args: Any, **kwargs: Any) -> Any:
            if _Fit.now is not self or self.stepping:
                return original(*args, **kwargs)
            self.stepping = True
            try:
                if not (args and type(args[-1]) is _Batches):  # else the step begins when it has its batch
                    self.begin_step()
                result = original(*args, **kwargs)
                self.end_step()
                return result
            except BaseException as error:
                _loop.end_step(error)
                raise
            finally:
                self.stepping = False

        return wraps(original)(train_function)


class _Batches:
    """A pass over the batches of one epoch, which the train function may ask for the next ones."""

    __slots__ = ("_fit", "_loads")

    def __init__(self, fit: _Fit, batches: Iterable[Any]) -> None:
        self._fit = fit
        self._loads: Iterator[Any] = iter(_loop.batches(batches))

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        fit = self._fit
        if not fit.stepping:
            return next(self._loads)
        fit.end_step()
        batch = next(self._loads)
        fit.begin_step()
        return batch


class _Epoch:
    """The batches of one epoch, not begun yet."""

    def __init__(self, fit: _Fit, batches: Iterable[Any]) -> None:
        self._fit, self._batches = fit, batches

    def __iter__(self) -> _Batches:
        return _Batches(self._fit, self._batches)


# --- where Keras does it ----------------------------------------------------------------------------------------------

_invited = True  # only calls of fit that have the callback are recorded
_known = False  # whether this version of Keras is


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record all calls of ``fit`` from now on. Return what ends that, or None while Keras is being imported."""
    global _invited
    if not hasattr(sys.modules.get("keras"), "Model"):
        return None
    _invited = False

    def remove() -> None:
        global _invited
        _invited = True

    return remove


def _attach() -> None:
    """Wrap the methods by which Keras trains."""
    global _known
    with containing("keras"):
        version = str(keras.__version__)
        _known = version.partition(".")[0] == KNOWN
        if not _known:
            report_once("keras version", "Keras %s is not known, so its fit() is not recorded", version)
            return
        methods: dict[str, Before] = {"fit": _fits, "load_weights": _loads, **dict.fromkeys(SAVES, _saves)}
        methods |= {name: partial(_evaluates, phase) for name, phase in EVALUATIONS.items()}
        for name, before in methods.items():
            wrap(keras.Model, name, before, "keras")
        backend = str(keras.backend.backend())
        module, name = ITERATORS.get(backend, ("", ""))
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and hasattr(kind, BATCHES):
            _record_batches(kind)
        else:
            logger.info("Keras' loads are not recorded with the backend %s: they are part of its steps", backend)
        logger.info("Keras %s with the backend %s: fit() is recorded", version, backend)


def _record_batches(kind: Any) -> None:
    """Have the loads of the iterator `kind` over an epoch recorded, in a call of fit that is."""
    original = getattr(kind, BATCHES)

    @wraps(original)
    def begin(this: Any) -> Any:
        batches, fit = original(this), _Fit.now
        return batches if fit is None or fit.aside or not fit.here else _Epoch(fit, batches)

    setattr(kind, BATCHES, begin)


def _fits(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    if _Fit.now is not None or _loop.recorder is None:
        return None
    callbacks = args[CALLBACKS] if len(args) > CALLBACKS else kwargs.get("callbacks")
    members = keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)) if callbacks else []
    if not any(isinstance(one, GoodputCallback) for one in members):
        if _invited or len(args) > CALLBACKS or hasattr(callbacks, "callbacks"):
            return None
        kwargs["callbacks"] = [*members, GoodputCallback()]
    fit = _Fit(model, wrapped=True)
    fit.begin()
    return lambda _, error: fit.end(error)


def _evaluates(phase: str, model: Any, *_: object) -> Done | None:
    if (fit := _Fit.now) is None:
        return _after(model, lambda: _loop.evaluation(phase))
    if fit.aside or not fit.here:
        return None
    leave = within(_loop.evaluation(phase))
    fit.aside = True

    def done(result: Any, error: BaseException | None) -> None:
        fit.aside = False
        leave(result, error)

    return done


def _saves(model: Any, *_: object) -> Done | None:
    if (fit := _Fit.now) is None:
        return _after(model, lambda: _loop.save(0 if (tracer := _loop.recorder) is None else tracer.next_number()))
    return within(_loop.save(max(0, fit.number))) if fit.model is model else None


def _loads(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
    if (fit := _Fit.now) is None:
        return _after(model, lambda: _loop.restore(None), first=True)
    if fit.model is not model:
        return None
    leave = within(_loop.restore(None))

    def done(result: Any, error: BaseException | None) -> None:
        leave(result, error)
        if error is None:
            fit.restore(args[0] if args else kwargs.get("filepath"))

    return done


def _after(model: Any, phase: Callable[[], Any], *, first: bool = False) -> Done | None:
    """Enter a phase outside of fit: of a model that was fitted, or if it is the `first` thing before."""
    tracer = _loop.recorder
    if tracer is None or not (model in _Fit.models or (first and tracer.begun < 0)):
        return None
    return within(phase())


_attach()  # not later: a program looks up `model.fit` before it makes the callback that it passes
