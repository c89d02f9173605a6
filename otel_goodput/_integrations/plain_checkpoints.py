"""Checkpoints of functions that save and load a file, and know nothing of steps.

A save is labeled with the number of the last step that is done. A load is a restore of the checkpoint that the file is
known to be (``saved_files``). A file that this run has not saved moves nothing: before the first step it may hold
pretrained weights, and later on it is data.

Nothing is recorded inside of an evaluation or of the loading of data; nor inside of a save or a restore that somebody
else has opened, which then gets the label that it lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from opentelemetry import trace as trace_api

from otel_goodput._integrations import trainer_loop
from otel_goodput._integrations.wrapping import Before, Done, wrap_function
from otel_goodput._journal.saved_files import Identity
from otel_goodput._recording.contexts import RestoreContext, SaveContext, enclosing
from otel_goodput._recording.nesting import innermost
from otel_goodput._recording.tracer import PhaseSpan, PhaseTracer
from otel_goodput.semconv import GOODPUT_PHASE, GOODPUT_STEP, Phase

LEAST: Final = 1_000_000  # bytes: a smaller file is no checkpoint
ENOUGH: Final = 7  # steps by which a body that has done no work is distinguished
_ASIDE: Final = (Phase.CUSTOM, Phase.DATA_LOADING)  # phases in which nothing is recorded
_CALLER: Final = 3  # frames from Checkpoints.theirs() to who called a wrapped function


class Saving:
    """One call that saves. Its phase is opened when it is known that what it saves is large enough."""

    def __init__(self, checkpoints: Checkpoints, *, durable: bool = True) -> None:
        self._checkpoints = checkpoints
        self._start = checkpoints.tracer.clock()
        self._durable = durable
        self._context: SaveContext | None = None
        self._looked = False
        self._recorded = False
        self.label = checkpoints.label
        self.span: trace_api.Span | None = None
        self.outer: trace_api.Span | None = None  # a save that is open around the call

    def begin(self) -> None:
        """Open the phase, from the beginning of the call on, unless it is not recorded or open already."""
        if not self._looked:  # only now, so that a small file costs little
            self._looked = True
            self.outer = enclosing(Phase.CHECKPOINT_SAVE)
            self._recorded = self.outer is None and self._checkpoints.records
            given = (getattr(self.outer, "attributes", None) or {}).get(GOODPUT_STEP)
            self.label = given if isinstance(given, int) else self.label
        if self._context is None and self._recorded:
            self._context = context = SaveContext(
                self._checkpoints.find,
                Phase.CHECKPOINT_SAVE,
                step=self.label,
                durable=self._durable,
                start_time=self._start,
            )
            self.span = context.__enter__().span

    def end(self, error: BaseException | None, identity: Identity | None) -> None:
        """The call is over; it saved the file with that `identity`, if that is known."""
        if error is None and identity is not None:
            self.begin()  # if it was not known before that it is large
        if self._context is not None:
            self._context.__exit__(None if error is None else type(error), error, None)
        if error is None and identity is not None and self.label is not None:
            self._checkpoints.tracer.hooks.files.add(self.label, identity)


class Checkpoints:
    """Records the saves and restores of wrapped functions of one library, for one tracer."""

    def __init__(self, tracer: PhaseTracer, library: str, own: str) -> None:
        self.tracer = tracer
        self._library = library
        self._own = own  # modules that begin so are the library's: what they save is a part of something else
        self._unwrap: list[Callable[[], None]] = []
        self.removed = False

    def wrap(
        self, modules: list[Any], name: str, before: Callable[[tuple[Any, ...], dict[str, Any]], Done | None]
    ) -> None:
        """Wrap a function, which several modules may have, as long as this records anything."""

        def guarded(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
            return None if self.removed or self.tracer.closed or self._theirs() else before(args, kwargs)

        wrapped: Before = guarded
        self._unwrap.append(wrap_function(modules, name, wrapped, self._library))

    def remove(self) -> None:
        """Stop recording."""
        self.removed = True
        while self._unwrap:
            self._unwrap.pop()()

    def find(self) -> PhaseTracer | None:
        return None if self.tracer.closed else self.tracer

    def _theirs(self) -> bool:
        """Whether the library itself has called a wrapped function."""
        return str(sys._getframe(_CALLER).f_globals.get("__name__")).startswith(self._own)

    @property
    def label(self) -> int | None:
        """The label of a checkpoint that is saved now: the number of the last step that is done; None before that."""
        done, step = self.tracer.last_done, self.tracer.open_step
        if step is not None and len(self.tracer.policy.sampler.recent) < ENOUGH and self.tracer.blocks(None):
            done = step.step  # it is not known yet how long a step takes
        return done if done >= 0 else None

    @property
    def records(self) -> bool:
        """Whether a save or a load of the caller is recorded, if no save or restore is open around it."""
        if trainer_loop.trains(self.tracer) and not self.tracer.blocks(None):
            return False  # of a trainer that saves in a thread: its callback has recorded that
        if self.tracer.spans.loading():
            return False
        around = innermost()
        while around is not None:
            if isinstance(around, PhaseSpan) and not around.closed and _phase(around.span) in _ASIDE:
                return False
            around = around.outer
        return True

    def restoring(self, identity: Identity | None) -> Done | None:
        """Begin to load the file with that `identity`, if that is known; return what ends it."""
        tracer = self.tracer
        around = enclosing(Phase.CHECKPOINT_RESTORE)
        if not self.records or enclosing(Phase.CHECKPOINT_SAVE) is not None:
            return None
        label = None if identity is None else tracer.hooks.files.label(identity)
        if around is not None:
            if label is None or GOODPUT_STEP in (getattr(around, "attributes", None) or {}):
                return None
            key = around.get_span_context().span_id
            return lambda _, error: None if error is not None else tracer.restored(label, key)
        if label is None and tracer.begun >= 0:
            return None
        context = RestoreContext(self.find, Phase.CHECKPOINT_RESTORE, step=label)
        context.__enter__()
        return lambda _, error: context.__exit__(None if error is None else type(error), error, None)


def _phase(span: trace_api.Span) -> object:
    return (getattr(span, "attributes", None) or {}).get(GOODPUT_PHASE)
