"""Corrects the reasons of disruptions by later statements and other journals. The account itself stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from otel_goodput._accounting.disruption import REMEMBERED, Disruption
from otel_goodput._accounting.overview import Loss, Overview
from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.reasons import Statement
from otel_goodput._timeline.run_state import Culprit

One = TypeVar("One", Disruption, Loss)


class Correction(NamedTuple):
    """A correction of the reason of one disruption.

    Attributes:
        reason: that counts.
        first: the reason that the journal has.
        by: who made it; empty if the journals of all processes show it together.
        note: more for a person, or an empty string.
        process: index of the process that ended first; None if they were ended from outside, or if that is not known.
        known: False if several processes ended, and their journals do not show which was first.
    """

    reason: str
    first: str
    by: str
    note: str
    process: int | None = None
    known: bool = True


Corrections = Mapping[int, Correction]  # by the number of the attempt that the disruption began


def restarts(disruptions: Iterable[One]) -> dict[int, One]:
    """Return the disruption that each attempt began with; a second job in the same process is another one."""
    first: dict[int, One] = {}
    for one in disruptions:
        if one.attempt is not None:
            first.setdefault(one.attempt, one)
    return first


def corrected(
    totals: Totals, statements: Mapping[int, Statement], culprits: Mapping[int, Culprit] | None = None
) -> tuple[Totals, Corrections]:
    """Return the account with reasons from `statements` and `culprits`, and what was corrected.

    A statement by a person counts before what the journals of all processes show together. Disruptions that the account
    no longer remembers one by one are counted by the reason that they had at the time of the statement.
    """
    culprits = culprits or {}
    if not statements and not culprits:
        return totals, {}
    counts = Counter(totals.disruptions)
    known = restarts(totals.history)
    oldest = min(known, default=None)
    replaced: dict[int, Disruption] = {}
    corrections: dict[int, Correction] = {}
    inferred = {
        attempt: Statement(attempt, one.reason, known[attempt].reason, "", False, 0.0)
        for attempt, one in culprits.items()
        if attempt in known
    }
    for attempt, one in {**inferred, **statements}.items():
        if attempt in known:
            entry = known[attempt]
            corrections[attempt] = Correction(one.reason, entry.reason, one.author, one.note)
            if (culprit := culprits.get(attempt)) is not None:
                corrections[attempt] = corrections[attempt]._replace(process=culprit.process, known=culprit.known)
            replaced[id(entry)] = entry._replace(reason=one.reason)
            first = entry.reason
        elif oldest is not None and 1 < attempt < oldest and len(totals.history) >= REMEMBERED:
            corrections[attempt] = Correction(one.reason, one.first_reason, one.author, one.note)
            first = one.first_reason
        else:
            continue  # no such attempt, or none yet at the moment of the account
        if counts[first] > 0:
            counts[first] -= 1
            counts[one.reason] += 1
    history = [replaced.get(id(entry), entry) for entry in totals.history]
    return replace(totals, disruptions=dict(+counts), history=history), corrections


def corrected_overview(overview: Overview, corrections: Corrections) -> Overview:
    """Return an overview with the reasons that a report corrected."""
    reasons = {
        id(entry): corrections[attempt].reason
        for attempt, entry in restarts(overview.disruptions).items()
        if attempt in corrections
    }
    if not reasons:
        return overview
    return replace(
        overview,
        disruptions=tuple(one._replace(reason=reasons.get(id(one), one.reason)) for one in overview.disruptions),
    )


def correction_fields(entries: Sequence[One], corrections: Corrections) -> list[dict[str, Any]]:
    """Return the fields of each disruption in a report's JSON that tell its correction."""
    by_entry = {id(entry): corrections[at] for at, entry in restarts(entries).items() if at in corrections}
    return [_fields(by_entry.get(id(entry)), entry.reason) for entry in entries]


def _fields(correction: Correction | None, reason: str) -> dict[str, Any]:
    if correction is None:
        return {"first_reason": reason, "said_by": None, "note": None, "process": None, "process_known": True}
    return {
        "first_reason": correction.first,
        "said_by": correction.by or None,
        "note": correction.note or None,
        "process": correction.process,
        "process_known": correction.known,
    }
