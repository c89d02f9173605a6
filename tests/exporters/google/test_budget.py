"""A pod's spans at Cloud Trace: no trace has more than may be shown, and none of ours more than the budget."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from emulators.google import GoogleEmulator

from otel_goodput import Recorder

MS = 1_000_000
RANKS = 64
SLOW, FAILS, EVALUATES, SAVES = 500, 977, 250, 1000


def train(folder: Path, index: int, steps: int, end: int) -> None:
    """One rank, on a host of its own, of steps that are over by `end` (ns)."""
    base = end - (steps + 1) * 2 * MS
    host = folder / f"host {index}"
    with Recorder(
        "pod", run_id="run", directory=host, exporters="gcp", integrations="none", process_index=index,
        process_count=RANKS,
    ) as recorder, recorder.job(start_time=base, end_time=end):  # fmt: skip
        for number in range(steps):
            start = base + number * 2 * MS
            with recorder.step(
                number, start_time=start, end_time=start + (2 if number % SLOW else 3) * MS // 2
            ) as step:
                if number % EVALUATES == EVALUATES - 1:
                    with recorder.custom("eval", start_time=start, end_time=start + MS):
                        pass
                if number % FAILS == FAILS - 1:
                    step.set_attribute("loss", "nan")
                    step.record_exception(ArithmeticError("nan"))
            if number % SAVES == SAVES - 1:
                with recorder.checkpoint_save(number, start_time=start + MS, end_time=start + 2 * MS):
                    pass
            if number % 20_000 == 19_999:
                recorder.flush()


def check(google: GoogleEmulator, limit: int) -> dict[str, list[Any]]:
    """Nothing is refused, dropped, twice or without its parent; each trace is linked to those before and behind it."""
    assert not google.refusals and not google.notes
    traces: dict[str, list[Any]] = {}
    for span in google.spans:
        traces.setdefault(span.name.split("/")[3], []).append(span)
    assert max(map(len, traces.values())) < limit
    order: dict[int, str] = {}
    known = {(trace, span.span_id) for trace, spans in traces.items() for span in spans}
    links = set()
    for trace, spans in traces.items():
        (root,) = (span for span in spans if not span.parent_span_id)
        number = attribute(root, "goodput.trace.number")
        assert root.display_name.value == ("continuation" if number else "attempt")
        order[number] = trace
        assert all((trace, span.parent_span_id) in known for span in spans if span.parent_span_id)
        linked = [link for span in spans for link in span.links.link]
        assert all((link.trace_id, link.span_id) in known for link in linked)
        links |= {(trace, link.trace_id) for link in linked}
    for number, trace in order.items():
        if number:
            assert {(trace, order[number - 1]), (order[number - 1], trace)} <= links, "in both directions"
    return traces


def attribute(span: Any, name: str) -> int:
    attributes = span.attributes.attribute_map
    return next((int(attributes[key].int_value) for key in attributes if key.endswith(name)), 0)


def test_sixty_four_ranks(google: GoogleEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_TRACE_SPANS", "1200")
    end = time.time_ns()
    for index in range(RANKS):
        train(tmp_path, index, 2_500 if index in (0, 5) else 300, end)
    traces = check(google, 1200)
    assert len(traces) == 3
    (first,) = (spans for spans in traces.values() if any(span.display_name.value == "attempt" for span in spans))
    assert sum(span.display_name.value == "job" for span in first) == RANKS


@pytest.mark.attack
@pytest.mark.timeout(900)
def test_a_million_steps_of_sixty_four_ranks(google: GoogleEmulator, tmp_path: Path) -> None:
    """The leader takes them all, the others are with it for the first 5,000."""
    end = time.time_ns()
    for index in range(RANKS):
        train(tmp_path, index, 1_000_000 if not index else 5_000, end)
    traces = check(google, 5000)
    assert len(traces) == 50
    steps = [span for spans in traces.values() for span in spans if span.display_name.value.startswith("step")]
    assert len(steps) > 10_000
