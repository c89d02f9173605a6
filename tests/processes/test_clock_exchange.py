"""How hosts measure their clocks, and what the leader makes of it (rule R11)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from waits import until

from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.rank_clocks import Offset
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._journal.clock_offsets import KnownOffset, latest_offsets, read_offsets, write_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import clock_exchange, rank_offsets
from otel_goodput._live.clock_exchange import ClockExchange, FolderClock, this_host
from otel_goodput._live.rank_messages import ClockSigns, RankMessage
from otel_goodput._live.rank_offsets import RankOffsets

from . import jobs

S = 10**9
BEGIN = 1_764_000_000 * S
HERE, THERE = 7, 8


class Slow:
    """A store in this process, to which the way takes up to 20 ms, and back as many more."""

    name = "jax"

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.rng = random.Random(1)

    def get(self, key: str) -> bytes:
        time.sleep(self.rng.random() / 50)
        data = self.contents.get(key, b"")
        time.sleep(self.rng.random() / 500)
        return data

    def set(self, key: str, data: bytes) -> None:
        time.sleep(self.rng.random() / 50)
        self.contents[key] = data

    def several(self, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        known = {name: self.contents.get(f"{folder}/{name}") for name in names}
        yield from ((name, data) for name, data in known.items() if data is not None)


def test_clocks_are_compared_through_a_store_by_those_whom_the_leader_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Slow()
    monkeypatch.setattr(clock_exchange, "current_store", lambda before: store)
    monkeypatch.setattr(clock_exchange, "LOOK_S", 0.05)
    monkeypatch.setattr(clock_exchange, "_SELDOM_S", (0.02, 0.1))
    leader = ClockExchange("run", 0, HERE, lambda: [1, 2])
    ranks = [ClockExchange("run", rank, THERE) for rank in (1, 2, 3)]
    for one in (leader, *ranks):
        one.start()
    until(lambda: all(one.reading() is not None for one in ranks[:2]))
    until(lambda: all(len(one._readings._latest) == clock_exchange.ROUNDS for one in ranks[:2]))
    for one in ranks[:2]:
        host, least, most = one.reading() or (0, 0, 0)
        assert host == HERE and least <= 0 <= most and most - least < S / 5, "the clock is the same one"
    assert ranks[2].reading() is None
    for one in (leader, *ranks):
        one.stop()
    until(lambda: not any(thread.name == "otel-goodput-clocks" for thread in threading.enumerate()))


def test_the_clock_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create({})
    reading = FolderClock(run, 3).reading()
    assert reading is not None and reading.least <= time.monotonic_ns() - time.time_ns() <= reading.most
    assert reading.most - reading.least < S and not [*run.journal.iterdir()]
    assert this_host() == this_host() < 1 << 61


def message(at: int, clock: ClockSigns, attempt: int = 0, pid: int = 1) -> RankMessage:
    update = RankUpdate(BEGIN, at, at, NOT_KNOWN, [], [], None)
    return RankMessage(0, attempt, "host", pid, "", 1, clock, update)


class Leader:
    """The leader's side, whose clock is its monotonic one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000 * S
        monkeypatch.setattr(rank_offsets.time, "monotonic", lambda: self.now / S)
        monkeypatch.setattr(rank_offsets.time, "monotonic_ns", lambda: self.now)
        self.recorded: list[KnownOffset] = []
        self.offsets = RankOffsets(lambda: ClockSigns(HERE, 0, (-5, 5)), self.record)

    def record(self, known: Sequence[KnownOffset]) -> None:
        self.recorded = [*known]

    def take(
        self, *messages: RankMessage, rank: int = 1, last: bool = False, shared: bool = True
    ) -> list[Offset | None]:
        """The offsets with the messages that are given out."""
        for one in messages:
            self.offsets.take(rank, one, shared=shared)
        known = list(self.offsets.known(last=last))
        assert all(other == rank for other, _, _ in known)
        return [offsets[0] if offsets else None for _, _, offsets in known]


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    return Leader(monkeypatch)


def test_what_a_rank_published_waits_for_its_clock_to_be_known(leader: Leader) -> None:
    unknown = ClockSigns(THERE, 500 * S)
    assert leader.take(message(BEGIN, unknown)) == [] == leader.take(message(BEGIN + 1, unknown))
    assert list(leader.offsets.measuring) == [1]
    measured = unknown._replace(leader=(HERE, -2_000_000, 4_000_000))
    first, *others = leader.take(message(BEGIN + 2, measured))
    assert first == Offset(0, 500 * S + 1_000_000, first.bound if first else 0) and others == [None, None]
    assert first.bound == pytest.approx(3_000_000, abs=10)
    assert leader.take(message(BEGIN + 3, unknown)) == [None], "it holds"
    assert leader.recorded == [KnownOffset(1, 0, *first)]
    # All on that host have what one of them has measured.
    other = leader.take(message(BEGIN, ClockSigns(THERE, 501 * S)), rank=2)
    assert [one and one.ahead for one in other] == [501 * S + 1_000_000]
    # The next process there may have another clock.
    assert leader.take(message(BEGIN + 4, ClockSigns(THERE, 900 * S), attempt=1))[0].ahead == 900 * S + 1_000_000
    assert leader.take(message(BEGIN + 4, ClockSigns(HERE, 100), attempt=2)) == [Offset(0, 0, 0)], "the same clock"
    assert leader.take(message(BEGIN + 4, ClockSigns(HERE, 7 * S), attempt=3)) == [Offset(0, 7 * S, 0)], "it was set"
    assert leader.take(message(BEGIN + 5, ClockSigns(HERE, 17 * S), attempt=3)) == [None]


def test_it_does_not_wait_for_long_nor_at_the_end(leader: Leader) -> None:
    unknown = ClockSigns(THERE, 500 * S)
    assert leader.take(message(BEGIN, unknown)) == []
    leader.now += round(rank_offsets.HELD_S + 1) * S
    assert leader.take() == [Offset(0, 0, 0)] and leader.take(message(BEGIN + 1, unknown)) == [None]
    assert leader.take(message(BEGIN, unknown._replace(host=9)), rank=2) == []
    assert leader.take(rank=2, last=True) == [Offset(0, 0, 0)] and leader.recorded == []
    # Once it is known, it holds from then on.
    late = leader.take(message(BEGIN + 2, unknown._replace(leader=(HERE, 0, 2))))
    assert [one and one[:2] for one in late] == [(BEGIN + 2, 500 * S + 1)]


def test_a_clock_that_becomes_known_late_is_corrected_from_then_on(leader: Leader) -> None:
    """As if there was no way to measure it in the first seconds: what the rank did until then is not corrected."""
    job, unknown = JobAccount(), ClockSigns(THERE, 500 * S)
    leader.now += round(rank_offsets.HELD_S + 1) * S
    late = message(BEGIN + 2 * S, unknown._replace(leader=(HERE, 0, 2)))
    for one in (message(BEGIN, unknown), message(BEGIN + S, unknown), late):
        for offset in leader.take(one, last=True):
            if offset is not None:
                job.offset(1, offset.ahead, offset.bound, offset.since)
    assert job.by_common_clock(1, message(BEGIN, unknown).update).at == BEGIN
    assert job.by_common_clock(1, message(BEGIN + 600 * S, unknown).update).at == BEGIN + 100 * S - 1
    only = JobAccount()
    only.offset(1, 500 * S, 1, BEGIN + S + 1)  # the first one did not matter
    assert only.common_time(1, BEGIN) == BEGIN and only.common_time(1, BEGIN + 600 * S) == BEGIN + 100 * S


def test_a_clock_that_drifts_is_corrected_again_from_then_on(leader: Leader) -> None:
    def drifted(by: int) -> ClockSigns:
        return ClockSigns(THERE, 0, None, (HERE, by - 1_000_000, by + 1_000_000))

    assert leader.take(message(BEGIN, drifted(0))) == [Offset(0, 0, 0)] and leader.recorded == []
    at, offsets = BEGIN, list[Offset]()
    for turn in range(40):
        at, leader.now = at + 300 * S, leader.now + 300 * S
        offsets += filter(None, leader.take(message(at, drifted(turn * 400_000))))
    assert 3 <= len(offsets) <= 20 and offsets == [Offset(*one[2:]) for one in leader.recorded]
    assert [one.since for one in offsets] == sorted({one.since for one in offsets})
    assert abs(offsets[-1].ahead - 39 * 400_000) <= 2_000_000


def test_an_exchange_counts_more_than_the_times_of_files(leader: Leader) -> None:
    by_folder = ClockSigns(THERE, 0, (-5, 5))
    # A folder of its own says nothing.
    assert leader.take(message(BEGIN, by_folder._replace(host=9)), rank=3, shared=False) == []
    leader.take(rank=3, last=True)
    assert leader.take(message(BEGIN, by_folder)) == [Offset(0, 0, 0)]
    both = by_folder._replace(leader=(HERE, 5 * S, 5 * S + 2))
    assert [one and one.ahead for one in leader.take(message(BEGIN + 1, both))] == [5 * S + 1]
    elsewhere = by_folder._replace(leader=(THERE, 5 * S, 5 * S + 2))  # with a leader that is no longer there
    assert leader.take(message(BEGIN, elsewhere), rank=2, last=True)[0] is not None


def test_offsets_are_kept_for_reports_and_damage_is_left_out(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create({})
    assert read_offsets(run) == []
    known = [KnownOffset(1, 0, 0, -5, 2), KnownOffset(1, 1, 0, 7, 2), KnownOffset(1, 1, 100, 9, 1)]
    write_offsets(run, 0, known)
    assert read_offsets(run) == known and latest_offsets(known) == {1: Offset(100, 9, 1)}
    run.file("offsets", 1).write_bytes(b"{}")
    assert read_offsets(run) == known
    run.file("offsets", 0).write_bytes(run.file("offsets", 0).read_bytes()[:-5])
    assert read_offsets(run) == []


@pytest.mark.jax
@pytest.mark.release
def test_the_clocks_of_hosts_that_share_no_folder_are_compared_through_the_store_of_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    job = jobs.Job("processes.far_clock", tmp_path, 3, jax=True)
    report = job.end()
    clocks = {one["rank"]: (one["ahead"], one["bound"]) for one in report["ranks"]["clocks"]}
    assert report["ranks"]["count"] == 3 and report["ranks"]["together"] and clocks.keys() == {1, 2}, job.errors()
    for rank, (ahead, bound) in clocks.items():
        assert abs(ahead - 600 * rank) <= bound < 0.1
    assert report["elapsed_s"] < 60 and report["ranks"]["waits"][0]["rank"] == 2
