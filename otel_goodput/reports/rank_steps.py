"""The steps of one process in so few rows that a page can hold those of hundreds of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_goodput.accounting.overview import NOT_KNOWN, StepBin
from otel_goodput.journal.columns import Row
from otel_goodput.journal.overview_rows import NONE, rows_of_step_bins

ROWS: Final = 65_536  # of all processes together, about


class RankSteps(NamedTuple):
    """Successive executions of steps.

    Attributes:
        first, last: lowest and highest number.
        begin: when the first of them started, ns.
        count: executions.
        net_median, net_max: ns; of joined bins the median is the mean of theirs, each counted with its steps.
    """

    first: int
    last: int
    begin: int
    count: int  # type: ignore[assignment]
    net_median: int
    net_max: int


def rank_steps(bins: Sequence[StepBin], rows: int) -> list[RankSteps]:
    """Return the step bins of a process as at most `rows` rows; if there are more, neighbors are joined."""
    stored = rows_of_step_bins(bins)
    size = max(1, -(-len(stored) // max(1, rows)))
    return [_joined(stored[first : first + size]) for first in range(0, len(stored), size)]


def _joined(rows: Sequence[Row]) -> RankSteps:
    firsts, lasts, begins, counts, _, _, medians, longest, *_ = zip(*rows, strict=True)
    known = [(median, count) for median, count in zip(medians, counts, strict=True) if median != NONE]
    steps = sum(count for _, count in known)
    middle = sum(median * count for median, count in known) // steps if steps else NOT_KNOWN
    return RankSteps(min(firsts), max(lasts), begins[0], sum(counts), middle, max(NOT_KNOWN, *longest))
