"""A setting is one row of a table: arguments, their help, variables, the command and the reference come from there."""

from __future__ import annotations

import inspect
import io
import os
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import otel_goodput
from otel_goodput import Recorder
from otel_goodput._settings import config, envvars
from otel_goodput._settings.options import ENVVARS, OF_VARIABLE, OPTIONS
from otel_goodput.errors import ConfigurationError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("documented", [otel_goodput.configure, Recorder], ids=["configure", "Recorder"])
def test_help_shows_every_option_with_its_meaning(documented: Any) -> None:
    out = io.StringIO()
    pydoc.Helper(output=out).help(documented)
    parameters = inspect.signature(documented).parameters
    for name, option in OPTIONS.items():
        assert option.meaning and f"{name}: {option.meaning}" in out.getvalue()
        assert parameters[name].default == option.default
    assert "{options}" not in out.getvalue()


def test_a_processor_takes_some_of_them() -> None:
    taken = set(inspect.signature(otel_goodput.GoodputSpanProcessor).parameters)
    assert taken == {"job_name", "run_id", "directory", "windows", "meter_provider"}
    with pytest.raises(TypeError, match=r"GoodputSpanProcessor\(\) got an unexpected keyword argument 'leader'"):
        otel_goodput.GoodputSpanProcessor(leader=1)  # type: ignore[call-arg]


def test_every_variable_of_ours_is_an_option_or_none_of_a_recorder() -> None:
    assert {one.name for one in ENVVARS} == {*OF_VARIABLE, *(one.name for one in envvars.OTHERS)}


def test_what_is_no_option_is_refused_as_by_any_function(tmp_path: Path) -> None:
    for entry in (otel_goodput.configure, Recorder):
        with pytest.raises(TypeError, match="unexpected keyword argument 'step_samplin'"):
            entry("job", directory=tmp_path, step_samplin=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("trace_spans", 200, 200),
        ("device_clock", "host", "host"),
        ("windows", ["10m", "1h"], (600 * 10**9, 3600 * 10**9)),
    ],
)
def test_an_argument_wins_over_the_variable(option: str, given: Any, expected: Any) -> None:
    row: Any = OPTIONS[option]
    environ = {row.variable: row.usual}
    options: Any = {option: given}
    assert getattr(config.read("job", environ=environ, **options), option) == expected
    assert config.read("job", environ=environ, **options).settings[row.variable].source == "configure()"


def test_a_wrong_argument_raises() -> None:
    with pytest.raises(ConfigurationError, match="device clock must be one of"):
        config.read("job", device_clock="sundial")
    with pytest.raises(ConfigurationError, match="peak_flops must be a finite number above 0, not -1"):
        config.read("job", peak_flops=-1)


ROW = """
    volume = Option("float | None", "decibels", "11", "how loud it is", float)
"""
ASK = """
import inspect, os, sys
import otel_goodput as goodput
from otel_goodput import testing
from otel_goodput._settings import config
for taker in (goodput.configure, goodput.Recorder):
    assert "volume: how loud it is (``OTEL_GOODPUT_VOLUME=11``)." in taker.__doc__, taker.__doc__
    assert inspect.signature(taker).parameters["volume"].annotation == "float | None"
assert config.read("job").volume == 7.5, "the variable's"
with testing.run(volume=3) as run:
    assert run.recorder.config.volume == 3.0
    assert goodput.configure(volume="2").config.volume == 2.0
"""


def test_one_row_adds_a_setting(tmp_path: Path) -> None:
    """To arguments, help, variable, the command and, once they are written anew, to the reference and to types."""
    for name in ("otel_goodput", "docs", "tests/otelcol", "README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    table = tmp_path / "otel_goodput" / "_settings" / "options.py"
    before, class_, after = table.read_text(encoding="utf-8").partition("    values: Mapping[str, Any]\n")
    assert class_
    table.write_text(before + class_ + ROW + after, encoding="utf-8")

    def ran(*command: str) -> str:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path), "OTEL_GOODPUT_VOLUME": "7.5"}
        whole = [sys.executable, *command]
        done = subprocess.run(
            whole, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    ran("-c", ASK)
    listed = ran("-m", "otel_goodput", "env")
    assert "OTEL_GOODPUT_VOLUME = 7.5  [environment]\n    decibels: how loud it is\n" in listed
    ran("docs/tables.py")
    reference = tmp_path / "docs" / "reference"
    variables, arguments = ((reference / f"{page}.md").read_text() for page in ("configuration", "functions"))
    assert "| `OTEL_GOODPUT_VOLUME` | `volume` | decibels | `11` | how loud it is |" in variables
    assert "| `volume` | `float or None` | `None` | how loud it is (`OTEL_GOODPUT_VOLUME=11`). |" in arguments
    assert "    volume: float | None\n" in table.read_text(encoding="utf-8"), "what type checkers see"
