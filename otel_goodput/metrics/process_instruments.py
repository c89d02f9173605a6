"""Metrics of this process that are not part of the account: they begin anew with each attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_goodput import semconv
from otel_goodput.guard import contain
from otel_goodput.semconv import Metric
from otel_goodput.text.durations import NS

# Hits and misses of the persistent compilation cache, and the seconds that hits saved; None if it is not in use.
Cache = Callable[[], tuple[int, int, float] | None]
Waits = Callable[[], Mapping[str, int]]  # ns by stage, of those that are known
Observe = Callable[[], Iterable[Observation]]


def register(meter: Meter, cache: Cache, waits: Waits) -> None:
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
