"""How many executions of steps there are by measure, attempt, fate and length: the histograms of an overview."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_goodput._accounting.codec import COUNT, Pairs, State, field
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import DEVICE, IN_FLIGHT, NET, WALL, bucket_of

ATTEMPTS: Final = 200  # with histograms of their own; older ones are counted with the oldest of these
MEASURES: Final = (NET, WALL, DEVICE)

BITS: Final = 10
_FIELD: Final = (1 << BITS) - 1
Counts = dict[int, int]  # by (fate, measure, bucket), packed


def profile_of(execution: Execution) -> int:
    """The buckets of its net time, wall time and time on the device, packed; 0 in each place that is not known."""
    profile = bucket_of(execution.net) + 1
    if execution.wall >= 0:
        profile |= bucket_of(execution.wall) + 1 << BITS
    if execution.timed:
        profile |= bucket_of(execution.busy) + 1 << 2 * BITS
    return profile


class Tallies(State):
    """Counts of executions by their profiles."""

    # By attempt; clones share those that are not in `_own`.
    _counts: dict[int, Counts] = field(
        Pairs(COUNT, Pairs(COUNT, COUNT, replaced=True), ATTEMPTS + 1), make=dict, key="histogram"
    )
    _oldest: int = field(COUNT, 0, key="oldest_attempt")
    _own: frozenset[int] = frozenset()

    def clone(self) -> Tallies:
        self._own = frozenset()
        return super().clone()

    def add(self, attempt: int, fate: int, profile: int, count: int) -> None:
        """Count `count` more executions of `attempt` with this fate and profile."""
        attempt = max(attempt, self._oldest)
        counts = self._counts.get(attempt)
        if counts is None:
            counts = self._counts[attempt] = {}
            self._own |= {attempt}
            if len(self._counts) > ATTEMPTS:
                self._fold()
        elif attempt not in self._own:
            counts = self._counts[attempt] = counts.copy()
            self._own |= {attempt}
        base = fate << 2 * BITS
        while profile:
            field = profile & _FIELD
            if field:
                key = base | field - 1
                counts[key] = max(0, counts.get(key, 0) + count)  # below 0: a snapshot was forged
            base += 1 << BITS
            profile >>= BITS

    def _fold(self) -> None:
        """Count the oldest attempt with the one after it."""
        oldest, after = sorted(self._counts)[:2]
        counts = self._counts[after].copy()
        for key, count in self._counts.pop(oldest).items():
            counts[key] = counts.get(key, 0) + count
        self._counts[after] = counts
        self._own |= {after}
        self._own -= {oldest}
        self._oldest = after

    def answer(self, running: Iterable[Execution]) -> dict[tuple[int, int, int, int], int]:
        """Executions by (measure, attempt, fate, bucket), those that are `running` included."""
        counts_by = {
            (key >> BITS & 3, attempt, key >> 2 * BITS, key & _FIELD): count
            for attempt, counts in self._counts.items()
            for key, count in counts.items()
            if count
        }
        for execution in running:
            profile = profile_of(execution)
            for measure in MEASURES:
                if field := profile >> measure * BITS & _FIELD:
                    key = measure, max(execution.attempt, self._oldest), IN_FLIGHT, field - 1
                    counts_by[key] = counts_by.get(key, 0) + 1
        return counts_by
