"""A trace holds so many spans of ours and no more, whatever the number of processes and the length of the run.

Longer than other files: the simulated pod at its beginning is what all its tests count.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import warm
from exported import Spans, written
from opentelemetry.sdk.trace import ReadableSpan
from recorded import Recording, attributes, identity, orphans, parent, trace_of

from otel_goodput import Recorder
from otel_goodput._recording.ids import trace_root_context
from otel_goodput._recording.trace_layout import RESERVED, share, steps_in_a_trace

MS = 1_000_000


@pytest.mark.parametrize("limit", [100, 5_000, 1_000_000])
@pytest.mark.parametrize("count", [1, 2, 64, 313, 314, 2497, 2498, 4_096, 10_000])
def test_the_shares_of_all_fit(count: int, limit: int) -> None:
    """Each process may say something; only if there are more than the trace has room for is that too much."""
    leads, follows = (share(limit, count, leads=leads) for leads in (True, False))
    assert leads >= (limit - RESERVED) // 2
    if count > 1:
        assert follows >= 1
        assert follows == 1 or leads + follows * (count - 1) <= limit - RESERVED


def test_shares_are_a_function_of_the_process_count() -> None:
    assert share(5_000, 1) == 4_992
    assert [share(5_000, 64, leads=leads) for leads in (True, False)] == [2_535, 39]
    assert share(5_000, 4_096) == share(5_000, 2_497) == 2_496
    assert [share(5_000, count, leads=False) for count in (2_497, 2_498, 100_000)] == [1, 1, 1]


def test_steps_in_a_trace() -> None:
    assert steps_in_a_trace(5_000, 100) == 20_000
    assert steps_in_a_trace(5_000, 1) == 200
    assert steps_in_a_trace(100, 100) == 100
    assert steps_in_a_trace(0, 100) > 10**15


def run_rank(
    folder: Path, index: int, count: int, work: Callable[[Recorder], None], **options: Any
) -> list[ReadableSpan]:
    """What one process of a run exports; each is on a host of its own."""
    exporter = Spans()
    with Recorder(
        "fleet", run_id="run", directory=folder / f"host {index}", exporters="none", integrations="none",
        process_index=index, process_count=count, span_processors=[exporter.processor], **options,
    ) as recorder:  # fmt: skip
        work(recorder)
    return exporter.all()


def train(steps: int, base: int, *, first: int = 0, fails: int = 0, slow: int = 0) -> Callable[[Recorder], None]:
    """Some of the steps fail, or are slow; each holds a load and a part, every tenth an evaluation and a save."""

    def work(recorder: Recorder) -> None:
        with recorder.job(start_time=base, end_time=base + (first + steps) * 20 * MS):
            for number in range(first, first + steps):
                start = base + number * 20 * MS
                length = 15 * MS if slow and number % slow == 0 else 5 * MS
                with (
                    suppress(ArithmeticError),
                    recorder.step(number, start_time=start, end_time=start + length),
                    recorder.data_loading(start_time=start, end_time=start + MS),
                ):
                    if fails and number % fails == 0:
                        raise ArithmeticError("nan")
                if number % 10 == 9:
                    times = {"start_time": start + 15 * MS, "end_time": start + 16 * MS}
                    with recorder.custom("eval", **times):
                        pass
                    with recorder.checkpoint_save(number, **times):
                        pass

    return work


def by_trace(spans: Iterable[ReadableSpan]) -> Counter[int]:
    return Counter(trace_of(span) for span in spans)


def check_whole(spans: list[ReadableSpan], limit: int) -> None:
    """No trace is too large, no span without its parent or there twice, one root in each."""
    traces = by_trace(spans)
    assert max(traces.values()) < limit, traces
    places = [(trace_of(span), identity(span)) for span in spans]
    assert len(set(places)) == len(places)
    assert not orphans(spans)
    assert Counter(trace_of(span) for span in spans if span.parent is None) == dict.fromkeys(traces, 1)


def check_linked(spans: list[ReadableSpan]) -> None:
    """From each trace to the next one and back."""
    links = {(trace_of(span), link.context.trace_id) for span in spans for link in span.links}
    roots = [span for span in spans if span.name in ("attempt", "continuation")]
    roots.sort(key=lambda span: attributes(span).get("goodput.trace.number", 0))
    assert roots[0].name == "attempt" and all(root.name == "continuation" for root in roots[1:])
    for before, after in pairwise(roots):
        there, here = trace_of(before), trace_of(after)
        assert {(there, here), (here, there)} <= links
    known = {(trace_of(span), identity(span)) for span in spans}
    assert all((link.context.trace_id, link.context.span_id) in known for span in spans for link in span.links)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 6, 40, 140])
@pytest.mark.parametrize("limit", [300, pytest.param(1000, marks=pytest.mark.release)])
def test_no_trace_is_too_large(
    count: int, limit: int, tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes fail and are slow now and then, more often than there is room for."""
    monkeypatch.setenv("OTEL_GOODPUT_TRACE_SPANS", str(limit))
    steps = steps_in_a_trace(limit, 100)
    spans: list[ReadableSpan] = []
    for index in {0, 1, count // 2, count - 1}:
        if index < count:
            work = train(2 * steps + steps // 2, base, fails=7, slow=11)
            mine = run_rank(tmp_path, index, count, work)
            for number, exported in Counter(attributes(span).get("goodput.trace.number", 0) for span in mine).items():
                assert exported <= share(limit, count, leads=not index) + (RESERVED if not index else 0), number
            spans += mine
    check_whole(spans, limit)
    check_linked(spans)
    assert len(by_trace(spans)) == 3
    numbers = {trace_of(span): attributes(span).get("goodput.trace.number", 0) for span in spans}
    for span in spans:
        if "goodput.step" in attributes(span) and span.name == "step":
            assert numbers[trace_of(span)] == attributes(span)["goodput.step"] // steps


def test_the_leader_in_detail_of_others_what_stands_out(
    tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calm(number: int) -> Callable[[Recorder], None]:
        return train(1500, base, fails=0 if not number else 1499, slow=800)

    leader, other = (run_rank(tmp_path, index, 64, calm(index)) for index in (0, 17))
    steps = [attributes(span)["goodput.step"] for span in leader if span.name == "step"]
    assert steps[:100] == list(range(100)) and {800, 900} <= set(steps)
    assert sum(span.name == "data_loading" for span in leader) >= 100
    theirs = {attributes(span)["goodput.step"] for span in other if span.name == "step"}
    assert theirs == {0, 800, 1499}, "two that failed and a slow one"
    assert {span.name for span in other} >= {"job", "step", "steps", "eval", "checkpoint_save"}
    summed = sum(attributes(span)["goodput.steps.count"] for span in other if span.name == "steps")
    assert summed == 1500 - 3
    check_whole([*leader, *other], 5000)
    (job,) = (span for span in other if span.name == "job")
    assert parent(job) == next(identity(span) for span in leader if span.parent is None)


def test_a_process_with_next_to_nothing_tells_its_failures(tmp_path: Path, base: int) -> None:
    """It has no job of its own there: they hang on the attempt's root, as do the spans of its user."""

    def work(recorder: Recorder) -> None:
        with recorder.job():
            with recorder.tracer_provider.get_tracer("user").start_as_current_span("mine"):
                pass
            for number in range(3):
                with suppress(ArithmeticError), recorder.step(number), recorder.custom("eval"):
                    if number == 1:
                        raise ArithmeticError("nan")

    leader = run_rank(tmp_path, 0, 1000, train(10, base))
    other = run_rank(tmp_path, 999, 1000, work)
    (root,) = (span for span in leader if span.parent is None)
    assert sorted(span.name for span in other) == ["eval", "mine", "step"]
    assert {parent(span) for span in other} == {identity(root)}
    check_whole([*leader, *other], 5000)


def fail_always(first: int, last: int, spoilt: int) -> Callable[[Recorder], None]:
    """All that it does fails, in so many traces; the job too."""

    def work(recorder: Recorder) -> None:
        with suppress(ArithmeticError), recorder.job():
            for number in range(first, last, spoilt):
                with suppress(ArithmeticError), recorder.step(number), recorder.custom("eval"):
                    raise ArithmeticError("nan")
            raise ArithmeticError("nan")

    return work


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "count"),
    [
        (500, 247),
        pytest.param(5_000, 2_497, marks=pytest.mark.release),
        pytest.param(5_000, 10_000, marks=pytest.mark.release),
    ],
)
def test_of_ever_so_many_each_tells_its_first_failure(
    limit: int, count: int, tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_TRACE_SPANS", str(limit))
    volume = steps_in_a_trace(limit, 100)
    leader = run_rank(tmp_path, 0, count, train(2 * volume + 1, base))
    ranks = sorted({1, count // 2, count - 1})
    followers = {rank: run_rank(tmp_path, rank, count, fail_always(0, 3 * volume, volume)) for rank in ranks}
    for spans in followers.values():
        places = Counter(trace_of(span) for span in spans)
        assert len(spans) == 3 and set(places.values()) == {1}, "one in each trace, which is its share"
        assert all(not span.status.is_ok for span in spans)
        roots = {trace_of(root): root for root in leader if root.name in ("attempt", "continuation")}
        mine = [roots[trace_of(span)] for span in spans]
        assert [parent(span) for span in spans] == [identity(root) for root in mine]
        assert [attributes(root).get("goodput.trace.number", 0) for root in mine] == [0, 1, 2]
    check_whole([*leader, *(span for spans in followers.values() for span in spans)], limit)
    links = {(trace_of(span), link.context.trace_id) for span in leader for link in span.links}
    roots = [root for root in leader if root.name in ("attempt", "continuation")]
    assert len(roots) == 3
    first = next(trace_of(root) for root in roots if root.name == "attempt")
    assert all((trace_of(root), first) in links for root in roots if root.name == "continuation")
    reached, edge = {first}, {first}
    while edge:
        edge = {there for here, there in links if here in edge and (there, here) in links} - reached
        reached |= edge
    assert reached == {trace_of(root) for root in roots}, "from the attempt's root to each, and back"


def test_numbers_that_go_back(tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch counts from 0: what has no room in the traces of the first one is left out of them."""
    monkeypatch.setenv("OTEL_GOODPUT_TRACE_SPANS", "200")

    def work(recorder: Recorder) -> None:
        with recorder.job():
            for _ in range(5):
                for number in range(300):
                    with recorder.step(number), recorder.part("forward"):
                        pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_GOODPUT_STEP_SAMPLING", "1")
        check_whole(run_rank(tmp_path, 0, 1, work), 200)


def test_no_bound(tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_TRACE_SPANS", "0")
    spans = run_rank(tmp_path, 0, 1, train(3000, base), step_sampling=1)
    assert len(by_trace(spans)) == 1 and sum(span.name == "step" for span in spans) == 3000


@pytest.mark.parametrize("traces", ["shared", "own"])
def test_phases_around_steps_of_several_traces(
    traces: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: int
) -> None:
    """Spans around a whole loop stay where they began; what follows does not hang on them across traces."""
    monkeypatch.setenv("OTEL_GOODPUT_TRACE_SPANS", "200")
    steps = steps_in_a_trace(200, 100)

    def work(recorder: Recorder) -> None:
        user = recorder.tracer_provider.get_tracer("user")
        with recorder.job(), user.start_as_current_span("epoch"), recorder.custom("stage"):
            for number, _ in recorder.steps(range(3 * steps - 5)):
                if number % 50 == 0:
                    with recorder.custom("eval"), user.start_as_current_span("batch"):
                        pass

    spans = run_rank(tmp_path, 0, 1, work, step_traces=traces)
    assert not orphans(spans)
    sizes = by_trace(span for span in spans if span.name != "batch")
    assert max(sizes.values()) < 200
    continuations = [span for span in spans if span.name == "continuation"]
    assert len(continuations) == (2 if traces == "shared" else len(continuations))
    for span in spans:
        if span.name == "step":
            number = attributes(span)["goodput.step"]
            assert (span.parent is None) == (traces == "own")
            assert attributes(span).get("goodput.trace.number", 0) == (number // steps if traces == "shared" else 0)


def test_spans_of_ones_own_are_left_alone_with_a_warning(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = recording.recorder.tracer_provider.get_tracer("user")
    with caplog.at_level(logging.WARNING, "otel_goodput"), recording.recorder.job():
        for _ in range(6000):
            tracer.start_span("mine").end()
    assert len(recording.spans("mine")) == 6000
    (message,) = [record.getMessage() for record in caplog.records if "spans of your own" in record.getMessage()]
    assert "10,000" in message
    assert any("spans of your own" in note["text"] for note in recording.report()["warnings"])


KILLED = """
import os, signal, sys
import otel_goodput as goodput
folder, ending, index, count, sent = sys.argv[1:]
goodput.configure(
    "job", run_id="run", directory=folder, exporters="file", integrations="none",
    process_index=int(index), process_count=int(count),
)
with goodput.job():
    for number, _ in goodput.steps(range(260)):
        if number % 20 == 0:
            with goodput.custom("eval"):
                pass
        if number == 255 and ending == "kill":
            with goodput.custom("last"):
                if sent == "all before":  # else what is under way may come twice
                    goodput.flush()
                os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_and_resumed(folder: Path, index: int, count: int, sent: str) -> list[dict[str, Any]]:
    """What is exported of a process that is killed in step 255 and begins again; a trace holds 200 spans."""
    environment = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "60000", "OTEL_GOODPUT_TRACE_SPANS": "200"}
    command = [sys.executable, "-c", KILLED, str(folder)]
    killed = warm.run([*command, "kill", str(index), str(count), sent], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    warm.run([*command, "end", str(index), str(count), sent], env=environment, check=True)
    return written(folder)


@pytest.mark.parametrize("sent", ["nothing before", "all before"])
def test_a_dead_attempt_of_many_processes(sent: str, tmp_path: Path) -> None:
    """The last process's unexported spans are under the root that the leader writes."""
    mine = [span for span in killed_and_resumed(tmp_path / "last", 199, 200, sent) if span["name"] == "last"]
    root = trace_root_context("run", 0, 1)
    assert [(span["traceId"], span["parentSpanId"]) for span in mine] == [
        (f"{root.trace_id:032x}", f"{root.span_id:016x}")
    ]
    leader = killed_and_resumed(tmp_path / "leader", 0, 200, sent)
    roots = Counter((span["traceId"], span["spanId"]) for span in leader if not span.get("parentSpanId"))
    theirs = [trace_root_context("run", 0, number) for number in range(2)]
    assert all(roots[f"{each.trace_id:032x}", f"{each.span_id:016x}"] == 1 for each in theirs)
    assert max(roots.values()) == 1


@pytest.mark.parametrize("sent", ["nothing before", "all before"])
@pytest.mark.parametrize("count", [1, 200])
def test_what_a_dead_attempt_owes_is_where_it_belongs(count: int, sent: str, tmp_path: Path) -> None:
    spans = killed_and_resumed(tmp_path, count - 1, count, sent)
    places = [(span["traceId"], span["spanId"]) for span in spans]
    assert len(set(places)) == len(places), "nothing twice"
    traces = Counter(span["traceId"] for span in spans)
    assert max(traces.values()) < (200 if count == 1 else 4)
    if count > 1:
        return
    assert len(traces) == 2 * 2 and all(
        (span["traceId"], span["parentSpanId"]) in places for span in spans if span.get("parentSpanId")
    )
    (last,) = (span for span in spans if span["name"] == "last")
    dead = [span for span in spans if span["traceId"] == last["traceId"]]
    assert {span["name"] for span in dead} >= {"continuation", "last", "step", "steps"}
    assert [span["name"] for span in dead if not span.get("parentSpanId")] == ["continuation"]
