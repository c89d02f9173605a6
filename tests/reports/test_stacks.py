"""Stacks of ranks: which are in the same place, and for which rank the others wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from stacked import ALL_REDUCE, BARRIER, LOAD, NS, POLL, Ranks

from otel_goodput._journal.clock_offsets import KnownOffset, write_offsets
from otel_goodput.reports.stacks import NEVER_STARTED, STOPPED


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_rank_that_has_not_come_to_the_collective(ranks: Ranks) -> None:
    for rank in range(8):
        ranks.add(rank, LOAD if rank == 3 else ALL_REDUCE, phase="data_loading" if rank == 3 else "step")
    still = ranks.standstill()
    assert [(group.place.line, group.place.function) for group in still.groups] == [
        ("train.py:88", "all_reduce"), ("dataset.py:41", "read_shard"),
    ]  # fmt: skip
    assert still.waits_for == [3]
    assert still.verdict() == "7 ranks wait in all_reduce at train.py:88; rank 3 is in read_shard at dataset.py:41"
    lines = [*still.lines()]
    assert lines[0].startswith("run job, attempt 1: training stood still since ") and lines[0].endswith("for 30.0 s")
    assert "ranks 0-2, 4-7 are in all_reduce at train.py:88, in step 7" in lines
    assert "rank 3 is in read_shard at dataset.py:41, in data_loading of step 7" in lines
    assert "pin" not in "".join(lines) and "rank 0, thread pin" in [*still.lines(every=True)]


def test_most_are_in_one_place(ranks: Ranks) -> None:
    for rank in range(5):
        ranks.add(rank, LOAD if rank in (1, 2) else POLL)
    assert ranks.standstill().waits_for == [1, 2]


@pytest.mark.parametrize("differs", [{"step": 6}, {"phase": "checkpoint_save"}])
def test_one_of_two(ranks: Ranks, differs: dict[str, Any]) -> None:
    ranks.add(0, POLL)
    ranks.add(1, LOAD, **differs)
    assert ranks.standstill().waits_for == [1]


def test_nobody_is_named_if_that_is_not_known(ranks: Ranks) -> None:
    ranks.add(0, POLL)
    ranks.add(1, LOAD)
    still = ranks.standstill()
    assert (still.waits_for, still.verdict(), len(still.groups)) == ([], "", 2)


def test_all_in_collectives_of_two_kinds(ranks: Ranks) -> None:
    """They will never meet: those that are elsewhere than most are named."""
    for rank in range(4):
        ranks.add(rank, BARRIER if rank == 2 else ALL_REDUCE)
    still = ranks.standstill()
    assert still.waits_for == [2] and all(group.together for group in still.groups)


def test_one_process(ranks: Ranks) -> None:
    ranks.add(0, LOAD)
    still = ranks.standstill()
    assert still.verdict() == "the process is in read_shard at dataset.py:41"
    assert still.waits_for == [] and not still.missing


def test_ranks_without_stacks(ranks: Ranks) -> None:
    ranks.add(0, ALL_REDUCE)
    ranks.live(1, ago=60)  # its lock is elsewhere
    ranks.live(2)
    ranks.live(3, ago=60)
    ranks.run.file("lock", 0, 3).touch()  # it has ended
    ranks.add(5, ALL_REDUCE)
    still = ranks.standstill()
    states = {one.rank: one.state for one in still.missing}
    assert states == {1: "silent", 2: "running", 3: "died", 4: NEVER_STARTED}
    assert still.waits_for == [1, 3, 4]
    assert still.verdict().startswith("2 ranks wait in all_reduce at train.py:88; rank 1: it is stopped or cut off")
    assert STOPPED not in states.values()
    assert any(line.startswith("rank 2 left no stacks: it runs") for line in still.lines())


def test_a_rank_that_lives_and_gives_no_sign(ranks: Ranks) -> None:
    ranks.add(0, ALL_REDUCE)
    ranks.live(1, ago=60)
    lock = ranks.run.lock(0, 1)
    lock.acquire()
    try:
        [missing] = ranks.standstill().missing
    finally:
        lock.release()
    assert missing.state == "silent" and "GIL" in missing.reason and ranks.standstill().waits_for == [1]


def test_the_latest_standstill(ranks: Ranks) -> None:
    """One that is over does not count with one that goes on."""
    ranks.add(0, LOAD, ago=500, moved_on=ranks.now - 490 * NS)
    ranks.add(1, LOAD, ago=500, moved_on=ranks.now - 490 * NS)
    ranks.add(0, ALL_REDUCE)
    still = ranks.standstill()
    assert [list(group.ranks) for group in still.groups] == [[0]]
    assert [(one.rank, one.state) for one in still.missing] == [(1, "running")]
    ranks.add(1, ALL_REDUCE, ago=0.5)
    [group] = ranks.standstill().groups
    assert list(group.ranks) == [0, 1] and group.moves is None


def test_it_went_on(ranks: Ranks) -> None:
    ranks.add(0, ALL_REDUCE, moved_on=ranks.now)
    still = ranks.standstill()
    assert still.moved_on == ranks.now and next(iter(still.lines())).endswith(", then it went on")


def test_whether_the_stack_moves(ranks: Ranks) -> None:
    for again in (POLL, ALL_REDUCE):
        ranks.add(0, ALL_REDUCE, ago=20, quiet=30)
        ranks.add(1, again, ago=5, quiet=45)
    ranks.add(0, ALL_REDUCE, ago=5, quiet=45)
    moves = {group.ranks[0]: group.moves for group in ranks.standstill().groups}
    assert moves == {0: True}
    assert any(line.endswith("; the stack moves") for line in ranks.standstill().lines())


def test_clocks_that_are_apart(ranks: Ranks) -> None:
    """What each rank wrote counts as of the leader's clock: standstills of different ranks are one, or are not."""
    far = 300.0
    ranks.add(2, BARRIER, ago=400.0, quiet=3.0, moved_on=ranks.now - 399 * NS)
    for rank in range(4):
        ranks.add(rank, LOAD if rank == 3 else ALL_REDUCE, ago=1.0 - (far if rank == 3 else 0.0), quiet=31.0)
    assert ranks.standstill().waits_for != [3]
    write_offsets(ranks.run, 0, [KnownOffset(3, 0, 0, round(far * NS), 1000)])
    still = ranks.standstill()
    assert still.waits_for == [3] and sorted(still.dumps) == [0, 1, 2, 3]
    assert {dump.time for dump in still.dumps.values()} == {ranks.now - NS}
    assert (still.at, still.since) == (ranks.now - NS, ranks.now - 32 * NS)
    ranks.live(1, ago=3600.0 - far)  # a rank that died an hour ago, by a clock of its own
    write_offsets(ranks.run, 0, [KnownOffset(rank, 0, 0, round(far * NS), 1000) for rank in (1, 3)])
    ranks.run.file("stacks", 0, 1).unlink()
    (gone,) = ranks.standstill().missing
    assert gone.rank == 1 and gone.seen == ranks.now - 3600 * NS


def test_attempts_requests_and_files_that_cannot_be_read(ranks: Ranks) -> None:
    ranks.add(0, LOAD, requested="id")
    assert ranks.standstill().dumps == {} and ranks.standstill(request="id").groups[0].place.line == "dataset.py:41"
    ranks.live(0, attempt=1)
    assert ranks.standstill().attempt == 1
    assert "there are no stacks" in next(iter(ranks.standstill().lines()))
    ranks.add(0, POLL)
    assert ranks.standstill(attempt=0).groups[0].place.line == "sync.py:9"
    ranks.run.file("stacks", 0, 1).mkdir()
    still = ranks.standstill(attempt=0)
    assert [name for name, _ in still.unread] == ["a0000-p0001.stacks"] and still.groups


def test_names_are_shown_safely(ranks: Ranks) -> None:
    ranks.add(0, (("/app/to\x1bken=abcdefghijkl.py", 1, "f"),), phase="a\x1b[31m phase")
    text = "\n".join([*ranks.standstill().lines(every=True), str(ranks.standstill().to_json(every=True))])
    assert "\x1b" not in text


def test_many_ranks_take_little_time(ranks: Ranks) -> None:
    for rank in range(200):
        ranks.add(rank, LOAD if rank == 77 else ALL_REDUCE)
    began = time.perf_counter()
    still = ranks.standstill()
    assert still.waits_for == [77] and time.perf_counter() - began < 5
    assert "ranks 0-76, 78-199 are in" in "\n".join(still.lines())
