"""Corrects the reasons of disruptions by what was said of them afterwards. The account itself stays as it is."""

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
    """What was said of one disruption.

    Attributes:
        reason: that counts.
        first: the reason that the journal has.
        by: who said so; empty if the journals of all processes tell it together.
        note: more for a person, or an empty string.
        process: index of the process that ended first; None if somebody ended all of them, or if that is not known.
        known: False if several processes ended, and their journals do not tell which was first.
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
    found: dict[int, One] = {}
    for one in disruptions:
        if one.attempt is not None:
            found.setdefault(one.attempt, one)
    return found


def corrected(
    totals: Totals, said: Mapping[int, Statement], found_out: Mapping[int, Culprit] | None = None
) -> tuple[Totals, Corrections]:
    """Return the account with the reasons that were said or `found_out`, and what was corrected.

    What somebody said counts before what the journals of all processes tell together. Disruptions that the account no
    longer remembers one by one are counted by the reason that they had when it was said.
    """
    found_out = found_out or {}
    if not said and not found_out:
        return totals, {}
    counts = Counter(totals.disruptions)
    known = restarts(totals.history)
    oldest = min(known, default=None)
    replaced: dict[int, Disruption] = {}
    found: dict[int, Correction] = {}
    inferred = {
        attempt: Statement(attempt, one.reason, known[attempt].reason, "", False, 0.0)
        for attempt, one in found_out.items()
        if attempt in known
    }
    for attempt, one in {**inferred, **said}.items():
        if attempt in known:
            entry = known[attempt]
            found[attempt] = Correction(one.reason, entry.reason, one.author, one.note)
            if attempt in found_out:
                first_ended = found_out[attempt]
                found[attempt] = found[attempt]._replace(process=first_ended.process, known=first_ended.known)
            replaced[id(entry)] = entry._replace(reason=one.reason)
            first = entry.reason
        elif oldest is not None and 1 < attempt < oldest and len(totals.history) >= REMEMBERED:
            found[attempt] = Correction(one.reason, one.first_reason, one.author, one.note)
            first = one.first_reason
        else:
            continue  # no such attempt, or none yet at the moment of the account
        if counts[first] > 0:
            counts[first] -= 1
            counts[one.reason] += 1
    history = [replaced.get(id(entry), entry) for entry in totals.history]
    return replace(totals, disruptions=dict(+counts), history=history), found


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


def told(entries: Sequence[One], corrections: Corrections) -> list[dict[str, Any]]:
    """Return what a report's JSON has of each disruption beside its figures: who said its reason, and the first one."""
    by_entry = {id(entry): corrections[at] for at, entry in restarts(entries).items() if at in corrections}
    return [fields(by_entry.get(id(entry)), entry.reason) for entry in entries]


def fields(correction: Correction | None, reason: str) -> dict[str, Any]:
    """Return what is told of a disruption with this `reason` and its correction, if there is one."""
    if correction is None:
        return {"first_reason": reason, "said_by": None, "note": None, "process": None, "process_known": True}
    return {
        "first_reason": correction.first,
        "said_by": correction.by or None,
        "note": correction.note or None,
        "process": correction.process,
        "process_known": correction.known,
    }
