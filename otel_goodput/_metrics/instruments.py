"""The metrics: observable instruments over one consistent snapshot of the account per collection.

Metrics of this process that are not part of the account restart with each attempt.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from otel_goodput import semconv
from otel_goodput._accounting import Partition, Totals
from otel_goodput._accounting.incidents import Incident
from otel_goodput._accounting.own_time import OwnTimes
from otel_goodput._accounting.phase_history import EndedPhases
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._accounting.rules import CUSTOM_PHASE, PART
from otel_goodput._accounting.stats import straggler
from otel_goodput._journal.journal import OVERFLOW
from otel_goodput._journal.loader_times import WorkerTimes, added
from otel_goodput._metrics.rank_waits import RankRows, RankWaits, gain_rows, own_rows
from otel_goodput._metrics.usage_rows import UsageRows, Usages
from otel_goodput._runtime.guard import contain
from otel_goodput._text.durations import NS, window_name
from otel_goodput.semconv import Category, JobState, Metric

# Hits and misses of the persistent compilation cache, and the seconds that hits saved; None if it is not in use.
Cache = Callable[[], tuple[int, int, float] | None]
Waits = Callable[[], Mapping[str, int]]  # how long this attempt waited before its program ran: ns by known stage
Rows = Iterable[tuple[Any, ...]]
"""Values, each followed by the values of the metric's attributes."""


def register_ranks(meter: Meter, waits: RankWaits) -> None:
    """Create the instrument of a job of several ranks; `waits` returns for which of them it waited, None if unknown."""
    _create(meter, semconv.RANK_WAIT, RankRows(waits))


def register_usage(meter: Meter, usages: Callable[[], Usages]) -> None:
    """Create the instruments of processor, memory and accelerators; `usages` returns what each rank uses now."""
    rows = UsageRows(usages)
    for metric in rows.metrics:
        _create(meter, metric, partial(rows, metric))


def register_loader(meter: Meter, times: Callable[[], Sequence[WorkerTimes]]) -> None:
    """Create the instrument of the stages of data loaders; `times` returns those of each worker so far."""
    _create(meter, semconv.LOADER_STAGE, lambda: _stages(times()))


def _stages(workers: Sequence[WorkerTimes]) -> Rows:
    if workers:
        for blocking, sums in zip((True, False), added(workers), strict=True):
            yield from ((time / NS, stage, blocking) for stage, time in zip(semconv.LOADER_STAGES, sums, strict=True))


def register_own_times(meter: Meter, own: Callable[[], OwnTimes]) -> None:
    """Create the instruments of what the ranks of a job do themselves inside of steps, which `own` returns."""
    _create(meter, semconv.RANK_OWN, lambda: own_rows(own()))
    _create(meter, semconv.RANK_GAIN, lambda: gain_rows(own()))


def register_process(meter: Meter, cache: Cache, waits: Waits) -> None:
    """Create the instruments of this process that are not part of the account."""
    _create(meter, semconv.COMPILE_CACHE, lambda: _lookups(cache()))
    _create(meter, semconv.COMPILE_TIME_SAVED, lambda: _present((result := cache()) and result[2]))
    _create(meter, semconv.SCHEDULING_DURATION, lambda: ((wait / NS, stage) for stage, wait in waits().items()))


def register_incidents(meter: Meter, incidents: Callable[[], Sequence[Incident]]) -> None:
    """Create the instruments of what is wrong with the job; `incidents` returns those of this attempt."""
    _create(meter, semconv.INCIDENT_ACTIVE, lambda: _active(incidents()))
    _create(meter, semconv.INCIDENT_COUNT, lambda: _by_cause(incidents(), lambda _: 1))
    _create(meter, semconv.INCIDENT_COST, lambda: _by_cause(incidents(), lambda one: one.cost / NS))


MOST_INCIDENTS: Final = 16  # with series of their own: those that are open, and the latest of the others


def _active(incidents: Sequence[Incident]) -> Rows:
    """Yield 0 for those that are over, so that the end of one cannot be mistaken for a series that stopped."""
    rows: dict[tuple[str, ...], int] = {}
    for one in sorted(incidents, key=lambda one: (one.ended is None, one.number))[-MOST_INCIDENTS:]:
        rank = "" if one.source.rank == NOBODY else str(one.source.rank)
        rows[one.kind, one.source.category, one.source.name, rank, one.line] = int(one.ended is None)
    return ((value, *attributes) for attributes, value in rows.items())


def _by_cause(incidents: Sequence[Incident], value: Callable[[Incident], float]) -> Rows:
    sums = Counter[tuple[str, str]]()
    for one in incidents:
        sums[one.kind, one.source.category] += value(one)  # type: ignore[assignment]
    return ((total, *attributes) for attributes, total in sums.items())


def _lookups(result: tuple[int, int, float] | None) -> Rows:
    """Both results, also those that have not happened yet: a rate needs a series that begins at 0."""
    used = result is not None or "jax" in sys.modules
    return zip(result or (0, 0), semconv.CACHE_RESULTS, strict=False) if used else ()


def _present(value: float | None, *attributes: str) -> Rows:
    """Return the row of a value; none if the value is not known."""
    return () if value is None else ((value, *attributes),)


def attributed(metric: Metric, rows: Rows) -> list[tuple[float, dict[str, str]]]:
    """Return the values of rows with their attributes."""
    return [(value, dict(zip(metric.attributes, attributes, strict=True))) for value, *attributes in rows]


def _create(meter: Meter, metric: Metric, rows: Callable[[], Rows]) -> None:
    """Create an observable instrument. An error in its callback costs this instrument's points alone."""

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return [Observation(*row) for row in attributed(metric, rows())]
        except Exception as error:
            contain(f"metric {metric.name}", error)
            return []

    creators = {
        semconv.UP_DOWN: meter.create_observable_up_down_counter,
        semconv.COUNTER: meter.create_observable_counter,
        semconv.GAUGE: meter.create_observable_gauge,
    }
    creators[metric.kind](metric.name, [observe], metric.unit, metric.brief)


PATIENCE_S: Final = 1.0
MOST_TIMED: Final = 300  # names with durations: each has a series per value of blocking and of error.type


class Names:
    """Keeps the first names and replaces all others by one: beyond ``CARDINALITY`` series the SDK drops attributes."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, name: str, most: int) -> str:
        if name not in self._known and len(self._known) >= most:
            return OVERFLOW
        self._known.add(name)
        return name


_NAMED: Final = frozenset({CUSTOM_PHASE, PART})  # phases that users name


class Durations:
    """The histograms of durations.

    The SDK takes microseconds for each, so durations wait until somebody records them: the keeper, a little at a time,
    or a collection of the metrics.
    """

    def __init__(self, meter: Meter) -> None:
        metrics = semconv.STEP_DURATION, semconv.PHASE_DURATION, semconv.PART_DURATION
        histograms = (meter.create_histogram(metric.name, metric.unit, metric.brief) for metric in metrics)
        self._step, self._phase, self._part = histograms
        self._names = Names()
        # Each with its lengths in ns, the latest first.
        self._waiting: deque[tuple[Histogram, dict[str, str | bool] | None, list[int]]] = deque()
        self._taken = self._recorded = 0
        self._recording = threading.RLock()

    def take(self, nets: list[int], ended: list[tuple[EndedPhases, str]]) -> None:
        """Take net step times, ns, and phases that have ended, each with its ``error.type``, which may be empty.

        The caller holds the lock of the ledger.
        """
        self._wait(self._step, None, nets)
        for (phase, name, blocking, _, lengths), error in ended:
            name = self._names(name if phase in _NAMED else "", MOST_TIMED)
            if phase == PART:
                self._wait(self._part, {semconv.GOODPUT_PART_NAME: name}, lengths)
                continue
            attributes: dict[str, str | bool] = {
                semconv.GOODPUT_PHASE: semconv.PHASES[phase],
                semconv.GOODPUT_CUSTOM_NAME: name,
                semconv.GOODPUT_BLOCKING: blocking,
                semconv.ERROR_TYPE: error,
            }
            self._wait(self._phase, attributes, lengths)

    def _wait(self, histogram: Histogram, attributes: dict[str, str | bool] | None, lengths: Sequence[int]) -> None:
        self._waiting.append((histogram, attributes, list(reversed(lengths))))
        self._taken += len(lengths)

    def record(self, seconds: float = math.inf, keep: int = 0) -> bool:
        """Record what waits now, for about so many seconds, except the latest `keep`; return whether more is left.

        What another thread is recording has been recorded when this returns.
        """
        until, last = time.monotonic() + seconds, self._taken - keep
        if keep and self._recorded >= last:
            return False
        if not self._recording.acquire(timeout=PATIENCE_S):
            return True  # in a forked child, or if something of the user's hangs
        try:
            while self._recorded < last:
                histogram, attributes, lengths = self._waiting[0]
                if lengths:
                    self._recorded += 1
                    histogram.record(max(0, lengths.pop()) / NS, attributes)
                    if time.monotonic() >= until:
                        break
                else:
                    self._waiting.popleft()
            return self._recorded < last
        finally:
            self._recording.release()


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
        observed: set[str] | None = getattr(mine, "observed", None)
        if observed is None or instrument in observed:
            current = self._totals()
            mine.totals = None if current is None else self._bounded(current)
            mine.observed = observed = set()
        observed.add(instrument)
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


def _by_category(partition: Partition, unit: int, *window: str, productive: bool = False) -> Rows:
    """Yield the time of every category in `unit` ns, also 0, so that a series falls to 0 visibly."""
    for name, duration in partition.categories.items():
        if productive or name != Category.PRODUCTIVE:
            yield duration / unit, *window, name, ""
    for name, duration in partition.custom.items():
        yield duration / unit, *window, Category.CUSTOM, name


def _partitions(totals: Totals) -> Iterable[tuple[str, Partition]]:
    yield semconv.WINDOW_RUN, totals.run
    for span, partition in totals.rolling:
        yield window_name(span), partition


def _ratio(totals: Totals) -> Rows:
    for window, partition in _partitions(totals):
        if partition.goodput is not None:
            yield float(partition.goodput), window


def _badput(totals: Totals) -> Rows:
    for window, partition in _partitions(totals):
        if partition.elapsed and partition.known:
            yield from _by_category(partition, partition.elapsed, window)


def _stalled(totals: Totals) -> Rows:
    for window, partition in _partitions(totals):
        if partition.elapsed:
            yield from ((duration / partition.elapsed, window, state) for state, duration in partition.stalled.items())


def _started(totals: Totals) -> bool:
    return totals.started_at is not None


def _step_age(totals: Totals) -> Rows:
    """Yield both activities, so that the end of one cannot be mistaken for a series that stopped."""
    if _started(totals):
        for activity in semconv.ACTIVITIES:
            now = totals.in_step == (activity == semconv.IN_STEP)
            yield (totals.since_step or 0) / NS if now else 0.0, activity


def _window_disruptions(totals: Totals) -> Rows:
    for span, _ in totals.rolling:
        recent = Counter(one.reason for one in totals.history if totals.at - span < one.time <= totals.at)
        for reason in semconv.REASONS:
            if reason in totals.disruptions:
                yield recent[reason], window_name(span), reason


def _job_state(totals: Totals) -> Rows:
    """Yield both states, as 0 or 1, so that the end of a state cannot be mistaken for a series that stopped."""
    if _started(totals):
        for state in semconv.JOB_STATES:
            yield int(totals.finished == (state == JobState.ENDED)), state


def _slices(shares: Mapping[str, float], *window: str) -> Rows:
    return ((float(share), *window, state) for state, share in shares.items())


def _window_slices(totals: Totals) -> Rows:
    for span, partition in totals.rolling:
        yield from _slices(partition.slice_efficiency, window_name(span))


def _value(
    figure: Callable[[Totals], float | None], unit: int = 1, *, host_clock: bool = True
) -> Callable[[Totals], Rows]:
    """Return the row of a figure, in multiples of `unit`; none while the figure is not known.

    Without `host_clock` also none while it is not known which steps are kept. (Ratios check each window.)
    """

    def rows(totals: Totals) -> Rows:
        value = figure(totals) if host_clock or totals.run.known else None
        return () if value is None else _present(value / unit if unit > 1 else value)

    return rows


_of_known_steps = partial(_value, host_clock=False)

# The rows of each metric. A metric has no rows if it depends on inputs that were not given, or on steps whose end on
# the device is unknown. Times by category and counts are exact nevertheless: a step that was dispatched counts as kept,
# also as the highest step, until the run goes back.
ROWS: Final[Sequence[tuple[Metric, Callable[[Totals], Rows]]]] = (
    (semconv.TIME, lambda totals: _by_category(totals.run, NS, productive=True)),
    (semconv.RATIO, _ratio),
    (semconv.OBJECTIVE, _value(lambda totals: totals.objective)),
    (semconv.BADPUT_RATIO, _badput),
    (semconv.STALLED_RATIO, _stalled),
    (semconv.STEP_COUNT, lambda totals: ((totals.kept, semconv.STEP_KEPT), (totals.lost, semconv.STEP_LOST))),
    (semconv.STEP_AGE, _step_age),
    (semconv.STEP_MAX, _value(lambda totals: totals.run.max_productive_step)),
    (semconv.STEP_IDEAL, _of_known_steps(lambda totals: totals.ideal_step_time, NS)),
    (semconv.STEP_DEVIATION, _of_known_steps(lambda totals: totals.step_time_deviation, NS)),
    (semconv.AT_RISK, _of_known_steps(lambda totals: totals.at_risk, NS)),
    (semconv.DISRUPTIONS, lambda totals: ((totals.disruptions.get(reason, 0), reason) for reason in semconv.REASONS)),
    (semconv.WINDOW_DISRUPTIONS, _window_disruptions),
    (semconv.OVERLAPPED_LOADING, _value(lambda totals: totals.overlapped_data_loading, NS)),
    (semconv.FIRST_STEP, _of_known_steps(lambda totals: totals.first_step, NS)),
    # Not known while the latest disruption has not been made up for, whatever earlier ones took.
    (semconv.REGAINED, _of_known_steps(lambda totals: totals.history[-1].regained if totals.history else None, NS)),
    (semconv.SCHEDULING_RATIO, _value(lambda totals: totals.scheduling)),
    (semconv.PROGRAM_RATIO, _of_known_steps(lambda totals: totals.program)),
    (semconv.PRODUCTIVITY, _of_known_steps(lambda totals: totals.productivity)),
    (semconv.SLICE_EFFICIENCY, lambda totals: _slices(totals.run.slice_efficiency)),
    (semconv.SLICE_SHARE, lambda totals: _slices(totals.slices)),
    (semconv.SLICE_WINDOW_EFFICIENCY, _window_slices),
    # Only the current clock: earlier ones are no longer reported.
    (semconv.CLOCK, lambda totals: _present(1 if _started(totals) else None, totals.clock)),
    (semconv.JOB_STATE, _job_state),
    (semconv.LAST_SIGN, _value(lambda totals: totals.last_sign if _started(totals) else None, NS)),
    (semconv.STRAGGLER, _of_known_steps(lambda totals: (slowest := straggler(totals.paces)) and slowest.ratio)),
)


def register_account(meter: Meter, totals: Callable[[], Totals | None]) -> None:
    """Create the instruments of the account on `meter`; `totals` returns it, None if there is nothing to measure."""
    snapshot = Snapshot(totals)

    def observed(metric: Metric, rows: Callable[[Totals], Rows]) -> Rows:
        account = snapshot(metric.name)
        return () if account is None else rows(account)

    for metric, rows in ROWS:
        _create(meter, metric, partial(observed, metric, rows))


def register(
    meter: Meter,
    totals: Callable[[], Totals | None],
    overhead: Callable[[], int],
    dropped: Callable[[], dict[str, int]],
    queue_depth: Callable[[], int | None] = lambda: None,
) -> Durations:
    """Create the instruments on `meter`; returns the histograms, to record durations as they become known.

    `totals` returns the current account (None if there is nothing to measure), `overhead` the time this package took on
    the training thread in ns, `dropped` the number of lost items by signal, `queue_depth` how many batches are ready
    (None if not known).
    """

    def depth() -> Rows:
        ready = queue_depth()
        return _present(None if ready is None else int(ready))  # the user's function may return anything

    durations = Durations(meter)

    def collected() -> Totals | None:
        account = totals()
        durations.record()  # so that the histograms, which are collected after this, have what the account has
        return account

    register_account(meter, collected)
    _create(meter, semconv.QUEUE_DEPTH, depth)
    _create(meter, semconv.OVERHEAD, lambda: _present(overhead() / NS))
    _create(meter, semconv.DROPPED, lambda: ((count, signal) for signal, count in dropped().items()))
    return durations
