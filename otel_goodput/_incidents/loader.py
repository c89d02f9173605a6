"""In which stage of its data loader training waits, and on which worker: evidence of incidents of data loading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from otel_goodput._incidents.evidence import Circumstance
from otel_goodput._journal.loader_times import WorkerTimes, added
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration, percent
from otel_goodput.reports.loader import cause_of, slow_worker
from otel_goodput.semconv import LOADER_STAGES, Category

EVERY_NS: Final = 5 * NS  # from one look to the next
KEPT: Final = 360  # looks, half an hour
LEAST: Final = 8  # batches that tell something


class LoaderStages:
    """The latest looks at the times of the loaders.

    Args:
        times: returns those of each worker so far.
        clock: ns since the epoch.
    """

    def __init__(self, times: Callable[[], Sequence[WorkerTimes]], clock: Callable[[], int]) -> None:
        self._times, self._clock = times, clock
        self._looks = deque[tuple[int, Sequence[WorkerTimes]]](maxlen=KEPT)
        self._latest: tuple[Circumstance, int, list[str]] | None = None  # with how many batches it was said

    def look(self) -> None:
        """Look, now and then, at a tick of the keeper."""
        now = self._clock()
        if (not self._looks or now - self._looks[-1][0] >= EVERY_NS) and (times := self._times()):
            self._looks.append((now, times))

    def sentences(self, of: Circumstance) -> list[str]:
        if of.category != Category.DATA_LOADING:
            return []
        before = {one.worker: one for one in next((times for at, times in reversed(self._looks) if at <= of.began), ())}
        since = [one.plus(before[one.worker], -1) if one.worker in before else one for one in self._times()]
        batches = sum(one.batches for one in since)
        if batches < LEAST:
            return []
        count = 1 << (batches.bit_length() - 1)  # what is said changes seldom: after 8, 16, 32, ... batches
        if self._latest is not None and self._latest[:2] == (of, count):
            return self._latest[2]
        texts = [text] if (text := _sentence(since)) else []
        self._latest = of, count, texts
        return texts


def _sentence(since: Sequence[WorkerTimes]) -> str:
    exposed, _ = added(since)
    stage = cause_of(exposed)
    if stage is None:
        return ""
    share = percent(exposed[LOADER_STAGES.index(stage)], sum(exposed))
    text = f"of the waiting for data, {share} was for stage {stage}"
    slow = slow_worker(since, stage)
    if slow is None:
        return text
    own, others = format_duration(slow.own / NS), format_duration(slow.others / NS)
    return f"{text}, mostly of worker {since[slow.place].worker}: it takes {own} a batch, others {others}"
