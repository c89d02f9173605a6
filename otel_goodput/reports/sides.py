"""What a comparison of two runs is made of: the two runs, and the times of each by source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_goodput.reports.step_times import StepTimes


class Source(NamedTuple):
    """A category (and the custom name in it) of both runs, in seconds."""

    category: str
    custom: str
    a: float
    b: float


class Side(NamedTuple):
    """One of the runs: its report as JSON, its step times, and whether a part of its journal could not be read."""

    answer: Mapping[str, Any]
    times: StepTimes
    damaged: bool = False

    @property
    def known(self) -> bool:
        """Whether the figures that depend on the fate of steps are known."""
        return self.answer["goodput"] is not None

    @property
    def kept(self) -> int:
        return int(self.answer["steps"]["kept"])

    def per_step(self, seconds: float) -> float | None:
        """Seconds per kept step; None without one, or if it is not known which are."""
        return seconds / self.kept if self.kept and self.known else None

    def share(self, seconds: float) -> float | None:
        """The share of `seconds` in the elapsed time; None if that is 0, or the shares are not known."""
        elapsed = self.answer["elapsed_s"]
        return seconds / elapsed if elapsed and self.known else None
