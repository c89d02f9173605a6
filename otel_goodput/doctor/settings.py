"""Whether the configuration makes sense, as far as the environment tells it."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final, NamedTuple

from otel_goodput import config as configuration
from otel_goodput.config import PROCESS_COUNT_SOURCES, PROCESS_INDEX_SOURCES, RUN_ID_SOURCES, Config
from otel_goodput.disruption.launchers import launches
from otel_goodput.doctor.findings import OK, PROBLEM, WARNING, Finding
from otel_goodput.doctor.variables import Row, unknown
from otel_goodput.envvars import OTEL_GOODPUT_RUN_ID
from otel_goodput.guard import TRUE

PACKAGES: Final = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "fsspec",
)


class InForce(NamedTuple):
    """The configuration that a job started here would have; `run_id` is empty where only its code knows it."""

    config: Config
    run_id: str


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, those that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def in_force(environ: Mapping[str, str]) -> InForce:
    """The configuration by `environ` alone."""
    config = configuration.read(environ=environ)
    named = (OTEL_GOODPUT_RUN_ID.name, *RUN_ID_SOURCES, "OTEL_SERVICE_NAME")
    known = any(environ.get(name, "").strip() for name in named)
    return InForce(config, config.run_id if known else "")


def check(environ: Mapping[str, str], rows: Sequence[Row], config: Config) -> Iterator[Finding]:
    """What is wrong with the settings."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE:
        yield Finding(WARNING, "settings", "OTEL_SDK_DISABLED is set: nothing is recorded at all", "unset it to record")
    for row in rows:
        name = row.variable.name
        if row.ignored:
            used = "" if row.source == "environment" else f"; {row.value or 'no value'!r} is used"
            yield Finding(PROBLEM, "settings", f"{name} is ignored{used}: {row.ignored}", "correct it or unset it")
        if row.note and row.source == "environment" and not row.note.startswith("from "):
            yield Finding(WARNING, "settings", f"{name} {row.note}", "unset it")
    for name, alike in unknown(environ).items():
        do = f"did you mean {alike}?" if alike else "`otel-goodput env` lists those that there are"
        yield Finding(WARNING, "settings", f"{name} is set, but there is no such variable", do)
    if config.submitted_at is not None and config.submitted_at > time.time_ns():
        yield Finding(WARNING, "settings", "OTEL_GOODPUT_SUBMITTED_AT lies in the future", "it is in unix seconds, UTC")
    yield from _place(environ)
    yield from _launchers(environ)


def _launchers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What started this process says of the job."""
    for launch in launches(environ):
        said = [f"{launch.name} started this job" + (f", {launch.job_id}" if launch.job_id else "")]
        if launch.restarts is not None:
            most = "" if launch.max_restarts is None else f" of at most {launch.max_restarts}"
            said.append(f"after {launch.restarts} restarts{most}")
        if launch.ends_at is not None:
            left = (launch.ends_at - time.time_ns()) / 1e9
            said.append(f"and ends it in {left / 60:.0f} min" if left > 0 else "and was to end it by now")
        yield Finding(OK, "launcher", " ".join(said))


def _place(environ: Mapping[str, str]) -> Iterator[Finding]:
    """This process among the others."""
    index, index_from, index_wrong = _numbers(environ, PROCESS_INDEX_SOURCES)
    count, count_from, count_wrong = _numbers(environ, PROCESS_COUNT_SOURCES)
    for name in (*index_wrong, *count_wrong):
        yield Finding(
            PROBLEM, "processes", f"{name}={environ[name]!r} is not a number from 0", "correct it or unset it"
        )
    for numbers, sources in ((index, index_from), (count, count_from)):
        if len(set(numbers)) > 1:
            said = ", ".join(f"{name}={number}" for name, number in zip(sources, numbers, strict=True))
            yield Finding(
                WARNING, "processes", f"{said}: {sources[0]} counts", "see that all of them mean this process"
            )
    if index and count and index[0] >= count[0]:
        yield Finding(
            PROBLEM,
            "processes",
            f"this is process {index[0]} ({index_from[0]}) of {count[0]} ({count_from[0]}), which cannot be; "
            f"{index[0] + 1} processes are assumed",
            "correct these variables, or say process_index= and process_count= to configure()",
        )
    elif count and count[0] > 1 and not index:
        yield Finding(
            WARNING,
            "processes",
            f"{count_from[0]} says {count[0]} processes, and nothing says which one this is: each takes itself for "
            f"process 0, and all but one record runs of their own",
            f"set {PROCESS_INDEX_SOURCES[0]}, or say process_index= to configure()",
        )
    elif index:
        of = (
            f"of {count[0]} ({index_from[0]}, {count_from[0]})" if count else f"({index_from[0]}), of an unknown number"
        )
        role = "its phases are the run's account" if index[0] == 0 else "its phases do not enter the account"
        yield Finding(OK, "processes", f"this is process {index[0]} {of}; {role}")
    elif not (index_wrong or count_wrong):
        yield Finding(OK, "processes", "this is the only process, as far as the environment tells")


def _numbers(environ: Mapping[str, str], names: Sequence[str]) -> tuple[list[int], list[str], list[str]]:
    """The numbers that `names` hold, which of them hold one, and which hold something else."""
    numbers, good, wrong = [], [], []
    for name in names:
        text = environ.get(name, "").strip()
        if not text:
            continue
        try:
            number = int(text)
        except ValueError:
            number = -1
        if number < 0:
            wrong.append(name)
        else:
            numbers.append(number)
            good.append(name)
    return numbers, good, wrong
