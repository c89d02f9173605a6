"""How each run stands: queries over what was last told of it, whether it goes on, has ended or is gone.

Each attempt has series of its own, which stay within the time that is asked for; the figures are those of the newest.
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
        words: where they are asked.
        window: how far back a run's last word is looked for: at the end of what is shown, one that is over has none.
            Empty for what it says at each moment.
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
        """What the newest attempt said last; attributes `by` stay apart."""
        figures = f"{self.latest(metric, only)} and on ({', '.join(self.words.writer)}) ({self.newest()})"
        return grouped(function, [*self.words.run, *map(self.words.key, by)], figures)

    def elapsed(self) -> str:
        """Every attempt goes on with the time of those before it."""
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
