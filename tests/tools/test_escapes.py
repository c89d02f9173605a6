"""Names that came from elsewhere do not steer the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import warm

from otel_goodput._text.redact import redacting_logger

from .commands import PATIENCE_S, Answer, environment, finished, goodput

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


def test_arguments(runs: Path) -> None:
    done = goodput("report", runs, "--\x1b[31mevil")
    assert done.returncode == 2
    check_plain(done)


def test_log_lines_of_a_job(tmp_path: Path) -> None:
    """Of names that a folder has, on whatever a job's program has made to show them."""
    (tmp_path / "evil\x1b[31m\u202e").touch()  # where a folder is to be
    program = (
        "import sys, otel_goodput as goodput\n"
        "goodput.configure('job', directory=sys.argv[1], exporters='none')\n"
        "with goodput.job(): pass\n"
    )
    done = warm.run(
        [sys.executable, "-c", program, str(tmp_path / "evil\x1b[31m\u202e" / "runs")],
        capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    check_plain(done)


def test_what_others_log_in_the_command(runs: Path) -> None:
    """OpenTelemetry says which endpoint does not answer, with its credentials and whatever else is in it."""
    done = goodput(
        "recover", runs, "--again", "--exporters", "otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://me:swordfish@127.0.0.1:9/evil\x1b[31m",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", OTEL_GOODPUT_GRACE_PERIOD="1",
    )  # fmt: skip
    check_plain(done, shown="")
    assert "swordfish" not in done.stdout + done.stderr


def test_a_traceback_in_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    logger = redacting_logger("otel_goodput.test_escapes")
    try:
        raise ValueError("\x1b[31mevil\nhttp://me:swordfish@host")
    except ValueError as error:
        logger.warning("of %s: %s", EVIL, error, exc_info=True)
    assert "Traceback (most recent call last):\n" in caplog.text and "evil" in caplog.text
    assert "swordfish" not in caplog.text
    assert {letter for letter in caplog.text if not letter.isprintable()} <= {"\n"}
