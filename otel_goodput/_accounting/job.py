"""The account of a job of several ranks, live: what they do together, and for whom they wait (rule R11).

Ranks of a role that step together are a group. A job that is one group has the account of that; any other has the sum
of the accounts of its groups and of its single ranks, weighted by devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.events import NO_STEP, NOT_KNOWN, Event
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.rank_clocks import Offset, RankClocks
from otel_goodput._accounting.rank_columns import RankParts
from otel_goodput._accounting.rank_group import AGAIN as AGAIN
from otel_goodput._accounting.rank_group import Cause as Cause
from otel_goodput._accounting.rank_group import Costs as Costs
from otel_goodput._accounting.rank_group import RankGroup
from otel_goodput._accounting.rank_group import holds_for_job as holds_for_job
from otel_goodput._accounting.rank_numbers import RankNumbers
from otel_goodput._accounting.rank_updates import Opened, RankUpdate
from otel_goodput._accounting.ranks import NEVER, STEP_TIME, Piece, RankStep
from otel_goodput._accounting.role_account import RoleAccount
from otel_goodput._accounting.rules import NS
from otel_goodput._accounting.totals import Brief, Totals
from otel_goodput._accounting.weighted import weighted_totals

LATE: Final = 15 * NS  # a rank whose last sign of life is older than those of others by more is blamed for nothing;
SILENT: Final = 60 * NS  # by more, it is silent: nothing of it is known;
ABSENT: Final = 600 * NS  # by more, the job goes on without it
HELD: Final = 100_000  # steps of all ranks: if more of them wait for others, none waits for one that is silent
_LOOK: Final = NS  # how often that is looked at


class Sign(NamedTuple):
    """What a rank has said of itself.

    Attributes:
        joined, left, known, at, opened: as in its latest :class:`RankUpdate`.
        seen: the latest sign of life of any rank when it came, ns.
    """

    joined: int
    left: int
    known: int
    at: int
    opened: Opened | None
    seen: int


class OpenNow(NamedTuple):
    """What the ranks are doing.

    Attributes:
        at: the latest moment of which it is known what all of them did, ns.
        ranks: what those said of themselves that are there.
        silent: of these, the ones that have not said anything for ``SILENT``.
        number, waiting: a step, and the ranks that were at work on it then.
        cause, since: the rank that they waited for then, and what it was doing; None if it cannot be known. Since when.
    """

    at: int
    ranks: Mapping[int, Sign]
    silent: Sequence[int]
    number: int
    waiting: Sequence[int]
    cause: Cause | None
    since: int


class JobAccount:
    """Accounts a job of several ranks.

    Args:
        spans: lengths of rolling windows, ns.
        spread: how far clocks of two ranks may be apart, ns.
        ledger: the account so far, to continue.
        record: takes the events of the job in place of the ledger. Who gives it feeds them to the ledger, too. If there
            are several roles, both are of the first one only, and in any case as long as its ranks step together.
    """

    def __init__(
        self,
        spans: Sequence[int] = (),
        spread: int = 0,
        ledger: Ledger | None = None,
        record: Callable[[Iterable[Event]], None] | None = None,
    ) -> None:
        self._spans, self._spread = spans, spread
        self._expected: set[int] = set()  # ranks that have not joined yet, without which nothing is decided
        self._first = RoleAccount(spans, spread, self._expected, ledger, record)
        self._roles: dict[str, RoleAccount] = {}
        self._role_of: dict[int, str] = {}
        self._devices: dict[int, int] = {}
        self._clocks, self._numbers = RankClocks(), RankNumbers()
        self._signs: dict[int, Sign] = {}
        self._latest = self._looked = NOT_KNOWN  # sign of life of any rank, ns
        self._began = NOT_KNOWN  # the first of all, ns

    def remember(self, costs: Costs) -> None:
        """Continue with the `costs` so far of the ranks without a role."""
        self._first.group.costs = costs

    # --- what ranks report --------------------------------------------------------------------------------------------

    def place(self, rank: int, role: str = "", devices: int = 1) -> None:
        """Note the role of `rank`, before it joins, and how many devices it has, now or later; 0: not known (yet)."""
        self._role_of.setdefault(rank, role)
        self._devices[rank] = devices or self._devices.get(rank, 0)

    def offset(self, rank: int, ahead: int, bound: int, since: int = 0) -> None:
        """Note that the clock of `rank` is `ahead` of the common one by so many ns, give or take `bound`.

        The times of its updates `since` then (ns, by its own clock) are corrected by that; 0: its process is a new one.
        """
        self._clocks.set(rank, Offset(since, ahead, bound))
        self._set_spread()

    @property
    def spread(self) -> int:
        """How far clocks of two ranks may be apart in what is not decided yet, ns."""
        return max(self._spread, self._clocks.spread(self.horizon))

    def _set_spread(self) -> None:
        spread = self.spread
        for role in (self._first, *self._roles.values()):
            role.group.merger.spread = spread

    def expect(self, ranks: Iterable[int]) -> None:
        """Decide nothing before all these `ranks` have joined, or were silent for ``SILENT`` after the first update."""
        self._expected.update(ranks)

    def update(self, rank: int, update: RankUpdate) -> None:
        """Take an update of `rank`. One that comes again, or of a process before the latest one, changes nothing."""
        self.take(rank, self.by_common_clock(rank, update))

    def by_common_clock(self, rank: int, update: RankUpdate) -> RankUpdate:
        """Return an update of `rank` with its times corrected by what is known of its clock."""
        return self._clocks.corrected(rank, update)

    def common_time(self, rank: int, time: int) -> int:
        """Return a time of `rank` (ns) by the common clock, as far as it is known."""
        return self._clocks.common(rank, time)

    def take(self, rank: int, update: RankUpdate) -> None:
        """Take an update whose times are by the common clock; see :meth:`update`."""
        before, joined = self._signs.get(rank), update.joined
        if joined == NOT_KNOWN:
            return
        # What was before its job began is of the job before, in the same process.
        begins = [one.begin for one in update.steps[:1]] + [one.begin for one in update.pieces[:1]]
        same = before is not None and min(begins, default=joined) < joined
        if before is not None:
            if joined < before.joined:
                return
            if joined == before.joined and update.at <= before.at and update.left in (NOT_KNOWN, before.left):
                return
            if joined > before.joined and before.left == NOT_KNOWN and not same:
                if update.known < joined:  # it is not known yet whose it is
                    return
                self._end_of(rank, before)
        if self._latest == NOT_KNOWN:
            self._began = update.at
        self._latest = max(self._latest, update.at)
        self._signs[rank] = Sign(joined, update.left, update.known, update.at, update.opened, self._latest)
        if before is None or (joined > before.joined and not (same and before.left == NOT_KNOWN)):
            self.join(rank, joined)
        self.feed(rank, update.steps, update.pieces, update.known, update.size)
        if update.left != NOT_KNOWN:
            self.leave(rank, update.left, died=False)
        if self._latest - self._looked >= _LOOK:
            self._looked = self._latest
            self._set_spread()
            if self._latest - self._began > SILENT:
                self._expected.clear()
            held = sum(role.group.merger.held() for role in self._roles.values())
            limit = ABSENT if held <= HELD else SILENT
            for other, sign in self._signs.items():
                if sign.left == NOT_KNOWN and self._latest - sign.seen > limit:
                    self.set_aside(other)

    def _end_of(self, rank: int, sign: Sign) -> None:
        """End the job of `rank`, of which `sign` was the last one: its process died, since there is a new one."""
        opened = sign.opened
        if opened is not None and opened.category != STEP_TIME and opened.since < sign.at:
            piece = Piece(max(sign.known, opened.since), sign.at, opened.category, opened.name)
            if piece.begin < piece.end:
                self.feed(rank, (), [piece], sign.at)
        self.leave(rank, sign.at, died=True)

    def join(self, rank: int, begin: int) -> None:
        """Note that the job of `rank` begins at `begin` (ns), maybe again."""
        self._role(rank).join(rank, begin)

    def leave(self, rank: int, end: int, *, died: bool, gone: int = NEVER) -> None:
        """Note that the job of `rank` ended at `end` (ns), or that its process `died`, and gave its last sign then.

        In an attempt that began at `gone` (ns) there is no such rank.
        """
        if (sign := self._signs.get(rank)) is not None and sign.left == NOT_KNOWN:
            self._signs[rank] = sign._replace(left=end)
        self._role(rank).leave(rank, end, died=died, gone=gone)

    def set_aside(self, rank: int) -> None:
        """Go on without `rank`, of which nothing has been known for ``ABSENT``, until more of it is reported."""
        self._role(rank).set_aside(rank)

    def feed(self, rank: int, steps: Sequence[RankStep], pieces: Sequence[Piece], known: int, size: int = 0) -> None:
        """Take what `rank` did up to `known` (ns), in order; see :meth:`RankGroup.feed`."""
        self._clocks.compare(rank, steps)
        self._numbers.look(rank, steps)
        self._role(rank).feed(rank, steps, pieces, known, size)

    def feed_whole(self, ranks: Mapping[int, tuple[RankParts, int]], arithmetic: Arithmetic = PLAIN) -> None:
        """Take all that `ranks`, which have joined, did up to a moment (ns) each, before any of them leaves."""
        for rank, (parts, _) in ranks.items():
            self._clocks.compare_whole(rank, parts)
            self._numbers.look_at_whole(rank, parts)
        roles = {id(role): role for role in map(self._role, ranks)}
        for role in roles.values():
            role.feed_whole({rank: whole for rank, whole in ranks.items() if rank in role.ranks}, arithmetic)

    def note(self, events: Iterable[Event], rank: int = 0) -> None:
        """Take events of the leader that hold for the job: see :func:`holds_for_job`. They are in order of time."""
        self._role(rank).note(rank, list(events))

    def _role(self, rank: int) -> RoleAccount:
        role = self._role_of.setdefault(rank, "")
        if role not in self._roles:
            self._roles[role] = RoleAccount(self._spans, self.spread, self._expected) if self._roles else self._first
        return self._roles[role]

    # --- the account --------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> Mapping[str, RoleAccount]:
        """The roles that have ranks, by name; "": those without a role."""
        return self._roles

    @property
    def ledger(self) -> Ledger:
        """The account of what is decided, of the ranks of the first role as a group."""
        return self._first.group.ledger

    @property
    def costs(self) -> Costs:
        """For which ranks of their role others waited, in the roles whose ranks step together.

        If there are several roles, that is the part of the job's devices that waited.
        """
        return self._costs(lambda group: group.costs)

    def _costs(self, of: Callable[[RankGroup], Costs]) -> Costs:
        if self.together:
            return of(self._first.group)
        every = [(self._devices_of(role.ranks), of(role.group)) for role in self.roles.values() if role.together]
        return Costs.summed(every, self._devices_of(self._role_of))

    def _devices_of(self, ranks: Iterable[int]) -> int:
        return sum(self._devices.get(rank) or 1 for rank in ranks)

    @property
    def together(self) -> bool:
        """Whether all ranks step together, so that the account of the job is that of one group."""
        return len(self.roles) <= 1 and all(role.together for role in self.roles.values())

    @property
    def offsets(self) -> Mapping[int, Offset]:
        """How far the clocks of ranks are ahead of the common one, by which their times were corrected."""
        return self._clocks.offsets

    @property
    def clocks_disagree(self) -> Mapping[int, int]:
        """The ranks whose clocks are so far ahead of most others' (ns) that the account rests on nothing."""
        return self._clocks.disagree

    @property
    def numbered_apart(self) -> Mapping[int, int]:
        """By how much the numbers of ranks seem to be higher than most others', if that is why they step apart."""
        return self._numbers.apart if len(self.roles) == 1 and not self.together else {}

    @property
    def left_out(self) -> set[int]:
        """The ranks without which the job went on: they are silent, or died, and have not come back."""
        return {rank for role in self._roles.values() if role.together for rank in role.group.merger.left_out}

    @property
    def horizon(self) -> int:
        """The latest moment (ns) of which the account can be given; ``NOT_KNOWN`` if nothing was reported."""
        slowest = min((role.slowest for role in self._roles.values()), default=NEVER)
        horizons = [role.horizon for role in self._roles.values()]
        if slowest == NEVER:
            return max(horizons, default=NOT_KNOWN)
        # What is decided stays, even if a rank comes that is known up to an earlier moment only.
        return max(slowest, min(horizon for horizon in horizons if horizon != NOT_KNOWN))

    def totals(self, at: int | None = None) -> Totals:
        """Return the totals of the job at `at` (ns; by default at the horizon, beyond which nothing is known)."""
        moment = self._moment(at)
        roles = [self._parts(name, moment) for name in self.roles]
        parts = [part for role in roles for part in role]
        if not parts:
            return self._first.group.totals(moment)
        return parts[0][1] if len(parts) == 1 else weighted_totals(parts, len(roles[0]))

    def brief(self, at: int | None = None) -> Brief:
        """A part of :meth:`totals`, in less time if all ranks step together."""
        if self.together and self.roles:
            return self._first.group.brief(self._moment(at))
        return self.totals(at).brief

    def totals_of_roles(self, at: int | None = None) -> Mapping[str, Totals]:
        """Return the totals of each role at `at`; see :meth:`totals`."""
        moment = self._moment(at)
        every = {name: self._parts(name, moment) for name in self.roles}
        return {name: parts[0][1] if len(parts) == 1 else weighted_totals(parts) for name, parts in every.items()}

    def _moment(self, at: int | None) -> int:
        return self.horizon if at is None else min(at, self.horizon)

    def _parts(self, role: str, at: int) -> list[tuple[int, Totals]]:
        """The totals of those that step together, with the number of their devices."""
        parts = self._roles[role].totals(at)
        return [(self._devices_of(ranks), totals) for ranks, totals in parts.items()]

    def overview(self, at: int | None = None) -> Overview:
        """Return the first role in bounded space, as a group; its bins add up to ``Totals.run`` of that."""
        moment = self._moment(at)
        return self.ledger_at(moment).overview(moment)

    def conclude(self, *, failed: bool) -> None:
        """Note that the job is over on all ranks, as far as they are known: what is undecided counts.

        It `failed` on the leader. A rank that joins later begins another attempt. Ranks that do not step together have
        no common records to be concluded.
        """
        end = self.horizon
        for role in self.roles.values():
            role.conclude(failed=failed)
        for rank, sign in self._signs.items():
            self._signs[rank] = sign._replace(left=end if sign.left == NOT_KNOWN else sign.left)

    def ledger_at(self, moment: int) -> Ledger:
        """Return the account of the first role, as a group, up to `moment` (ns, not beyond the horizon)."""
        return self._first.group.ledger_at(moment)

    def undecided(self, at: int) -> Iterable[Event]:
        """Return its events up to `at` (ns) that the ledger does not have, because they may change."""
        return self._first.group.undecided(at)

    def costs_at(self, at: int) -> Costs:
        """Return the costs up to `at` (ns), with those of a wait that goes on."""
        moment = self._moment(at)
        return self._costs(lambda group: group.costs_at(moment))

    # --- now ----------------------------------------------------------------------------------------------------------

    @property
    def silent(self) -> Sequence[int]:
        """The ranks that are there and have given no sign of life for ``SILENT``, while others have."""
        signs = sorted(self._signs.items())
        return [rank for rank, sign in signs if sign.left == NOT_KNOWN and self._latest - sign.seen > SILENT]

    def waits(self, at: int | None = None) -> Mapping[Cause, int]:
        """Return for which rank the job waits at `at` (ns), if it does and that can be known, and since when."""
        now = self.open_now(at)
        return {} if now.cause is None else {now.cause: now.since}

    def open_now(self, at: int | None = None) -> OpenNow:
        """Return what the ranks do at `at` (ns; by default at the horizon), and for whom they wait.

        Nobody is blamed while a rank is silent, nor if the one to be blamed has not given a sign of life for ``LATE``,
        or if the ranks do not step together.
        """
        moment, silent = self._moment(at), self.silent
        there = {rank: sign for rank, sign in sorted(self._signs.items()) if sign.left == NOT_KNOWN}
        now = OpenNow(moment, there, silent, NO_STEP, (), None, NOT_KNOWN)
        for role in self.roles.values():
            if not role.together:
                continue
            standing = role.group.merger.standing(moment)
            if len(standing.waiting) > len(now.waiting):
                now = now._replace(number=standing.number, waiting=standing.waiting)
            if (one := standing.stretch) is None or any(rank in role.ranks for rank in silent):
                continue
            sign = self._signs.get(one.rank)
            if sign is None or self._latest - sign.seen <= LATE or sign.left != NOT_KNOWN:
                cause = Cause(one.rank, one.category, one.name)
                return now._replace(number=standing.number, waiting=standing.waiting, cause=cause, since=one.begin)
        return now
