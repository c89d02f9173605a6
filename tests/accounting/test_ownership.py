"""What a witness remembers adds up to the account: over the whole run, over any window, and step by step."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings

from otel_goodput.accounting import rules
from otel_goodput.accounting.overview import IN_FLIGHT, KEPT, LOST
from otel_goodput.accounting.ownership import Witness
from otel_goodput.accounting.totals import Partition
from otel_goodput.reports.replay import account_timeline
from otel_goodput.reports.timeline import Timeline
from otel_goodput.semconv import CATEGORIES

from .strategies import Question, questions

MANY = settings(max_examples=settings.default.max_examples, deadline=None, suppress_health_check=list(HealthCheck))


def by_number(partition: Partition, names: list[str]) -> dict[int, int]:
    found = {number: partition.categories[name] for number, name in enumerate(CATEGORIES) if name != "custom"}
    found |= {rules.FIXED + names.index(name): held for name, held in partition.custom.items()}
    return {number: held for number, held in found.items() if held}


def cut(owners: list[tuple[int, int, int]], begin: int, end: int) -> dict[int, int]:
    found: Counter[int] = Counter()
    for start, stop, category in owners:
        found[category] += max(0, min(stop, end) - max(start, begin))
    return {number: held for number, held in found.items() if held}


def witnessed(question: Question) -> tuple[Witness, Any]:
    timeline = Timeline(question.rows)
    totals = account_timeline(timeline, at=question.at, windows=question.windows)
    edges = [edge for start, end in timeline.exclusions for edge in ((start, 0, True), (end, 0, False)) if start < end]
    witness = Witness(sorted(edges))
    for event in timeline.events(question.at):
        witness.apply(event)
    witness.reach(totals.at)
    witness.close()
    return witness, totals


@MANY
@given(questions())
def test_owners_add_up_to_the_account_of_the_run_and_of_every_window(question: Question) -> None:
    question.exclusions = []
    question.windows = [(begin, end) for begin, end in question.windows if begin <= end]
    witness, totals = witnessed(question)
    owners = witness.owners()
    assert all(begin < end for begin, end, _ in owners)
    assert all(before[1] <= after[0] for before, after in pairwise(owners))
    assert cut(owners, 0, 1 << 62) == by_number(totals.run, witness.names)
    if not witness.shift:
        for begin, end, partition in totals.windows:
            assert cut(owners, begin, end) == by_number(partition, witness.names)


@MANY
@given(questions())
def test_fates_and_costs_are_those_of_the_account(question: Question) -> None:
    question.exclusions = []
    witness, totals = witnessed(question)
    fates = Counter(told.fate for told in witness.executions)
    assert (fates[KEPT], fates[LOST], fates[IN_FLIGHT]) == (totals.kept, totals.lost, totals.pending)
    costs = [cost.disruption.to_state() for cost in witness.costs]
    assert costs[-len(totals.history) :] == [one.to_state() for one in totals.history] if totals.history else not costs
    for cost in witness.costs:
        assert cost.died == -1 or cost.time - cost.died == cost.disruption.recovery
