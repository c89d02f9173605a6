"""Record jax's compilations, from the events of ``jax.monitoring``.

There is no event for a dispatch, so a step that is already compiled costs nothing.

Steps are annotated for jax's profiler, so that xprof shows the same steps, except where the program has its own
annotations.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from types import FrameType
from typing import Any, Final

from opentelemetry.util import types

from otel_goodput._journal.account import nothing
from otel_goodput._recording.compile_phases import CompilePhase
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing, report_once
from otel_goodput.semconv import (
    GOODPUT_COMPILE_CACHE_HIT,
    GOODPUT_COMPILE_CACHE_RETRIEVAL,
    GOODPUT_COMPILE_RECOMPILATION,
    GOODPUT_COMPILE_STAGES,
)

TRACE, LOWER, BACKEND = range(3)
ADJACENT: Final = 50_000_000  # ns at most between two stages of one compilation
AT_ONCE: Final = 2_000_000  # ns within which the next stage nearly always follows
IDLE: Final = 200_000_000  # ns after which no further stage is expected
FUNCTIONS: Final = 10_000  # names remembered; recompilations of further functions go unnoticed

# Threads that are compiling something of ours, such as a marker.
_ignored: Final[set[int]] = set()


@contextmanager
def ignored() -> Iterator[None]:
    """Do not record what this thread compiles in the ``with`` block: it is not the job's."""
    _ignored.add(get_ident())
    try:
        yield
    finally:
        _ignored.discard(get_ident())


def is_recorded() -> bool:
    """Return whether what this thread compiles is the job's."""
    return not _ignored or get_ident() not in _ignored


class Compilation:
    """One compilation in progress."""

    __slots__ = ("again", "end", "hit", "identity", "phase", "retrieval", "since", "stages", "titles")

    def __init__(self, phase: CompilePhase, identity: str) -> None:
        self.phase = phase
        self.identity = identity  # the title that tells the function from others of its name; empty if not known
        self.titles = (phase.function, f"jit({phase.function})")  # what jax calls it in its stages
        self.since = self.end = phase.start
        self.stages = [0, 0, 0]  # ns in each stage
        self.again = False
        self.hit: bool | None = None
        self.retrieval = 0


@dataclass(slots=True)
class _Thread:
    """State of a compiling thread: how many stages are open, and the compilation of the outermost one."""

    depth: int = 0
    current: Compilation | None = None


class Compilations:
    """Follows the compilations of all threads.

    On the compiling threads it only appends records and tuples; spans are built by :meth:`tick`. Recompilations of a
    function are not reported if it is the compiler's own, by its name: then `theirs` returns True.
    """

    def __init__(self, tracer: PhaseTracer, theirs: Callable[[str], bool] = lambda _: False) -> None:
        self._hooks = tracer.hooks
        self._phases = tracer.compilations
        self._theirs = theirs
        self._clock = tracer.clock
        # By ident, cheaper than a threading.local. A thread that reuses the ident of an ended one finds it at depth 0.
        self._threads: defaultdict[int, _Thread] = defaultdict(_Thread)
        # Between two stages, by thread. The thread that pops an entry owns it: no lock that the keeper could hold.
        self._between: dict[int, Compilation] = {}
        self._done: deque[Compilation] = deque()
        self._compiled: set[str] = set()  # titles of functions

    # --- on the compiling thread --------------------------------------------------------------------------------------

    def begin(self, title: object, function: Callable[[], object] | None = None) -> None:
        """Begin a stage of the function that jax calls `title`; `function` returns the function, if that is known."""
        thread = self._threads[get_ident()]
        thread.depth = depth = thread.depth + 1
        if depth == 1:
            thread.current = self._take_up(title, self._clock(), function)

    def end(self, stage: int, title: object, seconds: float) -> None:
        """End a stage that took `seconds`."""
        thread = self._threads[get_ident()]
        depth = thread.depth
        if depth > 1:
            thread.depth = depth - 1
            return
        now = self._clock()
        if depth:
            thread.depth = 0
            current, thread.current = thread.current, None
            if current is None:
                return
        else:
            # There was no begin event: an older jax, or the listener was installed during the stage.
            current = self._take_up(title, now - round(seconds * 1e9))
        current.end = now
        current.stages[stage] += now - current.since
        if stage != BACKEND:
            self._between[get_ident()] = current
            return
        device = self._hooks.device
        if device is not None and not current.phase.aside:
            device.compiled(now)
        function = current.phase.function
        identity = current.identity or (function and self._phases.resume(function))
        current.identity = ""
        current.again = identity in self._compiled
        if not current.again and identity and len(self._compiled) < FUNCTIONS:
            if self._theirs(function):
                identity = ""
            else:
                self._compiled.add(identity)
        self._finish(current, identity)

    def cached(self, hit: bool | None = None, retrieval: int = 0) -> None:
        """Note what the persistent cache reported in this thread's stage; `retrieval` in ns."""
        thread = self._threads[get_ident()]
        current = thread.current
        if current is not None and thread.depth == 1:
            if hit is not None:
                current.hit = hit
            current.retrieval += retrieval

    def _take_up(self, title: object, start: int, function: Callable[[], object] | None = None) -> Compilation:
        """Return the compilation whose stage began at `start` (ns): the previous one if it goes on, else a new one."""
        current = self._between.pop(get_ident(), None)
        if current is not None:
            # A trace is the first stage; where an older one is there, another function has the same name.
            goes_on = function is None or not current.identity
            if goes_on and start - current.end <= ADJACENT and title in current.titles:
                current.since = start
                return current
            self._finish(current)
        name = _plain(title)
        traced = None if function is None else function()
        identity = "" if traced is None else self._phases.title(name, traced)
        return Compilation(self._phases.begin(name, start), identity)

    def _finish(self, done: Compilation, compiled: str = "") -> None:
        """End `done`; `compiled` is the title of its function, empty if it was only traced."""
        if done.identity:
            self._phases.postpone(done.phase.function, done.identity)
        if self._phases.end(done.phase, done.end, compiled):
            self._done.append(done)

    # --- in the background --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """End compilations for which no further stage is expected, and export those that are done."""
        idle = self._clock() - IDLE
        self._close_since(idle)
        for _ in range(len(self._done)):
            try:
                done = self._done.popleft()
            except IndexError:  # another thread was quicker
                break
            self._phases.emit(done.phase, done.end, _attributes(done))

    def settle(self) -> None:
        """Before the account is read: end what was traced and not compiled right after."""
        self._close_since(self._clock() - AT_ONCE)

    def close(self) -> None:
        """End and export all compilations; no further stages are expected."""
        self._close_since(self._clock())
        self.tick()

    def _close_since(self, moment: int) -> None:
        for thread, compilation in self._between.copy().items():
            # The thread may have begun another one meanwhile: then we have popped that one, and must finish it.
            if compilation.end <= moment and (taken := self._between.pop(thread, None)) is not None:
                self._finish(taken)


def _attributes(done: Compilation) -> types.Attributes:
    """Return what is known of a compilation beside its phase."""
    attributes: dict[str, types.AttributeValue] = {}
    if done.again:
        attributes[GOODPUT_COMPILE_RECOMPILATION] = True
    if done.hit is not None:
        attributes[GOODPUT_COMPILE_CACHE_HIT] = done.hit
    if done.retrieval:
        attributes[GOODPUT_COMPILE_CACHE_RETRIEVAL] = done.retrieval
    stages = zip(GOODPUT_COMPILE_STAGES, done.stages, strict=True)
    return attributes | {name: duration for name, duration in stages if duration}


def _plain(title: object) -> str:
    """Return the function's name: ``train_step`` for ``jit(train_step)``."""
    name = str(title or "")
    return name[4:-1] if name.startswith("jit(") and name.endswith(")") else name


_WRAPPED: Final = {"__enter__": 1, "__exit__": -1}


class StepAnnotations:
    """Makes the annotation of a step when called with its name and number, by `profiler`, which is ``jax.profiler``.

    What makes an annotation that of a step is told when it ends: only if the program began none of its own meanwhile.
    """

    def __init__(self, profiler: Any) -> None:
        self.make = profiler.TraceAnnotation
        self.enabled = profiler.TraceAnnotation.is_enabled
        self.theirs = 0  # annotations of the program's own that are open
        self.seen = False  # one began in the open step,
        self.expected = False  # or in the step before
        self._kind = profiler.StepTraceAnnotation
        for name, count in _WRAPPED.items():
            self._count(name, count)

    def _count(self, name: str, count: int) -> None:
        original = getattr(self._kind, name)

        def counted(annotation: Any, *arguments: Any) -> Any:
            self.theirs = max(0, self.theirs + count)
            self.seen = True
            return original(annotation, *arguments)

        setattr(self._kind, name, counted)

    @contextmanager
    def __call__(self, name: str, step_num: int) -> Iterator[None]:
        mark = None if self.theirs or self.expected else self.make(name)
        self.seen = False
        if mark is not None:
            mark.__enter__()
        try:
            yield
        finally:
            self.expected = self.seen
            if mark is not None:
                if not self.seen:
                    mark.set_metadata(step_num=step_num, _r=1)
                mark.__exit__(None, None, None)

    def close(self) -> None:
        """Take no more notice of the program's own."""
        for name in _WRAPPED:
            if name in vars(self._kind):
                delattr(self._kind, name)  # the originals are inherited


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
        self._config = getattr(sys.modules["jax"], "config", None)
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
        if event not in STAGES or self._compilations is None or not is_recorded():
            return
        with containing("compile listener"):
            self._compilations.begin(fun_name, _traced if STAGES[event] == TRACE else None)
            if not self._compiles and STAGES[event] == BACKEND:
                self._compiles = True
                # The marker can be compiled while this is, so that it is there for the first step.
                if self._tracer.hooks.device is not None:
                    self._tracer.hooks.device.poll()

    def _end(self, event: str, seconds: float, /, fun_name: object = "", **_: object) -> None:
        compilations = self._compilations
        if compilations is None or not is_recorded():
            return
        with containing("compile listener"):
            if event in STAGES:
                compilations.end(STAGES[event], fun_name, seconds)
            elif event == CACHE_RETRIEVAL:
                compilations.cached(retrieval=round(seconds * 1e9))
            elif event == CACHE_SAVED:
                self._tracer.hooks.compile_cache.save(seconds)

    def _happen(self, event: str, /, **_: object) -> None:
        compilations = self._compilations
        if compilations is None or not is_recorded():
            return
        with containing("compile listener"):
            if event in CACHE:
                self._tracer.hooks.compile_cache.add(hit=CACHE[event])
                compilations.cached(hit=CACHE[event])
            elif event == CACHE_REQUEST and getattr(self._config, "jax_compilation_cache_dir", None):
                # jax reports the request for a function also where it has no persistent cache.
                self._tracer.hooks.compile_cache.use()

    def remove(self) -> None:
        """Stop listening."""
        hooks = self._tracer.hooks
        hooks.profile(None)
        if isinstance(self._annotate, StepAnnotations):
            self._annotate.close()
        hooks.before_figures(nothing)
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
