"""One execution of one step, until its fate is known."""

from __future__ import annotations

from typing import Final, TypeAlias

from otel_goodput._accounting.codec import (
    COUNT,
    FLAG,
    KEY,
    MASK,
    NUMBER,
    PARTS,
    Each,
    Optional,
    Pairs,
    Part,
    Row,
    State,
    field,
)
from otel_goodput._accounting.rules import STALLED_SLACK
from otel_goodput._accounting.windows import EXCLUDED
from otel_goodput.semconv import Category

BRIEF: Final = 10  # a batch that is skipped takes less than one part in so many of the usual step
Parts: TypeAlias = "tuple[tuple[int, int], ...]"  # (place of a bucket, ns), in order of time


class Execution(State):
    """One execution of a step, from its start until it is known to be kept or lost.

    Attributes:
        number: the step's number.
        key: key of its phase.
        start: when it was dispatched, ns.
        attempt: number of its attempt.
        segment: index of its segment.
        net: its own time so far, ns.
        beyond: device time that it used after the job had ended, ns.
        on_host: its phase is still open.
        segments: how many of its segments are waiting for the device or running on it.
        timed: a device end was reported for some of its segments, so it ends by the device clock.
        compiles: a compilation has begun inside it.
        blurred: it ended, but its end on the device is unknown.
        failed: it was left early.
        left: it was left by a break.
        idle: it was left before it did anything.
        former: its job is over, and another one has begun in the same process.
        superseded: the run has since gone back to before it (rule R4), so it is lost even if it completes.
        shares: own time by window bit, ns; None if no window has been open.
        pieces: own time in order, as (ns, mask of open windows). Recorded only while it may become the first step of
            its segment to complete.
        marked, parts: how much of its time (ns) is in closed buckets of rolling windows, and in which buckets.
        binned, spots: the same for the bins of the run.
        wall: from its start to its end on the host, ns; -1 while it is open.
        busy: time of its segments on the device, ns.
        outside: time since the execution before it was over that belongs to no step, ns; -1 if it is not known.
        ordinal: its number in order of completion; -1 before that, or if nobody counts.
        profile: where histograms count it; 0 before that.
        fate: the category that holds its time while a checkpoint may still save it; None for all others.
        loop: number of the loop that it belongs to.
        fixed: the limit of its time if somebody set it, ns; else 0.
        limit: the longest `net` that is not stalled, ns; until it is `judged`, the least that this can be (rule R10).
        stall: its stalled time, as an execution of its own; None if there is none. That of a settled execution is never
            changed: clones share it.
        usual: what a step usually takes, ns, while it is not known whether this is one, or a batch that the loop skips
            after a restore; 0 for all others.
        over: when it was over, ns, while it takes the next body to know what it is; 0 for all others.
    """

    number: int = field(NUMBER)
    key: int = field(KEY)
    start: int = field(NUMBER)
    attempt: int = field(NUMBER)
    segment: int = field(COUNT)
    net: int = field(NUMBER, 0, key="net_time")
    beyond: int = field(NUMBER, 0, key="time_after_job")
    on_host: bool = field(FLAG, True)
    segments: int = field(COUNT, 0, key="device_segments")
    timed: bool = field(FLAG, False, key="device_observed")
    compiles: bool = field(FLAG, False)
    blurred: bool = field(FLAG, False, key="clock_unknown")
    failed: bool = field(FLAG, False)
    left: bool = field(FLAG, False)
    idle: bool = field(FLAG, False)
    former: bool = field(FLAG, False)
    superseded: bool = field(FLAG, False)
    shares: dict[int, int] | None = field(Optional(Pairs(MASK, NUMBER)), key="window_time")
    pieces: list[tuple[int, int]] | None = field(Optional(Each(Row(NUMBER, MASK))), key="time_in_order")
    marked: int = field(NUMBER, 0, key="rolling_time")
    parts: Parts = field(PARTS, (), key="rolling_parts")
    binned: int = field(NUMBER, 0, key="binned_time")
    spots: Parts = field(PARTS, (), key="bin_parts")
    wall: int = field(NUMBER, -1, key="wall_time")
    busy: int = field(NUMBER, 0, key="device_time")
    outside: int = field(NUMBER, -1, key="time_since_previous")
    ordinal: int = field(NUMBER, -1)
    profile: int = field(COUNT, 0, key="histogram_buckets")
    fate: int | None = field(Optional(COUNT), key="category")
    loop: int = field(NUMBER, 0)
    fixed: int = field(COUNT, 0, key="limit_set")
    limit: int = field(COUNT, STALLED_SLACK)
    judged: bool = field(FLAG, False, key="limit_known")
    stall: Execution | None = field(Optional(Part(lambda: Execution)), key=Category.STALLED)
    usual: int = field(COUNT, 0, key="usual_time")
    over: int = field(COUNT, 0, key="ended_at")

    def __init__(self, number: int, key: int, start: int, attempt: int, segment: int) -> None:
        # Nothing else is set: the class has the defaults of all fields, and there may be an execution for each step.
        self.number = number
        self.key = key
        self.start = start
        self.attempt = attempt
        self.segment = segment

    def loaded(self) -> None:
        if self.stall is not None and self.stall.stall is not None:
            raise ValueError("stalled time stalls itself")

    @property
    def visible(self) -> int:
        """Own time outside exclusions, ns."""
        return self.net if self.shares is None else self.net - self.shares.get(EXCLUDED, 0)

    @property
    def own(self) -> int:
        """All of its time, with what stalled, ns."""
        return self.net if self.stall is None else self.net + self.stall.net

    def stand_still(self, spent: int) -> Execution:
        """Take `spent` ns of its time for stalled; returns its stalled time."""
        if self.stall is None:
            self.stall = Execution(self.number, self.key, self.start, self.attempt, self.segment)
        self.net -= spent
        self.stall.net += spent
        return self.stall

    def worked(self, usual: int) -> bool:
        """Whether it did a step's work so far: at least half the `usual` time (ns), also after the job's end."""
        return 2 * (self.own + self.beyond) >= usual

    def brief(self, usual: int) -> bool:
        """Whether it is over after less than a tenth of the `usual` time (ns), and was not left early."""
        return not self.failed and BRIEF * (self.own + self.beyond) < usual

    def share(self, bit: int, spent: int) -> None:
        """Add `spent` ns of own time to the window `bit`, which was open meanwhile."""
        if self.shares is None:
            self.shares = {}
        self.shares[bit] = self.shares.get(bit, 0) + spent

    def shared(self, bit: int) -> int:
        """Own time while the window `bit` was open, ns."""
        return 0 if self.shares is None else self.shares.get(bit, 0)
