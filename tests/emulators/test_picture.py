"""What arrived, as people see it."""

from __future__ import annotations

from typing import Any

from google.cloud.trace_v2 import Span
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from emulators.examples import NOW, SECOND, TRACE, at, distribution, series, span
from emulators.picture import table, tree
from emulators.records import Point, SeriesKey
from emulators.series_case import value_of

JOB = 1


def phase(number: int, name: str, start: float, end: float, parent: int = JOB, step: int | None = None) -> Any:
    fields: dict[str, Any] = {"display_name": {"value": name}, "start_time": at(start), "end_time": at(end)}
    if parent:
        fields["parent_span_id"] = f"{parent:016x}"
    if step is not None:
        fields["attributes"] = {"attribute_map": {"goodput.step": {"int_value": step}}}
    return Span.pb(span(number, **fields))


def run(steps: int) -> list[Any]:
    spans = [phase(2, "accelerator_init", 0.5, 1)]
    for step in range(steps):
        spans.append(phase(10 + 2 * step, "data_loading", 2 + step, 2.25 + step, step=step))
        spans.append(phase(11 + 2 * step, "step", 2.25 + step, 3 + step, step=step))
    return [*spans, phase(JOB, "job", 0, 3 + steps, parent=0)]


def test_spans_are_a_tree_with_times() -> None:
    failed = phase(4, "checkpoint_save", 5, 6)
    failed.status.code = 2
    lost = phase(5, "eval", 7, 7.5, parent=99)
    spans = [*run(2), failed, phase(3, "compile", 2.25, 2.75, parent=11), lost]
    assert tree(reversed(spans)).splitlines() == [
        f"trace {TRACE}: 9 spans, 7.500 s",
        "   +0.000 s    5.000 s  job",
        "   +0.500 s    0.500 s    accelerator_init",
        "   +2.000 s    0.250 s    data_loading 0",
        "   +2.250 s    0.750 s    step 0",
        "   +2.250 s    0.500 s      compile",
        "   +3.000 s    0.250 s    data_loading 1",
        "   +3.250 s    0.750 s    step 1",
        "   +5.000 s    1.000 s    checkpoint_save  ERROR",
        "   +7.000 s    0.500 s  eval",
    ]


def test_long_runs_of_steps_are_folded() -> None:
    lines = tree(run(100)).splitlines()
    assert [line.split(" s  ")[-1].strip() for line in lines[2:]] == [
        "accelerator_init",
        *("data_loading 0", "step 0", "data_loading 1", "step 1"),
        "… 97 more steps",
        *("data_loading 99", "step 99"),
    ]


def test_what_interrupts_a_run_is_seen() -> None:
    spans = [*run(100), phase(500, "compile", 52.5, 52.75, parent=11 + 2 * 50)]
    assert [line.strip() for line in tree(spans).splitlines() if "more" in line or "50" in line.split(" s  ")[-1]] == [
        "… 47 more steps",
        "+52.000 s    0.250 s    data_loading 50",
        "+52.250 s    0.750 s    step 50",
        "… 46 more steps",
    ]


def test_spans_of_otlp_are_a_tree_as_well() -> None:
    times = {"start_time_unix_nano": NOW, "end_time_unix_nano": NOW + SECOND}
    job = OtlpSpan(trace_id=bytes.fromhex(TRACE), span_id=bytes([1] * 8), name="job", **times)
    prep = OtlpSpan(trace_id=job.trace_id, span_id=bytes([2] * 8), parent_span_id=job.span_id, name="prep", **times)
    assert tree([prep, job]).splitlines() == [
        f"trace {TRACE}: 2 spans, 1.000 s",
        "   +0.000 s    1.000 s  job",
        "   +0.000 s    1.000 s    prep",
    ]


def test_series_are_a_table() -> None:
    histogram = value_of(series(distribution([1, 3], [0]))._pb.points[0].value)
    book = {
        SeriesKey("workload.googleapis.com/b", frozenset({("k", "v"), ("none", "")}), "global", frozenset()): [
            Point(None, NOW, 1, NOW),
            Point(None, NOW, 2.5, NOW),
        ],
        SeriesKey("custom.googleapis.com/h", frozenset(), "gce_instance", frozenset({("zone", "z")})): [
            Point(NOW, NOW, histogram, NOW)
        ],
    }
    assert table(book).splitlines() == [
        "gce_instance{zone:z}",
        "  METRIC                   LABELS  POINTS  LAST VALUE",
        "  custom.googleapis.com/h  {}      1       4 values, mean 1",
        "",
        "global{}",
        "  METRIC                     LABELS  POINTS  LAST VALUE",
        "  workload.googleapis.com/b  {k:v}   2       2.5",
    ]


def test_an_empty_picture() -> None:
    assert (tree([]), table({})) == ("no spans", "no series")
