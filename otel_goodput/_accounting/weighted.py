"""Several accounts of the same time as one: the sum of their times, weighted by devices, to the nanosecond (R11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from otel_goodput._accounting.totals import Partition, Totals
from otel_goodput.semconv import CATEGORIES, STEP_KEPT, STEP_LOST, Category

Key = TypeVar("Key")


def shared(times: Mapping[Key, int], whole: int) -> dict[Key, int]:
    """Divide `whole` in proportion to `times`, so that the parts add up to it; the largest remainders are rounded up.

    None of `times` is negative. If all are 0, so are the parts.
    """
    total = sum(times.values())
    if not total:
        return dict.fromkeys(times, 0)
    parts = {key: whole * time // total for key, time in times.items()}
    rest = whole - sum(parts.values())
    for key in sorted(times, key=lambda key: whole * times[key] % total, reverse=True)[:rest]:
        parts[key] += 1
    return parts


def weighted_partition(parts: Sequence[tuple[int, Partition]], elapsed: int) -> Partition:
    """Return the partition of `elapsed` ns that has the shares of all `parts` together, each with its weight.

    A part that lasted for less of the time has less of the shares: what is divided is the time of devices.
    """
    sums: dict[tuple[str, str], int] = {}

    def add(category: str, name: str, time: int) -> None:
        sums[category, name] = sums.get((category, name), 0) + time

    for weight, part in parts:
        fates = part.stalled
        for category, time in part.categories.items():
            of_fates = sum(fates.values()) if category == Category.STALLED else 0
            add(category, "", weight * (time - of_fates))
        for fate, time in fates.items():
            add(Category.STALLED, fate, weight * time)
        for name, time in part.custom.items():
            add(Category.CUSTOM, name, weight * time)
    times = shared(sums, elapsed)
    elapsed = sum(times.values())  # 0 if no time of any device has passed
    devices = sum(weight * part.elapsed for weight, part in parts)
    unknown = sum(weight * part.unknown for weight, part in parts)
    tops = [part.max_productive_step for _, part in parts if part.max_productive_step is not None]
    efficient = [(weight * part.elapsed, part.slice_efficiency) for weight, part in parts if part.slice_efficiency]
    return Partition(
        elapsed=elapsed,
        categories={
            category: sum(time for (one, _), time in times.items() if one == category)
            for category in CATEGORIES
            if category != Category.CUSTOM
        },
        custom={name: time for (category, name), time in times.items() if category == Category.CUSTOM and time},
        max_productive_step=max(tops, default=None),
        slice_efficiency=_mean(efficient),
        unknown=unknown * elapsed // devices if devices else 0,
        stalled={fate: times.get((Category.STALLED, fate), 0) for fate in (STEP_KEPT, STEP_LOST)},
    )


def _mean(shares: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    known = [(weight, each) for weight, each in shares if weight]
    total = sum(weight for weight, _ in known)
    names = dict.fromkeys(name for _, each in known for name in each)
    return {name: sum(weight * each.get(name, 0.0) for weight, each in known) / total for name in names}


# What is of one loop only.
_OF_LOOP: Final = (
    "last_step",
    "last_given",
    "in_flight_step",
    "in_flight_since",
    "executed",
    "kept",
    "lost",
    "pending",
    "ideal_step_time",
    "step_time_deviation",
    "step_time",
    "step_cadence",
    "long_steps",
    "loop",
    "first_step",
    "since_step",
    "skipped",
    "doubtful",
)


def weighted_totals(parts: Sequence[tuple[int, Totals]], of_steps: int | None = None) -> Totals:
    """Return the sum of accounts, with their weights. They are of ranks that do not step together, or of roles.

    What is of one loop only, as the number of steps and their usual length, is that of the one of the first `of_steps`
    (by default of all) that has completed most steps. So the number is about that of the ranks as if they stepped
    together, which are accounted like that until it is known that they do not.
    """
    all_ = [totals for _, totals in parts]
    loops = all_[:of_steps]
    furthest, kept = max(loops, key=lambda totals: totals.executed), [totals.kept for totals in loops]
    first, begins = all_[0], [totals.started_at for totals in all_ if totals.started_at is not None]
    at = max(totals.at for totals in all_)
    # What is cut out (rule R7) has its share like the categories.
    times = {
        "elapsed": sum(weight * totals.run.elapsed for weight, totals in parts),
        "excluded": sum(weight * totals.excluded for weight, totals in parts),
        "suspended": sum(weight * totals.suspended for weight, totals in parts),
    }
    whole = shared(times, max(0, at - min(begins)) if begins else 0)
    spans = [span for span, _ in first.rolling]
    of_loop: dict[str, Any] = {name: getattr(furthest, name) for name in _OF_LOOP}
    return replace(
        first,
        **of_loop,
        kept_by_rank=(min(kept), max(kept)) if len(kept) > 1 else None,
        at=at,
        started_at=min(begins, default=None),
        ended=all(totals.ended for totals in all_),
        finished=all(totals.finished for totals in all_),
        last_sign=max(totals.last_sign for totals in all_),
        run=weighted_partition([(weight, totals.run) for weight, totals in parts], whole["elapsed"]),
        excluded=whole["excluded"],
        suspended=whole["suspended"],
        rolling=[
            (
                span,
                weighted_partition(
                    [(weight, totals.rolling[index][1]) for weight, totals in parts if index < len(totals.rolling)],
                    max(totals.rolling[index][1].elapsed for totals in all_ if index < len(totals.rolling)),
                ),
            )
            for index, span in enumerate(spans)
        ],
        recent=_recent(parts),
        excess=_weighted([(weight, totals.excess) for weight, totals in parts]),
        unfinished=_weighted([(weight, totals.unfinished) for weight, totals in parts]),
        at_risk=max(totals.at_risk for totals in all_),
        skewed_clocks=any(totals.skewed_clocks for totals in all_),
        observed=any(totals.observed for totals in all_),
        in_step=any(totals.in_step for totals in all_),
        failed=any(totals.failed for totals in all_),
    )


def _weighted(parts: Sequence[tuple[int, Mapping[str, int]]]) -> dict[str, int]:
    """Return the means of times by category, ns."""
    weights = max(1, sum(weight for weight, _ in parts))
    return {name: sum(weight * times.get(name, 0) for weight, times in parts) // weights for name in parts[0][1]}


def _recent(parts: Sequence[tuple[int, Totals]]) -> list[tuple[int, int, Partition]]:
    """Return the rolling windows that all parts know as a whole. Each part's ends when that does."""
    known = [{end - begin: (end, window) for begin, end, window in totals.recent} for _, totals in parts]
    recent = list[tuple[int, int, Partition]]()
    for span in known[0]:
        if all(span in each for each in known):
            end, elapsed = max(each[span][0] for each in known), max(each[span][1].elapsed for each in known)
            windows = [(weight, each[span][1]) for (weight, _), each in zip(parts, known, strict=True)]
            recent.append((end - span, end, weighted_partition(windows, elapsed)))
    return recent


def followed(before: Totals | None, after: Totals) -> Totals:
    """Return `after` with the time and the steps of what was accounted until it began."""
    if before is None:
        return after
    one, other = before.run, after.run
    names = dict.fromkeys((*one.custom, *other.custom))
    tops = [part.max_productive_step for part in (one, other) if part.max_productive_step is not None]
    run = replace(
        other,
        elapsed=one.elapsed + other.elapsed,
        categories={name: time + other.categories[name] for name, time in one.categories.items()},
        custom={name: one.custom.get(name, 0) + other.custom.get(name, 0) for name in names},
        max_productive_step=max(tops, default=None),
        unknown=one.unknown + other.unknown,
        stalled={name: one.stalled.get(name, 0) + other.stalled.get(name, 0) for name in (STEP_KEPT, STEP_LOST)},
    )
    return replace(
        after,
        started_at=before.started_at,
        run=run,
        excluded=before.excluded + after.excluded,
        suspended=before.suspended + after.suspended,
        attempts=max(before.attempts, after.attempts),
        disruptions=before.disruptions or after.disruptions,
        history=[*before.history, *after.history],
        executed=before.executed + after.executed,
        kept=before.kept + after.kept,
        lost=before.lost + after.lost,
        first_step=before.first_step,
        recent=[one for one in after.recent if one[0] >= (after.started_at or 0)],
    )
