"""A flood of phases other than steps: thinned as steps are, the rest summed up; the account stays exact."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import warm
from exported import written
from opentelemetry.sdk.metrics.export import ExponentialHistogram
from recorded import Recording, attributes, identity, orphans, parent
from waits import until

import otel_goodput as goodput

MS = 1_000_000
FIRST = 100


def left_out(recording: Recording, name: str) -> list[dict[str, Any]]:
    summaries = [attributes(span) for span in recording.spans("phases")]
    return [summary for summary in summaries if summary["goodput.phases.name"] == name]


def count(recording: Recording, name: str) -> int:
    return sum(summary["goodput.phases.count"] for summary in left_out(recording, name))


def measured(recording: Recording, name: str) -> int:
    """How many phases of that name the metric has."""
    duration = recording.metrics()["goodput.phase.duration"].data
    assert isinstance(duration, ExponentialHistogram)
    points = duration.data_points
    return sum(point.count for point in points if (point.attributes or {}).get("goodput.custom.name") == name)


@pytest.mark.parametrize("aside", [False, True])
def test_a_flood_of_phases(aside: bool, recording: Recording, base: int) -> None:
    flood = 12_000
    blocking = False if aside else None
    with goodput.job(start_time=base, end_time=base + flood * MS):
        for number in range(flood):
            times = {"start_time": base + number * MS, "end_time": base + (number + 1) * MS}
            with goodput.custom("bit", blocking=blocking, **times):
                pass
    assert recording.report()["seconds"].get("custom", {}).get("bit", 0) == (0 if aside else 12.0)
    until(lambda: measured(recording, "bit") >= flood)  # the keeper may hold some just now
    assert measured(recording, "bit") == flood
    goodput.shutdown()
    exported = recording.spans("bit")
    assert len(exported) == FIRST + 90 + 90 + 2, "a hundred, one in ten, one in a hundred, one in a thousand"
    summaries = left_out(recording, "bit")
    assert count(recording, "bit") == flood - len(exported)
    assert all(summary["goodput.phases.count"] <= 1000 for summary in summaries)
    assert sum(summary["goodput.phases.duration.sum"] for summary in summaries) == (flood - len(exported)) * MS
    assert {span.name for span in recording.spans()} == {"job", "bit", "phases"}
    job = identity(recording.span("job"))
    assert {parent(span) for span in recording.spans("phases")} == {job}
    assert not orphans(recording.exported())
    assert len({identity(span) for span in recording.spans()}) == len(recording.spans())


def test_names_without_end_are_a_flood_too(recording: Recording) -> None:
    with goodput.job():
        for number in range(1500):
            with goodput.custom(f"eval {number}"):
                pass
    goodput.shutdown()
    exported = [span for span in recording.spans() if attributes(span).get("goodput.phase") == "custom"]
    assert len(exported) < 2 * FIRST + 200
    assert count(recording, "custom") == 1500 - len(exported)


def test_what_fails_or_is_slow_in_a_flood(recording: Recording, base: int) -> None:
    with goodput.job(start_time=base, end_time=base + 5000 * MS):
        for number in range(555):
            length = 50 * MS if number == 444 else MS
            start = base + number * 2 * MS
            try:
                with goodput.custom("bit", start_time=start, end_time=start + length):
                    if number == 333:
                        raise TimeoutError("no answer")
            except TimeoutError:
                pass
    (failed,) = (span for span in recording.spans("bit") if not span.status.is_unset)
    assert attributes(failed)["error.type"] == "TimeoutError" and failed.events
    assert failed.start_time == base + 333 * 2 * MS
    assert max((span.end_time or 0) - (span.start_time or 0) for span in recording.spans("bit")) == 50 * MS
    for span in recording.spans():
        assert span.context is not None and span.context.trace_flags.sampled


def test_a_flood_of_failures_is_one_too(recording: Recording) -> None:
    with goodput.job():
        for _ in range(1500):
            with pytest.raises(ValueError, match="x"), goodput.custom("try"):
                raise ValueError("x")
    assert len(recording.spans("try")) < 2 * (FIRST + 90 + 10)


def test_steps_that_hold_a_flood_are_thinned_along(recording: Recording) -> None:
    with goodput.job():
        for number in range(2000):
            with goodput.step(number), goodput.custom("eval"):
                pass
    assert len(recording.spans("step")) < 100 + 20 + 200 + 20  # slow ones among them
    assert not orphans(recording.exported())


def test_what_is_exported_in_one_of_a_flood_keeps_it(recording: Recording) -> None:
    with goodput.job():
        for number in range(450):
            with goodput.custom("chunk"):
                if number == 333:
                    with goodput.custom("between"), goodput.checkpoint_save(number):
                        pass
                with goodput.step(number):
                    pass
                if number == 337:
                    with pytest.raises(ValueError, match="x"), goodput.step(number):
                        raise ValueError("x")
    goodput.shutdown()
    (save,), (between,) = recording.spans("checkpoint_save"), recording.spans("between")
    chunks = {identity(span) for span in recording.spans("chunk")}
    assert parent(save) == identity(between) and parent(between) in chunks
    assert not orphans(recording.exported())
    assert len(chunks) < 200
    assert count(recording, "chunk") == 450 - len(chunks)


def loads() -> None:
    with goodput.data_loading():
        pass


def loads_in_a_step() -> None:
    with goodput.data_loading(), goodput.custom("decode"):
        pass


def part() -> None:
    with goodput.part("layer"):
        pass


@pytest.mark.parametrize(
    ("phase", "name", "around"),
    [
        (loads, "data_loading", goodput.job),
        (loads_in_a_step, "data_loading", lambda: goodput.step(0)),
        (part, "layer", lambda: goodput.step(0)),
    ],
)
def test_a_flood_of_loads_and_parts(
    phase: Callable[[], None], name: str, around: Callable[[], AbstractContextManager[Any]], recording: Recording
) -> None:
    with goodput.job(), around():
        for _ in range(2000):
            phase()
    goodput.shutdown()
    exported = recording.spans(name)
    assert FIRST <= len(exported) < 3 * FIRST
    assert count(recording, name) == 2000 - len(exported)
    assert not orphans(recording.exported())


def test_a_flood_of_saves_costs_no_summary_of_steps_each(recording: Recording) -> None:
    with goodput.job():
        for number in range(1500):
            with goodput.step(number):
                pass
            with goodput.checkpoint_save(number):
                pass
    report = recording.report()
    goodput.shutdown()
    assert report["steps"]["executed"] == 1500 and report["at_risk_s"] == pytest.approx(0, abs=0.5)
    assert len(recording.spans("checkpoint_save")) < 350
    assert len(recording.spans("steps")) < 350
    assert not orphans(recording.exported())


KILLED = """
import os, signal, sys
import otel_goodput as goodput
goodput.configure("job", run_id="run", directory=sys.argv[1], exporters="file", integrations="none")
with goodput.job():
    for number in range(3500):
        with goodput.custom("bit"):
            pass
    with goodput.custom("last"):
        for _ in range(150):
            goodput.custom("open").__enter__()
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_flood_of_a_dead_attempt_is_exported_by_the_next_one(tmp_path: Path) -> None:
    environment = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert warm.run([*command, "kill"], env=environment, check=False).returncode == -signal.SIGKILL
    before = {span["spanId"] for span in written(tmp_path)}
    warm.run([*command, "end"], env=environment, check=True)
    attempts: dict[str, list[dict[str, Any]]] = {}
    for span in written(tmp_path):
        attempts.setdefault(span["traceId"], []).append(span)
    dead, _ = attempts.values()
    sums = [span for span in dead if span["name"] == "phases"]
    counted = 0
    for span in sums:
        values = {attribute["key"]: attribute["value"] for attribute in span["attributes"]}
        if values["goodput.phases.name"]["stringValue"] == "bit":
            counted += int(values["goodput.phases.count"]["intValue"])
    bits = [span for span in dead if span["name"] == "bit"]
    assert counted + len(bits) == 3500
    assert len({span["spanId"] for span in dead}) == len(dead), "nothing twice"
    assert before < {span["spanId"] for span in dead} or not before
    assert {span["name"] for span in dead} >= {"job", "last", "open"}


def test_the_sums_of_the_journal_are_those_of_the_process(recording: Recording) -> None:
    """Identities follow from what is summed up, so that nothing is exported under two of them."""
    from otel_goodput._journal.rundir import RunDirectory
    from otel_goodput._timeline.recovery import restore

    with goodput.job():
        for number in range(2500):
            with goodput.custom("a"), goodput.custom(f"{number % 3}"):
                pass
    live = {
        (span.start_time, attributes(span)["goodput.phases.name"], attributes(span)["goodput.phases.duration.sum"])
        for span in (goodput.shutdown(), recording.spans("phases"))[1]
    }
    assert live
    index = restore(RunDirectory(recording.folder), 0).index.successor(1)
    floods = index.unexported[-1].phase_summaries
    assert {(each.start, name, each.total) for name, each in floods} == live
