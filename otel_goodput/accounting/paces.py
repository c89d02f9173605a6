"""How fast each process of a job steps, side by side: who holds the others up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

FEW: Final = 10  # steps from which on a process's pace means something


class Pace(NamedTuple):
    """One process's recent steps.

    Attributes:
        process: its index.
        at: when it told so, ns since the epoch.
        steps: kept steps.
        median, p90: net times of the latest of them, ns.
        outside: time from one step to the next beside them (loading, input, what is in no phase), mean, ns.
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
    """The slowest process, and its median step time over the median of all processes'."""

    process: int
    ratio: float


def straggler(paces: Sequence[Pace]) -> Straggler | None:
    """The slowest of several processes; None where fewer than two have a pace.

    Where steps wait for each other (collectives), all take as long as the slowest, and the one that holds them up shows
    in `Pace.outside`: the others wait for it inside of their steps.
    """
    known = [pace for pace in paces if pace.steps >= FEW and pace.median > 0]
    if len(known) < 2:
        return None
    slowest = max(known, key=lambda pace: pace.median)
    return Straggler(slowest.process, slowest.median / statistics.median(pace.median for pace in known))


def late(paces: Sequence[Pace]) -> Straggler | None:
    """The process that spends most beside its steps, and how much of its cadence that is; None as for `straggler`."""
    known = [pace for pace in paces if pace.steps >= FEW and pace.median > 0]
    if len(known) < 2:
        return None
    latest = max(known, key=lambda pace: pace.outside)
    return Straggler(latest.process, latest.outside / (latest.outside + latest.median))


def to_json(paces: Sequence[Pace], count: int) -> Mapping[str, Any]:
    """What the report says of the processes, `count` of them in all."""
    slowest, latest = straggler(paces), late(paces)
    return {
        "count": count,
        "paces": {str(pace.process): pace.to_json() for pace in sorted(paces)},
        "straggler": None if slowest is None else {"process": slowest.process, "ratio": slowest.ratio},
        "late": None if latest is None else {"process": latest.process, "share": latest.ratio},
    }
