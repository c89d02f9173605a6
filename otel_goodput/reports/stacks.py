"""Where the ranks of a job stand still: their stacks, grouped, and the ranks for which the others wait.

``standstill(run)`` is the way in: for the command ``otel-goodput stacks``, the page, and programs that ask.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from otel_goodput._accounting.events import NO_STEP, NONBLOCKING
from otel_goodput._accounting.rank_clocks import RankClock
from otel_goodput._accounting.rules import CUSTOM_PHASE, JOB, PART
from otel_goodput._journal import records
from otel_goodput._journal.clock_offsets import clocks_of, read_offsets
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.stacks import Dump, Frame, Place, Thread, read_stacks
from otel_goodput._text.quantities import format_duration, format_moment
from otel_goodput._text.redact import shown
from otel_goodput._timeline.run_state import DIED, RUNNING, SILENT
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import PHASES, Phase

QUIET_NS: Final = 10 * 10**9  # a living process writes a sign of life every second
NEVER_STARTED: Final = "never started"  # states of ranks, besides those of runs
STOPPED: Final = "stopped"
_LISTED: Final = 16  # ranks of one line
# Functions in which ranks wait for each other, in files of libraries whose path has one of these words.
_TOGETHER: Final = frozenset(
    {
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce_scatter", "broadcast"),
        *("reduce_scatter_tensor", "broadcast_object_list", "barrier", "monitored_barrier", "all_to_all", "gather"),
        *("all_to_all_single", "gather_object", "scatter", "reduce", "recv", "send", "wait", "synchronize"),
        *("sync_global_devices", "process_allgather", "wait_at_barrier", "allreduce", "allgather", "Barrier"),
        *("Allreduce", "Allgather", "Bcast", "bcast", "wait_for_everyone"),
    }
)
_LIBRARIES: Final = ("distributed", "horovod", "mpi4py", "deepspeed", "accelerate", "multihost_utils", "megatron")


@dataclass(frozen=True)
class Group:
    """Ranks whose training threads are in the same place. `dump` is that of the first of them."""

    ranks: Sequence[int]
    place: Place
    dump: Dump
    together: bool  # in a function in which ranks wait for each other
    moves: bool | None = None  # a later stack of one of them is another; None: there is no later one

    @property
    def frames(self) -> Sequence[Frame]:
        """Of the training thread, the innermost first."""
        thread = self.dump.training
        return () if thread is None else thread.frames

    def doing(self) -> str:
        """Return ``in all_reduce at train.py:88``."""
        return f"in {shown(self.place.function)} at {shown(self.place.line)}"


@dataclass(frozen=True)
class Missing:
    """A rank that left no stacks of this standstill, and why. `seen`: its last sign of life, ns; 0 if there is none."""

    rank: int
    state: str  # ``never started``, ``stopped``, or as the state of a run
    reason: str
    seen: int

    @property
    def silent(self) -> bool:
        """Whether it does not run: the others may wait for it."""
        return self.state != RUNNING


@dataclass(frozen=True)
class Standstill:
    """What is known of the latest standstill of an attempt, counted from 0. Times are ns.

    Attributes:
        at, since: when the latest stacks were written; when anything began or ended last before.
        moved_on: when training went on; None if that is not known.
        groups: the largest first.
        waits_for: the ranks for which the others wait; empty if that is not known.
        unread: files that cannot be read, with the error.
        requested: the stacks were written for a request: training may go on.
    """

    run_id: str
    attempt: int
    ranks: int
    at: int = 0
    since: int = 0
    moved_on: int | None = None
    groups: Sequence[Group] = ()
    missing: Sequence[Missing] = ()
    waits_for: Sequence[int] = ()
    unread: Sequence[tuple[str, Exception]] = ()
    dumps: dict[int, Dump] = field(default_factory=dict)
    requested: bool = False

    def verdict(self) -> str:
        """Return ``7 ranks wait in all_reduce at train.py:88; rank 3 is in load at dataset.py:41``; may be empty."""
        if not self.groups:
            return ""
        others = [group for group in self.groups if not set(group.ranks) <= set(self.waits_for)]
        if not self.waits_for or not others:
            one = self.groups[0]
            return f"{_ranks(one.ranks, self.ranks)} {one.doing()}" if len(self.groups) == 1 else ""
        waiting = f"{_counted(others[0].ranks)} {others[0].doing()}"
        held = [group for group in self.groups if set(group.ranks) <= set(self.waits_for)]
        why = [f"{_ranks(group.ranks, self.ranks)} {group.doing()}" for group in held]
        why += [f"rank {one.rank}: {one.reason}" for one in self.missing if one.rank in self.waits_for]
        return f"{waiting}; {'; '.join(why)}"

    def lines(self, *, every: bool = False, now: int | None = None) -> Iterator[str]:
        """Yield the lines of the command; `every`: the stacks of all threads of all ranks."""
        name = f"run {shown(self.run_id)}, attempt {self.attempt + 1}"
        if not self.dumps:
            yield f"{name}: there are no stacks; they are written when training stands still (docs/hang.md)"
        elif self.requested:
            yield f"{name}, at {format_moment(self.at / 1e9)}"
        else:
            length = format_duration(((self.moved_on or self.at) - self.since) / 1e9)
            went_on = "" if self.moved_on is None else ", then it went on"
            yield f"{name}: training stood still since {format_moment(self.since / 1e9)}, for {length}{went_on}"
        if text := self.verdict():
            yield f"  {text}"
        for group in self.groups:
            yield ""
            again = "" if group.moves is None else "; the stack moves" if group.moves else "; the stack does not move"
            yield f"{_ranks(group.ranks, self.ranks)} {group.doing()}{_phase(group.dump)}{again}"
            if not every:
                yield from _stack(group.frames)
        for one in self.missing:
            yield ""
            yield f"rank {one.rank} left no stacks: {one.reason}"
        if every:
            for rank, dump in sorted(self.dumps.items()):
                for thread in sorted(dump.threads, key=lambda one: not one.training):
                    yield ""
                    yield f"rank {rank}, {_thread(thread)}"
                    yield from _stack(thread.frames)

    def to_json(self, *, every: bool = False) -> dict[str, Any]:
        """Return all of it for JSON; times in seconds, attempts counted from 1."""
        return {
            "run_id": self.run_id,
            "attempt": self.attempt + 1,
            "ranks": self.ranks,
            "at": self.at / 1e9 if self.dumps else None,
            "since": self.since / 1e9 if self.dumps else None,
            "moved_on": None if self.moved_on is None else self.moved_on / 1e9,
            "verdict": self.verdict(),
            "waits_for": list(self.waits_for),
            "groups": [
                {
                    "ranks": list(group.ranks),
                    "text": f"{_ranks(group.ranks, self.ranks)} {group.doing()}{_phase(group.dump)}",
                    "line": shown(group.place.line),
                    "path": shown(group.place.frame.path),
                    "function": shown(group.place.function),
                    "waits_for_others": group.together,
                    "moves": group.moves,
                    "step": None if group.dump.step < 0 else group.dump.step,
                    "phase": shown(group.dump.phase),
                    "frames": _frames(group.frames),
                }
                for group in self.groups
            ],
            "missing": [
                {
                    "rank": one.rank,
                    "state": one.state,
                    "reason": one.reason,
                    "last_sign_of_life": one.seen / 1e9 if one.seen else None,
                }
                for one in self.missing
            ],
            **({"threads": _threads(self.dumps)} if every else {}),
        }


def standstill(
    run: RecordedRun, attempt: int | None = None, *, request: str = "", now: int | None = None
) -> Standstill:
    """Return the latest standstill of an attempt, counted from 0; by default the latest attempt.

    `request`: id of a request, if the stacks that were written for that are meant; `now`: ns since the epoch.
    Does not raise for files that cannot be read: they are in ``unread``.
    """
    folder, now = run.folder, time.time_ns() if now is None else now
    left = folder.stacks()
    if attempt is None:
        latest = [numbers[-1] for process in folder.processes() if (numbers := folder.attempts(process))]
        attempt = max([*latest, *(number for number, _ in left)], default=0)
    unread: list[tuple[str, Exception]] = []
    dumps: dict[int, list[Dump]] = {}
    for _, process in (each for each in left if each[0] == attempt):
        try:
            dumps[process] = [one for one in read_stacks(folder, attempt, process) if one.requested == request]
        except OSError as error:
            unread.append((folder.file("stacks", attempt, process).name, error))
    count = max(run.count(attempt), max((*folder.processes(), *dumps), default=0) + 1)
    clocks = {rank: known[attempt] for rank, known in clocks_of(read_offsets(folder)).items() if attempt in known}
    every = [_by(clocks.get(rank), one) for rank, some in dumps.items() for one in some]
    if not every:
        return Standstill(run.run_id, attempt, count, unread=unread)
    latest_one = max(every, key=lambda one: one.time)
    same = {
        rank: [one for one in listed if _overlap(_by(clocks.get(rank), one), latest_one)]
        for rank, listed in dumps.items()
    }
    chosen = {rank: _by(clocks.get(rank), _placed(run, listed[-1])) for rank, listed in same.items() if listed}
    groups = _grouped(chosen, {process: _moves(listed) for process, listed in same.items()})
    at = max(one.time for one in chosen.values())
    ended = [one.moved_on for one in chosen.values()]
    others = (rank for rank in range(count) if rank not in chosen)
    missing = [_missing(folder, attempt, rank, clocks.get(rank), at, now, requested=bool(request)) for rank in others]
    return Standstill(
        run.run_id,
        attempt,
        count,
        at,
        min(one.since for one in chosen.values()),
        None if None in ended else max(filter(None, ended), default=None),
        groups,
        missing,
        _waited_for(groups, missing),
        unread,
        chosen,
        bool(request),
    )


def _by(clock: RankClock | None, dump: Dump) -> Dump:
    """Return stacks with their times by the common clock, as far as it is known."""
    if clock is None:
        return dump
    moved = None if dump.moved_on is None else clock.common(dump.moved_on)
    return replace(dump, time=clock.common(dump.time), since=clock.common(dump.since), moved_on=moved)


def _placed(run: RecordedRun, dump: Dump) -> Dump:
    """Return stacks with what was open then: what was written without the GIL says what was open some time before."""
    if not dump.by_timer:
        return dump
    unknown = replace(dump, step=NO_STEP, phase="")
    if dump.moved_on is not None or run.folder.attempts(dump.process)[-1:] != [dump.attempt]:
        return unknown
    opened = [one for one in run.restored(dump.process).ledger.opened if not one.flags & NONBLOCKING]
    inner = [one for one in opened if one.phase not in (JOB, PART)][-1:]
    if not inner or inner[0].time > dump.time:
        return unknown
    [one] = inner
    step = next((each.step for each in reversed(opened) if each.step != NO_STEP), NO_STEP)
    return replace(dump, step=step, phase=one.name if one.phase == CUSTOM_PHASE else PHASES[one.phase], since=one.time)


def _moves(dumps: Sequence[Dump]) -> bool | None:
    """Return whether later stacks of a standstill are others than the first ones; None if there are no later ones."""
    stacks = {() if one.training is None else tuple(one.training.frames) for one in dumps}
    return len(stacks) > 1 if len(dumps) > 1 else None


def _overlap(one: Dump, other: Dump) -> bool:
    """Whether two processes stood still at the same time."""
    return one.time >= other.since and (one.moved_on is None or one.moved_on >= other.since) and one.since <= other.time


def _grouped(dumps: dict[int, Dump], moves: dict[int, bool | None]) -> list[Group]:
    ranks: dict[tuple[str, int, str], list[int]] = {}
    places: dict[int, Place] = {}
    for rank, dump in sorted(dumps.items()):
        thread = dump.training or (dump.threads[0] if len(dump.threads) == 1 else None)
        place = dump.place or (None if thread is None else Place(Frame("?", 0, "?"), "?", False))
        place = place or Place(Frame("?", 0, "?"), "?", False)
        places[rank] = place
        ranks.setdefault((place.frame.path, place.frame.line, place.function), []).append(rank)
    groups = []
    for members in ranks.values():
        dump = dumps[members[0]]
        known = [moved for rank in members if (moved := moves[rank]) is not None]
        groups.append(Group(members, places[members[0]], dump, _together(dump), any(known) if known else None))
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def _together(dump: Dump) -> bool:
    """Whether the training thread is in a function in which ranks wait for each other."""
    thread, place = dump.training, dump.place
    if thread is None or place is None or not place.foreign:
        return False
    at = next((at for at, frame in enumerate(thread.frames) if frame == place.frame), len(thread.frames))
    return any(
        frame.function in _TOGETHER and any(word in frame.path for word in _LIBRARIES) for frame in thread.frames[:at]
    )


def _waited_for(groups: Sequence[Group], missing: Sequence[Missing]) -> list[int]:
    """Return the ranks for which the others wait; empty if that cannot be known.

    In this order: those that do not run any more; if some are in a function in which ranks wait for each other, those
    that are not; those in an earlier step; those that are in another phase than a step, while most are in one; those
    that are elsewhere than most.
    """
    if silent := [one.rank for one in missing if one.silent]:
        return silent if groups else []
    if len(groups) < 2:
        return []
    if (apart := [group for group in groups if not group.together]) and len(apart) < len(groups):
        return _all(apart)
    latest = max(group.dump.step for group in groups)
    if behind := [group for group in groups if NO_STEP < group.dump.step < latest]:
        return _all(behind)
    stepping = [group for group in groups if group.dump.phase == Phase.STEP]
    elsewhere = [group for group in groups if group.dump.phase not in (Phase.STEP, "")]
    if stepping and elsewhere and len(_all(elsewhere)) <= len(_all(stepping)):
        return _all(elsewhere)
    fewer = groups[1:]
    return _all(fewer) if len(_all(fewer)) < len(groups[0].ranks) else []


def _all(groups: Sequence[Group]) -> list[int]:
    return sorted(rank for group in groups for rank in group.ranks)


def _missing(
    folder: RunDirectory, attempt: int, rank: int, clock: RankClock | None, at: int, now: int, *, requested: bool
) -> Missing:
    """Return why a rank has no stacks of the standstill at `at`."""
    heads = [records.decode_header(segment.head).heartbeat for segment in folder.segments(rank, attempt)]
    seen = max(heads, default=0)
    seen = seen if clock is None else clock.common(seen)
    if not heads:
        return Missing(rank, NEVER_STARTED, "it left no journal in this attempt: it never started, or is elsewhere", 0)
    last = f"its last sign of life was at {format_moment(seen / 1e9)}"
    writing = folder.writing(attempt, rank)
    if writing is False:
        return Missing(rank, DIED, f"it ended; {last}", seen)
    if folder.lock(attempt, rank).stopped():
        return Missing(rank, STOPPED, f"its process is stopped (SIGSTOP), and cannot write any; {last}", seen)
    if min(at, now) - seen > QUIET_NS or (writing and now - seen > QUIET_NS):
        held = folder.lock(attempt, rank).here()
        why = "its process is here: a call of C may hold Python's lock (GIL)" if held else "it is stopped or cut off"
        return Missing(rank, SILENT, f"{why}; {last}", seen)
    if requested:
        return Missing(
            rank, RUNNING, "it has not answered: it may be in a call of C that holds Python's lock (GIL)", seen
        )
    return Missing(rank, RUNNING, "it runs, and has not stood still for as long as its limit", seen)


# --- text -------------------------------------------------------------------------------------------------------------


def _counted(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks wait" if len(ranks) > 1 else f"rank {ranks[0]} waits"


def _ranks(ranks: Sequence[int], of: int) -> str:
    """Return ``ranks 0-2, 4-7 are``, ``rank 3 is``, or ``the process is``."""
    if of == 1:
        return "the process is"
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    names = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in parts]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names[:_LISTED])}{more} {'are' if len(ranks) > 1 else 'is'}"


def _phase(dump: Dump) -> str:
    step = "" if dump.step < 0 else f" {dump.step}"
    if dump.phase == Phase.STEP:
        return f", in step{step}"
    return f", in {shown(dump.phase)}{f' of step{step}' if step else ''}" if dump.phase else ""


def _stack(frames: Sequence[Frame]) -> Iterator[str]:
    for frame in frames:
        yield f"    {shown(frame.function)}  {shown(frame.path)}:{frame.line}"


def _thread(thread: Thread) -> str:
    return "training thread" if thread.training else f"thread {shown(thread.name) or hex(thread.ident)}"


def _frames(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [{"path": shown(one.path), "line": one.line, "function": shown(one.function)} for one in frames]


def _threads(dumps: dict[int, Dump]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "name": shown(thread.name),
            "training": thread.training,
            "frames": _frames(thread.frames),
        }
        for rank, dump in sorted(dumps.items())
        for thread in dump.threads
    ]
