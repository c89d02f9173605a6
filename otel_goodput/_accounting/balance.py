"""Computes what is shown of a cursor: :class:`Totals` (the run and its windows), and the :class:`Overview`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import sub

from otel_goodput._accounting import stats
from otel_goodput._accounting.checkpoints import StageSums
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.execution import StepSegment
from otel_goodput._accounting.overview import NOT_KNOWN, Group, Life, Loss, Overview
from otel_goodput._accounting.phase_history import PhaseHistory
from otel_goodput._accounting.rules import DEVIATION_SAMPLE, IDEAL_SAMPLE, IN_FLIGHT, PRODUCTIVE, PROGRAM_STARTUP, STEP
from otel_goodput._accounting.rules import WASTED_PROGRESS as WASTED
from otel_goodput._accounting.stalls import LongPhase
from otel_goodput._accounting.step_history import StepHistory
from otel_goodput._accounting.totals import Partition, StepTime, Totals, partition
from otel_goodput._accounting.windows import EXCLUDED, NOTHING, Window, leading
from otel_goodput.semconv import SLICE_AVAILABLE, SLICE_STEPPING


def totals_of(
    cursor: Cursor,
    windows: Iterable[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
    at: int | None = None,
    stages: Mapping[str, StageSums] | None = None,
    long_phases: Mapping[tuple[int, str], LongPhase] | None = None,
) -> Totals:
    """Return the totals of `cursor` as it stands now.

    Args:
        cursor: the state of the run.
        windows: begin and end of the cursor's windows 1, 2, ... in ns.
        ideal_step_time: in ns; computed from the latest steps by default.
        at: the time of the answer, ns by the clock of the latest attempt; the cursor's time by default. Rolling windows
            end there.
        stages: of checkpoints.
        long_phases: those that took far longer than usual.
    """
    kept = len(cursor.steps.progress)
    # Device work after the end of the job is not accounted. A step that ran only then has net time 0: leave it out.
    nets = [net for net in cursor.steps.progress.nets(kept - IDEAL_SAMPLE - DEVIATION_SAMPLE, kept) if net]
    recent = sorted(nets[-IDEAL_SAMPLE:])
    startups = [
        (segment, excess) for segment in cursor.steps.segments if (excess := segment.excess(cursor.steps.progress))
    ]
    hidden = cursor.windows[0]
    moment = cursor.now if at is None else at + cursor.shift
    running = list(cursor.steps.running.values())
    return Totals(
        at=moment - cursor.shift,
        started_at=cursor.begin,
        ended=cursor.ended,
        finished=cursor.finished,
        failed=cursor.ended and not cursor.clean,
        error=cursor.error or None,
        last_sign=(cursor.now if cursor.finished else moment) - cursor.shift,
        run=_run(cursor, startups),
        excluded=hidden.elapsed - cursor.suspended,
        suspended=cursor.suspended,
        overlapped_data_loading=cursor.overlapped,
        last_step=cursor.steps.last_step,
        last_given=None if cursor.steps.last_step is None else cursor.steps.last_step - cursor.steps.offset,
        skipped=cursor.steps.skipped,
        doubtful=cursor.steps.doubtful,
        in_flight_step=running[-1].number if running else None,
        in_flight_since=running[-1].start - cursor.shift if running else None,
        clock=cursor.clock or cursor.fallback,
        executed=cursor.steps.executed,
        pending=len(running),
        kept=kept,
        lost=cursor.steps.lost,
        attempts=cursor.steps.attempts,
        first_step=cursor.steps.first_step,
        long_steps=cursor.steps.loops[cursor.steps.loop].long_steps,
        since_step=cursor.since_step,
        in_step=cursor.in_step,
        disruptions=dict(cursor.steps.disruptions.reasons),
        history=_history(cursor, startups),
        ideal_step_time=stats.ideal_step_time(recent) if ideal_step_time is None else ideal_step_time,
        step_time_deviation=stats.step_time_deviation(nets),
        step_time=_step_time(recent),
        at_risk=cursor.steps.at_risk(),
        recompilations=cursor.recompilations,
        recompiled=dict(sorted(cursor.steps.recompiled.items(), key=lambda function: -function[1])),
        compilations_seen=cursor.totals[PROGRAM_STARTUP] > 0 or cursor.steps.life.compiles_seen,
        step_cadence=_cadence(cursor.steps.recent),
        observed=cursor.steps.observed,
        skewed_clocks=cursor.skewed,
        windows=[
            (start, end, _window(cursor, window, startups))
            for (start, end), window in zip(windows, cursor.windows[1:], strict=True)
        ],
        slices=dict(zip((SLICE_STEPPING, SLICE_AVAILABLE), cursor.overlay.shares or (), strict=False)),
        rolling=[(span, _rolling(cursor, which, startups, moment)) for which, span in enumerate(cursor.spans)],
        stages=dict(stages or {}),
        long_phases=dict(long_phases or {}),
    )


Startups = list[tuple[StepSegment, int]]


def _history(cursor: Cursor, startups: Startups) -> list[Disruption]:
    """The latest disruptions. Start-up hidden in a first step is start-up, not waste (rule R5)."""
    disruptions = cursor.steps.disruptions
    history = disruptions.latest.copy()
    oldest = disruptions.number(0)
    for segment, excess in startups:
        hidden = excess - leading(segment.pieces, excess, EXCLUDED)
        if segment.lost_to >= oldest and segment.first_index is None:
            at = segment.lost_to - oldest
            history[at] = history[at]._replace(wasted=history[at].wasted - hidden)
        if segment.starts >= oldest and (startup := history[segment.starts - oldest].startup) is not None:
            at = segment.starts - oldest
            history[at] = history[at]._replace(startup=startup + hidden)
    return history


def _run(cursor: Cursor, startups: Startups) -> Partition:
    times = dict(enumerate(cursor.visible_times()))
    for segment, excess in startups:
        _transfer(times, segment, excess - leading(segment.pieces, excess, EXCLUDED))
    return partition(times, cursor.names, _top(cursor), cursor.visible_weighted())


def _window(cursor: Cursor, window: Window, startups: Startups) -> Partition:
    times = dict(window.totals)
    times[PRODUCTIVE] = times.get(PRODUCTIVE, 0) + window.kept_total
    for fate, duration in window.discarded.items():
        times[fate] = times.get(fate, 0) + duration
    for execution in cursor.steps.running.values():
        times[IN_FLIGHT] = times.get(IN_FLIGHT, 0) + execution.shared(window.bit)
    for segment, excess in startups:
        _transfer(times, segment, leading(segment.pieces, excess, window.bit))
    top = cursor.steps.progress.number_at(max(window.kept)) if window.kept else None
    return partition(times, cursor.names, top, window.weighted)


def _rolling(cursor: Cursor, which: int, startups: Startups, now: int) -> Partition:
    if cursor.rolling is None:
        return partition({}, (), None, NOTHING)
    times = cursor.rolling.window(which, now, cursor.visible_times())
    left = now - cursor.spans[which]
    for segment, excess in reversed(startups):
        inside = min(now, segment.first_start + excess) - max(left, segment.first_start)
        source = WASTED if segment.first_index is None else PRODUCTIVE
        hidden = leading(segment.pieces, excess, EXCLUDED)
        _transfer(times, segment, max(0, min(inside, excess - hidden, times.get(source, 0))))
    return partition(times, cursor.names, _top(cursor), cursor.rolling.weighted(which, now, cursor.visible_weighted()))


def _transfer(times: dict[int, int], segment: StepSegment, excess: int) -> None:
    """Move the start-up hidden in a segment's first step to the program start-up category (rule R5)."""
    if excess:
        source = WASTED if segment.first_index is None else PRODUCTIVE
        times[source] = times.get(source, 0) - excess
        times[PROGRAM_STARTUP] = times.get(PROGRAM_STARTUP, 0) + excess


def _top(cursor: Cursor) -> int | None:
    return cursor.steps.progress.top if len(cursor.steps.progress) else None


def _cadence(recent: Sequence[int]) -> float | None:
    """Median time between the `recent` starts of completed steps, ns; None if there are fewer than two.

    Only completed steps count: an outage, the preparation and an open step that hangs say nothing about the pace.
    """
    starts = sorted(recent)
    return stats.median(list(map(sub, starts[1:], starts))) if len(starts) > 1 else None


def _step_time(rising: list[int]) -> StepTime | None:
    if not rising:
        return None
    return StepTime(
        count=len(rising),
        mean=sum(rising) / len(rising),
        min=rising[0],
        median=stats.quantile(rising, 0.5),
        p90=stats.quantile(rising, 0.9),
        max=rising[-1],
    )


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
