"""The account that a leader leaves in a store for its deputy, and the messages that go with it."""

from __future__ import annotations

import random

import pytest
from waits import until

from otel_goodput._accounting.job import Cause, Costs, JobAccount
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._accounting.ranks import Piece, RankStep
from otel_goodput._accounting.rules import DATA_LOADING_TIME, NS
from otel_goodput._journal.clock_offsets import KnownOffset
from otel_goodput._journal.job_waits import JobWaits
from otel_goodput._live import channels, handover
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.rank_offsets import KnownClocks, correct

from .shared import Shared

BEGIN = 1_764_000_000 * NS


def numbers(messages: list[bytes]) -> list[int]:
    return [int(message.split()[0]) for message in messages]


def test_ranks_keep_what_is_not_in_the_account(shared: Shared) -> None:
    leader, rank, deputy = (RankChannel(None, "run", index, 3) for index in range(3))
    leader.receive()
    assert deputy.handed_over() == b"" and not leader.apart
    received: list[int] = []
    for number in range(1, 101):
        rank.publish(b"%d " % number + bytes(500))
        leader.publish(b"%d " % number + bytes(500))
        received += numbers([*leader.receive()[1]])
        if number == 10:
            leader.hand_over(b"first account", {})
        if number == 80:
            leader.hand_over(b"second account", {0: 50, 1: 60})
    assert received == [*range(1, 101)] and leader.apart
    assert deputy.handed_over() == b"second account"
    there = {other: numbers([*messages]) for other, messages in deputy.receive().items()}
    assert there == {0: [*range(51, 101)], 1: [*range(61, 101)]}
    leader.hand_over(b"", {})  # its ranks step apart
    assert deputy.handed_over() == b""
    rank.publish(b"101 ")
    assert numbers([*deputy.receive()[1]]) == [101] and len(shared.contents["otel_goodput/run/0/1"]) < 16_000


def test_what_takes_much_room_in_a_store_is_compressed(shared: Shared) -> None:
    rank, rng = RankChannel(None, "run", 1, 2), random.Random(1)
    messages = [b"%d " % number + rng.randbytes(500).hex().encode() for number in range(40)]
    for message in messages:
        rank.publish(message)
    key, size = "otel_goodput/run/0/1", sum(map(len, messages))
    whole = shared.contents[key]
    assert 0.4 * size < len(whole) < 0.7 * size
    assert RankChannel(None, "run", 0, 2).receive() == {1: messages}
    del shared.contents["otel_goodput/run/read"]
    again = RankChannel(None, "run", 1, 2)
    again.publish(b"40 ")  # with what the process before it has left
    assert RankChannel(None, "run", 0, 2).receive() == {1: [*messages, b"40 "]}
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        shared.contents[key] = bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))])
        received = RankChannel(None, "run", 0, 2).receive().get(1, [])
        assert [*received] == messages[: len(received)]


def test_the_account_of_a_leader_before_this_one_is_none(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SURE_S", 0.05)
    first, rank, deputy = (RankChannel(None, "run", index, 3) for index in range(3))
    first.publish(b"1")
    rank.publish(b"1")
    first.receive()
    first.hand_over(b"account", {})
    assert deputy.handed_over() == b"account"
    second = RankChannel(None, "run", 0, 3)
    second.publish(b"1")
    assert deputy.handed_over() == b""
    second.receive()
    second.hand_over(b"another", {})
    assert deputy.handed_over() == b"", "the first one may live"
    until(lambda: (second.hand_over(b"another", {}), deputy.handed_over())[1] == b"another")
    shared.error = OSError("gone")
    assert deputy.handed_over() == b""


def test_of_two_leaders_the_one_that_was_there_first_leaves_its_account(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a wrong variable gives two processes the leader's index, on hosts that share no folder."""
    monkeypatch.setattr(channels, "GONE_S", 0.2)
    first, rank, deputy = (RankChannel(None, "run", index, 3) for index in range(3))
    first.publish(b"1")
    first.receive()
    first.hand_over(b"first", {})
    second, received = RankChannel(None, "run", 0, 3), list[int]()
    for number in range(1, 31):
        rank.publish(b"%d " % number + bytes(500))
        for leader in (second, first) if number % 2 else (first, second):
            leader.publish(b"%d " % number)
        second.receive()
        second.hand_over(b"second", {1: number})
        first.hand_over(b"first", {})
        if number > 1:
            assert deputy.handed_over() == b"first"
        if not number % 5:
            received += numbers([*first.receive()[1]])
    assert received == [*range(1, 31)], "nothing was taken away from it"
    assert caplog.text.count("another process leads this run") == 1

    def is_left() -> bool:
        second.publish(b"31 ")
        second.hand_over(b"second", {})
        return deputy.handed_over() == b"second"

    assert not is_left()
    until(is_left)  # the first one is gone


def test_a_rank_that_restarts_keeps_what_the_process_before_it_has_left(shared: Shared) -> None:
    leader, rank, deputy = (RankChannel(None, "run", index, 3) for index in range(3))
    for number in range(1, 41):
        rank.publish(b"%d " % number + bytes(500))
        leader.receive()
    leader.hand_over(b"account", {1: 20})
    again = RankChannel(None, "run", 1, 3)
    for number in range(41, 61):
        again.publish(b"%d " % number + bytes(500))
        leader.receive()
    leader.hand_over(b"account", {1: 30})
    again.publish(b"61 ")
    assert numbers([*deputy.receive()[1]]) == [*range(31, 62)]
    leader.hand_over(b"account", {1: 45})
    again.publish(b"62 " + bytes(500))
    assert numbers([*RankChannel(None, "run", 2, 3).receive()[1]]) == [*range(46, 63)]


def an_account() -> JobAccount:
    job = JobAccount((3600 * NS,))
    steps = [RankStep(number, BEGIN + (number + 1) * NS, BEGIN + (number + 1) * NS + NS // 2) for number in range(30)]
    for rank in range(2):
        loads = [Piece(step.begin - NS // 2, step.begin, DATA_LOADING_TIME, "") for step in steps]
        job.update(rank, RankUpdate(BEGIN, BEGIN + 40 * NS, BEGIN + 40 * NS, -1, steps, loads, None))
    return job


def test_an_account_comes_out_as_it_went_in_and_nothing_else_does() -> None:
    job, costs = an_account(), Costs()
    costs.whole[Cause(1, DATA_LOADING_TIME, "")] = 7
    costs.latest[Cause(1, DATA_LOADING_TIME, "")] = BEGIN, BEGIN + 7
    waits = JobWaits(2, True, BEGIN, costs)
    data = handover.encode(job.ledger.dump(), waits, [KnownOffset(1, 0, 5, -600 * NS, 7)])
    handed = handover.decode(data, (3600 * NS,))
    assert handed.offsets == [KnownOffset(1, 0, 5, -600 * NS, 7)] and handed.waits.costs.whole == costs.whole
    assert handed.ledger.totals().to_json() == job.ledger.totals().to_json()
    rng = random.Random(1)
    for _ in range(200):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with pytest.raises(ValueError, match=r"account|checksum|cut short|version"):
            handover.decode(bytes(damaged[: rng.choice((len(data), rng.randrange(len(data))))]), ())


def test_an_account_that_is_too_large_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "FORM", handover.FORM._replace(most=1000))
    assert handover.encode(an_account().ledger.dump(), JobWaits(2, True, 0, Costs()), []) == b""


def test_a_deputy_corrects_the_clock_of_each_process_as_the_leader_did() -> None:
    job, hour = JobAccount(), 3600 * NS
    clocks = KnownClocks([KnownOffset(1, 0, 0, hour, 1), KnownOffset(2, 1, BEGIN, -hour, 1)])
    for rank, attempt in ((1, 0), (2, 1), (3, 0)):
        correct(job, rank, clocks.new_of(rank, attempt))
    assert job.common_time(1, BEGIN) == BEGIN - hour and job.common_time(3, BEGIN) == BEGIN
    assert [job.common_time(2, BEGIN + at) for at in (-1, 0)] == [BEGIN - 1, BEGIN + hour]
    correct(job, 1, clocks.new_of(1, 1))  # it restarted alone, on a host whose clock is right
    assert job.common_time(1, BEGIN) == BEGIN
