"""The disruptions of a run and what each cost (rule R6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, NUMBER, TEXT, Each, Optional, Pairs, Row, State, Text, field
from otel_goodput.semconv import REASONS, Reason

REMEMBERED: Final = 100
KEPT: Final = 900  # more of them, for an overview


class Disruption(NamedTuple):
    """One restart or rollback.

    Attributes:
        attempt: number of the attempt that began with it, counted from 1; None for a rollback inside a process.
        reason: one of ``semconv.REASONS``.
        recovery: ns from the last sign of life to the next job start.
        wasted: time of the steps it lost, start-up included, ns.
        from_step, to_step: the step reached before it, and that at which progress resumed; None if there is none (yet).
        time: the job's start, or the start of the step that goes back, ns; 0 if that is not known.
        died: the last sign of life before it, ns; -1 for a rollback, or if that is not known.
        kept_step: the highest step kept before it; None if none was, or if that is not known.
        first_step: from the job's start to the end of its first completed step, ns; None for a rollback.
        regained: from `time` to the end of the first step since then that is kept and has the number `kept_step` or a
            higher one, ns; None without one in the same job. It does not change once 100 others followed.
        error: the exception that ended the job before it, as ``type: message``, if the process could record one.
        ended_by: the signals and the exit status with which the process before it ended, as far as they are known.
        startup, restored: time of start-up (accelerators, preparation, compilation) and of restoring checkpoints up to
            `first_step`, ns.
    """

    attempt: int | None
    reason: str
    recovery: int
    wasted: int
    from_step: int | None
    to_step: int | None
    time: int = 0
    died: int = -1
    kept_step: int | None = None
    first_step: int | None = None
    regained: int | None = None
    error: str | None = None
    ended_by: str | None = None
    startup: int | None = None
    restored: int | None = None

    @property
    def cost(self) -> int:
        """What it cost so far, ns: the outage, the steps lost, and the start-up and restore after it."""
        return self.recovery + self.wasted + (self.startup or 0) + (self.restored or 0)

    @property
    def behind(self) -> bool:
        """Whether the run has still to regain what it had kept before."""
        return self.kept_step is not None and self.regained is None


def with_causes(history: Iterable[Disruption], leaders: Iterable[Disruption]) -> list[Disruption]:
    """Return the disruptions of a job with what its leader knows of their causes."""
    causes = {one.attempt: one for one in leaders if one.attempt}
    return [
        one
        if (cause := causes.get(one.attempt or 0)) is None
        else one._replace(reason=cause.reason, error=cause.error, ended_by=cause.ended_by)
        for one in history
    ]


_NUMBER: Final = Optional(NUMBER)
_DISRUPTION: Final = Row(
    _NUMBER, Text(*REASONS), NUMBER, NUMBER, _NUMBER, _NUMBER, NUMBER, NUMBER, _NUMBER, _NUMBER, _NUMBER,
    Optional(TEXT), Optional(TEXT), _NUMBER, _NUMBER,
    make=Disruption._make,
)  # fmt: skip


class Disruptions(State):
    """All disruptions of a run.

    Attributes:
        count, reasons: how many there were; the same by reason.
        latest, earlier: the latest ``REMEMBERED``; up to ``KEPT`` before them.
        awaited: a kept step with this or a higher number regains what a disruption of this job had set back, if any.
    """

    count: int = field(COUNT, 0)
    reasons: dict[str, int] = field(Pairs(Text(*REASONS), COUNT), make=dict)
    latest: list[Disruption] = field(Each(_DISRUPTION, REMEMBERED), make=list)
    earlier: tuple[Disruption, ...] = field(Each(_DISRUPTION, KEPT, tuple), ())
    awaited: int | None = field(_NUMBER)

    def begin(self, disruption: Disruption) -> None:
        """Take the next one."""
        self.count += 1
        self.reasons[disruption.reason] = self.reasons.get(disruption.reason, 0) + 1
        self.latest.append(disruption)
        if disruption.kept_step is not None and (self.awaited is None or disruption.kept_step < self.awaited):
            self.awaited = disruption.kept_step
        if len(self.latest) > REMEMBERED:
            self.earlier = (*self.earlier, self.latest.pop(0))[-KEPT:]

    def _of_job(self) -> range:
        """Indices into `latest` of those of the latest job, the latest first: its start ends them."""
        oldest = max(0, len(self.latest) - 1)
        while oldest > 0 and self.latest[oldest].attempt is None:
            oldest -= 1
        return range(len(self.latest) - 1, oldest - 1, -1)

    def restarted(self, begin: int, end: int) -> bool:
        """Whether a gap of which that is a part (ns) was between a job that ended cleanly and the next one."""
        return any(one.reason == Reason.RESTART and one.died <= begin and end <= one.time for one in self.latest)

    def restart(self) -> int | None:
        """Return the index in `latest` of the one that the latest job began with; None if it is not there."""
        return next((at for at in self._of_job() if self.latest[at].attempt is not None), None)

    def first_step(self, first: int, wasted: int) -> None:
        """The first step of the latest job is numbered `first`; that it goes back wastes `wasted` ns more."""
        if self.latest:
            last = self.latest[-1]
            to_step = first if last.to_step is None else last.to_step
            self.latest[-1] = last._replace(to_step=to_step, wasted=last.wasted + wasted)

    def began(self, attempt: int) -> bool:
        """Whether the latest job began the attempt of this number."""
        at = self.restart()
        return at is not None and self.latest[at].attempt == attempt

    def restart_again(self, gap: int, wasted: int, time: int, last: int | None, kept: int | None) -> None:
        """The latest job is over, and began again at `time`, `gap` ns after it; its steps in flight `wasted` ns.

        The `last` step that it did and the highest that is `kept` are those that the next job goes back from.
        """
        if (at := self.restart()) is not None:
            before = self.latest[at]
            self.change_restart(
                recovery=before.recovery + gap, wasted=before.wasted + wasted, time=time, from_step=last, to_step=None,
                kept_step=kept, first_step=None, regained=None, startup=None, restored=None,
            )  # fmt: skip
            self.awaited = kept

    def change_restart(self, **fields: Any) -> None:
        """Set these fields of the one that the latest job began with."""
        at = self.restart()
        if at is not None:
            self.latest[at] = self.latest[at]._replace(**fields)

    def regain(self, numbers: Sequence[int], ends: Sequence[int]) -> None:
        """Steps with rising `numbers` were kept at `ends` (ns), so what disruptions had set back is regained."""
        waiting: list[int] = []
        for at in self._of_job():
            disruption = self.latest[at]
            if disruption.kept_step is None or disruption.regained is not None:
                continue
            if disruption.kept_step <= numbers[-1]:
                end = ends[bisect_left(numbers, disruption.kept_step)]
                self.latest[at] = disruption._replace(regained=max(0, end - disruption.time))
            else:
                waiting.append(disruption.kept_step)
        self.awaited = min(waiting, default=None)
