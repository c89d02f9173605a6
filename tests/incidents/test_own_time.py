"""What a thread does itself, and where it waits, by samples from another thread; who is slow in a job of processes."""

from __future__ import annotations

import dis
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from otel_goodput._accounting.incidents import STEP, Incident, Source
from otel_goodput._accounting.own_time import OwnTimes, OwnWindow, RankTime, SlowRank
from otel_goodput._accounting.rules import NS
from otel_goodput._incidents import own_time
from otel_goodput._incidents.own_time import OwnTimeSampler, called
from otel_goodput._journal.own_times import read_own_times, write_own_times
from otel_goodput._journal.rundir import RunDirectory, bound
from otel_goodput.reports.own_times import WINDOWS, explained, own_to_json
from otel_goodput.runs import open_run
from tests import waits, warm

RANK = Path(__file__).with_name("own_rank.py")
MS = NS // 1000


@contextmanager
def standing(stand: Callable[[], object]) -> Iterator[OwnTimeSampler]:
    """A thread that stands in a function until the end of this, and what samples it."""
    thread = threading.Thread(target=stand, daemon=True)
    thread.start()
    ident = thread.ident
    waits.until(lambda: ident in sys._current_frames() and sys._current_frames()[ident].f_code is not None)
    yield OwnTimeSampler(lambda: ident, lambda: True)
    thread.join(10)
    assert not thread.is_alive()


def _stand_in(name: str, tmp_path: Path, function: str, body: str) -> Callable[..., object]:
    """A function in a file of that path, as a library has it."""
    space: dict[str, Any] = {}
    exec(compile(f"def {function}(call):\n    {body}\n", str(tmp_path / name), "exec"), space)
    result: Callable[..., object] = space[function]
    return result


def _samples(sampler: OwnTimeSampler, kind: str) -> int:
    for _ in range(3):
        sampler.tick()
    return int(getattr(sampler.counts, kind))


def test_waits_in_the_standard_library() -> None:
    mine, other = socket.socketpair()
    release = threading.Event()
    cases: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (release.wait, release.set),
        (lambda: mine.recv(1), lambda: other.send(b".")),
        ((empty := queue.Queue[int]()).get, lambda: empty.put(1)),
    ]
    for stand, end in cases:
        with standing(stand) as sampler:
            waits.until(lambda sampler=sampler: _samples(sampler, "waiting") > 0)
            end()
    mine.close()
    other.close()


def test_waits_in_libraries(tmp_path: Path) -> None:
    """What is theirs is recognized by their files, whatever they call inside."""
    for name, function, kind in (
        ("torch/distributed/distributed_c10d.py", "all_reduce", "waiting"),
        ("torch/cuda/__init__.py", "synchronize", "waiting"),
        ("jax/_src/api.py", "block_until_ready", "waiting"),
        ("torch/autograd/graph.py", "_engine_run_backward", "unclear"),
        ("model.py", "all_reduce_gradients", "inside"),
    ):
        stands = _stand_in(name, tmp_path, function, "call(0.2)")
        with standing(lambda stands=stands: stands(time.sleep)) as sampler:
            waits.until(lambda sampler=sampler, kind=kind: _samples(sampler, kind) > 0)
            counts = sampler.counts
            assert kind == "inside" or counts.inside > 0
            assert (counts.waiting > 0, counts.unclear > 0) == (kind == "waiting", kind == "unclear")


def _calls(code: CodeType) -> list[str]:
    """The names of all calls of code, in the order in which they are made."""
    names = (called(code, one.offset) for one in dis.get_instructions(code) if one.opname.startswith("CALL"))
    return [name for name in names if name]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have no columns")
def test_the_name_of_what_is_called() -> None:
    def program(loss: Any, sock: Any, work: Any, sleep: Any) -> None:
        sleep(1)
        loss.sum().item()
        sock.recv(
            len(work.parts(loss)),
        )
        print(work.wait(loss.item()), [loss.backward()])

    expected = ["sleep", "sum", "item", "parts", "len", "recv", "item", "wait", "backward", "print"]
    assert _calls(program.__code__) == expected


def test_its_own_time_is_named_by_processor_time_and_counts_only_inside_steps() -> None:
    stop, inside = threading.Event(), [True]

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    sampler = OwnTimeSampler(lambda: thread.ident, lambda: inside[0])
    if hasattr(time, "pthread_getcpuclockid"):
        waits.until(lambda: _samples(sampler, "computed") > MS)
    first = sampler.counts
    assert first.samples == first.inside and first.waiting == 0
    assert first.computed <= 1.2 * first.lasted + 20 * MS
    inside[0] = False
    sampler.tick()
    assert sampler.counts.inside == first.inside and sampler.counts.samples == first.samples + 1
    stop.set()
    thread.join()
    sampler.tick()  # there is no such thread any more
    assert sampler.counts.samples == first.samples + 1


def test_no_job_and_no_thread() -> None:
    sampler = OwnTimeSampler(lambda: None, lambda: True)
    sampler.tick()
    other = OwnTimeSampler(threading.get_ident, lambda: None)
    other.tick()
    assert sampler.counts == other.counts == (0,) * 6


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "_PLACES", 4)
    sampler = OwnTimeSampler(threading.get_ident, lambda: True)
    for number in range(20):
        exec(compile("sampler.tick()", f"file{number}.py", "exec"), {"sampler": sampler})
    assert len(sampler._places) <= 4 and len(sampler._codes) <= 4 + own_time.DEPTH


def test_a_sample_costs_little() -> None:
    sampler = OwnTimeSampler(threading.get_ident, lambda: True)
    sampler.tick()
    began = time.thread_time()
    for _ in range(200):
        sampler.tick()
    assert (time.thread_time() - began) / 200 < 200e-6


# --- what is made of it -----------------------------------------------------------------------------------------------


def times(*slow: tuple[int, ...], begin: int = 0) -> OwnTimes:
    windows = tuple(
        OwnWindow(
            begin + 30 * NS * number,
            begin + 30 * NS * (number + 1),
            1000,
            25 * MS,
            20 * MS,
            5 * MS,
            20 * MS,
            ranks,
            tuple(RankTime(rank, 25 * MS if rank in ranks else 20 * MS, 0) for rank in range(8)),
        )
        for number, ranks in enumerate(slow)
    )
    return OwnTimes("chronic", (SlowRank(7, 3, 3, "chronic", 1, 2, 25 * MS, 20 * MS, NS, 0.25),), windows)


SLOW = Incident(1, "slowdown", Source(STEP), 30 * NS, 90 * NS)


def test_an_incident_is_of_the_rank_that_is_slow_in_steps() -> None:
    named = explained(SLOW, times((), (7,), (7, 2), (7,)))
    assert named.source == Source(STEP, "", 7)
    text = "inside of steps, rank 7 itself takes 25 ms in a turn, others 20 ms, and they wait 5 ms"
    assert named.evidence == (f"{text}; without it, the job would be 25.00 % faster",)
    again = explained(named._replace(evidence=(*named.evidence, "other")), times((), (7,), (7,)))
    assert again.evidence == ("other", named.evidence[0]), "said once"
    wandering = explained(SLOW, times((), (1,), (2,), (3,), (4,)))
    assert wandering.source == SLOW.source
    assert wandering.evidence == ("inside of steps, a different rank is slow at each time (1, 2, 3, 4)",)


@pytest.mark.parametrize(
    ("incident", "slow"),
    [
        pytest.param(SLOW, ((), (), ()), id="nobody is slow"),
        pytest.param(SLOW, ((7,), (), ()), id="it was slow before"),
        pytest.param(SLOW._replace(kind="hang"), ((7,), (7,)), id="a hang"),
        pytest.param(SLOW._replace(source=Source("data_loading", "", 3)), ((7,), (7,)), id="steps are as ever"),
    ],
)
def test_an_incident_stays_as_it_is(incident: Incident, slow: tuple[tuple[int, ...], ...]) -> None:
    assert explained(incident, times(*slow)) is incident


def test_the_file(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "job")
    run.create({"run_id": "job"})
    known = times(*[(7,)] * 100)
    assert write_own_times(run, known) and read_own_times(run) == known
    path = run.file("own", 0)
    assert path.stat().st_size <= (bound(path.name) or 0)
    path.write_bytes(path.read_bytes().replace(b'"chronic"', b'"cronic"'))
    with pytest.raises(ValueError):
        read_own_times(run)


def test_a_report_is_bounded() -> None:
    own = own_to_json(times(*[(7,)] * 100), {7: "n3"})
    assert own is not None and len(own["windows"]) <= WINDOWS
    assert own["slow"][0]["host"] == "n3" and own["windows"][0]["slow"] == [7]
    assert own["windows"][0]["begin"] == 0 and own["windows"][-1]["end"] == 3000
    assert own_to_json(OwnTimes(), {}) is None


# --- real processes ---------------------------------------------------------------------------------------------------


class Barrier:
    """Lets ranks go on when all have come."""

    def __init__(self, place: Path, count: int) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(place))
        self._listening.listen(count)
        self._thread = threading.Thread(target=self._run, args=(count,), daemon=True)
        self._thread.start()

    def _run(self, count: int) -> None:
        ranks = [self._listening.accept()[0] for _ in range(count)]
        try:
            while all(one.recv(1) for one in ranks):
                for one in ranks:
                    one.send(b".")
        except OSError:
            pass
        for one in (*ranks, self._listening):
            one.close()


def job(tmp_path: Path, mode: str, count: int, step: float, steps: int, **env: str) -> dict[str, Any]:
    """Run a job, and return what its report says of its ranks, and its incidents."""
    barrier = Barrier(place := tmp_path / "barrier", count)
    arguments = [str(count), str(tmp_path), str(place), mode, str(step), str(steps)]
    environ = {**os.environ, "OTEL_GOODPUT_STRICT": "1", **env}
    ranks = [warm.Process([sys.executable, RANK, str(rank), *arguments], env=environ) for rank in range(count)]
    assert [one.wait(300) for one in ranks] == [0] * count
    del barrier
    answer: dict[str, Any] = json.loads(json.dumps(open_run(tmp_path / "own").report().to_json()))
    return answer


@pytest.mark.release
def test_a_rank_that_sleeps_in_its_steps_is_named(tmp_path: Path) -> None:
    fast = {"OWN_FAST": "1", "OWN_MORE": "1.5", "OTEL_GOODPUT_INCIDENTS": "0.15"}
    own = job(tmp_path, "sleep:2", 3, 0.01, 120, **fast)["ranks"]["own"]
    assert [one["rank"] for one in own["slow"]] == [2], own
    assert own["slow"][0]["own_s"] > own["slow"][0]["usual_s"]
    assert any("slow in steps" in line for line in str(open_run(tmp_path / "own").report()).splitlines())


@pytest.mark.release
@pytest.mark.parametrize("mode", ["sleep:5", "compute:3"])
@pytest.mark.parametrize("time_of_it", range(3))
def test_each_time_the_slow_one_of_eight(tmp_path: Path, mode: str, time_of_it: int) -> None:
    own = job(tmp_path, mode, 8, 0.05, 300, OWN_FAST="1", OTEL_GOODPUT_INCIDENTS="0.5")["ranks"]["own"]
    assert own["slow"][0]["rank"] == int(mode[-1]), own["slow"]


@pytest.mark.release
def test_an_incident_of_a_real_job_names_the_rank(tmp_path: Path) -> None:
    fast = {"OWN_FAST": "1", "OWN_MORE": "1.0", "OWN_AFTER": "900", "OTEL_GOODPUT_INCIDENTS": "0.3"}
    report = job(tmp_path, "sleep:1", 3, 0.01, 1700, **fast)
    slow = [one for one in report["incidents"] if one["kind"] == "slowdown" and one["cause"] == STEP]
    assert slow and slow[-1]["rank"] == 1, report["incidents"]
    assert any("rank 1 itself takes" in text for text in slow[-1]["evidence"])


@pytest.mark.release
def test_nobody_of_eight(tmp_path: Path) -> None:
    own = job(tmp_path, "none", 8, 0.05, 300, OWN_FAST="1", OTEL_GOODPUT_INCIDENTS="0.5")["ranks"]["own"]
    assert own["windows"] and not own["slow"], own["slow"]


@pytest.mark.release
def test_a_different_one_of_eight_each_time(tmp_path: Path) -> None:
    own = job(tmp_path, "wander:50", 8, 0.05, 400, OWN_FAST="1", OTEL_GOODPUT_INCIDENTS="0.5")["ranks"]["own"]
    assert len({one["rank"] for one in own["slow"]}) >= 3 and own["pattern"] != "chronic", own["slow"]
