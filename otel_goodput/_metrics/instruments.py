"""The metrics: observable instruments over one consistent snapshot of the account per collection.

Histograms of durations are recorded on the keeper's thread. Metrics of this process that are not part of the account
begin anew with each attempt.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_goodput import semconv
from otel_goodput._accounting import Partition, Totals
from otel_goodput._accounting.paces import straggler
from otel_goodput._accounting.rules import PART
from otel_goodput._journal.journal import OVERFLOW
from otel_goodput._journal.listeners import EndedPhase
from otel_goodput._runtime.guard import contain
from otel_goodput._text.durations import NS, window_name
from otel_goodput.semconv import Category, JobState, Metric

# Hits and misses of the persistent compilation cache, and the seconds that hits saved; None if it is not in use.
Cache = Callable[[], tuple[int, int, float] | None]
Waits = Callable[[], Mapping[str, int]]  # ns by stage, of those that are known
Observe = Callable[[], Iterable[Observation]]


def register_process(meter: Meter, cache: Cache, waits: Waits) -> None:
    """Create the instruments.

    Args:
        meter: creates them.
        cache: returns what the persistent compilation cache did.
        waits: returns how long this attempt waited before its program ran.
    """
    create: Final = {
        semconv.UP_DOWN: meter.create_observable_up_down_counter,
        semconv.COUNTER: meter.create_observable_counter,
        semconv.GAUGE: meter.create_observable_gauge,
    }
    rows: Final[tuple[tuple[Metric, Observe], ...]] = (
        (semconv.COMPILE_CACHE, lambda: _lookups(cache)),
        (semconv.COMPILE_TIME_SAVED, lambda: _saved(cache)),
        (semconv.SCHEDULING_DURATION, lambda: _waited(waits)),
    )
    for metric, observe in rows:
        create[metric.kind](metric.name, [_contained(metric, observe)], metric.unit, metric.brief)


def _lookups(cache: Cache) -> Iterable[Observation]:
    """Both results, also those that have not happened yet: a rate needs a series that begins at 0."""
    found = cache()
    if found is not None or "jax" in sys.modules:
        for result, count in zip(semconv.CACHE_RESULTS, found or (0, 0), strict=False):
            yield Observation(count, {semconv.GOODPUT_COMPILE_CACHE_RESULT: result})


def _saved(cache: Cache) -> Iterable[Observation]:
    found = cache()
    if found is not None:
        yield Observation(found[2])


def _waited(waits: Waits) -> Iterable[Observation]:
    for stage, duration in waits().items():
        yield Observation(duration / NS, {semconv.GOODPUT_SCHEDULING_STAGE: stage})


def _contained(metric: Metric, observe: Observe) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def rows(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return list(observe())
        except Exception as error:
            contain(f"metric {metric.name}", error)
            return []

    return rows


MOST_TIMED: Final = 300  # names with durations: each has a series per value of blocking and of error.type


class Names:
    """Keeps the first names as they are and replaces all others by one name.

    The SDK limits the series of an instrument (``instruments.CARDINALITY``), and merges further ones into one without
    attributes.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, name: str, most: int) -> str:
        if name not in self._known:
            if len(self._known) >= most:
                return OVERFLOW
            self._known.add(name)
        return name


class Durations:
    """The histograms of durations; recorded to on the keeper's thread."""

    def __init__(self, meter: Meter) -> None:
        step, phase, part = semconv.STEP_DURATION, semconv.PHASE_DURATION, semconv.PART_DURATION
        self._step = meter.create_histogram(step.name, step.unit, step.brief)
        self._phase = meter.create_histogram(phase.name, phase.unit, phase.brief)
        self._part = meter.create_histogram(part.name, part.unit, part.brief)
        self._names = Names()

    def steps(self, nets: list[int]) -> None:
        """Record net step times, ns."""
        record = self._step.record
        for net in nets:
            record(net / NS)

    def phases(self, ended: list[EndedPhase]) -> None:
        """Record phases that have ended."""
        record = self._phase.record
        for phase, name, blocking, error, duration in ended:
            name = self._names(name, MOST_TIMED)
            if phase == PART:
                self._part.record(duration / NS, {semconv.GOODPUT_PART_NAME: name})
                continue
            record(
                duration / NS,
                {
                    semconv.GOODPUT_PHASE: semconv.PHASES[phase],
                    semconv.GOODPUT_CUSTOM_NAME: name,
                    semconv.GOODPUT_BLOCKING: blocking,
                    semconv.ERROR_TYPE: error,
                },
            )


Rows = Iterable[tuple[float | int, dict[str, str]]]

CARDINALITY: Final = 2000  # https://opentelemetry.io/docs/specs/otel/metrics/sdk/#cardinality-limits


class Snapshot:
    """Provides one snapshot to all callbacks of a collection, with its names limited to the SDK's number of series.

    Each reader collects on a thread of its own and calls every instrument once. When a thread asks for the same
    instrument again, a new collection has begun.
    """

    def __init__(self, totals: Callable[[], Totals | None]) -> None:
        self._totals = totals
        self._mine = threading.local()
        self._names = Names()

    def __call__(self, instrument: str) -> Totals | None:
        mine = self._mine
        asked: set[str] | None = getattr(mine, "asked", None)
        if asked is None or instrument in asked:
            found = self._totals()
            mine.totals = None if found is None else self._bounded(found)
            mine.asked = asked = set()
        asked.add(instrument)
        totals: Totals | None = mine.totals
        return totals

    def _bounded(self, totals: Totals) -> Totals:
        windows = 1 + len(totals.rolling)
        most = CARDINALITY // windows - len(totals.run.categories) - 2
        if len(totals.run.custom) <= most:
            return totals
        return replace(
            totals,
            run=self._folded(totals.run, most),
            rolling=[(span, self._folded(partition, most)) for span, partition in totals.rolling],
        )

    def _folded(self, partition: Partition, most: int) -> Partition:
        custom: dict[str, int] = {}
        for name, duration in partition.custom.items():
            name = self._names(name, most)
            custom[name] = custom.get(name, 0) + duration
        return replace(partition, custom=custom)


def _time(totals: Totals) -> Rows:
    yield from _by_category(totals.run, lambda duration: duration / NS, {}, productive=True)


def _by_category(
    partition: Partition, figure: Callable[[int], float], more: dict[str, str], *, productive: bool
) -> Rows:
    """Yield a figure for every category, also for those without time, so that a series falls to 0 visibly."""
    for name, duration in partition.categories.items():
        if productive or name != Category.PRODUCTIVE:
            yield figure(duration), {**more, semconv.GOODPUT_CATEGORY: name, semconv.GOODPUT_CUSTOM_NAME: ""}
    for name, duration in partition.custom.items():
        yield figure(duration), {**more, semconv.GOODPUT_CATEGORY: Category.CUSTOM, semconv.GOODPUT_CUSTOM_NAME: name}


def _partitions(totals: Totals) -> Iterable[tuple[str, Partition]]:
    yield semconv.WINDOW_RUN, totals.run
    for span, partition in totals.rolling:
        yield window_name(span), partition


def _ratio(totals: Totals) -> Rows:
    for window, partition in _partitions(totals):
        if partition.goodput is not None:
            yield float(partition.goodput), {semconv.GOODPUT_WINDOW: window}


def _badput(totals: Totals) -> Rows:
    for window, partition in _partitions(totals):
        elapsed = partition.elapsed
        if elapsed and partition.known:
            share = _share_of(elapsed)
            yield from _by_category(partition, share, {semconv.GOODPUT_WINDOW: window}, productive=False)


def _stalled(totals: Totals) -> Rows:
    for window, partition in _partitions(totals):
        if partition.elapsed:
            for state, duration in partition.stalled.items():
                yield (
                    duration / partition.elapsed,
                    {semconv.GOODPUT_WINDOW: window, semconv.GOODPUT_STEP_STATE: state},
                )


def _share_of(elapsed: int) -> Callable[[int], float]:
    return lambda duration: duration / elapsed


def _steps(totals: Totals) -> Rows:
    yield totals.kept, {semconv.GOODPUT_STEP_STATE: semconv.STEP_KEPT}
    yield totals.lost, {semconv.GOODPUT_STEP_STATE: semconv.STEP_LOST}


def _step_age(totals: Totals) -> Rows:
    """Yield both activities, so that the end of one cannot be mistaken for a series that stopped."""
    if totals.started_at is not None:
        for activity in semconv.ACTIVITIES:
            now = totals.in_step == (activity == semconv.IN_STEP)
            yield (totals.since_step or 0) / NS if now else 0.0, {semconv.GOODPUT_ACTIVITY: activity}


def _max_step(totals: Totals) -> Rows:
    if totals.run.max_productive_step is not None:
        yield totals.run.max_productive_step, {}


def _at_risk(totals: Totals) -> Rows:
    yield totals.at_risk / NS, {}


def _disruptions(totals: Totals) -> Rows:
    for reason in semconv.REASONS:
        yield totals.disruptions.get(reason, 0), {semconv.GOODPUT_DISRUPTION_REASON: reason}


def _window_disruptions(totals: Totals) -> Rows:
    for span, _ in totals.rolling:
        recent = Counter(one.reason for one in totals.history if totals.at - span < one.time <= totals.at)
        for reason in semconv.REASONS:
            if reason in totals.disruptions:
                yield (
                    recent[reason],
                    {semconv.GOODPUT_WINDOW: window_name(span), semconv.GOODPUT_DISRUPTION_REASON: reason},
                )


def _overlapped(totals: Totals) -> Rows:
    yield totals.overlapped_data_loading / NS, {}


def _slices_now(totals: Totals) -> Rows:
    for state, share in totals.slices.items():
        yield float(share), {semconv.GOODPUT_SLICE_STATE: state}


def _if_known(figure: Callable[[Totals], float | None], unit: int = 1) -> Callable[[Totals], Rows]:
    """Return the row of a figure, in multiples of `unit`; there is none while it is not known."""

    def rows(totals: Totals) -> Rows:
        value = figure(totals)
        if value is not None:
            yield value / unit, {}

    return rows


def _regained(totals: Totals) -> Rows:
    """Yield nothing while the latest disruption has not been made up for: the time of an earlier one says nothing."""
    if totals.history and totals.history[-1].regained is not None:
        yield totals.history[-1].regained / NS, {}


def _slices(totals: Totals) -> Rows:
    for state, share in totals.run.slice_efficiency.items():
        yield float(share), {semconv.GOODPUT_SLICE_STATE: state}


def _window_slices(totals: Totals) -> Rows:
    for span, partition in totals.rolling:
        for state, share in partition.slice_efficiency.items():
            yield float(share), {semconv.GOODPUT_WINDOW: window_name(span), semconv.GOODPUT_SLICE_STATE: state}


def _clock(totals: Totals) -> Rows:
    """Yield the current clock state only; earlier ones are no longer reported."""
    if totals.started_at is not None:
        yield 1, {semconv.GOODPUT_CLOCK_STATE: totals.clock}


def _job_state(totals: Totals) -> Rows:
    """Yield both states, as 0 or 1, so that the end of a state cannot be mistaken for a series that stopped."""
    if totals.started_at is not None:
        for state in semconv.JOB_STATES:
            yield int(totals.finished == (state == JobState.ENDED)), {semconv.GOODPUT_JOB_STATE: state}


def _last_sign(totals: Totals) -> Rows:
    if totals.started_at is not None:
        yield totals.last_sign / NS, {}


def _straggler(totals: Totals) -> Rows:
    slowest = straggler(totals.paces)
    if slowest is not None:
        yield slowest.ratio, {}


def _of_fates(rows: Callable[[Totals], Rows]) -> Callable[[Totals], Rows]:
    """Return `rows`, but without any row while the fate of the run's steps is unknown; ratios check each window."""
    return lambda totals: rows(totals) if totals.run.known else ()


# The rows of each metric. A metric has no rows if it depends on inputs that were not given, or on steps whose end on
# the device is unknown. Times by category and counts are exact nevertheless: a step that was dispatched counts as kept,
# also as the highest step, until the run goes back.
ROWS: Final[Sequence[tuple[Metric, Callable[[Totals], Rows]]]] = (
    (semconv.TIME, _time),
    (semconv.RATIO, _ratio),
    (semconv.BADPUT_RATIO, _badput),
    (semconv.STALLED_RATIO, _stalled),
    (semconv.STEP_COUNT, _steps),
    (semconv.STEP_AGE, _step_age),
    (semconv.STEP_MAX, _max_step),
    (semconv.STEP_IDEAL, _of_fates(_if_known(lambda totals: totals.ideal_step_time, NS))),
    (semconv.STEP_DEVIATION, _of_fates(_if_known(lambda totals: totals.step_time_deviation, NS))),
    (semconv.AT_RISK, _of_fates(_at_risk)),
    (semconv.DISRUPTIONS, _disruptions),
    (semconv.WINDOW_DISRUPTIONS, _window_disruptions),
    (semconv.OVERLAPPED_LOADING, _overlapped),
    (semconv.FIRST_STEP, _of_fates(_if_known(lambda totals: totals.first_step, NS))),
    (semconv.REGAINED, _of_fates(_regained)),
    (semconv.SCHEDULING_RATIO, _if_known(lambda totals: totals.scheduling)),
    (semconv.PROGRAM_RATIO, _of_fates(_if_known(lambda totals: totals.program))),
    (semconv.PRODUCTIVITY, _of_fates(_if_known(lambda totals: totals.productivity))),
    (semconv.SLICE_EFFICIENCY, _slices),
    (semconv.SLICE_SHARE, _slices_now),
    (semconv.SLICE_WINDOW_EFFICIENCY, _window_slices),
    (semconv.CLOCK, _clock),
    (semconv.JOB_STATE, _job_state),
    (semconv.LAST_SIGN, _last_sign),
    (semconv.STRAGGLER, _of_fates(_straggler)),
)


def register_account(meter: Meter, totals: Callable[[], Totals | None]) -> None:
    """Create the instruments of the account on `meter`; `totals` returns it, None if there is nothing to measure."""
    snapshot = Snapshot(totals)
    for metric, rows in ROWS:
        observed = [_callback(metric, rows, snapshot)]
        _creators(meter)[metric.kind](metric.name, observed, metric.unit, metric.brief)


def _creators(meter: Meter) -> dict[str, Callable[..., object]]:
    return {
        semconv.UP_DOWN: meter.create_observable_up_down_counter,
        semconv.COUNTER: meter.create_observable_counter,
        semconv.GAUGE: meter.create_observable_gauge,
    }


def register(
    meter: Meter,
    totals: Callable[[], Totals | None],
    overhead: Callable[[], int],
    dropped: Callable[[], dict[str, int]],
    queue_depth: Callable[[], int | None] = lambda: None,
) -> Durations:
    """Create the instruments on `meter`.

    Args:
        meter: creates the instruments.
        totals: returns the current account; None if there is nothing to measure.
        overhead: returns the time this package took on the training thread, ns.
        dropped: returns the number of lost items, by signal.
        queue_depth: returns how many batches are ready; None if not known.

    Returns:
        the histograms, to record durations as they become known.
    """
    register_account(meter, totals)
    create = _creators(meter)

    def overhead_rows(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(overhead() / NS)

    def dropped_rows(_: CallbackOptions) -> Iterable[Observation]:
        for signal, count in dropped().items():
            yield Observation(count, {semconv.GOODPUT_SIGNAL: signal})

    def queue_rows(_: CallbackOptions) -> Iterable[Observation]:
        try:
            depth = queue_depth()
            depth = None if depth is None else int(depth)  # the user's function may return anything
        except Exception as error:
            contain("queue_depth", error)
            return
        if depth is not None:
            yield Observation(depth)

    create[semconv.QUEUE_DEPTH.kind](
        semconv.QUEUE_DEPTH.name, [queue_rows], semconv.QUEUE_DEPTH.unit, semconv.QUEUE_DEPTH.brief
    )
    create[semconv.OVERHEAD.kind](semconv.OVERHEAD.name, [overhead_rows], semconv.OVERHEAD.unit, semconv.OVERHEAD.brief)
    create[semconv.DROPPED.kind](semconv.DROPPED.name, [dropped_rows], semconv.DROPPED.unit, semconv.DROPPED.brief)
    return Durations(meter)


def _callback(
    metric: Metric, rows: Callable[[Totals], Rows], snapshot: Snapshot
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        try:
            totals = snapshot(metric.name)
            return [] if totals is None else [Observation(*row) for row in rows(totals)]
        except Exception as error:
            contain(f"metric {metric.name}", error)
            return []

    return observe
