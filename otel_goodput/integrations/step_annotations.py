"""Annotations of steps for jax's profiler, so that xprof shows the same steps, except where the program has its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

_WRAPPED: Final = ("__enter__", "__exit__")


_NOTHING: Final = nullcontext()


class StepAnnotations:
    """Makes the annotation of a step when called with its name and number.

    What makes an annotation that of a step is told when it ends: only if the program began none of its own meanwhile.

    Args:
        profiler: ``jax.profiler``.
    """

    def __init__(self, profiler: Any) -> None:
        self.make = profiler.TraceAnnotation
        self._enabled = profiler.TraceAnnotation.is_enabled
        self.theirs = 0  # annotations of the program's own that are open
        self.seen = False  # one began in the open step,
        self.expected = False  # or in the step before
        self._kind = profiler.StepTraceAnnotation
        for name, count in zip(_WRAPPED, (1, -1), strict=True):
            self._count(name, count)

    def _count(self, name: str, count: int) -> None:
        original = getattr(self._kind, name)

        def counted(annotation: Any, *arguments: Any) -> Any:
            self.theirs = max(0, self.theirs + count)
            self.seen = True
            return original(annotation, *arguments)

        setattr(self._kind, name, counted)

    def __call__(self, name: str, step_num: int) -> AbstractContextManager[Any]:
        return StepAnnotation(self, name, step_num) if self._enabled() else _NOTHING

    def close(self) -> None:
        """Take no more notice of the program's own."""
        for name in _WRAPPED:
            if name in vars(self._kind):
                delattr(self._kind, name)  # the originals are inherited


class StepAnnotation:
    """The annotation of one step."""

    __slots__ = ("_mark", "_number", "_steps")

    def __init__(self, steps: StepAnnotations, name: str, number: int) -> None:
        self._steps = steps
        self._number = number
        self._mark = None if steps.theirs or steps.expected else steps.make(name)

    def __enter__(self) -> None:
        self._steps.seen = False
        if self._mark is not None:
            self._mark.__enter__()

    def __exit__(self, *error: Any) -> None:
        steps, mark = self._steps, self._mark
        steps.expected = steps.seen
        if mark is not None:
            if not steps.seen:
                mark.set_metadata(step_num=self._number, _r=1)
            mark.__exit__(*error)


def step_annotations(profiler: Any) -> Callable[..., AbstractContextManager[Any]] | None:
    """Return what annotates steps with `profiler`; None if that cannot."""
    kind = getattr(profiler, "StepTraceAnnotation", None)
    if kind is None:
        return None
    capable = all(hasattr(profiler.TraceAnnotation, name) for name in ("is_enabled", "set_metadata"))
    return StepAnnotations(profiler) if capable else kind
