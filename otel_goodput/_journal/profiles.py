"""Profiles of an attempt: where the training thread spent its time, as small files, one for each profile.

They hold names of files, functions and lines, never values.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, NUMBER, TEXT, Each, Row, Text
from otel_goodput._journal.rundir import PROFILE, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept
from otel_goodput._text.redact import encodable
from otel_goodput.semconv import INCIDENT_SPAN

SAMPLER: Final = "sampler"
JAX: Final = "jax"
TORCH: Final = "torch"
BASELINE: Final = 0  # number of the profile with which the later ones of an attempt are compared
NO_INCIDENT: Final = -1
ROWS: Final = 100  # functions of a profile
GREW: Final = 5  # functions that grew
HELD: Final = 32  # profiles of an attempt of a process, with the baseline
READ: Final = 256  # that are read for a report, the latest first
LONGEST: Final = 300  # characters of a path or name


class Function(NamedTuple):
    """How much time a function took: samples in which it was the innermost one, and in which it was open.

    `line` is where it was most often.
    """

    name: str
    file: str
    line: int
    own: int
    total: int


class Grown(NamedTuple):
    """A function whose share of the time grew: `share` of what it is now, `before` in the baseline, of 1,000,000 each.

    `inner`: the innermost function that it calls and that grew as much; empty: itself.
    """

    name: str
    file: str
    line: int
    inner: str
    share: int
    before: int

    @property
    def place(self) -> str:
        """Its file, without folders, and line."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


class Profile(NamedTuple):
    """What a profile found.

    Attributes:
        number: its number in the attempt, from 1; ``BASELINE``: what others are compared with.
        cause, incident: why it was taken, and the incident's number; ``NO_INCIDENT``: there is none.
        began, ended: ns since the epoch.
        steps, samples: how many it is of.
        functions: those with the most time, by their own time.
        grown: those that grew, the one that says most first; empty if none did, or if there is no baseline.
        kind, trace: which profiler took a trace, and where that is; empty if none did.
        note: what is to be said about it.
    """

    number: int
    cause: str
    incident: int
    began: int
    ended: int
    steps: int
    samples: int
    functions: tuple[Function, ...] = ()
    grown: tuple[Grown, ...] = ()
    kind: str = SAMPLER
    trace: str = ""
    note: str = ""

    @property
    def line(self) -> str:
        """File and line of what grew most; empty if nothing did."""
        return self.grown[0].place if self.grown else ""

    @property
    def span(self) -> int:
        """How long it took, ns."""
        return max(0, self.ended - self.began)


def _profile(**members: Any) -> Profile:
    return Profile(**{**members, "functions": tuple(members["functions"]), "grown": tuple(members["grown"])})


_FUNCTION: Final = Row(TEXT, TEXT, COUNT, COUNT, COUNT, make=Function._make)
_GROWN: Final = Row(TEXT, TEXT, COUNT, TEXT, COUNT, COUNT, make=Grown._make)
_FILE: Final = Sidecar(
    "functions of a profile",
    Members(
        {
            "number": COUNT,
            "cause": TEXT,
            INCIDENT_SPAN: NUMBER,
            "began": COUNT,
            "ended": COUNT,
            "steps": COUNT,
            "samples": COUNT,
            "functions": Each(_FUNCTION, ROWS),
            "grown": Each(_GROWN, GREW),
            "kind": Text(SAMPLER, JAX, TORCH),
            "trace": TEXT,
            "note": TEXT,
        },
        _profile,
    ),
    PROFILE,
)


def write_profile(run: RunDirectory, attempt: int, process: int, profile: Profile) -> str:
    """Write a profile, and remove the oldest of this attempt if there are too many; returns the name of the file.

    The name is empty if that did not work, which is reported once.
    """
    path = run.profile_path(attempt, process, profile.number)
    members = profile._asdict()
    members["functions"] = [_short(one) for one in profile.functions[:ROWS]]
    members["grown"] = [_short(one) for one in profile.grown[:GREW]]
    for name in ("cause", "trace", "note"):
        members[name] = encodable(members[name])[: 4 * LONGEST]
    data = _FILE.encode(attempt=attempt, process=process, **members)
    if not kept(path, data, "profiles", "a profile cannot be saved: %s"):
        return ""
    run.keep_latest_profiles(attempt, process, HELD, but=BASELINE)
    return path.name


def _short(row: Function | Grown) -> tuple[Any, ...]:
    return tuple(encodable(value)[-LONGEST:] if isinstance(value, str) else value for value in row)


def read_profile(run: RunDirectory, attempt: int, process: int, number: int) -> Profile:
    """Read a profile of an attempt (counted from 0) of a process. Raises as :meth:`Sidecar.read`."""
    path = run.profile_path(attempt, process, number)
    profile: Profile = _FILE.read(path, attempt=attempt, process=process, number=number)
    return profile


class OfAttempt(NamedTuple):
    """A profile of an attempt, counted from 1, of a process."""

    process: int
    attempt: int
    profile: Profile


def profiles(run: RunDirectory, only: Iterable[int] | None = None) -> list[OfAttempt]:
    """Return the profiles of all attempts without the baselines, by process, attempt and number.

    `only`: of these processes. Files that cannot be read are left out; of very many the latest are read.
    """
    wanted = None if only is None else frozenset(only)
    known = []
    for attempt, process, number in sorted(run.profiles(), reverse=True):
        if number == BASELINE or (wanted is not None and process not in wanted):
            continue
        with suppress(OSError, ValueError):
            known.append(OfAttempt(process, attempt + 1, read_profile(run, attempt, process, number)))
        if len(known) == READ:
            break
    return sorted(known)
