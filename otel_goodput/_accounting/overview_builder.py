"""Puts an :class:`~otel_goodput._accounting.overview.Overview` together from a cursor and a phase history."""

from __future__ import annotations

from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.overview import NOT_KNOWN, Group, Life, Loss, Overview
from otel_goodput._accounting.phase_history import PhaseHistory
from otel_goodput._accounting.rules import STEP
from otel_goodput._accounting.step_history import StepHistory
from otel_goodput._accounting.step_segments import StepSegment
from otel_goodput._accounting.windows import EXCLUDED, leading


def build_overview(cursor: Cursor, phase_history: PhaseHistory, at: int | None) -> Overview:
    """Return the overview of `cursor` as it stands now, for the time `at` (ns by the clock of the latest attempt)."""
    steps, risk_curve, summary, bins = cursor.steps, cursor.risk_curve, cursor.steps.summary, cursor.steps.bins
    moment = cursor.now if at is None else at + cursor.shift
    last_sign = cursor.now if cursor.finished else moment
    assert risk_curve is not None and summary is not None, "a ledger's cursor follows what an overview shows"
    running = list(steps.running.values())
    startups = _startups(cursor)
    phases, left_out = phase_history.phases(risk_curve.shifts)
    risk = steps.at_risk()
    return Overview(
        begin=cursor.begin or 0,
        width=1 if bins is None else bins.width,
        bins=[] if bins is None else bins.answer(cursor.visible_times(), startups),
        names=tuple(cursor.names),
        step_bins=summary.bins(),
        histogram=summary.histogram(running),
        groups=_without_skipped(phase_history.groups(), steps),
        phases=phases,
        left_out=left_out + risk_curve.left_out,
        steps=summary.notable(running),
        saves=phase_history.saves(risk_curve.shifts),
        at_risk=[] if cursor.begin is None else [(cursor.begin, 0), *risk_curve.corners, (cursor.now, risk)],
        jobs=_lives(cursor, risk_curve.lives),
        numbering=steps.stretches,
        shifts=risk_curve.shifts,
        disruptions=losses(cursor),
        notices=phase_history.notices,
        slices=phase_history.slices,
        excluded=phase_history.excluded,
        last_step=steps.last_step,
        last_sign=last_sign,
        stages=dict(phase_history.stages.sums),
    )


def _without_skipped(groups: list[Group], steps: StepHistory) -> list[Group]:
    """Take batches that loops skipped out of the steps. Only when a body is over is it known to be none."""
    return [
        one._replace(count=one.count - steps.skipped, total=max(0, one.total - steps.skipped_wall))
        if one.phase == STEP
        else one
        for one in groups
        if one.phase != STEP or one.count > steps.skipped
    ]


def _lives(cursor: Cursor, lives: tuple[Life, ...]) -> list[Life]:
    """The jobs; one whose process is dead ended with its last sign of life."""
    if lives and lives[-1].end == NOT_KNOWN and not cursor.alive:
        return [*lives[:-1], lives[-1]._replace(end=cursor.now)]
    return list(lives)


def _startups(cursor: Cursor) -> list[tuple[StepSegment, int]]:
    """Segments with start-up hidden in their first steps, and how much, without excluded time, ns (rule R5)."""
    return [
        (segment, excess - leading(segment.pieces, excess, EXCLUDED))
        for segment in cursor.steps.segments
        if (excess := segment.excess(cursor.steps.progress))
    ]


def losses(cursor: Cursor) -> list[Loss]:
    """Return the disruptions so far. The start-up in steps lost to one is not its waste."""
    disruptions, startups = cursor.steps.disruptions, _lost_startups(_startups(cursor))
    remembered = [*disruptions.earlier, *disruptions.latest]
    return [
        Loss(one.time, one.died, one.attempt, one.reason, one.recovery, one.wasted - startups.get(number, 0), *reached)
        for number, one in enumerate(remembered, disruptions.count - len(remembered) + 1)
        for reached in [(one.from_step, one.to_step, one.kept_step, one.first_step, one.regained)]
    ]


def _lost_startups(startups: list[tuple[StepSegment, int]]) -> dict[int, int]:
    hidden_by: dict[int, int] = {}
    for segment, hidden in startups:
        if segment.lost_to and segment.first_index is None:
            hidden_by[segment.lost_to] = hidden_by.get(segment.lost_to, 0) + hidden
    return hidden_by
