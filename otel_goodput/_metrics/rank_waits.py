"""For which of its ranks a job waits, as rows of a metric: few of thousands of ranks are ever worth a series."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.own_time import OwnTimes
from otel_goodput._accounting.rules import NAMES, NS
from otel_goodput.semconv import OTHER_RANKS

# How long the job has waited for each cause since this process began, ns; None while it is not known.
RankWaits = Callable[[], "Mapping[Cause, int] | None"]
Costs = Counter[str]  # ns by category

MOST: Final = 16  # ranks that have series of their own at a time
LEAST: Final = NS  # a rank has cost that much at least, ...
WORTH: Final = 100  # ... and one part in this many of what all have;
MORE: Final = 2  # and so many times as much as the one whose place it takes


def own_rows(own: OwnTimes) -> Iterator[tuple[float, str]]:
    """Yield the rows of ``RANK_OWN``: of the latest window."""
    if own.windows:
        window = own.windows[-1]
        for one in sorted(window.ranks, key=lambda one: (one.rank not in window.slow, -one.own, one.rank))[:MOST]:
            yield one.own / NS, str(one.rank)
        yield window.usual / NS, OTHER_RANKS


def gain_rows(own: OwnTimes) -> Iterator[tuple[float, str]]:
    """Yield the rows of ``RANK_GAIN``: of the latest window, and 0 for others that were slow, those that cost most."""
    if own.windows:
        window = own.windows[-1]
        for rank in [*dict.fromkeys((*window.slow, *(one.rank for one in own.slow)))][:MOST]:
            yield window.gain(rank), str(rank)


class RankRows:
    """Returns the rows of ``RANK_WAIT`` at each call. Calls may come from any thread.

    A rank has series of its own from the moment at which it has cost enough. If all places are taken, it gets that of
    the rank that has cost least, whose series end. What ranks cost without series of their own stays with the others.
    So no series ever falls.
    """

    def __init__(self, waits: RankWaits) -> None:
        self._waits = waits
        self._lock = threading.Lock()
        self._before = defaultdict[int, Costs](Counter)  # the most that each rank has cost
        self._own = defaultdict[int, Costs](Counter)  # what each cost while it had series
        self._others = Costs()
        self._named: set[int] = set()  # those that have series

    def __call__(self) -> Iterator[tuple[float, str, str]]:
        waits = self._waits()
        if waits is None:
            return iter(())
        costs = defaultdict[int, Costs](Counter)
        for cause, spent in list(waits.items()):
            costs[cause.rank][NAMES[cause.category]] += spent
        with self._lock:
            self._choose({rank: sum(spent.values()) for rank, spent in costs.items()})
            for rank, held in costs.items():
                account = self._own[rank] if rank in self._named else self._others
                account += held - self._before[rank]
                self._before[rank] |= held
            return iter([*self._rows()])

    def _choose(self, sums: Mapping[int, int]) -> None:
        least = max(LEAST, sum(sums.values()) // WORTH)
        for rank in sorted(sums.keys() - self._named, key=lambda rank: -sums[rank]):
            if sums[rank] < least:
                return
            if len(self._named) >= MOST:
                last = min(self._named, key=lambda one: (sums.get(one, 0), one))
                if sums[rank] < MORE * sums.get(last, 0):
                    return
                self._named.remove(last)
            self._named.add(rank)

    def _rows(self) -> Iterator[tuple[float, str, str]]:
        for rank in sorted(self._named):
            for category, duration in self._own[rank].items():
                yield duration / NS, str(rank), category
        for category, duration in self._others.items():
            yield duration / NS, OTHER_RANKS, category
