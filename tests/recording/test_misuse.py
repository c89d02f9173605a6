"""Wrong use: raised where errors are strict (as under tests), else reported once and never in the way of training."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from recorded import NS, Recording, attributes, sum_ns

import otel_goodput as goodput
from otel_goodput import ConfigurationError, PhaseError
from otel_goodput._runtime import guard

WRONG: dict[str, Callable[[], Any]] = {
    "step without a number": lambda: goodput.step(None),  # type: ignore[arg-type]
    "step named by a string": lambda: goodput.step("3"),  # type: ignore[arg-type]
    "step with a fraction": lambda: goodput.step(3.5),  # type: ignore[arg-type]
    "negative step": lambda: goodput.step(-1),
    "save of a negative step": lambda: goodput.checkpoint_save(-4),
    "restore of half a step": lambda: goodput.checkpoint_restore(0.5),  # type: ignore[arg-type]
    "custom without a name": lambda: goodput.custom(""),
    "custom with a blank name": lambda: goodput.custom("  "),
    "unknown elastic wait": lambda: goodput.elastic_wait("sideways"),
}


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("wrong", WRONG)
def test_strict(wrong: str, recording: Recording) -> None:
    with goodput.job(), pytest.raises(PhaseError), WRONG[wrong]():
        raise AssertionError("the body is not entered")
    assert [span.name for span in recording.spans()] == ["job"]
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.usefixtures("lenient")
def test_lenient(wrong: str, recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    entered = 0
    with goodput.job():
        for _ in range(3):
            with WRONG[wrong]() as span:
                span.set_attribute("a", 1)
                span.add_event("b")
                entered += 1
        with goodput.step(5):
            pass
    assert entered == 3
    assert [span.name for span in recording.spans()] == ["step", "job"], "it is not recorded"
    (warning,) = warnings(caplog)
    assert "not recorded" in warning
    report = recording.report()
    assert report["steps"]["executed"] == 1
    assert sum_ns(report) == round(report["elapsed_s"] * NS)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.usefixtures("lenient")
def test_the_users_own_exceptions_pass_through_what_is_not_recorded(wrong: str, recording: Recording) -> None:
    with goodput.job(), pytest.raises(KeyError, match="mine"), WRONG[wrong]():
        raise KeyError("mine")
    assert recording.report()["steps"]["executed"] == 0


class Broken:
    """Neither a number nor a name: whoever asks gets an error that is not about types."""

    def __index__(self) -> int:
        raise OSError("where the number was")

    def __str__(self) -> str:
        raise OSError("where the name was")


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(
    ("phase", "recorded"), [("step", True), ("part", False), ("custom", False), ("checkpoint_save", True)]
)
def test_arguments_that_fail_of_themselves_do_not_stop_training(
    phase: str, recorded: bool, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that may be on a device is left out; without a name there is no phase."""
    entered = 0
    with goodput.job():
        for _ in range(2):
            with getattr(goodput, phase)(Broken()) as span:
                span.set_attribute("a", 1)
                entered += 1
    assert entered == 2 and [span.name for span in recording.spans()] == [*[phase] * 2 * recorded, "job"]
    assert len(warnings(caplog)) == 1


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(("phase", "arguments"), [("step", (1,)), ("data_loading", ()), ("part", ("forward",))])
def test_an_error_of_ours_before_a_phase_begins_does_not_stop_training(
    phase: str, arguments: tuple[Any, ...], recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("of ours")

    monkeypatch.setattr("otel_goodput._recording.fast_span.FastSpan.__init__", fail)
    entered = 0
    with goodput.job():
        opened = getattr(goodput, phase)(*arguments)
        with opened as span:
            span.set_attribute("a", 1)
            entered += 1

        @opened
        def again() -> int:
            return entered

        assert again() == 1
    assert [span.name for span in recording.spans()] == ["job"]


@pytest.mark.usefixtures("lenient")
def test_different_wrong_numbers_are_one_site(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """A loop with a wrong number in every turn must not fill the log, nor the memory."""
    with goodput.job():
        for number in range(1, 200):
            with goodput.step(-number):
                pass
    assert len(warnings(caplog)) == 1


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(
    ("wrong", "what"),
    [((-1, 2, 3), "a number of slices (an integer >= 0), not -1"), (("1", 2, 3), "of slices"), (2.5, "2.5")],
    ids=str,
)
def test_wrong_counts_of_slices(wrong: Any, what: str, recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    with goodput.job():
        if isinstance(wrong, tuple):
            goodput.slice_counts(*wrong)
        else:
            goodput.slice_counts(1, 2, 3, time=wrong)
    (warning,) = warnings(caplog)
    assert what in warning and warning.startswith("slice_counts()")
    assert not caplog.records[-1].exc_info, "what is wrong is the user's call, and no traceback of ours helps"


@pytest.mark.usefixtures("lenient")
def test_wrong_times(recording: Recording, caplog: pytest.LogCaptureFixture, base: int) -> None:
    with goodput.job(start_time=base, end_time=base + 10 * NS):
        with goodput.step(1, start_time="yesterday"):  # type: ignore[arg-type]
            pass
        with goodput.custom("x", start_time="yesterday"):  # type: ignore[arg-type]
            pass
        with goodput.data_loading(end_time=2.5):  # type: ignore[arg-type]
            pass
        with goodput.step(2, start_time=base, end_time=base + NS):
            pass
    assert warnings(caplog)
    report = recording.report()
    assert report["steps"]["kept"] == 1 and report["max_productive_step"] == 2
    assert report["elapsed_s"] == 10.0 and sum_ns(report) == 10 * NS


@pytest.mark.parametrize("phase", ["step", "data_loading", "custom", "checkpoint_save"])
def test_an_end_before_the_start(phase: str, recording: Recording, caplog: pytest.LogCaptureFixture, base: int) -> None:
    times = {"start_time": base + 5 * NS, "end_time": base + 2 * NS}
    make: dict[str, Callable[[], Any]] = {
        "step": lambda: goodput.step(1, **times),
        "data_loading": lambda: goodput.data_loading(**times),
        "custom": lambda: goodput.custom("x", **times),
        "checkpoint_save": lambda: goodput.checkpoint_save(1, **times),
    }
    with goodput.job(start_time=base, end_time=base + 10 * NS):
        for _ in range(3):
            with make[phase]():
                pass
    for span in recording.spans():
        assert span.start_time is not None and span.end_time is not None and span.end_time >= span.start_time
    (warning,) = warnings(caplog)
    assert "before it starts" in warning and "3.0" in warning
    assert recording.report()["seconds"] == {"other": 10.0}
    assert recording.report_on_disk()["seconds"] == {"other": 10.0}


def test_times_beyond_64_bits_do_not_break_anything(
    recording: Recording, lenient: None, caplog: pytest.LogCaptureFixture
) -> None:
    with goodput.job():
        with goodput.step(1, start_time=10**30, end_time=10**31):
            pass
        with goodput.custom("x", start_time=-(10**30)):
            pass
        with goodput.step(2**70):
            pass
    report = recording.report()
    assert sum_ns(report) == round(report["elapsed_s"] * NS)


def test_a_job_within_a_job_is_one_job(recording: Recording, base: int) -> None:
    with goodput.job(start_time=base, end_time=base + 10 * NS):
        with (
            goodput.job(start_time=base + 2 * NS, end_time=base + 4 * NS),
            goodput.step(0, start_time=base + 2 * NS, end_time=base + 4 * NS),
        ):
            pass
        with goodput.step(1, start_time=base + 5 * NS, end_time=base + 7 * NS):
            pass
    report = recording.report()
    assert report["attempts"] == 1 and report["disruptions"] == 0
    assert report["seconds"] == {"productive": 4.0, "other": 6.0}
    assert len({(span.context.trace_id, span.context.span_id) for span in recording.spans() if span.context}) == 4


def test_a_second_job_in_the_same_process_is_a_restart(recording: Recording, base: int) -> None:
    for life in range(2):
        start = base + life * 20 * NS
        with (
            goodput.job(start_time=start, end_time=start + 10 * NS),
            goodput.step(life, start_time=start + NS, end_time=start + 3 * NS),
        ):
            pass
    for report in (recording.report(), recording.report_on_disk()):
        assert report["attempts"] == 2 and report["disruption_reasons"] == {"restart": 1}
        assert report["seconds"] == {"productive": 4.0, "other": 16.0, "infrastructure_recovery": 10.0}
    identities = {(span.context.trace_id, span.context.span_id) for span in recording.spans() if span.context}
    assert len(identities) == len(recording.spans()) == 4, "no two spans share an id"
    steps = recording.spans("step")
    jobs = recording.spans("job")
    assert [step.parent.span_id for step in steps if step.parent] == [
        job.context.span_id for job in jobs if job.context
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_sampling": 0},
        {"step_sampling": "many"},
        {"step_traces": "mine"},
        {"windows": "soon"},
        {"windows": ["-1h"]},
        {"windows": "0.5s"},
        {"grace_period": -1},
        {"grace_period": "long"},
        {"submitted_at": "yesterday"},
        {"processes": "some"},
        {"processes": "²"},
        {"processes": "0,"},
        {"process_index": 4, "process_count": 4},
        {"process_index": -1},
        {"process_count": 0},
        {"ideal_step_time": 0},
        {"ideal_step_time": -1.0},
        {"exporters": ["carrier-pigeon"]},
        {"exporters": ["none", "file"]},
        {"leader": -1},
    ],
    ids=str,
)
@pytest.mark.parametrize("strictness", ["1", "0"])
def test_wrong_arguments_of_configure_raise_at_once(
    wrong: dict[str, Any], strictness: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", strictness)
    with pytest.raises(ConfigurationError):
        goodput.configure("x", directory=tmp_path / "runs", **{"exporters": "none", **wrong})
    assert goodput.report() is None
    assert not list(tmp_path.glob("runs/*")), "nothing was begun"


def test_configure_again_after_a_wrong_argument(record: Callable[..., Recording], tmp_path: Path) -> None:
    """As in a notebook: what was wrong left nothing behind that is in the way of what is right."""
    for wrong in ({"exporters": "carrier-pigeon"}, {"windows": "0.5s"}, {"step_sampling": 0}):
        with pytest.raises(ConfigurationError):
            record(**wrong)
    recording = record()
    assert (recording.recorder.run_id, recording.recorder.attempt) == ("run", 0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STEP_SAMPLING", "0"),
        ("STEP_SAMPLING", "ten"),
        ("STEP_TRACES", "mine"),
        ("TRACE_SPANS", "7"),
        ("WINDOWS", "soon"),
        ("WINDOWS", "10ms"),
        ("WINDOWS", "0.5s"),
        ("GRACE_PERIOD", "long"),
        ("GRACE_PERIOD", "-3"),
        ("SUBMITTED_AT", "yesterday"),
        ("PROCESSES", "some"),
        ("EXPORTERS", "carrier-pigeon"),
        ("EXPORTERS", "none,file"),
    ],
)
def test_wrong_variables_warn_and_take_the_default(
    variable: str,
    value: str,
    record: Callable[..., Recording],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"OTEL_GOODPUT_{variable}", value)
    recording = record(**({"exporters": None} if variable == "EXPORTERS" else {}))
    (warning,) = warnings(caplog)
    assert f"OTEL_GOODPUT_{variable}" in warning and value in warning
    with goodput.job(), goodput.step(0):
        pass
    assert len(recording.spans("step")) == 1
    assert recording.report()["steps"]["kept"] == 1


def test_configured_twice(record: Callable[..., Recording], caplog: pytest.LogCaptureFixture) -> None:
    first = record(run_id="first")
    job = goodput.job()
    job.__enter__()
    second = record(run_id="second")
    assert any("again" in warning for warning in warnings(caplog))
    job.__exit__(None, None, None)
    with goodput.job():
        pass
    assert attributes(first.span("job"))["goodput.interrupted"] is True
    assert first.report_on_disk()["ended"] and second.report()["attempts"] == 1
    assert "goodput.interrupted" not in attributes(second.span("job"))


@pytest.mark.parametrize("call", ["report", "totals"])
def test_questions_before_configure(call: str) -> None:
    assert getattr(goodput, call)() is None
    assert goodput.flush() is True
    goodput.shutdown()


@pytest.mark.parametrize(("index", "exports"), [(0, True), (1, False), (4, True)])
def test_processes_are_numbers_however_they_are_written(index: int, exports: bool, tmp_path: Path) -> None:
    options = {"processes": "00, 4", "process_index": index, "process_count": 5}
    with goodput.Recorder("line", directory=tmp_path, exporters="none", **options) as line:  # type: ignore[arg-type]
        assert line.config.exports_spans() is exports


@pytest.mark.usefixtures("recording")
def test_a_callback_that_is_no_function(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(guard, "contained", Counter[str]())
    assert goodput.on_preemption(3) == 3  # type: ignore[type-var, comparison-overlap]
    assert callable(goodput.on_preemption(None))  # type: ignore[type-var]
    assert warnings(caplog) == ["on_preemption() needs a function; write `@goodput.on_preemption` above its def"]
