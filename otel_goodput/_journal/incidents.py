"""The incidents of an attempt, as a small file next to the journal: what was noticed while the job went on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from otel_goodput._accounting.codec import COUNT, NUMBER, TEXT, Each, Row, Text, Whole
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
_LONGEST: Final = 500  # characters of a text
_OPEN: Final = -1  # in place of the end of an incident that is not over


def _source(category: str, name: str, rank: int) -> Source:
    return Source(category, name, rank)


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
_FILE: Final = Sidecar("incidents of an attempt", Members({"incidents": Each(_MEMBERS, MOST, tuple)}), INCIDENTS)


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
        # Of earlier attempts; None: not read yet.
        self._earlier: list[tuple[int, Incident]] | None = None if attempt else []

    def put(self, incident: Incident) -> None:
        """Add an incident, or replace it by what is known of it now."""
        with self._putting:
            before = self._incidents.get(incident.number)
            self._incidents[incident.number] = incident
            over = [number for number, one in self._incidents.items() if one.ended is not None]
            for number in over[: max(0, len(self._incidents) - MOST)]:
                del self._incidents[number]
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
        return [*_over(self._earlier or (), ends_of(disruptions)), *((self._attempt, one) for one in self.all())]

    def left_open(self, disruptions: Iterable[Disruption]) -> list[Incident] | None:
        """The incidents that were open when the attempt before this one ended, which ended them; None: not known yet.

        `disruptions`: of the run.
        """
        if self._earlier is None:
            return None
        before = [one for attempt, one in self._earlier if attempt == self._attempt - 1 and one.ended is None]
        end = ends_of(disruptions).get(self._attempt - 1)
        return [] if end is None else [one._replace(ended=max(end, one.began)) for one in before]

    def move(self, attempt: int) -> None:
        """Tell that this is the attempt `attempt`, of another run: the file is written again there."""
        with self._putting:
            self._attempt, self._new, self._urgent = attempt, bool(self._incidents), True
            self._earlier = None if attempt else []

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
        owner = {"attempt": self._attempt, "process": self._process}
        data = _FILE.encode(**owner, incidents=[_plain(one) for one in incidents])
        while len(data) > INCIDENTS and len(incidents) > 1:  # nobody would read it
            incidents = incidents[len(incidents) // 2 :]
            data = _FILE.encode(**owner, incidents=[_plain(one) for one in incidents])
        path = run.file("incidents", self._attempt, self._process)
        if not kept(path, data, "incidents", "incidents cannot be saved (will retry): %s"):
            self._new = True


def read_incidents(run: RunDirectory, attempt: int, process: int) -> tuple[Incident, ...]:
    """Read the incidents of an attempt (counted from 0). Raises as :meth:`Sidecar.read`."""
    members = _FILE.read(run.file("incidents", attempt, process), attempt=attempt, process=process)
    incidents: tuple[Incident, ...] = members["incidents"]
    return incidents


def incidents_of(
    run: RunDirectory, ends: Mapping[int, int], spoilt: Spoilt | None = None
) -> list[tuple[int, Incident]]:
    """Return the incidents of all attempts, each with its attempt (counted from 0), in their order.

    Its leader noticed them, or a process that stood in for it. One that was open when its attempt ended is over since
    then: `ends` has the last sign of life of the attempts that are over, ns. Files that cannot be read are left out;
    `spoilt` is called with the name of each, and the error.
    """
    return _over(_read_all(run, spoilt=spoilt), ends)


def ends_of(disruptions: Iterable[Disruption]) -> dict[int, int]:
    """Return when attempts (counted from 0) ended, ns, as far as the `disruptions` of the run say."""
    return {one.attempt - 2: max(one.died, 0) or one.time for one in disruptions if one.attempt is not None}


def _read_all(run: RunDirectory, below: int | None = None, spoilt: Spoilt | None = None) -> list[tuple[int, Incident]]:
    every = list[tuple[int, Incident]]()
    for attempt, process in [one for one in run.incidents() if below is None or one[0] < below][-ATTEMPTS:]:
        try:
            every += ((attempt, one) for one in read_incidents(run, attempt, process))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            if spoilt is not None:
                spoilt(run.file("incidents", attempt, process).name, error)
    return sorted(every, key=lambda one: (one[0], one[1].began))


def _over(every: Iterable[tuple[int, Incident]], ends: Mapping[int, int]) -> list[tuple[int, Incident]]:
    return [
        (attempt, one)
        if one.ended is not None or (end := ends.get(attempt)) is None
        else (attempt, one._replace(ended=max(end, one.began)))
        for attempt, one in every
    ]
