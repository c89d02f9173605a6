"""Checks the configuration, as far as it follows from the environment."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final, NamedTuple

from otel_goodput._runtime.guard import TRUE
from otel_goodput._runtime.installation import install_command
from otel_goodput._settings import config as configuration
from otel_goodput._settings import placement
from otel_goodput._settings.config import RUN_ID_SOURCES, Config
from otel_goodput._settings.options import Settings
from otel_goodput.disruption.launchers import launches
from otel_goodput.exporters.registry import importable
from otel_goodput.tools.doctor.findings import OK, PROBLEM, WARNING, Finding
from otel_goodput.tools.doctor.variables import Row, unknown

PACKAGES: Final = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "fsspec",
)


class InForce(NamedTuple):
    """The configuration that a job started here would have; `run_id` is empty if only the job's code sets it."""

    config: Config
    run_id: str


def versions() -> dict[str, str]:
    """Return the versions of Python and of the relevant packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def in_force(environ: Mapping[str, str]) -> InForce:
    """Return the configuration that follows from `environ` alone."""
    config = configuration.read(environ=environ)
    named = (Settings.run_id.variable, *RUN_ID_SOURCES, "OTEL_SERVICE_NAME")
    known = any(environ.get(name, "").strip() for name in named)
    return InForce(config, config.run_id if known else "")


def check(environ: Mapping[str, str], rows: Sequence[Row], config: Config) -> Iterator[Finding]:
    """Yield findings on the settings, the launcher, and the index of this process."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE:
        yield Finding(WARNING, "settings", "OTEL_SDK_DISABLED is set: nothing is recorded", "unset it to record")
    for row in rows:
        name = row.variable.name
        if row.ignored:
            used = "" if row.source == "environment" else f"; {row.value or 'no value'!r} is used"
            what = f"{name} is ignored{used}: {row.ignored}"
            yield Finding(PROBLEM, "settings", what, "correct it or unset it", f"{name} is ignored")
        if row.note and row.source == "environment" and not row.note.startswith("from "):
            yield Finding(WARNING, "settings", f"{name} {row.note}", "unset it")
    for name, alike in unknown(environ).items():
        do = f"did you mean {alike}?" if alike else "`otel-goodput env` lists all variables"
        yield Finding(WARNING, "settings", f"{name} is set, but there is no such variable", do)
    if config.submitted_at is not None and config.submitted_at > time.time_ns():
        yield Finding(
            WARNING, "settings", "OTEL_GOODPUT_SUBMITTED_AT lies in the future", "it is in Unix seconds (UTC)"
        )
    if config.usage_interval is not None and not importable("psutil"):
        what = f"{Settings.usage_interval.variable} is set, but psutil is not installed: nothing is sampled"
        yield Finding(WARNING, "settings", what, install_command("usage"))
    yield from _place(environ)
    yield from _launchers(environ)


def _launchers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what the launcher that started this process says about the job."""
    for launch in launches(environ):
        said = [f"{launch.name} started this job" + (f", {launch.job_id}" if launch.job_id else "")]
        if launch.restarts is not None:
            most = "" if launch.max_restarts is None else f" of at most {launch.max_restarts}"
            said.append(f"after {launch.restarts} restarts{most}")
        if launch.ends_at is not None:
            left = (launch.ends_at - time.time_ns()) / 1e9
            said.append(f"and ends it in {left / 60:.0f} min" if left > 0 else "and its time limit has passed")
        yield Finding(OK, "launcher", " ".join(said))


def _place(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on the index of this process and the number of processes."""
    wrong = [
        name for name in placement.NUMBERS if environ.get(name, "").strip() and placement.number(environ, name) is None
    ]
    for name in wrong:
        yield Finding(
            PROBLEM, "processes", f"{name}={environ[name]!r} is not an integer >= 0", "correct it or unset it",
            f"{name} is not an integer >= 0",
        )  # fmt: skip
    told, (rank, size, doubt, advice) = placement.places(environ), placement.place(environ)
    others = [each for each in told if not _within(told, each)]
    for numbers in ([each.rank for each in others if each.rank], [each.size for each in others if each.size]):
        if len({each.number for each in numbers}) > 1:
            said = f"{', '.join(map(str, numbers))}: {numbers[0].by} counts"
            yield Finding(WARNING, "processes", said, "check that all of them mean this process")
    if doubt:
        yield Finding(PROBLEM, "processes", doubt, advice, "the index of this process is unclear")
    elif rank and size and rank.number >= size.number:
        yield Finding(
            PROBLEM,
            "processes",
            f"this is process {rank.number} ({rank.by}) of {size.number} ({size.by}), which is impossible: "
            f"{rank.number + 1} processes are assumed",
            "correct these variables, or pass process_index= and process_count= to configure()",
            f"{rank.by} contradicts {size.by}",
        )
    elif size and size.number > 1 and not rank:
        yield Finding(
            WARNING,
            "processes",
            f"{size.by} says {size.number} processes, but the index of this process is not set: every process "
            "assumes it is 0, and all but one record separate runs",
            f"set {placement.LAUNCHERS[0].rank[0]}, or pass process_index= to configure()",
        )
    elif rank:
        of = f"of {size.number} ({rank.by}, {size.by})" if size else f"({rank.by}), of an unknown number"
        role = (
            "its phases make up the run's figures"
            if rank.number == 0
            else "its phases are traced but do not count in the run's figures"
        )
        yield Finding(OK, "processes", f"this is process {rank.number} {of}; {role}")
    elif not wrong:
        yield Finding(OK, "processes", "one process (the environment names no others)")


def _within(told: Sequence[placement.Place], outer: placement.Place) -> bool:
    """Whether an inner source counts a multiple of the processes of `outer`.

    It then starts several processes in each place of `outer`, and both are right.
    """
    of = outer.size.number if outer.size else 0
    sizes = [each.size.number for each in told[: told.index(outer)] if each.size is not None]
    return of > 0 and any(size > of and size % of == 0 for size in sizes)
