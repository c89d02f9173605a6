"""A report's JSON has the fields that its types say, and values of those types."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from accounting.strategies import Rows, chaos, runs, spread
from hypothesis import given

from otel_goodput import Recorder, open_run
from otel_goodput._journal.records import HEADER_SIZE, SIZE
from otel_goodput.reports.fields import ReportFields
from otel_goodput.reports.report import Report, about
from otel_goodput.reports.timeline import Timeline, account


def wrong(value: Any, kind: Any, where: str = "report") -> list[str]:
    """What is not as `kind` says."""
    origin = get_origin(kind)
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        hints = get_type_hints(kind)
        problems = [f"{where}.{name} is missing" for name in kind.__required_keys__ - value.keys()]
        problems += [f"{where}.{name} is not told of" for name in value.keys() - hints.keys()]
        return problems + [
            text for name in value.keys() & hints.keys() for text in wrong(value[name], hints[name], f"{where}.{name}")
        ]
    if origin in (Union, types.UnionType):
        each = [wrong(value, one, where) for one in get_args(kind)]
        return [] if [] in each else each[0]
    if origin is list and isinstance(value, list):
        return [text for one in value for text in wrong(one, get_args(kind)[0], f"{where}[]")]
    if origin is dict and isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return [text for name in value for text in wrong(value[name], get_args(kind)[1], f"{where}.{name}")]
    if kind is float:
        ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        ok = type(value) is kind
    return [] if ok else [f"{where}: {value!r} is no {kind}"]


def test_the_check_finds_what_is_wrong() -> None:
    assert wrong({"executed": 1, "kept": "x"}, get_type_hints(ReportFields)["steps"]) == [
        "report.lost is missing",
        "report.kept: 'x' is no <class 'int'>",
    ]


@given(runs().map(spread) | chaos().map(spread))
def test_any_account(rows: Rows) -> None:
    timeline = Timeline(rows)
    events = list(timeline.events())
    totals = account(iter(events), at=events[-1].time if events else 0, windows=[(0, 10**9)], exclusions=[(5, 9)])
    assert not wrong(Report(totals, about("run", "job")).to_json(), ReportFields)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run(tmp_path: Path, processes: int) -> None:
    for process in range(processes):
        recorder = Recorder(
            "run", run_id="run", directory=tmp_path, exporters="none", process_index=process, process_count=processes
        )
        with recorder.job():
            for number in range(20):
                with recorder.step(number):
                    pass
            with recorder.custom("eval"):
                pass
            recorder.slice_counts(active=1, available=2, total=2)
        assert not wrong(recorder.report().to_json(), ReportFields)
        recorder.shutdown()
    run = open_run(tmp_path)
    fields = run.report(window=("0s", "1s")).to_json()
    assert not wrong(fields, ReportFields)
    assert ("processes" in fields) == (processes > 1) and fields["step_time"] is not None
    for segment in (run.path / "journal").glob("a0000-p0000-*"):
        data = bytearray(segment.read_bytes())
        data[HEADER_SIZE + 5 * SIZE : HEADER_SIZE + 9 * SIZE] = b"\xff" * (4 * SIZE)
        segment.write_bytes(data)
    (run.path / "journal" / "p0000.snapshot").unlink()
    damaged = run.report().to_json()
    assert not wrong(damaged, ReportFields) and damaged["damage"]
