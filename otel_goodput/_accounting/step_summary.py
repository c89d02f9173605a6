"""What is remembered of all executions of steps in bounded space: bins, histograms, and those that stand out.

A rollback changes the fate of kept executions (rule R4). The histograms follow, because of each kept execution its
*profile* is remembered: the buckets in which it is counted. Only of those behind the latest million none is; they stay
counted as kept.

Nearly all executions are kept on top of the stack. These are only noted when they are over, and taken in batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from otel_goodput._accounting.codec import COUNT, NUMBER, Blobs, Each, Pairs, Part, State, field
from otel_goodput._accounting.execution import Execution
from otel_goodput._accounting.overview import (
    BEGINS,
    IN_FLIGHT,
    KEPT,
    LOST,
    NO_STEP_DONE,
    NOT_KNOWN,
    SKIPPED,
    STEP_ENTRY,
    STEPS_KEPT,
    StepBin,
    StepEntry,
)
from otel_goodput._accounting.profiles import Profiles
from otel_goodput._accounting.stats import median
from otel_goodput._accounting.step_bins import StepBins
from otel_goodput._accounting.tallies import BITS, MEASURES, Tallies, profile_of

SLOW: Final = 1.5  # an execution stands out if it takes so many times the median of some before it
SAMPLE: Final = 64  # that many
FEW: Final = 8  # of them, to begin with
BATCH: Final = 256

Steps: TypeAlias = "tuple[list[int], ...]"
"""Of executions, in order: numbers, starts, net times, wall times, times outside, times on the device, keys."""


def no_steps() -> Steps:
    return [], [], [], [], [], [], []


class StepSummary(State):
    """All executions of the steps of a run that are over."""

    _profiles: Profiles = field(Part(lambda: Profiles), make=Profiles)  # of the kept executions
    _tallies: Tallies = field(Part(lambda: Tallies), make=Tallies)
    _bins: StepBins = field(Part(lambda: StepBins), make=StepBins)
    # By ordinal.
    _notable: dict[int, StepEntry] = field(Pairs(COUNT, STEP_ENTRY, STEPS_KEPT), make=dict, key="outliers")
    # Kept index -> ordinal, of those that stand out: as bounded as `_notable`, which holds each ordinal here.
    _kept: dict[int, int] = field(Pairs(NUMBER, NUMBER, STEPS_KEPT), make=dict, key="kept_outliers")
    _recent: list[int] = field(Each(COUNT, max(SAMPLE, FEW) - 1), make=list, key="recent_net_times")
    _usual: int = field(COUNT, 0, key="usual_net_time")  # ns; 0 while not known
    _fresh: Steps  # executions pushed and not taken yet, all of one attempt
    _attempt = 0  # theirs

    def __init__(self) -> None:
        super().__init__()
        self._fresh = no_steps()

    def loaded(self) -> None:
        self._fresh = no_steps()
        if not self._notable.keys() >= set(self._kept.values()):
            raise ValueError("steps that stand out are not there")

    def to_plain(self, blobs: Blobs) -> dict[str, Any]:
        self.flush()
        return super().to_plain(blobs)

    def clone(self) -> StepSummary:
        twin = super().clone()
        twin._fresh = tuple(map(list.copy, self._fresh))
        return twin

    # --- what happens -------------------------------------------------------------------------------------------------

    def push(self, attempt: int, steps: Steps) -> None:
        """Take executions of `attempt` that did not fail and are kept on top of the stack."""
        self._attempt = attempt
        for fresh, more in zip(self._fresh, steps, strict=True):
            fresh += more
        if len(self._fresh[0]) >= BATCH:
            self.flush()

    def settle(self, execution: Execution, fate: int, length: int) -> None:
        """Take any other execution that is over, or that turned out to be of another `fate`.

        `length` is that of the kept stack before it.
        """
        if fate == SKIPPED:
            return
        self.flush()
        profile = execution.profile = profile_of(execution)
        attempt = execution.attempt
        self._tallies.add(attempt, fate, profile, 1)
        if fate == NO_STEP_DONE:
            return
        ordinal = execution.ordinal
        if ordinal < 0:
            ordinal = execution.ordinal = self._bins.count
            numbers, starts, nets, _, outsides, devices, _ = row_of(execution)
            self._bins.add([numbers, starts, nets, outsides, devices], length)
            failed = execution.failed and not execution.left
            if failed or (self._usual and execution.own > SLOW * self._usual):
                self._note(ordinal, _entry(execution, fate, attempt))
        elif ordinal in self._notable:
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=fate)
        if fate == LOST:
            self._bins.lose(ordinal)

    def keep(self, index: int, execution: Execution) -> None:
        """An execution that was settled is kept at `index` of the stack."""
        ordinal = execution.ordinal
        if self._kept and max(self._kept) >= index:
            self._kept = {at + (at >= index): one for at, one in self._kept.items()}
        self._bins.keep(index, ordinal, inserted=index < len(self._profiles))
        self._profiles.insert(index, execution.profile)
        if ordinal in self._notable:
            self._kept[index] = ordinal

    def take_back(self, execution: Execution, fate: int) -> None:
        """The execution was settled with this `fate`, and is going to be settled anew."""
        self.flush()
        self._tallies.add(execution.attempt, fate, execution.profile, -1)
        if fate == LOST:
            self._bins.lose(execution.ordinal, -1)

    def give_back(self, index: int) -> None:
        """What stalled of the kept step at `index` is its own time. Here it was counted with the step all along."""

    def lose_from(self, index: int) -> list[int]:
        """Count the kept entries from `index` on as lost in the bins; returns their profiles, for :meth:`lose`."""
        self.flush()
        for at in [at for at in self._kept if at >= index]:
            ordinal = self._kept.pop(at)
            self._notable[ordinal] = self._notable[ordinal]._replace(fate=LOST)
        self._bins.lose_from(index, len(self._profiles))
        return self._profiles.pop_from(index)

    def lose(self, attempt: int, profiles: Iterable[int]) -> None:
        """Count kept executions of `attempt` with these profiles as lost in the histograms."""
        for profile, count in Counter(profiles).items():
            self._tallies.add(attempt, KEPT, profile, -count)
            self._tallies.add(attempt, LOST, profile, count)

    def flush(self) -> None:
        """Take the executions that were pushed."""
        numbers, starts, nets, walls, outsides, devices, keys = self._fresh
        if not numbers:
            return
        self._fresh = no_steps()
        length, attempt = len(self._profiles), self._attempt
        profiles = own = _fields(nets)
        counts = counted = Counter(own)
        for measure, lengths in zip(MEASURES, (nets, walls, devices), strict=True):
            if max(lengths) < 0:
                continue
            shift = measure * BITS
            if measure:
                fields, counted = (own, counts) if lengths == nets else _counted(lengths)
                profiles = [one | part << shift for one, part in zip(profiles, fields, strict=True)]
            for part, count in counted.items():
                self._tallies.add(attempt, KEPT, part << shift, count)
        for place in self._watch(nets):
            self._kept[length + place] = self._bins.count + place
            columns = attempt, numbers[place], starts[place], walls[place], nets[place], devices[place]
            self._note(self._bins.count + place, StepEntry(*columns, KEPT, keys[place]))
        self._bins.add([numbers, starts, nets, outsides, devices], length)
        self._profiles.extend(profiles)

    def __len__(self) -> int:
        """Number of kept executions."""
        return len(self._profiles) + len(self._fresh[0])

    # --- what stands out ----------------------------------------------------------------------------------------------

    def _watch(self, nets: list[int]) -> list[int]:
        """Places of those among successive net times that stand out."""
        at = 0
        places: list[int] = []
        while at < len(nets):
            part = nets[at : at + (SAMPLE if self._usual else FEW) - len(self._recent)]
            if self._usual and max(part) > SLOW * self._usual:
                places += [place for place, net in enumerate(part, at) if net > SLOW * self._usual]
            at += len(part)
            self._recent += part
            if len(self._recent) >= (SAMPLE if self._usual else FEW):
                self._usual = median(self._recent)
                self._recent = []
        return places

    def _note(self, ordinal: int, entry: StepEntry) -> None:
        self._notable[ordinal] = entry
        if len(self._notable) > STEPS_KEPT:
            self._thin()

    def _thin(self) -> None:
        """Forget the shorter half."""
        longest = sorted(self._notable, key=lambda ordinal: -self._notable[ordinal].net)[: STEPS_KEPT // 2]
        self._notable = {ordinal: self._notable[ordinal] for ordinal in sorted(longest)}
        self._kept = {index: ordinal for index, ordinal in self._kept.items() if ordinal in self._notable}

    # --- the answer ---------------------------------------------------------------------------------------------------

    def bins(self) -> list[StepBin]:
        """All bins; the last may hold fewer executions than the others."""
        self.flush()
        return self._bins.answer()

    def histogram(self, running: Iterable[Execution]) -> dict[tuple[int, int, int, int], int]:
        """Executions by (measure, attempt, fate, bucket)."""
        self.flush()
        return self._tallies.answer(running)

    def notable(self, running: Iterable[Execution]) -> list[StepEntry]:
        """Executions that stand out, in order of their start."""
        self.flush()
        slow = [one for one in running if self._usual and one.own > SLOW * self._usual]
        late = [_entry(one, IN_FLIGHT, one.attempt) for one in slow]
        return sorted((*self._notable.values(), *late), key=lambda entry: entry.begin)


def row_of(execution: Execution) -> Steps:
    """One execution."""
    number, start, wall, net = execution.number, execution.start, execution.wall, execution.own
    return [number], [start], [net], [wall], [execution.outside], [_device(execution)], [execution.key]


def _device(execution: Execution) -> int:
    return execution.busy if execution.timed else NOT_KNOWN


def _entry(execution: Execution, fate: int, attempt: int) -> StepEntry:
    number, start, wall, net = execution.number, execution.start, execution.wall, execution.own
    return StepEntry(attempt, number, start, wall, net, _device(execution), fate, execution.key)


def _counted(lengths: list[int]) -> tuple[list[int], Counter[int]]:
    fields = _fields(lengths)
    return fields, Counter(fields)


def _fields(lengths: list[int]) -> list[int]:
    """As bucket_of, inlined, and one more; 0 where the length is not known."""
    return [bisect_right(BEGINS, length) for length in lengths]
