"""Statements about disruptions change their reasons, and nothing else of the account."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._accounting.disruption import REMEMBERED, Disruption
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.notes import SAYABLE, statement
from otel_goodput.reports.report import Report, about, corrected, corrected_overview, correction_fields, restarts
from otel_goodput.semconv import REASONS, Reason

EMPTY = Ledger().totals(0)
# Attempts that begin, rollbacks and second jobs in between, in the order of the account.
Entries = list[tuple[int | None, str]]


@st.composite
def histories(draw: st.DrawFn) -> Entries:
    entries: Entries = []
    for attempt in range(2, draw(st.integers(2, 8))):
        entries.append((attempt, draw(st.sampled_from(SAYABLE))))
        entries += draw(st.lists(st.sampled_from([(None, Reason.ROLLBACK), (attempt, Reason.RESTART)]), max_size=2))
    return entries


def totals_of(entries: Entries, forgotten: int = 0) -> Totals:
    history = [Disruption(attempt, reason, 5, 7, 3, 2, 100, 95) for attempt, reason in entries]
    counts = Counter(reason for _, reason in entries)
    return replace(EMPTY, disruptions=dict(counts), history=history[forgotten:], attempts=len(entries))


statement_sets = st.dictionaries(
    st.integers(1, 9),
    st.tuples(st.sampled_from(SAYABLE), st.sampled_from(REASONS)),
    max_size=6,
).map(
    lambda reasons: {
        attempt: statement(attempt, reason, first, f"by {attempt}", person=True, recorded_at=1.0)
        for attempt, (reason, first) in reasons.items()
    }
)


@given(histories(), statement_sets)
def test_only_the_reasons_change(entries: Entries, statements: dict[int, object]) -> None:
    before = totals_of(entries)
    frozen = list(before.history)
    after, corrections = corrected(before, statements)  # type: ignore[arg-type]
    assert list(before.history) == frozen  # the account that was given is as it was
    begun = {attempt for attempt, _ in entries if attempt is not None}
    assert corrections.keys() == begun & statements.keys()
    assert Counter(after.disruptions) == Counter(one.reason for one in after.history)
    assert all(after.disruptions.values())
    seen: set[int] = set()
    for old, new in zip(before.history, after.history, strict=True):
        assert old._replace(reason="") == new._replace(reason="")
        first = old.attempt is not None and old.attempt not in seen
        seen.add(old.attempt or 0)
        if first and old.attempt in corrections:
            assert new.reason == statements[old.attempt].reason  # type: ignore[attr-defined]
            assert corrections[old.attempt].first == old.reason
        else:  # a rollback, a second job in one process, or there is no statement about it
            assert new.reason == old.reason
    ignoring = {"disruptions", "history"}
    assert {k: v for k, v in vars(after).items() if k not in ignoring} == {
        k: v for k, v in vars(before).items() if k not in ignoring
    }

    answer = Report(after, about("run", "job"), corrections=corrections).to_json()
    for entry, one in zip(answer["disruption_list"], before.history, strict=True):
        assert entry["first_reason"] == one.reason
        assert entry["said_by"] is not None or entry["reason"] == one.reason

    losses = tuple(Disruption(attempt, reason, 5, 7, 3, 2, 100, 95) for attempt, reason in entries)
    overview = corrected_overview(Overview(0, 1, disruptions=losses), corrections)
    assert [one.reason for one in overview.disruptions] == [one.reason for one in after.history]
    assert [one["said_by"] for one in correction_fields(overview.disruptions, corrections)] == [
        one["said_by"] for one in answer["disruption_list"]
    ]


def test_a_disruption_that_is_not_remembered_one_by_one_is_counted() -> None:
    entries: Entries = [(attempt, Reason.CRASH) for attempt in range(2, 2 + REMEMBERED + 50)]
    before = totals_of(entries, forgotten=50)
    statements = {
        attempt: statement(attempt, Reason.MAINTENANCE, Reason.CRASH, "alice", person=True, recorded_at=1.0)
        for attempt in (1, 2, 60, 5000)
    }
    after, corrections = corrected(before, statements)
    assert after.disruptions == {Reason.CRASH: len(entries) - 2, Reason.MAINTENANCE: 2}
    assert corrections.keys() == {2, 60}
    assert sum(one.reason == Reason.MAINTENANCE for one in after.history) == 1
    assert restarts(after.history)[60].reason == Reason.MAINTENANCE
    # Whoever says what the first reason was cannot make the sum of all another one.
    wrong = {2: statement(2, Reason.SIGNAL, Reason.PREEMPTION, "mallory", person=True, recorded_at=1.0)}
    assert sum(corrected(before, wrong)[0].disruptions.values()) == len(entries)
