"""How long the stages of checkpoints took: count, sum, least, greatest and sum of squares of each, in bounded space.

A stage is a ``part`` whose name is in ``semconv.CHECKPOINT_STAGES``. It owns no time of the account.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, Blobs, Pairs, Row, State, Text, Whole, field
from otel_goodput._accounting.rules import NS
from otel_goodput.semconv import CHECKPOINT_STAGES

_HUGE: Final = 1 << 192  # bound of a sum of squares


class StageSums(NamedTuple):
    """What is kept of the lengths of one stage; lengths in ns, `squares` in ns².

    Sums of integers, and not a running mean: they are exact, and the same in whatever order lengths come.
    """

    count: int  # type: ignore[assignment]
    total: int
    min: int
    max: int
    squares: int

    @property
    def mean(self) -> float:
        """Mean length, ns."""
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Sample standard deviation (divided by count - 1), ns; 0 for a single one."""
        if self.count < 2:
            return 0.0
        return math.sqrt((self.count * self.squares - self.total**2) / (self.count * (self.count - 1)))

    def plus(self, length: int) -> StageSums:
        """The same with one more length, ns; one below 0, of a clock that went back, counts as 0."""
        length = max(0, length)
        least, most = min(self.min, length), max(self.max, length)
        return StageSums(self.count + 1, self.total + length, least, most, self.squares + length * length)


_NONE: Final = StageSums(0, 0, _HUGE, 0, 0)


class _Sums(Row):
    """The sums of one stage. Raises ValueError also if no lengths add up to them."""

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        rows = super().load_all(plain, blobs)
        for count, total, least, most, squares in rows:
            if not (count and least <= most and count * least <= total <= count * most and total**2 <= count * squares):
                raise ValueError("no lengths add up to such sums")
        return rows


STAGES: Final = Pairs(
    Text(*CHECKPOINT_STAGES), _Sums(COUNT, COUNT, COUNT, COUNT, Whole(0, _HUGE), make=StageSums._make)
)


class Stages(State):
    """The stages of checkpoints in a run's events so far, by name of the part."""

    sums: dict[str, StageSums] = field(STAGES, make=dict)

    def add(self, name: str, length: int) -> None:
        """Count a part that ended well; parts that are no stages of checkpoints are ignored."""
        if name in CHECKPOINT_STAGES:
            self.sums[name] = self.sums.get(name, _NONE).plus(length)


class RankStages(NamedTuple):
    """The stages of the checkpoints of one process of a run."""

    process: int
    sums: Mapping[str, StageSums]


def slowest(ranks: Sequence[RankStages], name: str) -> dict[str, Any] | None:
    """The process on which the stage `name` takes longest on average, that mean, and the median of all processes'.

    None if fewer than two processes have it.
    """
    means = {rank.process: rank.sums[name].mean for rank in ranks if name in rank.sums}
    if len(means) < 2:
        return None
    process = max(sorted(means), key=means.__getitem__)
    return {"process": process, "mean_s": means[process] / NS, "median_s": statistics.median(means.values()) / NS}


def to_json(sums: Mapping[str, StageSums], ranks: Sequence[RankStages]) -> dict[str, dict[str, Any]]:
    """The report's section on checkpoints: operation -> stage -> statistics of one process, and the slowest of all."""
    answer: dict[str, dict[str, Any]] = {}
    for name, (operation, stage) in CHECKPOINT_STAGES.items():
        if (one := sums.get(name)) is None:
            continue
        answer.setdefault(operation, {})[stage] = {
            "count": one.count,
            "min_s": one.min / NS,
            "mean_s": one.mean / NS,
            "max_s": one.max / NS,
            "deviation_s": one.deviation / NS,
            "slowest": slowest(ranks, name),
        }
    return answer
