"""``otel-goodput env``: every environment variable with the value in force, its source, and why it is ignored."""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_goodput._settings import config as configuration
from otel_goodput._settings import envvars
from otel_goodput._settings.envvars import PREFIX, STANDARD, EnvVar
from otel_goodput._settings.options import ENVVARS, MOST_PROCESSES, OF_VARIABLE, Settings
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES
from otel_goodput.exporters.registry import resolve
from otel_goodput.text.redact import HIDDEN, redact, secret
from otel_goodput.tools.doctor.findings import captured_logs

_NAMELESS: Final = "\0"  # a job name that no user can have set


class Row(NamedTuple):
    """A variable, its value in force (as text without secrets), the source of the value, and a remark.

    `ignored` says why the value in the environment is not used; empty if it is.
    """

    variable: EnvVar
    value: str
    source: str
    ignored: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        name, kind, default, brief = self.variable
        return {
            "name": name,
            "value": self.value,
            "source": self.source,
            "type": kind,
            "default": default,
            "brief": brief,
            "ignored": self.ignored or None,
            "note": self.note or None,
        }


def environment(*, as_json: bool) -> int:
    """Print the variables of this package, and those of OpenTelemetry that it uses. Returns the exit status, 0."""
    with captured_logs():
        found = rows(os.environ)
    strangers = unknown(os.environ)
    if as_json:
        answer = {"variables": [row.to_json() for row in found], "unknown": strangers}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
        return 0
    for row in found:
        sys.stdout.write("\n".join(_lines(row)) + "\n")
    for name, alike in strangers.items():
        meant = f"; did you mean {alike}?" if alike else ""
        sys.stdout.write(redact(f"{name} is set, but there is no such variable{meant}") + "\n")
    return 0


def _lines(row: Row) -> Iterator[str]:
    yield f"{row.variable.name} = {row.value or '(not set)'}  [{row.source}]"
    yield f"    {row.variable.type}: {row.variable.brief}"
    if row.ignored:
        yield f"    ignored: {row.ignored}"
    if row.note:
        yield f"    {row.note}"


def rows(environ: Mapping[str, str]) -> list[Row]:
    """Return a row for every known variable, this package's first."""
    # The index and count of processes are not variables of this package, and wrong ones would raise.
    config = configuration.read(_NAMELESS, process_index=0, process_count=1, environ=environ)
    found = []
    for variable in (*ENVVARS, *STANDARD):
        text = environ.get(variable.name, "").strip()
        reason = refusal(variable, text) if text else ""
        row = Row(variable, text, "environment") if text and not reason else Row(variable, variable.default, "default")
        if reason:
            row = row._replace(ignored=redact(f"{text!r}: {reason}"))
            if variable.name in _PARTLY:
                row = row._replace(value=text, source="environment")
        if variable.name == Settings.directory.variable:
            row = row._replace(value=config.directory)
        elif variable.name == Settings.run_id.variable and not text:
            row = _derived_run_id(row, config.run_id, environ)
        found.append(row._replace(value=HIDDEN if text and secret(variable.name) else redact(row.value)))
    return found


def _derived_run_id(row: Row, run_id: str, environ: Mapping[str, str]) -> Row:
    for name in configuration.RUN_ID_SOURCES:
        if environ.get(name, "").strip():
            return row._replace(value=run_id, source="environment", note=f"from {name}")
    return row._replace(note="the job's name is the run's id")


def refusal(variable: EnvVar, text: str) -> str:
    """Return why the value `text` of `variable` is not used; empty if it is."""
    try:
        if variable.name in OF_VARIABLE:
            given: Any = {"process_index": 0, "process_count": MOST_PROCESSES, OF_VARIABLE[variable.name]: text}
            config = configuration.read(_NAMELESS, environ={}, **given)
            if variable.name == Settings.exporters.variable:
                resolve(config.exporters, {})
        elif variable.name in _CHECKS:
            return _CHECKS[variable.name](text)
    except ConfigurationError as error:
        return str(error).removeprefix("configure(): ")
    return ""


def _boolean(text: str) -> str:
    try:
        configuration.boolean(text)
    except ValueError:
        return "neither true nor false"
    return ""


def _milliseconds(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return "not a number of milliseconds"
    return "" if math.isfinite(number) and number > 0 else "must be above 0"


def _whole_milliseconds(text: str) -> str:
    try:
        int(text)
    except ValueError:
        return "not a whole number of milliseconds"
    return _milliseconds(text)


def _protocol(text: str) -> str:
    return "" if text.lower() in EXPORTER_MODULES else f"known are {', '.join(EXPORTER_MODULES)}"


def _pairs(text: str) -> str:
    wrong = [item.strip() for item in text.split(",") if item.strip() and "=" not in item]
    return f"{', '.join(map(repr, wrong))} is not key=value; the rest is used" if wrong else ""


_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    envvars.OTEL_GOODPUT_STRICT.name: _boolean,
    "OTEL_SDK_DISABLED": _boolean,
    "OTEL_METRIC_EXPORT_INTERVAL": _milliseconds,
    "OTEL_BSP_SCHEDULE_DELAY": _whole_milliseconds,
    "OTEL_EXPORTER_OTLP_PROTOCOL": _protocol,
    "OTEL_RESOURCE_ATTRIBUTES": _pairs,
}

# If a part of such a variable is wrong, the rest is still used.
_PARTLY: Final = frozenset({"OTEL_RESOURCE_ATTRIBUTES"})


def unknown(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the unknown variables with this package's prefix, each with a similar known one (empty: there is none)."""
    names = [variable.name for variable in ENVVARS]
    ends = {name.removeprefix(PREFIX): name for name in names}
    found = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in names):
        alike = difflib.get_close_matches(name.removeprefix(PREFIX), ends, 1)
        found[name] = ends[alike[0]] if alike else ""
    return found
