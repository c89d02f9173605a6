"""What a report is about: a moment, parts of the time, rolling windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from otel_goodput._accounting.events import Event
from otel_goodput._accounting.totals import Totals
from otel_goodput._text.durations import Moment
from otel_goodput.reports.timeline import account

Time: TypeAlias = int | Moment  # ns since the epoch, or a moment that may be relative to the start of the run


class Question(NamedTuple):
    """What a report is about: see :meth:`RecordedRun.report`."""

    at: Time | None
    windows: Sequence[tuple[Time, Time]]
    exclusions: Sequence[tuple[Time, Time]]
    ideal_step_time: float | None
    others: bool
    rolling: Sequence[int]
    events: bool
    records: bool

    @property
    def whole(self) -> bool:
        """Whether it is the whole run."""
        return self.at is None and not self.windows and not self.exclusions

    @property
    def of_past(self) -> bool:
        """Whether all events are needed for the answer."""
        return not self.whole or self.ideal_step_time is not None

    def answer(self, events: Iterable[Event], moment: int, start: int | None, spans: Sequence[int]) -> Totals:
        """Return the account of `events` at `moment`, ns; `start` is that of the run. Raises ValueError.

        `spans` are the lengths of the rolling windows that were kept while the run went on, ns.
        """
        return account(
            events,
            at=moment,
            windows=[(ns(begin, start), ns(end, start)) for begin, end in self.windows],
            exclusions=self._cut(start),
            ideal_step_time=self.ideal_step_time,
            spans=spans,
        )

    def with_rolling(
        self, totals: Totals, moment: int, start: int | None, events: Callable[[], Iterable[Event]]
    ) -> Totals:
        """Return an account with the requested rolling windows; for those that it has not, `events` are read."""
        if not self.rolling:
            return totals
        known = {end - begin: (begin, end, one) for begin, end, one in totals.recent}
        if own := [(totals.until - span, totals.until) for span in self.rolling if span not in known]:
            answer = account(events(), at=moment, windows=own, exclusions=self._cut(start))
            known |= {end - begin: (begin, end, one) for begin, end, one in answer.windows}
        return replace(totals, recent=[known[span] for span in self.rolling])

    def _cut(self, start: int | None) -> list[tuple[int, int]]:
        return [(ns(begin, start), ns(end, start)) for begin, end in self.exclusions]


def ns(moment: Time, start: int | None) -> int:
    return moment.since(start) if isinstance(moment, Moment) else moment
