"""Configuration: arguments of ``configure()``, else environment variables, else defaults; and the source of each."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_goodput._runtime.guard import TRUE, report_once
from otel_goodput._settings import envvars, placement
from otel_goodput._settings.options import DIRECTORY, MOST_PROCESSES, Options, Setting, Settings, with_objective
from otel_goodput._settings.options import read as read_table
from otel_goodput._settings.placement import LAUNCHERS, LaunchKey, launch_key
from otel_goodput._text.redact import encodable
from otel_goodput.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FALSE: Final = frozenset({"", "0", "false", "no", "off"})

# Variables that give the run id if the user does not: the name of the job on the platform, the same after a restart.
# Slurm's job id is not used: an allocation may run several programs, and a chain of jobs is one run.
RUN_ID_SOURCES: Final = ("JOBSET_NAME",)
# Variables in which launchers count the restarts of a job.
RESTART_SOURCES: Final = tuple(name for launcher in LAUNCHERS for name in launcher.restarts)


@dataclass(frozen=True)
class Config(Settings):
    """The configuration of one recorder. Durations are in ns unless the name says otherwise."""

    values: Mapping[str, Any] = field(repr=False)  # by their names in the table; each is an attribute, too
    settings: Mapping[str, Setting] = field(repr=False)  # texts and sources, by the names of their variables
    job_name: str
    # The runs of this job are NAME, NAME-2, …, and `run_id` is NAME: no id was given, and this process is the whole job
    # or its launch has an identity.
    numbered: bool
    # Once the run has finished, the next start is a new run: the runs are numbered and no launcher reports a restart.
    renewable: bool
    exit_given: bool  # the script that restarts the job passes its last exit status, so this start continues a run
    launch: LaunchKey | None  # the same in all of its processes; None if the launch has no identity
    early: bool  # the processes of the launch have an address to meet, but the rank of this one is not known yet

    @property
    def leads(self) -> bool:
        """Whether this process is the one whose phases are accounted."""
        return self.process_index == self.leader

    @property
    def remote(self) -> bool:
        return "://" in self.directory

    def exports_spans(self) -> bool:
        if self.processes == "leader":
            return self.leads
        return self.processes == "all" or str(self.process_index) in self.processes.split(",")


def boolean(text: str) -> bool:
    """Parse the text of a boolean variable; empty is false. Raises ValueError."""
    lowered = text.strip().lower()
    if lowered not in TRUE | _FALSE:
        raise ValueError(f"not a boolean: {text!r}")
    return lowered in TRUE


def _possible(reading: placement.Reading | None, most: int) -> placement.Reading | None:
    if reading is None or reading.number <= most:
        return reading
    report_once(f"environment {reading.by}", "%s is ignored: the number is too large", reading)
    return None


def read(
    job_name: str | None = None, *, environ: Mapping[str, str] | None = None, **options: Unpack[Options]
) -> Config:
    """Return the configuration in force. Raises ConfigurationError or TypeError if an option is wrong or unknown."""
    environ = os.environ if environ is None else environ
    values, settings = read_table("configure", options, environ)
    job = encodable((job_name or environ.get("OTEL_SERVICE_NAME") or "").strip() or _script_name())
    run = values["run_id"] or next(filter(None, (environ.get(name, "").strip() for name in RUN_ID_SOURCES)), "")
    place, leader = _seat(values["process_index"], values["process_count"], environ), values["leader"]
    if options.get("process_count") is None:  # an argument that cannot be right raises, a variable does not
        place = _possible_seat(place)
    index, count = place.rank, place.size
    if not 0 <= index < min(count, MOST_PROCESSES) or leader < 0:
        raise ConfigurationError(
            f"configure(): process index {index}, process count {count} and leader {leader} are not a valid combination"
        )
    values |= {
        "run_id": encodable(run or job),
        "directory": values["directory"] or DIRECTORY,
        "windows": with_objective(values["windows"], values["objective"]),
        "process_index": index,
        "process_count": count,
    }
    # If the index is known but the number of processes is not, there may be other processes.
    alone = count == 1 and (place.counted or not place.ranked) and not placement.several_hosts(environ)
    launch = launch_key(environ)
    numbered = not run and (alone or launch is not None)
    exit_given = bool(environ.get(envvars.OTEL_GOODPUT_EXIT_CODE.name, "").strip())
    restarted = exit_given or any(placement.number(environ, name) for name in RESTART_SOURCES)
    return Config(
        values=values,
        settings=settings,
        job_name=job,
        numbered=numbered,
        renewable=numbered and not restarted,
        exit_given=exit_given,
        launch=launch,
        early=numbered and launch is not None and launch.addressed and not place.ranked,
    )


class Seat(NamedTuple):
    """The place of this process among those of its job; whether rank and size are known, otherwise they are assumed."""

    rank: int
    size: int
    ranked: bool
    counted: bool


def _seat(given_index: int | None, given_count: int | None, environ: Mapping[str, str]) -> Seat:
    """Find the place of this process; report contradictions once.

    `given_index` and `given_count` are those of arguments and of our variables.
    """
    environ = dict(environ)  # each look at os.environ encodes a name, and most of a hundred are not there
    sources = placement.places(environ)
    if given_index is not None and given_count is not None:
        rank, size = placement.Reading(given_index, "process_index"), placement.Reading(given_count, "process_count")
        sources.insert(0, placement.Place(rank, size))
    if conflict := placement.contradiction(sources):
        report_once("environment places", "%s: the first counts", conflict)
    place = placement.place(environ)
    place = place._replace(rank=_possible(place.rank, MOST_PROCESSES - 1), size=_possible(place.size, MOST_PROCESSES))
    index = given_index if given_index is not None else place.rank.number if place.rank else 0
    # A process count of 0 can only be an error; treat it as not set.
    of = place.size.number if place.size else 0
    count = given_count if given_count is not None else of or max(1, index + 1)
    if given_index is None and place.doubt:
        text = "%s: %s. This process is assumed to be process %d"
        report_once("environment place", text, place.doubt, place.advice, index)
    return Seat(index, count, given_index is not None or place.rank is not None, given_count is not None or of > 0)


def seat(config: Config) -> Seat:
    """Return the place of this process as it is known now: more may be initialized than when the settings were read."""
    settings = [config.settings[option.variable] for option in (Settings.process_index, Settings.process_count)]
    index, count = (None if each.source == "default" else int(each.value) for each in settings)
    return _possible_seat(_seat(index, count, os.environ))


def _possible_seat(place: Seat) -> Seat:
    """Return `place` with as many processes as its index needs; report it once if they were fewer."""
    if place.rank < place.size:
        return place
    text = "process index %d is impossible with %d processes; %d processes are assumed"
    report_once("environment process", text, place.rank, place.size, place.rank + 1)
    return place._replace(size=place.rank + 1)


def _script_name() -> str:
    """Return the name for a job without one: that of its script, else one made of the host name."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return script or f"job-{socket.gethostname()}"
