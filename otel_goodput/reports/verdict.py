"""The sentence that a comparison of two runs begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from otel_goodput.reports.intervals import LEAST_STEPS, Ratio
from otel_goodput.reports.sides import Side, Source
from otel_goodput.semconv import Category

# A change of less is not worth a word: of goodput and of the share of a source.
_MENTIONED: Final = 0.005


def sentence(a: Side, b: Side, sources: Sequence[Source], ratio: Ratio | None) -> str:
    """Return one or two sentences: how the step time differs, what takes more or less of the time, and the goodput.

    Args:
        a, b: the runs; none of them need have a step, or have begun.
        sources: the categories that either has time in.
        ratio: the median step time of B over that of A; None if that is not known.
    """
    idle = [name for name, side in (("A", a), ("B", b)) if not side.answer["elapsed_s"]]
    if idle:
        return f"There is nothing to compare: no job of {' and '.join(idle)} has started yet."
    unknown = [name for name, side in (("A", a), ("B", b)) if not side.known]
    if unknown:
        return (
            f"The runs cannot be compared: it is not known how long the steps of {' and '.join(unknown)} took, because "
            "only their dispatch was recorded, not when the device finished them."
        )
    first, second = a.answer["goodput"], b.answer["goodput"]
    words = ". ".join((_steps(a, b, ratio), *_largest(a, b, sources)))
    return f"{words}. Goodput: {100 * first:.1f} % in A, {100 * second:.1f} % in B."


def _steps(a: Side, b: Side, ratio: Ratio | None) -> str:
    if ratio is None:
        without = [name for name, side in (("A", a), ("B", b)) if not side.times.nets]
        return f"The step times cannot be compared: there are no kept steps in {' and '.join(without)}"
    change = ratio.value - 1
    if ratio.low is None or ratio.high is None:
        few = " and ".join(name for name, side in (("A", a), ("B", b)) if _few(side))
        return f"B is {_direction(ratio)} per step (no interval: {few} kept fewer than {LEAST_STEPS} steps)"
    within = f"95 % interval {_span(ratio)}"
    if not ratio.clear:
        return f"Median step time: no significant difference (B {round(100 * change, 1) + 0.0:+.1f} %, {within})"
    return f"B is {_direction(ratio)} per step ({within})"


def _few(side: Side) -> bool:
    return len(side.times.nets) < LEAST_STEPS


def _direction(ratio: Ratio) -> str:
    change = 100 * (ratio.value - 1)
    if abs(change) < 0.05:
        return "as fast"
    return f"{abs(change):.1f} % {'slower' if change > 0 else 'faster'}"


def _span(ratio: Ratio) -> str:
    low, high = (100 * (end - 1) for end in (ratio.low or 1.0, ratio.high or 1.0))
    if low <= 0 <= high:
        return f"{low:+.1f} to {high:+.1f} %"
    low, high = sorted((abs(low), abs(high)))
    return f"{low:.1f} to {high:.1f} %"


def _largest(a: Side, b: Side, sources: Sequence[Source]) -> Iterator[str]:
    """Yield the source of badput whose share changed most, if it is worth a word."""
    changes = []
    for source in sources:
        first, second = a.share(source.a), b.share(source.b)
        if source.category != Category.PRODUCTIVE and first is not None and second is not None:
            changes.append((second - first, f"{source.category} {source.custom}".strip(), first, second))
    if not changes:
        return
    change, name, first, second = max(changes, key=lambda one: abs(one[0]))
    if abs(change) >= _MENTIONED:
        more = "more" if second > first else "less"
        yield f"B spends {more} time in {name}: {100 * second:.1f} % instead of {100 * first:.1f} %"
