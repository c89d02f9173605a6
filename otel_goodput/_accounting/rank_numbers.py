"""Ranks that number the same steps otherwise: why they seem not to step together (rule R11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.rank_columns import RankParts, StepColumns
from otel_goodput._accounting.rank_time import RankStep

LOOKED_AT: Final = 16  # first steps of a rank
FEWEST: Final = 8  # of them, that are compared with those of another one


class RankNumbers:
    """Compares the numbers of the first steps of ranks with when these were."""

    def __init__(self) -> None:
        self._first: dict[int, list[RankStep]] = {}

    def look(self, rank: int, steps: Iterable[RankStep]) -> None:
        """Look at steps of `rank`."""
        first = self._first.setdefault(rank, [])
        if len(first) < LOOKED_AT:
            over = (step for step in steps if step.end != NOT_KNOWN and step.steps == 1)
            first += islice(over, LOOKED_AT - len(first))

    def look_at_whole(self, rank: int, parts: RankParts) -> None:
        """The same of all that a rank did."""
        for part in parts.parts:
            if len(self._first.get(rank, ())) >= LOOKED_AT:
                return
            if isinstance(part, StepColumns):
                self.look(rank, part.steps(0, min(len(part.numbers), LOOKED_AT)))
            else:
                self.look(rank, part.steps)

    @property
    def apart(self) -> Mapping[int, int]:
        """By how much the numbers of ranks are higher than most others', always by the same, for steps at one time."""
        if len(self._first) < 2:
            return {}
        first, *others = sorted(self._first)
        higher = {first: 0}
        for rank in others:
            if (by := _higher(self._first[rank], self._first[first])) is None:
                return {}
            higher[rank] = by
        usual, _ = max(Counter(higher.values()).items(), key=lambda one: (one[1], one[0] == 0))
        return {rank: by - usual for rank, by in higher.items() if by != usual}


def _higher(steps: Iterable[RankStep], others: Iterable[RankStep]) -> int | None:
    """Return by how much the numbers of `steps` are higher than those of `others` at the same time; None: it varies."""
    numbers = Counter[int]()
    for step in steps:
        for other in others:
            common = min(step.end, other.end) - max(step.begin, other.begin)
            if 2 * common > max(step.end - step.begin, other.end - other.begin):
                numbers[step.number - other.number] += 1
    return next(iter(numbers)) if len(numbers) == 1 and sum(numbers.values()) >= FEWEST else None
