"""The ranks of one role: accounted as one group if they step together, else each by itself (rule R11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Final

from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.events import NOT_KNOWN, Event
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.rank_columns import RankParts, RankWalk
from otel_goodput._accounting.rank_group import RankGroup
from otel_goodput._accounting.ranks import NEVER, Piece, RankStep
from otel_goodput._accounting.totals import Totals
from otel_goodput._accounting.weighted import followed

TRIAL: Final = 200  # common steps after which ranks that have stepped together are no longer accounted by themselves
LOGGED: Final = 32  # reports of each rank after which that is so in any case;
FEWEST: Final = 1000  # but not before so many of all of them

Call = Callable[[RankGroup], None]


class RoleAccount:
    """Accounts the ranks of one role.

    What they report is given to a group. During a trial it is kept besides: if they do not step together, each of them
    is accounted by itself from the begin on. If that shows later only, it is from then on.

    Args:
        spans, spread, expected, ledger, record: as those of a group.

    Attributes:
        group: the ranks as if they step together.
        ranks: the numbers of all ranks that were ever there.
    """

    def __init__(
        self,
        spans: Sequence[int],
        spread: int,
        expected: set[int],
        ledger: Ledger | None = None,
        record: Callable[[Iterable[Event]], None] | None = None,
    ) -> None:
        self.group = RankGroup(spans, spread, ledger, record, expected)
        self.ranks: set[int] = set()
        self._spans = spans
        self._own: dict[int, RankGroup] = {}
        # In the trial: what the accounts of single ranks do not have yet; events are for all of them.
        self._log: list[tuple[int, Call | Sequence[Event]]] = []
        self._noted: deque[Event] = deque(maxlen=FEWEST)  # what they have of the leader
        self._trial = True
        self._apart = False  # once and for all
        self._before: Totals | None = None  # the account until then

    @property
    def together(self) -> bool:
        """Whether the ranks step together, as far as that is known."""
        return not self._apart and self.group.merger.together

    @property
    def horizon(self) -> int:
        """The latest moment (ns) of which the account can be given; ``NOT_KNOWN`` if nothing was reported."""
        if not self._apart:
            return self.group.horizon
        if (slowest := self.slowest) != NEVER:
            return slowest
        return max((own.horizon for own in self._own.values()), default=NOT_KNOWN)

    @property
    def slowest(self) -> int:
        """Up to when all ranks are known that are there, ns; ``NEVER`` if none is."""
        if self._apart:
            return min((own.merger.slowest() for own in self._own.values()), default=NEVER)
        return self.group.merger.slowest()

    def join(self, rank: int, begin: int) -> None:
        """Note that the job of `rank` begins at `begin` (ns), maybe again."""
        self.ranks.add(rank)
        self._call(rank, methodcaller("join", rank, begin))

    def leave(self, rank: int, end: int, *, died: bool, gone: int = NEVER) -> None:
        """Note that the job of `rank` ended at `end` (ns), or that its process `died`, and gave its last sign then.

        In an attempt that began at `gone` (ns) there is no such rank.
        """
        self._call(rank, methodcaller("leave", rank, end, died=died, gone=gone))

    def set_aside(self, rank: int) -> None:
        """Go on without `rank`, of which nothing is known any longer, until more of it is reported."""
        self._call(rank, methodcaller("set_aside", rank))

    def feed(self, rank: int, steps: Sequence[RankStep], pieces: Sequence[Piece], known: int, size: int = 0) -> None:
        """Take what `rank` did up to `known` (ns), in order; see :meth:`RankGroup.feed`."""
        self._call(rank, methodcaller("feed", rank, steps, pieces, known, size))

    def feed_whole(self, ranks: Mapping[int, tuple[RankParts, int]], arithmetic: Arithmetic = PLAIN) -> None:
        """Take all that `ranks` did, each up to a moment (ns), before any of them leaves."""

        def feed(*some: int) -> Call:
            return lambda group: group.feed_whole({rank: RankWalk(*ranks[rank]) for rank in some}, arithmetic)

        feed(*ranks)(self.group)
        self._log += [(rank, feed(rank)) for rank in ranks]
        self._judge()

    def note(self, rank: int, events: Sequence[Event]) -> None:
        """Take events of the leader, `rank`, that hold for the job, and so for each rank. They are in order of time."""
        if self._apart:
            self._account_of(rank)
            self._note_each(events)
            return
        self.group.note(events)
        if self._trial:
            self._log.append((rank, events))

    def conclude(self, *, failed: bool) -> None:
        """Note that the job is over on all ranks; see :meth:`RankGroup.conclude`."""
        if self.together:
            self.group.conclude(failed=failed)
            self._log.clear()
            self._own.clear()
            return
        if self._trial:
            self._part()
            self._trial, self._apart = False, True
        for own in self._own.values():
            own.conclude(failed=failed)

    def _call(self, rank: int, call: Call) -> None:
        if self._apart:
            call(self._account_of(rank))
            return
        call(self.group)
        if self._trial:
            self._log.append((rank, call))
            self._judge()

    def _judge(self) -> None:
        """End the trial, if enough is known."""
        merger = self.group.merger
        if merger.common + merger.apart >= TRIAL or len(self._log) >= max(FEWEST, LOGGED * len(self.ranks)):
            self._trial = False
            if merger.together:
                self._log.clear()
                self._own.clear()
            else:
                self._part()
                self._apart = True

    def _account_of(self, rank: int) -> RankGroup:
        if rank not in self._own:
            self._own[rank] = RankGroup(self._spans)
            self._own[rank].note(self._noted)
        return self._own[rank]

    def _note_each(self, events: Sequence[Event]) -> None:
        """Have the accounts of single ranks take what the leader noted, also those that begin later."""
        self._noted += events
        for own in self._own.values():
            own.note(events)

    def _part(self) -> None:
        """Give the accounts of single ranks what they do not have yet."""
        for rank, call in self._log:
            own = self._account_of(rank)
            if callable(call):
                call(own)
            else:
                self._note_each(call)
        self._log.clear()

    def totals(self, at: int) -> dict[tuple[int, ...], Totals]:
        """Return the totals at `at` (ns, no later than the horizon) of those that step together, by their ranks."""
        if self.together:
            return {tuple(sorted(self.ranks)): self.group.totals(at)}
        if self._trial:
            self._part()
        elif not self._apart:  # they did until now
            self._apart = True
            self.group.release()
            reached = self.group.merger.reached
            self._before = self.group.ledger.totals(reached)
            self._own = {rank: self.group.alone(rank) for rank in self.ranks}
        begun = {rank: own.totals(at) for rank, own in sorted(self._own.items()) if rank in self.ranks}
        return {(rank,): followed(self._before, totals) for rank, totals in begun.items()}
