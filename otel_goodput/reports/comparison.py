"""Two runs side by side: goodput, badput by source, step times, disruptions; and what changed from A to B.

Successive steps are not independent, so each run is cut into batches of successive steps, the statistic (a median, a
quantile, a mean) is computed in each batch, and what the batches differ by is what it is uncertain by: the method of
batch means (L. Schmeiser, Operations Research 30, 1982), for any statistic and two samples as in R. Ibragimov and U. K.
Müller, "t-statistic based correlation and heterogeneity robust inference", J. Business & Economic Statistics 28, 2010.
It holds for dependence that lasts much less than a twentieth of the run.

The ratio of two runs is estimated on a logarithmic scale, by Welch's t with the degrees of freedom of Satterthwaite, so
that exchanging the runs gives exactly the reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist, fmean, variance
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import stats
from otel_goodput._accounting.overview import BUCKETS_AN_OCTAVE, bucket_of
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._timeline.run_state import DIED
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.text import sources
from otel_goodput.semconv import CATEGORIES, Category

CONFIDENCE: Final = 0.95
BATCHES: Final = 20
LEAST_BATCHES: Final = 5
LEAST_STEPS: Final = 50  # with fewer there is no interval
_BATCH: Final = 20  # steps that a batch should hold at least

Statistic = Callable[[Sequence[int]], float]


class Ratio(NamedTuple):
    """A statistic of run B over that of run A; `low` and `high` are the ends of its interval, None if not known."""

    value: float
    low: float | None
    high: float | None


class Estimate(NamedTuple):
    """A statistic of one run, ns, and the variance of its logarithm, estimated from `batches`; None with too few."""

    value: float
    variance: float | None
    batches: int


def estimate(nets: Sequence[int], statistic: Statistic) -> Estimate:
    """Return the estimate of a statistic of the step times `nets` (ns, above 0, in the order of the steps, not empty).

    `statistic` is called with sorted times, and returns a time above 0.
    """
    value = statistic(sorted(nets))
    if len(nets) < LEAST_STEPS:
        return Estimate(value, None, 0)
    batches = max(LEAST_BATCHES, min(BATCHES, len(nets) // _BATCH))
    edges = [len(nets) * at // batches for at in range(batches + 1)]
    parts = [math.log(statistic(sorted(nets[begin:end]))) for begin, end in pairwise(edges)]
    return Estimate(value, variance(parts, fmean(parts)) / batches, batches)


def ratio(a: Estimate, b: Estimate) -> Ratio:
    """Return B over A with the interval of the confidence ``CONFIDENCE``."""
    value = b.value / a.value
    if a.variance is None or b.variance is None:
        return Ratio(value, None, None)
    both = a.variance + b.variance
    if not both:
        return Ratio(value, value, value)
    freedom = both**2 / (a.variance**2 / (a.batches - 1) + b.variance**2 / (b.batches - 1))
    margin = t_quantile(freedom) * math.sqrt(both)
    middle = math.log(value)
    return Ratio(value, math.exp(middle - margin), math.exp(middle + margin))


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return t such that Student's variable with `freedom` >= 3 degrees of freedom is within -t to t with `confidence`.

    G. W. Hill, Algorithm 396, Communications of the ACM 13, 1970; exact to five digits or more.
    """
    n, tails = freedom, 1 - confidence
    a = 1 / (n - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y: float = (d * tails) ** (2 / n)
    if y > a + 0.05:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
    return math.sqrt(n * y)


STATISTICS: Final[tuple[tuple[str, str, Statistic], ...]] = (
    ("median", "step_time", lambda rising: stats.quantile(rising, 0.5)),
    ("p90", "p90", lambda rising: stats.quantile(rising, 0.9)),
    ("mean", "step_time_mean", fmean),
)
QUANTILES: Final = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
CONFIGURED: Final = ("hyperparameters", "settings", "versions")
# Settings that say which run it is and where, and which process.
_OF_ONE_RUN: Final = frozenset(
    row.variable for row in (Settings.run_id, Settings.directory, Settings.process_index, Settings.submitted_at)
)
# A change of less is not worth a word: of goodput and of the share of a source.
_MENTIONED: Final = 0.005


# What kind of figure it is: which units a difference of it may have.
SHARE: Final = "share"  # of the elapsed time; 1 is all
TIME: Final = "time"  # in seconds
COUNT: Final = "count"


class Figure(NamedTuple):
    """One figure of both runs; None where it is not known. A time is in seconds."""

    kind: str
    a: float | None
    b: float | None


PER_STEP: Final = "_per_step"  # category + this: seconds per kept step
_LENGTHS: Final = ("ideal_step_time", "at_risk", "elapsed")
_FACTORS: Final = ("scheduling_goodput", "program_goodput", "productivity_goodput")
_COUNTS: Final = ("disruptions", "attempts", "recompilations")
# The figures that are compared, and that conditions may name: of which kind each is.
FIGURES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("goodput", "badput"), SHARE),
    **{name + more: kind for name in CATEGORIES for more, kind in (("", SHARE), (PER_STEP, TIME))},
    **dict.fromkeys((*(figure for _, figure, _ in STATISTICS), *_LENGTHS), TIME),
    **dict.fromkeys(_FACTORS, SHARE),
    **dict.fromkeys((*_COUNTS, "kept_steps", "lost_steps"), COUNT),
}


class Source(NamedTuple):
    """A category (and the custom name in it): its seconds in both runs, their share, and seconds per kept step."""

    category: str
    custom: str
    a: float
    b: float
    share: Figure
    per_step: Figure

    @property
    def name(self) -> str:
        return f"{self.category} {self.custom}".strip()


class Difference(NamedTuple):
    """Something that the latest attempts of both runs ran with, and that is not the same; None where it is missing."""

    kind: str
    name: str
    a: str | bool | int | float | None
    b: str | bool | int | float | None


@dataclass(frozen=True)
class Side:
    """One of the runs."""

    answer: Mapping[str, Any]  # its report as JSON
    nets: Sequence[int]  # net times of kept steps, ns, above 0, in order, without the start-up in first steps (rule R5)
    left_out: int  # earlier steps whose single times are not remembered
    damaged: bool  # a part of its journal could not be read

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The statistics of the step times by name; empty if these are not known."""
        known = self.nets and self.known
        return {name: estimate(self.nets, statistic) for name, _, statistic in STATISTICS} if known else {}

    @property
    def quantiles(self) -> dict[str, float] | None:
        """The quantiles ``QUANTILES`` of the step times in s; empty without steps, None if they are not known."""
        rising = sorted(self.nets)
        return {f"{q:g}": stats.quantile(rising, q) / NS for q in QUANTILES if rising} if self.known else None

    @property
    def configuration(self) -> Mapping[str, Mapping[str, Any]] | None:
        """What its latest attempt ran with, by kind and name; None if that is not known."""
        configurations = self.answer.get("configurations")
        if not configurations:
            return None
        settings = {name: one["value"] for name, one in configurations[-1]["settings"].items()}
        return {**configurations[-1], "settings": settings}

    @property
    def known(self) -> bool:
        """Whether the figures that depend on the fate of steps are known."""
        return self.answer["goodput"] is not None

    def per_step(self, seconds: float) -> float | None:
        """Seconds per kept step; None without one, or if it is not known which are."""
        kept = self.answer["steps"]["kept"]
        return seconds / kept if kept and self.known else None

    def share(self, seconds: float) -> float | None:
        """The share of `seconds` in the elapsed time; None if that is 0, or the shares are not known."""
        elapsed = self.answer["elapsed_s"]
        return seconds / elapsed if elapsed and self.known else None

    def seconds(self, category: str) -> float:
        return sum(held for name, _, held in sources(self.answer["seconds"]) if name == category)

    def statistic(self, name: str) -> float | None:
        """A statistic of the step times in seconds; None if it is not known."""
        return self.estimates[name].value / NS if name in self.estimates else None

    def figures(self) -> dict[str, float | None]:
        """Return the ``FIGURES``; None where one is not known."""
        answer, known = self.answer, self.known
        held = {name: self.seconds(name) for name in CATEGORIES}
        return {
            "badput": 1 - answer["goodput"] if known else None,
            **{name: answer.get(name) for name in ("goodput", *_FACTORS, *_COUNTS)},
            **{name: answer.get(f"{name}_s") for name in _LENGTHS},
            **{f"{fate}_steps": answer["steps"][fate] if known else None for fate in ("kept", "lost")},
            **{name: self.share(seconds) for name, seconds in held.items()},
            **{name + PER_STEP: self.per_step(seconds) for name, seconds in held.items()},
            **{figure: self.statistic(name) for name, figure, _ in STATISTICS},
        }


_REPORT_FIELDS: Final = (
    "run_id", "job_name", "state", "started_at", "attempts", "elapsed_s", "goodput", "reason", "at_risk_s", "steps",
    "started_steps", "disruptions", "disruption_reasons", "recompilations", "clock", "warnings",
)  # fmt: skip


def _summary(side: Side) -> dict[str, Any]:
    left_out = {"steps_without_times": side.left_out, "damaged": side.damaged}
    return {name: side.answer[name] for name in _REPORT_FIELDS} | left_out


class Comparison:
    """Run B compared with run A."""

    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b
        self.sides = {"A": a, "B": b}  # by the names that texts have for them
        held: dict[tuple[str, str], list[float]] = {}
        for at, side in enumerate((a, b)):
            for category, name, seconds in sources(side.answer["seconds"]):
                held.setdefault((category, name), [0.0, 0.0])[at] = seconds
        self.sources = []  # categories that either run has time in, the largest first
        for (category, name), (one, other) in held.items():
            share = Figure(SHARE, a.share(one), b.share(other))
            per_step = Figure(TIME, a.per_step(one), b.per_step(other))
            self.sources.append(Source(category, name, one, other, share, per_step))
        self.sources.sort(key=lambda source: (source.category != Category.PRODUCTIVE, -source.a - source.b, source[:2]))
        # B's step time over A's, by statistic; empty if either is not known.
        self.ratios = {name: ratio(one, b.estimates[name]) for name, one in a.estimates.items() if b.estimates}
        first, second = a.figures(), b.figures()  # by the names that ``compare --fail-if`` knows
        self.figures = {name: Figure(kind, first[name], second[name]) for name, kind in FIGURES.items()}

    @property
    def same_run(self) -> bool:
        """Whether both are one run."""
        return all(self.a.answer[name] == self.b.answer[name] for name in ("run_id", "job_name", "started_at"))

    @property
    def damaged(self) -> bool:
        """Whether a part of one of the journals could not be read."""
        return self.a.damaged or self.b.damaged

    @property
    def differences(self) -> list[Difference] | None:
        """What their latest attempts ran with that is not the same; None if that is not known of one of them."""
        a, b = (side.configuration for side in (self.a, self.b))
        if a is None or b is None:
            return None
        return [
            Difference(kind, name, a[kind].get(name), b[kind].get(name))
            for kind in CONFIGURED
            for name in sorted({*a[kind], *b[kind]} - _OF_ONE_RUN)
            if name not in a[kind] or name not in b[kind] or a[kind][name] != b[kind][name]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data; seconds and shares are floats, None is not known."""
        return {
            "format": 1,
            "a": _summary(self.a),
            "b": _summary(self.b),
            "same_run": self.same_run,
            "verdict": self.verdict,
            "sources": [
                {
                    "category": source.category,
                    "custom": source.custom,
                    "a_s": source.a,
                    "b_s": source.b,
                    "a_share": source.share.a,
                    "b_share": source.share.b,
                    "a_per_step_s": source.per_step.a,
                    "b_per_step_s": source.per_step.b,
                }
                for source in self.sources
            ],
            "step_time": {name: self._step_time(name) for name, _, _ in STATISTICS},
            "quantiles": {"a": self.a.quantiles, "b": self.b.quantiles},
            "histogram": [[low / NS, high / NS, *counts] for low, high, *counts in self.histogram()],
            "configuration": None if self.differences is None else [one._asdict() for one in self.differences],
            "figures": {name: {"kind": one.kind, "a": one.a, "b": one.b} for name, one in self.figures.items()},
        }

    def _step_time(self, name: str) -> dict[str, Any]:
        a, b = self.a.statistic(name), self.b.statistic(name)
        value, low, high = self.ratios.get(name, (None, None, None))
        return {
            "a_s": a,
            "b_s": b,
            "difference_s": None if a is None or b is None else b - a,
            "ratio": value,
            "low": low,
            "high": high,
            "confidence": CONFIDENCE,
            "batches": [side.estimates[name].batches if side.estimates else 0 for side in self.sides.values()],
        }

    def histogram(self) -> list[tuple[float, float, int, int]]:
        """Return (low, high, steps of A, steps of B) of the net times, ns, without empty buckets; rising."""
        counts: dict[int, list[int]] = {}
        for at, side in enumerate(self.sides.values()):
            for net in side.nets if side.known else ():
                counts.setdefault(bucket_of(net), [0, 0])[at] += 1
        return [
            (2 ** (bucket / BUCKETS_AN_OCTAVE), 2 ** ((bucket + 1) / BUCKETS_AN_OCTAVE), a, b)
            for bucket, (a, b) in sorted(counts.items())
        ]

    # --- in words -----------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """How the step time differs, what takes more or less of the time, and the goodput; of any two runs."""
        if idle := [name for name, side in self.sides.items() if not side.answer["elapsed_s"]]:
            return f"There is nothing to compare: no job of {' and '.join(idle)} has started yet."
        if unknown := [name for name, side in self.sides.items() if not side.known]:
            return (
                f"The runs cannot be compared: it is not known how long the steps of {' and '.join(unknown)} took, "
                "because only their dispatch was recorded, not when the device finished them."
            )
        first, second = self.a.answer["goodput"], self.b.answer["goodput"]
        words = ". ".join(filter(None, (self._step_times(), self._largest())))
        return f"{words}. Goodput: {100 * first:.1f} % in A, {100 * second:.1f} % in B."

    def _step_times(self) -> str:
        ratio = self.ratios.get("median")
        if ratio is None:
            without = " and ".join(name for name, side in self.sides.items() if not side.nets)
            return f"The step times cannot be compared: there are no kept steps in {without}"
        change = 100 * (ratio.value - 1)
        direction = f"{abs(change):.1f} % {'slower' if change > 0 else 'faster'}" if abs(change) >= 0.05 else "as fast"
        if ratio.low is None or ratio.high is None:
            few = " and ".join(name for name, side in self.sides.items() if len(side.nets) < LEAST_STEPS)
            return f"B is {direction} per step (no interval: {few} kept fewer than {LEAST_STEPS} steps)"
        low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
        if low <= 0 <= high:
            within = f"95 % interval {low:+.1f} to {high:+.1f} %"
            return f"Median step time: no significant difference (B {round(change, 1) + 0.0:+.1f} %, {within})"
        low, high = sorted((abs(low), abs(high)))
        return f"B is {direction} per step (95 % interval {low:.1f} to {high:.1f} %)"

    def _largest(self) -> str:
        """Return which source of badput changed its share most; empty if that is not worth a word."""
        change, text = 0.0, ""
        for source in self.sources:
            _, a, b = source.share
            if source.category == Category.PRODUCTIVE or a is None or b is None:
                continue
            if abs(b - a) > abs(change):
                change = b - a
                more = "more" if change > 0 else "less"
                text = f"B spends {more} time in {source.name}: {100 * b:.1f} % instead of {100 * a:.1f} %"
        return text if abs(change) >= _MENTIONED else ""


def side_of(run: RecordedRun, process: int | None = None) -> Side:
    """Read one run to be compared, as it stands now: the job of all its ranks, or the process with the index `process`.

    Raises:
        JournalError: `process` left no journal, or none that can be read.
    """
    listed = run.listed()
    report = listed.report(process=process)
    ranks = report.ranks
    if ranks is None or ranks.ledger is None:
        ledger = listed.restored(listed.first() if process is None else process).ledger
    else:
        ledger = ranks.ledger
    cursor = ledger.provisional(None, dead=True) if report.state == DIED else ledger.settled
    progress = cursor.steps.progress
    left_out = progress.summarized
    nets = progress.nets(left_out, progress.length)
    for segment in cursor.steps.segments:
        if segment.first_index is not None and segment.first_index >= left_out:
            nets[segment.first_index - left_out] -= segment.excess(progress)
    return Side(report.to_json(), [net for net in nets if net > 0], left_out, report.damaged)


def compare(a: RecordedRun, b: RecordedRun, *, process: int | None = None) -> Comparison:
    """Compare run `b` with run `a` as they stand now. Arguments and errors as for :func:`side_of`."""
    return Comparison(side_of(a, process), side_of(b, process))
