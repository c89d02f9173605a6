"""Callbacks that are called while phases are recorded; created before the recorder and shared by all its parts.

Integrations (the device clock, jax, Orbax, a loader) register and unregister here; they assign no other attribute of
the recording objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from otel_goodput.recording.compile_cache import CompileCache
from otel_goodput.recording.device import Device

Work = Callable[[], None]


class Hooks:
    """The callbacks of one recorder; each may be None, where nothing else is said.

    Attributes:
        device: notified of blocking phases that may dispatch work to a device.
        annotate: creates the profiler's annotation of a step, which is entered and left with the step.
        profiling: returns whether the profiler is recording; if not, steps are not annotated.
        settle: ends compilations whose end is never reported; called before figures are read.
        before_phase: looks for libraries imported in the meantime.
        queue_depth: returns how many batches are ready.
        compile_cache: counts what the persistent compilation cache reports; never None, and kept after the end.
        waits: ns that this attempt waited before its program ran, by stage; empty while nobody has told.
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
        """Return how many batches are ready; None if no loader tells."""
        return None if self.queue_depth is None else self.queue_depth()

    def close(self) -> None:
        """Unregister the device and the loader, because recording is over."""
        self.device = self.queue_depth = None
