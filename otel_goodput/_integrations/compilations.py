"""Record compilations as phases, from the events that a compiler emits while it traces, lowers and compiles.

The stages of one compilation follow each other within microseconds on one thread, and other stages may nest in them.
Their union is recorded as one ``compile`` span. It is open from the first stage on, so that a compilation that never
ends is visible, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final

from opentelemetry.util import types

from otel_goodput._recording.compile_phases import CompilePhase
from otel_goodput._recording.tracer import PhaseTracer
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


class _Thread:
    """State of a compiling thread: how many stages are open, and the compilation of the outermost one."""

    __slots__ = ("current", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.current: Compilation | None = None


class Compilations:
    """Follows the compilations of all threads.

    On the compiling threads it only appends records and tuples; spans are built by :meth:`tick`.

    Args:
        tracer: the recorder.
        theirs: returns whether a function of that name is the compiler's own; its recompilations are not reported.
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
        if not current.phase.aside:
            device = self._hooks.device
            if device is not None:
                device.compiled(now)
        function = current.phase.function
        identity = current.identity or (function and self._phases.titles.resume(function))
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
        identity = "" if traced is None else self._phases.titles.title(name, traced)
        return Compilation(self._phases.begin(name, start), identity)

    def _finish(self, done: Compilation, compiled: str = "") -> None:
        """End `done`; `compiled` is the title of its function, empty if it was only traced."""
        if done.identity:
            self._phases.titles.postpone(done.phase.function, done.identity)
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
