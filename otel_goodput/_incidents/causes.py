"""What else there is to know of an incident: where ranks stand, which function takes more of the time, whose clocks are
held down.

Stacks are read and profiles taken on threads of their own. What they tell is added to the incident once it is known.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from otel_goodput._accounting.incidents import Incident
from otel_goodput._accounting.ranks import NOBODY
from otel_goodput._incidents.collectives import RAS_S, ras_port, ras_status, wrong_in
from otel_goodput._incidents.profiler import REQUEST, Profiler
from otel_goodput._incidents.watchdog import STACKS_REQUEST
from otel_goodput._journal import requests
from otel_goodput._journal.profiles import Profile, read_profile
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.stacks import Dump
from otel_goodput._journal.usage_now import reasons
from otel_goodput._metrics.usage_rows import Usages
from otel_goodput._runtime.guard import containing, started
from otel_goodput._text.redact import shown
from otel_goodput.reports.profiles import growth
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import Standstill, standstill
from otel_goodput.semconv import INCIDENT_SPAN, THROTTLE_REASONS, IncidentKind, ThrottleReason

LOOKS: Final = 12  # at the stacks of one hang: ranks write them at different times,
EACH_S: Final = 5.0  # so long after one another
UNTIL_REQUEST: Final = 2  # looks until all ranks are to write them
PATIENCE: Final = 12  # looks until this process is profiled because no rank stands out
RANKS_SHOWN: Final = 3  # whose clocks are held down
_POWER_CAP: Final = 1 << THROTTLE_REASONS.index(ThrottleReason.POWER_CAP)

Whereabouts = Callable[[], "tuple[RunDirectory | None, int]"]


class Finding(NamedTuple):
    """What was known of one incident: the rank that causes it, the line at which it stands, and sentences."""

    rank: int = NOBODY
    line: str = ""
    evidence: tuple[str, ...] = ()
    of: int = NOBODY  # the rank whose line that is, if it is not that which causes it


class Causes:
    """Explains the incidents of one process's job.

    Args:
        place: returns the run, None if it has no folder, and the attempt, counted from 0.
        process, count: index of this process, and how many there are.
        profiler: of this process.
        latest: returns the latest stacks of this process; None if there are none.
    """

    def __init__(
        self,
        place: Whereabouts,
        process: int,
        count: int,
        profiler: Profiler,
        latest: Callable[[], Dump | None] = lambda: None,
    ) -> None:
        self._place, self._process, self._count, self._profiler = place, process, count, profiler
        self._latest = latest
        self._findings: dict[int, Finding] = {}  # by the number of the incident
        self._taken: dict[int, list[tuple[int, int]]] = {}  # profiles, by the number of the incident
        self._looked: dict[int, tuple[int, float]] = {}  # how often, and when last, s, monotonic
        self._profiled: set[tuple[int, int]] = set()  # incidents, each with the rank
        self._waited = Counter[int]()  # looks at an incident whose rank is not known
        self._requests: dict[int, tuple[requests.Request, int]] = {}  # to another rank
        self._nccl: dict[int, list[str]] = {}  # what it said is wrong
        self._looking: threading.Thread | None = None
        self._stacks: tuple[int, requests.Request] | None = None  # for which incident all ranks shall write theirs

    def explain(self, incident: Incident) -> Incident:
        """Return the incident with what is known of it by now, and find out more. For the keeper's thread."""
        if incident.ended is None:
            if incident.kind == IncidentKind.HANG:
                self._look(incident)
            elif incident.kind == IncidentKind.SLOWDOWN:
                self._profile(incident)
        finding = self._findings.get(incident.number)
        if finding is None:
            return incident
        source = incident.source if finding.rank == NOBODY else incident.source._replace(rank=finding.rank)
        evidence = tuple(dict.fromkeys((*incident.evidence, *finding.evidence)))
        line = finding.line if finding.of in (NOBODY, source.rank) else ""
        return incident._replace(source=source, line=line or incident.line, evidence=evidence)

    def taken(self, number: int) -> Sequence[tuple[int, int]]:
        """Return the profiles of an incident, each with its rank and its number there."""
        return tuple(self._taken.get(number, ()))

    # --- stacks -------------------------------------------------------------------------------------------------------

    def _look(self, incident: Incident) -> None:
        if self._count == 1 and incident.number not in self._findings:
            own = self._latest()  # they may not be on a disk that is full
            if own is not None and own.time >= incident.began:
                self._findings[incident.number] = Finding(line=shown(own.line))
        count, latest = self._looked.get(incident.number, (0, 0.0))
        run, attempt = self._place()
        if run is None or count >= LOOKS or time.monotonic() - latest < (EACH_S if count > 1 else 0.0):
            return
        if self._looking is not None and self._looking.is_alive():
            return
        self._looked[incident.number] = count + 1, time.monotonic()

        def look() -> None:
            with containing("the stacks of a hang"):
                state = standstill(RecordedRun(run), attempt)
                if count >= UNTIL_REQUEST and not (state.groups and state.at >= incident.began):
                    if self._stacks is None or self._stacks[0] != incident.number:  # the limit of stacks is longer
                        self._stacks = incident.number, requests.make(STACKS_REQUEST, attempt)
                        requests.post(run, self._stacks[1])
                    state = standstill(RecordedRun(run), attempt, request=self._stacks[1].id)
                if state.groups and state.at >= incident.began:
                    self._findings[incident.number] = _of_stacks(state)
                    self._ask_nccl(incident.number, state)

        self._looking = threading.Thread(target=look, name="otel-goodput-stacks", daemon=True)
        started(self._looking, "the line at which the job hangs is not known")

    def _ask_nccl(self, number: int, state: Standstill) -> None:
        """Add what NCCL's RAS says is wrong, if this process says that it listens here. Takes some seconds, once."""
        own = state.dumps.get(self._process)
        if own is None or (port := ras_port(own.about)) is None:
            return
        if number not in self._nccl:
            self._nccl[number] = wrong_in(ras_status(port, RAS_S) or "")
        finding = self._findings[number]
        self._findings[number] = finding._replace(evidence=(*finding.evidence, *self._nccl[number]))

    # --- profiles -----------------------------------------------------------------------------------------------------

    def _profile(self, incident: Incident) -> None:
        number, rank = incident.number, incident.source.rank
        if number in self._requests:
            self._take_answer(number, *self._requests[number])
        if rank == NOBODY and self._count > 1:  # which rank is slow is known a little later
            self._waited[number] += 1
            if self._waited[number] <= PATIENCE:
                return
            rank = self._process
        if (number, rank) in self._profiled:
            return
        self._profiled.add((number, rank))
        run, attempt = self._place()
        if rank in (NOBODY, self._process):
            self._profiler.start(INCIDENT_SPAN, number, done=lambda profile, _: self._add(number, profile, rank))
        elif run is not None:
            request = requests.make(
                REQUEST, attempt, [rank], cause=INCIDENT_SPAN, incident=number, process=self._process
            )
            with containing("the profile of another rank"):
                requests.post(run, request)
                self._requests[number] = request, rank

    def _take_answer(self, number: int, request: requests.Request, rank: int) -> None:
        run, attempt = self._place()
        if run is None:
            return
        answer = requests.answers(run, request).get(rank)
        if answer is None or answer.state == requests.TAKEN:
            return
        del self._requests[number]
        if answer.state == requests.DONE and answer.file:
            with containing("the profile of another rank"):
                which = int(answer.file.rpartition("-")[2].partition(".")[0])
                self._add(number, read_profile(run, attempt, rank, which), rank)

    def _add(self, number: int, profile: Profile, rank: int) -> None:
        if profile.number:
            self._taken.setdefault(number, []).append((self._process if rank == NOBODY else rank, profile.number))
        if profile.grown:
            where, of = (f"On rank {rank}, ", rank) if self._count > 1 else ("", NOBODY)
            text = f"{where}{growth(profile).rstrip('.')} (profile {profile.number})"
            self._findings[number] = Finding(line=profile.line, evidence=(text,), of=of)


def _of_stacks(state: Standstill) -> Finding:
    """Return what the stacks of a hang tell: of the rank that the others wait for, or of all if there is none."""
    rank = state.waits_for[0] if len(state.waits_for) == 1 else NOBODY
    group = next((one for one in state.groups if rank == NOBODY or rank in one.ranks), None)
    verdict = state.verdict()
    line = "" if group is None else shown(group.place.line)
    return Finding(rank if state.ranks > 1 else NOBODY, line, (verdict,) if verdict else ())


class Throttling:
    """Says of incidents whose clocks are held down meanwhile; `usages` returns what each rank uses now."""

    def __init__(self, usages: Callable[[], Usages]) -> None:
        self._usages = usages
        self._held: dict[int, dict[int, int]] = {}  # by the number of the incident, and rank: bits of reasons
        self._texts: dict[int, tuple[str, ...]] = {}

    def explain(self, incident: Incident) -> Incident:
        """Return the incident with what is known of it by now. For the keeper's thread."""
        number = incident.number
        if incident.ended is not None or incident.kind != IncidentKind.SLOWDOWN:
            return incident
        held = self._held.setdefault(number, {})
        for rank, bits in _held_down(self._usages()):
            held[rank] = held.get(rank, 0) | bits
        others = [one for one in incident.evidence if one not in self._texts.get(number, ())]
        self._texts[number] = tuple(_sentences(held))
        return incident._replace(evidence=(*others, *self._texts[number]))


def _held_down(usages: Usages) -> Iterator[tuple[int, int]]:
    """Yield the ranks whose clocks are held down, and why. At their power limit, most are all the time."""
    held = {rank: now.throttled for rank, (_, now) in usages.items() if now.throttled > 0}
    usual = 2 * sum(bits & _POWER_CAP > 0 for bits in held.values()) >= len(usages)
    for rank, bits in held.items():
        if unusual := bits & ~_POWER_CAP if usual else bits:
            yield rank, unusual


def _sentences(held: dict[int, int]) -> Iterator[str]:
    for rank in sorted(held)[:RANKS_SHOWN]:
        yield f"clocks of rank {rank}'s accelerators are held down ({', '.join(reasons(held[rank]))})"
    if len(held) > RANKS_SHOWN:
        yield f"clocks of {len(held) - RANKS_SHOWN} more ranks' accelerators are held down"
