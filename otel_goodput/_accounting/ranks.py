"""The partition of a job of several ranks, derived from the partitions of its ranks (rule R11).

Step `n` of the job is that of the ranks that took part in it: it begins when the last of them has begun it, and is over
when the last of them has ended it. Until it begins, the job waits for the rank that begins last, and its time is what
that rank was doing. So each moment of the job is a moment of one rank, and the categories add up exactly.

Ranks report in pieces, each up to a moment of its own; what all of them are known to have done is decided, once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from typing import Final

from otel_goodput._accounting.events import FAILED, NO_STEP, NOT_KNOWN
from otel_goodput._accounting.rank_backlog import RankBacklog
from otel_goodput._accounting.rank_starts import failed_starts, outside
from otel_goodput._accounting.rank_time import DIED as DIED
from otel_goodput._accounting.rank_time import ENDED as ENDED
from otel_goodput._accounting.rank_time import LEFT_BEHIND as LEFT_BEHIND
from otel_goodput._accounting.rank_time import NEVER as NEVER
from otel_goodput._accounting.rank_time import NOBODY as NOBODY
from otel_goodput._accounting.rank_time import OPEN as OPEN
from otel_goodput._accounting.rank_time import STEP_TIME as STEP_TIME
from otel_goodput._accounting.rank_time import JobStep as JobStep
from otel_goodput._accounting.rank_time import Piece as Piece
from otel_goodput._accounting.rank_time import RankStep as RankStep
from otel_goodput._accounting.rank_time import Standing as Standing
from otel_goodput._accounting.rank_time import Stretch as Stretch
from otel_goodput._accounting.rank_time import covering, longest
from otel_goodput._accounting.rules import CUT_OUT, ELASTIC_CATEGORY, ELASTIC_REINIT, OWNERS, RECOVERY

WAITING: Final = 4096  # steps of one rank that may wait for another rank's; beyond that, the job does not wait for it
PIECES: Final = 4 * WAITING  # of one rank that may wait for a step; of the oldest, the category is no longer known
_NO_MEMBERS: Final[Mapping[int, RankStep]] = {}
_ELASTIC: Final = frozenset({*ELASTIC_CATEGORY.values(), OWNERS[ELASTIC_REINIT]})
TOGETHER: Final = 100  # the ranks step together if at most one in so many of their common steps says otherwise,
FEW: Final = 2  # or so many do: a record that comes late must not decide it for a short job


class RankMerger:
    """Decides what the job did from what its ranks report.

    Args:
        spread: how far clocks of two ranks may be apart, ns.
        reached: what the job did before this moment has been decided already, ns.
        expected: ranks that have not joined yet, without which nothing is decided.
        is_saved: returns whether a checkpoint that was begun between two moments (ns), and is durable, has a step.

    Attributes:
        reached: what the job did before this moment is decided, ns; ``NOT_KNOWN`` before its first step.
        common, apart: steps of at least two ranks; those of them that say that the ranks do not step together.
    """

    def __init__(
        self,
        spread: int = 0,
        reached: int = NOT_KNOWN,
        expected: set[int] | None = None,
        is_saved: Callable[[int, int, int], bool] = lambda number, begin, end: False,
    ) -> None:
        self.spread = spread
        self.reached = self._before = reached
        self.expected = set[int]() if expected is None else expected
        self.common = self.apart = 0
        self._ranks: dict[int, RankBacklog] = {}
        self._absent: dict[int, RankBacklog] = {}  # those that may have been away since `reached`
        self._behind: list[tuple[int, int]] = []  # a heap: up to when each rank was known, at least, and the rank
        self._soonest = NEVER  # no step whose end decides the next one ended before
        self._open = NOBODY  # rank whose open step has to end first
        self._broken = NO_STEP  # number of the latest step, if a death ended it
        self._number = NO_STEP  # of the job's latest step that was completed
        self._is_saved = is_saved
        self._stepped = False  # a step was decided; before the first one, all ranks are expected to take it
        self._decided: list[Stretch | JobStep] = []

    @property
    def together(self) -> bool:
        """Whether the ranks step together: no rank ends a step before the last of them has begun it."""
        return self.apart <= FEW or self.apart * TOGETHER <= self.common

    def join(self, rank: int, begin: int) -> None:
        """Note that the job of `rank` begins at `begin` (ns), maybe again."""
        self.expected.discard(rank)
        one = self._ranks.setdefault(rank, RankBacklog())
        if one.joined == NOT_KNOWN:
            one.joined = one.known = begin
            if NOT_KNOWN < self.reached < begin and self.reached == self._before:  # it was there before, maybe
                self._was_away(rank, one, self.reached, begin)
        elif one.left != NOT_KNOWN and begin > one.left and not one.aside:
            self._was_away(rank, one, one.left, begin, ENDED if one.ended else "")
        one.known = max(one.known, begin)
        self._come(rank, one)

    def _was_away(self, rank: int, one: RankBacklog, begin: int, end: int, name: str = "") -> None:
        one.pieces.append(Piece(begin, end, RECOVERY, name))
        self._absent[rank] = one

    def _come(self, rank: int, one: RankBacklog) -> None:
        one.left, one.died, one.gone, one.aside = NOT_KNOWN, False, NEVER, False
        heappush(self._behind, (one.known, rank))

    def leave(self, rank: int, end: int, *, died: bool, gone: int = NEVER) -> None:
        """Note that the job of `rank` ended at `end` (ns), or that its process `died`, and gave its last sign then.

        In an attempt that began at `gone` (ns) there is no such rank.
        """
        if (one := self._ranks.get(rank)) is None:
            return
        one.left, one.died, one.gone, one.aside = max(end, one.known), died, gone, False
        one.known = end = one.left
        if died:
            self._absent[rank] = one
        if one.steps and one.steps[-1].end == NOT_KNOWN:
            one.steps[-1] = one.steps[-1]._replace(end=max(end, one.begun), flags=FAILED | (DIED if died else 0))
            step = one.steps[0]
            if died and len(one.steps) == 1 and step.number == self._broken and step.begin <= self.reached:
                one.drop()  # of the job, the step is over
                return
            self._soonest = min(self._soonest, one.steps[0].end)
        self._open = NOBODY
        self.decide()

    def set_aside(self, rank: int) -> None:
        """Have the job go on without `rank`, of which nothing is known any longer, until more of it is reported."""
        one = self._ranks.get(rank)
        if one is not None and one.left == NOT_KNOWN:
            one.left, one.aside, one.taken = one.known, True, False
            if one.steps and one.steps[-1].end == NOT_KNOWN:
                one.steps.pop()
            self._open = NOBODY
            self.decide()

    def feed(self, rank: int, steps: Iterable[RankStep], pieces: Iterable[Piece], known: int) -> None:
        """Take what `rank` did up to `known` (ns), in order. A step that was open the last time comes again, first."""
        if (one := self._ranks.get(rank)) is None:
            return
        if one.aside:
            self._come(rank, one)
            one.latest = NO_STEP
        if one.latest == NO_STEP and not one.steps and self.reached != NOT_KNOWN:  # the job is further
            steps = [step for step in steps if not NOT_KNOWN < step.end <= self.reached]
        own = one.steps
        for step in steps:
            if own:
                if own[-1].end == NOT_KNOWN:
                    own.pop()
                elif step.begin < own[-1].begin:
                    continue  # that was reported before
            own.append(step if not NOT_KNOWN < step.end < step.begin else step._replace(end=step.begin))
        if own and NOT_KNOWN < own[0].end < self._soonest:
            self._soonest = own[0].end
        for piece in pieces:
            before = one.pieces[-1] if one.pieces else None
            if before is not None and (before.end, *before[2:]) == (piece.begin, *piece[2:]):
                piece = one.pieces.pop()._replace(end=piece.end)  # it went on
            one.pieces.append(piece)
            if piece.category == RECOVERY:
                self._absent[rank] = one
        one.known = max(one.known, known)
        if self._open in (NOBODY, rank) or len(own) > WAITING:
            self._open = NOBODY
            self.decide()

    def take(self) -> list[Stretch | JobStep]:
        """Return what has been decided since the last call, in order and without gaps."""
        decided, self._decided = self._decided, []
        return decided

    @property
    def horizon(self) -> int:
        """The latest moment up to which it is known what all ranks did that are there, ns."""
        known = self.slowest()
        if known == NEVER:  # the job ended when the first one died, if one did
            every = self._ranks.values()
            known = max((one.known for one in every), default=NOT_KNOWN)
            known = min((one.left for one in every if one.died and one.gone == NEVER), default=known)
        return max(known, self.reached)

    def held(self) -> int:
        """Forget the oldest pieces of ranks that have too many; return how many steps wait."""
        for one in self._ranks.values():
            while len(one.pieces) > PIECES:
                one.pieces.popleft()
        return sum(len(one.steps) for one in self._ranks.values())

    @property
    def nobody(self) -> bool:
        """Whether no rank is there, and the process of none has died."""
        return all(one.left != NOT_KNOWN and (not one.died or one.gone < NEVER) for one in self._ranks.values())

    @property
    def left_out(self) -> Sequence[int]:
        """The ranks without which the job goes on."""
        return [rank for rank, one in self._ranks.items() if one.aside]

    def alone(self, rank: int) -> RankMerger:
        """Return what goes on from `reached` with `rank` by itself."""
        one, twin = self._ranks[rank], RankMerger(self.spread)
        twin._ranks[rank] = replace(
            one,
            steps=deque(step for step in one.steps if step.end == NOT_KNOWN or step.end > self.reached),
            pieces=deque(piece for piece in one.pieces if piece.end > self.reached),
            tries=deque(one.tries),
            joined=max(one.joined, self.reached),
            taken=False,
        )
        twin._absent = dict(twin._ranks)
        twin._behind, twin._soonest = [(one.known, rank)], 0
        return twin

    def slowest(self) -> int:
        """Return up to when the rank is known, of those that are there, of which least is known, ns."""
        behind = self._behind
        while behind:
            known, rank = behind[0]
            one = self._ranks[rank]
            if one.left != NOT_KNOWN:
                heappop(behind)
            elif one.known > known:
                heapreplace(behind, (one.known, rank))
            else:
                return known
        return NEVER

    def undecided(self, at: int) -> Sequence[Stretch | JobStep]:
        """Return what the job does from `reached` up to `at` (ns, no later than the horizon), as far as known then.

        A step that is open ends at `at`, with the flag ``OPEN``.
        """
        if self.reached == NOT_KNOWN:
            begin = min((one.joined for one in self._ranks.values()), default=at)
        else:
            begin = self.reached
        expected = {
            rank: one for rank, one in self._ranks.items() if one.left == NOT_KNOWN and (one.taken or not self._stepped)
        }
        heads = {rank: one.steps[0] for rank, one in expected.items() if one.steps and one.steps[0].begin <= at}
        if begin >= at or not (expected or self._ranks):
            return []
        ended = [step for step in heads.values() if NOT_KNOWN < step.end <= at]
        if ended:
            number = min(ended, key=lambda step: step.end).number
        else:
            number = min((step.number for step in heads.values()), default=NO_STEP)
        members = {rank: step for rank, step in heads.items() if step.number == number}
        missing = [] if ended else sorted(rank for rank in expected if rank not in members)
        begins = sorted((step.begin, rank) for rank, step in members.items())
        away = any(one.left != NOT_KNOWN and one.taken for one in self._ranks.values())
        if members and not missing and not away:
            since = max(begin, begins[-1][0])
            others = [moment for moment, rank in begins[:-1]]
            ready = others[(len(others) - 1) // 2] if others else since
            gap = self._between(begins[-1][1], since, ready, begin) if since > begin else []
            return [*gap, JobStep(number, since, at, OPEN, self._within(members, since, at))]
        ready = begins[(len(expected) - 2) // 2][0] if len(missing) == 1 and begins else at
        return self._between(missing[0] if missing else self._lasting(), at, ready, begin)

    def standing(self, at: int) -> Standing:
        """Return who waits at `at` (ns, no later than the horizon), and for whom."""
        inside: dict[int, RankStep] = {}
        doing: dict[int, int | None] = {}  # the category of what it does of its own
        for rank, one in self._ranks.items():
            if one.left != NOT_KNOWN:
                continue
            doing[rank] = next((piece.category for piece in one.pieces if piece.begin < at <= piece.end), None)
            step = next((step for step in reversed(one.steps) if step.begin < at), None)
            if step is not None and not NOT_KNOWN < step.end <= at:
                inside[rank] = step
        counts = Counter(step.number for rank, step in inside.items() if doing[rank] is None)
        number = max(counts, key=lambda number: (counts[number], number), default=NO_STEP)
        waiting = sorted(rank for rank, step in inside.items() if step.number == number and doing[rank] is None)
        for item in self.undecided(at)[-1:]:
            stretch = item.stretches[-1] if isinstance(item, JobStep) and item.stretches else item
            if isinstance(stretch, Stretch) and stretch.waits and stretch.begin < stretch.end == at:
                return Standing(number, waiting, stretch)
        others = [rank for rank, one in self._ranks.items() if one.taken and rank not in waiting]
        if len(others) != 1 or others[0] not in inside or doing[others[0]] in CUT_OUT:
            return Standing(number, waiting, None)
        if inside[others[0]].number < number:  # it is still in a step that the others have left
            since = sorted(inside[rank].begin for rank in waiting)[(len(waiting) - 1) // 2]
            return Standing(number, waiting, Stretch(since, at, STEP_TIME, "", others[0], True))
        return Standing(number, waiting, None)

    def _lasting(self) -> int:
        """Return the rank that is still there; the first of several, or the one that ended last."""
        ranks = self._ranks
        return max(ranks, key=lambda rank: (ranks[rank].left == NOT_KNOWN, ranks[rank].left, -rank))

    # --- steps --------------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide what can be: ranks may have joined in the meantime that were expected."""
        while not self.expected and self._open == NOBODY and self._soonest <= self.slowest() and self._decide_step():
            pass

    def _decide_step(self) -> bool:
        """Decide what the job did up to the end of its next step; return False if that is not known yet."""
        first: RankStep | None = None
        for one in self._ranks.values():
            steps = one.steps
            if steps and steps[0].end != NOT_KNOWN and (first is None or steps[0].end < first.end):
                first = steps[0]
        if first is None:
            self._soonest = NEVER
            return False
        self._soonest, number, latest = first.end, first.number, first.end + self.spread
        if self._soonest > self.slowest():
            return False
        if number <= self._number and self._drop_late(number, latest):
            return True
        members, open_on, died = dict[int, RankStep](), NOBODY, False
        for rank, one in self._ranks.items():
            if one.steps and one.steps[0].number == number and one.steps[0].begin <= latest:
                step = members[rank] = one.steps[0]
                if step.end == NOT_KNOWN:
                    open_on = rank
                elif step.flags & DIED:
                    died = True
        if open_on != NOBODY and not died:
            if not self._too_many(members):
                self._open = open_on
                return False
            members = {rank: step for rank, step in members.items() if step.end != NOT_KNOWN}
            self.apart += 1
        completed = max((step.end for step in members.values() if not step.flags & FAILED), default=NOT_KNOWN)
        failed = {rank: self._ranks[rank] for rank, step in members.items() if step.flags & (FAILED | DIED) == FAILED}
        for rank, one in failed.items():
            if len(one.steps) == 1 and one.left == NOT_KNOWN and one.known < completed and not self._too_many(members):
                self._open = rank  # it may try once more while the others are in the step
                return False
        if again := [one for one in failed.values() if one.tries_again(completed)]:
            for one in again:
                one.drop()
            return True
        if self.reached == NOT_KNOWN:
            self.reached = min(one.joined for one in self._ranks.values())
        goes_on = self._goes_on(number, members)
        missing = self._missing(members)
        if (missing or not goes_on) and self._was_done(number, members):
            missing, goes_on = {}, True
        if missing:
            self._give_up(members, missing)
            goes_on = False
        elif goes_on:
            self._conclude(number, members)
        self._take_part(members, goes_on)
        return True

    def _too_many(self, members: Iterable[int]) -> bool:
        """Whether so many steps of one of these ranks wait that the job no longer does."""
        return max(len(self._ranks[rank].steps) for rank in members) > WAITING

    def _drop_late(self, number: int, latest: int) -> bool:
        """Drop step `number` of ranks that had not begun it when the others had ended it, and return whether any had.

        That is unless others begin it once more, before `latest` (ns).
        """
        late = [one for one in self._ranks.values() if one.steps and one.steps[0].number == number]
        late = [one for one in late if one.steps[0].begin <= latest]
        if any(one.latest == NO_STEP or one.went_back for one in late):
            return False
        late = [one for one in late if one.steps[0].end != NOT_KNOWN]
        for one in late:
            one.drop()
        self.apart += len(late)
        return bool(late)

    def _missing(self, members: dict[int, RankStep]) -> dict[int, int]:
        """Return which ranks of the job's latest step did not begin that of `members`, which failed.

        With each, until when it was there, ns.
        """
        ends = [step.end for step in members.values() if step.end != NOT_KNOWN]
        number, begun = min((step.number, step.begin) for step in members.values())
        if not all(step.flags & FAILED for step in members.values() if step.end != NOT_KNOWN):
            return {}
        until = {
            rank: self._there(one, min(ends))
            for rank, one in self._ranks.items()
            if (one.taken or (not self._stepped and one.joined < min(ends)))
            and rank not in members
            and not (one.number_failed == number and one.failed >= begun)
        }
        return {rank: end for rank, end in until.items() if end > self.reached}

    def _there(self, one: RankBacklog, until: int) -> int:
        """Return until when a rank was there, up to `until` (ns); 0 if its job was over."""
        if not one.died and NOT_KNOWN < one.left < until:
            return 0
        away = [piece for piece in one.pieces_until(until) if piece.category == RECOVERY]
        return away[-1].begin if away and away[-1].end >= until else until

    def _give_up(self, members: dict[int, RankStep], missing: dict[int, int]) -> None:
        """Write down the time up to the end of a step of `members` that was never at work: some ranks are `missing`."""
        begins, count = sorted(step.begin for step in members.values()), len(members) + len(missing)
        end = min(*missing.values(), *(step.end for step in members.values() if step.end != NOT_KNOWN))
        if any(piece.begin < end < piece.end for _, piece in self._absences(end + 1)):
            return  # the job was away in any case
        ready = begins[(count - 2) // 2] if len(missing) == 1 else end
        self._decided += self._between(min(missing), end, ready, self.reached)
        self.reached = end

    def _goes_on(self, number: int, members: dict[int, RankStep]) -> bool:
        """Whether step `number` is the next one: above the latest, or most ranks that are there went back to it."""
        died = {rank: step for rank, step in members.items() if step.flags & DIED}
        if all(step.flags & FAILED and self._hung(rank, step) for rank, step in (died or members).items()):
            return False
        if number == self._broken and not any(self._ranks[rank].went_back for rank in members):
            return False  # these completed the step in which another one died
        begin, end = min(step.begin for step in members.values()), max(step.end for step in members.values())
        if any(
            self._ranks[rank].latest == number - 1
            and piece.begin <= end <= piece.end
            and 0 <= begin - piece.begin < self.spread
            for rank, piece in self._absences(end + 1)
        ):
            return False  # the same, but it gave its last sign of life when the step began
        if number > self._number:
            return True
        away = {rank for rank, piece in self._absences(begin + 1) if begin < piece.end}
        before = sum(
            one.taken and rank not in away and not NOT_KNOWN < one.left < begin for rank, one in self._ranks.items()
        )
        return 2 * sum(self._ranks[rank].went_back for rank in members) >= max(1, before)

    def _was_done(self, number: int, members: dict[int, RankStep]) -> bool:
        """Whether a checkpoint that was saved in step `number` has it: others took part, too, before they died."""
        if number <= self._number or number == self._broken:
            return False
        begin, end = min(step.begin for step in members.values()), max(step.end for step in members.values())
        return self._is_saved(number, begin, end)

    def _hung(self, rank: int, step: RankStep) -> bool:
        """Whether another rank was away when `step` ended, so that it could not be completed."""
        return any(
            (piece.begin, other) < (step.end, rank) and step.end <= piece.end
            for other, piece in self._absences(step.end + 1)
        )

    def _absences(self, until: int) -> Iterator[tuple[int, Piece]]:
        """Yield when ranks were away, from before `until` (ns) on, with the rank."""
        for rank, one in self._absent.items():
            for piece in one.pieces_until(until):
                if piece.category == RECOVERY:
                    yield rank, piece

    def _left_behind(self, members: Container[int], begun: int) -> bool:
        """Whether `members`, whose step began at `begun` (ns), were all there when another one died that is away."""
        absences = [*self._absences(begun + 1)]
        back = max((piece.end for rank, piece in absences if rank in members), default=NOT_KNOWN)
        return any(back <= piece.begin and begun < piece.end and rank not in members for rank, piece in absences)

    def _conclude(self, number: int, members: dict[int, RankStep]) -> None:
        """Write down the time up to the end of step `number`, which is that of `members`."""
        begins = sorted((step.begin, rank) for rank, step in members.items())
        begin, last = max(self.reached, begins[-1][0]), begins[-1][1]
        steps = max(step.steps for step in members.values())
        if number > self._number:
            steps = min(steps, number - self._number)  # the ranks' groups may differ
        deaths = [step.end for step in members.values() if step.flags & DIED]
        if deaths:
            end, flags = max(begin, min(deaths)), FAILED | DIED
        else:
            end, flags = begin, 0
            for step in members.values():
                end = max(end, step.end)
                flags |= step.flags
            self._number = number
        if self._absent and self._left_behind(members, begin):
            flags |= LEFT_BEHIND
        early = self.reached - self.spread
        self.common += len(members) > 1
        if begins[0][0] < early:
            ranks = self._ranks
            self.apart += any(
                step.begin < early and not ranks[rank].taken and ranks[rank].latest != NO_STEP
                for rank, step in members.items()
            )
        others = [moment for moment, rank in begins[:-1]]
        ready = others[(len(others) - 1) // 2] if others else begin
        self._decided += self._between(last, begin, ready, self.reached, members)
        self._decided.append(JobStep(number, begin, end, flags, self._within(members, begin, end), steps))
        self.reached, self._stepped = end, True

    def _take_part(self, members: dict[int, RankStep], goes_on: bool) -> None:
        """Go on behind a step of `members`; those that do not know yet that another one died are still in it."""
        interrupted = any(step.flags & DIED for step in members.values())
        self._broken = next(iter(members.values())).number if interrupted else NO_STEP
        for one in self._ranks.values():
            one.taken = one.taken and (interrupted or not goes_on)
            while one.pieces and one.pieces[0].end <= self.reached:
                one.pieces.popleft()
            while one.tries and one.tries[0] < self.reached:
                one.tries.popleft()
        for rank, step in members.items():
            one = self._ranks[rank]
            one.taken = True
            if not interrupted or step.flags & FAILED:
                one.drop()
        begun = min(step.begin for step in members.values())
        for rank, one in list(self._absent.items()):
            if goes_on and not interrupted and rank not in members:  # the others may have begun this step without it
                if one.died and begun >= one.left:
                    one.died, one.aside = False, True
                while one.pieces and one.pieces[0].category == RECOVERY and one.pieces[0].begin <= begun:
                    one.pieces.popleft()
            if not one.died and all(piece.category != RECOVERY for piece in one.pieces):
                del self._absent[rank]

    # --- time ---------------------------------------------------------------------------------------------------------

    def _between(
        self, rank: int, until: int, since: int, reached: int, members: Mapping[int, RankStep] = _NO_MEMBERS
    ) -> list[Stretch]:
        """Return the time from `reached` on in which the job waits for `rank`, which begins the next step at `until`.

        Most of the others could work from `since` on. Whoever is away has the job wait for it first, until `rank`
        waits for a slice: it knows. The first of the `members` of that step that is back shows that those are gone
        that are not among them.
        """
        ranks = self._ranks
        away = [(other, piece) for other, piece in self._absences(until + 1) if piece.end > reached]
        backs = [piece.end for other, piece in away if other in members]
        if backs and len(backs) < len(away):
            away = [
                (other, piece)
                if other in members
                else (other, piece._replace(end=min(end for end in (*backs, piece.end) if end > piece.begin)))
                for other, piece in away
            ]
        ended = ENDED if all(piece.name == ENDED for _, piece in away) else ""
        own = list(covering(ranks[rank].pieces_until(until), reached, until))
        starts = [*failed_starts(away, lambda other: ranks[other].tries)] if len(away) > 1 else []
        starts = [one for one in starts if not one.has_done(members.get(one.rank))]
        if starts:
            own = [part for piece in own for part in outside(piece, starts)]
            for one in starts:
                own += covering(ranks[one.rank].pieces_until(one.end), one.begin, one.end)
            own.sort()
        edges = {reached, until, min(max(since, reached), until), *(piece.begin for piece in own)}
        stretches: list[Stretch] = []
        pieces, coming = iter(own), iter(starts)
        piece, start, noticed = next(pieces, None), next(coming, None), False
        for begin, end, count, gone in longest(away, edges):
            while piece is not None and piece.end <= begin:
                piece = next(pieces, None)
            while start is not None and start.end <= begin:
                start = next(coming, None)
            if piece is not None and start is not None and start.begin <= begin:
                stretches.append(Stretch(begin, end, piece.category, piece.name, start.rank, False))
                continue
            noticed = noticed or (piece is not None and piece.category in _ELASTIC)
            if gone is not None and not noticed:
                waits = len(ranks) > 1 and 2 * count <= len(ranks)
                stretches.append(Stretch(begin, end, RECOVERY, ended, gone[0], waits))
            elif piece is not None:
                waits = begin >= since and piece.category not in CUT_OUT
                stretches.append(Stretch(begin, end, piece.category, piece.name, rank, waits))
        return stretches

    def _within(self, members: dict[int, RankStep], begin: int, end: int) -> tuple[Stretch, ...]:
        """Return the time of a step of `members`, which lasts from `begin` to `end` (ns).

        It is the step's, but for what ranks do besides in theirs: then it is of the one that takes longest.
        """
        nested: list[tuple[int, Piece]] = []
        for rank, step in members.items():
            until = end if step.end == NOT_KNOWN else min(step.end, end)
            one = self._ranks[rank]
            if one.died or one.has_pieces(begin, until):
                nested += [
                    (rank, piece._replace(end=min(piece.end, until)))
                    for piece in one.pieces_until(until)
                    if piece.end > begin
                ]
        stretches: list[Stretch] = []
        for since, until, count, inside in longest(nested, {begin, end}):
            if inside is not None:
                rank, piece = inside
                waits = len(members) > 1 and 2 * count <= len(members) and piece.category not in CUT_OUT
                stretches.append(Stretch(since, until, piece.category, piece.name, rank, waits))
            else:
                stretches.append(Stretch(since, until, STEP_TIME, "", NOBODY, False))
        return tuple(stretches)
