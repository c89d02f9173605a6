"""What the exchange of ranks takes: of the leader, of each other rank, and through a key-value store (rule R11).

All ranks are in one process: each has a real account of steps that this process makes up as time passes. What making
them up takes is not counted.
"""

from __future__ import annotations

import gc
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.rounds import Samples, once, serve
from benchmarks.table import Row
from otel_goodput._accounting import Ledger
from otel_goodput._accounting.rules import DATA_LOADING, JOB, STEP
from otel_goodput._journal.account import Account
from otel_goodput._journal.journal import Journal, Segment
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import channels, clock_exchange, ranks
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.publisher import Publisher
from otel_goodput._live.ranks import RankExchange
from otel_goodput._live.stores import TorchStore
from otel_goodput._settings import config

NS = 1_000_000_000
ROUND_S = ranks.EVERY_S
WARM = 10  # rounds that are not counted: the leader comes to know so many ranks in each
RANKS, PACE = 512, 2
FAST_RANKS, FAST_PACE = 8, 2_000
LEADER, PUBLISHER, STORED = 0.01, 0.0005, 1024  # of a core; of a core; bytes a rank and second


class _Steps:
    """The steps of all ranks of a job, as time passes: so many a second, for which one rank or another is late."""

    def __init__(self, pace: float, begin: int) -> None:
        self._length, self._begin, self._number = round(NS / pace), begin, 0
        self._chance = random.Random(0)

    def until(self, now: int) -> list[tuple[int, int, int]]:
        """Return number, begin of the load and end of each step that is over by `now`, ns."""
        steps = []
        while (end := self._begin + self._length * (self._number + 1) + self._late()) < now:
            steps.append((self._number, self._begin + self._length * self._number, end))
            self._number += 1
        return steps

    def _late(self) -> int:
        return self._number * 7919 % (self._length // 50 + 1)


class _Rank:
    """A rank: its account, and its exchange, or else what publishes for it."""

    def __init__(
        self,
        place: Path,
        rank: int,
        count: int,
        begin: int,
        run: RunDirectory | None,
        clock: Callable[[], int],
        *,
        whole: bool,
    ) -> None:
        self.now, self._key, self._chance = begin, 2, random.Random(rank)
        self.account = Account(Journal(0, rank, Segment(None)), Ledger(), clock)
        settings = config.read("ranks", run_id="run", process_index=rank, process_count=count, directory=str(place))
        self.account.begin_attempt(0, 0, None)
        self.account.start(JOB, 1, -1, 0, "", begin)
        if whole:
            self.ranks = RankExchange(settings, self.account)
            self.ranks.start(run, 0)
            self.exchange = self.ranks.exchange
        else:
            own, channel = Publisher(settings, self.account), RankChannel(run, "run", rank, count)
            own.attempt = 0
            self.exchange = lambda: self._publish(own, channel)

    def _publish(self, own: Publisher, channel: RankChannel) -> None:
        update = own.take_update()
        assert update is not None
        own.publish(channel, update)

    def take(self, steps: list[tuple[int, int, int]], now: int) -> None:
        """Take these steps; each begins at a moment of its own and ends with those of all others."""
        for number, begin, end in steps:
            begin, left = max(begin, self.now), end + self._chance.randrange((end - begin) // 100)
            ready = begin + (end - begin) * self._chance.randrange(100, 300) // 1000
            self.account.start(DATA_LOADING, self._key, -1, 0, "", begin)
            self.account.end(DATA_LOADING, self._key, 0, ready)
            self.account.start(STEP, self._key + 1, number, 0, "", ready)
            self.account.end(STEP, self._key + 1, 0, left)
            self.now, self._key = left, self._key + 2
        self.now = now
        self.account.refresh(10)


def answer(role: str, count: int, pace: float, rounds: int, wait: float = ROUND_S) -> dict[str, float]:
    """Return what a second costs the `role`: the part of a core, and bytes of journal, or through the store.

    A round takes `wait` seconds at least, in which the threads of the role work.
    """
    ranks.FIRST_S = 3600.0  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="otel-goodput-bench-") as place:
        if role == "store":
            return _through_store(Path(place), pace, rounds)
        run = RunDirectory(Path(place) / "run")
        run.create({"run_id": "run", "job_name": "ranks", "created_at": time.time(), "process_count": count})
        return _costs(Path(place), run, 0 if role == "leader" else 1, count, pace, rounds, wait)


def _costs(
    place: Path, run: RunDirectory, own: int, count: int, pace: float, rounds: int, wait: float
) -> dict[str, float]:
    now = begin = time.time_ns()
    clock_exchange.ahead_of_monotonic = lambda _: (0, 0)  # of all ranks the same
    chosen = range(count) if own == 0 else (0, 1)
    every = {rank: _Rank(place, rank, count, begin, run, lambda: now, whole=rank == own) for rank in chosen}
    steps, made, began, size = _Steps(pace, begin), 0.0, 0.0, 0
    for at in range(WARM + rounds):
        if at == WARM:
            made, began, size = 0.0, time.process_time(), _bytes(run)
        since, until = time.thread_time(), time.monotonic() + wait
        now += round(ROUND_S * NS)
        taken = steps.until(now)
        for rank, one in every.items():
            one.take(taken, now)
            if rank != own:
                one.exchange()
        gc.freeze()  # the other ranks are in other processes
        made += time.thread_time() - since
        every[own].exchange()
        time.sleep(max(0.0, until - time.monotonic()))
    took, written = time.process_time() - began - made, _bytes(run) - size
    if own == 0:
        figures = every[own].ranks.figures()
        assert figures is not None and figures.together and figures.ranks == count
    every[own].ranks.close()
    return {"core": took / rounds / ROUND_S, "bytes": written / rounds / ROUND_S}


def _bytes(run: RunDirectory) -> int:
    folder = run.of_job
    return folder.recorded_bytes() if folder.path.exists() else 0


class _Counted:
    """Passes on what goes to and from a server, and counts its bytes."""

    def __init__(self, port: int) -> None:
        self._port, self.sent, self.received = port, 0, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._server.accept()
            other = socket.create_connection(("127.0.0.1", self._port))
            for source, target, name in ((client, other, "sent"), (other, client, "received")):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, target, name), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        while data := source.recv(1 << 16):
            setattr(self, name, getattr(self, name) + len(data))
            target.sendall(data)


def _through_store(folder: Path, pace: float, rounds: int) -> dict[str, float]:
    """Two ranks that share no folder, each with a connection to one store of torch. That of rank 1 is counted."""
    import torch.distributed

    server = torch.distributed.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    counted = _Counted(server.port)
    through = torch.distributed.TCPStore(
        "127.0.0.1", counted.port, None, False, timedelta(seconds=30), wait_for_workers=False
    )
    of_rank = [TorchStore(server), TorchStore(through)]
    current: Callable[[Any], Any] = lambda before: before  # noqa: E731
    channels.current_store = clock_exchange.current_store = current
    virtual = begin = time.time_ns()
    every = [_Rank(folder, rank, 2, begin, None, lambda: virtual, whole=True) for rank in range(2)]
    for one, store in zip(every, of_rank, strict=True):
        duty = one.ranks._duty
        assert duty is not None
        duty._channel._shelf = channels._Shelf(store, "run", 0 if one is every[0] else 1, 0)
    steps, sent, received = _Steps(pace, begin), 0, 0
    real, times = time.monotonic, [0.0]
    time.monotonic = lambda: real() + times[0]  # type: ignore[assignment]
    for at in range(WARM + rounds):
        times[0] += ROUND_S
        virtual += round(ROUND_S * NS)
        if at == WARM:
            sent, received = counted.sent, counted.received
        taken = steps.until(virtual)
        for one in reversed(every):
            one.take(taken, virtual)
            one.exchange()
    time.monotonic = real  # type: ignore[assignment]
    time.sleep(0.2)
    figures = every[0].ranks.figures()
    assert figures is not None and figures.ranks == 2, figures
    for one in every:
        one.ranks.close()
    seconds = rounds * ROUND_S
    return {"sent": (counted.sent - sent) / seconds, "received": (counted.received - received) / seconds}


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    count, wait, rounds = (16, 0.0, 1) if fast else (RANKS, ROUND_S, 12)
    group = "The exchange of the ranks of a job: processor time on background threads, of a core"
    rows = []
    for role, several, pace, most in (
        ("leader", count, PACE, LEADER),
        ("publisher", 2, PACE, PUBLISHER),
        ("leader", FAST_RANKS, 50 if fast else FAST_PACE, None),
    ):
        core = once("exchange", role=role, count=several, pace=pace, rounds=rounds, wait=wait)["core"]
        what = "a rank" if role == "publisher" else f"the leader of {several} ranks"
        samples.add(f"exchange {role} {several} {pace}", core)
        limit = "" if most is None else f"≤ {100 * most:g} %"
        passed = None if most is None else core <= most
        rows.append(Row(group, f"{what}, {pace:,} steps a second", "", f"{100 * core:.3f} %", limit, passed))
    if find_spec("torch") is not None:
        group = "What a rank sends through a key-value store (torch's TCPStore), bytes a second"
        for pace in (1,) if fast else (1, 10, 100, 1_000):
            sent = once("exchange", role="store", count=2, pace=pace, rounds=rounds)["sent"]
            samples.add(f"exchange store {pace}", sent, "byte")
            rows.append(Row(group, f"{pace:,} steps a second", "", f"{sent:,.0f}", f"≤ {STORED:,}", sent <= STORED))
    return rows


if __name__ == "__main__":
    serve(answer)
