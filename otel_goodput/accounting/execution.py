"""One execution of one step, until its fate is known."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from otel_goodput.accounting.rules import STALLED_SLACK
from otel_goodput.accounting.step_segments import StepSegment
from otel_goodput.accounting.windows import EXCLUDED
from otel_goodput.semconv import Category

# Attributes that a snapshot stores unchanged, by their key.
_STORED: Final = {
    "number": "number",
    "key": "key",
    "start": "start",
    "net_time": "net",
    "time_after_job": "beyond",
    "on_host": "on_host",
    "device_segments": "segments",
    "device_observed": "timed",
    "compiles": "compiles",
    "clock_unknown": "blurred",
    "failed": "failed",
    "left": "left",
    "idle": "idle",
    "former": "former",
    "superseded": "superseded",
    "rolling_time": "marked",
    "binned_time": "binned",
    "wall_time": "wall",
    "device_time": "busy",
    "time_since_previous": "outside",
    "ordinal": "ordinal",
    "histogram_buckets": "profile",
    "category": "fate",
    "loop": "loop",
    "limit": "limit",
    "limit_set": "fixed",
    "limit_known": "judged",
    "usual_time": "usual",
    "ended_at": "over",
}
BRIEF: Final = 10  # a batch that is skipped takes less than one part in so many of the usual step
Parts: TypeAlias = "tuple[tuple[int, int], ...]"  # (place of a bucket, ns), in order of time


class Execution:
    """One execution of a step, from its start until it is known to be kept or lost.

    Attributes:
        number: the step's number.
        key: key of its phase.
        start: when it was dispatched, ns.
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

    net = beyond = 0
    on_host = True
    segments = 0
    timed = compiles = blurred = failed = left = idle = superseded = former = False
    shares: dict[int, int] | None = None
    pieces: list[tuple[int, int]] | None = None
    marked = binned = busy = profile = usual = over = 0
    wall = outside = ordinal = -1
    parts: Parts = ()
    spots: Parts = ()
    fate: int | None = None
    loop = fixed = 0
    limit = STALLED_SLACK
    judged = False
    stall: Execution | None = None

    def __init__(self, number: int, key: int, start: int, segment: StepSegment) -> None:
        self.number = number
        self.key = key
        self.start = start
        self.step_segment = segment
        if segment.first_net is None:
            self.pieces = []

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
            self.stall = Execution(self.number, self.key, self.start, self.step_segment)
            self.stall.pieces = None
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

    def clone(self, segment: StepSegment) -> Execution:
        twin = Execution.__new__(Execution)
        twin.__dict__.update(self.__dict__)
        twin.step_segment = segment
        twin.shares = None if self.shares is None else self.shares.copy()
        twin.pieces = None if self.pieces is None else self.pieces.copy()
        twin.stall = None if self.stall is None else self.stall.clone(segment)
        return twin

    def to_state(self) -> dict[str, Any]:
        return {
            **{key: getattr(self, name) for key, name in _STORED.items()},
            "window_time": list((self.shares or {}).items()),
            "time_in_order": self.pieces,
            "rolling_parts": self.parts,
            "bin_parts": self.spots,
            Category.STALLED: None if self.stall is None else self.stall.to_state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], segment: StepSegment) -> Execution:
        execution = cls(state["number"], state["key"], state["start"], segment)
        for key, name in _STORED.items():
            setattr(execution, name, state[key])
        pieces = state["time_in_order"]
        execution.shares = dict(state["window_time"]) or None
        execution.pieces = None if pieces is None else [(duration, mask) for duration, mask in pieces]
        execution.parts = tuple((bucket, duration) for bucket, duration in state["rolling_parts"])
        execution.spots = tuple((place, duration) for place, duration in state["bin_parts"])
        if state[Category.STALLED] is not None:
            execution.stall = cls.from_state(state[Category.STALLED], segment)
        return execution
