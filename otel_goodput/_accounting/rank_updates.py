"""What a rank publishes about itself: what it did since its update before, for the account of the job (rule R11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.ranks import Piece, RankStep


class Opened(NamedTuple):
    """The innermost phase that is open on a rank.

    Attributes:
        category, name: category number and custom name; ``STEP_TIME``: a step.
        number: of the step that it is, or that it is part of; ``NO_STEP`` if none.
        since: when it began, ns.
    """

    category: int
    name: str
    number: int
    since: int


class RankUpdate(NamedTuple):
    """What a rank did since its update before.

    Attributes:
        joined, left: begin and end of its latest job, ns; ``NOT_KNOWN``: none has begun; it goes on.
        known, at: what it did before this moment is final; its last sign of life, ns (``known`` or later).
        steps: new ones, in order. The last one may be open; it comes again, first, in the next update.
        pieces: time up to `known` that is no step's own, in order; one that goes on comes in parts. What is in neither
            is ``OTHER``.
        opened: what it is doing at `at`; None if no phase is open.
    """

    joined: int
    known: int
    at: int
    left: int
    steps: Sequence[RankStep]
    pieces: Sequence[Piece]
    opened: Opened | None

    def followed_by(self, after: RankUpdate) -> RankUpdate:
        """Return this update and the next one as one."""
        steps = list(self.steps)
        if steps and steps[-1].end == NOT_KNOWN and after.steps:
            steps.pop()
        return after._replace(steps=[*steps, *after.steps], pieces=connected([*self.pieces, *after.pieces]))


def connected(pieces: Iterable[Piece]) -> list[Piece]:
    """Return successive pieces with those as one that go on."""
    whole: list[Piece] = []
    for piece in pieces:
        before = whole[-1] if whole else None
        if before is not None and (before.end, *before[2:]) == (piece.begin, *piece[2:]):
            piece = whole.pop()._replace(end=piece.end)
        whole.append(piece)
    return whole
