"""Calls that programs make by mistake: nothing is raised in training, and only what is wrong is not recorded."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from compat.calls import calculator, recorder, utc
from otel_goodput.compat.goodput_utils import BadputType


@pytest.fixture(autouse=True)
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)


@pytest.mark.parametrize("number", [None, "x", float("nan"), -1, 2**63, 2**70, np.array([7, 8])], ids=str)
def test_a_step_without_a_number(number: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The step before it goes on until the next one that has a number."""
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_step_start_time(0, utc(0))
    of.record_step_start_time(number, utc(5))
    of.record_step_start_time(1, utc(10))
    of.record_job_end_time(utc(20))
    goodput, badput, top = calculator().get_job_goodput(include_badput_breakdown=True)
    assert (goodput, top) == (100, 1) and not any(value for value in badput.values())
    assert calculator().get_step_deviation(10) == {0: 0}
    assert "struct.error" not in caplog.text


@pytest.mark.parametrize(
    "moment", ["NaT", datetime.min, datetime.max, 1_700_000_005.0, "2023", np.datetime64("2023-11-14")], ids=str
)
def test_a_time_that_is_none(moment: Any, caplog: pytest.LogCaptureFixture) -> None:
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_step_start_time(0, utc(0))
    moment = pytest.importorskip("pandas").NaT if moment == "NaT" else moment
    of.record_step_start_time(1, moment)
    of.record_custom_badput_event_start_time(moment, "eval")
    of.record_custom_badput_event_end_time(moment, "eval")
    of.record_elastic_slice_counts(1, 2, 2, moment)
    of.record_job_end_time(moment)
    of.record_step_start_time(1, utc(10))
    of.record_job_end_time(utc(20))
    goodput, badput, top = calculator().get_job_goodput(include_badput_breakdown=True)
    assert (goodput, top) == (100, 1) and not any(value for value in badput.values())
    assert "struct.error" not in caplog.text


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.float32, str, np.array])
def test_a_number_of_another_type(kind: Any) -> None:
    pd = pytest.importorskip("pandas")
    of = recorder()
    of.record_job_start_time(utc(0))
    for number in range(4):
        of.record_step_start_time(kind(number), pd.Timestamp(utc(10 * number)))
    of.record_job_end_time(utc(40))
    assert calculator().get_job_goodput()[::2] == (100, 3)


def test_intervals_without_a_time_zone_or_an_end() -> None:
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_step_start_time(0, utc(0))
    of.record_job_end_time(utc(20))
    naive = utc(5).replace(tzinfo=None)
    details = calculator().get_interval_metric_details(naive, utc(15).astimezone(timezone(timedelta(hours=5.5))))
    assert details["interval_size"] == 10 and list(details["interval_goodput"].values()) == [100]
    with pytest.raises(ValueError, match="two ends"):
        calculator().get_job_goodput_interval(naive, None)  # type: ignore[arg-type]


def test_that_everything_is_excluded() -> None:
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_job_end_time(utc(20))
    with pytest.raises(ValueError, match="everything is excluded"):
        calculator().get_job_goodput_with_exclusions([(utc(-5), utc(25))])


def test_a_job_that_starts_again_in_its_process() -> None:
    """A retry after an exception, or a cell that is run again: nobody recorded the end of the first one."""
    of = recorder()
    of.record_job_start_time(utc(0))
    for number in range(6):
        of.record_step_start_time(number, utc(10 * number))
    of.record_job_start_time(utc(200))
    for number in range(4, 9):
        of.record_step_start_time(number, utc(200 + 10 * (number - 4)))
    of.record_job_end_time(utc(250))
    details = calculator().get_job_goodput_details()
    assert details["disruption_count"] == 1 and details["total_elapsed_time"] == 250
    assert details["badput_time"][BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION] == 150
    assert details["badput_time"][BadputType.WASTED_PROGRESS_FROM_DISRUPTION] == 10


def test_steps_of_threads_that_are_gone_when_the_job_ends(caplog: pytest.LogCaptureFixture) -> None:
    of = recorder()
    of.record_job_start_time()

    def work(first: int) -> None:
        for number in range(first, 40, 4):
            of.record_data_loading_start_time()
            of.record_data_loading_end_time()
            of.record_custom_badput_event_start_time(None, f"eval {first}")
            of.record_step_start_time(number)
        of.record_data_loading_start_time()
        all_of_them.wait(20)  # a thread that begins later would have the ident of one that is gone

    all_of_them = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with caplog.at_level(logging.ERROR):
        of.record_job_end_time()
    _, badput, _ = calculator().get_job_goodput(include_badput_breakdown=True)
    assert isinstance(badput[BadputType.CUSTOM_BADPUT_EVENTS], dict)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
