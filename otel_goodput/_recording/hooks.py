"""The callbacks that a recorder calls while phases are recorded.

Integrations (the device clock, jax, Orbax, a loader) register and unregister with :class:`Hooks`, and nowhere else.
Their interfaces are here too: of the device clock, and of a compiler's persistent cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Final, NamedTuple, Protocol

from opentelemetry.trace import Link, SpanContext

from otel_goodput._journal.account import nothing
from otel_goodput._journal.loader_times import LoaderSheet
from otel_goodput._journal.saved_files import SavedFiles
from otel_goodput._recording.short_span import Observation, ShortSpan

LINKED: Final = 32  # steps to which the span of a profile links
PASSES: Final = 4  # over loaders, one in another or after it, that are remembered


class CacheFigures(NamedTuple):
    """What the cache did so far: functions that it had, and functions that were compiled and stored.

    `saved`: what the hits took to compile at the time, less what it took to fetch them, s; may be negative.
    """

    hits: int
    misses: int
    saved: float


class CompileCache:
    """The counts of one recorder. Compiling threads add to them without a lock: each has counts of its own."""

    def __init__(self) -> None:
        # Hits, misses and what was saved, by thread ident. A thread that reuses the ident of an ended one goes on.
        self._counts: dict[int, list[float]] = {}

    def use(self) -> list[float]:
        """Note that the cache is in use; return the counts of this thread."""
        return self._counts.setdefault(get_ident(), [0, 0, 0.0])

    def add(self, *, hit: bool) -> None:
        self.use()[0 if hit else 1] += 1

    def save(self, seconds: float) -> None:
        self.use()[2] += seconds

    def to_json(self) -> dict[str, float]:
        """Return hits, misses and seconds saved, ``saved_s``; empty if no cache is in use."""
        figures = self.figures()
        return {} if figures is None else dict(zip(("hits", "misses", "saved_s"), figures, strict=True))

    def figures(self) -> CacheFigures | None:
        """Return the counts of all threads; None if no cache is in use."""
        if not self._counts:
            return None
        hits, misses, saved = map(sum, zip(*self._counts.copy().values(), strict=True))  # copy() is atomic
        return CacheFigures(int(hits), int(misses), saved)


class Device(Protocol):
    """Notified of blocking phases, so that work on the device can be attributed to the phase that dispatched it.

    All methods but `poll`, which checks whether a device has come into use, are called on the thread that opens and
    closes the phases. Times are ns.
    """

    awake: bool  # a device may be in use; if False, steps and loads need not be reported. It calls Hooks.changed()
    # In a loop of short steps, a load and a step that begin before `short_until` need not be reported: the loop only
    # sets `step`, and calls join() when it ends.
    short_until: int
    step: ShortSpan | None

    @property
    def brief(self) -> bool: ...  # steps are marked, but are too short to be timed one by one

    def poll(self) -> None: ...

    def observe(self, span: ShortSpan, output: Any) -> None: ...  # `output` is ready when `span` has left the device

    def compiled(self, moment: int) -> None: ...  # a blocking compilation ended; its work is dispatched only now

    def begin(self, key: int, phase: int, start: int) -> None: ...  # what is dispatched from now on is this phase's

    def end(self, key: int, end: int) -> None: ...  # of a phase that is no step, before its end is recorded

    def load(self, start: int) -> None: ...  # a data load begins, perhaps inside a phase

    def loaded(self, end: int) -> None: ...  # what is dispatched from now on belongs to the phase around the load

    # A step ended; returns the observation of its end on the device, if there is one. If the step was left before it
    # did any work (not `begun`), only the user may have made one.
    def end_step(self, span: ShortSpan, end: int, *, begun: bool = True) -> Observation | None: ...

    # A step ended and a load began at once; returns the observation that the step shares. None: nothing was done, call
    # end_step() and load().
    def join(self, span: ShortSpan, end: int) -> Observation | None: ...


class ProfiledSteps:
    """The steps of a profile: their spans link to that of the profile, and it to theirs.

    Args:
        profile: identity of the profile's span.
        began: when it began, ns.

    Attributes:
        ended: when it was over; None while it is not.
        steps: identities of the first steps in that time whose spans were made.
    """

    def __init__(self, profile: SpanContext, began: int) -> None:
        self._links = (Link(profile),)
        self._began = began
        self.ended: int | None = None
        self.steps: list[SpanContext] = []

    def links(self, step: SpanContext, start: int, end: int) -> Sequence[Link]:
        """Return the links of a step's span, which lasted from `start` to `end`, ns."""
        if end <= self._began or (self.ended is not None and start >= self.ended):
            return ()
        if len(self.steps) < LINKED:
            self.steps.append(step)
        return self._links


Work = Callable[[], None]


def _nothing_of(_: bool) -> None:
    """Do nothing."""


class Hooks:
    """The callbacks of one recorder; what is None or `nothing` has not been registered.

    Attributes:
        device: notified of blocking phases that may dispatch work to a device; None if nothing is.
        annotate: creates the profiler's annotation of a step, which is entered and left with the step; may be None.
        changed: called when a loop's turns are to be reported or annotated from now on, see `watched`.
        profiling: returns whether the profiler is recording; if not, steps are not annotated.
        settle: ends compilations whose end is never reported; called before figures are read.
        give_way: called when the job ends, or when somebody opens steps: whoever opens steps on its own ends the open
            one. With whether this is not due to an error.
        before_phase: called when a phase other than a step, load or part begins; looks for libraries imported since.
        files: the files of checkpoints that the run has saved.
        recompiled: why a function was last compiled again, by its name, as far as its compiler tells.
        compile_cache: counts what the persistent compilation cache reports; kept after the end.
        profiled: the steps of the latest profile; None if there was none.
        stages: counts how long training waited for which stage of its data loaders.
        waits: ns that this attempt waited before its program ran, by stage; empty while not known.
    """

    def __init__(self) -> None:
        self.device: Device | None = None
        self.annotate: Callable[..., AbstractContextManager[Any]] | None = None
        self.changed: Work = nothing
        self.profiling: Callable[[], bool] = bool
        self.settle: Work = nothing
        self.give_way: Callable[[bool], None] = _nothing_of
        self.before_phase: Work = nothing
        self.files = SavedFiles()
        self.recompiled: dict[str, str] = {}
        self.compile_cache = CompileCache()
        self.profiled: ProfiledSteps | None = None
        self.stages = LoaderSheet(0, 0)
        self.waits: Mapping[str, int] = {}
        self._given: Callable[[], int | None] = nothing  # what the user gave for the latest loader
        self._passes: tuple[Callable[[], int | None], ...] = ()  # of the latest passes, the last one first
        self._at_tick: tuple[Work, ...] = ()

    def profile(
        self, annotate: Callable[..., AbstractContextManager[Any]] | None, profiling: Callable[[], bool] = lambda: True
    ) -> None:
        """Annotate steps with `annotate` while `profiling` returns True; None stops it."""
        self.annotate, self.profiling = annotate, profiling
        self.changed()

    def at_change(self, changed: Work) -> None:
        self.changed = changed

    @property
    def watched(self) -> bool:
        """Whether the turns of a loop are reported to the device clock, or may be annotated."""
        return self.annotate is not None or (self.device is not None and self.device.awake)

    def at_others_steps(self, give_way: Callable[[bool], None]) -> None:
        self.give_way = give_way

    def before_figures(self, settle: Work) -> None:
        self.settle = settle

    def look_around(self, look: Work) -> None:
        self.before_phase = look

    def loader(self, queue_depth: Callable[[], int | None]) -> None:
        """Ask `queue_depth` how many batches are ready, from now on."""
        self._given = queue_depth

    def passes(self, queue_depth: Callable[[], int | None]) -> None:
        """Ask `queue_depth` if the user gave nothing to ask; it returns None once the pass that begins now is over."""
        self._passes = (queue_depth, *self._passes[: PASSES - 1])

    def queue_depth(self) -> int | None:
        """Return how many batches are ready; None if no loader tells."""
        if self._given is not nothing:
            return self._given()
        return next((depth for one in self._passes if (depth := one()) is not None), None)

    def at_tick(self, *work: Work) -> None:
        """Call each of `work` at every tick of the keeper, not on the training thread."""
        self._at_tick += work

    def not_at_tick(self, work: Work) -> None:
        self._at_tick = tuple(each for each in self._at_tick if each != work)

    def tick(self) -> None:
        for work in self._at_tick:
            work()

    def close(self) -> None:
        self.device, self._given, self._passes = None, nothing, ()
