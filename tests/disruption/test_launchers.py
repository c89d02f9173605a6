"""What launchers tell through their variables, wrong values included."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from otel_goodput import Recorder
from otel_goodput._disruption.launchers import Launch, exit_code, exit_reason, launches


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ()),
        ({"RESTART_ATTEMPT": "3", "RANK": "0"}, ()),
        ({"JOBSET_NAME": "llama"}, (Launch("jobset", None, "llama"),)),
        (
            {"JOBSET_NAME": "llama", "JOBSET_RESTART_ATTEMPT": "2", "JOBSET_MAX_RESTARTS": "5"},
            (Launch("jobset", 2, "llama", 5),),
        ),
        ({"JOBSET_NAME": "llama", "RESTART_ATTEMPT": "1"}, (Launch("jobset", 1, "llama"),)),
        (
            {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1", "SLURM_JOB_END_TIME": "1800000000"},
            (Launch("slurm", 1, "17", None, 1_800_000_000 * 10**9),),
        ),
        ({"SLURM_JOBID": "17"}, (Launch("slurm", None, "17"),)),
        (
            {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "none"},
            (Launch("torchrun", 0, "none", 3),),
        ),
        (
            {"TORCHELASTIC_RESTART_COUNT": "1", "SLURM_JOB_ID": "17"},
            (Launch("slurm", None, "17"), Launch("torchrun", 1, None)),
        ),
        ({"SLURM_JOB_ID": "  "}, ()),
    ],
)
def test_launchers_are_known_by_their_variables(environ: dict[str, str], expected: tuple[Launch, ...]) -> None:
    assert launches(environ) == expected


@pytest.mark.parametrize("wrong", ["two", "-1", "1.5", "9" * 40, "\u0663", "0x10"])
def test_a_wrong_value_is_one_warning_and_not_recorded(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        actual = launches({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": wrong})
        assert actual == (Launch("slurm", None, "17"),)
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == 1 and "SLURM_RESTART_COUNT" in messages[0]


def test_the_environment_is_the_process_s_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "4")
    assert Launch("torchrun", 4, None) in launches()


@pytest.mark.parametrize(("restarts", "missing"), [(0, 0), (1, 0), (2, 1), (4, 3)])
def test_starts_that_the_journal_has_not_seen(
    restarts: int, missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a job that its launcher started more often, the second attempt says so, and the resource has the number."""
    Recorder("launched", directory=tmp_path, exporters="none").shutdown()
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    recorder = Recorder("launched", run_id="launched", directory=tmp_path, exporters="none")
    recorder.shutdown()
    assert recorder.attempt == 1
    assert recorder.resource.attributes["goodput.launcher.name"] == "slurm"
    assert recorder.resource.attributes["goodput.launcher.restarts"] == restarts
    messages = [text for text in caplog.messages if text.startswith("slurm has restarted this job")]
    assert len(messages) == (missing > 0)
    assert all(f": {missing} starts" in text for text in messages)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "restart"),
        (1, "crash"),
        (134, "crash"),
        (137, "crash"),
        (-9, "crash"),
        (143, "signal"),
        (-15, "signal"),
        (130, "signal"),
        (-2, "signal"),
    ],
)
def test_exit_codes_have_a_reason(code: int, reason: str) -> None:
    assert exit_reason(code) == reason
    assert exit_code({"OTEL_GOODPUT_EXIT_CODE": str(code)}) == code


@pytest.mark.parametrize("wrong", ["", "killed", "-300"])
def test_no_exit_code(wrong: str) -> None:
    assert exit_code({"OTEL_GOODPUT_EXIT_CODE": wrong}) is None
