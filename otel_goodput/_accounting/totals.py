"""The result: a run's account at one moment in integer ns, and its JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import checkpoints, rules, stalls, stats
from otel_goodput._accounting.buckets import folded
from otel_goodput._accounting.checkpoints import RankStages, StageSums
from otel_goodput._accounting.disruption import Disruption
from otel_goodput._accounting.rules import NS
from otel_goodput._accounting.stalls import LongPhase, LongSteps
from otel_goodput._accounting.stats import Pace
from otel_goodput._accounting.windows import Weighted
from otel_goodput.semconv import CATEGORIES, SLICE_AVAILABLE, SLICE_STEPPING, STEP_KEPT, STEP_LOST, Category

NOT_KNOWN: Final = "not known: dispatch only"
# What a report has of a disruption whose reason nobody corrected.
UNCORRECTED: Final = {"said_by": None, "note": None, "process": None, "process_known": True}
_BLURRED: Final = 100  # goodput is not known if more than 1/100 of the time is under steps of unknown clock


# Figures that depend on the fate of steps: null if that is not known.
_OF_FATE: Final = {
    "first_step_s",
    "program_goodput",
    "productivity_goodput",
    "at_risk_s",
    "step_time",
    "ideal_step_time_s",
    "step_time_deviation_s",
}


@dataclass(frozen=True)
class Partition:
    """Wall time by category; the categories add up to `elapsed` exactly.

    Attributes:
        elapsed: ns.
        categories: ns by category name; has every category of ``semconv.CATEGORIES`` but ``custom``.
        custom: ns by custom name.
        max_productive_step: highest kept step with time in this partition, None if there is none.
        slice_efficiency: time-weighted share of slices by state; empty if no slice counts are known.
        unknown: ns of `elapsed` under steps whose end on the device is unknown.
        stalled: ns of stalled time by the fate of its steps, ``STEP_KEPT`` or ``STEP_LOST``; the rest is of others.
    """

    elapsed: int
    categories: Mapping[str, int]
    custom: Mapping[str, int]
    max_productive_step: int | None = None
    slice_efficiency: Mapping[str, float] = field(default_factory=dict)
    unknown: int = 0
    stalled: Mapping[str, int] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the fate of steps is known for at least 99 % of the time; figures that depend on it need that."""
        return self.unknown * _BLURRED <= self.elapsed

    @property
    def productive(self) -> int:
        """Productive time, ns."""
        return self.categories[Category.PRODUCTIVE]

    @property
    def goodput(self) -> float | None:
        """Productive share of the elapsed time; None if no time has passed or the fate of steps is not known."""
        return self.productive / self.elapsed if self.elapsed and self.known else None

    @property
    def whole_steps(self) -> dict[str, int]:
        """`categories` without rule R10, as Google accounts: stalled time is that of its steps, whatever their fate."""
        times = dict(self.categories)
        kept, lost = (self.stalled.get(fate, 0) for fate in (STEP_KEPT, STEP_LOST))
        times[Category.PRODUCTIVE] += kept
        times[Category.WASTED_PROGRESS] += lost
        times[Category.IN_FLIGHT] += times.pop(Category.STALLED) - kept - lost
        return times

    def rows(self) -> list[tuple[str, str, int]]:
        """(category, custom name or '', ns) for every category and custom name with time in it."""
        rows = [(name, "", duration) for name, duration in self.categories.items() if duration]
        return rows + [(Category.CUSTOM, name, duration) for name, duration in self.custom.items() if duration]

    def to_json(self) -> dict[str, Any]:
        """The JSON form of a partition, as described in docs/accounting.md."""
        seconds: dict[str, Any] = {name: duration / NS for name, duration in self.categories.items() if duration}
        if custom := {name: duration / NS for name, duration in self.custom.items() if duration}:
            seconds[Category.CUSTOM] = custom
        return {
            "elapsed_s": self.elapsed / NS,
            "goodput": self.goodput,
            "reason": None if self.known else NOT_KNOWN,
            "seconds": seconds,
            "max_productive_step": self.max_productive_step,
            "slice_efficiency": dict(self.slice_efficiency) or None,
        }


@dataclass(frozen=True)
class StepTime:
    """Net times of the latest kept steps (up to 1,000), ns."""

    count: int
    mean: float
    min: int
    median: float
    p90: float
    max: int


class Brief(NamedTuple):
    """A part of :class:`Totals`, whose figures have the same names: for who looks every few seconds.

    What takes long is missing: statistics of steps, and rolling windows.
    """

    at: int
    ended: bool
    since_step: int | None
    executed: int
    attempts: int
    run: Partition
    history: Sequence[Disruption]
    recompilations: int
    recompiled: Mapping[str, int]
    first_step: int | None
    excess: Mapping[str, int]
    unfinished: Mapping[str, int]
    loop: int


@dataclass(frozen=True, repr=False)
class Totals:
    """The account of a run at one moment. Times are in ns unless stated otherwise.

    Attributes:
        ended: the latest job ended, with or without an error.
        finished: it ended by itself, without an error and without an announcement of its end. No restart is expected.
        last_sign: when the run was last known to be alive: `at`, or the end of a finished job.
        clock: clock by which the latest step ended, one of ``semconv.CLOCK_STATES``; before the first, the fallback.
        executed: completed executions of steps.
        kept, lost, pending: executions by fate; that of pending ones is not decided yet.
        recompiled: recompilations by function, most frequent first, for the first hundred functions.
        slices: shares of slices by state, now; empty if nobody counted them.
        first_step: from the start of the latest job to the end of its first completed step; None before that.
        long_phases: loads, saves, restores and custom phases that took far longer than usual, by phase and name.
        long_steps: of the latest loop, if long steps recur in it.
        excess: by how much single steps (``Category.PRODUCTIVE``), loads and times between steps took far longer than
            usual, ns by category: in the latest attempt, whatever became of the steps.
        unfinished: time of loads and between steps, without that excess, in the loop's turn that is not over, ns by
            category.
        loop: number of the loop of the latest step; all ``with step(n)`` together are one.
        since_step: time since a step completed, or since the job began if none has in it; None while no job is open.
        in_step: time is a step's now, and not that of loading, a save or anything else.
        suspended: how long the machine was suspended meanwhile; that is in no category.
        last_given: number that its loop gave the latest step, which may differ from `last_step` after a restore.
        skipped: batches that loops skipped after a restore: their bodies are no steps.
        doubtful: first steps after a restore that look like such batches; counted as steps, because the run had none
            before that tell how long a step takes.
        kept_by_rank: the fewest and the most kept steps of a rank, in an account of ranks that do not step together.
        objective: the goodput that the run should have, a share; None if none was set.
        rolling: by length, the account of the rolling window that ends `at`.
        recent: (begin, end, account) of the windows of the same lengths that end with the run, which is before `at` if
            its job is over. One that the ledger has not kept for its whole length is missing.
        behind: how far `at` is before the time asked for, because the ledger had not caught up.
        compilations_seen: start-up is measured from compilations, not only estimated from first steps.
        stages: of checkpoints, by name of the part; `rank_stages`: those of each process.
    """

    at: int
    started_at: int | None
    ended: bool
    run: Partition
    excluded: int
    overlapped_data_loading: int
    last_step: int | None
    in_flight_step: int | None
    in_flight_since: int | None
    clock: str
    executed: int
    kept: int
    lost: int
    pending: int
    attempts: int
    disruptions: Mapping[str, int]
    history: Sequence[Disruption]
    ideal_step_time: float | None
    step_time_deviation: float | None
    step_time: StepTime | None
    at_risk: int
    recompilations: int
    recompiled: Mapping[str, int]
    compilations_seen: bool
    step_cadence: float | None
    observed: bool
    skewed_clocks: bool
    windows: Sequence[tuple[int, int, Partition]] = ()
    rolling: Sequence[tuple[int, Partition]] = ()
    recent: Sequence[tuple[int, int, Partition]] = ()
    slices: Mapping[str, float] = field(default_factory=dict)
    scheduling: float | None = None
    program: float | None = None
    objective: float | None = None
    paces: Sequence[Pace] = ()
    processes: int = 1
    behind: int = 0
    finished: bool = False
    last_sign: int = 0
    stages: Mapping[str, StageSums] = field(default_factory=dict)
    rank_stages: Sequence[RankStages] = ()
    first_step: int | None = None
    failed: bool = False
    error: str | None = None
    suspended: int = 0
    long_steps: LongSteps | None = None
    long_phases: Mapping[tuple[int, str], LongPhase] = field(default_factory=dict)
    excess: Mapping[str, int] = field(default_factory=dict)
    unfinished: Mapping[str, int] = field(default_factory=dict)
    loop: int = 0
    since_step: int | None = None
    in_step: bool = False
    last_given: int | None = None
    skipped: int = 0
    doubtful: int = 0
    kept_by_rank: tuple[int, int] | None = None

    def __repr__(self) -> str:
        """The main figures in one line."""
        steps = f"{self.started} steps = {self.kept} kept + {self.lost} lost + {self.pending} pending"
        return f"<Totals: {self._headline}, {steps}, attempts {self.attempts}, {'ended' if self.ended else 'open'}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        run = self.run
        return partition_html(run.rows(), run.elapsed, f"Goodput: {self._headline}", known=run.known)

    @property
    def _headline(self) -> str:
        elapsed = f"{self.run.elapsed / NS:.3f} s"
        if self.run.goodput is None:
            return f"{'nothing to account for' if self.run.known else NOT_KNOWN}, {elapsed}"
        return f"{100 * self.run.goodput:.2f} % of {elapsed}"

    @property
    def brief(self) -> Brief:
        return Brief(*(getattr(self, name) for name in Brief._fields))

    @property
    def until(self) -> int:
        """The end of the run so far, ns: now, or the end of its latest job; 0 if none has begun."""
        return (self.started_at or 0) + self.run.elapsed + self.excluded + self.suspended

    @property
    def started(self) -> int:
        """Executions of steps, whatever their fate."""
        return self.kept + self.lost + self.pending

    @property
    def productivity(self) -> float | None:
        """ML productivity goodput: scheduling x runtime x program goodput; None if one of them is not known."""
        if self.scheduling is None or self.program is None or self.run.goodput is None:
            return None
        return self.scheduling * self.run.goodput * self.program

    @property
    def budget_used(self) -> float | None:
        """Share of the error budget that is used: unproductive time over what the objective allows; None if unknown."""
        if self.objective is None or self.run.goodput is None:
            return None
        return float(1 - self.run.goodput) / (1 - self.objective)

    def to_json(self) -> dict[str, Any]:
        """The JSON form described in docs/accounting.md ("Timeline files"); seconds are floats."""
        whole = self.run.to_json()
        answer: dict[str, Any] = {
            "elapsed_s": whole["elapsed_s"],
            "goodput": whole["goodput"],
            "reason": whole["reason"],
            "seconds": whole["seconds"],
            "excluded_s": self.excluded / NS,
            "suspended_s": self.suspended / NS,
            "max_productive_step": self.run.max_productive_step,
            "last_step": self.last_step,
            "last_step_given": self.last_given,
            "in_flight_step": self.in_flight_step,
            "in_flight_step_s": None if self.in_flight_since is None else max(0, self.at - self.in_flight_since) / NS,
            "disruptions": sum(self.disruptions.values()),
            "disruption_reasons": dict(self.disruptions),
            "disruption_list": [
                {
                    "attempt": entry.attempt,
                    "reason": entry.reason,
                    "time": entry.time / NS if entry.time else None,
                    "died_at": entry.died / NS if entry.died >= 0 else None,
                    **_error(entry.error),
                    "ended_by": entry.ended_by,
                    "recovery_s": entry.recovery / NS,
                    "wasted_s": entry.wasted / NS,
                    "startup_s": _seconds(entry.startup) if self.run.known else None,
                    "restored_s": _seconds(entry.restored) if self.run.known else None,
                    "cost_s": entry.cost / NS,
                    "from_step": entry.from_step,
                    "to_step": entry.to_step,
                    "kept_step": entry.kept_step,
                    "first_step_s": _seconds(entry.first_step) if self.run.known else None,
                    "regained_s": _seconds(entry.regained) if self.run.known else None,
                    **UNCORRECTED,
                    "first_reason": entry.reason,
                }
                for entry in self.history
            ],
            **_error(self.error),
            "attempts": self.attempts,
            "first_step_s": _seconds(self.first_step),
            "clock": self.clock,
            "steps": {"executed": self.executed, "kept": self.kept, "lost": self.lost},
            "pending_steps": self.pending,
            "started_steps": self.started,
            "skipped_batches": self.skipped,
            "doubtful_steps": self.doubtful,
            "ideal_step_time_s": _seconds(self.ideal_step_time),
            "step_time_deviation_s": _seconds(self.step_time_deviation),
            "at_risk_s": self.at_risk / NS,
            "overlapped_data_loading_s": self.overlapped_data_loading / NS,
            "recompilations": self.recompilations,
            "recompiled": dict(self.recompiled),
            "compilations_seen": self.compilations_seen,
            "step_cadence_s": _seconds(self.step_cadence),
            "observed_steps": self.observed,
            "skewed_clocks": self.skewed_clocks,
            "behind_s": self.behind / NS,
            "windows": [
                {"start": start / NS, "end": end / NS, **partition.to_json()} for start, end, partition in self.windows
            ],
        }
        if self.long_phases:
            answer["long_phases"] = stalls.to_json(self.long_phases)
        if self.long_steps is not None:
            every, long, usual = self.long_steps
            answer["long_steps"] = {"every": every, "long_s": long / NS, "usual_s": usual / NS}
        factors = {"scheduling": self.scheduling, "program": self.program, "productivity": self.productivity}
        answer |= {f"{name}_goodput": factor for name, factor in factors.items() if factor is not None}
        if self.objective is not None:
            answer |= {"objective": self.objective, "error_budget_used": self.budget_used}
        if self.paces:
            answer["processes"] = stats.paces_to_json(self.paces, self.processes)
        if self.stages:
            answer["checkpoints"] = checkpoints.to_json(self.stages, self.rank_stages)
        answer["slice_efficiency"] = dict(self.run.slice_efficiency) or None
        if self.kept_by_rank is not None:
            answer["kept_by_rank"] = dict(zip(("fewest", "most"), self.kept_by_rank, strict=True))
        if self.step_time is not None:
            lengths = {f"{name}_s": length / NS for name, length in vars(self.step_time).items() if name != "count"}
            answer["step_time"] = {"count": self.step_time.count, **lengths}
        if not self.run.known:
            answer.update(dict.fromkeys(_OF_FATE & answer.keys()))
        return answer


def _error(error: str | None) -> dict[str, str | None]:
    kind, _, message = (error or "").partition(": ")
    return {"error_type": kind or None, "error_message": message or None}


def _seconds(duration: float | None) -> float | None:
    return None if duration is None else duration / NS


def partition(times: Mapping[int, int], names: Sequence[str], top: int | None, weighted: Weighted) -> Partition:
    """Build a :class:`Partition` of ns by category number, with the overlay's sums `weighted` of the same time."""
    known, stepping, available, unknown = weighted
    stalled = {STEP_KEPT: times.get(rules.STALLED_KEPT, 0), STEP_LOST: times.get(rules.STALLED_LOST, 0)}
    times = folded(times)
    return Partition(
        elapsed=sum(times.values()),
        categories={name: times.get(index, 0) for index, name in enumerate(CATEGORIES) if index != rules.CUSTOM},
        stalled=stalled,
        custom={name: times[index] for index, name in enumerate(names, rules.FIXED) if times.get(index)},
        max_productive_step=top,
        slice_efficiency={SLICE_STEPPING: stepping / known, SLICE_AVAILABLE: available / known} if known else {},
        unknown=round(unknown),
    )


# After Okabe and Ito: people who do not see all colors can tell them apart. The page has the same table (colors.js),
# and a second color of each for the dark.
COLORS: Final = {
    Category.PRODUCTIVE: "#0072b2",
    Category.ACCELERATOR_INIT: "#8d6bb5",
    Category.TRAINING_PREP: "#b59ad6",
    Category.PROGRAM_STARTUP: "#cc79a7",
    Category.DATA_LOADING: "#e69f00",
    Category.CHECKPOINT_SAVE: "#009e73",
    Category.CHECKPOINT_RESTORE: "#6fc3a8",
    Category.CUSTOM: "#b8a900",
    Category.WASTED_PROGRESS: "#d55e00",
    Category.STALLED: "#8c1d18",
    Category.INFRASTRUCTURE_RECOVERY: "#4d4d4d",
    Category.ELASTIC_SLICE_DOWN: "#7a4a21",
    Category.ELASTIC_SCALE_UP: "#a6764a",
    Category.ELASTIC_REINITIALIZATION: "#c9a987",
    Category.IN_FLIGHT: "#56b4e9",
    Category.OTHER: "#b3b3b3",
}


def partition_html(
    held: Iterable[tuple[str, str, int]], elapsed: int, title: str, remarks: tuple[str, ...] = (), *, known: bool = True
) -> str:
    """Render the bar and the table of a partition of `elapsed` ns, given as (category, name within it, ns).

    If the fate of steps is not `known`, only seconds are shown: no bar, no shares.
    """
    rows = sorted(held, key=lambda row: (row[0] != Category.PRODUCTIVE, -row[2]))
    pieces = lines = ""
    for category, name, ns in rows:
        label, share, color = _escaped(f"{category} {name}".strip()), 100 * ns / elapsed, COLORS[category]
        pieces += (
            f'<span title="{label} {share:.2f} %" style="display:inline-block;'
            f'height:1em;width:{share:.3f}%;background:{color}"></span>'
        )
        lines += (
            f'<tr><td style="text-align:left"><span style="color:{color}">&#9632;</span> {label}</td>'
            f"<td>{ns / NS:.3f} s</td>{f'<td>{share:.2f} %</td>' if known else ''}</tr>"
        )
    style = "width:100%;max-width:40em;line-height:0;white-space:nowrap;overflow:hidden"
    bar = f'<div style="{style}">{pieces}</div>' if known and pieces else ""
    notes = "".join(f"<p>{_escaped(remark)}</p>" for remark in remarks)
    return f"<div><p><strong>{_escaped(title)}</strong></p>{bar}<table>{lines}</table>{notes}</div>"


def _escaped(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))
