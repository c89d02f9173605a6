"""Compares how fast the processes of a job step, and finds the one that holds up the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

FEW: Final = 10  # fewer steps than this say nothing about a process's pace


class Pace(NamedTuple):
    """How fast one process has stepped recently.

    Attributes:
        process: its index.
        at: when it reported this, ns since the epoch.
        steps: number of kept steps.
        median, p90: of the net times of the latest steps, ns.
        outside: usual time from one step to the next without the step itself (loading, time in no phase): the median
            interval between the starts of steps minus the median step, ns.
    """

    process: int
    at: int
    steps: int
    median: int
    p90: int
    outside: int

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "median_s": self.median / 1e9,
            "p90_s": self.p90 / 1e9,
            "outside_s": self.outside / 1e9,
        }


class Straggler(NamedTuple):
    """A process that stands out, and by which ratio.

    From :func:`straggler`: its median step time divided by the median of all processes. From :func:`late`: the share of
    its cadence that it spends outside steps.
    """

    process: int
    ratio: float


def straggler(paces: Sequence[Pace]) -> Straggler | None:
    """Return the process with the longest steps; None if fewer than two have a pace.

    If steps wait for each other (collectives), all take as long as the slowest. The process that holds up the others
    then shows in `Pace.outside`: the others wait for it inside their steps.
    """
    known = [pace for pace in paces if pace.steps >= FEW and pace.median > 0]
    if len(known) < 2:
        return None
    slowest = max(known, key=lambda pace: pace.median)
    return Straggler(slowest.process, slowest.median / statistics.median(pace.median for pace in known))


def late(paces: Sequence[Pace]) -> Straggler | None:
    """Return the process that spends most time outside steps, and that share of its cadence.

    None under the same condition as :func:`straggler`.
    """
    known = [pace for pace in paces if pace.steps >= FEW and pace.median > 0]
    if len(known) < 2:
        return None
    latest = max(known, key=lambda pace: pace.outside)
    return Straggler(latest.process, latest.outside / (latest.outside + latest.median))


def to_json(paces: Sequence[Pace], count: int) -> Mapping[str, Any]:
    """The report's section on the processes; `count` is their total number."""
    slowest, latest = straggler(paces), late(paces)
    return {
        "count": count,
        "paces": {str(pace.process): pace.to_json() for pace in sorted(paces)},
        "straggler": None if slowest is None else {"process": slowest.process, "ratio": slowest.ratio},
        "late": None if latest is None else {"process": latest.process, "share": latest.ratio},
    }
