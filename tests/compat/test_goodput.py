"""Phases recorded by starts and ends."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
import warm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timelines import timeline_totals

import otel_goodput
from compat.calls import BEGIN, JOB, LOGGER, Call, calculator, entry, recorder, tell, utc
from otel_goodput._accounting import Totals
from otel_goodput._text.durations import NS
from otel_goodput.compat import goodput
from otel_goodput.compat.goodput import Event, GoodputRecorder
from otel_goodput.compat.goodput import GoodputRecorder as WithEvents
from otel_goodput.reports.ml_goodput_entries import rows_of


def seconds(totals: Totals) -> dict[str, float]:
    """Seconds by category, those that are not 0."""
    return {name or category: round(duration / NS, 6) for category, name, duration in totals.run.rows()}


def totals_after(*calls: Call) -> Totals:
    """The account of a job recorded by `calls`, when it is over."""
    of = recorder()
    for call in calls:
        tell(of, call)
    handle = calculator().handle
    assert handle is not None
    handle.recorder.shutdown()
    return otel_goodput.open_run(os.environ["OTEL_GOODPUT_DIR"]).totals()


def test_a_job_as_maxtext_records_it() -> None:
    totals = totals_after(
        ("job_start", 0, None),
        ("tpu_init_start", 0, None),
        ("tpu_init_end", 10, None),
        ("training_preparation_start", 10, None),
        ("training_preparation_end", 14, None),
        ("data_loading_start", 14, None),
        ("data_loading_end", 15, None),
        ("step_start", 15, 0),
        ("data_loading_start", 24, None),
        ("data_loading_end", 25, None),
        ("step_start", 25, 1),
        ("custom_badput_event_start", 30, "eval_step"),
        ("custom_badput_event_end", 33, "eval_step"),
        ("data_loading_start", 37, None),
        ("data_loading_end", 38, None),
        ("step_start", 38, 2),
        ("data_loading_start", 47, None),  # the data are at their end: MaxText records no end
        ("job_end", 48, None),
    )
    assert seconds(totals) == {
        "accelerator_init": 10, "training_prep": 4, "data_loading": 4, "eval_step": 3, "productive": 27,
    }  # fmt: skip
    assert (totals.kept, totals.lost, totals.finished) == (3, 0, True)


def test_a_start_of_the_job_ends_the_one_before() -> None:
    """As an elastic retry in the same process does: its job never ended."""
    totals = totals_after(
        ("job_start", 0, None),
        ("step_start", 0, 0),
        ("step_start", 10, 1),
        ("elastic_wait_start", 15, "elastic_slice_down"),
        ("elastic_wait_end", 35, "elastic_slice_down"),
        ("elastic_reinit_start", 35, None),
        ("elastic_reinit_end", 41, None),
        ("step_start", 41, 1),
        ("step_start", 51, 2),
        ("job_end", 61, None),
    )
    assert seconds(totals) == {
        "productive": 30, "wasted_progress": 5, "elastic_slice_down": 20, "elastic_reinitialization": 6,
    }  # fmt: skip
    assert (totals.kept, totals.lost) == (3, 1)


def test_ends_without_a_start_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        totals = totals_after(
            ("job_start", 0, None),
            ("tpu_init_end", 1, None),
            ("custom_badput_event_start", 1, "eval"),
            ("custom_badput_event_end", 2, "sdc"),
            ("custom_badput_event_end", 3, "eval"),
            ("step_start", 3, 0),
            ("job_end", 10, None),
            ("job_end", 11, None),
        )
    assert seconds(totals) == {"other": 1, "eval": 2, "productive": 7}
    assert "the end of accelerator_init, which had not started, is ignored" in caplog.text
    assert "the end of custom 'sdc', which had not started, is ignored" in caplog.text


def test_times_without_a_zone_are_utc() -> None:
    of = recorder()
    naive = [datetime.fromtimestamp(BEGIN + at, timezone.utc).replace(tzinfo=None) for at in (0, 1, 5)]
    of.record_job_start_time(naive[0])
    of.record_step_start_time(0, naive[1])
    of.record_job_end_time(naive[2])
    totals = goodput.open_handle(JOB, LOGGER).recorder.totals()
    assert totals.started_at == BEGIN * NS
    assert seconds(totals) == {"other": 1, "productive": 4}


def test_nothing_is_raised_in_training(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    of = recorder()
    of.record_job_start_time("yesterday")  # type: ignore[arg-type]
    of.record_step_start_time("seven")  # type: ignore[arg-type]
    of.record_job_start_time()
    of.record_step_start_time(3)
    of.record_custom_badput_event_start_time(custom_badput_event_type="")
    of.record_elastic_wait_start_time("an unknown kind")
    of.record_elastic_slice_counts(-1, 2, 3)
    of.record_checkpoint_progress(1, utc(0))
    of.flush()
    of.record_job_end_time()
    assert goodput.open_handle(JOB, LOGGER).recorder.totals().finished
    assert "'yesterday' is not a datetime" in caplog.text


def test_without_logging_there_is_no_account(place: Path) -> None:
    of = GoodputRecorder(JOB, LOGGER)
    of.record_job_start_time()
    of.record_step_start_time(0)
    of.flush()
    assert calculator().handle is None and not place.exists()
    with pytest.raises(ValueError, match="there is no account of job 'job'"):
        calculator().get_job_goodput()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_account_is_that_of_the_process_that_logs(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Google's: the others do not record, and nothing waits for them."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    of = recorder()
    of.record_job_start_time(utc(0))
    for step in range(3):
        of.record_step_start_time(step, utc(10 + 10 * step))
    of.record_job_end_time(utc(40))
    handle = goodput.open_handle(JOB, LOGGER)
    assert handle is not None and handle.recorder.config.leads
    live, report = calculator().get_job_goodput(), handle.recorder.report()
    assert live[0] == 75 and report.ranks is None and report.process is None
    handle.recorder.shutdown()
    goodput._handles.clear()
    assert calculator().get_job_goodput() == live


def test_recorders_of_a_job_are_one() -> None:
    first, second = recorder(), GoodputRecorder(JOB, LOGGER, True)
    first.record_job_start_time()
    first.record_step_start_time(0)
    second.record_step_start_time(1)
    second.record_job_end_time()
    other = GoodputRecorder(JOB, "another", True)
    other.record_job_start_time()
    totals = goodput.open_handle(JOB, LOGGER).recorder.totals()
    assert totals.finished and totals.kept == 2
    assert goodput.open_handle(JOB, "another").recorder.run_id == "job.another"


def test_loading_on_another_thread_overlaps_the_steps() -> None:
    of = recorder()
    of.record_job_start_time()
    of.record_step_start_time(0)

    def load() -> None:
        of.record_data_loading_start_time()
        time.sleep(0.05)
        of.record_data_loading_end_time()

    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
    of.record_step_start_time(1)
    of.record_job_end_time()
    totals = goodput.open_handle(JOB, LOGGER).recorder.totals()
    assert totals.kept == 2 and "data_loading" not in seconds(totals)
    assert totals.overlapped_data_loading >= 50_000_000


def test_the_events_of_googles_guide() -> None:
    of = WithEvents(JOB, LOGGER, True)
    with of.record_event(Event.JOB):
        with of.record_event(Event.ACCELERATOR_INIT), of.record_event(Event.CUSTOM, "warm-up"):
            time.sleep(0.01)
        for step in range(3):
            with of.record_event(Event.DATA_LOADING):
                pass
            with of.record_event(Event.STEP, step):
                time.sleep(0.01)
    by_category = seconds(goodput.open_handle(JOB, LOGGER).recorder.totals())
    assert by_category.keys() >= {"productive", "data_loading", "warm-up", "accelerator_init"}
    assert by_category["productive"] >= 0.03 and by_category["warm-up"] >= 0.01


def test_killed_and_restarted(place: Path) -> None:
    program = textwrap.dedent("""
        import sys, time
        import otel_goodput.compat
        otel_goodput.compat.install()
        from ml_goodput_measurement import goodput
        of = goodput.GoodputRecorder("job", "goodput_job", True)
        of.record_job_start_time()
        for step in range(int(sys.argv[1]), int(sys.argv[2])):
            of.record_step_start_time(step)
            time.sleep(0.01)
            print(step, flush=True)
        if sys.argv[3:] == ["hang"]:
            time.sleep(600)
        of.record_job_end_time()
    """)
    command = [sys.executable, "-c", program]
    with warm.Process([*command, "0", "10", "hang"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "9":
                break
        process.send_signal(signal.SIGKILL)
    died = calculator().totals()
    assert (died.executed, died.run.max_productive_step) == (9, 8)
    warm.run([*command, "5", "12"], check=True, timeout=60, stdout=subprocess.DEVNULL)
    totals = calculator().totals()
    assert (totals.attempts, totals.kept, totals.lost) == (2, 12, 5)
    assert dict(totals.disruptions) == {"crash": 1} and totals.finished


def test_a_pod_without_a_place_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_DIR")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    recorder()
    recorder()
    warnings = [record.getMessage() for record in caplog.records if "is lost with this pod" in record.getMessage()]
    assert len(warnings) == 1 and "OTEL_GOODPUT_DIR=gs://YOUR-BUCKET/goodput" in warnings[0]


# --- live and offline give the same ---------------------------------------------------------------------------------

PHASES = ("tpu_init", "training_preparation", "data_loading", "elastic_reinit")
ENDED = [*PHASES, "custom_badput_event", "elastic_wait"]
METHODS = ["step_start"] * 4 + [f"{kind}_{edge}" for kind in ENDED for edge in ("start", "end")]


@st.composite
def sequences(draw: st.DrawFn) -> list[Call]:
    """Calls of one process in order of their times, ends without a start and starts without an end among them."""
    calls: list[Call] = [("job_start", 0, None)]
    at = 0
    for _ in range(draw(st.integers(1, 25))):
        at += draw(st.integers(1, 50))
        method = draw(
            st.sampled_from(
                ["step_start"] * 4 + ["job_start"] + [f"{kind}_{edge}" for kind in ENDED for edge in ("start", "end")]
            )
        )
        kind = method.rpartition("_")[0]
        name = {
            "step": draw(st.integers(0, 8)),
            "custom_badput_event": draw(st.sampled_from(["eval", "sdc"])),
            "elastic_wait": draw(st.sampled_from(["elastic_slice_down", "elastic_scale_up"])),
        }.get(kind)
        calls.append((method, at / 10, name))
    if draw(st.booleans()):
        calls.append(("job_end", (at + draw(st.integers(1, 50))) / 10, None))
    return calls


@settings(
    max_examples=2 * settings.default.max_examples // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sequences())
def test_an_export_of_the_same_calls_gives_the_same(calls: list[Call]) -> None:
    of = recorder()
    for call in calls:
        tell(of, call)
    handle = goodput.open_handle(JOB, LOGGER)
    last = BEGIN + calls[-1][1]
    live = otel_goodput.open_run(os.environ["OTEL_GOODPUT_DIR"], run_id="job").totals(at=last)
    handle.recorder.shutdown()
    shutil.rmtree(os.environ["OTEL_GOODPUT_DIR"])
    offline = timeline_totals(rows_of(map(entry, calls)), at=last)
    assert seconds(live) == seconds(offline)
    assert (live.kept, live.lost, live.attempts) == (offline.kept, offline.lost, offline.attempts)
