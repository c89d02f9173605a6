"""What speaks for the cause of an incident: the input queue, settings that were changed, what the host announced."""

from __future__ import annotations

import itertools
import queue
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from disruption.metadata_server import MAINTENANCE, MetadataServer
from ports import reserved_port
from recorded import Record
from stacked import ALL_REDUCE, LOAD, Ranks
from waits import until

import otel_goodput as goodput
from otel_goodput import testing
from otel_goodput._accounting.incidents import STEP, Incident, Source
from otel_goodput._incidents.causes import Causes
from otel_goodput._incidents.evidence import EVIDENCE_REQUEST, Announced, Circumstance, Evidence
from otel_goodput._incidents.inputs import InputQueue
from otel_goodput._journal.requests import Inbox
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.ready_batches import seen_depth
from otel_goodput.semconv import Category, IncidentKind

NS = 10**9
SLOW = Incident(1, IncidentKind.SLOWDOWN, Source(Category.DATA_LOADING), 1000 * NS, 1010 * NS)


def train(run: testing.Recording, batches: Iterator[Any], count: int, load: float, seconds: float = 1.0) -> None:
    for batch in itertools.islice(batches, count):
        with goodput.step(batch) as step:
            step.set_attribute("batch_size", run.sizes(batch))  # type: ignore[attr-defined]
            step.set_attribute("loss", 1 / (batch + 1))
            run.advance(seconds)
            run.advance(load)
        run.recorder._keeper.tick()


# --- the input queue --------------------------------------------------------------------------------------------------


def loaded(ready: Callable[[int], int], **options: Any) -> tuple[str, ...]:
    """The evidence of a job whose loads take longer after 100 steps, with so many batches ready in each step."""
    with testing.run(**options) as run, goodput.job():
        waiting: queue.Queue[int] = queue.Queue()

        def batches() -> Iterator[int]:
            for number in range(150):
                run.advance(0.5 if number >= 100 else 0.1)
                yield number

        for number in goodput.loading(batches(), queue_depth=waiting):
            with goodput.step(number):
                waiting.queue.clear()
                waiting.queue.extend(range(ready(number)))
                run.advance(1.0)
                run.recorder._keeper.tick()
        (one,) = run.report().to_json()["incidents"]
        assert (one["kind"], one["cause"]) == ("slowdown", "data_loading")
        return tuple(one["evidence"])


def test_an_empty_input_queue_is_evidence_and_a_full_one_is_evidence_against() -> None:
    (text,) = loaded(lambda number: 0 if number >= 100 else 3)
    match = re.fullmatch(r"the input queue was empty in (\d+) of (\d+) looks", text)
    assert match is not None and int(match[2]) >= 8 and int(match[1]) >= 0.9 * int(match[2])
    (text,) = loaded(lambda number: 3)
    assert re.fullmatch(
        r"the input queue was empty in 0 of \d+ looks: batches were ready, so what takes the time is to take them", text
    )


def test_looks_from_before_it_was_noticed_do_not_speak_against_it() -> None:
    """When it began is an estimate: some of them may be of better times."""
    now, ready = 0, 3
    inputs = InputQueue(lambda: ready, lambda: now * NS)

    def look(moment: int, batches: int) -> list[str]:
        nonlocal now, ready
        now, ready, inputs._due = moment, batches, 0.0
        inputs.look()
        return inputs.sentences(Circumstance(SLOW.kind, Category.DATA_LOADING, 0, 40 * NS))

    for moment in range(35):
        assert not look(moment, 3)
    for moment in range(35, 38):
        assert not look(moment, 0)
    assert look(38, 0) == ["the input queue was empty in 4 of 8 looks"]
    for moment in range(39, 48):
        assert look(moment, 0)
    assert look(48, 0) == ["the input queue was empty in 8 of 8 looks"]


def test_nothing_is_said_of_a_queue_that_nobody_sees_or_of_other_incidents() -> None:
    inputs = InputQueue(lambda: None, lambda: 1020 * NS)
    for _ in range(20):
        inputs.look()
    assert inputs.sentences(Circumstance(SLOW.kind, Category.DATA_LOADING, 1000 * NS, 1010 * NS)) == []
    seen = InputQueue(lambda: 0, lambda: 1020 * NS)
    until(lambda: seen.look() or len(seen._looks) >= 8, 5)
    assert seen.sentences(Circumstance(SLOW.kind, Category.DATA_LOADING, 1000 * NS, 1010 * NS))
    assert seen.sentences(Circumstance(SLOW.kind, STEP, 1000 * NS, 1010 * NS)) == []


def test_a_function_of_the_users_that_takes_long_is_seldom_called() -> None:
    calls = list[int]()

    def slow() -> int:
        calls.append(1)
        time.sleep(0.02)
        return 0

    inputs = InputQueue(slow, time.time_ns)
    for _ in range(100):
        inputs.look()
    assert len(calls) == 1


def of_torch(**members: Any) -> Any:
    """An iterator as PyTorch's, whose workers put batches into a queue; `make everyday` takes the real one."""
    module = "torch.utils.data.dataloader"
    kind: Any = type("_MultiProcessingDataLoaderIter", (), {"__module__": module})
    one = kind()
    vars(one).update({"_rcvd_idx": 4, "_send_idx": 8, "_task_info": {4: (0,)}, "_data_queue": queue.Queue(), **members})
    return one


def test_the_queue_of_pytorchs_workers_is_seen_without_a_lock() -> None:
    iterator = of_torch()
    depth = seen_depth(iterator)
    assert depth is not None and depth() == 0
    iterator._data_queue.put("batch")
    with iterator._data_queue.mutex:
        assert depth() == 1
    iterator._task_info = {4: (0, "came before its turn"), 5: (1, "not the next one")}
    assert depth() == 2
    iterator._rcvd_idx = 8  # its workers may be kept for the next pass
    assert depth() is None
    iterator._data_queue = None
    assert depth() is None
    del iterator
    assert depth() is None, "the iterator is kept"
    assert seen_depth(iter([1])) is None and seen_depth(SimpleNamespace()) is None


def test_the_buffer_of_grain_is_seen() -> None:
    done: Future[int] = Future()
    done.set_result(1)
    kind: Any = type("PrefetchDatasetIterator", (), {"__module__": "grain._src.python.dataset"})
    inner, outer = kind(), kind()
    outer._parents = (inner,)
    inner._buffer, inner._next_returned_index, inner._dataset_length = deque([done, done, Future(), done]), 3, 9
    depth = seen_depth(outer)
    assert depth is not None and depth() == 2
    inner._next_returned_index = 9
    assert depth() is None


def test_the_loader_that_is_iterated_says_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = of_torch()
    type(iterator).__iter__ = lambda self: self
    type(iterator).__next__ = lambda self: 1
    with testing.run() as run, goodput.job():
        assert "goodput.loading.queue_depth" not in run.metrics()
        iterator._data_queue.put("batch")
        for _, _ in itertools.islice(goodput.steps(iterator), 2):
            (point,) = run.metrics()["goodput.loading.queue_depth"].data.data_points  # type: ignore[union-attr]
            assert point.value == 1  # type: ignore[union-attr]
        for _ in goodput.loading([1], queue_depth=lambda: 7):  # what the user says counts
            assert run.recorder._line.hooks.queue_depth() == 7


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_setting_that_was_changed_shortly_before_is_evidence() -> None:
    with testing.run() as run, goodput.job() as job:
        job.set_attribute("optimizer", "adam")
        run.sizes = lambda number: 32 if number < 120 else 64  # type: ignore[attr-defined]
        numbers = iter(range(1000))
        train(run, numbers, 120, 0.0)
        job.set_attribute("optimizer", "lion")
        train(run, numbers, 50, 0.5)
        (one,) = run.report().to_json()["incidents"]
        evidence = [text.partition(",")[0] for text in one["evidence"]]
        assert evidence == [
            "optimizer changed from adam to lion at step 120",
            "batch_size changed from 32 to 64 at step 120",
        ]


def test_secrets_are_hidden_and_changes_long_ago_are_none() -> None:
    with testing.run() as run, goodput.job() as job:
        run.sizes = lambda number: 32 if number < 40 else 64  # type: ignore[attr-defined]
        job.set_attribute("api_key", "a1")
        numbers = iter(range(1000))
        train(run, numbers, 120, 0.0)
        job.set_attribute("api_key", "b2")
        train(run, numbers, 50, 0.5)
        (one,) = run.report().to_json()["incidents"]
        (text,) = one["evidence"]
        assert text.startswith("api_key changed from ") and "a1" not in text and "b2" not in text


# --- what the host announced ------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with reserved_port() as port:
        made = MetadataServer(port)
        yield made
        made.vanish()


def test_a_maintenance_notice_is_evidence(
    server: MetadataServer, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    recording = record(integrations="maintenance", incidents="0.1s")
    recorder = recording.recorder
    with goodput.job():
        until(lambda: server.count(MAINTENANCE) > 1, 10)
        for number in range(20):
            with goodput.step(number):
                time.sleep(0.001)
        server.set(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
        with goodput.step(20):

            def evidence() -> list[str]:
                return [text for one in recorder.report().to_json()["incidents"] for text in one["evidence"]]

            until(evidence, 20)
            (text,) = evidence()
    assert re.fullmatch(
        r"host maintenance was announced at 2\d{3}-.* UTC \(instance/maintenance-event MIGRATE_ON_HOST_MAINTENANCE\)",
        text,
    )


def test_notices_that_were_withdrawn_or_are_no_matter_of_the_host() -> None:
    announced, source = Announced(), {"goodput.notice.source": "instance/maintenance-event"}
    of = Circumstance(IncidentKind.SLOWDOWN, STEP, 1000 * NS, 1010 * NS)
    announced.take("signal", 990 * NS, {"goodput.notice.source": "SIGTERM"})
    assert announced.sentences(of) == []
    announced.take("maintenance", 100 * NS, dict(source))
    announced.withdraw(200 * NS, dict(source))
    assert announced.sentences(of) == [], "it was over long before"
    announced.take("maintenance", 900 * NS, dict(source))
    announced.withdraw(950 * NS, {"goodput.notice.source": "instance/preempted"})
    announced.withdraw(990 * NS, dict(source))
    (text,) = announced.sentences(of)
    assert "was over at 1970-01-01 00:16:30 UTC" in text


# --- NCCL -------------------------------------------------------------------------------------------------------------

STATUS = """OK
Communicators... (0.00s)
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  1 rank is behind:   rank 3
"""


def test_what_nccl_says_is_evidence_of_a_hang_and_delays_no_stacks(tmp_path: Any) -> None:
    ranks, answering = Ranks(tmp_path), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as stream:
                stream.readline()
                answering.wait(5)
                stream.write(b"SERVER PROTOCOL 2\n")
                stream.flush()
                stream.readline()
                stream.write(STATUS.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for rank in range(4):
            about = {"ras": f"localhost:{server.getsockname()[1]}"}
            ranks.add(rank, LOAD if rank == 3 else ALL_REDUCE, about=about)
        profiler: Any = None
        causes = Causes(lambda: (ranks.run, 0), 0, 4, profiler)
        hang = Incident(1, IncidentKind.HANG, Source(STEP), ranks.now - 31 * NS, ranks.now)
        until(lambda: causes.explain(hang).line == "dataset.py:41", 10)
        verdict = "3 ranks wait in all_reduce at train.py:88; rank 3 is in read_shard at dataset.py:41"
        assert causes.explain(hang).evidence == (verdict,)
        answering.set()
        until(lambda: len(causes.explain(hang).evidence) > 1, 10)
        thread.join(10)
    assert causes.explain(hang).evidence == (
        verdict,
        "NCCL: #0-0 (27a079b828ff1a75) MISMATCH",
        "NCCL: 1 rank is behind: rank 3",
    )


# --- of other ranks ---------------------------------------------------------------------------------------------------


class Says:
    def __init__(self, *texts: str) -> None:
        self.texts, self.seen = texts, list[Circumstance]()

    def sentences(self, of: Circumstance) -> tuple[str, ...]:
        self.seen.append(of)
        return self.texts


def test_the_rank_that_causes_an_incident_says_what_it_knows(run_folder: RunDirectory) -> None:
    leader, rank = Says("of the leader"), Says("the input queue was empty in 8 of 8 looks", "\x1b[2J")
    place = lambda: (run_folder, 0)  # noqa: E731
    now = 1060 * NS
    watching = Evidence(place, 0, 4, lambda: now, (leader,))
    knowing = Evidence(place, 3, 4, lambda: now + 7 * NS, (rank,))  # its clock is ahead
    inbox = Inbox(place, 3, time.time_ns)
    inbox.on(EVIDENCE_REQUEST, knowing.answer)
    slow = SLOW._replace(source=Source(Category.DATA_LOADING, "", 3))
    assert watching.explain(slow).evidence == ()
    inbox.look()
    (of,) = rank.seen
    assert (of.kind, of.category) == (IncidentKind.SLOWDOWN, Category.DATA_LOADING)
    assert (of.began, of.opened) == (1007 * NS, 1017 * NS)
    explained = watching.explain(slow)
    assert explained.evidence == ("rank 3: the input queue was empty in 8 of 8 looks", "rank 3: ?[2J")
    assert watching.explain(explained) == explained
    assert watching.explain(SLOW).evidence == ("rank 0: of the leader",)
    assert watching.explain(slow._replace(ended=1)) == slow._replace(ended=1) and len(rank.seen) == 1


@pytest.fixture
def run_folder(tmp_path: Any) -> RunDirectory:
    folder = RunDirectory(tmp_path / "run")
    folder.create({})
    return folder
