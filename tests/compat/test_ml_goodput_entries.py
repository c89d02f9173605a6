"""Old entries of ml-goodput-measurement, accounted by ``otel-goodput replay --format ml-goodput``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from hypothesis import example, given
from hypothesis import strategies as st
from timelines import replay

from compat.calls import Call, entry
from otel_goodput.reports.ml_goodput_entries import rows_of

CALLS: list[Call] = [
    ("job_start", 0, None),
    ("tpu_init_start", 0, None),
    ("tpu_init_end", 10, None),
    ("data_loading_start", 10, None),
    ("data_loading_end", 12, None),
    ("step_start", 12, 0),
    ("step_start", 20, 1),
    ("data_loading_start", 27, None),
    ("data_loading_end", 28, None),
    ("step_start", 28, 2),  # killed in this one
    ("job_start", 60, None),
    ("step_start", 70, 1),
    ("step_start", 78, 2),
    ("job_end", 86, None),
]
ENTRIES = [entry(call) for call in CALLS]
SECONDS = {
    "productive": 23, "infrastructure_recovery": 32, "accelerator_init": 10, "other": 10, "wasted_progress": 7,
    "data_loading": 3, "program_startup": 1,
}  # fmt: skip


def replayed(file: Path, *more: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "otel_goodput", "replay", "--format", "ml-goodput", str(file), "--json", *more]
    return warm.run(command, input=stdin, capture_output=True, timeout=60)


def exported(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As ``gcloud logging read --format=json`` prints them: the newest first."""
    return [
        {
            "insertId": f"id{number}",
            "jsonPayload": payload,
            "logName": "projects/p/logs/goodput_job",
            "severity": "INFO",
            "timestamp": "2026-01-01T00:00:00Z",
        }
        for number, payload in reversed(list(enumerate(entries)))
    ]


@pytest.mark.parametrize("form", ["lines", "array", "exported", "standard input"])
def test_each_form(form: str, tmp_path: Path) -> None:
    file = tmp_path / "entries.json"
    lines = "".join(json.dumps(one) + "\n" for one in ENTRIES)
    text = {"array": json.dumps(ENTRIES), "exported": json.dumps(exported(ENTRIES), indent=2)}.get(form, lines)
    file.write_text(text)
    done = replayed(Path("-"), stdin=text.encode()) if form == "standard input" else replayed(file)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["seconds"] == SECONDS and answer["elapsed_s"] == 86
    assert (answer["attempts"], answer["steps"]) == (2, {"executed": 4, "kept": 3, "lost": 2})


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "entries.json"
    for text, message in (
        ("", b"there is no entry of ml-goodput-measurement"),
        ("[1]", b"holds 1, which is not an object"),
        ("{", b"is neither JSON lines nor a JSON array"),
        ('{"kind": "step"}', b"there is no entry of ml-goodput-measurement"),
        (
            json.dumps([*ENTRIES, {"job_name": "other", "job_start_time": 1.0}]),
            b"'job', 'other'; choose one with --job",
        ),
    ):
        file.write_text(text)
        done = replayed(file)
        assert done.returncode not in (0, -6) and message in done.stderr, (text, done.stderr)
        assert b"Traceback" not in done.stderr
    assert json.loads(replayed(file, "--job", "job").stdout)["seconds"] == SECONDS
    assert b"there are entries of 'job', 'other'" in replayed(file, "--job", "neither").stderr


scalar = st.one_of(st.none(), st.booleans(), st.integers(-10, 10**10), st.floats(), st.text(max_size=4))
KEYS = [key for one in ENTRIES for key in one]


@example([{"step_start_time": 0.0, "step_count": None}])
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), scalar, max_size=3), max_size=8))
def test_strange_entries_do_no_harm(strange: list[dict[str, Any]]) -> None:
    rows = rows_of([*ENTRIES, *({**one, "job_name": "job"} for one in strange)])
    answer = replay(rows)
    whole = answer["seconds"]
    spent = sum(value for value in whole.values() if not isinstance(value, dict))
    assert spent + sum(whole.get("custom", {}).values()) == pytest.approx(answer["elapsed_s"])
