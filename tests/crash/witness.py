"""The account of a run worked out from the diaries of its jobs alone: another author, another method, other clocks.

A diary brackets every boundary of a phase between two readings of the wall clock, so every figure here comes with how
far off it may be. Phases of one job nest, so their owner is simply what was opened last.

Longer than other files: it shares nothing with the package, so all that it needs is here.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NS = 1_000_000_000
CATEGORY = {"job": "other", "custom": "custom"}  # every other phase's category bears its name


@dataclass
class Edge:
    """A phase begins or ends, somewhere from `earliest` to `latest` (ns; None where the job died meanwhile)."""

    begins: bool
    phase: str
    name: str
    step: int
    failed: bool
    earliest: int
    latest: int | None = None
    span: str = "-"
    left: bool = False  # by a break: completed for the account (R4), left early for the trace

    def by(self, latest: int) -> Edge:
        return replace(self, latest=latest)

    @property
    def early(self) -> bool:
        """Left early, whatever the account makes of it: by a break, by an exception."""
        return self.failed or self.left

    @property
    def middle(self) -> float:
        assert self.latest is not None
        return (self.earliest + self.latest) / 2

    @property
    def width(self) -> int:
        assert self.latest is not None
        return self.latest - self.earliest


@dataclass
class Life:
    """One attempt: its edges, those the job died amid, when it was dead for certain (None: it ended by itself)."""

    edges: list[Edge]
    amid: list[Edge]
    dead: int | None
    events: list[str]
    ending: str = "crash"  # what a disruption after it is put down to

    @property
    def started(self) -> bool:
        return bool(self.edges)

    def last_sign(self) -> tuple[int, int]:
        """The latest thing it left behind lies between these two."""
        assert self.dead is not None
        return (self.edges[-1].earliest if self.edges else 0), self.dead


def read_diary(path: Path, dead: int | None) -> Life:
    """The life that wrote this diary; `dead`: ns when it was known to have been killed, None if nobody killed it."""
    edges: list[Edge] = []
    amid: list[Edge] = []
    events: list[str] = []
    lines = path.read_text().split("\n") if path.exists() else [""]
    for line in lines[:-1]:
        mark, time, what = line.split(" ", 2)
        if mark == "!":
            events.append(what)
        elif mark == "B":
            amid = [_edge(text, int(time)) for text in what.split(",")]
        else:
            for edge in amid:
                edge.latest = int(time)
            begun = [edge for edge in amid if edge.begins]
            if begun:
                begun[-1].span = what
            edges += amid
            amid = []
    return Life(edges, amid, dead, events)


def _edge(text: str, time: int) -> Edge:
    phase, name, step = text[1:].rstrip("!?").split(":")
    return Edge(text[0] == "+", phase, name, int(step), text.endswith("!"), time, left=text.endswith("?"))


@dataclass
class Share:
    """Time and by how much it may be off, ns."""

    time: float = 0.0
    off: float = 0.0

    def add(self, time: float, off: float) -> None:
        self.time += time
        self.off += off


@dataclass
class Execution:
    """One execution of a step."""

    number: int
    net: Share = field(default_factory=Share)
    completed: bool = False
    kept: bool = False
    previous: int | None = None  # the step that started before it


@dataclass
class Account:
    """What the report must say."""

    shares: dict[str, Share]
    elapsed: Share
    executed: int
    kept: int
    lost: int
    disruptions: dict[str, int]
    attempts: int
    last_step: int | None
    top: int | None
    at_risk: Share
    recoveries: list[Share]

    def differences(self, report: dict[str, Any]) -> Iterator[str]:
        """How the report departs from this account."""
        seconds = dict(report["seconds"])
        for name, value in seconds.pop("custom", {}).items():
            seconds[f"custom {name}"] = value
        for category in sorted(set(seconds) | set(self.shares)):
            yield from self._compare(category, seconds.get(category, 0.0), self.shares.get(category, Share()))
        yield from self._compare("elapsed", report["elapsed_s"], self.elapsed)
        yield from self._compare("at risk", report["at_risk_s"], self.at_risk)
        crashes = [entry for entry in report["disruption_list"] if entry["reason"] != "rollback"]
        if len(crashes) != len(self.recoveries):
            yield f"recoveries: {len(crashes)} instead of {len(self.recoveries)}"
        else:
            for entry, expected in zip(crashes, self.recoveries, strict=True):
                yield from self._compare(f"recovery of attempt {entry['attempt']}", entry["recovery_s"], expected)
        for name, actual, wanted in (
            ("steps", report["steps"], {"executed": self.executed, "kept": self.kept, "lost": self.lost}),
            ("disruptions", report["disruption_reasons"], self.disruptions),
            ("attempts", report["attempts"], self.attempts),
            ("last step", report["last_step"], self.last_step),
            ("max productive step", report["max_productive_step"], self.top),
            ("in flight", report["in_flight_step"], None),
        ):
            if actual != wanted:
                yield f"{name}: {actual} instead of {wanted}"

    def tolerance(self, expected: Share) -> float:
        """By how much the report may depart from a time, ns."""
        # The job's clock and ours are slewed apart by a two-thousandth at most.
        return expected.off + 200_000 + self.elapsed.time / 2000

    def _compare(self, name: str, actual: float, expected: Share) -> Iterator[str]:
        tolerance = self.tolerance(expected)
        if abs(actual * NS - expected.time) > tolerance:
            yield (
                f"{name}: {actual * 1e3:.3f} ms instead of {expected.time / 1e6:.3f} ms "
                f"(tolerance {tolerance / 1e6:.3f} ms)"
            )


def total_ns(report: dict[str, Any]) -> int:
    """The categories' sum in whole ns."""
    seconds = {name: value for name, value in report["seconds"].items() if name != "custom"}
    flat = [*seconds.values(), *report["seconds"].get("custom", {}).values()]
    return sum(round(value * NS) for value in flat)


def possible_accounts(lives: Sequence[Life]) -> Iterator[Account]:
    """The accounts that agree with the diaries: of the edges that a life died amid, some may have counted."""
    choices = []
    for life in lives:
        lost = [0] if life.dead is None else range(len(life.amid) + 1)
        choices.append([(life, life.edges + [edge.by(life.dead or 0) for edge in life.amid[:count]]) for count in lost])
    for choice in itertools.product(*choices):
        started = [(life, edges) for life, edges in choice if edges]
        if started:
            for doubtful in (True, False):
                yield _Bookkeeper(started, doubtful).account


class _Bookkeeper:
    """Accounts for lives. `doubtful`: a step left by a break did a step's work where its length leaves that open."""

    def __init__(self, lives: Sequence[tuple[Life, list[Edge]]], doubtful: bool) -> None:
        self.doubtful = doubtful
        self.shares: dict[str, Share] = {}
        self.stack: list[Execution] = []
        self.segments: list[list[Execution]] = []
        self.lost: list[Execution] = []
        self.executed = 0
        self.rollbacks = 0
        self.last_step: int | None = None
        self.safe = 0
        self.recoveries: list[Share] = []
        begin = lives[0][1][0]
        gone: tuple[float, float] | None = None
        for life, edges in lives:
            if gone is not None:
                recovery = Share(edges[0].middle - gone[0], edges[0].width + gone[1])
                self.recoveries.append(recovery)
                self._share("infrastructure_recovery").add(recovery.time, recovery.off)
            in_flight, time, off = self._live(edges, life.dead)
            gone = time, off
            if in_flight is not None:
                self._finish(in_flight, True)  # its life is over, whether or not another has come
        assert gone is not None
        elapsed = Share(gone[0] - begin.middle, gone[1] + begin.width)
        startups = self._startups()
        for execution in self.stack:
            self._share("productive").add(execution.net.time, execution.net.off)
        for execution in self.lost:
            self._share("wasted_progress").add(execution.net.time, execution.net.off)
        at_risk = Share()
        for execution in self.stack[self.safe :]:
            at_risk.add(execution.net.time, execution.net.off)
        for execution, excess in startups:
            source = "productive" if execution.kept else "wasted_progress"
            self._share(source).add(-excess.time, excess.off)
            self._share("program_startup").add(excess.time, excess.off)
            if execution in self.stack[self.safe :]:
                at_risk.add(-excess.time, excess.off)
        disruptions = Counter(life.ending for life, _ in lives[:-1])
        disruptions["rollback"] = self.rollbacks
        self.account = Account(
            shares=self.shares,
            elapsed=elapsed,
            executed=self.executed,
            kept=len(self.stack),
            lost=len(self.lost),
            disruptions={reason: count for reason, count in disruptions.items() if count},
            attempts=len(lives),
            last_step=self.last_step,
            top=self.stack[-1].number if self.stack else None,
            at_risk=at_risk,
            recoveries=self.recoveries,
        )

    def _share(self, category: str) -> Share:
        return self.shares.setdefault(category, Share())

    def _live(self, edges: list[Edge], dead: int | None) -> tuple[Execution | None, float, float]:
        """One life; returns the step in flight at its end, and that end's time and inaccuracy (ns)."""
        opened: list[tuple[Edge, Execution | None, int]] = []
        before: Edge | None = None
        first = True
        for edge in edges:
            if before is not None and opened:
                self._own(opened).add(edge.middle - before.middle, edge.width + before.width)
            before = edge
            if not edge.begins:
                at = next(at for at, (open_, _, _) in enumerate(opened) if open_.phase == edge.phase)
                _, execution, safe = opened.pop(at)
                if execution is not None and edge.left and not self._worked(execution):
                    self._share("other").add(execution.net.time, execution.net.off)
                    self.last_step = execution.previous
                elif execution is not None:
                    self._finish(execution, edge.failed)
                if edge.phase == "checkpoint_save":
                    self.safe = safe
                continue
            execution = None
            if edge.phase == "step":
                execution = self._begin(edge.step, first)
                first = False
            # Of the step in progress the checkpoint of that step has the result.
            begun = [other for _, other, _ in opened if other is not None]
            covered = sum(each.number <= edge.step for each in (*self.stack, *begun))
            opened.append((edge, execution, covered))
        assert before is not None
        time, off = before.middle, float(before.width)
        if opened:
            # It died with something open: at the latest when it was found dead.
            assert dead is not None
            self._own(opened).add((dead - time) / 2, (dead - time) / 2 + off)
            time, off = (dead + time) / 2, (dead - time) / 2 + off
        return next((execution for _, execution, _ in opened if execution is not None), None), time, off

    def _own(self, opened: list[tuple[Edge, Execution | None, int]]) -> Share:
        edge, execution, _ = opened[-1]
        if execution is not None:
            return execution.net
        category = CATEGORY.get(edge.phase, edge.phase)
        return self._share(f"custom {edge.name}" if category == "custom" else category)

    def _begin(self, number: int, first: bool) -> Execution:
        lost = [execution for execution in self.stack if execution.number >= number]
        self.stack = [execution for execution in self.stack if execution.number < number]
        for execution in lost:
            execution.kept = False
        self.lost += lost
        self.safe = min(self.safe, len(self.stack))
        if lost and not first:
            self.rollbacks += 1
        if lost or first:
            self.segments.append([])
        execution = Execution(number, previous=self.last_step)
        self.last_step = number
        self.segments[-1].append(execution)
        return execution

    def _worked(self, execution: Execution) -> bool:
        """Rule R4: a step left by a break took at least half of the usual time, or a checkpoint holds it."""
        if self.safe > sum(other.number < execution.number for other in self.stack):
            return True
        usual = [other.net for other in self.stack[-1000:]]
        if not usual:
            return True
        more = 2 * execution.net.time - statistics.median(net.time for net in usual)
        if abs(more) <= 2 * execution.net.off + max(net.off for net in usual):
            return self.doubtful
        return more > 0

    def _finish(self, execution: Execution, failed: bool) -> None:
        saved = self.safe > sum(other.number < execution.number for other in self.stack)
        if failed and not saved:
            self.lost.append(execution)
            return
        execution.completed = execution.kept = True
        self.executed += 1
        self.stack.append(execution)

    def _startups(self) -> list[tuple[Execution, Share]]:
        """Rule R5: what the first completed step of each segment took longer than the others."""
        startups = []
        for segment in self.segments:
            completed = [execution for execution in segment if execution.completed]
            if not completed:
                continue
            first, others = completed[0], completed[1:]
            like = (
                [execution for execution in others if execution.kept]
                or [execution for execution in others if not execution.kept]
                or [execution for execution in self.stack if execution is not first]
            )
            if like:
                nets = sorted(execution.net.time for execution in like)
                middle = len(nets) // 2
                usual = nets[middle] if len(nets) % 2 else (nets[middle - 1] + nets[middle]) / 2
                off = first.net.off + max(execution.net.off for execution in like)
                startups.append((first, Share(max(0.0, first.net.time - usual), off)))
        return startups
