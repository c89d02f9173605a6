"""What speaks for the cause of an incident, besides the account itself: whether batches were ready, which settings were
changed before it began, and what the host had announced.

Each process looks at its own. If a rank causes an incident, the leader asks that one, through the run's folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from otel_goodput._accounting.incidents import Incident
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._disruption.notices import Attributes
from otel_goodput._journal import requests
from otel_goodput._journal.requests import DONE, REFUSED, TAKEN, Request, Respond
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._runtime.guard import containing
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_moment
from otel_goodput._text.redact import shown
from otel_goodput.semconv import (
    GOODPUT_NOTICE_SOURCE,
    GOODPUT_NOTICE_VALUE,
    INCIDENT_KINDS,
    IncidentKind,
    Reason,
)

EVIDENCE_REQUEST: Final = "evidence"  # the kind of a request to a rank
AGAIN_S: Final = 10.0  # a rank is asked again so long after its answer, while its incident is open,
TIMES: Final = 4  # so often at most
SENTENCES: Final = 8  # of one rank
ANNOUNCEMENTS: Final = 16  # that are remembered
BEFORE_NS: Final = 120 * NS  # what was announced so long before an incident, or is still in force, belongs to it
_ANNOUNCED: Final = {Reason.MAINTENANCE: "host maintenance", Reason.PREEMPTION: "a preemption"}


class Circumstance(NamedTuple):
    """What evidence is wanted for: an incident of a kind, whose time goes to a category, since `began`, ns.

    `opened`: when it was noticed, ns.
    """

    kind: str
    category: str
    began: int
    opened: int


class Witness(Protocol):
    """Returns what it has to say, in sentences, from the keeper's thread: must not wait."""

    def sentences(self, of: Circumstance) -> Sequence[str]: ...


class Sentences:
    """What one has to say of each incident, in place of what it said before."""

    def __init__(self) -> None:
        self._latest: dict[int, tuple[str, ...]] = {}  # by the number of the incident

    def put(self, incident: Incident, sentences: Sequence[str]) -> Incident:
        """Return the incident with these in its evidence."""
        before = self._latest.get(incident.number, ())
        self._latest[incident.number] = now = tuple(sentences)
        if now == before and set(now) <= set(incident.evidence):
            return incident
        others = [one for one in incident.evidence if one not in before]
        return incident._replace(evidence=tuple(dict.fromkeys((*others, *now))))


class _Announcement(NamedTuple):
    source: str
    text: str
    until: int | None = None  # ns; None: it is still in force


class Evidence:
    """Adds what this process knows to the incidents of its job, and what others know to theirs.

    Args:
        place: returns the run, None if it has no folder, and the attempt, counted from 0.
        process, count: index of this process, and how many there are.
        clock: ns since the epoch.
        witnesses: of this process.
    """

    def __init__(
        self,
        place: Callable[[], tuple[RunDirectory | None, int]],
        process: int,
        count: int,
        clock: Callable[[], int],
        witnesses: Sequence[Witness],
    ) -> None:
        self._place, self._process, self._count = place, process, count
        self._clock, self._witnesses = clock, witnesses
        self._known = Sentences()
        self._requests: dict[tuple[int, int], tuple[Request, int, float]] = {}  # by incident and rank; how often, when
        self._answers: dict[tuple[int, int], list[str]] = {}

    def explain(self, incident: Incident) -> Incident:
        """Return the incident with what is known of it by now, and find out more. For the keeper's thread."""
        if incident.ended is not None or incident.kind == IncidentKind.RESTART_LOOP:
            return incident
        rank, category = incident.source.rank, incident.source.category
        of = Circumstance(incident.kind, category, incident.began, incident.opened)
        if rank in (NOBODY, self._process):
            rank, texts = self._process, self._sentences(of)
        else:
            self._ask(incident.number, rank, of)
            texts = self._answers.get((incident.number, rank), [])
        return self._known.put(incident, [f"rank {rank}: {text}" if self._count > 1 else text for text in texts])

    def _sentences(self, of: Circumstance) -> list[str]:
        texts = list[str]()
        for witness in self._witnesses:
            with containing("the evidence of an incident"):
                texts += witness.sentences(of)
        return texts[:SENTENCES]

    # --- of other ranks -----------------------------------------------------------------------------------------------

    def _ask(self, number: int, rank: int, of: Circumstance) -> None:
        run, _ = self._place()
        if run is None:
            return
        with containing("the evidence of another rank"):
            key = number, rank
            request, count, at = self._requests.get(key, (None, 0, 0.0))
            if request is not None and (answer := requests.answers(run, request).get(rank)) is not None:
                if answer.state == DONE:
                    self._answers[key] = [shown(line)[:500] for line in answer.text.split("\n")[:SENTENCES] if line]
                if answer.state != TAKEN and count < TIMES and time.monotonic() - at >= AGAIN_S:
                    request = None
            if request is None and count < TIMES:
                request = self._request(rank, of)
                requests.post(run, request)
                self._requests[key] = request, count + 1, time.monotonic()

    def _request(self, rank: int, of: Circumstance) -> Request:
        now, (_, attempt) = self._clock(), self._place()
        ago = {"began_s": (now - of.began) / NS, "opened_s": (now - of.opened) / NS}  # clocks of ranks differ
        return requests.make(EVIDENCE_REQUEST, attempt, [rank], of=of.kind, category=of.category, **ago)

    def answer(self, request: Request, respond: Respond) -> None:
        """Answer another process; see :class:`~otel_goodput._journal.requests.Inbox`."""
        given, now = request.parameters, self._clock()
        kind, category = given.get("of"), given.get("category")
        began, opened = (given.get(name) for name in ("began_s", "opened_s"))
        if not (
            isinstance(kind, str)
            and kind in INCIDENT_KINDS
            and isinstance(category, str)
            and isinstance(began, (int, float))
            and isinstance(opened, (int, float))
        ):
            respond(REFUSED, "it is not said for which incident")
            return
        of = Circumstance(kind, category, now - round(began * NS), now - round(opened * NS))
        respond(DONE, "\n".join(self._sentences(of)))


class Announced:
    """What the host has announced: maintenance and preemptions."""

    def __init__(self) -> None:
        self._notices: tuple[_Announcement, ...] = ()

    def take(self, reason: str, moment: int, about: Attributes) -> None:
        """Take what was announced at a moment, ns."""
        what = next((text for one, text in _ANNOUNCED.items() if one == reason), None)
        if what is None:
            return
        source, value = (str(about.get(name, "")) for name in (GOODPUT_NOTICE_SOURCE, GOODPUT_NOTICE_VALUE))
        by = f" ({shown(f'{source} {value}'.strip())})" if source else ""
        text = f"{what} was announced at {format_moment(moment / NS)}{by}"
        self._notices = (*self._notices[1 - ANNOUNCEMENTS :], _Announcement(source, text))

    def withdraw(self, moment: int, about: Attributes) -> None:
        """Take that what the same source has announced is over since a moment, ns."""
        source = str(about.get(GOODPUT_NOTICE_SOURCE, ""))
        self._notices = tuple(
            one._replace(until=moment) if one.until is None and one.source == source else one for one in self._notices
        )

    def sentences(self, of: Circumstance) -> list[str]:
        return [
            one.text if one.until is None else f"{one.text}, and was over at {format_moment(one.until / NS)}"
            for one in self._notices
            if one.until is None or one.until > of.began - BEFORE_NS
        ]
