"""The settings in force: ``otel-goodput env`` prints each with its source, and ``doctor`` checks them."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, Final, NamedTuple

from otel_goodput._disruption.launchers import launches
from otel_goodput._incidents import notify
from otel_goodput._runtime.guard import TRUE
from otel_goodput._runtime.installation import install_command
from otel_goodput._settings import config as configuration
from otel_goodput._settings import envvars, placement
from otel_goodput._settings.config import RUN_ID_SOURCES, Config
from otel_goodput._settings.envvars import PREFIX, STANDARD, EnvVar
from otel_goodput._settings.options import ENVVARS, MOST_PROCESSES, OF_VARIABLE, Settings
from otel_goodput._text.redact import HIDDEN, redact, secret
from otel_goodput._tools.arguments import add_json
from otel_goodput._tools.doctor.findings import Finding, captured_logs, ok, problem, warning
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES
from otel_goodput.exporters.registry import importable, resolve

_NAMELESS: Final = "\0"  # a job name that no user can have set


class Row(NamedTuple):
    """A variable, its value in force without secrets, its source, why the environment's is ignored, and a remark."""

    variable: EnvVar
    value: str
    source: str
    ignored: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        shown = {"name": self.variable.name, "value": self.value, "source": self.source}
        return shown | self.variable._asdict() | {"ignored": self.ignored or None, "note": self.note or None}


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run_env(options: argparse.Namespace) -> int:
    """Print the variables of this package, and those of OpenTelemetry that it uses. Returns the exit status, 0."""
    with captured_logs():
        variables = rows(os.environ)
    strangers = unknown(os.environ)
    if options.json:
        answer = {"variables": [row.to_json() for row in variables], "unknown": strangers}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
        return 0
    for row in variables:
        lines = [f"{row.variable.name} = {row.value or '(not set)'}  [{row.source}]"]
        lines.append(f"    {row.variable.type}: {row.variable.brief}")
        lines += [f"    ignored: {row.ignored}"] if row.ignored else []
        lines += [f"    {row.note}"] if row.note else []
        sys.stdout.write("\n".join(lines) + "\n")
    for name, alike in strangers.items():
        meant = f"; did you mean {alike}?" if alike else ""
        sys.stdout.write(redact(f"{name} is set, but there is no such variable{meant}") + "\n")
    return 0


def rows(environ: Mapping[str, str]) -> list[Row]:
    """Return a row for every known variable, this package's first."""
    # The index and count of processes are not variables of this package, and wrong ones would raise.
    config = configuration.read(_NAMELESS, process_index=0, process_count=1, environ=environ)
    in_effect = []
    for variable in (*ENVVARS, *STANDARD):
        text = environ.get(variable.name, "").strip()
        reason = refusal(variable, text) if text else ""
        shown = HIDDEN if secret(variable.name) else repr(text)
        ignored = redact(f"{shown}: {reason}") if reason else ""
        used = text and (not reason or variable.name in _PARTLY)
        value, source = (text, "environment") if used else (variable.default, "default")
        note = ""
        if variable.name == Settings.directory.variable:
            value = config.directory
        elif variable.name == Settings.run_id.variable and not text:
            note = "the job's name is the run's id"
            for name in RUN_ID_SOURCES:
                if environ.get(name, "").strip():
                    value, source, note = config.run_id, "environment", f"from {name}"
                    break
        value = HIDDEN if text and secret(variable.name) else redact(value)
        in_effect.append(Row(variable, value, source, ignored, note))
    return in_effect


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


def _refusing(parse: Callable[[str], object], why: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except (ValueError, KeyError):
            return why
        return ""

    return check


def _above_zero(text: str) -> None:
    if not (math.isfinite(number := float(text)) and number > 0):
        raise ValueError(text)


def _pairs(text: str) -> str:
    wrong = [item.strip() for item in text.split(",") if item.strip() and "=" not in item]
    return f"{', '.join(map(repr, wrong))} is not key=value; the rest is used" if wrong else ""


_BOOLEAN: Final = _refusing(configuration.boolean, "neither true nor false")
_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    envvars.OTEL_GOODPUT_STRICT.name: _BOOLEAN,
    "OTEL_SDK_DISABLED": _BOOLEAN,
    "OTEL_METRIC_EXPORT_INTERVAL": _refusing(_above_zero, "not a number of milliseconds above 0"),
    "OTEL_BSP_SCHEDULE_DELAY": _refusing(
        lambda text: _above_zero(str(int(text))), "not a whole number of milliseconds above 0"
    ),
    "OTEL_EXPORTER_OTLP_PROTOCOL": _refusing(
        lambda text: EXPORTER_MODULES[text.lower()], f"known are {', '.join(EXPORTER_MODULES)}"
    ),
    "OTEL_RESOURCE_ATTRIBUTES": _pairs,
}

# If a part of such a variable is wrong, the rest is still used.
_PARTLY: Final = frozenset({"OTEL_RESOURCE_ATTRIBUTES"})


def unknown(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the unknown variables with this package's prefix, each with a similar known one (empty: there is none)."""
    names = [variable.name for variable in ENVVARS]
    ends = {name.removeprefix(PREFIX): name for name in names}
    strangers = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in names):
        alike = difflib.get_close_matches(name.removeprefix(PREFIX), ends, 1)
        strangers[name] = ends[alike[0]] if alike else ""
    return strangers


_PACKAGES: Final = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "fsspec",
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the relevant packages that are installed."""
    return {"python": platform.python_version(), **installed(_PACKAGES)}


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed."""
    there = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            there[name] = metadata.version(name)
    return there


def in_force(environ: Mapping[str, str]) -> tuple[Config, str]:
    """Return the configuration of a job started here, and its run's id; "" if only the job's code sets that."""
    config = configuration.read(environ=environ)
    named = (Settings.run_id.variable, *RUN_ID_SOURCES, "OTEL_SERVICE_NAME")
    return config, config.run_id if any(environ.get(name, "").strip() for name in named) else ""


def check(environ: Mapping[str, str], rows: Sequence[Row], config: Config) -> Iterator[Finding]:
    """Yield findings on the settings, the launcher, and the index of this process."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE:
        yield warning("settings", "OTEL_SDK_DISABLED is set: nothing is recorded", "unset it to record")
    for row in rows:
        name = row.variable.name
        if row.ignored:
            used = "" if row.source == "environment" else f"; {row.value or 'no value'!r} is used"
            what = f"{name} is ignored{used}: {row.ignored}"
            yield problem("settings", what, "correct it or unset it", f"{name} is ignored")
    for name, alike in unknown(environ).items():
        do = f"did you mean {alike}?" if alike else "`otel-goodput env` lists all variables"
        yield warning("settings", f"{name} is set, but there is no such variable", do)
    if config.submitted_at is not None and config.submitted_at > time.time_ns():
        yield warning("settings", "OTEL_GOODPUT_SUBMITTED_AT lies in the future", "it is in Unix seconds (UTC)")
    if config.usage_interval is not None and not importable("psutil"):
        what = f"{Settings.usage_interval.variable} is set, but psutil is not installed: nothing is sampled"
        yield warning("settings", what, install_command("usage"))
    yield from _place(environ)
    yield from _launchers(environ)


def check_notifications(config: Config, *, send: bool) -> Iterator[Finding]:
    """Yield findings on who is notified of incidents; `send`: send each of them a test."""
    variable = Settings.notify.variable
    if not config.notify:
        if send:
            yield problem("notify", f"{variable} is not set: nobody is notified", "set it to a URL such as slack://…")
        return
    if not notify.installed():
        yield problem("notify", f"{variable} is set, but apprise is not installed", install_command("notify"))
        return
    for each in map(notify.Address, config.notify):
        if not each.understood():
            do = "see https://appriseit.com for the URLs of each service"
            yield problem("notify", f"apprise does not understand the URL {each.shown}", do)
        elif not send:
            yield ok("notify", f"incidents are reported to {each.shown}; --notify sends a test")
        elif why := each.send(notify.trial(notify.Subject(config.job_name, config.run_id))):
            yield problem("notify", f"a test could not be sent to {each.shown}: {why}", "correct the URL, or try again")
        else:
            yield ok("notify", f"a test was sent to {each.shown}")
    if config.notify_only:
        yield ok("notify", f"only of runs with {', '.join(config.notify_only)}")


def _launchers(environ: Mapping[str, str]) -> Iterator[Finding]:
    for launch in launches(environ):
        parts = [f"{launch.name} started this job" + (f", {launch.job_id}" if launch.job_id else "")]
        if launch.restarts is not None:
            most = "" if launch.max_restarts is None else f" of at most {launch.max_restarts}"
            parts.append(f"after {launch.restarts} restarts{most}")
        if launch.ends_at is not None:
            left = (launch.ends_at - time.time_ns()) / 1e9
            parts.append(f"and ends it in {left / 60:.0f} min" if left > 0 else "and its time limit has passed")
        yield ok("launcher", " ".join(parts))


def _place(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on the index of this process and the number of processes."""
    given = [name for name in placement.NUMBERS if environ.get(name, "").strip()]
    wrong = [name for name in given if placement.number(environ, name) is None]
    for name in wrong:
        why = "is not an integer >= 0"
        yield problem("processes", f"{name}={environ[name]!r} {why}", "correct it or unset it", f"{name} {why}")
    sources, (rank, size, doubt, advice) = placement.places(environ), placement.place(environ)
    others = [each for each in sources if not _within(sources, each)]
    for numbers in ([each.rank for each in others if each.rank], [each.size for each in others if each.size]):
        if len({each.number for each in numbers}) > 1:
            conflict = f"{', '.join(map(str, numbers))}: {numbers[0].by} counts"
            yield warning("processes", conflict, "check that all of them mean this process")
    if doubt:
        yield problem("processes", doubt, advice, "the index of this process is unclear")
    elif rank and size and rank.number >= size.number:
        yield problem(
            "processes",
            f"this is process {rank.number} ({rank.by}) of {size.number} ({size.by}), which is impossible: "
            f"{rank.number + 1} processes are assumed",
            "correct these variables, or pass process_index= and process_count= to configure()",
            f"{rank.by} contradicts {size.by}",
        )
    elif size and size.number > 1 and not rank:
        yield warning(
            "processes",
            f"{size.by} says {size.number} processes, but the index of this process is not set: every process "
            "assumes it is 0, and all but one record separate runs",
            f"set {placement.RANK_VARIABLES[0].rank[0]}, or pass process_index= to configure()",
        )
    elif rank:
        of = f"of {size.number} ({rank.by}, {size.by})" if size else f"({rank.by}), of an unknown number"
        role = "are traced but do not count in" if rank.number else "make up"
        yield ok("processes", f"this is process {rank.number} {of}; its phases {role} the run's figures")
    elif not wrong:
        yield ok("processes", "one process (the environment names no others)")


def _within(sources: Sequence[placement.Place], outer: placement.Place) -> bool:
    """Whether an inner source starts several processes in each place of `outer`, so that both are right."""
    of = outer.size.number if outer.size else 0
    sizes = [each.size.number for each in sources[: sources.index(outer)] if each.size is not None]
    return of > 0 and any(size > of and size % of == 0 for size in sizes)
