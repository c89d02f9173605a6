"""How long training may stand still: by the usual step, and by what was seen of each phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import Recording

import otel_goodput as goodput
from otel_goodput._incidents.watchdog import BETWEEN_NS, LEAST_NS, UNKNOWN_NS
from otel_goodput._settings.options import Settings, Watch
from otel_goodput.errors import ConfigurationError

NS = 10**9
Record = Callable[..., Recording]


def limit(recording: Recording) -> float:
    """In force, s; 0 if nothing is watched."""
    recording.recorder._keeper.tick()
    return recording.recorder._observers.watchdog.quiet()[1] / NS


def test_each_situation_has_its_own(record: Record) -> None:
    recording = record()
    assert limit(recording) == 0
    with goodput.job():
        assert limit(recording) == UNKNOWN_NS / NS
        for number in range(12):
            with goodput.step(number):
                time.sleep(0.001)
                if number in (0, 11):
                    assert limit(recording) == (LEAST_NS if number else UNKNOWN_NS) / NS
            with goodput.data_loading():
                assert number < 11 or limit(recording) == LEAST_NS / NS
        assert limit(recording) == BETWEEN_NS / NS
        for expected in (UNKNOWN_NS, LEAST_NS):  # once one was seen
            with goodput.checkpoint_save(11):
                assert limit(recording) == expected / NS
            limit(recording)
        with goodput.custom("evaluation"):
            assert limit(recording) == UNKNOWN_NS / NS
            with goodput.exclusion():
                assert limit(recording) == 0
    assert limit(recording) == 0


def test_long_steps(record: Record) -> None:
    """Ten times the usual one, with times of the program's own."""
    recording = record()
    begin = time.time_ns() - 3600 * NS
    with goodput.job(start_time=begin):
        for number in range(20):
            start = begin + number * 10 * NS
            goodput.step(number, start_time=start).__enter__().end(start + 8 * NS)
        with goodput.step(20):
            assert limit(recording) == 80


def test_a_fixed_limit(record: Record) -> None:
    recording = record(watchdog="2m")
    with goodput.job():
        assert limit(recording) == UNKNOWN_NS / NS
        for number in range(12):
            with goodput.step(number):
                pass
        assert limit(recording) == 120
        with goodput.step(12):
            assert limit(recording) == 120


def test_a_limit_before_the_first_step(record: Record) -> None:
    recording = record(watchdog="start=20m")
    with goodput.job():
        assert limit(recording) == 1200
        for number in range(12):
            with goodput.step(number):
                pass
        with goodput.step(12):
            assert limit(recording) == LEAST_NS / NS
        with goodput.custom("evaluation"):
            assert limit(recording) == 1200, "the first one"


@pytest.mark.parametrize(
    "wrong", ["0.5s", "8d", "sometimes", "-1", "off,gil", "1m,2m", "start=", "start=0.1s", "start=5m,start=6m"]
)
def test_wrong_limits(record: Record, wrong: str) -> None:
    with pytest.raises(ConfigurationError):
        record(watchdog=wrong)


def test_right_limits() -> None:
    assert [Settings.watchdog.parse(text) for text in ("Auto", "off", "90s", "gil", "5m, GIL", "start=20m,off")] == [
        Watch(),
        Watch(on=False),
        Watch(limit=90 * NS),
        Watch(timer=True),
        Watch(limit=300 * NS, timer=True),
        Watch(on=False, start=1200 * NS),
    ]


def test_off_and_without_a_folder(record: Record, tmp_path: Path) -> None:
    recording = record(watchdog="off")
    with goodput.job(), goodput.step(0):
        assert limit(recording) == 0
