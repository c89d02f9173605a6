"""Names that came from elsewhere do not steer the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .commands import Answer, finished, goodput

EVIL = "evil\x1b]0;owned\x07\x1b[31m\x9b2J\r\u202e"


def check_plain(done: Answer, *, shown: str = "evil") -> None:
    """Nothing but printable letters and line ends, and the name is still to be recognised."""
    assert "Traceback" not in done.stderr
    text = done.stdout + done.stderr
    assert shown in text
    assert {letter for letter in text if not letter.isprintable()} <= {"\n"}, ascii(text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("escapes") / "runs"
    finished(EVIL, folder)
    return folder


def test_the_name_of_a_job(runs: Path) -> None:
    done = goodput("report", runs)
    assert done.returncode == 0
    check_plain(done)
    assert json.loads(goodput("report", runs, "--json").stdout)["job_name"] == EVIL, "JSON tells the name as it is"


def test_the_names_of_runs_in_messages(runs: Path) -> None:
    check_plain(goodput("report", runs, "--run", "other"))
    check_plain(goodput("report", runs, "--run", "x\x1b[2J"))
    check_plain(goodput("recover", runs, "--exporters", "none"))


def test_custom_names_and_kinds_in_a_timeline(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    rows = [
        {"kind": "job", "start": 0, "end": 4},
        {"kind": "custom", "name": EVIL, "start": 0, "end": 3},
        {"kind": EVIL, "start": 1},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = goodput("replay", path, "--window", "0", "2")
    assert done.returncode == 0
    check_plain(done)


def test_the_name_of_a_file(tmp_path: Path) -> None:
    check_plain(goodput("replay", tmp_path / "evil\x1b[31m.jsonl"))
    check_plain(goodput("report", tmp_path / "evil\x1b[31m"))


def test_values_of_variables(runs: Path) -> None:
    check_plain(goodput("env", OTEL_SERVICE_NAME=EVIL, OTEL_GOODPUT_RUN_ID=EVIL, OTEL_GOODPUT_WINDOWS=EVIL))
    check_plain(goodput("env", **{"OTEL_GOODPUT_\x1bevil": "1"}))
    check_plain(goodput("doctor", OTEL_SERVICE_NAME=EVIL, OTEL_GOODPUT_DIR=runs, OTEL_GOODPUT_EXPORTERS="none"))
    check_plain(goodput("doctor", OTEL_GOODPUT_DIR=runs, OTEL_GOODPUT_EXPORTERS="none"))
    check_plain(goodput("doctor", OTEL_GOODPUT_EXPORTERS=EVIL, OTEL_EXPORTER_OTLP_ENDPOINT=EVIL, RANK=EVIL))
