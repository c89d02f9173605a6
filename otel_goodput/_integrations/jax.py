"""Record jax's compilations, from the events of ``jax.monitoring``.

There is no event for a dispatch, so a step that is already compiled costs nothing.

Steps are annotated for jax's profiler, so that xprof shows the same steps, except where the program has its own
annotations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from types import FrameType
from typing import Any, Final

from otel_goodput._integrations.compilations import BACKEND, FUNCTIONS, LOWER, TRACE, Compilations, is_recorded
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, report_once

_WRAPPED: Final = ("__enter__", "__exit__")


class StepAnnotations:
    """Makes the annotation of a step when called with its name and number.

    What makes an annotation that of a step is told when it ends: only if the program began none of its own meanwhile.

    Args:
        profiler: ``jax.profiler``.

    Attributes:
        enabled: returns whether it is recording.
    """

    def __init__(self, profiler: Any) -> None:
        self.make = profiler.TraceAnnotation
        self.enabled = profiler.TraceAnnotation.is_enabled
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
        return StepAnnotation(self, name, step_num)

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


STAGES: Final = {
    "/jax/core/compile/jaxpr_trace_duration": TRACE,
    "/jax/core/compile/jaxpr_to_mlir_module_duration": LOWER,
    "/jax/core/compile/backend_compile_duration": BACKEND,
}
CACHE: Final = {"/jax/compilation_cache/cache_hits": True, "/jax/compilation_cache/cache_misses": False}
_NUMERICAL: Final = ("jax._src.numpy", "jax._src.lax", "jax._src.random", "jax._src.nn", "jax._src.scipy")
FARTHEST: Final = 12  # frames between a listener and the one that traces
CACHE_RETRIEVAL: Final = "/jax/compilation_cache/cache_retrieval_time_sec"
CACHE_SAVED: Final = "/jax/compilation_cache/compile_time_saved_sec"
CACHE_REQUEST: Final = "/jax/compilation_cache/compile_requests_use_cache"

# (function that registers, function that unregisters, listener). Unregistering is not public before jax 0.9.
_LISTENERS: Final = (
    ("register_scalar_listener", "unregister_scalar_listener", "begin"),
    ("register_event_duration_secs_listener", "unregister_event_duration_listener", "end"),
    ("register_event_listener", "unregister_event_listener", "happen"),
)


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Listen to jax from now on. Return what ends it, or None while jax is still being imported."""
    jax = sys.modules.get("jax")
    monitoring = getattr(jax, "monitoring", None)
    if monitoring is None or not hasattr(jax, "jit"):
        return None
    return Listener(tracer, monitoring).remove


@lru_cache(FUNCTIONS)
def is_jaxs(function: str) -> bool:
    """Return whether jax has a primitive, or a function that it compiles itself, of that name: ``add``, ``_where``.

    Operations outside a compiled function are compiled under such names, once for each shape; that is no
    recompilation. A user's function with such a name is mistaken for jax's.
    """
    if not function:
        return False
    for name, module in sys.modules.copy().items():  # other threads import meanwhile; copy() is atomic
        if name.partition(".")[0] != "jax":
            continue
        inside = getattr(module, "__dict__", {})
        if getattr(inside.get(f"{function}_p"), "name", None) == function:
            return True
        candidate = inside.get(function)
        if candidate is None or str(getattr(candidate, "__module__", "")).partition(".")[0] != "jax":
            continue
        # A compiled function, or an object that wraps one (a ufunc, a function with its own derivative); or a private
        # function of the numerical modules, which another of their functions compiles.
        compiled = type(candidate).__module__.partition(".")[0] in ("jax", "jaxlib")
        if compiled or (function.startswith("_") and name.startswith(_NUMERICAL) and callable(candidate)):
            return True
    return False


def _traced() -> object:
    """Return the function that jax is about to trace, from the frame that does so; None if that cannot be found."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FARTHEST):
        if frame is None:
            return None
        code = frame.f_code
        if "fun" in code.co_varnames and code.co_filename.endswith("pjit.py"):
            function = frame.f_locals.get("fun")
            return getattr(function, "f", function)  # what an older jax wraps
        frame = frame.f_back
    return None


class Listener:
    """The listeners on ``jax.monitoring``. None of them raises: an error in one would abort the user's compilation."""

    def __init__(self, tracer: PhaseTracer, monitoring: Any) -> None:
        self._compilations: Compilations | None = Compilations(tracer, is_jaxs)
        self._tracer = tracer
        self._monitoring = monitoring
        self._compiles = False  # jax has begun to compile for a backend, so there is one
        self._registered: list[tuple[str, Callable[..., None]]] = []
        for register, unregister, name in _LISTENERS:
            if not hasattr(monitoring, register):
                report_once(
                    "jax monitoring",
                    "this version of jax reports fewer details of compilations (it has no %s); jax 0.6 reports all",
                    register,
                )
                continue
            listener = getattr(self, f"_{name}")
            getattr(monitoring, register)(listener)
            self._registered.append((unregister, listener))
        tracer.hooks.at_tick(self._compilations.tick)
        tracer.hooks.before_figures(self._compilations.settle)
        self._annotate = step_annotations(getattr(sys.modules["jax"], "profiler", None))
        if isinstance(self._annotate, StepAnnotations):
            tracer.hooks.profile(self._annotate, self._annotate.enabled)
        else:
            tracer.hooks.profile(self._annotate)

    # jax calls these on the compiling thread, for each of its events. Those of no interest return at the first check.

    def _begin(self, event: str, _value: object, /, fun_name: object = "", **_: object) -> None:
        if event in STAGES and self._compilations is not None and is_recorded():
            try:
                self._compilations.begin(fun_name, _traced if STAGES[event] == TRACE else None)
                if not self._compiles and STAGES[event] == BACKEND:
                    self._compiles = True
                    # The marker can be compiled while this is, so that it is there for the first step.
                    if self._tracer.hooks.device is not None:
                        self._tracer.hooks.device.poll()
            except Exception as error:
                contain("compile listener", error)

    def _end(self, event: str, seconds: float, /, fun_name: object = "", **_: object) -> None:
        compilations = self._compilations
        if compilations is None or not is_recorded():
            return
        try:
            if event in STAGES:
                compilations.end(STAGES[event], fun_name, seconds)
            elif event == CACHE_RETRIEVAL:
                compilations.cached(retrieval=round(seconds * 1e9))
            elif event == CACHE_SAVED:
                self._tracer.hooks.compile_cache.save(seconds)
        except Exception as error:
            contain("compile listener", error)

    def _happen(self, event: str, /, **_: object) -> None:
        compilations = self._compilations
        if compilations is None or not is_recorded():
            return
        try:
            if event in CACHE:
                self._tracer.hooks.compile_cache.add(hit=CACHE[event])
                compilations.cached(hit=CACHE[event])
            elif event == CACHE_REQUEST and self._caches():
                self._tracer.hooks.compile_cache.use()
        except Exception as error:
            contain("compile listener", error)

    @staticmethod
    def _caches() -> bool:
        """Return whether jax has a persistent cache; it reports the request for a function also where it has none."""
        return bool(getattr(getattr(sys.modules["jax"], "config", None), "jax_compilation_cache_dir", None))

    def remove(self) -> None:
        """Stop listening."""
        hooks = self._tracer.hooks
        hooks.profile(None)
        if isinstance(self._annotate, StepAnnotations):
            self._annotate.close()
        hooks.before_figures(None)
        compilations, self._compilations = self._compilations, None
        if compilations is not None:
            compilations.close()
            hooks.not_at_tick(compilations.tick)
        for unregister, listener in self._registered:
            try:
                getattr(self._monitoring, unregister)(listener)
            except Exception:
                # Somebody has cleared jax's listeners, or this jax cannot remove one. Ours ignores events by now.
                continue
        self._registered.clear()
