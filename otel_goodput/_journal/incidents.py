"""The incidents of an attempt, as a small file next to the journal: what was noticed while the job went on."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, FLAG, NUMBER, TEXT, Blobs, Each, Kind, Row, Text, Whole
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.incidents import Incident, Share, Source
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._journal.rundir import INCIDENTS, RunDirectory
from otel_goodput._journal.sidecars import WORDS, Members, Sidecar, kept
from otel_goodput._text.redact import encodable, shown
from otel_goodput.semconv import INCIDENT_KINDS

Spoilt = Callable[[str, Exception], object]

MOST: Final = 100  # incidents of one attempt; beyond, the oldest that are over are forgotten
ATTEMPTS: Final = 100  # the latest whose files are read
EVERY_S: Final = 15.0  # from one writing to the next, while nothing but the cost changes
EVIDENCE: Final = 16
DELIVERED: Final = 1000  # spans, by one exporter each, of which it is remembered
_LONGEST: Final = 500  # characters of a text
_OPEN: Final = -1  # in place of the end of an incident that is not over


def _source(category: str, name: str, rank: int) -> Source:
    return Source(category, name, rank)


class Hexadecimal(Kind):
    """A number above 0 of at most so many hexadecimal digits, as a text."""

    def __init__(self, digits: int) -> None:
        self._digits = re.compile(f"[0-9a-f]{{1,{digits}}}")

    def load(self, plain: Any, blobs: Blobs) -> int:
        if not isinstance(plain, str) or not self._digits.fullmatch(plain):
            raise ValueError(f"{plain!r:.40} is no id")
        return int(plain, 16)


_RANK: Final = Whole(NOBODY)


def _incident(**members: Any) -> Incident:
    shares = tuple(Share(_source(*one[:3]), one[3]) for one in members.pop("shares"))
    source, ended = _source(*members.pop("source")), members.pop("ended")
    return Incident(source=source, shares=shares, ended=None if ended == _OPEN else ended, **members)


_MEMBERS: Final = Members(
    {
        "number": COUNT,
        "kind": Text(*INCIDENT_KINDS),
        "source": Row(TEXT, TEXT, _RANK),
        "began": COUNT,
        "opened": COUNT,
        "ended": Whole(_OPEN),
        "cost": COUNT,
        "shares": Each(Row(TEXT, TEXT, _RANK, NUMBER)),
        "before": COUNT,
        "after": COUNT,
        "line": WORDS,
        "evidence": Each(WORDS, EVIDENCE, tuple),
    },
    _incident,
)
_ID: Final = Hexadecimal(16)
_FILE: Final = Sidecar(
    "incidents of an attempt",
    Members(
        {
            "incidents": Each(_MEMBERS, MOST, tuple),
            # Of each incident, the trace and the span of the job that it is a child of.
            "jobs": Each(Row(COUNT, Hexadecimal(32), _ID), MOST),
            # Spans of incidents, also of earlier attempts, and the number of the exporter that has delivered each.
            "delivered": Each(Row(_ID, COUNT), DELIVERED),
            "tells": FLAG,
        },
        absent={"jobs": [], "delivered": [], "tells": False},
    ),
    INCIDENTS,
)


class IncidentFile(NamedTuple):
    """The incidents that one process left in an attempt (counted from 0).

    Attributes:
        jobs: of each incident by its number, the ids of trace and span of the job that it is a child of.
        delivered: ids of spans of incidents, and the numbers of the exporters that have delivered them, as it knows.
        tells: whether it says what was delivered.
    """

    attempt: int
    process: int
    incidents: tuple[Incident, ...]
    jobs: Mapping[int, tuple[int, int]]
    delivered: Sequence[tuple[int, int]]
    tells: bool


class _Left(NamedTuple):
    """What earlier attempts left: their incidents, each with its attempt, and their files."""

    incidents: list[tuple[int, Incident]]
    files: list[IncidentFile]


def _plain(one: Incident) -> dict[str, Any]:
    return {
        **one._asdict(),
        "source": (one.source.category, encodable(one.source.name), one.source.rank),
        "ended": _OPEN if one.ended is None else one.ended,
        "shares": [(of.category, encodable(of.name), of.rank, lost) for of, lost in one.shares],
        "line": shown(one.line)[:_LONGEST],
        "evidence": [shown(text)[:_LONGEST] for text in one.evidence[:EVIDENCE]],
    }


class IncidentSheet:
    """Keeps the incidents of this attempt, and writes them when one begins or ends, and now and then."""

    def __init__(self, attempt: int, process: int) -> None:
        self._attempt, self._process = attempt, process
        self._incidents: dict[int, Incident] = {}
        self._putting = threading.Lock()
        self._urgent = self._new = False
        self._written = 0.0  # s, monotonic
        self._jobs: dict[int, tuple[int, int]] = {}  # by the number of the incident; see IncidentFile
        self._delivered: dict[tuple[int, int], None] = {}
        self._earlier: _Left | None = None if attempt else _Left([], [])  # None: not read yet

    def put(self, incident: Incident, job: tuple[int, int] | None = None) -> None:
        """Add an incident, or replace it by what is known of it now; `job`: ids of its job's trace and span."""
        with self._putting:
            if job is not None:
                self._jobs[incident.number] = job
            before = self._incidents.get(incident.number)
            self._incidents[incident.number] = incident
            over = [number for number, one in self._incidents.items() if one.ended is not None]
            for number in over[: max(0, len(self._incidents) - MOST)]:
                del self._incidents[number]
                self._jobs.pop(number, None)
            self._new = True
            self._urgent |= before is None or before._replace(cost=0, shares=()) != incident._replace(cost=0, shares=())

    def get(self, number: int) -> Incident | None:
        """What is known of an incident of this attempt; None: nothing."""
        return self._incidents.get(number)

    def all(self) -> tuple[Incident, ...]:
        """The incidents of this attempt, in the order in which they were noticed."""
        with self._putting:
            return tuple(self._incidents.values())

    def of_run(self, disruptions: Iterable[Disruption]) -> list[tuple[int, Incident]]:
        """The incidents of all attempts, each with its attempt (counted from 0), those of this one last.

        `disruptions`: of the run. Those of earlier attempts are known once :meth:`keep` was called.
        """
        earlier = () if self._earlier is None else self._earlier.incidents
        return [*_over(earlier, ends_of(disruptions)), *((self._attempt, one) for one in self.all())]

    def left(self) -> list[IncidentFile] | None:
        """The files that earlier attempts left; None: not read yet."""
        return None if self._earlier is None else self._earlier.files

    def deliver(self, span: int, exporter: int) -> None:
        """Note that an exporter has delivered the span of an incident, of this attempt or of an earlier one."""
        with self._putting:
            self._delivered[span, exporter] = None
            for one in list(self._delivered)[:-DELIVERED]:
                del self._delivered[one]
            self._new = self._urgent = True

    def move(self, attempt: int) -> None:
        """Tell that this is the attempt `attempt`, of another run: the file is written again there."""
        with self._putting:
            self._attempt, self._new, self._urgent = attempt, bool(self._incidents), True
            self._earlier = None if attempt else _Left([], [])

    def keep(self, run: RunDirectory, *, last: bool = False) -> None:
        """Write the file if there is something new and it is time, or the `last` time. An error is reported once."""
        now = time.monotonic()
        if self._earlier is None:
            self._earlier = _read_all(run, below=self._attempt)
        if not self._new or not (self._urgent or last or now - self._written >= EVERY_S):
            return
        self._written = now
        with self._putting:
            incidents, self._new, self._urgent = [*self._incidents.values()], False, False
            owner = {
                "attempt": self._attempt,
                "process": self._process,
                "tells": True,
                "jobs": [(number, f"{trace:x}", f"{span:x}") for number, (trace, span) in self._jobs.items()],
                "delivered": [(f"{span:x}", exporter) for span, exporter in self._delivered],
            }
        data = _FILE.encode(**owner, incidents=[_plain(one) for one in incidents])
        while len(data) > INCIDENTS and len(incidents) > 1:  # nobody would read it
            incidents = incidents[len(incidents) // 2 :]
            data = _FILE.encode(**owner, incidents=[_plain(one) for one in incidents])
        path = run.file("incidents", self._attempt, self._process)
        if not kept(path, data, "incidents", "incidents cannot be saved (will retry): %s"):
            self._new = True


def read_incidents(run: RunDirectory, attempt: int, process: int) -> tuple[Incident, ...]:
    """Read the incidents of an attempt (counted from 0). Raises as :meth:`Sidecar.read`."""
    return read_incident_file(run, attempt, process).incidents


def read_incident_file(run: RunDirectory, attempt: int, process: int) -> IncidentFile:
    """Read the whole file of an attempt (counted from 0). Raises as :meth:`Sidecar.read`."""
    members = _FILE.read(run.file("incidents", attempt, process), attempt=attempt, process=process)
    jobs = {number: (trace, span) for number, trace, span in members["jobs"]}
    return IncidentFile(attempt, process, members["incidents"], jobs, members["delivered"], members["tells"])


def delivered_by(files: Iterable[IncidentFile]) -> Mapping[int, frozenset[int]]:
    """Return the numbers of the exporters that have delivered the span of an incident, by its id."""
    exporters = defaultdict[int, set[int]](set)
    for file in files:
        for span, exporter in file.delivered:
            exporters[span].add(exporter)
    return {span: frozenset(numbers) for span, numbers in exporters.items()}


def incidents_of(
    run: RunDirectory, ends: Mapping[int, int], spoilt: Spoilt | None = None
) -> list[tuple[int, Incident]]:
    """Return the incidents of all attempts, each with its attempt (counted from 0), in their order.

    Its leader noticed them, or a process that stood in for it. One that was open when its attempt ended is over since
    then: `ends` has the last sign of life of the attempts that are over, ns. Files that cannot be read are left out;
    `spoilt` is called with the name of each, and the error.
    """
    return _over(_read_all(run, spoilt=spoilt).incidents, ends)


def ends_of(disruptions: Iterable[Disruption]) -> dict[int, int]:
    """Return when attempts (counted from 0) ended, ns, as far as the `disruptions` of the run say."""
    return {one.attempt - 2: max(one.died, 0) or one.time for one in disruptions if one.attempt is not None}


def incident_files(run: RunDirectory) -> list[IncidentFile]:
    """Read the files of the latest attempts; those that cannot be read are left out."""
    return _read_all(run).files


def end_of(attempt: int, ends: Mapping[int, int]) -> int | None:
    """Return when an attempt (counted from 0) ended, ns; None if it may go on.

    If that is not known because the next one died before it did anything, it had ended when a later one did.
    """
    later = [number for number in ends if number >= attempt]
    return ends[min(later)] if later else None


def _read_all(run: RunDirectory, below: int | None = None, spoilt: Spoilt | None = None) -> _Left:
    every, read = list[tuple[int, Incident]](), list[IncidentFile]()
    for attempt, process in [one for one in run.incidents() if below is None or one[0] < below][-ATTEMPTS:]:
        try:
            file = read_incident_file(run, attempt, process)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            if spoilt is not None:
                spoilt(run.file("incidents", attempt, process).name, error)
            continue
        read.append(file)
        every += ((attempt, one) for one in file.incidents)
    return _Left(sorted(every, key=lambda one: (one[0], one[1].began)), read)


def _over(every: Iterable[tuple[int, Incident]], ends: Mapping[int, int]) -> list[tuple[int, Incident]]:
    return [
        (attempt, one)
        if one.ended is not None or (end := end_of(attempt, ends)) is None
        else (attempt, one._replace(ended=max(end, one.began)))
        for attempt, one in every
    ]
