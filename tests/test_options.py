"""What `configure()` takes stands in one place; arguments, their help and the variables come from there."""

from __future__ import annotations

import inspect
import io
import pydoc
from pathlib import Path
from typing import Any

import pytest

import otel_goodput
from otel_goodput import Recorder, config
from otel_goodput.envvars import ENVVARS
from otel_goodput.errors import ConfigurationError
from otel_goodput.options import OF_VARIABLE, OPTIONS

# Read where they matter, at any time, or not for one recorder only.
NO_OPTIONS = {"GCP_PROJECT", "GCP_ENDPOINT", "EXIT_CODE", "STRICT", "TENSORBOARD_DIR"}


@pytest.mark.parametrize("asked", [otel_goodput.configure, Recorder], ids=["configure", "Recorder"])
def test_help_shows_every_option_with_its_meaning(asked: Any) -> None:
    out = io.StringIO()
    pydoc.Helper(output=out).help(asked)
    parameters = inspect.signature(asked).parameters
    for name, option in OPTIONS.items():
        assert option.meaning and f"{name}: {option.meaning}" in out.getvalue()
        assert parameters[name].default == option.default
    assert "{options}" not in out.getvalue()


def test_every_variable_of_ours_is_an_option_or_none_of_a_recorder() -> None:
    assert {one.name for one in ENVVARS} == {*OF_VARIABLE, *(f"OTEL_GOODPUT_{name}" for name in NO_OPTIONS)}


def test_what_is_no_option_is_refused_as_by_any_function(tmp_path: Path) -> None:
    for asked in (otel_goodput.configure, Recorder):
        with pytest.raises(TypeError, match="unexpected keyword argument 'step_samplin'"):
            asked("job", directory=tmp_path, step_samplin=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "given", "found"),
    [
        ("trace_spans", 200, 200),
        ("device_clock", "host", "host"),
        ("windows", ["10m", "1h"], (600 * 10**9, 3600 * 10**9)),
    ],
)
def test_an_argument_wins_over_the_variable(option: str, given: Any, found: Any) -> None:
    variable = OPTIONS[option].variable
    assert variable is not None
    environ = {variable.name: variable.default}
    options: Any = {option: given}
    assert getattr(config.read("job", environ=environ, **options), option) == found
    assert config.read("job", environ=environ, **options).settings[variable.name].source == "configure()"


def test_a_wrong_argument_raises() -> None:
    with pytest.raises(ConfigurationError, match="device clock must be one of"):
        config.read("job", device_clock="sundial")
