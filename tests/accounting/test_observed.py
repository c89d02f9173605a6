"""However the device's ends arrive, before or after the host's, the account is that of a timeline that knew them."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import replay

from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event

MS = 1_000_000


class Step(NamedTuple):
    """A step of an asynchronous loop; lengths in ms. `lost`: its end on the device will never be known."""

    loading: int
    host: int
    device: int
    lost: bool
    observed_by: str  # observe: by a record of its own; end: by its span's end; both
    answered: int  # 0: before the span's end, 1: at once after it, 2: when the job is over


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 5),
        st.integers(0, 6),
        st.integers(1, 9),
        st.booleans(),
        st.sampled_from(["observe", "end", "both"]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


def timeline(steps: list[Step]) -> tuple[list[dict[str, Any]], list[Event]]:
    """The steps as rows that know everything, and as events in an order in which they may come."""
    rows: list[dict[str, Any]] = []
    events = [Event(0, ev.ATTEMPT, step=0), Event(0, ev.START, rules.JOB, 1)]
    late: list[Event] = []
    now = free = 0
    for number, step in enumerate(steps):
        key = 10 + number
        load = 1000 + number
        rows.append({"kind": "data_loading", "start_ns": now, "end_ns": now + step.loading * MS, "blocking": True})
        events += [
            Event(now, ev.START, rules.DATA_LOADING, load),
            Event(now + step.loading * MS, ev.END, rules.DATA_LOADING, load),
        ]
        start = now + step.loading * MS
        end = start + step.host * MS
        free = max(free, start) + step.device * MS
        row = {"kind": "step", "start_ns": start, "end_ns": end, "step": number}
        rows.append(row if step.lost else {**row, "device_end_ns": free})
        events.append(Event(start, ev.START, rules.STEP, key, number))
        if step.observed_by != "end":
            events.append(Event(start, ev.OBSERVED, rules.STEP, key))
        answer = Event(end if step.lost else free, ev.UNOBSERVED if step.lost else ev.DEVICE_END, rules.STEP, key)
        over = Event(end, ev.END, rules.STEP, key, flags=ev.ON_DEVICE if step.observed_by != "observe" else 0)
        if step.answered == 0:
            events += [answer, over]
        elif step.answered == 1:
            events += [over, answer]
        else:
            events.append(over)
            late.append(answer)
        now = end
    last = max(now, free) + MS
    rows.append({"kind": "job", "start_ns": 0, "end_ns": last})
    return rows, [*events, Event(last, ev.END, rules.JOB, 1), *late]


@settings(max_examples=8 * settings.default.max_examples // 3, deadline=None)
@given(STEPS, st.integers(1, 40))
def test_however_ends_on_the_device_are_recorded(steps: list[Step], chunk: int) -> None:
    rows, events = timeline(steps)
    ledger = Ledger()
    for first in range(0, len(events), chunk):
        ledger.feed(events[first : first + chunk])
        live = ledger.totals(max(event.time for event in events[: first + chunk]))
        assert sum(live.run.categories.values()) + sum(live.run.custom.values()) == live.run.elapsed
    figures = ledger.totals().to_json()
    known = replay(rows)
    for figure in ("elapsed_s", "seconds", "steps", "max_productive_step"):
        assert figures[figure] == known[figure], figure
    assert not ledger.pending, "nothing is waited for any more"
