"""The state of each run: queries over what it last reported, and whether it is running, has ended or is gone.

Each attempt has its own series. The figures of a run are those of its newest attempt in the selected time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from boards.promql import Dialect, grouped
from boards.slots import SILENCE
from otel_goodput import semconv
from otel_goodput.semconv import JobState, Metric

RUNNING, ENDED, GONE = STATES = ("running", "ended", "gone")
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class Standing:
    """Queries with a series for each run.

    Attributes:
        words: the dialect of the queries.
        window: how far back a run's last report may be, because a run that has ended reports nothing now. Empty for
            the values at each moment.
    """

    words: Dialect
    window: str

    def latest(self, metric: Metric, only: Mapping[str, str] = _NOTHING) -> str:
        """The last figures of all series."""
        return self.words.select(metric, only, f"last_over_time({{}}[{self.window}])" if self.window else "{}")

    def newest(self) -> str:
        """The newest attempt of each run: those before it have a shorter time."""
        run = self.words.run
        attempts = grouped("sum", self._attempt, self.latest(semconv.TIME))
        return f"{attempts} == on ({', '.join(run)}) group_left () max by ({', '.join(run)}) ({attempts})"

    def of_run(self, function: str, metric: Metric, only: Mapping[str, str] = _NOTHING, by: Iterable[str] = ()) -> str:
        """The last values of the newest attempt; attributes `by` stay separate."""
        figures = f"{self.latest(metric, only)} and on ({', '.join(self.words.writer)}) ({self.newest()})"
        return grouped(function, [*self.words.run, *map(self.words.key, by)], figures)

    def elapsed(self) -> str:
        """Each attempt continues the time of those before it."""
        return grouped("max", self.words.run, grouped("sum", self._attempt, self.latest(semconv.TIME)))

    def disruptions(self) -> str:
        """Likewise, but reason by reason."""
        by_reason = [*self.words.run, self.words.key(semconv.GOODPUT_DISRUPTION_REASON)]
        return grouped("sum", self.words.run, grouped("max", by_reason, self.latest(semconv.DISRUPTIONS)))

    def silent(self) -> str:
        """Seconds since the last sign of life."""
        return f"time() - {grouped('max', self.words.run, self.latest(semconv.LAST_SIGN))}"

    def state(self) -> str:
        """The place of the state in :data:`STATES`."""
        ended = self.of_run("max", semconv.JOB_STATE, {semconv.GOODPUT_JOB_STATE: JobState.ENDED})
        return f"{ended} + 2 * (1 - {ended}) * (({self.silent()}) > bool {SILENCE:g})"

    @property
    def _attempt(self) -> list[str]:
        return list(dict.fromkeys([*self.words.writer, *self.words.run]))
