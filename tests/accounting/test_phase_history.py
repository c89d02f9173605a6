"""STARTs and ENDs are paired in one way, which is that of the account."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._accounting import Event, Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.overview import NOT_KNOWN
from otel_goodput._accounting.phase_history import COMPLETED, DIED, FAILED, paired

PHASES = [rules.SAVE, rules.COMPILE, rules.CUSTOM_PHASE, rules.DATA_LOADING, rules.PART, rules.EXCLUSION]
moments = st.builds(
    Event,
    st.just(0),
    st.sampled_from([ev.START, ev.START, ev.END, ev.END, ev.ATTEMPT, ev.HEARTBEAT]),
    st.sampled_from(PHASES),
    st.integers(1, 4),
    st.just(ev.NO_STEP),
    st.sampled_from([0, ev.FAILED]),
    st.just(0),
    st.sampled_from(["", "a"]),
)


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    events = [Event(1, ev.ATTEMPT, step=0), Event(1, ev.START, rules.JOB, key=9)]
    attempt = 0
    for at, event in enumerate(draw(st.lists(moments, max_size=40)), 2):
        if event.kind == ev.ATTEMPT:
            attempt += 1
            events += [Event(at, ev.ATTEMPT, step=attempt), Event(at, ev.START, rules.JOB, key=9)]
        elif event.kind == ev.START:
            events.append(event._replace(time=at, flags=0))
        else:
            events.append(event._replace(time=at))
    return [*events, Event(events[-1].time + 1, ev.ATTEMPT, step=attempt + 1)]


@given(events=runs())
def test_the_account_counts_the_same_phases(events: list[Event]) -> None:
    ledger = Ledger()
    ledger.feed(events)
    groups = ledger.overview().groups
    executions = list(paired(events))
    assert Counter((one.phase, one.name) for one in executions) == {(one.phase, one.name): one.count for one in groups}
    failed = Counter((one.phase, one.name) for one in executions if one.fate == FAILED)
    assert failed == {(one.phase, one.name): one.failed for one in groups if one.failed}
    lengths: Counter[tuple[int, str]] = Counter()
    for one in executions:
        if one.end != NOT_KNOWN:
            lengths[one.phase, one.name] += one.length
    assert {key: ns for key, ns in lengths.items() if ns} == {
        (one.phase, one.name): one.total for one in groups if one.total
    }
    assert all((one.fate == DIED) == (one.end == NOT_KNOWN) for one in executions)


def test_how_phases_end() -> None:
    compiling = Event(1, ev.START, rules.COMPILE, key=1)
    events = [
        compiling,
        compiling._replace(time=2, name="again"),  # its key is open: ignored
        Event(3, ev.START, rules.SAVE, key=2),
        Event(4, ev.END, key=3),  # never began
        Event(5, ev.START, rules.CUSTOM_PHASE, key=4, name="eval"),
        Event(6, ev.END, rules.COMPILE, key=1, name="train_step"),
        Event(2, ev.END, rules.SAVE, key=2, flags=ev.FAILED),  # the clock went back
        Event(8, ev.ATTEMPT, step=1),
        Event(9, ev.END, rules.CUSTOM_PHASE, key=4),  # of another process
    ]
    assert [(one.phase, one.name, one.begin, one.end, one.fate) for one in paired(events)] == [
        (rules.COMPILE, "train_step", 1, 6, COMPLETED),
        (rules.SAVE, "", 3, 3, FAILED),
        (rules.CUSTOM_PHASE, "eval", 5, NOT_KNOWN, DIED),
    ]
