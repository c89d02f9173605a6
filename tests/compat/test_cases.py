"""The sample timelines, recorded by starts and ends, where a step lasts until the next one starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from timelines import replay

from compat.calls import BEGIN, Call, entry
from otel_goodput.reports.ml_goodput_entries import rows_of

FOLDER = Path(__file__).parents[1] / "accounting" / "cases"
NAMES = {"accelerator_init": "tpu_init", "training_prep": "training_preparation", "custom": "custom_badput_event"}
# A step that was over when a wait for slices began cannot be told from one that the wait interrupted.
CASES = [path for path in sorted(FOLDER.glob("*.json")) if "elastic" not in path.name]


def calls(events: list[dict[str, Any]]) -> list[Call]:
    """The calls of the program, in order; a phase that another one contains starts after it and ends before it."""
    in_order = []
    for event in events:
        kind = NAMES.get(event["kind"], event["kind"])
        name = event.get("step", event.get("name"))
        end = event.get("end")
        in_order.append((event["start"], 1, -(1e9 if end is None else end), (f"{kind}_start", event["start"], name)))
        if end is not None and kind != "step":
            in_order.append((end, 0, -event["start"], (f"{kind}_end", end, name)))
    return [call for *_, call in sorted(in_order, key=lambda one: one[:3])]


def lasting(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same timeline with steps until the next start, or the end of their job; open if that never ended."""
    sorted_events = []
    for event in events:
        if event["kind"] == "step":
            mine = [other for other in events if other["attempt"] == event["attempt"]]
            starts = [one["start"] for one in mine if one["kind"] == "step" and one["start"] > event["start"]]
            job = next(one for one in mine if one["kind"] == "job")
            end = min(starts) if starts else job.get("end")
            event = {**event, "end": end, "completed": True}
        elif event["kind"] == "data_loading":
            event = {**event, "blocking": True}
        sorted_events.append(event)
    return sorted_events


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_sample_timeline(path: Path) -> None:
    case = json.loads(path.read_text())
    cut = [(begin, end) for begin, end in case.get("exclusions", ())]
    expected = replay(lasting(case["events"]), at=case["query_at"], exclusions=cut)
    rows = rows_of([entry(call) for call in calls(case["events"])])
    shifted = [(begin + BEGIN, end + BEGIN) for begin, end in cut]
    answer = replay(rows, at=case["query_at"] + BEGIN, exclusions=shifted)
    for one in (*answer["disruption_list"], *expected["disruption_list"]):
        del one["time"], one["died_at"]  # moments, and these timelines begin at another one
    for name in ("elapsed_s", "goodput", "seconds", "max_productive_step", "steps", "attempts", "disruption_list"):
        assert answer[name] == expected[name], name
