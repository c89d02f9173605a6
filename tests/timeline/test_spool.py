"""What ranks did is held out of memory."""

from __future__ import annotations

import os
import tracemalloc
from array import array
from pathlib import Path

import pytest

from otel_goodput._accounting.events import ATTEMPT, END, START, Event, TurnColumns, key_behind
from otel_goodput._accounting.rules import DATA_LOADING, JOB, STEP
from otel_goodput._runtime import files
from otel_goodput._timeline import spool
from otel_goodput._timeline.ranks import RankDigest, digest_of
from otel_goodput._timeline.spool import Spool

NOW = 1_790_000_000_000_000_000
MS = 1_000_000


def digest(steps: int, where: Spool | None) -> RankDigest:
    """That of a rank that stepped undisturbed."""

    def turns(first: int, count: int) -> TurnColumns:
        ended = array("q", range(NOW + 31 * first * MS, NOW + 31 * (first + count) * MS, 31 * MS))
        begun = array("q", [time + MS for time in ended])
        return TurnColumns(key_behind(8, 2 * first), ended, begun, range(first + 1, first + count + 1))

    events: list[Event | TurnColumns] = [
        Event(NOW - 50 * MS, ATTEMPT, step=0),
        Event(NOW - 50 * MS, START, JOB, 1),
        Event(NOW - 40 * MS, START, DATA_LOADING, 7, 0),
        Event(NOW - 30 * MS, END, DATA_LOADING, 7, 0),
        Event(NOW - 30 * MS, START, STEP, 8, 0),
    ]
    every = (turns(first, 1000) for first in range(0, steps, 1000))
    made = digest_of((one for some in (events, every) for one in some), where)
    assert made is not None
    return made


def test_memory_does_not_grow_with_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    held: list[int] = []
    with Spool() as where:
        kept = [digest(2_000, where)]
        for steps in (20_000, 60_000):
            tracemalloc.start()
            kept.append(digest(steps, where))
            held.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
            assert len(kept[-1].parts.steps) == steps
    assert held[1] - held[0] < 40_000 * 16 / 10, held  # of what the times of these steps take


@pytest.mark.parametrize("fault", ["no folder", "full", "short"])
def test_what_cannot_be_written_is_held_in_memory(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spool, "HELD", 0)
    if fault == "no folder":
        monkeypatch.setattr(files, "temporary", lambda: tmp_path / "missing")
    else:

        def pwrite(file: int, data: bytes, at: int) -> int:
            if fault == "full":
                raise OSError("no space left")
            return len(data) - 1

        monkeypatch.setattr(os, "pwrite", pwrite)
    with Spool() as where:
        assert digest(10_000, where).parts.steps == digest(10_000, None).parts.steps
