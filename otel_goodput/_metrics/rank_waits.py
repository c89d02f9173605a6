"""For which of its ranks a job waits, as rows of a metric: few of thousands of ranks are ever worth a series."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.rules import NAMES, NS
from otel_goodput.semconv import OTHER_RANKS

# How long the job has waited for each cause since this process began, ns; None while it is not known.
RankWaits = Callable[[], "Mapping[Cause, int] | None"]
Costs = Counter[str]  # ns by category

MOST: Final = 16  # ranks that have series of their own
LEAST: Final = NS  # a rank has cost that much at least, ...
WORTH: Final = 100  # ... and one part in this many of what all have


class RankRows:
    """Returns the rows of ``RANK_WAIT`` at each call. Calls may come from any thread.

    A rank has series of its own from the moment at which it has cost enough. What it had cost by the call before stays
    with the others, so no series ever falls.
    """

    def __init__(self, waits: RankWaits) -> None:
        self._waits = waits
        self._lock = threading.Lock()
        self._before: Mapping[int, Costs] = {}  # what each rank had cost at the call before
        self._shared: dict[int, Costs] = {}  # what those with own series had cost while they had none

    def __call__(self) -> Iterator[tuple[float, str, str]]:
        waits = self._waits()
        if waits is None:
            return iter(())
        costs = defaultdict[int, Costs](Counter)
        for cause, spent in list(waits.items()):
            costs[cause.rank][NAMES[cause.category]] += spent
        with self._lock:
            return iter([*self._rows(costs)])

    def _rows(self, costs: Mapping[int, Costs]) -> Iterator[tuple[float, str, str]]:
        sums = {rank: sum(spent.values()) for rank, spent in costs.items()}
        least = max(LEAST, sum(sums.values()) // WORTH)
        for rank in sorted(sums.keys() - self._shared, key=lambda rank: -sums[rank]):
            if len(self._shared) < MOST and sums[rank] >= least:
                self._shared[rank] = self._before.get(rank, Counter())
        others = Costs()
        for rank, spent in sorted(costs.items()):
            shared = self._shared.get(rank, spent)
            others += shared
            for category, duration in (spent - shared).items():
                yield duration / NS, str(rank), category
        for category, duration in others.items():
            yield duration / NS, OTHER_RANKS, category
        self._before = costs
