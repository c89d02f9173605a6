"""Computes what is shown of a cursor: :class:`Totals` (the run and its windows), and the :class:`Overview`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import sub

from otel_goodput._accounting import rules, stats
from otel_goodput._accounting.buckets import add, transfer
from otel_goodput._accounting.checkpoints import StageSums
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.execution import StepSegment
from otel_goodput._accounting.overview import NOT_KNOWN, Overview
from otel_goodput._accounting.phase_history import PhaseHistory
from otel_goodput._accounting.stalls import LongPhase
from otel_goodput._accounting.totals import Brief, Partition, StepTime, Totals, partition
from otel_goodput._accounting.windows import NOTHING, Window, leading
from otel_goodput.semconv import SLICE_AVAILABLE, SLICE_STEPPING, Category


def totals_of(
    cursor: Cursor,
    windows: Iterable[tuple[int, int]] = (),
    ideal_step_time: float | None = None,
    at: int | None = None,
    stages: Mapping[str, StageSums] = {},
    long_phases: Mapping[tuple[int, str], LongPhase] = {},
) -> Totals:
    """Return the totals of `cursor` as it stands now.

    Args:
        cursor: the state of the run.
        windows: begin and end of the cursor's windows 1, 2, ... in ns.
        ideal_step_time: in ns; computed from the latest steps by default.
        at: the time of the answer, ns by the clock of the latest attempt; the cursor's time by default. Rolling windows
            end there.
        stages, long_phases: see :class:`Totals`.
    """
    steps = cursor.steps
    kept = len(steps.progress)
    # Device work after the end of the job is not accounted. A step that ran only then has net time 0: leave it out.
    nets = [net for net in steps.progress.nets(kept - rules.IDEAL_SAMPLE - rules.DEVIATION_SAMPLE, kept) if net]
    recent = sorted(nets[-rules.IDEAL_SAMPLE :])
    startups = _startups(cursor)
    moment = cursor.now if at is None else at + cursor.shift
    running = list(steps.running.values())
    step_time = None
    if recent:
        middle, high = (stats.quantile(recent, part) for part in (0.5, 0.9))
        step_time = StepTime(len(recent), sum(recent) / len(recent), recent[0], middle, high, recent[-1])
    ending, rolling = _rolling_windows(cursor, startups, moment)
    # An outage, the preparation and an open step that hangs say nothing about the pace.
    starts = sorted(steps.recent)
    cadence = stats.median(list(map(sub, starts[1:], starts))) if len(starts) > 1 else None
    return Totals(
        at=moment - cursor.shift,
        started_at=cursor.begin,
        ended=cursor.ended,
        finished=cursor.finished,
        failed=cursor.ended and not cursor.clean,
        error=cursor.error or None,
        last_sign=(cursor.now if cursor.finished else moment) - cursor.shift,
        run=_run(cursor, startups),
        excluded=steps.windows[0].elapsed - cursor.suspended,
        suspended=cursor.suspended,
        overlapped_data_loading=cursor.overlapped,
        last_step=steps.last_step,
        last_given=None if steps.last_step is None else steps.last_step - steps.offset,
        skipped=steps.skipped,
        doubtful=steps.doubtful,
        in_flight_step=running[-1].number if running else None,
        in_flight_since=running[-1].start - cursor.shift if running else None,
        clock=cursor.clock or cursor.fallback,
        executed=steps.executed,
        pending=len(running),
        kept=kept,
        lost=steps.lost,
        attempts=steps.attempts,
        first_step=steps.first_step,
        long_steps=steps.loops[steps.loop].long_steps,
        excess=_excess(cursor),
        unfinished=_unfinished(cursor),
        loop=cursor.steps.loop,
        since_step=cursor.since_step,
        in_step=cursor.in_step,
        disruptions=dict(steps.disruptions.reasons),
        history=_history(cursor, startups),
        ideal_step_time=stats.ideal_step_time(recent) if ideal_step_time is None else ideal_step_time,
        step_time_deviation=stats.step_time_deviation(nets),
        step_time=step_time,
        at_risk=steps.at_risk(),
        recompilations=cursor.recompilations,
        recompiled=_recompiled(cursor),
        compilations_seen=cursor.totals[rules.PROGRAM_STARTUP] > 0 or steps.life.compiles_seen,
        step_cadence=cadence,
        observed=steps.observed,
        skewed_clocks=cursor.skewed,
        windows=[
            (start, end, _window(cursor, window, startups))
            for (start, end), window in zip(windows, steps.windows[1:], strict=True)
        ],
        slices=dict(zip((SLICE_STEPPING, SLICE_AVAILABLE), cursor.overlay.shares or (), strict=False)),
        rolling=rolling,
        recent=ending,
        stages=dict(stages),
        long_phases=dict(long_phases),
    )


def brief_of(cursor: Cursor, at: int | None = None) -> Brief:
    """Return the part of :func:`totals_of` that takes little time; arguments as there."""
    moment, startups = cursor.now if at is None else at + cursor.shift, _startups(cursor)
    return Brief(
        at=moment - cursor.shift,
        ended=cursor.ended,
        since_step=cursor.since_step,
        executed=cursor.steps.executed,
        attempts=cursor.steps.attempts,
        run=_run(cursor, startups),
        history=_history(cursor, startups),
        recompilations=cursor.recompilations,
        recompiled=_recompiled(cursor),
        first_step=cursor.steps.first_step,
        excess=_excess(cursor),
        unfinished=_unfinished(cursor),
        loop=cursor.steps.loop,
    )


def _excess(cursor: Cursor) -> dict[str, int]:
    loads, others = cursor.outside.excess(cursor.totals)
    steps = sum(loop.singles.excess for loop in cursor.steps.loops.values())
    return {Category.PRODUCTIVE: steps, Category.DATA_LOADING: loads, Category.OTHER: others}


def _unfinished(cursor: Cursor) -> dict[str, int]:
    loads, others = cursor.outside.unfinished(cursor.totals)
    return {Category.DATA_LOADING: loads, Category.OTHER: others}


# Segments with start-up hidden in their first steps (rule R5): how much, and how much of that is not excluded, ns.
Startups = list[tuple[StepSegment, int, int]]


def _startups(cursor: Cursor) -> Startups:
    return [
        (segment, excess, excess - leading(segment.pieces, excess, rules.EXCLUDED))
        for segment in cursor.steps.segments
        if (excess := segment.excess(cursor.steps.progress))
    ]


def _disruptions(cursor: Cursor, startups: Startups) -> list[Disruption]:
    """Those that are remembered. Start-up hidden in a first step is start-up, not waste (rule R5)."""
    disruptions = cursor.steps.disruptions
    remembered = [*disruptions.earlier, *disruptions.latest]
    oldest = disruptions.count - len(remembered) + 1
    for segment, _, hidden in startups:
        lost, began = segment.lost_to - oldest, segment.starts - oldest
        if 0 <= lost < len(remembered) and segment.first_index is None:
            remembered[lost] = remembered[lost]._replace(wasted=remembered[lost].wasted - hidden)
        if 0 <= began < len(remembered) and (startup := remembered[began].startup) is not None:
            remembered[began] = remembered[began]._replace(startup=startup + hidden)
    return remembered


def _history(cursor: Cursor, startups: Startups) -> list[Disruption]:
    return _disruptions(cursor, startups)[len(cursor.steps.disruptions.earlier) :]


def _recompiled(cursor: Cursor) -> dict[str, int]:
    return dict(sorted(cursor.steps.recompiled.items(), key=lambda function: -function[1]))


def _run(cursor: Cursor, startups: Startups) -> Partition:
    times = dict(enumerate(cursor.visible_times()))
    for segment, _, hidden in startups:
        transfer(times, segment, hidden)
    return partition(times, cursor.names, cursor.steps.top(), cursor.visible_weighted())


def _window(cursor: Cursor, window: Window, startups: Startups) -> Partition:
    times = dict(window.totals)
    add(times, rules.PRODUCTIVE, window.kept_total)
    for fate, duration in window.discarded.items():
        add(times, fate, duration)
    for execution in cursor.steps.running.values():
        add(times, rules.IN_FLIGHT, execution.shared(window.bit))
    for segment, excess, _ in startups:
        transfer(times, segment, leading(segment.pieces, excess, window.bit))
    top = cursor.steps.progress.number_at(max(window.kept)) if window.kept else None
    return partition(times, cursor.names, top, window.weighted)


def _rolling_windows(
    cursor: Cursor, startups: Startups, moment: int
) -> tuple[list[tuple[int, int, Partition]], list[tuple[int, Partition]]]:
    """Return ``Totals.recent`` and ``Totals.rolling`` at `moment` (ns)."""
    spans, until = cursor.spans, cursor.now
    known = {  # they only move forward
        time: [_rolling(cursor, which, startups, time) for which in range(len(spans))]
        for time in sorted({until, moment})
    }
    begin = until if cursor.begin is None else cursor.begin
    excluded = cursor.steps.windows[0].elapsed
    recent = [
        (until - span, until, window)
        for span, window in zip(spans, known[until], strict=True)
        if window.elapsed + excluded >= min(span, until - begin) > 0
    ]
    return recent, list(zip(spans, known[moment], strict=True))


def _rolling(cursor: Cursor, which: int, startups: Startups, now: int) -> Partition:
    rolling = cursor.steps.rolling
    if rolling is None:
        return partition({}, (), None, NOTHING)
    times = rolling.window(which, now, cursor.visible_times())
    left = now - cursor.spans[which]
    for segment, excess, hidden in reversed(startups):
        inside = min(now, segment.first_start + excess) - max(left, segment.first_start)
        transfer(times, segment, max(0, min(inside, hidden, times.get(segment.category, 0))))
    weighted = rolling.weighted(which, now, cursor.visible_weighted())
    return partition(times, cursor.names, cursor.steps.top(), weighted)


def build_overview(cursor: Cursor, phase_history: PhaseHistory, at: int | None) -> Overview:
    """Return the overview of `cursor` as it stands now, for the time `at` (ns by the clock of the latest attempt)."""
    steps, risk_curve, summary, bins = cursor.steps, cursor.risk_curve, cursor.steps.summary, cursor.steps.bins
    assert summary is not None, "a ledger's cursor follows what an overview shows"
    summary.flush()
    running = list(steps.running.values())
    startups = _startups(cursor)
    phases, left_out = phase_history.phases(risk_curve.shifts)
    groups = phase_history.groups()
    for place, group in enumerate(groups):  # only when a body is over is it known to be a batch that its loop skipped
        if group.phase == rules.STEP:
            total = max(0, group.total - steps.skipped_wall)
            groups[place] = group._replace(count=group.count - steps.skipped, total=total)
    jobs = list(risk_curve.lives)
    if jobs and jobs[-1].end == NOT_KNOWN and not cursor.alive:  # its process is dead
        jobs[-1] = jobs[-1]._replace(end=cursor.now)
    return Overview(
        begin=cursor.begin or 0,
        width=1 if bins is None else bins.width,
        bins=[] if bins is None else bins.answer(cursor.visible_times(), startups),
        names=tuple(cursor.names),
        step_bins=summary.bins.answer(),
        histogram=summary.tallies.answer(running),
        groups=[group for group in groups if group.phase != rules.STEP or group.count > 0],
        phases=phases,
        left_out=left_out + risk_curve.left_out,
        steps=summary.notable(running),
        saves=phase_history.saves(risk_curve.shifts),
        at_risk=[] if cursor.begin is None else [(cursor.begin, 0), *risk_curve.corners, (cursor.now, steps.at_risk())],
        jobs=jobs,
        numbering=steps.stretches,
        shifts=risk_curve.shifts,
        # Without what a digest has no room for.
        disruptions=[
            one._replace(error=None, ended_by=None, startup=None, restored=None)
            for one in _disruptions(cursor, startups)
        ],
        notices=phase_history.notices.copy(),
        slices=phase_history.slices.copy(),
        excluded=phase_history.excluded,
        last_step=steps.last_step,
        last_sign=cursor.now if cursor.finished or at is None else at + cursor.shift,
        stages=dict(phase_history.stages.sums),
    )
