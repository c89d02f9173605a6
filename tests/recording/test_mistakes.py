"""What people write wrongly: what can simply work does, and the rest gets one warning, with the line to write."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import warm
from opentelemetry import trace
from recorded import Recording, attributes, sum_ns

import otel_goodput as goodput
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def kinds(recording: Recording) -> list[str]:
    return [str(warning["kind"]) for warning in recording.report()["warnings"]]


def run(code: str, directory: Path) -> tuple[str, dict[str, Any]]:
    """A program of its own: what it says on stderr, and what is left on the disk."""
    head = "import sys, time\nimport otel_goodput as goodput\n"
    head += "goodput.configure('line', run_id='run', directory=sys.argv[1], exporters='none')\n"
    process = warm.run(
        [sys.executable, "-c", head + code, str(directory)], capture_output=True, text=True, check=False, timeout=60
    )
    return process.stderr, RecordedRun(RunDirectory(directory / "run")).report().to_json()


# --- no job -----------------------------------------------------------------------------------------------------------


def test_steps_without_a_job(tmp_path: Path) -> None:
    errors, report = run(
        "with goodput.training_prep(): time.sleep(0.05)\n"
        "for _ in range(2):\n"
        "  for step, batch in goodput.steps(range(5)): time.sleep(0.02)\n",
        tmp_path,
    )
    assert errors.count("with goodput.job():") == 1
    assert report["ended"] and report["steps"]["kept"] == 10 and report["attempts"] == 1
    assert report["seconds"]["productive"] >= 0.2 and report["seconds"]["training_prep"] >= 0.05
    assert report["goodput"] == pytest.approx(report["seconds"]["productive"] / report["elapsed_s"])
    assert [warning["kind"] for warning in report["warnings"]] == ["no job"]


def test_a_job_that_nobody_opened_fails_with_its_process(tmp_path: Path) -> None:
    _, report = run("with goodput.step(0): pass\nraise KeyError", tmp_path)
    assert report["ended"]
    _, again = run("with goodput.step(1): pass", tmp_path)
    assert again["disruption_reasons"] == {"crash": 1}


def test_phases_before_the_job_are_its_own(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.accelerator_init():
        pass
    with goodput.job(), goodput.step(0):
        pass
    job = recording.span("job")
    assert job.start_time == recording.span("accelerator_init").start_time
    assert recording.report()["steps"]["kept"] == 1 and recording.report()["ended"]
    assert not messages(caplog)


def test_loading_in_the_background_begins_no_job(recording: Recording) -> None:
    def prefetch() -> None:
        with goodput.data_loading():
            pass

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    assert recording.report()["started_at"] is None


def test_a_job_never_entered(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        goodput.job()
    (text,) = messages(caplog)
    assert "with goodput.job():" in text and kinds(recording) == ["job never entered"]


def test_a_job_as_a_decorator_or_by_hand_is_entered(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    @goodput.job()
    def main() -> None:
        with goodput.step(0):
            pass

    main()
    job = goodput.job()
    job.__enter__()
    job.__exit__(None, None, None)
    assert not messages(caplog)


def test_steps_after_the_job(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job(), goodput.step(0):
        pass
    with goodput.custom("eval"):
        pass
    assert not messages(caplog)
    for number in range(1, 4):
        with goodput.step(number):
            pass
    (text,) = messages(caplog)
    assert "with goodput.job():" in text and kinds(recording) == ["steps after the job"]
    with goodput.job(), goodput.job(), goodput.step(5):
        pass
    with goodput.job():
        with goodput.job():
            pass
        with goodput.step(6):
            pass
    assert len(messages(caplog)) == 1


def test_a_report_before_configure(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert goodput.report() is None and not messages(caplog)
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    assert goodput.report() is None and goodput.report() is None
    (text,) = messages(caplog)
    assert "goodput.configure(" in text


def test_it_is_logged_even_if_logging_is_not_set_up(tmp_path: Path) -> None:
    process = warm.run(
        [sys.executable, "-c", "import otel_goodput as g; print(g.report())"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert process.stdout == "None\n" and "goodput.configure(" in process.stderr


# --- numbers that go back ---------------------------------------------------------------------------------------------


def test_epochs_that_each_count_from_0(record: Callable[..., Recording], caplog: pytest.LogCaptureFixture) -> None:
    recording = record()
    with goodput.job():
        for _ in range(3):
            for number, _ in enumerate("abcd"):
                with goodput.step(number):
                    pass
    report = recording.report()
    assert report["disruption_reasons"] == {"rollback": 2}, "told is told"
    (text,) = messages(caplog)
    assert "for step, batch in goodput.steps(loader)" in text
    recording.recorder.flush()
    for answer in (report, recording.report_on_disk()):
        (warning,) = answer["warnings"]
        assert warning["text"] == text and warning["doubts"] == ["wasted_progress"]
    assert "save checkpoints more often" not in str(recording.recorder.report())
    goodput.shutdown()
    assert record().report()["warnings"] == report["warnings"], "a restart knows it too"


def test_what_was_restored_may_go_back(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job():
        for _ in goodput.steps(range(5)):
            pass
        with goodput.checkpoint_restore(2):
            pass
        with goodput.step(2):
            pass
        with pytest.raises(KeyError), goodput.step(3):
            raise KeyError
        with goodput.step(3):
            pass
    assert not messages(caplog) and not recording.report()["warnings"]


# --- threads, and one object at the same time -------------------------------------------------------------------------


def test_the_thread_that_opens_the_steps_trains(recording: Recording) -> None:
    def train() -> None:
        for step, _ in goodput.steps(range(3)):
            with goodput.checkpoint_save(step):
                pass

    with goodput.job():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    report = recording.report()
    assert report["steps"]["kept"] == 3
    assert report["seconds"]["checkpoint_save"] > 0 and report["overlapped_data_loading_s"] == 0
    assert not [span for span in recording.spans() if "goodput.blocking" in attributes(span)]


def test_a_thread_that_steps_alongside_the_one_that_trains_does_not(recording: Recording) -> None:
    def another_thread() -> None:
        with goodput.step(100):
            pass

    with goodput.job():
        with goodput.step(0):
            pass
        thread = threading.Thread(target=another_thread)
        thread.start()
        thread.join()
        with goodput.step(1):
            pass
    report = recording.report()
    assert report["steps"]["kept"] == 2 and report["max_productive_step"] == 1


@pytest.mark.parametrize("phase", ["step", "data_loading", "custom"])
def test_what_ends_in_another_thread(phase: str, recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    numbers = count()
    make: dict[str, Callable[[], Any]] = {
        "step": lambda: goodput.step(next(numbers)),
        "data_loading": goodput.data_loading,
        "custom": lambda: goodput.custom("eval"),
    }
    with goodput.job():
        for _ in range(150):  # some of which are not traced
            opened = make[phase]()
            opened.__enter__()
            thread = threading.Thread(target=opened.__exit__, args=(None, None, None))
            thread.start()
            thread.join()
    (text,) = messages(caplog)
    assert f"with goodput.{phase}(" in text
    report = recording.report()
    assert sum_ns(report) == round(report["elapsed_s"] * 1e9)


@pytest.mark.parametrize("phase", ["step", "data_loading", "part", "custom", "checkpoint_restore"])
def test_one_object_twice_at_the_same_time(phase: str, recording: Recording) -> None:
    with goodput.job():
        make: dict[str, Callable[[], Any]] = {
            "step": lambda: goodput.step(0),
            "data_loading": goodput.data_loading,
            "part": lambda: goodput.part("forward"),
            "custom": lambda: goodput.custom("eval"),
            "checkpoint_restore": goodput.checkpoint_restore,
        }
        one = make[phase]()
        with one as outer:
            with one as inner:
                assert trace.get_current_span() is inner is not outer
            if phase != "step":
                assert trace.get_current_span() is outer
        both = threading.Barrier(2)

        def work() -> None:
            with one:
                both.wait(10)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with one:
            pass
    named = {"part": "forward", "custom": "eval"}.get(phase, phase)
    spans = recording.spans(named)
    assert len(spans) == 5
    assert len({span.context.span_id for span in spans if span.context}) == 5
    assert recording.report()["ended"] and trace.get_current_span() is trace.INVALID_SPAN


# --- attributes, parts ------------------------------------------------------------------------------------------------


def test_an_attribute_that_says_what_it_is(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job():
        with goodput.step(3) as step:
            step.set_attribute("goodput.step", 7)
            step.set_attributes({"goodput.phase": "custom", "loss": 0.5})
        with goodput.custom("eval") as span:
            span.set_attribute("goodput.phase", "step")
    assert attributes(recording.span("step"))["goodput.step"] == 3
    assert attributes(recording.span("step"))["loss"] == 0.5
    report = recording.report()
    assert report["max_productive_step"] == 3 and "eval" in report["seconds"]["custom"]
    assert len(messages(caplog)) == 1 and kinds(recording) == ["attribute changed"]


def test_a_part_outside_of_a_step(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job():
        for _ in range(2):
            with goodput.part("warm-up"):
                pass
    (text,) = messages(caplog)
    assert "with goodput.custom('warm-up'):" in text


@pytest.mark.parametrize("number", [2**63, 2**70, -(2**70)])
def test_a_number_that_no_record_holds(
    number: int, recording: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that step is not recorded: what is around it is."""
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    with goodput.job():
        with goodput.step(0):
            pass
        with goodput.step(number):
            pass
        with goodput.step(1):
            pass
    report = recording.report()
    assert report["ended"] and report["steps"]["kept"] == 2
    assert any(str(number) in text for text in messages(caplog)) and "struct.error" not in caplog.text


@pytest.mark.parametrize("moment", [2**63, -(2**63) - 1, 10**30])
def test_a_time_that_no_record_holds(
    moment: int, recording: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    with goodput.job():
        with goodput.step(0, start_time=moment):
            pass
        with goodput.custom("eval", end_time=moment):
            pass
        with goodput.step(1):
            pass
    report = recording.report()
    assert report["ended"] and report["steps"]["kept"] == 1
    assert any(str(moment) in text for text in messages(caplog)) and "struct.error" not in caplog.text


@pytest.mark.parametrize("odd", [{"attributes": {"goodput.step": 2**70}}, {"start_time": 10**30}])
def test_a_span_of_the_users_own_that_no_record_holds(
    odd: dict[str, Any], recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    attributes = {"goodput.phase": "step", "goodput.step": 0, **odd.pop("attributes", {})}
    with goodput.job():
        tracer = recording.recorder.tracer_provider.get_tracer("mine")
        tracer.start_span("s", attributes=attributes, **odd).end()
        with goodput.step(1):
            pass
    report = recording.report()
    assert report["ended"] and report["steps"]["kept"] == 1
    assert "struct.error" not in caplog.text and len(messages(caplog)) == 1
