"""The steps of the other processes, as successive bins: a page tells with them how long a step took on each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from otel_goodput.accounting.overview import NOT_KNOWN, StepBin
from otel_goodput.reports.session import Process

COLUMNS: Final = ("process", "first", "last", "begin", "count", "net_median", "net_max")
ROWS: Final = 65_536  # of all processes together, about


def rank_steps(processes: Iterable[Process], at: Callable[[int], int], rows: int = ROWS) -> Iterator[tuple[int, ...]]:
    """Yield rows of `COLUMNS`, process by process, in order of their begin.

    Args:
        processes: of the run; the leader is left out, whose steps are told in detail.
        at: makes a time of the document from ns since the epoch.
        rows: if there are more, successive bins of a process are joined.
    """
    others = [(one.index, one.overview.step_bins) for one in processes if one.index and one.overview is not None]
    room = max(1, rows // max(1, len(others)))
    for index, bins in others:
        size = max(1, -(-len(bins) // room))
        for first in range(0, len(bins), size):
            yield (index, *_joined(bins[first : first + size], at))


def _joined(bins: Sequence[StepBin], at: Callable[[int], int]) -> tuple[int, ...]:
    """Of several bins the median is the mean of their medians, each counted with its steps."""
    known = [(one.net, one.count) for one in bins if one.net is not None]
    steps = sum(count for _, count in known)
    middle = sum(net.median * count for net, count in known) // steps if steps else NOT_KNOWN
    longest = max((net.max for net, _ in known), default=NOT_KNOWN)
    first, last = min(one.first for one in bins), max(one.last for one in bins)
    return first, last, at(bins[0].begin), sum(one.count for one in bins), middle, longest
