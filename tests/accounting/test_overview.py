"""What an overview holds: bins that add up to the totals, exactly, at any moment; groups; steps by fate."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_goodput import semconv
from otel_goodput._accounting import Ledger, buckets, rules, step_summary
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.events import Event
from otel_goodput._accounting.overview import IN_FLIGHT, KEPT, LOST, NET, NO_STEP_DONE, Overview
from otel_goodput._accounting.totals import Totals
from otel_goodput.reports.timeline import Timeline
from otel_goodput.semconv import CATEGORIES

from .strategies import Question, Rows, chaos, questions, runs, spread
from .test_ledger_streams import arrivals, through_snapshot
from .test_properties import MANY, USUAL

SOME = settings(MANY, max_examples=USUAL // 4)


@pytest.fixture(scope="module", params=[(0, 8), (0, 1024), (12, 16)], ids=["few", "many", "wide"], autouse=True)
def _bins(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs of some ns get bins of their own size; few of them double often."""
    finest, most = request.param
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(buckets, "FINEST", finest)
        patched.setattr(buckets, "MATURE", 0)
        patched.setattr(buckets, "MOST", most)
        patched.setattr(step_summary, "BINS", 8)
        patched.setattr(step_summary, "FIRST", 2)
        patched.setattr(step_summary, "LEAF", 4)
        patched.setattr(step_summary, "SAMPLE", 4)
        yield


def summed(overview: Overview) -> dict[str, int]:
    """ns by category, those of custom phases as custom/NAME."""
    by_category: Counter[str] = Counter()
    for one in overview.bins:
        for category, duration in one.items():
            assert duration > 0
            fixed = category < rules.FIXED
            by_category[CATEGORIES[category] if fixed else f"custom/{overview.names[category - rules.FIXED]}"] += (
                duration
            )
    return dict(by_category)


def by_category(totals: Totals) -> dict[str, int]:
    return {f"{category}/{name}" if name else category: duration for category, name, duration in totals.run.rows()}


def check(ledger: Ledger, at: int | None, *, dead: bool = False) -> Overview:
    """The overview fits the totals of the same moment."""
    overview, totals = ledger.overview(at, dead=dead), ledger.totals(at, dead=dead)
    assert summed(overview) == by_category(totals)
    assert len(overview.bins) <= buckets.MOST
    for one in overview.bins:
        assert sum(one.values()) <= overview.width
    fates = {
        fate: sum(n for (what, _, held, _), n in overview.histogram.items() if (what, held) == (NET, fate))
        for fate in (KEPT, LOST, IN_FLIGHT, NO_STEP_DONE)
    }
    assert (fates[KEPT], fates[LOST], fates[IN_FLIGHT]) == (totals.kept, totals.lost, totals.pending)
    assert all(count > 0 for count in overview.histogram.values())
    assert sum(one.count for one in overview.step_bins) == totals.kept + totals.lost
    assert sum(one.lost for one in overview.step_bins) == totals.lost
    assert all(0 <= one.lost <= one.count for one in overview.step_bins)
    assert overview.last_step == totals.last_step
    assert overview.last_sign >= totals.last_sign  # later by as much as a clock was behind
    assert len(overview.disruptions) == sum(totals.disruptions.values())
    for mine, theirs in zip(reversed(overview.disruptions), reversed(totals.history), strict=False):
        assert (mine.reason, mine.wasted, mine.recovery) == (theirs.reason, theirs.wasted, theirs.recovery)
        for figure in ("kept_step", "first_step", "regained"):
            assert getattr(mine, figure) == getattr(theirs, figure)
    if overview.at_risk:
        assert overview.at_risk[-1][1] == totals.at_risk
    return overview


def check_stream(rows: Rows, seed: int) -> None:
    fate = random.Random(seed)
    rows = [row for row in rows if row["kind"] not in ("compile", "clock")]
    for attempt in {row["attempt"] for row in rows}:
        first = min(row["start_ns"] for row in rows if row["attempt"] == attempt)
        rows.append({"kind": "clock", "start_ns": first - 1, "attempt": attempt, "state": "unknown"})
    events = arrivals(Timeline(rows), fate)
    ledger, whole = Ledger(), Ledger()
    first = 0
    while first < len(events):
        chunk = fate.randint(1, 9)
        ledger.feed(events[first : first + chunk])
        first += chunk
        if fate.random() < 0.2:
            ledger = through_snapshot(ledger)
        if fate.random() < 0.5:
            check(ledger, max(event.time for event in events[:first]) + fate.choice((0, 0, 5, 5000)))
    whole.feed(events)
    last = max(event.time for event in events)
    for at, dead in ((last, False), (None, True)):
        actual, known = check(ledger, at, dead=dead), check(whole, at, dead=dead)
        for field in fields(Overview):
            assert getattr(actual, field.name) == getattr(known, field.name), field.name


@SOME
@given(runs().map(spread), st.integers(0, 2**32))
def test_bins_add_up_however_it_arrives(rows: Rows, seed: int) -> None:
    check_stream(rows, seed)


@SOME
@given(chaos().map(spread), st.integers(0, 2**32))
def test_bins_add_up_however_it_arrives_in_chaos(rows: Rows, seed: int) -> None:
    check_stream(rows, seed)


@SOME
@given(st.one_of(questions(), questions(chaos())))
def test_bins_add_up_with_exclusions_and_clocks_that_are_behind(question: Question) -> None:
    rows = [*question.rows]
    for begin, end in question.exclusions:
        if rows:
            rows.append({"kind": "exclusion", "start_ns": begin, "end_ns": end, "attempt": rows[0]["attempt"]})
    ledger = Ledger((20, 50))
    for event in Timeline(rows).events():
        ledger.feed([event])
    check(ledger, None)
    check(ledger, question.at)
    check(through_snapshot(ledger), None, dead=True)


# --- what does not depend on fates ------------------------------------------------------------------------------------

PHASES = [phase for phase in range(len(semconv.PHASES)) if phase != rules.JOB]


@SOME
@given(
    st.lists(
        st.tuples(st.sampled_from(PHASES), st.sampled_from(["", "a", "b"]), st.booleans(), st.integers(0, 9)),
        max_size=60,
    )
)
def test_groups_are_a_group_by(phases: list[tuple[int, str, bool, int]]) -> None:
    events = [Event(1, ev.ATTEMPT, step=0), Event(1, ev.START, rules.JOB, 1)]
    known: dict[tuple[int, str, bool], list[tuple[int, bool]]] = {}
    for at, (phase, name, background, length) in enumerate(phases):
        start = 10 * at + 2
        background = background and phase != rules.STEP
        events.append(Event(start, ev.START, phase, at + 2, at, ev.NONBLOCKING if background else 0, name=name))
        known.setdefault((phase, name, background), []).append((length, length % 3 == 1))
        if length < 9:
            compiled = name if phase == rules.COMPILE else ""
            flags = ev.FAILED if length % 3 == 1 else 0
            events.append(Event(start + length, ev.END, phase, at + 2, flags=flags, name=compiled))
    ledger = Ledger()
    for at in range(0, len(events), 7):
        ledger.feed(events[at : at + 7])
        ledger = through_snapshot(ledger)
    groups = {tuple(one[:3]): tuple(one[3:]) for one in ledger.overview().groups if one.phase != rules.JOB}
    wanted = {}
    for key, rows in known.items():
        ended = [length for length, _ in rows if length < 9]
        failed = sum(failed for length, failed in rows if length < 9)
        wanted[key] = len(rows), sum(ended), min(ended, default=0), max(ended, default=0), failed
    assert groups == wanted


def test_a_month_without_an_event_takes_no_time() -> None:
    ledger = Ledger((3600 * 10**9,))
    ledger.feed([Event(10**18, ev.ATTEMPT, step=0), Event(10**18, ev.START, rules.JOB, 1)])
    later = 10**18 + 30 * 86400 * 10**9
    overview = check(ledger, later)
    assert summed(overview) == {"other": later - 10**18}
    ledger.feed([Event(later, ev.END, rules.JOB, 1)])
    assert check(ledger, later).bins == overview.bins
