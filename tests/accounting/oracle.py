"""A second account of the same rules, as slow and as plain as can be, to hold the ledger against.

`account` sees the whole timeline at once and walks it as often as it likes: it keeps what is known at the query,
splits it into lives, decides the fate of every step, cuts each life at every boundary and asks for each piece who
owns it. It shares nothing with the ledger but the rules.

Longer than other files: all that it needs is therefore here.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

OPEN = math.inf  # the end of a phase that has not ended
HOST_CATEGORIES = {
    "custom": "custom",
    "checkpoint_save": "checkpoint_save",
    "checkpoint_restore": "checkpoint_restore",
    "accelerator_init": "accelerator_init",
    "training_prep": "training_prep",
    "data_loading": "data_loading",
    "compile": "program_startup",
}
# Phases whose work on the device has their name.
MARKABLE = {"step", "custom", "checkpoint_save", "checkpoint_restore", "training_prep"}
STARTING = {"accelerator_init", "training_prep", "program_startup"}
SIGNS = {"slice_counts", "heartbeat", "clock", "stall_limit", "profiling"}
KINDS = {*HOST_CATEGORIES, *SIGNS, "suspended", "job", "step", "part", "elastic_wait", "elastic_reinit", "exclusion"}
# Phases that a body has which works: what it loads does not count.
WORK = {*HOST_CATEGORIES, "part", "elastic_wait", "elastic_reinit"} - {"data_loading"}
CLOCKS = {"host", "unknown"}
SAMPLE = 1000
SLACK = 10 * 10**9  # a step may take this much longer than the usual one, or FACTOR times as long
FACTOR = 10
EIGHTH = 8
PROFILED = 20  # steps before a profile, the longest of which is the usual one

Span = tuple[int, int]
Moment = tuple[Any, ...]  # a place in the order of happenings: time, turn among what is at the same time, more turns
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One row of the timeline as known at the query: ns, `OPEN` where the end is not known yet."""

    kind: str
    start: int
    end: float
    step: int | None
    name: str | None
    attempt: int
    blocking: bool | None
    overlaps: bool  # opened in another task than the steps
    numbered: bool  # the user gave the number of this step
    segments: tuple[tuple[int, float], ...]  # (from when on it was dispatched, when it left the device)
    completed: bool
    left: bool
    idle: bool  # at the head of its loop, before anything was done
    state: str | None
    active: int
    available: int
    total: int
    loop: str
    limit: int  # of a stall_limit
    order: int

    @property
    def rank(self) -> tuple[int, float, float, int]:
        """Sorts by start; of what starts together, steps come first, one after the other as they end; of two other
        phases the one that ends later is the outer one and comes first.
        """
        if self.kind == "step":
            return (self.start, -1, self.end, self.order)
        return (self.start, 0, -self.end, self.order)

    @property
    def begins(self) -> Moment:
        return (self.start, 2, *self.rank)

    @property
    def ends(self) -> Moment:
        """At the same instant ends come before starts, except those of no length."""
        return (self.end, 1 if self.end > self.start else 3, self.order)

    def shifted(self, by: int) -> Row:
        return replace(
            self, start=self.start + by, end=self.end + by, segments=tuple((s + by, e + by) for s, e in self.segments)
        )


@dataclass(eq=False)
class Life:
    """One job from its start to its end: `begin` to `end` is the stretch of the partition it fills."""

    attempt: int
    job: Row
    latest: bool  # of the latest attempt
    rows: list[Row] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    gap: Span = (0, 0)
    last: bool = False
    first_step: float | None = None  # ns from the job's start to the end of its first step to complete
    first_execution: Execution | None = None  # that step

    @property
    def job_start(self) -> int:
        return self.job.start

    @property
    def job_end(self) -> float:
        return self.job.end

    @property
    def open(self) -> bool:
        """Whether the job still runs at the query."""
        return self.last and self.job_end == OPEN


@dataclass(eq=False)
class Execution:
    """One execution of a step, with the time that it owns."""

    row: Row
    life: Life
    over: Moment  # on the host and on the device
    beyond: float = 0  # ns on the device after the job's end
    stays: list[Stay] = field(default_factory=list)
    segment: int = -1
    outcome: str | None = None  # completed, failed, idle (never began); None: nobody knows
    idle: bool = False  # it was so when it ended; a checkpoint may have saved it since
    finished: int = 0  # the how manieth to complete
    done: float = OPEN  # when it has completed
    lost: bool = False
    cause: Disruption | None = None  # the disruption that lost it
    own: list[Span] = field(default_factory=list)
    startup: int = 0  # ns of program start-up, taken from the front of `own`
    visible: list[Span] = field(default_factory=list)  # of `own`, without what is cut out
    profiles: list[tuple[int, float, float]] = field(default_factory=list)  # begin, end, what it takes without
    limit: float = OPEN  # of `counted`
    usual: bool = False  # it is long, and that is usual
    shift: int = 0  # from the number that its loop gave it
    doubted: int = 0  # while it is not known whether it is a step
    held: bool = False  # the next one tells whether it is

    @property
    def number(self) -> int:
        assert self.row.step is not None
        return self.row.step + self.shift

    @property
    def completed(self) -> bool:
        return self.outcome == "completed"

    @property
    def profiled(self) -> list[Span]:
        """What a profiler costs (R12)."""
        moments: list[Span] = []
        net = 0
        cuts = sorted({t for begin, end, _ in self.profiles for t in (begin, end)})
        for a, b in sorted(self.visible) if cuts else ():
            inner = [a, *(int(t) for t in cuts if a < t < b), b]
            for c, d in pairwise(inner):
                usual = next((one for begin, end, one in self.profiles if begin <= c < end), OPEN)
                free = min(d - c, max(0, usual - net))
                net += int(free)
                if d - c > free:
                    moments.append((int(c + free), d))
        return moments

    @property
    def counted(self) -> list[Span]:
        """What it owns without what is cut out."""
        return subtract(sorted(self.visible), self.profiled) if self.profiles else self.visible

    @property
    def stalled(self) -> list[Span]:
        """What it owns beyond its limit."""
        left, moments = self.limit, []
        for a, b in () if self.usual or self.limit == OPEN else sorted(self.counted):
            if b - a > left:
                moments.append((int(a + left), b))
            left = max(0, left - (b - a))
        return moments

    @property
    def overran(self) -> bool:
        """Whether it took longer than its limit, be that usual or not."""
        return self.limit != OPEN and length(self.counted) > self.limit

    @property
    def worked(self) -> list[Span]:
        return subtract(sorted(self.own), sorted([*self.stalled, *self.profiled]))

    @property
    def net(self) -> int:
        return length(self.worked)

    def reached(self, ns: int) -> float:
        """When it begins to own more than so much that is not cut out."""
        for a, b in sorted(self.counted):
            if b - a > ns:
                return a + ns
            ns -= b - a
        return OPEN

    @property
    def fate(self) -> str:
        if self.outcome == "completed":
            return "wasted_progress" if self.lost else "productive"
        fates = {"failed": "wasted_progress", "idle": "other", "skipped": "data_loading", None: "in_flight"}
        return fates[self.outcome]

    def did_a_steps_work(self, usual: int, until: float = OPEN) -> bool:
        """Whether its own time is at least half the usual one, also what the device did after the job's end."""
        return 2 * self.work(until) >= usual

    def work(self, until: float = OPEN) -> float:
        over = self.life.job_end
        beyond = sum(max(0, min(stay.end, until) - max(stay.begin, over)) for stay in self.stays if stay.end != OPEN)
        return self.time(until) + beyond

    def time(self, until: float) -> int:
        own = subtract(sorted(self.own), self.profiled) if self.profiles else self.own
        return sum(int(max(0, min(b, until) - a)) for a, b in own)


@dataclass(eq=False)
class Disruption:
    """A restart (`life` set) or a rollback inside a process."""

    reason: str
    life: Life | None
    from_step: int | None
    to_step: int | None
    time: int
    kept_step: int | None  # the highest step that was kept before
    regained: float | None = None  # ns from then until that step, or a higher one, was kept by the same job


@dataclass(frozen=True)
class Piece:
    """A part of the partition: one stretch of time, one category, and the execution it comes from, if any."""

    start: int
    end: int
    category: str
    name: str | None = None
    execution: Execution | None = None


# --- reading --------------------------------------------------------------------------------------------------------


def nanoseconds(row: dict[str, Any], key: str) -> int | None:
    if row.get(f"{key}_ns") is not None:
        return int(row[f"{key}_ns"])
    return None if row.get(key) is None else round(row[key] * 1e9)


def leader_rows(rows: Iterable[dict[str, Any]]) -> list[Row]:
    """The leader's rows, each once (R9); what is no row of ours is left out."""
    by_identity: dict[tuple[Any, ...], Row] = {}
    for order, row in enumerate(rows):
        start, step = nanoseconds(row, "start"), row.get("step")
        if row.get("kind") not in KINDS or start is None or row.get("process", 0) != 0:
            continue
        if row["kind"] == "step" and (step is None or step < 0):
            continue
        end = nanoseconds(row, "end")
        end = None if end is None else max(start, end)
        if row["kind"] in SIGNS:
            end = start
        if row["kind"] == "clock" and row.get("state") not in CLOCKS:
            continue
        read = Row(
            kind=row["kind"],
            start=start,
            end=OPEN if end is None else end,
            step=step,
            name=row.get("name"),
            attempt=row.get("attempt", 1),
            blocking=row.get("blocking"),
            overlaps=row.get("overlaps") is True and row.get("blocking") is not False,
            numbered=row.get("numbered") is True,
            segments=read_segments(row, start, end),
            left=row.get("left") is True,
            idle=row.get("left") is True and row.get("completed") is False,
            completed=row.get("completed") is not False or row.get("left") is True,
            state=row.get("state"),
            active=row.get("active", 0),
            available=row.get("available", 0),
            total=row.get("total", 0),
            loop="" if row.get("loop") is None else str(row["loop"]),
            limit=nanoseconds(row, "limit") or 0,
            order=order,
        )
        blocking = read.blocking if read.kind == "data_loading" else read.blocking is not False
        identity = (
            read.kind,
            start,
            end,
            step,
            read.name,
            read.attempt,
            read.segments,
            blocking,
            read.overlaps,
            read.numbered,
            read.completed,
            read.left,
            read.idle,
            read.state,
            read.active,
            read.available,
            read.total,
            read.limit,
        )
        by_identity.setdefault(identity, read)
    return list(by_identity.values())


def read_segments(row: dict[str, Any], start: int, end: int | None) -> tuple[tuple[int, float], ...]:
    """What a phase that holds up training dispatched to the device, one stretch of it after the other."""
    if row["kind"] not in MARKABLE or row.get("blocking") is False:
        return ()
    device_end = nanoseconds(row, "device_end")
    pairs: list[Any] = [] if device_end is None else [(start, device_end)]
    if row.get("device_ns") is not None:
        pairs += row["device_ns"]
    else:
        pairs += [(s * 1e9, None if e is None else e * 1e9) for s, e in row.get("device") or ()]
    last = OPEN if end is None else end
    segments = []
    for a, b in pairs:
        s = int(min(max(round(a), start), last))
        segments.append((s, OPEN if b is None else max(s, round(b))))
    return tuple(sorted(segments))


def stamps(row: Row) -> list[int]:
    """Every instant the row gives witness of."""
    times = (row.start, row.end, *(t for segment in row.segments for t in segment))
    return [int(t) for t in times if t != OPEN]


def known_at(rows: list[Row], now: int) -> list[Row]:
    """The rows as they looked at `now`: what starts later is unknown, what ends later is open."""

    def hide(t: Any) -> Any:
        return OPEN if t > now else t

    return [
        replace(row, end=hide(row.end), segments=tuple((s, hide(e)) for s, e in row.segments if s <= now))
        for row in rows
        if row.start <= now and not (row.kind == "suspended" and row.end > now)
    ]


# --- lives (R1, R2) -------------------------------------------------------------------------------------------------


def split_lives(rows: list[Row], now: int | None) -> tuple[list[Life], dict[int, list[Row]], bool]:
    """The lives of the run in order, placed on the timeline, the rows of each attempt as they lie on it, and whether
    the clock of an attempt was behind what had passed.

    `now` is the query by the clock of the latest attempt; None: after all events.
    """
    attempts: dict[int, list[Row]] = {}
    lives: list[Life] = []
    behind = False
    numbers = sorted({row.attempt for row in rows if row.kind != "exclusion"})
    for attempt in numbers:
        mine = [row for row in rows if row.attempt == attempt and row.kind != "exclusion"]
        shift = 0
        jobs: list[Row] = []
        for job in sorted((row for row in mine if row.kind == "job"), key=lambda row: row.rank):
            if not jobs or job.start >= jobs[-1].end:
                jobs.append(job)
        if jobs and lives and jobs[0].start < lives[-1].end:
            shift, behind = lives[-1].end - jobs[0].start, True
        mine = attempts[attempt] = [row.shifted(shift) for row in mine]
        lasts = [Life(attempt, job.shifted(shift), attempt == numbers[-1]) for job in jobs]
        for row in sorted((row for row in mine if row.kind != "job"), key=lambda row: row.rank):
            if lasts:
                next((life for life in lasts if row.start < life.job_end), lasts[-1]).rows.append(row)
        for life in lasts:
            life.begin = life.job_start
            life.gap = (lives[-1].end, life.begin) if lives else (life.begin, life.begin)
            life.last = life.latest and life is lasts[-1]
            if life.job_end != OPEN:
                life.end = int(life.job_end)
            elif not life.last:
                life.end = max(t for row in mine for t in stamps(row))
            elif now is not None:
                life.end = now + shift
            else:
                # Other machines' clocks may be ahead.
                life.end = max(t for row in (mine if shift else rows) for t in stamps(row))
            life.end = max(life.begin, life.end)
            lives.append(life)
    return lives, attempts, behind


# --- the device (R3.2) ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stay:
    """A segment's time on the device."""

    row: Row
    begin: float
    end: float
    turn: int


def stays(rows: list[Row]) -> list[Stay]:
    """What an attempt's phases dispatched, one after the other as the device works it off."""
    segments = sorted(
        (dispatched(rows, row, which), which, row.order, row, row.segments[which][1])
        for row in rows
        for which in range(len(row.segments))
    )
    free = -OPEN
    placed = []
    for turn, (moment, _, _, row, end) in enumerate(segments):
        if moment[0] != OPEN:
            begin = max(free, moment[0])
            free = max(free, end)
            placed.append(Stay(row, begin, free, turn))
    return placed


def dispatch_moment(row: Row, which: int) -> Moment:
    """When the phase begins to dispatch the segment."""
    start = row.segments[which][0]
    return (*row.begins, which) if start == row.start else (start, 0, row.order, which)


def dispatched(rows: list[Row], row: Row, which: int) -> Moment:
    """When the segment can have been dispatched: not before the last compilation inside it, which may go on."""
    moment = dispatch_moment(row, which)
    compilations = [c for c in rows if c.kind == "compile" and c.blocking is not False]
    if not compilations:
        return moment
    end = row.segments[which][1]
    later = [dispatch_moment(row, other) for other in range(len(row.segments)) if dispatch_moment(row, other) > moment]
    inside = [c for c in compilations if moment < c.begins < min([row.ends, *later]) and innermost(rows, c) is row]
    if end == OPEN and row.end == OPEN and any(c.end == OPEN for c in inside):
        return (OPEN,)
    ended = [c for c in inside if c.ends < row.ends and c.end <= end and c.end != OPEN]
    if not ended:
        return moment
    last = max(ended, key=lambda c: c.ends)
    return (*last.ends, *moment)


def innermost(rows: list[Row], compilation: Row) -> Row | None:
    """The phase that compiles."""
    around = [
        row
        for row in rows
        if row.kind in MARKABLE and row.blocking is not False and row.begins < compilation.begins < row.ends
    ]
    return max(around, key=lambda row: row.begins, default=None)


# --- progress (R4, R6) ----------------------------------------------------------------------------------------------


def find_executions(life: Life, device: list[Stay]) -> list[Execution]:
    """The life's executions in order of their starts, with the moment at which each is over."""
    last = {id(stay.row): stay for stay in device}
    beyond: dict[int, float] = defaultdict(int)
    for stay in device:
        if stay.end != OPEN and life.job_end != OPEN:
            beyond[id(stay.row)] += max(0, stay.end - max(stay.begin, life.job_end))
    executions = []
    for row in life.rows:
        if row.kind == "step" and row.blocking is not False:
            over = row.ends
            stay = last.get(id(row))
            if stay is not None and stay.end > row.end:
                over = (stay.end, -1, stay.turn)
            own = [each for each in device if each.row is row]
            executions.append(Execution(row, life, over, beyond[id(row)], own))
    return executions


@dataclass
class Resume:
    """A restore that no step has followed."""

    at: int  # last step of its checkpoint, -1: not known
    label: int | None
    own: bool
    usual: int
    room: int  # how many batches may be skipped
    skipped: int = 0


@dataclass
class Progress:
    """What the steps of the run came to."""

    executions: list[Execution] = field(default_factory=list)  # in order of their starts
    kept: list[Execution] = field(default_factory=list)  # by increasing number
    safe: int = -1  # the kept steps up to this number are in a durable checkpoint
    disruptions: list[Disruption] = field(default_factory=list)
    segments: int = 0
    completed: int = 0
    last_step: int | None = None
    loops: dict[tuple[int, str], Loop] = field(default_factory=dict)  # by attempt and name
    profile: dict[tuple[int, str], int] = field(default_factory=dict)  # while a profiler runs: what steps take without
    labels: dict[int, int] = field(default_factory=dict)  # of checkpoints, with the last step of each
    reached: int = -1  # the highest step that had begun when the run went back
    resume: Resume | None = None
    offset: int = 0  # from the numbers that loops give to those of the account
    undecided: list[Execution] = field(default_factory=list)
    skipped: int = 0


@dataclass
class Loop:
    """The steps of a loop in one attempt (R10)."""

    times: list[int] = field(default_factory=list)
    row: list[tuple[Execution, int]] = field(default_factory=list)  # the latest steps are long
    longs: list[tuple[Execution, int]] = field(default_factory=list)
    recurring: tuple[int, int] | None = None  # a step, and the distance
    long_times: list[int] = field(default_factory=list)

    def expects(self, number: int) -> bool:
        return self.recurring is not None and (number - self.recurring[0]) % self.recurring[1] == 0

    def limit(self, execution: Execution, fixed: int) -> float:
        if len(self.times) < EIGHTH - 1:
            return OPEN
        return fixed or bound(self.long_times if self.expects(execution.number) else self.times)

    def complete(self, execution: Execution, fixed: int) -> None:
        took = length(execution.counted)
        if self.expects(execution.number) and took > bound(self.times):
            self.long_times.append(took)
        self.times.append(took)
        if not execution.stalled or fixed:
            self.row = []
            return
        self.row.append((execution, took))
        self.longs = [*self.longs, (execution, took)][-3:]
        numbers = [e.number for e, _ in self.longs]
        if len(self.row) == EIGHTH:
            usual, self.times = self.row, [t for _, t in self.row]
            self.row, self.longs, self.recurring, self.long_times = [], [], None, []
        elif len(numbers) == 3 and numbers[2] - numbers[1] == numbers[1] - numbers[0] > 1:
            usual, self.long_times = self.longs, [t for _, t in self.longs]
            self.recurring, self.longs = (numbers[2], numbers[2] - numbers[1]), []
        else:
            return
        for one, _ in usual:
            one.usual = not one.lost  # what stalled of a lost step stays so


def bound(times: list[int]) -> int:
    usual = middle(times[-SAMPLE:])
    return max(FACTOR * usual, usual + SLACK)


def follow_progress(
    lives: list[Life], executions: dict[Life, list[Execution]], attempts: dict[int, list[Row]]
) -> Progress:
    """Plays the starts and ends of steps and saves in order and tells which executions are kept."""
    progress = Progress()
    for life, before in zip(lives, [None, *lives], strict=False):
        disruption = None
        if before is not None:
            clean = before.job_end != OPEN and before.job.completed
            kept_before = [e.number for e in progress.kept if e.life.attempt != life.attempt or e.done <= life.begin]
            highest = max(kept_before, default=None)
            reason = "restart" if clean else "crash"
            disruption = Disruption(reason, life, progress.last_step, None, life.begin, highest)
            progress.disruptions.append(disruption)
            for execution in progress.executions:
                if execution.life is before and execution.outcome == "died":
                    execution.cause = disruption
        if before is None or before.attempt != life.attempt:
            progress.resume, progress.offset, progress.undecided = None, 0, []
            progress.profile = {}
        same = [e for e in progress.executions if e.life.attempt == life.attempt and e.row.end != OPEN]
        former = [e for e in same if e.outcome in ("died", None)]
        next_begin = min(
            (one.begin for one in lives if one.attempt == life.attempt and one.begin > life.begin), default=OPEN
        )
        play(life, executions[life], former, disruption, progress, next_begin, attempts[life.attempt])
        progress.executions += executions[life]
    for execution in progress.executions:
        if execution.outcome == "died":
            execution.outcome = "failed"
    return progress


def play(
    life: Life,
    executions: list[Execution],
    former: list[Execution],
    disruption: Disruption | None,
    progress: Progress,
    next_begin: float,
    rows: list[Row],
) -> None:
    """The events of one life: at the same instant ends come before starts, except those of no length.

    `former`: what former jobs of the attempt have left on the device; `next_begin`: when its next job starts.
    """
    hosts: list[Execution] = []  # open, the latest last
    kept = progress.kept
    held: dict[int, int] = {}  # by save, the highest step kept when it started and ever since
    started: list[Execution] = []
    running: set[Execution] = set(former)
    spared: set[Execution] = set()
    evaluated: set[int] = set()  # restores
    before: dict[Execution, int | None] = {}  # the last step before each
    behind = [] if disruption is None else [disruption]  # since which this job may regain what was kept

    def start_step(execution: Execution) -> None:
        hosts.append(execution)
        resume = progress.resume
        exact = False
        if resume is not None and not progress.undecided and not resume.skipped and execution.row.numbered:
            before = (execution.row.step or 0) - 1
            exact = before >= 0 and before == (resume.label if resume.at < 0 else resume.at)
            if before >= 0 and resume.at < 0 and resume.label is None:
                resume.usual = resume.usual * 2 // 10  # of less than a tenth, not of half
        if resume is not None and resume.usual and resume.room and not exact:
            resume.room -= 1
            execution.doubted = resume.usual
            progress.undecided.append(execution)
            return
        if resume is not None and progress.undecided:  # more bodies than there are batches to skip
            decide()
        resume = progress.resume
        place(execution)
        begin_step(execution, resume)

    def place(execution: Execution) -> None:
        """Which step the execution is after a restore."""
        resume, progress.resume = progress.resume, None
        assert execution.row.step is not None
        if resume is not None:
            given, following = execution.row.step, resume.at + 1
            shifted = given + progress.offset
            top = max([-1, *(e.number for e in kept)])
            if resume.at < 0:
                number = given
            elif resume.skipped or following in (given, shifted):
                number = following
            elif shifted == resume.label and resume.at in (shifted, shifted - 2):
                number = shifted  # saved at the top of the body, or behind the work of the step before
            elif following < shifted <= top + 1:
                number = shifted
            else:
                number = following
            progress.offset = number - given
        elif execution.number + progress.offset < 0:
            progress.offset = 0
        execution.shift = progress.offset

    def waits_for_the_next(execution: Execution) -> bool:
        """Whether the next body tells what this long one was: a batch that is skipped may take long, too."""
        resume = progress.resume
        walks = resume is not None and resume.room and not any(e.held for e in progress.undecided)
        whole = execution.row.completed and not execution.row.left and clock_known_at_the_end(execution)
        return bool(walks) and whole and execution.did_a_steps_work(execution.doubted)

    def skipped(execution: Execution) -> bool:
        if not any(e.held for e in progress.undecided):
            return not execution.did_a_steps_work(execution.doubted)
        return execution.row.completed and not execution.row.left and 10 * execution.work() < execution.doubted

    def decide() -> None:
        """A body works: it is a step, and so are all of which it is not known yet."""
        resume, undecided = progress.resume, progress.undecided
        progress.undecided = []
        place(undecided[0])
        for one in undecided:
            assert one.row.step is not None
            if one.row.step + progress.offset < 0:
                progress.offset = 0
            one.doubted, one.shift = 0, progress.offset
            begin_step(one, resume)
            resume = None
        for one in undecided:
            if one.held:
                one.held = False
                running.discard(one)
                complete(one, one.over[0])

    def end_host(execution: Execution) -> None:
        hosts.remove(execution)

    def start_phase(row: Row) -> None:
        if (hosts and hosts[-1].doubted) or any(e.held for e in progress.undecided):
            decide()

        if row.kind == "checkpoint_restore" and started:
            customs = [one for one in rows if one.kind == "custom" and one.blocking is not False and not one.overlaps]
            if any(one.begins < row.begins < one.ends for one in customs):
                evaluated.add(row.order)  # what an evaluation restores does not move training

    def skip(execution: Execution) -> None:
        execution.outcome = "skipped"
        progress.undecided.remove(execution)
        progress.skipped += 1
        if progress.resume is not None:
            progress.resume.skipped += 1

    def reached() -> int:
        """The highest step that has begun."""
        last = -1 if progress.last_step is None else progress.last_step
        return max([progress.reached, last, *(e.number for e in kept)])

    def end_restore(row: Row) -> None:
        if not row.completed or row.left or row.order in evaluated:
            return
        own = row.step in progress.labels
        if not own and progress.resume is not None and progress.resume.own:
            return
        at = -1
        if row.step is not None and own:
            at = progress.labels[row.step]
        elif row.step is not None and kept and row.step <= reached():
            at = row.step
        if at < 0 and (progress.resume is not None or started):
            return
        nets = [e.net for e in kept][-SAMPLE:]
        room = sum(e.number <= at or at < 0 for e in kept)
        progress.resume = Resume(at, row.step, own, middle(nets) if nets else 0, room)

    def begin_step(execution: Execution, resume: Resume | None) -> None:
        number = execution.number
        popped = [e for e in kept if e.number >= number]
        if popped:
            progress.reached = reached()
        superseded = [e for e in running if e.number >= number]
        cause = None
        if not started:
            cause = disruption
            if disruption is not None:
                disruption.to_step = number
        elif popped:
            cause = Disruption("rollback", None, progress.last_step, number, execution.row.start, kept[-1].number)
            progress.disruptions.append(cause)
            behind.append(cause)
        if not started or popped or resume is not None:
            progress.segments += 1
        execution.segment = progress.segments
        for lost in popped:
            lost.lost, lost.cause = True, cause
        for lost in superseded:
            lost.lost = True
        spared.difference_update([e for e in spared if e.number >= number])
        del kept[len(kept) - len(popped) :]
        progress.safe = min(progress.safe, number - 1)
        for save in held:
            held[save] = min(held[save], number - 1)
        started.append(execution)
        running.add(execution)
        before[execution] = progress.last_step
        progress.last_step = number

    def loop_of(execution: Execution) -> Loop:
        return progress.loops.setdefault((life.attempt, execution.row.loop), Loop())

    def fixed(execution: Execution) -> int:
        """The limit that was set before it began, if one was."""
        limits = [row for row in rows if row.kind == "stall_limit" and row.begins < execution.row.begins]
        return max(limits, key=lambda row: row.begins).limit if limits else 0

    def clock_known(execution: Execution, moment: float) -> bool:
        words = [row for row in rows if row.kind == "clock" and row.start <= moment]
        latest = max(words, key=lambda row: row.begins).state if words else "host"
        parts = range(len(execution.row.segments))
        return latest != "unknown" or any(dispatched(rows, execution.row, part)[0] <= moment for part in parts)

    def judge(execution: Execution, moment: float) -> None:
        """It has owned as much as the least limit."""
        others = [e for e in (*progress.executions, *executions) if e.segment == execution.segment]
        compilations = [row for row in rows if row.kind == "compile" and row.start <= moment]
        compiled = bool(compilations) and not compiles(execution, compilations)
        if not clock_known(execution, moment) or not (compiled or any(e.completed for e in others)):
            return
        execution.limit = loop_of(execution).limit(execution, fixed(execution))

    def is_saved(execution: Execution) -> bool:
        return execution.number <= progress.safe and not execution.lost

    def did_its_work(execution: Execution) -> bool:
        if execution.row.idle:
            return False
        usual = [e.net for e in kept][-SAMPLE:]
        return not usual or execution.did_a_steps_work(middle(usual))

    def end_step(execution: Execution) -> None:
        if execution.doubted:
            if waits_for_the_next(execution):
                execution.held = True
                return
            if skipped(execution):
                for one in [*(e for e in progress.undecided if e.held), execution]:
                    skip(one)
                return
            decide()
        running.discard(execution)
        left = execution.row.left
        whole = execution.row.completed and not left
        if whole or is_saved(execution) or (left and did_its_work(execution)):
            complete(execution, execution.over[0])
            return
        execution.outcome = "idle" if left else "failed"
        execution.idle = left
        if left and started[-1] is execution:
            progress.last_step = before[execution]
        if not execution.lost and any(covered >= execution.number for covered in held.values()):
            spared.add(execution)

    def complete(execution: Execution, at: float) -> None:
        execution.outcome = "completed"
        progress.completed += 1
        execution.finished = progress.completed
        execution.done = at
        if not execution.lost:
            kept.append(execution)
            kept.sort(key=lambda e: e.number)
        if clock_known_at_the_end(execution):
            loop_of(execution).complete(execution, fixed(execution))
        if execution.life is life and life.begin <= at <= next_begin:
            reach(execution, min(at, life.end))

    def clock_known_at_the_end(execution: Execution) -> bool:
        words = [row for row in rows if row.kind == "clock" and row.begins < execution.over]
        latest = max(words, key=lambda row: row.begins).state if words else "host"
        return execution.over[0] == OPEN or bool(execution.row.segments) or latest != "unknown"

    def reach(execution: Execution, at: float) -> None:
        """What the job has reached with this execution."""
        if life.first_step is None:
            life.first_step = at - life.begin
            life.first_execution = execution
        for one in behind:
            behind_it = one.regained is None and one.kept_step is not None and one.kept_step <= execution.number
            if behind_it and not execution.lost:
                one.regained = max(0, at - one.time)

    def holds(row: Row, execution: Execution) -> bool:
        """Whether the checkpoint has what the step in progress did."""
        step = execution.row
        if step.ends < row.begins:  # only the device has still to finish it
            return step.completed and not step.left
        if execution.number == row.step:
            return True
        if row.blocking is False or row.overlaps:
            return False
        if any(dispatched(rows, step, which) < row.begins for which in range(len(step.segments))):
            return True
        usual = [e.net for e in kept][-SAMPLE:]
        return execution.time(row.start) > 0 and (not usual or execution.did_a_steps_work(middle(usual), row.start))

    def start_save(row: Row) -> None:
        covered = max([-1, *(e.number for e in kept), *(e.number for e in running if holds(row, e))])
        held[row.order] = covered
        if row.step is not None and covered >= 0:
            progress.labels[row.step] = covered

    def end_save(row: Row) -> None:
        covered = held.pop(row.order)
        if row.completed:
            progress.safe = max(progress.safe, covered)
            for execution in sorted((e for e in spared if e.number <= covered), key=lambda e: started.index(e)):
                spared.discard(execution)
                complete(execution, row.end)

    happenings: list[tuple[Moment, Callable[[], None]]] = []

    def happen(begins: Moment, ends: Moment, starts: Callable[[], None], stops: Callable[[], None]) -> None:
        happenings.append((begins, starts))
        if ends[0] != OPEN:
            happenings.append((ends, stops))

    for e in executions:
        happen(e.row.begins, e.over, lambda e=e: start_step(e), lambda e=e: end_step(e))  # type: ignore[misc]
        happenings.append((e.row.ends, lambda e=e: end_host(e)))  # type: ignore[misc]
    for row in life.rows:
        if row.kind in WORK and row.blocking is not False and not row.overlaps:
            happenings.append((row.begins, lambda row=row: start_phase(row)))  # type: ignore[misc]
        if row.kind == "checkpoint_restore" and row.blocking is not False and not row.overlaps and row.end != OPEN:
            happenings.append((row.ends, lambda row=row: end_restore(row)))  # type: ignore[misc]
        if row.kind == "checkpoint_save":
            happen(row.begins, row.ends, lambda row=row: start_save(row), lambda row=row: end_save(row))  # type: ignore[misc]

    def profile(row: Row) -> None:
        """A profiler begins, or is over (R12)."""
        on = row.state != "over"
        latest = {key: loop.times[-PROFILED:] for key, loop in progress.loops.items() if key[0] == life.attempt and on}
        progress.profile = {key: max(times) for key, times in latest.items() if len(times) >= EIGHTH - 1}
        for e in (*former, *executions):
            e.profiles = [(begin, min(end, row.start), usual) for begin, end, usual in e.profiles if begin < row.start]
        note_profile(row.start)

    def note_profile(begin: int) -> None:
        for e in (*former, *executions):
            if (key := (life.attempt, e.row.loop)) in progress.profile:
                e.profiles.append((begin, OPEN, progress.profile[key]))

    note_profile(life.begin)
    profiles = [row for row in rows if row.kind == "profiling" and life.begin <= row.start < next_begin]
    happenings += [(row.begins, lambda row=row: profile(row)) for row in profiles]  # type: ignore[misc]
    for e in (*former, *executions):
        moment = e.reached(fixed(e) or SLACK)
        if life.begin <= moment < life.end:
            happenings.append(((moment, 9), lambda e=e, moment=moment: judge(e, moment)))  # type: ignore[misc]
    for _, action in sorted(happenings, key=lambda h: h[0]):
        action()

    for execution in list(progress.undecided):
        if execution in progress.undecided and execution.did_a_steps_work(execution.doubted):
            decide()
    if not life.open:
        for execution in list(progress.undecided):
            if not life.latest or execution.row.end == OPEN:
                skip(execution)
    for execution in (*former, *started):
        # What is open in an ended job does not end any more; what only the device has, with its process.
        if execution in running and not life.open and (not life.latest or execution.row.end == OPEN):
            if is_saved(execution):
                complete(execution, life.end)
            else:
                execution.outcome = "died"


def unknown_spans(lives: list[Life], attempts: dict[int, list[Row]], progress: Progress) -> tuple[list[Span], str]:
    """When nobody knows what the steps' ends are worth, and by which clock the latest step ended."""
    spans: list[Span] = []
    state = None
    for life in lives:
        words = [row for row in attempts[life.attempt] if row.kind == "clock"]
        mine = [
            e
            for e in progress.executions
            if e.life is life and e.over[0] != OPEN and not e.idle and e.outcome != "skipped"
        ]
        since: int | None = None
        for execution in sorted(mine, key=lambda e: e.over):
            fallback = max((row for row in words if row.begins < execution.over), key=lambda r: r.begins, default=None)
            state = "device" if execution.row.segments else fallback.state if fallback else "host"
            unknown = state == "unknown" and execution.over[0] < life.end
            if since is not None and not unknown:
                spans.append((since, min(execution.over[0], life.end)))
            since = (execution.over[0] if since is None else since) if unknown else None
        if since is not None:
            spans.append((since, life.end))
    if state is None:
        latest = max(attempts, default=0)
        words = [row for row in attempts.get(latest, ()) if row.kind == "clock"]
        state = max(words, key=lambda row: row.begins).state if words else "host"
    return [(a, b) for a, b in spans if a < b], str(state)


# --- owners (R3) ----------------------------------------------------------------------------------------------------


def blocks(row: Row, attempt_rows: list[Row]) -> bool:
    """Whether the phase holds up training; a data load inside a step does not unless it says so."""
    if row.blocking is None and row.kind == "data_loading" and not row.overlaps:
        steps = [s for s in attempt_rows if s.kind == "step"]
        return not any(s.start <= row.start and row.end <= s.end for s in steps)
    return row.blocking is not False


def open_over(borders: list[int], intervals: list[tuple[float, float, T]]) -> list[list[T]]:
    """For each piece between two borders, whose interval covers it."""
    covering: list[list[T]] = [[] for _ in borders[1:]]
    for start, end, item in intervals:
        for piece in range(bisect_left(borders, start), bisect_right(borders, end) - 1):
            covering[piece].append(item)
    return covering


def paint(
    life: Life, executions: list[Execution], former: list[Execution], attempt_rows: list[Row], device: list[Stay]
) -> list[Piece]:
    """Cuts the life at every boundary and gives each piece to its owner; `former`: of former jobs of the attempt."""
    phases = [row for row in attempt_rows if row.kind not in ("job", "step", "part") and blocks(row, attempt_rows)]
    by_row = {id(execution.row): execution for execution in (*former, *executions)}
    device = [stay for stay in device if stay.row.kind != "step" or id(stay.row) in by_row]
    cuts = {life.begin, life.end}
    for row in attempt_rows:
        cuts.update(t for t in (row.start, row.end) if life.begin < t < life.end)  # type: ignore[misc]
    for stay in device:
        cuts.update(t for t in (stay.begin, stay.end) if life.begin < t < life.end)  # type: ignore[misc]
    borders = sorted(int(t) for t in cuts)
    phases_over = open_over(borders, [(p.start, p.end, p) for p in phases])
    steps_over = open_over(borders, [(e.row.start, e.row.end, e) for e in executions])
    devices_over = open_over(borders, [(stay.begin, stay.end, stay.row) for stay in device])
    pieces = []
    for (a, b), open_phases, steps, on_device in zip(
        pairwise(borders), phases_over, steps_over, devices_over, strict=True
    ):
        reinits = [p for p in open_phases if p.kind == "elastic_reinit"]
        waits = [p for p in open_phases if p.kind == "elastic_wait"]
        hosts = [p for p in open_phases if p.kind in HOST_CATEGORIES and not p.overlaps]
        others = [p for p in open_phases if p.kind in HOST_CATEGORIES and p.overlaps]
        if any(p.kind == "suspended" for p in open_phases):
            pieces.append(Piece(a, b, "other"))
        elif reinits:
            pieces.append(Piece(a, b, "elastic_reinitialization"))
        elif waits:
            up = max(waits, key=lambda p: p.rank).name == "scale_up"
            pieces.append(Piece(a, b, "elastic_scale_up" if up else "elastic_slice_down"))
        elif on_device:
            (owner,) = on_device
            if owner.kind == "step":
                by_row[id(owner)].own.append((a, b))
            else:
                pieces.append(piece_of(owner, a, b))
        elif hosts:
            pieces.append(piece_of(max(hosts, key=lambda p: p.rank), a, b))
        elif steps:
            max(steps, key=lambda e: e.row.rank).own.append((a, b))
        elif others:
            pieces.append(piece_of(max(others, key=lambda p: p.rank), a, b))
        else:
            pieces.append(Piece(a, b, "other"))
    return pieces


def piece_of(phase: Row, a: int, b: int) -> Piece:
    name = (phase.name or "custom") if phase.kind == "custom" else None
    return Piece(a, b, HOST_CATEGORIES[phase.kind], name)


# --- start-up (R5) --------------------------------------------------------------------------------------------------


def middle(values: list[int]) -> int:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


def compiles(execution: Execution, compilations: list[Row]) -> bool:
    """Whether one of these compilations of its attempt has begun inside the execution: it was the latest open step."""
    steps = [row for row in execution.life.rows if row.kind == "step" and row.blocking is not False]
    for compilation in compilations:
        if compilation.blocking is False or compilation.overlaps:
            continue
        opened = [row for row in steps if row.begins < compilation.begins < row.ends]
        if opened and max(opened, key=lambda row: row.begins) is execution.row:
            return True
    return False


def estimate_startup(progress: Progress, compilations: list[Row]) -> None:
    """Takes the first completed step of each segment apart: beyond the usual time where no compilation was seen in its
    attempt, beyond ten times that where one was seen inside it.
    """
    for segment in range(1, progress.segments + 1):
        done = sorted(
            (e for e in progress.executions if e.segment == segment and e.completed),
            key=lambda e: e.finished,
        )
        if not done:
            continue
        first, others = done[0], done[1:]
        seen = [row for row in compilations if row.attempt == first.life.attempt]
        if seen and (first.overran or not compiles(first, seen)):
            continue
        samples = [e for e in others if not e.lost], [e for e in others if e.lost], progress.kept
        for sample in samples:
            # What lies wholly behind the job's end has no time.
            known = [e.net for e in sample if e is not first][:SAMPLE]
            known = [net for net in known if net]
            if known:
                first.startup = max(0, first.net - middle(known) * (10 if seen else 1))
                break


def settle(execution: Execution) -> list[Piece]:
    """The pieces of one execution: start-up in front, then its fate."""
    pieces = [Piece(a, b, "stalled", None, execution) for a, b in execution.stalled]
    pieces += [Piece(a, b, "custom", "profiling") for a, b in execution.profiled]
    startup = execution.startup
    for a, b in execution.worked:
        split = min(b, a + startup)
        startup -= split - a
        if split > a:
            pieces.append(Piece(a, split, "program_startup", None, execution))
        if b > split:
            pieces.append(Piece(split, b, execution.fate, None, execution))
    return pieces


# --- cuts and figures (R7, R8) --------------------------------------------------------------------------------------


def subtract(spans: list[Span], holes: list[Span]) -> list[Span]:
    for low, high in holes:
        spans = (
            [part for a, b in spans for part in ((a, min(b, low)), (max(a, high), b)) if part[0] < part[1]]
            if low < high
            else spans
        )
    return spans


def length(spans: list[Span]) -> int:
    return sum(b - a for a, b in spans)


def clip(a: int, b: int, spans: list[Span]) -> list[Span]:
    return [(max(a, c), min(b, d)) for c, d in spans if max(a, c) < min(b, d)]


def total_seconds(pieces: list[Piece], spans: list[Span]) -> dict[str, Any]:
    """Seconds by category within `spans`; the custom phases by name."""
    plain: Counter[str] = Counter()
    custom: Counter[str] = Counter()
    for piece in pieces:
        ns = length(clip(piece.start, piece.end, spans))
        if ns and piece.name is not None:
            custom[piece.name] += ns
        elif ns:
            plain[piece.category] += ns
    seconds: dict[str, Any] = {category: ns / 1e9 for category, ns in plain.items()}
    if custom:
        seconds["custom"] = {name: ns / 1e9 for name, ns in custom.items()}
    return seconds


def slice_efficiency(lives: list[Life], spans: list[Span]) -> dict[str, float] | None:
    """Time-weighted shares from the first record on; each record holds until the next."""
    records: list[tuple[int, Row]] = []
    for life in lives:
        for row in life.rows:
            if row.kind == "slice_counts":
                # Not before what the lives before have had, whatever the clock says.
                records.append((max(row.start, life.gap[0], records[-1][0] if records else row.start), row))
    stepping = available = weight = 0.0
    for (t, row), until in zip(records, [*(t for t, _ in records[1:]), OPEN], strict=False):
        ns = length(clip(t, until, spans))  # type: ignore[arg-type]
        weight += ns
        if row.total > 0:
            stepping += ns * row.active / row.total
            available += ns * row.available / row.total
    return {"stepping": stepping / weight, "available": available / weight} if weight else None


def percentile90(values: list[int]) -> float:
    ordered = sorted(values)
    place = 0.9 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ideal_step(nets: list[int]) -> float | None:
    recent = nets[-SAMPLE:]
    if not recent:
        return None
    median = statistics.median(recent)
    spread = statistics.median(abs(n - median) for n in recent)
    return statistics.fmean(n for n in recent if n <= median + 3 * 1.4826 * spread) / 1e9


def deviation(nets: list[int]) -> float | None:
    if not nets:
        return None
    recent, past = nets[-100:], nets[-1100:-100]
    return (percentile90(recent) - statistics.median(past or recent)) / 1e9


def step_time(nets: list[int]) -> dict[str, float]:
    recent = nets[-SAMPLE:]
    return {
        "count": len(recent),
        "mean_s": statistics.fmean(recent) / 1e9,
        "min_s": min(recent) / 1e9,
        "median_s": statistics.median(recent) / 1e9,
        "p90_s": percentile90(recent) / 1e9,
        "max_s": max(recent) / 1e9,
    }


def crossing(rows: Iterable[dict[str, Any]]) -> bool:
    """Whether a step is over before one that started earlier: no loop does that, and what a save then holds is moot."""
    lives, attempts, _ = split_lives(leader_rows(rows), None)
    for life in lives:
        moments = [execution.over for execution in find_executions(life, stays(attempts[life.attempt]))]
        if any(after < before for before, after in pairwise(moments)):
            return True
    return False


# --- the answer -----------------------------------------------------------------------------------------------------


def account(
    rows: Iterable[dict[str, Any]],
    at: float | None = None,
    windows: Sequence[tuple[float, float]] = (),
    exclusions: Sequence[tuple[float, float]] = (),
    ideal_step_time: float | None = None,
) -> dict[str, Any]:
    """The answer of `timelines.replay` to the same question."""
    if any(b < a for a, b in (*windows, *exclusions)):
        raise ValueError("a window ends before it starts")
    everything = leader_rows(rows)
    now = None if at is None else round(at * 1e9)
    known = everything if now is None else known_at(everything, now)
    lives, attempts, behind = split_lives(known, now)
    pieces: list[Piece] = []
    overlapped = 0
    of_life: dict[Life, list[Execution]] = {}
    devices: dict[int, list[Stay]] = {}
    for life in lives:
        if life.gap[0] < life.gap[1]:
            pieces.append(Piece(*life.gap, "infrastructure_recovery"))
        same_attempt = attempts[life.attempt]
        device = devices.setdefault(life.attempt, stays(same_attempt))
        former = [e for other in of_life for e in of_life[other] if other.attempt == life.attempt]
        of_life[life] = find_executions(life, device)
        pieces += paint(life, of_life[life], former, same_attempt, device)
        for row in same_attempt:
            if row.kind == "data_loading" and not blocks(row, same_attempt):
                overlapped += max(0, int(min(row.end, life.end)) - max(row.start, life.begin))
    span = [(lives[0].begin, lives[-1].end)] if lives else []
    holes = [(round(a * 1e9), round(b * 1e9)) for a, b in exclusions]
    holes += [(row.start, int(min(row.end, span[0][1]))) for row in everything if row.kind == "exclusion" and span]
    asleep = [
        (max(row.start, life.begin), min(int(row.end), life.end))
        for life in lives
        for row in attempts[life.attempt]
        if row.kind == "suspended" and row.end != OPEN
    ]
    slept = length(span) - length(subtract(span, asleep))
    holes += asleep
    for executions in of_life.values():
        for execution in executions:
            execution.visible = subtract(sorted(execution.own), holes)
    progress = follow_progress(lives, of_life, attempts)
    compilations = [row for rows in attempts.values() for row in rows if row.kind == "compile"]
    estimate_startup(progress, compilations)
    for execution in progress.executions:
        pieces += settle(execution)
    unknown, clock = unknown_spans(lives, attempts, progress)

    counted = subtract(span, holes)

    def is_known(spans: list[Span]) -> bool:
        return 100 * sum(length(clip(a, b, spans)) for a, b in unknown) <= length(spans)

    def cut(spans: list[Span]) -> dict[str, Any]:
        elapsed = length(spans) / 1e9
        seconds = total_seconds(pieces, spans)
        return {
            "elapsed_s": elapsed,
            "seconds": seconds,
            "goodput": seconds.get("productive", 0.0) / elapsed if elapsed and is_known(spans) else None,
            "reason": None if is_known(spans) else "not known: dispatch only",
            "slice_efficiency": slice_efficiency(lives, spans),
        }

    def window(a: float, b: float) -> dict[str, Any]:
        spans = clip(round(a * 1e9), round(b * 1e9), counted)
        seen = [e.number for e in progress.kept if any(clip(c, d, spans) for c, d in e.worked)]
        return {"start": a, "end": b, "max_productive_step": max(seen, default=None), **cut(spans)}

    executions, kept = progress.executions, progress.kept
    nets = [e.net for e in kept[-SAMPLE - 100 :] if e.net]  # what lies wholly behind the job's end has no step time
    exposed = {e for e in kept if e.number > progress.safe}
    at_risk = [p for p in pieces if p.execution in exposed and p.category == "productive"]
    flying = [e for e in executions if e.outcome is None]
    seen_functions: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in compilations:
        if row.name is not None and row.end != OPEN:
            seen_functions[row.attempt][row.name] += 1

    def seconds_of(ns: float | None) -> float | None:
        return None if ns is None or not is_known(counted) else ns / 1e9

    def describe(disruption: Disruption) -> dict[str, Any]:
        life = disruption.life
        lost = [p for e in progress.executions if e.cause is disruption for p in settle(e)]
        wasted = [p for p in lost if p.category == "wasted_progress"]
        recovery = life.gap[1] - life.gap[0] if life else 0
        waste = sum(length(clip(p.start, p.end, counted)) for p in wasted)
        startup = restored = None
        if life and life.first_step is not None:
            until = int(life.begin + life.first_step)
            own = [p for p in pieces if p.execution is None or p.execution is life.first_execution]
            inside = [(p.category, length(clip(max(p.start, life.begin), min(p.end, until), counted))) for p in own]
            startup = sum(ns for category, ns in inside if category in STARTING)
            restored = sum(ns for category, ns in inside if category == "checkpoint_restore")
        return {
            "attempt": life.attempt if life else None,
            "reason": disruption.reason,
            "time": disruption.time / 1e9,
            "died_at": life.gap[0] / 1e9 if life else None,
            "error_type": None,
            "error_message": None,
            "ended_by": None,
            "process": None,
            "process_known": True,
            "recovery_s": recovery / 1e9,
            "wasted_s": waste / 1e9,
            "startup_s": seconds_of(startup),
            "restored_s": seconds_of(restored),
            "cost_s": (recovery + waste + (startup or 0) + (restored or 0)) / 1e9,
            "from_step": disruption.from_step,
            "to_step": disruption.to_step,
            "kept_step": disruption.kept_step,
            "first_step_s": seconds_of(life.first_step) if life else None,
            "regained_s": seconds_of(disruption.regained),
            "first_reason": disruption.reason,
            "said_by": None,
            "note": None,
        }

    answer = cut(counted)
    answer.update(
        excluded_s=(length(span) - length(counted) - slept) / 1e9,
        suspended_s=slept / 1e9,
        max_productive_step=kept[-1].number if kept else None,
        last_step=progress.last_step,
        disruptions=len(progress.disruptions),
        disruption_reasons=dict(Counter(d.reason for d in progress.disruptions)),
        disruption_list=[describe(d) for d in progress.disruptions[-100:]],
        steps={
            "executed": sum(e.completed for e in executions),
            "kept": len(kept),
            "lost": sum(e.fate == "wasted_progress" for e in executions),
        },
        pending_steps=sum(e.fate == "in_flight" for e in executions),
        started_steps=sum(e.outcome not in ("idle", "skipped") for e in executions),
        skipped_batches=progress.skipped,
        last_step_given=None if progress.last_step is None else progress.last_step - progress.offset,
        clock=clock,
        ideal_step_time_s=ideal_step(nets) if ideal_step_time is None else ideal_step_time,
        step_time_deviation_s=deviation(nets),
        at_risk_s=total_seconds(at_risk, counted).get("productive", 0.0),
        in_flight_step=flying[-1].number if flying else None,
        overlapped_data_loading_s=overlapped / 1e9,
        skewed_clocks=behind,
        recompilations=sum(n - 1 for names in seen_functions.values() for n in names.values()),
        attempts=len(lives),
        first_step_s=seconds_of(lives[-1].first_step) if lives else None,
        windows=[window(a, b) for a, b in windows],
    )
    if nets:
        answer["step_time"] = step_time(nets)
    if not is_known(counted):
        fate = {"step_time", "ideal_step_time_s", "step_time_deviation_s", "at_risk_s"}
        answer.update(dict.fromkeys(fate & answer.keys()))
    return answer
