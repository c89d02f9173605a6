"""What is called while phases are recorded: made before the recorder, known to every part of it.

Whoever watches a job from beside (the device clock, jax, Orbax, a loader) registers here, and takes it back; nothing of
the recording is assigned from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from otel_goodput.recording.device import Device

Work = Callable[[], None]


class Hooks:
    """The calls of one recorder; every one may be None.

    Attributes:
        device: is told of blocking phases that may put work on a device.
        annotate: the profiler's annotation of a step, entered and left with it.
        settle: ends what nobody will say of that it is over; called before figures are read.
        before_phase: looks for libraries that were imported meanwhile.
        queue_depth: batches that lie ready.
    """

    def __init__(self) -> None:
        self.device: Device | None = None
        self.annotate: Callable[..., AbstractContextManager[Any]] | None = None
        self.settle: Work | None = None
        self.before_phase: Work | None = None
        self.queue_depth: Callable[[], int] | None = None
        self._at_tick: tuple[Work, ...] = ()

    def watch_device(self, device: Device) -> None:
        """Tell `device` of phases and of what their users observe."""
        self.device = device

    def profile(self, annotate: Callable[..., AbstractContextManager[Any]] | None) -> None:
        """Annotate steps; with None no longer."""
        self.annotate = annotate

    def before_figures(self, settle: Work | None) -> None:
        """Call `settle` whenever somebody asks for the figures; with None nothing any more."""
        self.settle = settle

    def look_around(self, look: Work | None) -> None:
        """Call `look` when a phase other than a step or a load begins; with None nothing any more."""
        self.before_phase = look

    def loader(self, queue_depth: Callable[[], int]) -> None:
        """The latest loader says how many batches lie ready."""
        self.queue_depth = queue_depth

    def at_tick(self, *work: Work) -> None:
        """Call each at every tick of the keeper, off the training thread."""
        self._at_tick += work

    def not_at_tick(self, work: Work) -> None:
        """Take back what was registered with :meth:`at_tick`."""
        self._at_tick = tuple(each for each in self._at_tick if each != work)

    def tick(self) -> None:
        """Call what was registered with :meth:`at_tick`."""
        for work in self._at_tick:
            work()

    def ready(self) -> int | None:
        """Batches that lie ready; None: nobody says."""
        return None if self.queue_depth is None else self.queue_depth()

    def close(self) -> None:
        """Recording is over: steps and loads tell nobody any more."""
        self.device = self.queue_depth = None
