"""The cadence of steps: how fast a process goes, whatever came before its steps and whatever it waits for now."""

from __future__ import annotations

from typing import Any

import pytest
from timelines import replay

from otel_goodput.reports.text import doubts

from .stories import story


def answer(text: str) -> dict[str, Any]:
    return replay(story(text))


def test_the_cadence_is_that_of_completed_steps() -> None:
    """Neither the preparation before the first step, nor a save between two, nor an open step that hangs is in it."""
    text = "job 0- / prep 0-50 / steps 0..9 @50 every 4 for 3 / save 90-100 / steps 10..19 @100 every 4 for 3"
    assert answer(f"{text} / step 20 @140- / heartbeat @1000")["step_cadence_s"] == 4


def test_an_outage_is_not_in_the_cadence() -> None:
    before = "job 0- / steps 0..4 @0 every 4\nattempt 2\njob 500- / "
    assert answer(f"{before} steps 5..7 @500 every 2 / heartbeat @600")["step_cadence_s"] == 2
    assert answer(f"{before} step 5 @500-502 / heartbeat @600")["step_cadence_s"] is None, "one step is no pace"


def test_short_steps_with_long_gaps_before_and_after_them_are_not_taken_for_dispatch() -> None:
    """Of an outage, a long preparation and an open hang it was concluded that the device is not waited for."""
    steps = " / ".join(f"step {n} @{7200 + n / 10:.1f}-{7200.1 + n / 10:.1f}" for n in range(40))
    report = answer(
        f"job 0- / steps 0..1 @0 every 4\nattempt 2\njob 3600- / prep 3600-7200 / {steps} / heartbeat @9999"
    )
    assert report["step_cadence_s"] == pytest.approx(0.1) and list(doubts(report)) == []
