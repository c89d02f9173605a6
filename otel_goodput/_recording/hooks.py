"""The callbacks that a recorder calls while phases are recorded.

Integrations (the device clock, jax, Orbax, a loader) register and unregister with :class:`Hooks`; they assign no other
attribute of the recording objects. Their interfaces are here too: of the device clock, and of a compiler's persistent
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from otel_goodput._recording.observation import Observation
from otel_goodput._recording.short_span import ShortSpan


class CacheFigures(NamedTuple):
    """What the cache did so far.

    Attributes:
        hits: compiled functions that it had.
        misses: functions that had to be compiled and were then stored in it.
        saved: what the hits took to compile at the time, less what it took to fetch them, s; may be negative.
    """

    hits: int
    misses: int
    saved: float


class CompileCache:
    """The counts of one recorder. Compiling threads add to them without a lock: each has counts of its own."""

    def __init__(self) -> None:
        # By thread ident. A thread that reuses the ident of an ended one goes on with its counts.
        self._lookups: tuple[dict[int, int], dict[int, int]] = ({}, {})  # misses, hits
        self._saved: dict[int, float] = {}
        self._used = False

    def use(self) -> None:
        """Note that the cache is in use, before it has had or missed anything."""
        self._used = True

    def add(self, *, hit: bool) -> None:
        """Count a function that the cache had, or that was compiled and stored."""
        counts, thread = self._lookups[hit], get_ident()
        counts[thread] = counts.get(thread, 0) + 1
        self._used = True

    def save(self, seconds: float) -> None:
        """Add what a hit saved; negative if compiling would have been quicker."""
        thread = get_ident()
        self._saved[thread] = self._saved.get(thread, 0.0) + seconds
        self._used = True

    def to_json(self) -> dict[str, float]:
        """Return hits, misses and seconds saved, ``saved_s``; empty if no cache is in use."""
        figures = self.figures()
        if figures is None:
            return {}
        return {"hits": figures.hits, "misses": figures.misses, "saved_s": figures.saved}

    def figures(self) -> CacheFigures | None:
        """Return the counts of all threads; None if no cache is in use."""
        if not self._used:
            return None
        misses, hits = (sum(counts.copy().values()) for counts in self._lookups)  # copy() is atomic
        return CacheFigures(hits, misses, sum(self._saved.copy().values(), 0.0))


class Device(Protocol):
    """Notified of blocking phases, so that work on the device can be attributed to the phase that dispatched it.

    All methods but :meth:`poll` are called on the thread that opens and closes the phases.
    """

    awake: bool  # a device may be in use; if False, steps and loads need not be reported
    # In a loop of short steps, a load and a step that begin before `short_until` (ns) need not be reported: the loop
    # only sets `step`, and calls join() when it ends.
    short_until: int
    step: ShortSpan | None

    @property
    def brief(self) -> bool:
        """Whether steps are marked, but are too short to be timed one by one."""

    def observe(self, span: ShortSpan, output: Any) -> None:
        """Take the moment when `output` is ready as the device end of the open step `span`."""

    def compiled(self, moment: int) -> None:
        """Called when a blocking compilation ended at `moment` (ns); the compiled work is dispatched only now."""

    def poll(self) -> None:
        """Check whether a device has come into use. Called on any thread."""

    def begin(self, key: int, phase: int, start: int) -> None:
        """Called when the blocking phase `key` begins at `start` (ns); work dispatched from now on belongs to it."""

    def end(self, key: int, end: int) -> None:
        """Called when the phase `key` (not a step) ended at `end` (ns), before its end is recorded."""

    def end_step(self, span: ShortSpan, end: int, *, begun: bool = True) -> Observation | None:
        """Called when the step `span` ended at `end` (ns); return the observation of its device end, if there is one.

        `begun`: False if the step was left before it did any work; we then do not observe it ourselves.
        """

    def join(self, span: ShortSpan, end: int) -> Observation | None:
        """Called when `step` ended and a load began at `end` (ns); return the observation that it shares.

        None: nothing was done; call :meth:`end_step` and :meth:`load`.
        """

    def load(self, start: int) -> None:
        """Called when a data load begins at `start` (ns), perhaps inside a phase."""

    def loaded(self, end: int) -> None:
        """Called when a data load ended at `end` (ns); work dispatched from now on belongs to the phase around it."""


Work = Callable[[], None]


class Hooks:
    """The callbacks of one recorder; each may be None unless stated otherwise.

    Attributes:
        device: notified of blocking phases that may dispatch work to a device.
        annotate: creates the profiler's annotation of a step, which is entered and left with the step.
        profiling: returns whether the profiler is recording; if not, steps are not annotated.
        settle: ends compilations whose end is never reported; called before figures are read.
        before_phase: looks for libraries imported in the meantime.
        queue_depth: returns how many batches are ready.
        compile_cache: counts what the persistent compilation cache reports; never None, and kept after the end.
        waits: ns that this attempt waited before its program ran, by stage; empty while not known.
    """

    def __init__(self) -> None:
        self.device: Device | None = None
        self.annotate: Callable[..., AbstractContextManager[Any]] | None = None
        self.profiling: Callable[[], bool] = bool
        self.settle: Work | None = None
        self.before_phase: Work | None = None
        self.queue_depth: Callable[[], int] | None = None
        self.compile_cache = CompileCache()
        self.waits: Mapping[str, int] = {}
        self._at_tick: tuple[Work, ...] = ()

    def watch_device(self, device: Device) -> None:
        """Notify `device` of phases and of the outputs that users observe."""
        self.device = device

    def profile(
        self,
        annotate: Callable[..., AbstractContextManager[Any]] | None,
        profiling: Callable[[], bool] = lambda: True,
    ) -> None:
        """Annotate steps with `annotate` while `profiling` returns True; None stops it."""
        self.annotate, self.profiling = annotate, profiling if annotate is not None else bool

    def before_figures(self, settle: Work | None) -> None:
        """Call `settle` before figures are read; None stops it."""
        self.settle = settle

    def look_around(self, look: Work | None) -> None:
        """Call `look` when a phase other than a step, load or part begins; None stops it."""
        self.before_phase = look

    def loader(self, queue_depth: Callable[[], int]) -> None:
        """Set the function that returns how many batches are ready; the latest loader's replaces earlier ones."""
        self.queue_depth = queue_depth

    def scheduled(self, waits: Mapping[str, int]) -> None:
        """Set how long this attempt waited before its program ran, ns by stage."""
        self.waits = waits

    def at_tick(self, *work: Work) -> None:
        """Call each of `work` at every tick of the keeper, not on the training thread."""
        self._at_tick += work

    def not_at_tick(self, work: Work) -> None:
        """Unregister `work`, which was registered with :meth:`at_tick`."""
        self._at_tick = tuple(each for each in self._at_tick if each != work)

    def tick(self) -> None:
        """Call everything registered with :meth:`at_tick`."""
        for work in self._at_tick:
            work()

    def ready(self) -> int | None:
        """Return how many batches are ready; None if no loader reports that."""
        return None if self.queue_depth is None else self.queue_depth()

    def close(self) -> None:
        """Unregister the device and the loader, because recording is over."""
        self.device = self.queue_depth = None
