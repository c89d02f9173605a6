"""Programs of several ranks, each a thread with a recorder of its own; a witness on each rank says what it did (R11).

What the job did follows from the witnesses by the definition, a millisecond at a time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import otel_goodput as goodput
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import Category, Phase

COUNT = 4
FIGURES = ("seconds", "elapsed_s", "excluded_s", "steps")
OF_STEPS = {
    Category.PRODUCTIVE,
    Category.PROGRAM_STARTUP,
    Category.WASTED_PROGRESS,
    Category.STALLED,
    Category.IN_FLIGHT,
}


class Rank:
    """What one rank does, and when it did that: what it was doing, from, to (s); a number stands for a step."""

    def __init__(self, index: int, recorder: goodput.Recorder, barriers: dict[int, threading.Barrier]) -> None:
        self.index, self.recorder, self._barriers = index, recorder, barriers
        self.spans: list[tuple[str | int, float, float]] = []
        self.begin = self.end = 0.0

    @contextmanager
    def during(self, what: str | int, phase: AbstractContextManager[object]) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            with phase:
                yield
        finally:
            self.spans.append((what, begin, time.perf_counter()))

    def load(self, seconds: float = 0.002) -> None:
        with self.during(Category.DATA_LOADING, self.recorder.data_loading()):
            time.sleep(seconds)

    def custom(self, seconds: float) -> None:
        with self.during(Category.CUSTOM, self.recorder.custom("evaluation")):
            time.sleep(seconds)

    def exclude(self, seconds: float) -> None:
        with self.during(Phase.EXCLUSION, self.recorder.exclusion()):
            time.sleep(seconds)

    def step(self, number: int, *, among: int = COUNT, evaluates: float = 0.0, excludes: float = 0.0) -> None:
        """Take a step, which so many ranks take."""
        with self.during(number, self.recorder.step(number)):
            if excludes:
                self.exclude(excludes)
            if evaluates:
                self.custom(evaluates)
            self._barriers[among].wait(60)
            time.sleep(0.01)

    def run(self, program: Callable[[Rank], None]) -> None:
        self.begin = time.perf_counter()
        try:
            with self.recorder.job():
                program(self)
        except BaseException:
            for barrier in self._barriers.values():
                barrier.abort()
            raise
        finally:
            self.end = time.perf_counter()

    def doing(self, moment: float) -> tuple[float, str]:
        """Until when it does something that is no step, and what."""
        inside = [(begin, end, what) for what, begin, end in self.spans if begin <= moment < end]
        phases = [one for one in inside if not isinstance(one[2], int)]
        _, end, what = max(phases, default=(0.0, 0.0, Category.OTHER))
        return end, str(what)


def witnessed(ranks: list[Rank]) -> Counter[str]:
    """What the job did, in seconds by category."""
    groups: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
    for rank in ranks:
        times = Counter[int]()
        for what, begin, end in rank.spans:
            if isinstance(what, int):
                groups.setdefault((what, times[what]), {})[rank.index] = begin, end
                times[what] += 1
    steps = sorted(groups.values(), key=lambda group: max(end for _, end in group.values()))
    spent, moment, until = Counter[str](), min(rank.begin for rank in ranks), max(rank.end for rank in ranks)
    while moment < until:
        while steps and max(end for _, end in steps[0].values()) <= moment:
            del steps[0]
        last = max(ranks, key=lambda rank: rank.end).index
        if steps:
            last = max(steps[0], key=lambda index: steps[0][index][0])
        if not steps or moment < steps[0][last][0]:
            spent[ranks[last].doing(moment)[1]] += 0.001
        else:
            inside = [ranks[index].doing(moment) for index, (begin, end) in steps[0].items() if begin <= moment < end]
            end, what = max(inside, default=(0.0, ""))
            spent[what if end else "step"] += 0.001
        moment += 0.001
    return spent


def evaluates_on_some(rank: Rank) -> None:
    """Between steps on rank 0, which also saves without blocking, and inside of steps on rank 2; numbers have gaps."""
    with rank.recorder.checkpoint_save(1, blocking=False) if rank.index == 0 else rank.recorder.part("none"):
        for number in (0, 1, 2, 3, 100, 101, 102, 103):
            rank.load()
            rank.step(number, evaluates=0.05 if rank.index == 2 and number % 2 else 0.0)
            if rank.index == 0 and number % 2 == 0:
                rank.custom(0.05)


def different_numbers_of_batches(rank: Rank) -> None:
    """Rank 1 comes later, rank 2 has fewer and exports something while the others go on, rank 3 only evaluates."""
    if rank.index == 3:
        rank.custom(0.1)
        return
    if rank.index == 1:
        time.sleep(0.1)
    for number in range(5 if rank.index == 2 else 10):
        rank.load(0.02 if rank.index == 0 else 0.002)
        rank.step(number, among=3 if number < 5 else 2)
    if rank.index == 2:
        rank.custom(0.4)


def waits_and_goes_back(rank: Rank) -> None:
    """Two ranks wait for a slice, a step is tried again on one, and all go back after a restore."""
    for number in range(4):
        rank.load()
        if number == 2 and rank.index < 2:
            wait = rank.recorder.elastic_wait("slice_down")
            with rank.during(Category.ELASTIC_SLICE_DOWN, wait):
                time.sleep(0.1)
        if number == 3 and rank.index == 1:
            with pytest.raises(RuntimeError), rank.recorder.step(number):
                raise RuntimeError("once more")
            time.sleep(0.05)
        rank.step(number)
    with rank.during(Category.CHECKPOINT_RESTORE, rank.recorder.checkpoint_restore(1)):
        time.sleep(0.1 if rank.index == 3 else 0.02)
    for number in range(2, 8):
        rank.load()
        rank.step(number)


def excludes_time(rank: Rank) -> None:
    """At the start and between steps on all ranks, between steps on rank 1, in a step on rank 2, last on rank 3."""
    rank.exclude(0.1)
    for number in range(8):
        rank.load()
        if number == 2 or (number == 4 and rank.index == 1):
            rank.exclude(0.1)
        rank.step(
            number,
            excludes=0.1 if number == 6 and rank.index == 2 else 0.0,
            evaluates=0.15 if number == 7 and rank.index == 0 else 0.0,
        )
    if rank.index == 3:
        rank.exclude(0.1)


@pytest.mark.parametrize(
    "program",
    [evaluates_on_some, different_numbers_of_batches, waits_and_goes_back, excludes_time],
    ids=lambda program: program.__name__,
)
def test_the_account_is_what_the_witnesses_of_all_ranks_say(
    program: Callable[[Rank], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers = {count: threading.Barrier(count) for count in range(1, COUNT + 1)}
    recorders = [
        goodput.Recorder(
            "ranks",
            run_id="run",
            directory=str(tmp_path),
            exporters="none",
            process_index=index,
            process_count=COUNT,
        )
        for index in range(COUNT)
    ]
    ranks = [Rank(index, recorder, barriers) for index, recorder in enumerate(recorders)]
    threads = [threading.Thread(target=rank.run, args=(program,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for recorder in reversed(recorders):  # the leader last
        recorder.shutdown()
    run = RecordedRun(RunDirectory(tmp_path / "run"))
    exact = run.report(exact=True)
    monkeypatch.setattr("otel_goodput.reports.ranks.MERGED_BYTES", 0)  # the journals are too large to be merged
    whole = exact.to_json()
    for one in (recorders[0].report().to_json(), run.report().to_json()):
        assert [one[name] for name in FIGURES] == [whole[name] for name in FIGURES]
        assert one["ranks"]["together"] and one["ranks"]["waits"] == whole["ranks"]["waits"]
    totals = exact.totals.run
    assert sum(totals.categories.values()) + sum(totals.custom.values()) == totals.elapsed
    spent = Counter({name: time / 1e9 for name, time in totals.categories.items() if name not in OF_STEPS})
    spent[Category.CUSTOM] = sum(totals.custom.values()) / 1e9
    spent[Phase.EXCLUSION] = exact.totals.excluded / 1e9
    spent["step"] = sum(totals.categories[name] for name in OF_STEPS) / 1e9
    expected = witnessed(ranks)
    for what in {*spent, *expected}:
        assert spent[what] == pytest.approx(expected[what], abs=0.03), (what, spent, expected)
