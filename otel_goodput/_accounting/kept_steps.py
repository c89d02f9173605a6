"""The steps that are kept, and all that follows what becomes of an execution (rule R4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from otel_goodput._accounting import codec
from otel_goodput._accounting.buckets import Bins, Buckets, Rolling
from otel_goodput._accounting.codec import Each, Optional, Pairs, Part, Shared, SharedList, State, field
from otel_goodput._accounting.execution import Execution, Life, StepSegment
from otel_goodput._accounting.progress import Progress
from otel_goodput._accounting.rules import EXCLUDED, STALLED, STALLED_KEPT, STALLED_LOST, WASTED_PROGRESS
from otel_goodput._accounting.stalls import REMEMBERED
from otel_goodput._accounting.step_summary import StepSummary
from otel_goodput._accounting.windows import Window, leading

T = TypeVar("T", bound="KeptSteps")


class KeptSteps(State):
    """The stack of kept executions, the segments that they form, and the sums that follow both.

    Attributes:
        windows, rolling: exact and rolling windows.
        bins, summary: what an overview of the run shows; None if nobody asks for one.
        discarded: own time of executions that are not kept, by the category that gets it, ns.
        stalls: what stalled of kept steps, by index in the stack.
        safe: the highest step that a durable checkpoint covers, -1 if there is none.
        returned: number of steps whose stalled time was given back.
    """

    windows: list[Window] = field(Each(Part(lambda: Window)), make=list)
    rolling: Rolling | None = field(Optional(Part(lambda: Rolling)), key="rolling_windows")
    bins: Bins | None = field(Optional(Part(lambda: Bins)))
    progress: Progress = field(Part(lambda: Progress), make=Progress, key="kept_steps")
    summary: StepSummary | None = field(Optional(Part(lambda: StepSummary)), key="step_summary")
    segments: SharedList[StepSegment] = field(Shared(Part(lambda: StepSegment)), make=SharedList, key="step_segments")
    lost: int = field(codec.COUNT, 0)
    discarded: dict[int, int] = field(codec.BY_CATEGORY, make=dict)
    stalls: dict[int, Execution] = field(
        Pairs(codec.COUNT, Part(lambda: Execution, replaced=True), REMEMBERED), make=dict, key="stalled_steps"
    )
    safe: int = field(codec.NUMBER, -1, key="durable_step")
    returned = 0
    # Indices of the segments that no clone shares, and that may be changed.
    _own: frozenset[int] = frozenset()

    def __init__(self, windows: int) -> None:
        super().__init__()
        self.windows += [Window(1 << index) for index in range(windows)]

    def clone(self: T) -> T:
        self._own = frozenset()
        return super().clone()

    @property
    def buckets(self) -> list[Buckets]:
        return [buckets for buckets in (self.rolling, self.bins) if buckets is not None]

    @property
    def followers(self) -> list[Window | Buckets | StepSummary]:
        """All that follow what becomes of each execution."""
        return [*self.windows, *self.buckets, *([] if self.summary is None else [self.summary])]

    def begin_segment(self, life: Life) -> None:
        """Have the steps that start from now on belong to a new segment."""
        self._own |= {len(self.segments)}
        self.segments.append(StepSegment(life, self.progress.length))

    def own_segment(self, at: int) -> StepSegment:
        """Return the segment at this index to change it: a copy if clones share it."""
        at += len(self.segments) if at < 0 else 0
        if at not in self._own:
            self._own |= {at}
            self.segments[at] = self.segments[at].clone()
        return self.segments[at]

    def _segments_from(self, index: int) -> Iterator[int]:
        """Yield the indices of the segments that reach beyond `index` in the stack, the latest first."""
        for at in range(len(self.segments) - 1, -1, -1):
            if self.segments[at].high <= index:
                return
            yield at

    def keep(self, execution: Execution, first: bool) -> None:
        segment = self.own_segment(execution.segment)
        index = self.progress.length
        inserted = self.progress.top >= execution.number or execution.segment != len(self.segments) - 1
        if inserted:
            index = self._insert(execution)
        else:
            self.progress.push(execution.number, execution.net)
            segment.grow()
        if first:
            segment.first_index = index
        if execution.stall is not None:
            self.move_stall(execution.stall, STALLED, STALLED_KEPT)
            self.stalls[index] = execution.stall
            if len(self.stalls) > REMEMBERED:
                del self.stalls[min(self.stalls)]
        for follower in self.followers:
            follower.keep(index, execution, inserted=inserted)

    def _insert(self, execution: Execution) -> int:
        """Keep an execution below higher steps that completed before it, because steps overlapped."""
        above = self.progress.pop_from(execution.number)
        index = self.progress.length
        self.progress.push(execution.number, execution.net)
        for number, net in above:
            self.progress.push(number, net)
        self.stalls = {at + (at >= index): stall for at, stall in self.stalls.items()}
        for at in self._segments_from(index - 1):
            self.own_segment(at).make_room(index, at == execution.segment)
        return index

    def discard(self, execution: Execution, fate: int) -> None:
        """Give the time of an execution that is over and not kept to the category `fate`."""
        execution.fate = fate
        self.discarded[fate] = self.discarded.get(fate, 0) + execution.net
        if execution.stall is not None and fate == WASTED_PROGRESS:
            self.move_stall(execution.stall, STALLED, STALLED_LOST)
        for follower in self.followers:
            follower.discard(execution, fate)

    def go_back(self, number: int, disruption: int) -> int:
        """Lose every kept execution from `number` on to `disruption` (rule R4); returns their visible time, ns."""
        before = self.progress.length
        popped = [net for _, net in self.progress.pop_from(number)]
        length = before - len(popped)
        self.lost += len(popped)
        self.discarded[WASTED_PROGRESS] = self.discarded.get(WASTED_PROGRESS, 0) + sum(popped)
        hidden = self.windows[0].kept
        visible = [net - hidden.get(index, 0) for index, net in enumerate(popped, length)] if hidden else popped
        for index in [index for index in self.stalls if index >= length]:
            self.move_stall(self.stalls.pop(index), STALLED_KEPT, STALLED_LOST)
        cut = list(self._segments_from(length))
        attempts = [(one.attempt, max(one.low, length), one.high) for one in map(self.segments.__getitem__, cut)]
        for follower in self.followers:
            follower.lose_from(length, visible, attempts)
        for at in cut:
            self.own_segment(at).cut_to(length, popped, disruption)
        return sum(visible)

    def give_back(self, index: int, stall: Execution) -> None:
        """Count what stalled of the kept step at `index` as its own time: it is usual after all."""
        self.returned += 1
        self.discarded[STALLED_KEPT] -= stall.net
        self.progress.lengthen(index, stall.net)
        for follower in self.followers:
            follower.lengthen(index, stall)
        for at in self._segments_from(index):
            if self.segments[at].low <= index:
                self.own_segment(at).forget()

    def move_stall(self, stall: Execution, source: int, target: int) -> None:
        """Move stalled time from one category to another, by what became of its step."""
        self.discarded[source] = self.discarded.get(source, 0) - stall.net
        self.discarded[target] = self.discarded.get(target, 0) + stall.net
        for follower in self.followers:
            follower.move(stall, source, target)

    def top(self) -> int | None:
        return self.progress.top if len(self.progress) else None

    def at_risk(self) -> int:
        """Productive time of kept steps that no durable checkpoint covers, ns."""
        hidden, progress = self.windows[0], self.progress
        safe = progress.index_above(self.safe)
        exposed = progress.total_from(safe) - sum(ns for index, ns in hidden.kept.items() if index >= safe)
        for segment in reversed(self.segments):
            if segment.high <= safe:
                break
            if segment.first_index is not None and segment.first_index >= safe:
                excess = segment.excess(progress)
                exposed -= excess - leading(segment.pieces, excess, EXCLUDED)
        return exposed
