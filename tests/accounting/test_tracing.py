"""The owners of every moment of a run: they tile its life, and add up to the totals, in windows too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput._accounting import Event, Totals, buckets, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.balance import build_overview
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.overview import IN_FLIGHT, KEPT, LOST, NET, SKIPPED
from otel_goodput._accounting.phase_history import PhaseHistory
from otel_goodput._accounting.tracing import EXCLUDED, Tracer
from otel_goodput.reports.timeline import Timeline, account
from otel_goodput.semconv import CATEGORIES

from .intervals import cut_into, traced
from .strategies import Question, chaos, questions, runs, spread
from .test_properties import MANY, USUAL

SOME = settings(MANY, max_examples=2 * USUAL // 3)


@pytest.fixture(scope="module", autouse=True)
def _bins() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(buckets, "FINEST", 0)
        patched.setattr(buckets, "MATURE", 0)
        patched.setattr(buckets, "MOST", 32)
        yield


def named(durations: dict[int, int], names: list[str]) -> dict[str, int]:
    return {
        CATEGORIES[at] if at < rules.FIXED else f"custom/{names[at - rules.FIXED]}": ns
        for at, ns in durations.items()
        if ns
    }


def by_category(partition: object) -> dict[str, int]:
    return {f"{category}/{name}" if name else category: ns for category, name, ns in partition.rows()}  # type: ignore[attr-defined]


def check(question: Question) -> None:
    timeline = Timeline(question.rows)
    at = timeline.latest if question.at is None else question.at
    events = list(timeline.events(at))
    excluded = [*question.exclusions, *timeline.exclusions]
    windows = question.windows
    totals: Totals = account(events, at=at, windows=windows, exclusions=excluded)
    trace = traced(events, at=at, exclusions=excluded)
    stretches = list(trace.intervals())
    names = list(trace.names)

    # They tile the life of the run.
    assert all(one[1] == other[0] and one[2] != other[2] for one, other in pairwise(stretches))
    assert all(begin < end for begin, end, _ in stretches)
    if stretches:
        assert (stretches[0][0], stretches[-1][1]) == (trace.begin, trace.now)
    sums: Counter[int] = Counter()
    for begin, end, category in stretches:
        sums[category] += end - begin
    assert sums.pop(EXCLUDED, 0) == totals.excluded
    assert named(sums, names) == by_category(totals.run)
    assert list(traced(events, at=at, exclusions=excluded).intervals()) == stretches

    # Cut to windows, they are what exact windows hold, but for windows within those that are cut out.
    for begin, end, window in totals.windows:
        if begin < end:
            (cut,) = cut_into(stretches, [begin, end])
            assert named(cut, names) == by_category(window)

    steps = list(trace.step_traces)
    fates = Counter(step.fate for step in steps)
    assert (fates[KEPT], fates[LOST], fates[IN_FLIGHT]) == (totals.kept, totals.lost, totals.pending)
    assert sum(step.net for step in steps if step.fate == KEPT) == trace.steps.progress.total
    for one in trace.device_traces:
        assert one.begin <= one.end
        if one.step >= 0:
            step = steps[one.step]
            assert step.key == one.key
            assert step.device_begin <= one.begin <= one.end <= step.device_end


@SOME
@given(questions())
def test_stretches_add_up(question: Question) -> None:
    check(question)


@SOME
@given(questions(chaos()))
def test_stretches_add_up_in_chaos(question: Question) -> None:
    check(question)


@SOME
@given(st.one_of(runs(), chaos()).map(spread))
def test_bins_of_a_run_are_those_of_the_stretches(rows: list[dict[str, object]]) -> None:
    timeline = Timeline(rows)
    events = list(timeline.events(timeline.latest))
    cursor = Cursor(overview=True)
    for event in events:
        cursor.apply(event)
    cursor.reach(timeline.latest)
    cursor.close()
    overview = build_overview(cursor, PhaseHistory(), timeline.latest)
    edges = [overview.begin + at * overview.width for at in range(len(overview.bins) + 1)]
    trace = traced(events, at=timeline.latest)
    assert list(trace.names) == list(overview.names)
    assert cut_into(trace.intervals(), edges) == [dict(one) for one in overview.bins]
    histogram: Counter[tuple[int, int]] = Counter()
    for (what, attempt, fate, _), count in overview.histogram.items():
        if what == NET:
            histogram[attempt, fate] += count
    assert histogram == Counter((step.attempt, step.fate) for step in trace.step_traces if step.fate != SKIPPED)


def test_times_that_add_up_to_more_than_an_array_holds() -> None:
    """A damaged journal may have them: an attempt whose clock is far behind one that is at the end of time."""
    most = (1 << 63) - 1
    tracer = Tracer()
    for event in (
        Event(10**18, ev.ATTEMPT, step=0),
        Event(10**18, ev.START, rules.JOB, 1),
        Event(10**18, ev.START, rules.STEP, 2, 0),
        Event(most - 1, ev.END, rules.STEP, 2),
        Event(0, ev.ATTEMPT, step=1),
        Event(5, ev.START, rules.JOB, 1),
        Event(10**18, ev.START, rules.STEP, 3, 1),
        Event(most, ev.END, rules.STEP, 3),
    ):
        tracer.apply(event)
    tracer.close()
    tracer.finish()
    assert list(tracer.columns["number"]) == [0, 1] and max(tracer.ends) == most
