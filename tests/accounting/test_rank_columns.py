"""Steps that ranks have in columns are decided together: with the same result as one by one, to the nanosecond."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from otel_goodput._accounting.arithmetic import PLAIN, Arithmetic
from otel_goodput._accounting.events import FAILED, NOT_KNOWN, Event
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_columns import ColumnMerger, RankPart, RankParts, StepColumns
from otel_goodput._accounting.ranks import DIED, Piece, RankStep
from otel_goodput._accounting.rules import RECOVERY
from otel_goodput._journal.numpy_arithmetic import MANY, arithmetic
from otel_goodput._timeline import spool
from otel_goodput._timeline.spool import Spool, SpooledParts

from .rank_simulator import LOAD, MS, SimulatedJob, simulate

SEEDS = {"steady": 20, "restarts": 20, "slow": 10, "large": 4}  # half of them in every run
Rank = tuple[list[RankStep], list[Piece], int]


def ranks_of(job: SimulatedJob, rng: random.Random, mostly: float = 0.95) -> dict[int, Rank]:
    """The steps and pieces of each rank, and up to when they are known. What is nobody's is mostly loading."""
    ranks: dict[int, Rank] = {}
    for rank, steps in job.steps.items():
        died = {end for end, _ in job.absences[rank]}
        own: list[RankStep] = []
        for number, begin, end in steps:
            soon = mostly == 1 and own and own[-1].end == begin * MS  # then it loads for a moment
            own.append(RankStep(number, begin * MS + bool(soon), end * MS, FAILED | DIED if end in died else 0))
        pieces = [Piece(begin * MS, end * MS, category, name) for begin, end, category, name in job.pieces[rank]]
        pieces += [Piece(end * MS, back * MS, RECOVERY) for end, back in job.absences[rank]]
        pieces.sort()
        for before, after in itertools.pairwise(own):
            between = [at for at, one in enumerate(pieces) if before.end <= one.begin < after.begin]
            if (
                before.end < after.begin
                and all(pieces[at].category == LOAD for at in between)
                and rng.random() < mostly
            ):
                pieces[between[0] if between else len(pieces) :] = [
                    Piece(before.end, after.begin, LOAD),
                    *(pieces[between[-1] + 1 :] if between else ()),
                ]
                pieces.sort()
        ranks[rank] = own, pieces, job.leaves.get(rank, job.reported) * MS
    return ranks


def in_parts(steps: Sequence[RankStep], pieces: Sequence[Piece], rng: random.Random, mostly: float = 0.95) -> RankParts:
    """The same with columns where that is possible, mostly."""
    parts: list[RankPart | StepColumns] = []
    loads = {piece[:2] for piece in pieces if piece.category == LOAD}
    inside = {step for step in steps for piece in pieces if step.begin < piece.end and piece.begin < step.end}
    at = given = taken = 0
    while at < len(steps):
        first = at
        while at < len(steps) and (
            at == first
            or (
                (steps[at - 1].end, steps[at].begin) in loads
                and steps[at].number > steps[at - 1].number
                and rng.random() < mostly
            )
        ):
            if steps[at].flags or steps[at] in inside or steps[at].begin >= steps[at].end:
                break
            at += 1
        if at - first > 1:
            until = next((n for n, one in enumerate(pieces) if one.begin >= steps[first].begin), len(pieces))
            if first > given or until > taken:
                parts.append(RankPart(steps[given:first], pieces[taken:until]))
            columns = StepColumns.packed(*zip(*(step[:3] for step in steps[first:at]), strict=True))
            before = parts[-2:] if rng.random() < 0.8 else []
            if len(before) == 2 and isinstance(before[0], StepColumns) and isinstance(before[1], RankPart):
                columns = columns.behind(before[0], *before[1])
                if columns.since != NOT_KNOWN:
                    parts.pop()  # it is in the columns
            parts.append(columns)
            given, taken = at, until + at - first - 1
        at = max(at, first + 1)
    if len(steps) > given or len(pieces) > taken:
        parts.append(RankPart(steps[given:], pieces[taken:]))
    return RankParts(parts)


def answer(
    ranks: dict[int, Rank],
    job: SimulatedJob,
    spread: int,
    parts: dict[int, RankParts] | None,
    arithmetic: Arithmetic = PLAIN,
) -> Any:
    """All that an account says, as columns if `parts` are given."""
    recorded: list[Event] = []

    def record(events: Iterable[Event]) -> None:
        some = [*events]
        account.ledger.feed(some)
        recorded.extend(some)

    account = JobAccount((1000 * MS,), spread, record=record)
    for rank in ranks:
        account.join(rank, job.begins[rank] * MS)
    if parts is None:
        for rank, (steps, pieces, known) in ranks.items():
            account.feed(rank, steps, pieces, known)
    else:
        account.feed_whole({rank: (parts[rank], known) for rank, (_, _, known) in ranks.items()}, arithmetic)
    between = account.horizon, account.costs_at(account.horizon).whole, recorded[:]
    for rank, (_, _, known) in ranks.items():
        account.leave(rank, known, died=False)
    at, costs = account.horizon, account.costs
    merger = account.roles[""].group.merger
    counted = merger.common, merger.apart, account.together, account.clocks_disagree
    return (
        between, recorded, at, counted, costs.whole, costs.latest, costs.over_time.bins,
        account.totals(at), account.overview(at) if account.together else None,
    )  # fmt: skip


def spooled(parts: dict[int, RankParts], where: Spool) -> dict[int, RankParts]:
    """The same, in a file in which blocks of few steps are read at once."""
    from_disk: dict[int, RankParts] = {}
    for rank, own in parts.items():
        held = SpooledParts(where)
        held.extend(own.parts)
        from_disk[rank] = RankParts(held)
        assert from_disk[rank].steps == own.steps and from_disk[rank].pieces == own.pieces
        assert [*reversed(held)] == [*reversed(own.parts)] and len(held) == len(own.parts)
    return from_disk


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.release)])
@pytest.mark.parametrize("kind", SEEDS)
def test_columns_give_the_account_of_single_steps(kind: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decided, own, every = 0, ColumnMerger.decide_columns, 0
    ways = [PLAIN, arithmetic(MANY)]  # by numpy, if it is installed

    def counting(self: ColumnMerger, ranks: Any, most: int, way: Arithmetic) -> int:
        nonlocal decided
        done = own(self, ranks, min(most, rng.choice((1, 3, most))), way)
        decided += done
        return done

    monkeypatch.setattr(ColumnMerger, "decide_columns", counting)
    monkeypatch.setattr(spool, "_BLOCK", 8)
    monkeypatch.setattr(spool, "HELD", 100)
    # Of large jobs each part has many: few of them have steps that are decided together.
    for seed in range(part * SEEDS[kind], 2 * SEEDS[kind]) if kind == "large" else range(part, SEEDS[kind], 2):
        rng = random.Random(f"{kind} {seed}")
        mostly = 1.0 if kind == "large" else 0.95
        counts = (24, 40) if kind == "large" else (1, 2, 3, 4, 8)
        job = simulate(rng, restarts=kind == "restarts", counts=counts, slow_only=kind in ("slow", "large"))
        if not job.groups:
            continue
        ranks, spread = ranks_of(job, rng, mostly), rng.choice((0, 5 * MS))
        parts = {rank: in_parts(steps, pieces, rng, mostly) for rank, (steps, pieces, _) in ranks.items()}
        for rank, (steps, pieces, _) in ranks.items():
            assert parts[rank].steps == steps and parts[rank].pieces == pieces
            assert parts[rank].latest == (steps[-1] if steps else None)
        every += len(job.groups)
        one_by_one = answer(ranks, job, spread, None)
        assert answer(ranks, job, spread, parts, rng.choice(ways)) == one_by_one, seed
        if rng.random() < 0.3:
            with Spool() as where:
                assert answer(ranks, job, spread, spooled(parts, where)) == one_by_one, seed
    assert decided > every / 10
