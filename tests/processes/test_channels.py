"""How what the ranks publish comes to the leader: each message once and in order, whatever happens to the ranks."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
import warm
from ports import reserved_port
from waits import until

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._live import channels, outbox, stores
from otel_goodput._live.channels import LARGEST, RankChannel
from otel_goodput._live.outbox import KEPT, KEPT_NS, MOST

from .jobs import Job
from .shared import Shared

TESTS = Path(__file__).parent.parent
RUNTIMES = [name for name in ("jax", "torch") if find_spec(name)]


class Leader:
    """What the leader has received, as numbers by rank."""

    def __init__(self, channel: RankChannel) -> None:
        self.channel = channel
        self.numbers: dict[int, list[int]] = defaultdict(list)

    def look(self) -> None:
        for rank, messages in self.channel.receive().items():
            for message in messages:
                number = int(message.split(b" ")[0])
                assert len(message) == len(b"%d " % number) + number % 500
                self.numbers[rank].append(number)

    def wait_for(self, rank: int, number: int) -> None:
        def there() -> bool:
            self.look()
            return number in self.numbers[rank]

        until(there, lacking=lambda: {rank: numbers[-1:] for rank, numbers in self.numbers.items()})


def run_folder(path: Path) -> RunDirectory:
    run = RunDirectory(path / "run")
    run.create({})
    return run


def rank(folder: Path, index: int, first: int, last: int, pause: float = 0.001) -> warm.Process:
    words = map(str, (index, 4, 0, folder, "folder", first, last, pause))
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    return warm.Process([sys.executable, "-m", "processes.messenger", *words], env=environment)


def noted(folder: Path, index: int) -> list[int]:
    lines = (folder / f"own-{index}").read_text().splitlines() if (folder / f"own-{index}").exists() else []
    return [int(line.split()[0]) for line in lines if not line.startswith("received")]


@pytest.mark.crash
def test_each_message_comes_once_and_in_order_through_the_folder(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    leader = Leader(RankChannel(run, "of all/ranks", 0, 4))
    victim, stopped = rank(tmp_path, 1, 0, 100_000), rank(tmp_path, 2, 0, 400)
    leader.wait_for(1, 20)
    leader.wait_for(2, 20)
    stopped.send_signal(signal.SIGSTOP)
    victim.kill()
    victim.wait(30)
    died = noted(tmp_path, 1)
    # It comes back alone, and another rank begins late.
    again, late = rank(tmp_path, 1, 200_000, 200_100), rank(tmp_path, 3, 0, 10, pause=0.02)
    leader.wait_for(3, 9)
    leader.wait_for(1, 200_099)
    stopped.send_signal(signal.SIGCONT)
    leader.wait_for(2, 399)
    assert [process.wait(30) for process in (again, late, stopped)] == [0, 0, 0]
    leader.look()
    assert leader.numbers[2] == [*range(400)] and leader.numbers[3] == [*range(10)]
    before = leader.numbers[1][:-100]
    assert before in (died, [*died, len(died)])  # killed between the two
    assert leader.numbers[1][-100:] == [*range(200_000, 200_100)]
    assert not leader.channel.lost
    # A leader that is new to all this gets what remains, of the process before, too.
    after = Leader(RankChannel(run, "of all/ranks", 0, 4))
    after.look()
    assert after.numbers == leader.numbers


class Received:
    """What the first process of a job has noted that it received, as numbers by rank, and the channel at the end."""

    def __init__(self, folder: Path) -> None:
        self.numbers: dict[int, list[int]] = defaultdict(list)
        self.channel = ""
        for line in (folder / "own-0").read_text().splitlines() if (folder / "own-0").exists() else []:
            word, *rest = line.split(" ")
            if word == "received":
                self.numbers[int(rest[0])].append(int(rest[1]))
                self.channel = rest[2]


@pytest.mark.crash
@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.jax) for way in RUNTIMES])
def test_each_message_comes_once_and_in_order_through_a_store(tmp_path: Path, way: str) -> None:
    """The first two ranks share a folder, the others come through the store of the runtime."""
    job = Job("processes.messenger", tmp_path, 4, way, 0, 100_000, 0.005, jax=way == "jax")

    def number_of(rank: int) -> int:
        return max(Received(tmp_path).numbers[rank], default=-1)

    def wait_for(*ranks: int, more: int = 20) -> None:
        goals = {rank: number_of(rank) + more for rank in ranks}
        until(lambda: all(number_of(rank) >= goal for rank, goal in goals.items()), lacking=job.errors, pause=0.05)

    try:
        wait_for(1, 2, 3)
        leader, _, stopped, victim = job.processes
        stopped.send_signal(signal.SIGSTOP)
        victim.kill()
        victim.wait(30)
        wait_for(1, more=100)
        assert Received(tmp_path).numbers[2][-1] - noted(tmp_path, 2)[-1] in (0, 1)
        stopped.send_signal(signal.SIGCONT)
        wait_for(2)
        leader.send_signal(signal.SIGSTOP)  # the store too: nobody waits for it, and it has everything afterwards
        before = noted(tmp_path, 2)[-1]
        until(lambda: noted(tmp_path, 2)[-1] > before + 50, lacking=job.errors)
        leader.send_signal(signal.SIGCONT)
        wait_for(2, more=150)
        received = Received(tmp_path)
        for rank, numbers in received.numbers.items():
            assert numbers == [*range(len(numbers))], rank
        assert received.channel == way
        assert len(received.numbers[3]) - len(noted(tmp_path, 3)) in (0, 1)
        (tmp_path / "new leader").touch()
        until((tmp_path / "is new").exists, lacking=job.errors)
        again = len(Received(tmp_path).numbers[2])
        wait_for(1, 2)
        fresh = Received(tmp_path).numbers[2][again + 5 :]
        assert fresh == [*range(fresh[0], fresh[0] + len(fresh))]
    finally:
        job.stop()
    lines = {rank: (tmp_path / f"own-{rank}").read_text().splitlines() for rank in (1, 2)}
    used = {rank: [line.partition(" ")[2] for line in lines[rank]] for rank in lines}
    assert "folder" in used[1] and way not in used[1][100:] and way in used[2]


ENDING = """
import sys, threading, time
from processes.messenger import initialize
from otel_goodput._live.channels import RankChannel
index, port = int(sys.argv[1]), sys.argv[2]
initialize("jax", index, 3, port)
channel = RankChannel(None, "run", index, 3)
def go_on():
    while True:
        channel.publish(bytes(1000))
        channel.receive()
threading.Thread(target=go_on, daemon=True).start()
time.sleep(0.5)
"""


@pytest.mark.jax
@pytest.mark.release
def test_processes_end_well_with_a_store_in_use() -> None:
    """Python would end a thread in the middle of C++, which aborts the process."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for _ in range(2):
        with reserved_port() as port, ExitStack() as running:
            commands = [[sys.executable, "-c", ENDING, str(index), str(port)] for index in range(3)]
            ranks = [
                running.enter_context(subprocess.Popen(command, cwd=TESTS, env=environment, stderr=subprocess.PIPE))
                for command in commands
            ]
            errors = [rank.communicate(timeout=60)[1] for rank in ranks]
            assert [rank.returncode for rank in ranks] == [0, 0, 0], errors


def test_the_file_stays_small_and_keeps_what_an_absent_leader_needs(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    writer = RankChannel(run, "run", 1, 2)
    path = run.file("updates", 1)
    attentive, absent = RankChannel(run, "run", 0, 2), RankChannel(run, "run", 0, 2)
    generations: list[int] = []  # inodes one after the other; the number of one that has gone may come again
    received, largest = [], 0
    for number in range(2500):
        writer.publish(b"%d " % number + bytes(1000))
        if number == 0:
            absent.receive()
        if number % 50 == 49:
            received += attentive.receive()[1]
            if generations[-1:] != [inode := path.stat().st_ino]:
                generations.append(inode)
            largest = max(largest, path.stat().st_size)
    assert [int(message.split()[0]) for message in received] == [*range(2500)] and not attentive.lost
    assert len(generations) > 2 and KEPT < largest <= LARGEST
    rest = [int(message.split()[0]) for message in absent.receive()[1]]
    assert rest == [*range(rest[0], 2500)] and len(rest) >= 500
    assert absent.lost == {1: rest[0] - 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_old_is_dropped_and_a_quiet_rank_keeps_a_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_folder(tmp_path)
    writer = RankChannel(run, "run", 1, 2)
    now = time.time_ns()
    for number in range(1000):
        monkeypatch.setattr(outbox.time, "time_ns", lambda number=number: now + number * KEPT_NS // 100)
        writer.publish(b"%d " % number + bytes(1000))
        assert run.file("updates", 1).stat().st_size < 300_000
    rest = [int(message.split()[0]) for message in RankChannel(run, "run", 0, 2).receive()[1]]
    assert rest == [*range(899, 1000)]


def test_the_folder_is_used_by_those_who_share_it_with_the_leader(tmp_path: Path, shared: Shared) -> None:
    run, elsewhere = run_folder(tmp_path), run_folder(tmp_path / "another machine")
    RankChannel(elsewhere, "run", 0, 4).publish(b"of an earlier leader")
    shared.contents.clear()
    leader = RankChannel(run, "run", 0, 4)
    assert leader.receive() == {} and leader.name == ""
    near, far, nowhere = (
        RankChannel(run, "run", 1, 4),
        RankChannel(elsewhere, "run", 2, 4),
        RankChannel(None, "run", 3, 4),
    )
    for number in range(50):
        for channel in (near, far, nowhere):
            channel.publish(b"%d" % number + bytes(500))
        received = leader.receive()
        assert received == {rank: [b"%d" % number + bytes(500)] for rank in (1, 2, 3)}
    assert (near.name, far.name, nowhere.name, leader.name) == ("folder", "jax", "jax", "jax")
    # What the leader has is not sent again and again.
    assert all(len(data) < 16_000 for data in shared.contents.values())
    # Another rank may read, too, once the leader gives no sign; that does not take anything from the leader.
    far.publish(b"late")
    assert near.receive()[2][-1] == b"late" and leader.receive() == {2: [b"late"]}


def test_a_store_that_fails_is_reported_once_and_the_folder_takes_its_place(
    tmp_path: Path, shared: Shared, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(channels.time, "monotonic", lambda: now)
    run = run_folder(tmp_path)
    leader, rank = RankChannel(run, "run", 0, 2), RankChannel(None, "run", 1, 2)
    leader.receive()
    rank.publish(b"1")
    shared.error = OSError("gone")
    rank.publish(b"2")
    calls = shared.calls
    rank.publish(b"3")
    assert shared.calls == calls and rank.name == ""
    shared.error = None
    now += channels.RETRY_S
    rank.publish(b"4")
    assert leader.receive() == {1: [b"1", b"2", b"3", b"4"]}
    assert rank.name == "jax"
    assert len([text for text in caplog.messages if "store of jax.distributed: OSError: gone" in text]) == 1


def test_what_hangs_is_given_up(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PATIENCE_S", 0.02)
    monkeypatch.setattr(channels, "RETRY_S", 0.0)
    leader, rank = RankChannel(None, "run", 0, 2), RankChannel(None, "run", 1, 2)
    hanging, calls = Event(), []
    monkeypatch.setattr(Shared, "_call", lambda self: (calls.append(1), hanging.wait()))
    for number in range(5):
        rank.publish(b"%d" % number)
    assert len(calls) == 1  # there is never more than one waiting
    hanging.set()
    until(lambda: not any(thread.name == "otel-goodput-store" for thread in enumerate_threads()))
    rank.publish(b"5")
    assert leader.receive() == {1: [b"%d" % number for number in range(6)]}


def test_a_torn_message_is_waited_for_and_a_process_that_follows_ends_it(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    reader, writer = RankChannel(run, "run", 0, 2), RankChannel(run, "run", 1, 2)
    path = run.file("updates", 1)
    writer.publish(b"first")
    whole = path.read_bytes()
    writer.publish(b"second")
    both = path.read_bytes()
    path.write_bytes(both[:-3])
    assert reader.receive() == {1: [b"first"]} and reader.receive() == {}
    path.write_bytes(both)
    assert reader.receive() == {1: [b"second"]} and reader.receive() == {}
    path.write_bytes(both[:-3])
    RankChannel(run, "run", 1, 2).publish(b"third")
    assert reader.receive() == {1: [b"third"]}
    for damaged in (b"", whole[:10], whole[:-1] + b"x", bytes(100), os.urandom(5000)):
        path.write_bytes(damaged)
        assert reader.receive() == {} == RankChannel(run, "run", 0, 2).receive()


def test_a_message_has_a_largest_size(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    writer, reader = RankChannel(run, "run", 1, 2), RankChannel(run, "run", 0, 2)
    with pytest.raises(ValueError, match="at most 65536"):
        writer.publish(bytes(MOST + 1))
    for _ in range(40):
        writer.publish(bytes(MOST))
        assert reader.receive() == {1: [bytes(MOST)]}


def test_what_others_put_there_is_not_followed(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    reader = RankChannel(run, "run", 0, 5)
    os.mkfifo(run.file("updates", 1))
    run.file("updates", 2).mkdir()
    RankChannel(RunDirectory(run_folder(tmp_path / "other").path), "run", 3, 5).publish(b"elsewhere")
    run.file("updates", 3).symlink_to(tmp_path / "other" / "run" / "journal" / "p0003.updates")
    RankChannel(run, "run", 4, 5).publish(b"here")
    assert reader.receive() == {4: [b"here"]}


def test_a_folder_that_fails_is_reported_once_and_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(channels.time, "monotonic", lambda: now)
    run = run_folder(tmp_path)
    writer, reader = RankChannel(run, "run", 1, 2), RankChannel(run, "run", 0, 2)
    writer.publish(b"0")
    path = run.file("updates", 1)
    aside = run.journal.rename(tmp_path / "aside")
    for number in (1, 2):
        writer.publish(b"%d" % number)
        assert reader.receive() == {} and writer.name == ""
    aside.rename(run.journal)
    writer.publish(b"3")
    assert reader.receive() == {1: [b"0"]}  # it is not tried again at once
    now += channels.RETRY_S
    writer.publish(b"4")
    assert writer.name == "folder" and reader.receive() == {1: [b"1", b"2", b"3", b"4"]}
    path.unlink()  # somebody tidies up
    writer.publish(b"5")
    assert reader.receive() == {1: [b"5"]}
    assert len([text for text in caplog.messages if "not exchanged through the run's folder" in text]) == 1


def test_without_a_folder_nothing_comes_and_nothing_is_raised() -> None:
    channel = RankChannel(None, "run", 0, 2)
    channel.publish(b"x")
    assert channel.receive() == {} and channel.name == ""


@pytest.mark.jax
def test_the_store_of_jax_is_used_only_while_it_is_connected(tmp_path: Path) -> None:
    """The service takes a call of a client that is not connected yet for one of a restart, and ends all processes."""
    assert Job("processes.hammer", tmp_path, 2, jax=True).end() > 0
