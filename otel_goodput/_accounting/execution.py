"""One execution of one step until its fate is known, and the segments of consecutive steps (rule R5)."""

from __future__ import annotations

from typing import Final, TypeAlias

from otel_goodput._accounting import codec, rules
from otel_goodput._accounting.codec import Each, Optional, Pairs, Part, Row, State, field
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.progress import Progress
from otel_goodput._accounting.stats import median
from otel_goodput.semconv import Category

BRIEF: Final = 10  # a batch that is skipped takes less than one part in so many of the usual step
Parts: TypeAlias = "tuple[tuple[int, int], ...]"  # (place of a bucket, ns), in order of time


class Execution(State):
    """One execution of a step, from its start until it is known to be kept or lost.

    Attributes:
        number, key, start: of the step, of its phase; when it was dispatched, ns.
        attempt, segment: number of its attempt, index of its segment.
        net, beyond: its own time so far; device time that it used after the job had ended, ns.
        segments: how many of its segments are waiting for the device or running on it.
        timed: a device end was reported for some of its segments, so it ends by the device clock.
        compiles, blurred: a compilation has begun inside it; it ended, but nobody knows when on the device.
        failed, left, idle: it was left early; by a break; before it did anything.
        former: its job is over, and another one has begun in the same process.
        superseded: the run has since gone back to before it (rule R4), so it is lost even if it completes.
        shares: own time by window bit, ns; None if no window has been open.
        pieces: own time in order, as (ns, mask of open windows), while it may become the first of its segment.
        marked, parts: how much of its time (ns) is in closed buckets of rolling windows, and in which buckets.
        binned, spots: the same for the bins of the run.
        wall, busy: from its start to its end on the host, -1 while it is open; time on the device, ns.
        outside: time since the execution before it was over that belongs to no step, ns; -1 if it is not known.
        ordinal, profile: its number in order of completion (-1 before that), and where histograms count it.
        fate: the category that holds its time while a checkpoint may still save it; None for all others.
        loop, fixed: number of its loop; the limit of its time if somebody set it, ns, else 0.
        limit: the longest `net` that is not stalled, ns; until it is `judged`, the least that this can be (rule R10).
        stall: its stalled time, as an execution of its own. Once it is settled, it is never changed: clones share it.
        usual: what a step usually takes, ns, while this may be a batch that the loop skips after a restore; else 0.
        over: when it was over, ns, while it takes the next body to know what it is; else 0.
        given_up: when its process was gone, or its job over, if it was the latest step and open on the host, ns.
    """

    number: int = field(codec.NUMBER)
    key: int = field(codec.KEY)
    start: int = field(codec.NUMBER)
    attempt: int = field(codec.NUMBER)
    segment: int = field(codec.COUNT)
    net: int = field(codec.NUMBER, 0, key="net_time")
    beyond: int = field(codec.NUMBER, 0, key="time_after_job")
    on_host: bool = field(codec.FLAG, True)
    segments: int = field(codec.COUNT, 0, key="device_segments")
    timed: bool = field(codec.FLAG, False, key="device_observed")
    compiles: bool = field(codec.FLAG, False)
    blurred: bool = field(codec.FLAG, False, key="clock_unknown")
    failed: bool = field(codec.FLAG, False)
    left: bool = field(codec.FLAG, False)
    idle: bool = field(codec.FLAG, False)
    former: bool = field(codec.FLAG, False)
    superseded: bool = field(codec.FLAG, False)
    shares: dict[int, int] | None = field(Optional(Pairs(codec.MASK, codec.NUMBER)), key="window_time")
    pieces: list[tuple[int, int]] | None = field(Optional(Each(Row(codec.NUMBER, codec.MASK))), key="time_in_order")
    marked: int = field(codec.NUMBER, 0, key="rolling_time")
    parts: Parts = field(codec.PARTS, (), key="rolling_parts")
    binned: int = field(codec.NUMBER, 0, key="binned_time")
    spots: Parts = field(codec.PARTS, (), key="bin_parts")
    wall: int = field(codec.NUMBER, -1, key="wall_time")
    busy: int = field(codec.NUMBER, 0, key="device_time")
    outside: int = field(codec.NUMBER, -1, key="time_since_previous")
    ordinal: int = field(codec.NUMBER, -1)
    profile: int = field(codec.COUNT, 0, key="histogram_buckets")
    fate: int | None = field(Optional(codec.COUNT), key="category")
    loop: int = field(codec.NUMBER, 0)
    fixed: int = field(codec.COUNT, 0, key="limit_set")
    limit: int = field(codec.COUNT, rules.STALLED_SLACK)
    judged: bool = field(codec.FLAG, False, key="limit_known")
    stall: Execution | None = field(Optional(Part(lambda: Execution)), key=Category.STALLED)
    usual: int = field(codec.COUNT, 0, key="usual_time")
    over: int = field(codec.COUNT, 0, key="ended_at")
    given_up = NOT_KNOWN  # not saved: an update tells it, and what was not told before a restart is read from journals

    def __init__(self, number: int, key: int, start: int, attempt: int, segment: int) -> None:
        # Nothing else is set: the class has the defaults of all fields, and there may be an execution for each step.
        self.number, self.key, self.start, self.attempt, self.segment = number, key, start, attempt, segment

    def loaded(self) -> None:
        if self.stall is not None and self.stall.stall is not None:
            raise ValueError("stalled time stalls itself")

    @property
    def visible(self) -> int:
        """Own time outside exclusions, ns."""
        return self.net if self.shares is None else self.net - self.shares.get(rules.EXCLUDED, 0)

    @property
    def own(self) -> int:
        """All of its time, with what stalled, ns."""
        return self.net if self.stall is None else self.net + self.stall.net

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


class Life(State):
    """What the accounting of steps needs to know about one attempt.

    Attributes:
        begun, steps_started: its job has started (which can happen more than once); a step has started since.
        compiles_seen: compilations are recorded in it, so start-up is estimated only of first steps that compile.
        compiled: names of the functions compiled so far.
    """

    number: int = field(codec.NUMBER)
    first_segment: int = field(codec.COUNT)
    begun: bool = field(codec.FLAG, False)
    steps_started: bool = field(codec.FLAG, False)
    compiles_seen: bool = field(codec.FLAG, False)
    compiled: frozenset[str] = field(Each(codec.TEXT, make=frozenset), frozenset())

    def __init__(self, number: int, first_segment: int) -> None:
        self.number, self.first_segment = number, first_segment


class StepSegment(State):
    """Consecutive steps, from a start or rollback to the next.

    Attributes:
        compiles_seen: as of :class:`Life`.
        low, high: the segment's part of the kept stack, as indices `low` up to, not including, `high`.
        first_net, first_start, first_ordinal: net time, start and ordinal of its first completed step.
        first_index: index of that in the kept stack, None if it is not kept.
        pieces: own time of that step in order, as (ns, mask of open windows); empty if there are no windows.
        spots: where in the bins of the run its time passed that is not excluded, in order.
        compiles: a compilation was recorded inside that step, and it did not stand still.
        starts: number of the disruption (from 1) whose job begins with that step, else 0.
        lost_to: number of the disruption that lost that step, else 0.
        lost: net times (ns) of its lost steps without the first completed one, up to a bound.
    """

    attempt: int = field(codec.NUMBER)
    compiles_seen: bool = field(codec.FLAG)
    low: int = field(codec.COUNT)
    high: int = field(codec.COUNT)
    first_net: int | None = field(Optional(codec.NUMBER))
    first_index: int | None = field(Optional(codec.COUNT))
    first_start: int = field(codec.NUMBER, 0)
    pieces: list[tuple[int, int]] = field(Each(Row(codec.NUMBER, codec.MASK)), make=list)
    lost: list[int] = field(Each(codec.NUMBER), make=list)
    lost_to: int = field(codec.COUNT, 0)
    spots: tuple[tuple[int, int], ...] = field(codec.PARTS, ())
    starts: int = field(codec.COUNT, 0)
    compiles: bool = field(codec.FLAG, False)
    first_ordinal = -1
    _known: int | None = None

    def __init__(self, life: Life, low: int) -> None:
        super().__init__()
        self.attempt, self.compiles_seen = life.number, life.compiles_seen
        self.low = self.high = low

    @property
    def category(self) -> int:
        """Of the time of its first completed step."""
        return rules.WASTED_PROGRESS if self.first_index is None else rules.PRODUCTIVE

    def grow(self, count: int = 1) -> None:
        """Count `count` more kept steps of this segment, on top of the stack."""
        if self.high - self.low <= rules.STARTUP_SAMPLE:
            self._known = None
        self.high += count

    def add_lost(self, net: int) -> None:
        if len(self.lost) < rules.STARTUP_SAMPLE:
            self.lost.append(net)
        self._known = None

    def cut_to(self, length: int, popped: list[int], disruption: int) -> None:
        """Follow a cut of the kept stack to `length` by `disruption`; `popped` are the net times (ns) cut off."""
        cut = [popped[at - length] for at in range(max(self.low, length), self.high) if at != self.first_index]
        self.lost += cut[: max(0, rules.STARTUP_SAMPLE - len(self.lost))]
        if self.first_index is not None and self.first_index >= length:
            self.first_index = None
            self.lost_to = disruption
        self.high = max(self.low, length) if self.low < length else length
        self.low = min(self.low, length)
        self._known = None

    def forget(self) -> None:
        """The net time of one of its steps has changed."""
        self._known = None

    def make_room(self, index: int, own: bool) -> None:
        """Follow an insertion into the kept stack at `index`; `own`: the entry belongs to this segment."""
        below = self.low > index or (self.low == index and not own)
        if below or own or self.high > index:
            self.high += 1
        if below:
            self.low += 1
        if self.first_index is not None and self.first_index >= index:
            self.first_index += 1
        self._known = None

    def excess(self, progress: Progress) -> int:
        """By how much its first completed step is longer than the usual one, ns (rule R5); than ten times the usual if
        compilations are reported, and only if it compiles.
        """
        seen = self.compiles_seen
        if self.first_net is None or (seen and not self.compiles):
            return 0
        if self._known is not None:
            return self._known
        others = self._others(progress) or [net for net in self.lost if net]
        usual = median(others) if others else progress.early_median(self.first_index)
        excess = 0 if usual is None else max(0, self.first_net - usual * (rules.FIRST_EXECUTION if seen else 1))
        if others:
            self._known = excess
        return excess

    def _others(self, progress: Progress) -> list[int]:
        """Net times of the other kept steps, without those of time 0, which ran entirely after the end of the job."""
        nets = progress.nets(self.low, min(self.high, self.low + rules.STARTUP_SAMPLE + 1))
        if self.first_index is not None:
            del nets[self.first_index - self.low : self.first_index - self.low + 1]
        return [net for net in nets[: rules.STARTUP_SAMPLE] if net]
