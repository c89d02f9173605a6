"""Which rank stands in for a silent leader, by what it can read of the signs of life of others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from otel_goodput._live import deputy
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.deputy import SILENT_S, Watch

ROUND_S = 5.0


class Signs(RankChannel):
    """What ranks have left of signs of life, at a moment that passes as told."""

    def __init__(self, *ranks: int) -> None:
        self.living, self.readable, self.looks = {*ranks}, True, 0
        self.now = 0.0
        self._given: dict[int, bytes] = {}
        self.pass_round()

    def pass_round(self) -> None:
        self.now += ROUND_S
        self._given.update({rank: str(self.now).encode() for rank in self.living})

    def receive(self) -> Mapping[int, list[bytes]]:
        return {}  # of others, nothing is known but that they live

    def signs(self, rank: int) -> Mapping[str, bytes]:
        self.looks += 1
        return {"jax": self._given[rank]} if self.readable and rank in self._given else {}


class Job:
    """The watches of all ranks but the leader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.signs = Signs(*range(count))
        monkeypatch.setattr(deputy.time, "monotonic", lambda: self.signs.now)
        self.watches = {rank: Watch(self.signs, rank, 0) for rank in range(1, count)}

    def after(self, seconds: float) -> list[int]:
        """The ranks that stand in after so many seconds."""
        for _ in range(round(seconds / ROUND_S)):
            self.signs.pass_round()
            stand_in = [rank for rank, watch in self.watches.items() if rank in self.signs.living and watch.stands_in()]
        return stand_in


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch, 12)


def test_the_lowest_rank_that_lives_stands_in_until_the_leader_is_back(job: Job) -> None:
    assert job.after(60) == []
    job.signs.living.remove(0)
    assert job.after(SILENT_S - ROUND_S) == [] and job.after(ROUND_S) == [1] and job.after(600) == [1]
    job.signs.living.remove(1)
    assert job.after(SILENT_S + ROUND_S) == [2]
    job.signs.living.add(1)
    assert job.after(30) == [1]
    job.signs.living.add(0)
    assert job.after(ROUND_S) == []


def test_a_host_that_fails_takes_many_ranks_at_once(job: Job) -> None:
    assert job.after(60) == []
    job.signs.living -= {*range(8)}
    assert job.after(SILENT_S) == [8]
    job.signs.living.remove(8)
    assert job.after(SILENT_S + ROUND_S) == [9]


def test_who_cannot_read_the_sign_of_the_leader_does_not_stand_in(job: Job) -> None:
    """The process that serves the store may be the leader: then all others would take its place."""
    assert job.after(60) == []
    job.signs.readable = False
    assert job.after(600) == []
    job.signs.readable = True
    assert job.after(60) == []
    job.signs.living.remove(0)
    assert job.after(60) == [1]
    job.signs.readable = False
    assert job.after(ROUND_S) == []


def test_what_an_earlier_leader_has_left_is_no_sign_of_this_one(job: Job) -> None:
    job.signs.living.remove(0)
    assert job.after(600) == []


def test_looking_costs_little(job: Job) -> None:
    job.after(60)
    before = job.signs.looks
    job.after(ROUND_S)
    assert job.signs.looks - before == len(job.watches)
    job.signs.living.remove(0)
    job.after(60)
    before = job.signs.looks
    job.after(ROUND_S)
    assert job.signs.looks - before <= 2 * len(job.watches)
