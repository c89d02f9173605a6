"""A long run, of which only a part is listed in detail: that part is as in the whole, and the sums stay exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.long_run import write
from otel_goodput._accounting import rules
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.detail import OUTLIER, UNREAD
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

STEPS = 12_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write(tmp_path_factory.mktemp("long"), STEPS, 4)


@pytest.fixture(scope="module")
def whole(run: RunDirectory) -> RunView:
    return RunView.open(RecordedRun(run), spans=10**6)


@pytest.fixture(scope="module", params=[0, 2000])
def part(run: RunDirectory, request: pytest.FixtureRequest) -> RunView:
    return RunView.open(RecordedRun(run), spans=request.param)


def test_the_excerpt_is_as_in_the_whole(whole: RunView, part: RunView) -> None:
    assert whole.left_out == 0 and whole.text == ""
    assert 0 < len(part.detail.steps) < len(whole.detail.steps) / 2
    steps = {(one.attempt, one.key): one for one in whole.detail.steps}
    for one in part.detail.steps:
        known = steps[one.attempt, one.key]
        if one.flags & OUTLIER:  # as the overview remembers it
            assert (one.number, one.begin, one.net, one.fate) == (known.number, known.begin, known.net, known.fate)
        else:
            assert one == known
    phases = {(one.attempt, one.key): one for one in whole.detail.phases}
    for phase in part.detail.phases:
        assert phase.trace in (0, UNREAD) and replace(phase, trace=0) == phases[phase.attempt, phase.key]
    assert [one.begin for one in part.detail.steps] == sorted(one.begin for one in part.detail.steps)


def test_everything_within_the_windows_is_listed(whole: RunView, part: RunView) -> None:
    if not part.detail.owners:
        return
    excerpt = {(one.attempt, one.key) for one in part.detail.steps}
    for begin, end in part.windows:
        assert {(one.attempt, one.key) for one in whole.detail.steps if begin <= one.begin <= end} <= excerpt
        assert part.detail.partition(begin, end) == whole.detail.partition(begin, end)
    assert all(before[1] < after[0] for before, after in pairwise(part.windows))
    for loss in whole.overview.disruptions:
        assert any(begin <= loss.time <= end for begin, end in part.windows)


def test_sums_are_exact_and_what_is_left_out_is_counted(whole: RunView, part: RunView) -> None:
    summed: Counter[int] = Counter()
    for one in part.overview.bins:
        summed.update(one)
    run = part.report.totals.run
    assert sum(summed.values()) == run.elapsed == whole.report.totals.run.elapsed
    assert summed[rules.PRODUCTIVE] == run.productive
    count = len(whole.detail.steps) + len(whole.detail.phases)
    assert part.left_out == count - len(part.detail.steps) - len(part.detail.phases)
    assert f"{count:,} steps and phases" in part.text and "summed up" in part.text
    assert len(part.processes) == 4 and all(one.overview is not None for one in part.processes)


def test_attempts_are_the_same(whole: RunView, part: RunView) -> None:
    assert [(one.number, one.begin, one.end, one.state) for one in part.attempts] == [
        (one.number, one.begin, one.end, one.state) for one in whole.attempts
    ]
    for one, known in zip(part.attempts, whole.attempts, strict=True):
        assert sum(one.partition.values()) == pytest.approx(one.end - one.begin, abs=2)
        if "estimated" not in part.text:
            assert one.partition == known.partition
