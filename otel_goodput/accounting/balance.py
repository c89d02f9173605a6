"""Draws the balance of a cursor: the partition of the whole run, of exact windows and of rolling ones."""

from __future__ import annotations

from collections.abc import Iterable

from otel_goodput.accounting import stats
from otel_goodput.accounting.cursor import Cursor
from otel_goodput.accounting.disruption import Disruption
from otel_goodput.accounting.lenses import EXCLUDED, Lens, leading
from otel_goodput.accounting.overlay import NOTHING
from otel_goodput.accounting.rules import DEVIATION_SAMPLE, IDEAL_SAMPLE, IN_FLIGHT, PRODUCTIVE, PROGRAM_STARTUP
from otel_goodput.accounting.rules import WASTED_PROGRESS as WASTED
from otel_goodput.accounting.stretches import Stretch
from otel_goodput.accounting.totals import Partition, StepTime, Totals, partition


def draw(
    cursor: Cursor, windows: Iterable[tuple[int, int]] = (), ideal_step_time: float | None = None, at: int | None = None
) -> Totals:
    """The account as `cursor` has it now; `windows` are those of its lenses 1, 2, ... (ns), `ideal_step_time` in ns.

    `at` is the time of the question (ns, by the clock of the latest attempt), by default the cursor's; rolling windows
    end there.
    """
    kept = len(cursor.course.progress)
    # What the device did after the job's end is not in the account: a step all of which lies there has no step time.
    nets = [net for net in cursor.course.progress.nets(kept - IDEAL_SAMPLE - DEVIATION_SAMPLE, kept) if net]
    recent = sorted(nets[-IDEAL_SAMPLE:])
    startups = [
        (stretch, excess) for stretch in cursor.course.stretches if (excess := stretch.excess(cursor.course.progress))
    ]
    hidden = cursor.lenses[0]
    asked = cursor.now if at is None else at + cursor.shift
    running = list(cursor.course.running.values())
    return Totals(
        at=asked - cursor.shift,
        started_at=cursor.begin,
        ended=cursor.ended,
        finished=cursor.finished,
        last_sign=(cursor.now if cursor.finished else asked) - cursor.shift,
        run=_run(cursor, startups),
        excluded=hidden.elapsed,
        overlapped_data_loading=cursor.overlapped,
        last_step=cursor.course.last_step,
        in_flight_step=running[-1].number if running else None,
        in_flight_since=running[-1].start - cursor.shift if running else None,
        clock=cursor.clock or cursor.fallback,
        executed=cursor.course.executed,
        pending=len(running),
        kept=kept,
        lost=cursor.course.lost,
        attempts=cursor.course.attempts,
        disruptions=dict(cursor.course.disruptions),
        history=_history(cursor, startups),
        ideal_step_time=stats.ideal_step_time(recent) if ideal_step_time is None else ideal_step_time,
        step_time_deviation=stats.step_time_deviation(nets),
        step_time=_step_time(recent),
        at_risk=_at_risk(cursor, startups),
        recompilations=cursor.recompilations,
        recompiled=dict(sorted(cursor.course.recompiled.items(), key=lambda function: -function[1])),
        compilations_seen=cursor.totals[PROGRAM_STARTUP] > 0 or cursor.course.life.compiles_seen,
        step_cadence=_cadence(cursor),
        observed=cursor.course.observed,
        skewed_clocks=cursor.skewed,
        windows=[
            (start, end, _window(cursor, lens, startups))
            for (start, end), lens in zip(windows, cursor.lenses[1:], strict=True)
        ],
        rolling=[(span, _rolling(cursor, which, startups, asked)) for which, span in enumerate(cursor.spans)],
    )


Startups = list[tuple[Stretch, int]]


def _history(cursor: Cursor, startups: Startups) -> list[Disruption]:
    """The latest disruptions; the start-up hidden in a lost first step is no waste of theirs (rule R5)."""
    course = cursor.course
    history = [entry.clone() for entry in course.history]
    oldest = course.disrupted - len(history) + 1
    for stretch, excess in startups:
        if stretch.lost_to >= oldest and stretch.first_index is None:
            history[stretch.lost_to - oldest].wasted -= excess - leading(stretch.pieces, excess, EXCLUDED)
    return history


def _run(cursor: Cursor, startups: Startups) -> Partition:
    hidden = cursor.lenses[0]
    times = {category: total - hidden.totals.get(category, 0) for category, total in enumerate(cursor.totals)}
    times[PRODUCTIVE] += cursor.course.progress.total - hidden.kept_total
    for fate, duration in cursor.course.forfeited.items():
        times[fate] += duration - hidden.forfeited.get(fate, 0)
    for execution in cursor.course.running.values():
        times[IN_FLIGHT] += execution.visible
    for stretch, excess in startups:
        _transfer(times, stretch, excess - leading(stretch.pieces, excess, EXCLUDED))
    return partition(times, cursor.names, _top(cursor), cursor.visible_beside())


def _window(cursor: Cursor, lens: Lens, startups: Startups) -> Partition:
    times = dict(lens.totals)
    times[PRODUCTIVE] = times.get(PRODUCTIVE, 0) + lens.kept_total
    for fate, duration in lens.forfeited.items():
        times[fate] = times.get(fate, 0) + duration
    for execution in cursor.course.running.values():
        times[IN_FLIGHT] = times.get(IN_FLIGHT, 0) + execution.shared(lens.bit)
    for stretch, excess in startups:
        _transfer(times, stretch, leading(stretch.pieces, excess, lens.bit))
    top = cursor.course.progress.number_at(max(lens.kept)) if lens.kept else None
    return partition(times, cursor.names, top, lens.beside)


def _rolling(cursor: Cursor, which: int, startups: Startups, now: int) -> Partition:
    if cursor.rolling is None:
        return partition({}, (), None, NOTHING)
    times = cursor.rolling.window(which, now, cursor.visible_totals(), cursor.course.running.values())
    left = now - cursor.spans[which]
    for stretch, excess in reversed(startups):
        inside = min(now, stretch.first_start + excess) - max(left, stretch.first_start)
        source = WASTED if stretch.first_index is None else PRODUCTIVE
        hidden = leading(stretch.pieces, excess, EXCLUDED)
        _transfer(times, stretch, max(0, min(inside, excess - hidden, times.get(source, 0))))
    return partition(times, cursor.names, _top(cursor), cursor.rolling.beside(which, now, cursor.visible_beside()))


def _transfer(times: dict[int, int], stretch: Stretch, excess: int) -> None:
    """Move the start-up hidden in a stretch's first step to where it belongs (rule R5)."""
    if excess:
        source = WASTED if stretch.first_index is None else PRODUCTIVE
        times[source] = times.get(source, 0) - excess
        times[PROGRAM_STARTUP] = times.get(PROGRAM_STARTUP, 0) + excess


def _top(cursor: Cursor) -> int | None:
    return cursor.course.progress.top if len(cursor.course.progress) else None


def _at_risk(cursor: Cursor, startups: Startups) -> int:
    """Productive time of kept steps that no durable checkpoint covers, ns."""
    hidden = cursor.lenses[0]
    progress = cursor.course.progress
    safe = progress.index_above(cursor.course.safe)
    exposed = progress.total_from(safe) - hidden.kept_from(safe)
    for stretch, excess in startups:
        if stretch.first_index is not None and stretch.first_index >= safe:
            exposed -= excess - leading(stretch.pieces, excess, EXCLUDED)
    return exposed


def _cadence(cursor: Cursor) -> float | None:
    """Wall time from one step to the next in the latest stretch, ns; None where it has too few steps to tell."""
    stretch = cursor.course.stretches[-1] if cursor.course.stretches else None
    if stretch is None or stretch.high - stretch.low < 2:
        return None
    return (cursor.now - stretch.begin) / (stretch.high - stretch.low)


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
