"""The clock of spans, journal and ledger is the host's wall clock, however busy the host was when it was set."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from otel_goodput._runtime.host import leaping


def test_it_is_the_wall_clock() -> None:
    clock, _ = leaping()
    readings = [(time.time_ns(), clock(), time.time_ns()) for _ in range(1000)]
    closest = min(after - before for before, _, after in readings)
    assert any(before - closest <= ours <= after + closest for before, ours, after in readings)
    assert all(first[1] <= second[1] for first, second in pairwise(readings))


def test_being_put_aside_while_it_is_set_does_not_shift_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third look at the wall clock takes 30 ms longer than it should."""
    real: Callable[[], int] = time.time_ns
    looks = iter(range(10**6))

    def slow() -> int:
        if next(looks) % 3 == 0:
            time.sleep(0.03)
        return real()

    monkeypatch.setattr(time, "time_ns", slow)
    clock, _ = leaping()
    monkeypatch.undo()
    errors = [abs(clock() - real()) for _ in range(100)]
    assert min(errors) < 5_000_000
