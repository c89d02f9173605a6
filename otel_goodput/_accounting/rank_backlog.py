"""What one rank has reported and the job has not decided yet (rule R11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from otel_goodput._accounting.events import FAILED, NO_STEP, NOT_KNOWN
from otel_goodput._accounting.rank_time import NEVER, Piece, RankStep
from otel_goodput._accounting.rules import RECOVERY


@dataclass(slots=True)
class RankBacklog:
    """Steps and pieces of a rank, and whether it is there."""

    steps: deque[RankStep] = field(default_factory=deque)  # the last one may be open
    pieces: deque[Piece] = field(default_factory=deque)
    known: int = 0  # what it has done before this moment (ns) is known
    joined: int = NOT_KNOWN  # begin of its first job, ns
    left: int = NOT_KNOWN  # end of its job, or its last sign of life, ns; not known while it goes on
    latest: int = NO_STEP  # number of the step before the first of `steps`
    number_failed: int = NO_STEP  # of the latest of those that failed, and its end, ns
    failed: int = NOT_KNOWN
    tries: deque[int] = field(default_factory=deque)  # begins of those, ns, as far as they are not decided
    died: bool = False  # its process did not end by itself
    gone: int = NEVER  # when others were back and went on without it, ns; it is away no longer
    taken: bool = False  # it took part in the job's latest step
    aside: bool = False  # the job goes on without it

    @property
    def went_back(self) -> bool:
        return self.steps[0].number <= self.latest

    @property
    def ended(self) -> bool:
        """Whether its job ended cleanly, as far as is known: its latest step has not failed."""
        if self.steps:
            return not self.died and not self.steps[-1].flags & FAILED
        return not self.died and (self.latest == NO_STEP or self.number_failed != self.latest)

    @property
    def begun(self) -> int:
        """When its latest step began, ns."""
        return self.steps[-1].begin if self.steps else NOT_KNOWN

    def pieces_until(self, until: int) -> Iterator[Piece]:
        """Yield the pieces that begin before `until` (ns); the last is its absence, if its process died."""
        yield from takewhile(lambda piece: piece.begin < until, self.pieces)
        if self.died and NOT_KNOWN < self.left < min(until, self.gone):
            yield Piece(self.left, min(until, self.gone), RECOVERY)

    def has_pieces(self, begin: int, until: int) -> bool:
        """Whether there may be some between two moments (ns), which a load before the first one is not."""
        own = self.pieces
        if not own or own[0].begin >= until:
            return False
        return own[0].end > begin or (len(own) > 1 and own[1].begin < until)

    def tries_again(self, until: int) -> bool:
        """Whether it begins the same step once more by `until` (ns)."""
        return len(self.steps) > 1 and self.steps[1].number == self.steps[0].number and self.steps[1].begin <= until

    def drop(self) -> None:
        step = self.steps.popleft()
        self.latest = step.number
        if step.flags & FAILED:
            self.number_failed, self.failed = step.number, step.end
            self.tries.append(step.begin)
