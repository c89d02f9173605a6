"""An overview made from a journal that was read in full, in the form of what a process remembers by itself."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from otel_goodput._accounting import rules
from otel_goodput._accounting.checkpoints import Stages, StageSums
from otel_goodput._accounting.events import NONBLOCKING
from otel_goodput._accounting.overview import (
    BINS,
    DEVICE,
    IN_FLIGHT,
    LOST,
    NET,
    NO_STEP_DONE,
    NOT_KNOWN,
    SKIPPED,
    WALL,
    Group,
    Life,
    Overview,
    Spread,
    StepBin,
    bucket_of,
)
from otel_goodput.reports.detail import FAILED, Detail, Phase, Step

_LEAST_WIDTH: Final = 1_000  # ns
_Group = tuple[int, str, bool]  # phase, name, whether in the background


def condensed(detail: Detail) -> Overview:
    """Return the overview of what a journal tells. Its bins add up to the account exactly."""
    begin = detail.begin or 0
    width = max(_LEAST_WIDTH, -(-(detail.reached - begin) // BINS)) if detail.begin is not None else _LEAST_WIDTH
    return Overview(
        begin=begin,
        width=width,
        bins=binned(detail.owners, begin, width),
        names=tuple(detail.names),
        step_bins=_step_bins(detail.steps),
        histogram=_histogram(detail.steps),
        groups=_groups(detail.phases, detail.steps),
        saves=tuple(detail.saves),
        at_risk=tuple(detail.at_risk),
        jobs=tuple(Life(one.number, one.begin, one.reached, one.clean) for one in detail.attempts),
        disruptions=tuple(detail.losses),
        numbering=tuple(detail.numbering),
        shifts={one.number: one.shift for one in detail.attempts if one.shift},
        notices=tuple(detail.notices),
        slices=tuple(detail.slices),
        excluded=tuple(detail.excluded),
        last_step=detail.steps[-1].number if detail.steps else None,
        last_sign=detail.reached,
        stages=_stages(detail.phases),
    )


def binned(owners: Iterable[tuple[int, int, int]], begin: int, width: int) -> list[dict[int, int]]:
    """Return ns by category number for each bin of `width` ns from `begin` on; (begin, end, category) in order."""
    bins: list[dict[int, int]] = []
    for start, stop, category in owners:
        while start < stop:
            at = (start - begin) // width
            while len(bins) <= at:
                bins.append({})
            edge = min(stop, begin + (at + 1) * width)
            bins[at][category] = bins[at].get(category, 0) + edge - start
            start = edge
    return bins


def _stages(phases: Sequence[Phase]) -> dict[str, StageSums]:
    found = Stages()
    for one in phases:
        if one.phase == rules.PART and one.end != NOT_KNOWN and not one.flags & FAILED:
            found.add(one.name, one.end - one.begin)
    return found.sums


def _groups(phases: Sequence[Phase], steps: Sequence[Step]) -> list[Group]:
    lengths: dict[_Group, list[int]] = {}
    counted: Counter[_Group] = Counter()
    failed: Counter[_Group] = Counter()
    for one in phases:
        of = one.phase, one.name, bool(one.flags & NONBLOCKING)
        _count(lengths, counted, failed, of, one.begin, one.end, one.flags)
    for step in steps:
        if step.fate != SKIPPED:
            _count(lengths, counted, failed, (rules.STEP, "", False), step.begin, step.end, step.flags)
    return [
        Group(*of, count, sum(found), min(found, default=0), max(found, default=0), failed[of])
        for of, count in sorted(counted.items())
        for found in (lengths.get(of, []),)
    ]


def _count(
    lengths: dict[_Group, list[int]],
    counted: Counter[_Group],
    failed: Counter[_Group],
    of: _Group,
    begin: int,
    end: int,
    flags: int,
) -> None:
    counted[of] += 1
    failed[of] += bool(flags & FAILED)
    if end != NOT_KNOWN:
        lengths.setdefault(of, []).append(end - begin)


def _histogram(steps: Sequence[Step]) -> dict[tuple[int, int, int, int], int]:
    """Count what was executed: completed steps, kept or lost, as the report's `executed` does, and interrupted ones."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    for step in steps:
        if step.fate in (IN_FLIGHT, NO_STEP_DONE, SKIPPED):
            continue
        found[NET, step.attempt, step.fate, bucket_of(step.net)] += 1
        if step.end != NOT_KNOWN:
            found[WALL, step.attempt, step.fate, bucket_of(step.end - step.begin)] += 1
        if NOT_KNOWN not in (step.device_begin, step.device_end):
            found[DEVICE, step.attempt, step.fate, bucket_of(step.device_end - step.device_begin)] += 1
    return dict(found)


def _step_bins(steps: Sequence[Step]) -> list[StepBin]:
    told: list[tuple[Step, int | None]] = []
    before: Step | None = None
    for step in steps:
        since = None
        if before is not None and before.attempt == step.attempt and before.end != NOT_KNOWN:
            since = max(0, step.begin - max(before.end, before.device_end))
        told.append((step, since))
        before = step
    done = [one for one in told if one[0].fate not in (IN_FLIGHT, NO_STEP_DONE, SKIPPED)]
    size = max(1, -(-len(done) // BINS))
    return [_step_bin(done[at : at + size]) for at in range(0, len(done), size)]


def _step_bin(told: Sequence[tuple[Step, int | None]]) -> StepBin:
    steps = [step for step, _ in told]
    device = [s.device_end - s.device_begin for s in steps if NOT_KNOWN not in (s.device_begin, s.device_end)]
    return StepBin(
        min(step.number for step in steps),
        max(step.number for step in steps),
        steps[0].begin,
        len(steps),
        sum(step.fate == LOST for step in steps),
        spread([step.net for step in steps]),
        spread([outside for _, outside in told if outside is not None]),
        spread(device),
    )


def spread(lengths: Sequence[int]) -> Spread | None:
    """Return the least, the median and the greatest of some lengths (ns); None if there are none."""
    return Spread(min(lengths), round(statistics.median(lengths)), max(lengths)) if lengths else None
