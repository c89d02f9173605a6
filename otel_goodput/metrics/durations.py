"""The histograms of durations, and names that are limited in number."""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import Meter

from otel_goodput import semconv
from otel_goodput.accounting.rules import PART
from otel_goodput.journal.journal import OVERFLOW
from otel_goodput.journal.listeners import EndedPhase
from otel_goodput.text.durations import NS

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
