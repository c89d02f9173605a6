"""Computes :class:`Totals` from a cursor: partitions of the whole run, of exact windows and of rolling windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import sub

from otel_goodput._accounting import stats
from otel_goodput._accounting.checkpoints import StageSums
from otel_goodput._accounting.cursor import Cursor
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.long_phases import LongPhase
from otel_goodput._accounting.overlay import NOTHING
from otel_goodput._accounting.rules import DEVIATION_SAMPLE, IDEAL_SAMPLE, IN_FLIGHT, PRODUCTIVE, PROGRAM_STARTUP
from otel_goodput._accounting.rules import WASTED_PROGRESS as WASTED
from otel_goodput._accounting.step_segments import StepSegment
from otel_goodput._accounting.totals import Partition, StepTime, Totals, partition
from otel_goodput._accounting.windows import EXCLUDED, Window, leading
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
