"""The job of all ranks, for a report: its account, for whom it waited, and what each of its ranks is doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from otel_goodput._accounting.disruption import with_causes
from otel_goodput._accounting.events import NO_STEP, Event
from otel_goodput._accounting.job import LATE, Cause, Costs, JobAccount, OpenNow
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.own_time import OwnTimes
from otel_goodput._accounting.rank_clocks import Offset, spread_of
from otel_goodput._accounting.rank_updates import Opened
from otel_goodput._accounting.ranks import STEP_TIME
from otel_goodput._accounting.rules import CUT_OUT, NAMES, OTHER
from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.clock_offsets import clocks_of, latest_offsets, read_offsets
from otel_goodput._journal.facts import Facts
from otel_goodput._journal.job_now import JobNow, read_now
from otel_goodput._journal.job_waits import read_waits
from otel_goodput._journal.notes import Note
from otel_goodput._journal.own_times import read_own_times
from otel_goodput._journal.records import SIZE
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.turn_columns import expect
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput._timeline.damage import Damage, Damages
from otel_goodput._timeline.ranks import MERGED_BYTES, RankDigest, account_of_ranks, read_digest, state_of_rank
from otel_goodput._timeline.reader import all_events
from otel_goodput._timeline.recovery import Restored
from otel_goodput._timeline.run_state import DIED, ENDED, FAILED, RUNNING, SILENT, RunState
from otel_goodput._timeline.spool import Spool
from otel_goodput.reports.fields import OpenRankFields, PartitionFields, RanksFields, RankWaitFields
from otel_goodput.reports.last_known import gone_on
from otel_goodput.reports.own_times import own_to_json
from otel_goodput.semconv import HOST_NAME, PROCESS_PID, Category

MERGED_RANKS: Final = 256
MISSING_LISTED: Final = 16  # ranks without a journal, by their index
LATE_SHARE: Final = 0.05  # of the time of loops; if ranks begin late for less, their paces say who is slow
_STEPPED: Final = (Category.PRODUCTIVE, Category.WASTED_PROGRESS, Category.IN_FLIGHT, Category.STALLED)
FAR: Final = NS // 20  # offsets of clocks that a report mentions, ns
PLACES_LOOKED_UP: Final = 64  # a file each


class RankNow(NamedTuple):
    """One rank at the end of the account.

    Attributes:
        state, at: of its process; its last sign of life, ns.
        opened: what it does; None if no phase is open.
        host, pid: of its process; None if that is not known.
    """

    rank: int
    state: str
    at: int
    opened: Opened | None
    host: str | None = None
    pid: int | None = None

    def to_json(self) -> OpenRankFields:
        doing = self.opened
        return {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "state": self.state,
            "phase": None if doing is None else doing.phase,
            "name": "" if doing is None else doing.name,
            "step": None if doing is None or doing.number == NO_STEP else doing.number,
            "since": None if doing is None else doing.since / NS,
            "last_sign_of_life": self.at / NS,
        }


class RankWaits(NamedTuple):
    """For which of its ranks a job waited, and how long.

    Attributes:
        ranks, expected: how many are in the account; how many the job has.
        costs: for whom it waited.
        overview, ledger: the job over time, and its account; None if it is not known.
        missing: those that are not in the account.
        now: what each does, if the job is not over.
        waiting: for whom the job waits at the end of the account, and since when (ns).
        hosts: where ranks run, as far as it was looked up.
        together: they step together; if not, the account is the sum of theirs, weighted by devices.
        roles: the account of each role, if there are several.
        events: those of the job, if they were wanted and are not in the job's own records; None if they are not known.
        offsets: how far the clocks of ranks are ahead of the leader's, as far as their times were corrected.
        numbered: by how much ranks seem to number the same steps higher, if that may be why they step apart.
        own: what the ranks do themselves inside of steps.
    """

    ranks: int
    costs: Costs
    overview: Overview | None = None
    ledger: Ledger | None = None
    expected: int = 0
    missing: Sequence[int] = ()
    now: Sequence[RankNow] = ()
    waiting: Mapping[Cause, int] = {}
    hosts: Mapping[int, str] = {}
    together: bool = True
    roles: Mapping[str, Totals] = {}
    events: Sequence[Event] | None = None
    offsets: Mapping[int, Offset] = {}
    numbered: Mapping[int, int] = {}
    own: OwnTimes = OwnTimes()

    @property
    def far_clocks(self) -> Mapping[int, Offset]:
        """The clocks that are corrected by so much that a report says so."""
        return {rank: one for rank, one in self.offsets.items() if abs(one.ahead) >= FAR}

    def to_json(self, productive: int, elapsed: int) -> RanksFields:
        """Return the field ``ranks`` of a report whose times these are, ns.

        Without a wait, the job would have done the same in less time: what goodput would be is the productive time over
        the elapsed time less the wait.
        """
        longest = sorted(self.costs.whole.items(), key=lambda item: (-item[1], item[0]))
        waits: list[RankWaitFields] = [
            {
                "rank": cause.rank,
                "host": self.hosts.get(cause.rank),
                "category": NAMES[cause.category],
                "name": cause.name,
                "seconds": spent / NS,
                "since": self.costs.latest[cause][0] / NS,
                "until": self.costs.latest[cause][1] / NS,
                "goodput_without": productive / (elapsed - spent) if spent < elapsed else None,
            }
            for cause, spent in longest
        ]
        cause, since = next(iter(self.waiting.items()), (None, 0))
        return {
            "count": self.ranks,
            "expected": max(self.expected, self.ranks),
            "missing": list(self.missing[:MISSING_LISTED]),
            "together": self.together,
            "waits": waits,
            "open": [one.to_json() for one in self.now],
            "waiting_for": None
            if cause is None
            else {
                "rank": cause.rank,
                "host": self.hosts.get(cause.rank),
                "category": NAMES[cause.category],
                "name": cause.name,
                "since": since / NS,
            },
            "roles": {name: cast("PartitionFields", totals.run.to_json()) for name, totals in self.roles.items()},
            "clocks": [
                {"rank": rank, "ahead": one.ahead / NS, "bound": one.bound / NS}
                for rank, one in self.far_clocks.items()
            ],
            "clock_spread": spread_of(self.offsets.values()) / NS,
            "own": own_to_json(self.own, self.hosts),
        }


class Job(NamedTuple):
    """The account of a job of several ranks up to `at` (ns), before which it is known what all of them did.

    Attributes:
        totals: the account.
        events: those of the job; empty if they were not wanted.
        standing: the state of the job.
        waits: what a report says of its ranks.
        notes, damage: what must be known to read it; what could not be read.
    """

    totals: Totals
    at: int
    events: Sequence[Event]
    standing: RunState
    waits: RankWaits
    notes: Sequence[Note]
    damage: Sequence[Damage]


def live_waits(
    ranks: int,
    expected: int,
    costs: Costs,
    now: OpenNow,
    places: Mapping[int, tuple[str, int]],
    together: bool,
    roles: Mapping[str, Totals],
    offsets: Mapping[int, Offset],
    numbered: Mapping[int, int],
    own: OwnTimes,
) -> RankWaits:
    """Return what a report says of the ranks of a living job; `places` are their hosts and process ids."""
    states = {rank: SILENT if rank in now.silent else RUNNING for rank in now.ranks}
    hosts = {rank: host for rank, (host, _) in places.items()}
    return RankWaits(
        ranks,
        costs,
        expected=expected,
        missing=[rank for rank in range(expected) if rank not in places],
        now=[
            RankNow(rank, states[rank], sign.at, sign.opened, *places.get(rank, (None, None)))
            for rank, sign in now.ranks.items()
        ],
        waiting={} if now.cause is None else {now.cause: now.since},
        hosts=hosts,
        together=together,
        roles=roles,
        offsets=offsets,
        numbered=numbered,
        own=own,
    )


_UNFINISHED: Final = Note(
    "job's own records",
    "This is the account of all ranks as far as the leader had it: of the last seconds before the end it has only that "
    "the job waited for a rank, or that all were in one step. `otel-goodput report --exact` reads the journals of all "
    "ranks.",
)


def too_large(folder: RunDirectory, *, parts: int = 1) -> str:
    """Return why the journals of all ranks cannot be merged quickly; empty if they can.

    It takes at most five seconds divided by `parts`.
    """
    if len(folder.processes()) * parts > MERGED_RANKS or folder.recorded_bytes() * parts > MERGED_BYTES:
        return "the journals of all ranks are too large to be read each time; `otel-goodput report --exact` reads them"
    return ""


def read_job(
    folder: RunDirectory, count: int, spans: Sequence[int] = (), *, with_events: bool = False, keep: bool = False
) -> Job | str:
    """Return the account of a job from the journals of all its ranks, or why there is none.

    Args:
        folder: the folder of its run.
        count: how many ranks its latest attempt has; 0 if that is not known.
        spans: lengths of rolling windows, ns.
        with_events: keep its events, without which there is no account.
        keep: keep its events, if there are any, for what is said of its ranks.
    """
    with Spool() as spool:
        return _job_of(folder, count, spans, spool, with_events=with_events, keep=keep)


def _job_of(
    folder: RunDirectory, count: int, spans: Sequence[int], spool: Spool, *, with_events: bool, keep: bool
) -> Job | str:
    damages, events = Damages(), list[Event]()
    expect(folder.recorded_bytes() // SIZE)
    with files.held(folder.journal):
        digests, damaged = _read(folder, damages, spool)
        if len(digests) < 2:
            return "no other rank left a journal here that can be read"
        record = events.extend if with_events or keep else None
        account = account_of_ranks(folder, digests=digests, count=count, record=record, spans=spans)
        if not account.together and damaged and len(digests) - len(damaged) >= 2:
            # A rank whose steps are missing seems to step by itself.
            digests = {rank: digest for rank, digest in digests.items() if rank not in damaged}
            events.clear()
            account = account_of_ranks(folder, digests=digests, count=count, record=record, spans=spans)
        states = {rank: state_of_rank(folder, rank, digest) for rank, digest in digests.items()}
    latest = {rank: state for rank, state in states.items() if rank not in account.left_out and not 0 < count <= rank}
    at, standing = account.horizon, _standing(latest or states, digests)
    if with_events and not account.together:
        return "the ranks do not step together, and of a past moment or a part of the time their sum is not known"
    if account.together and standing.state in (ENDED, FAILED):
        account.conclude(failed=standing.state == FAILED)
    elif with_events or (keep and account.together):
        events += account.undecided(at)
    expected = range(max(count, *(rank + 1 for rank in digests)))
    waits = RankWaits(
        len(digests),
        account.costs_at(at),
        account.overview(at) if account.together else None,
        account.ledger_at(at) if account.together else None,
        len(expected),
        [rank for rank in expected if rank not in digests],
        () if standing.state in (ENDED, FAILED) else [_now(rank, states[rank], one) for rank, one in digests.items()],
        _waiting(account, standing, states, digests),
        {},
        account.together,
        {} if len(account.roles) < 2 else account.totals_of_roles(at),
        events if keep and account.together else None,
        account.offsets,
        account.numbered_apart,
        _own_times(folder) if account.together else OwnTimes(),
    )
    notes = missing_note(waits), clocks_note(account.clocks_disagree), *notes_on(waits), damages.note()
    return Job(account.totals(at), at, events, standing, waits, tuple(filter(None, notes)), tuple(damages.serious))


def recorded_job(
    folder: RunDirectory,
    own: Restored,
    count: int,
    standing: RunState,
    since: int,
    *,
    with_events: bool = False,
    with_overview: bool = True,
) -> Job | None:
    """Return the account of a job from its own records, which its leader has made; None if there are none of use.

    Args:
        folder: the folder of its run.
        own: what its own records say.
        count: how many ranks its latest attempt has; 0 if that is not known.
        standing: the state of its leader.
        since: the begin of its leader's latest job, ns; records that end before are of an attempt before.
        with_events, with_overview: return its events, and what it did over time.
    """
    try:
        saved = read_waits(folder.of_job)
    except (OSError, ValueError):
        return None
    at, ledger, costs = own.last_sign, own.ledger, saved.costs
    more: list[Event] = []
    dead, now = standing.state == DIED, None if standing.state in (ENDED, FAILED) else _latest_now(folder)
    last = None
    if standing.state in (DIED, SILENT) and now is not None:
        last = gone_on(ledger, costs, now, since, standing.last_sign or 0)
    if last is not None:
        at, ledger, costs, more = last
    if not saved.together or (last is None and (own.attempt < 0 or own.last_sign < since)):
        return None
    waits = RankWaits(
        saved.ranks,
        costs,
        ledger.overview(at, dead=dead) if with_overview else None,
        ledger,
        max(count, saved.ranks),
        offsets=latest_offsets(read_offsets(folder)),
        own=_own_times(folder),
    )
    ended = own.ledger.settled.ended and standing.state in (ENDED, FAILED)
    return Job(
        ledger.totals(at, dead=dead),
        at,
        [*all_events(folder.of_job), *more] if with_events else (),
        standing,
        waits if now is None else _with_now(now, standing, waits),
        (*(() if ended or standing.state == RUNNING else (_UNFINISHED,)), *notes_on(waits)),
        own.damages.serious,
    )


def _latest_now(folder: RunDirectory) -> JobNow | None:
    """Return what the leader wrote last about what the ranks do; None if there is nothing that can be read."""
    try:
        return read_now(folder.of_job)
    except (OSError, ValueError):
        return None


def _own_times(folder: RunDirectory) -> OwnTimes:
    """Return what the leader wrote of what the ranks do themselves inside of steps; nothing if it cannot be read."""
    try:
        return read_own_times(folder.of_job)
    except (OSError, ValueError):
        return OwnTimes()


def _with_now(now: JobNow, standing: RunState, waits: RankWaits) -> RankWaits:
    """Return what is said of ranks with what the leader wrote last about what they do."""
    waiting = {} if now.cause is None else {now.cause: now.since}
    dead = standing.state == DIED  # what became of each rank since is not known here
    return waits._replace(
        expected=max(waits.expected, now.expected),
        now=[
            RankNow(
                one.rank,
                SILENT if one.silent or dead else RUNNING,
                one.at,
                one.opened,
                one.host or None,
                one.pid or None,
            )
            for one in now.ranks
        ],
        waiting=waiting if now.ranks else {},
        hosts={one.rank: one.host for one in now.ranks if one.host},
    )


def _read(folder: RunDirectory, damages: Damages, spool: Spool) -> tuple[dict[int, RankDigest], set[int]]:
    """Return the digests of the ranks, and those of them whose journal is damaged, which is added to `damages`."""
    digests, damaged, clocks = dict[int, RankDigest](), set[int](), clocks_of(read_offsets(folder))
    for rank in folder.processes():
        own = Damages()
        digest = read_digest(folder, rank, own, clocks=clocks, spool=spool)
        damages.extend(own)
        if digest is not None:
            digests[rank] = digest
            damaged |= {rank} if own.serious else set()
    return digests, damaged


def _now(rank: int, state: str, digest: RankDigest) -> RankNow:
    return RankNow(rank, state, digest.end, digest.opened)


def _waiting(
    account: JobAccount, standing: RunState, states: Mapping[int, str], digests: Mapping[int, RankDigest]
) -> Mapping[Cause, int]:
    """Return for which rank the job waits, or waited when it died, and since when (ns); empty if that is not known."""
    if standing.state != RUNNING:
        return _behind(digests) if standing.last_sign and account.together else {}
    signs = [digests[rank].end for rank, state in states.items() if state == RUNNING]
    return account.waits() if max(signs) - min(signs) <= LATE else {}


def _behind(digests: Mapping[int, RankDigest]) -> Mapping[Cause, int]:
    """Return which rank all others waited for, in a step that it had not begun, and since when (ns)."""
    first = not any(digest.parts.stepped for digest in digests.values())  # each rank is expected to take that
    opened = {rank: digest.opened for rank, digest in digests.items() if first or digest.parts.latest is not None}
    inside = {rank: one for rank, one in opened.items() if one is not None and one.category == STEP_TIME}
    others = [rank for rank in opened if rank not in inside]
    if len(others) != 1 or len({one.number for one in inside.values()}) != 1:
        return {}
    rank, one = others[0], opened[others[0]]
    if one is not None and one.category in CUT_OUT:
        return {}
    if one is not None and one.number in {step.number for step in inside.values()}:
        return {}
    since = max(min(step.since for step in inside.values()), 0 if one is None else one.since)
    return {Cause(rank, OTHER, "") if one is None else Cause(rank, one.category, one.name): since}


def _standing(states: Mapping[int, str], digests: Mapping[int, RankDigest]) -> RunState:
    """Return the state of a job by those of its ranks: it runs while one of them does."""
    state = next((one for one in (RUNNING, DIED, SILENT, FAILED) if one in states.values()), ENDED)
    if state not in (DIED, SILENT):
        return RunState(state)
    gone = [digests[rank] for rank, each in states.items() if each == state]
    last = max(digest.end for digest in gone)
    steps = [one for digest in gone if (one := digest.opened) is not None and one.number != NO_STEP]
    step = max(steps, key=lambda one: one.number, default=None)
    return RunState(state, last, *((None, None) if step is None else (step.number, min(step.since, last))))


def named(waits: RankWaits) -> set[int]:
    """Return the ranks of which a report says where they run."""
    costly = sorted(waits.costs.whole, key=lambda cause: -waits.costs.whole[cause])[:PLACES_LOOKED_UP]
    open_ones = [one.rank for one in waits.now[:PLACES_LOOKED_UP]]
    slow = [one.rank for one in waits.own.slow[:PLACES_LOOKED_UP]]
    return {*(cause.rank for cause in (*costly, *waits.waiting)), *open_ones, *slow}


def with_places(waits: RankWaits, facts: Mapping[int, Facts]) -> RankWaits:
    """Return what is said of ranks with their hosts and process ids, of those whose `facts` are given."""
    hosts = {rank: str(one.resource[HOST_NAME]) for rank, one in facts.items() if one.resource.get(HOST_NAME)}
    pids = {rank: pid for rank, one in facts.items() if isinstance(pid := one.resource.get(PROCESS_PID), int)}
    now = [one._replace(host=hosts.get(one.rank), pid=pids.get(one.rank)) for one in waits.now]
    return waits._replace(now=now, hosts=hosts)


def clocks_note(ahead: Mapping[int, int]) -> Note | None:
    """Return the note on ranks whose clocks are `ahead` of others' (ns); None if there are none."""
    if not ahead:
        return None
    off = [f"rank {rank} ({format_duration(time / NS)})" for rank, time in sorted(ahead.items())[:MISSING_LISTED]]
    return Note(
        "clocks of ranks",
        f"The clocks of ranks are too far ahead of the others' to know who waits for whom: {', '.join(off)}. "
        "Synchronize the clocks, for example with NTP.",
    )


def notes_on(waits: RankWaits | None) -> tuple[Note, ...]:
    """Return the notes on what ranks do in their own ways: on their clocks, and on numbers of their steps."""
    return () if waits is None else tuple(filter(None, (_offsets_note(waits), _numbers_note(waits))))


def _numbers_note(waits: RankWaits) -> Note | None:
    """Return the note on ranks that number the same steps otherwise than the others; None if none seem to."""
    if not (higher := waits.numbered):
        return None
    which = [
        f"rank {rank} by {abs(by)} {'higher' if by > 0 else 'lower'}"
        for rank, by in sorted(higher.items())[:MISSING_LISTED]
    ]
    more = f" and {len(higher) - len(which)} more" if len(higher) > len(which) else ""
    return Note(
        "numbers of steps",
        f"Some ranks seem to number the same steps otherwise than the others: {', '.join(which)}{more}. That may be "
        "why the ranks seem not to step together. Give a step the same number on all ranks, for example with `start=` "
        "of `steps()`.",
    )


def _offsets_note(waits: RankWaits) -> Note | None:
    """Return the note on clocks that were corrected; None if they were not, or by little only."""
    if not (far := waits.far_clocks):
        return None
    off = [
        f"that of rank {rank} is {format_duration(abs(one.ahead) / NS)} {'ahead' if one.ahead > 0 else 'behind'}"
        for rank, one in sorted(far.items())[:MISSING_LISTED]
    ]
    more = f" and {len(far) - len(off)} more" if len(far) > len(off) else ""
    spread = format_duration(spread_of(waits.offsets.values()) / NS)
    text = (
        f"Clocks differ from the leader's, and the times of these ranks are corrected by that: {', '.join(off)}{more}. "
        f"Two of them may still be apart by {spread}."
    )
    return Note("corrected clocks", text)


def missing_note(waits: RankWaits) -> Note | None:
    """Return the note on ranks that are not in the account; None if all are."""
    if not waits.missing:
        return None
    which = ", ".join(map(str, waits.missing[:MISSING_LISTED]))
    more = len(waits.missing) - MISSING_LISTED
    ranks = f"rank{'s' if len(waits.missing) > 1 else ''} {which}{f' and {more} more' if more > 0 else ''}"
    return Note(
        "missing ranks",
        f"This is the account of {waits.ranks} of {waits.expected} ranks: {ranks} left no journal here that can be "
        "read, or one that is damaged. If the job waited for one of them, that is not known.",
    )


def displaced_note(folder: RunDirectory, process: int) -> Note | None:
    """Return the note on processes with an index that was taken, since the latest attempt began; None: none."""
    began = folder.began(process) or 0
    others = [one for one in folder.displaced() if (one.created_at() or 0) >= began and one.processes()]
    if not others:
        return None
    runs = ", ".join(f"{one.called()!r} (process {one.processes()[0]})" for one in others[:MISSING_LISTED])
    return Note(
        "index taken",
        "Other processes had an index that was taken. What they did is not in this report, but recorded as runs of "
        f"their own: {runs}. Give each process its own index (OTEL_GOODPUT_PROCESS_INDEX, process_index=), or, if "
        "that is another job, each job its own run (OTEL_GOODPUT_RUN_ID, run_id=).",
    )


def without_guesses(report: Mapping[str, Any]) -> dict[str, None]:
    """Return what the paces of processes must not say of who is slow, in a report (as JSON) that knows who begins late.

    While ranks wait in their steps for one that begins late, how long their steps take says nothing about them.
    """
    waits = (one for one in report["ranks"]["waits"] if one["category"] != Category.INFRASTRUCTURE_RECOVERY)
    waited = sum(one["seconds"] for one in waits)
    stepped = sum(report["seconds"].get(category, 0.0) for category in _STEPPED)
    return {"late": None} | ({"straggler": None} if waited > LATE_SHARE * (stepped + waited) else {})


# What the journals of ranks say only about single processes: it is the leader's.
_LEADERS: Final = (
    "clock",
    "observed",
    "compilations_seen",
    "recompilations",
    "recompiled",
    "overlapped_data_loading",
    "stages",
    "rank_stages",
    "paces",
    "processes",
    "error",
    "skipped",
    "doubtful",
)


def with_leaders(totals: Totals, leader: Totals, standing: RunState) -> Totals:
    """Return the totals of a job with what is known of its leader only, and how it ended."""
    ended = standing.state in (ENDED, FAILED)
    own = {name: getattr(leader, name) for name in _LEADERS}
    totals = replace(totals, ended=ended, failed=standing.state == FAILED, finished=ended and leader.finished, **own)
    if standing.step is not None:  # that it died in; of the job, it may never have begun
        given = standing.step + (totals.last_given or 0) - (totals.last_step or 0)
        totals = replace(totals, last_step=standing.step, last_given=given)
    if totals.attempts != leader.attempts:
        return totals
    history = with_causes(totals.history, leader.history)
    reasons = Counter(totals.disruptions)
    reasons.subtract(one.reason for one in totals.history)
    reasons.update(one.reason for one in history)
    return replace(totals, history=history, disruptions=dict(+reasons))
