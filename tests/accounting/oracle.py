"""A second account of the same rules, as slow and as plain as can be, to hold the ledger against.

`account` sees the whole timeline at once and walks it as often as it likes: it keeps what is known at the query,
splits it into lives, decides the fate of every step, cuts each life at every boundary and asks for each piece who
owns it. It shares nothing with the ledger but the rules.
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
KINDS = {*HOST_CATEGORIES, "job", "step", "elastic_wait", "elastic_reinit", "slice_counts", "heartbeat", "exclusion"}
SAMPLE = 1000

Span = tuple[int, int]
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
    device_end: float | None  # None: not observed
    active: int
    available: int
    total: int
    order: int

    @property
    def rank(self) -> tuple[int, float, float, int]:
        """Sorts by start; of what starts together, steps come first, one after the other as they end; of two other
        phases the one that ends later is the outer one and comes first.
        """
        if self.kind == "step":
            return (self.start, -1, self.end, self.order)
        return (self.start, 0, -self.end, self.order)


@dataclass(eq=False)
class Life:
    """One job from its start to its end: `begin` to `end` is the stretch of the partition it fills."""

    attempt: int
    job_start: int
    job_end: float
    rows: list[Row] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    gap: Span = (0, 0)
    last: bool = False

    @property
    def open(self) -> bool:
        """Whether the job still runs at the query."""
        return self.last and self.job_end == OPEN


@dataclass(eq=False)
class Execution:
    """One execution of a step, with the time that it owns."""

    row: Row
    life: Life
    device_begin: float
    device_end: float
    stretch: int = -1
    lost: bool = False
    cause: Disruption | None = None  # the disruption that lost it
    own: list[Span] = field(default_factory=list)
    startup: int = 0  # ns of program start-up, taken from the front of `own`

    @property
    def number(self) -> int:
        assert self.row.step is not None
        return self.row.step

    @property
    def completed_at(self) -> float:
        return max(self.row.end, self.device_end)

    @property
    def completion(self) -> tuple[Any, ...]:
        """Sorts by completion; at the same instant the device's come first, in turn, then the host's as they appear."""
        by_host = self.row.device_end is None or self.device_end <= self.row.end
        turn = (self.row.order,) if by_host else self.row.rank
        return (self.completed_at, self.completed_at == self.row.start, by_host, turn)

    @property
    def completed(self) -> bool:
        return self.completed_at != OPEN

    @property
    def net(self) -> int:
        return length(self.own)

    @property
    def fate(self) -> str:
        if not self.completed:
            return "in_flight" if self.life.open else "wasted_progress"
        return "wasted_progress" if self.lost else "productive"


@dataclass(eq=False)
class Disruption:
    """A restart (`life` set) or a rollback inside a process."""

    reason: str
    life: Life | None
    from_step: int | None
    to_step: int | None


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
    found: dict[tuple[Any, ...], Row] = {}
    for order, row in enumerate(rows):
        start, step = nanoseconds(row, "start"), row.get("step")
        if row.get("kind") not in KINDS or start is None or row.get("process", 0) != 0:
            continue
        if row["kind"] == "step" and (step is None or step < 0):
            continue
        end, device_end = (
            None if t is None else max(start, t) for t in (nanoseconds(row, "end"), nanoseconds(row, "device_end"))
        )
        if row["kind"] in ("slice_counts", "heartbeat"):
            end = start
        read = Row(
            kind=row["kind"], start=start, end=OPEN if end is None else end, step=step,
            name=row.get("name"), attempt=row.get("attempt", 1), blocking=row.get("blocking"), device_end=device_end,
            active=row.get("active", 0), available=row.get("available", 0), total=row.get("total", 0), order=order,
        )
        blocking = read.blocking if read.kind == "data_loading" else read.blocking is not False
        identity = (
            read.kind, start, end, step, read.name, read.attempt, device_end, blocking,
            read.active, read.available, read.total,
        )
        found.setdefault(identity, read)
    return list(found.values())


def stamps(row: Row) -> list[int]:
    """Every instant the row gives witness of."""
    return [int(t) for t in (row.start, row.end, row.device_end) if t is not None and t != OPEN]


def known_at(rows: list[Row], now: int) -> list[Row]:
    """The rows as they looked at `now`: what starts later is unknown, what ends later is open."""
    def hide(t: Any) -> Any:
        return OPEN if t is not None and t > now else t

    return [replace(row, end=hide(row.end), device_end=hide(row.device_end)) for row in rows if row.start <= now]


# --- lives (R1, R2) -------------------------------------------------------------------------------------------------

def split_lives(rows: list[Row], now: int) -> tuple[list[Life], bool]:
    """The lives of the run in order, placed on the timeline, and whether two of them overlap (skewed clocks)."""
    lives: list[Life] = []
    for attempt in sorted({row.attempt for row in rows}):
        mine: list[Life] = []
        for job in sorted((r for r in rows if r.attempt == attempt and r.kind == "job"), key=lambda r: r.rank):
            if not mine or job.start >= mine[-1].job_end:
                mine.append(Life(attempt, job.start, job.end))
        for row in sorted((r for r in rows if r.attempt == attempt and r.kind not in ("job", "exclusion")),
                          key=lambda r: r.rank):
            if mine:
                next((life for life in mine if row.start < life.job_end), mine[-1]).rows.append(row)
        lives += mine
    skewed = False
    for before, life in zip([None, *lives], lives, strict=False):
        life.last = life is lives[-1]
        life.begin = life.job_start
        life.gap = (life.begin, life.begin)
        if before is not None:
            life.begin = max(life.job_start, before.end)
            life.gap = (before.end, life.begin)
            skewed = skewed or life.job_start < before.end
        if life.job_end != OPEN:
            end = int(life.job_end)
        elif life.last:
            end = now
        else:
            end = max(t for row in rows if row.attempt == life.attempt and row.kind != "exclusion" for t in stamps(row))
        life.end = max(life.begin, end)
    return lives, skewed


# --- progress (R4, R6) ----------------------------------------------------------------------------------------------

def find_executions(life: Life, device_free: float) -> list[Execution]:
    """The life's executions in order of their starts, each with its stay on the device."""
    executions = []
    for row in life.rows:
        if row.kind == "step" and row.blocking is not False:
            begin: float = row.start
            end: float = row.start
            if row.device_end is not None:
                begin = max(device_free, row.start)
                end = device_free = max(device_free, row.device_end)
            executions.append(Execution(row, life, begin, end))
    return executions


@dataclass
class Progress:
    """What the steps of the run came to."""

    executions: list[Execution] = field(default_factory=list)  # in order of their starts
    kept: list[Execution] = field(default_factory=list)  # by increasing number
    safe: int = -1  # the kept steps up to this number are in a durable checkpoint
    disruptions: list[Disruption] = field(default_factory=list)
    stretches: int = 0


def follow_progress(lives: list[Life]) -> Progress:
    """Plays the starts and ends of steps and saves in order and tells which executions are kept."""
    progress = Progress()
    device_free = -OPEN
    for life, before in zip(lives, [None, *lives], strict=False):
        if before is None or before.attempt != life.attempt:
            device_free = -OPEN
        executions = find_executions(life, device_free)
        device_free = max([device_free, *(e.device_end for e in executions if e.row.device_end is not None)])
        disruption = None
        if before is not None:
            reached = progress.executions[-1].number if progress.executions else None
            reason = "crash" if before.job_end == OPEN else "restart"
            disruption = Disruption(reason, life, reached, None)
            progress.disruptions.append(disruption)
            for execution in progress.executions:
                if execution.life is before and not execution.completed:
                    execution.cause = disruption
        play(life, executions, disruption, progress)
        progress.executions += executions
    return progress


def play(life: Life, executions: list[Execution], disruption: Disruption | None, progress: Progress) -> None:
    """The events of one life: at the same instant ends come before starts, except those of no length."""
    kept = progress.kept
    held: dict[int, int] = {}  # by save, the highest step kept when it started and ever since
    started: list[Execution] = []
    running: set[Execution] = set()

    def start_step(execution: Execution) -> None:
        number = execution.number
        popped = [e for e in kept if e.number >= number]
        doomed = [e for e in running if e.number >= number]
        cause = None
        if not started:
            cause = disruption
            if disruption is not None:
                disruption.to_step = number
        elif popped:
            cause = Disruption("rollback", None, started[-1].number, number)
            progress.disruptions.append(cause)
        if not started or popped:
            progress.stretches += 1
        execution.stretch = progress.stretches
        for lost in popped:
            lost.lost, lost.cause = True, cause
        for lost in doomed:
            lost.lost = True
        del kept[len(kept) - len(popped):]
        progress.safe = min(progress.safe, number - 1)
        for save in held:
            held[save] = min(held[save], number - 1)
        started.append(execution)
        running.add(execution)

    def complete_step(execution: Execution) -> None:
        running.discard(execution)
        if not execution.lost:
            kept.append(execution)
            kept.sort(key=lambda e: e.number)

    def start_save(row: Row) -> None:
        # Of the step in progress the checkpoint of that step has the result.
        begun = [e.number for e in running if row.step is not None and e.number <= row.step]
        held[row.order] = max([-1, *(e.number for e in kept), *begun])

    def end_save(row: Row) -> None:
        reach = held[row.order] if row.step is None else min(held[row.order], row.step)
        progress.safe = max(progress.safe, reach)

    happenings: list[tuple[tuple[Any, ...], Callable[[], None]]] = []

    def happen(row: Row, end: float, starts: Callable[[], None], ends: Callable[[], None]) -> None:
        happenings.append(((row.start, 1, *row.rank), starts))
        if end != OPEN:
            happenings.append(((end, 0 if end > row.start else 2, row.order), ends))

    for e in executions:
        happen(e.row, e.completed_at, lambda e=e: start_step(e), lambda e=e: complete_step(e))  # type: ignore[misc]
    for row in life.rows:
        if row.kind == "checkpoint_save":
            happen(row, row.end, lambda row=row: start_save(row), lambda row=row: end_save(row))  # type: ignore[misc]
    for _, action in sorted(happenings, key=lambda h: h[0]):
        action()


# --- owners (R3) ----------------------------------------------------------------------------------------------------

def blocks(row: Row, attempt_rows: list[Row]) -> bool:
    """Whether the phase holds up training; a data load inside a step does not unless it says so."""
    if row.blocking is None and row.kind == "data_loading":
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


def paint(life: Life, executions: list[Execution], attempt_rows: list[Row]) -> list[Piece]:
    """Cuts the life at every boundary and gives each piece to its owner."""
    phases = [row for row in attempt_rows if row.kind not in ("job", "step") and blocks(row, attempt_rows)]
    cuts = {life.begin, life.end}
    for row in attempt_rows:
        cuts.update(t for t in (row.start, row.end) if life.begin < t < life.end)  # type: ignore[misc]
    for e in executions:
        cuts.update(t for t in (e.device_begin, e.device_end) if life.begin < t < life.end)  # type: ignore[misc]
    borders = sorted(int(t) for t in cuts)
    phases_over = open_over(borders, [(p.start, p.end, p) for p in phases])
    steps_over = open_over(borders, [(e.row.start, e.row.end, e) for e in executions])
    devices_over = open_over(borders, [(e.device_begin, e.device_end, e) for e in executions])
    pieces = []
    for (a, b), open_phases, steps, on_device in zip(
        pairwise(borders), phases_over, steps_over, devices_over, strict=True
    ):
        reinits = [p for p in open_phases if p.kind == "elastic_reinit"]
        waits = [p for p in open_phases if p.kind == "elastic_wait"]
        hosts = [p for p in open_phases if p.kind in HOST_CATEGORIES]
        if reinits:
            pieces.append(Piece(a, b, "elastic_reinitialization"))
        elif waits:
            up = max(waits, key=lambda p: p.rank).name == "scale_up"
            pieces.append(Piece(a, b, "elastic_scale_up" if up else "elastic_slice_down"))
        elif on_device:
            (execution,) = on_device
            execution.own.append((a, b))
        elif hosts:
            inner = max(hosts, key=lambda p: p.rank)
            name = (inner.name or "custom") if inner.kind == "custom" else None
            pieces.append(Piece(a, b, HOST_CATEGORIES[inner.kind], name))
        elif steps:
            max(steps, key=lambda e: e.row.rank).own.append((a, b))
        else:
            pieces.append(Piece(a, b, "other"))
    return pieces


# --- start-up (R5) --------------------------------------------------------------------------------------------------

def middle(values: list[int]) -> int:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


def estimate_startup(progress: Progress, compiled: set[int]) -> None:
    """Takes the first completed step of each stretch apart where no compilation was seen in its attempt."""
    for stretch in range(1, progress.stretches + 1):
        done = sorted(
            (e for e in progress.executions if e.stretch == stretch and e.completed),
            key=lambda e: e.completion,
        )
        if not done or done[0].life.attempt in compiled:
            continue
        first, others = done[0], done[1:]
        sample = (
            [e for e in others if not e.lost]
            or [e for e in others if e.lost]
            or [e for e in progress.kept if e is not first]
        )
        if sample:
            first.startup = max(0, first.net - middle([e.net for e in sample[:SAMPLE]]))


def settle(execution: Execution) -> list[Piece]:
    """The pieces of one execution: start-up in front, then its fate."""
    pieces, startup = [], execution.startup
    for a, b in sorted(execution.own):
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
        spans = [
            part for a, b in spans for part in ((a, min(b, low)), (max(a, high), b)) if part[0] < part[1]
        ] if low < high else spans
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
        "count": len(recent), "mean_s": statistics.fmean(recent) / 1e9, "min_s": min(recent) / 1e9,
        "median_s": statistics.median(recent) / 1e9, "p90_s": percentile90(recent) / 1e9, "max_s": max(recent) / 1e9,
    }


# --- the answer -----------------------------------------------------------------------------------------------------

def account(
    rows: Iterable[dict[str, Any]],
    at: float | None = None,
    windows: Sequence[tuple[float, float]] = (),
    exclusions: Sequence[tuple[float, float]] = (),
    ideal_step_time: float | None = None,
) -> dict[str, Any]:
    """The answer of `otel_goodput.replay.replay` to the same question."""
    if any(b < a for a, b in (*windows, *exclusions)):
        raise ValueError("a window ends before it starts")
    everything = leader_rows(rows)
    now = max((t for row in everything for t in stamps(row)), default=0) if at is None else round(at * 1e9)
    known = known_at(everything, now)
    lives, skewed = split_lives(known, now)
    progress = follow_progress(lives)
    pieces: list[Piece] = []
    overlapped = 0
    for life in lives:
        if life.gap[0] < life.gap[1]:
            pieces.append(Piece(*life.gap, "infrastructure_recovery"))
        same_attempt = [row for row in known if row.attempt == life.attempt]
        pieces += paint(life, [e for e in progress.executions if e.life is life], same_attempt)
        for row in same_attempt:
            if row.kind == "data_loading" and not blocks(row, same_attempt):
                overlapped += max(0, int(min(row.end, life.end)) - max(row.start, life.begin))
    compiles = [row for row in known if row.kind == "compile"]
    estimate_startup(progress, {row.attempt for row in compiles})
    for execution in progress.executions:
        pieces += settle(execution)

    span = [(lives[0].begin, lives[-1].end)] if lives else []
    holes = [(round(a * 1e9), round(b * 1e9)) for a, b in exclusions]
    holes += [(row.start, int(min(row.end, now))) for row in known if row.kind == "exclusion"]
    counted = subtract(span, holes)

    def cut(spans: list[Span]) -> dict[str, Any]:
        elapsed = length(spans) / 1e9
        seconds = total_seconds(pieces, spans)
        return {
            "elapsed_s": elapsed, "seconds": seconds,
            "goodput": seconds.get("productive", 0.0) / elapsed if elapsed else None,
            "reason": None,
            "slice_efficiency": slice_efficiency(lives, spans),
        }

    def window(a: float, b: float) -> dict[str, Any]:
        spans = clip(round(a * 1e9), round(b * 1e9), counted)
        seen = [e.number for e in progress.kept if any(clip(c, d, spans) for c, d in e.own)]
        return {"start": a, "end": b, "max_productive_step": max(seen, default=None), **cut(spans)}

    executions, kept = progress.executions, progress.kept
    nets = [e.net for e in kept]
    exposed = {e for e in kept if e.number > progress.safe}
    at_risk = [p for p in pieces if p.execution in exposed and p.category == "productive"]
    flying = [e for e in executions if not e.completed and e.life.open]
    seen_functions: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in compiles:
        if row.name is not None and row.end <= now:
            seen_functions[row.attempt][row.name] += 1

    def describe(disruption: Disruption) -> dict[str, Any]:
        life = disruption.life
        lost = [p for e in progress.executions if e.cause is disruption for p in settle(e)]
        wasted = [p for p in lost if p.category == "wasted_progress"]
        return {
            "attempt": life.attempt if life else None, "reason": disruption.reason,
            "recovery_s": (life.gap[1] - life.gap[0]) / 1e9 if life else 0.0,
            "wasted_s": sum(length(clip(p.start, p.end, counted)) for p in wasted) / 1e9,
            "from_step": disruption.from_step, "to_step": disruption.to_step,
        }

    answer = cut(counted)
    answer.update(
        excluded_s=(length(span) - length(counted)) / 1e9,
        max_productive_step=kept[-1].number if kept else None,
        last_step=executions[-1].number if executions else None,
        disruptions=len(progress.disruptions),
        disruption_reasons=dict(Counter(d.reason for d in progress.disruptions)),
        disruption_list=[describe(d) for d in progress.disruptions[-100:]],
        steps={
            "executed": sum(e.completed for e in executions), "kept": len(kept),
            "lost": sum(e.fate == "wasted_progress" for e in executions),
        },
        pending_steps=sum(e.fate == "in_flight" for e in executions),
        started_steps=len(executions),
        ideal_step_time_s=ideal_step(nets) if ideal_step_time is None else ideal_step_time,
        step_time_deviation_s=deviation(nets),
        at_risk_s=total_seconds(at_risk, counted).get("productive", 0.0),
        in_flight_step=flying[-1].number if flying else None,
        overlapped_data_loading_s=overlapped / 1e9,
        skewed_clocks=skewed,
        recompilations=sum(n - 1 for names in seen_functions.values() for n in names.values()),
        attempts=len(lives),
        windows=[window(a, b) for a, b in windows],
    )
    if nets:
        answer["step_time"] = step_time(nets)
    return answer
