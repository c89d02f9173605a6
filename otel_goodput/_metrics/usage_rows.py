"""What the ranks of a job use, as rows of metrics: those of a few ranks, and of thousands what all come to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from otel_goodput import semconv
from otel_goodput._journal.usage_now import UNKNOWN, WHOLE, UsageNow
from otel_goodput._text.durations import NS
from otel_goodput.semconv import ACCELERATORS, THROTTLE_REASONS, Metric

# By rank, the host of each, and what it uses.
Usages = Mapping[int, tuple[str, UsageNow]]

MOST: Final = 16  # ranks that have series of their own at a time
OF_ALL: Final = ("min", "mean", "max")  # in place of a rank, if there are more
_MILLI: Final = 1000


_Read = Callable[[UsageNow], Iterable[tuple[int, tuple[str, ...]]]]


class _Figure(NamedTuple):
    """A figure of a rank, without its rank.

    Attributes:
        read: yields it with its attributes behind the rank's, in whole numbers; ``UNKNOWN`` yields no row.
        unit: its value is in multiples of that.
        of_machine: that of ranks on one machine is the same.
    """

    read: _Read
    unit: int = 1
    of_machine: bool = False


def _one(read: Callable[[UsageNow], int], *attributes: str) -> _Read:
    return lambda now: ((read(now), attributes),)


def _accelerators(read: Callable[[UsageNow], int]) -> _Read:
    return lambda now: ((read(now), (ACCELERATORS[now.accelerator],)),)


def _times(now: UsageNow) -> Iterator[tuple[int, tuple[str, ...]]]:
    return ((time, (mode,)) for time, mode in zip((now.user, now.system), semconv.CPU_MODES, strict=True))


def _reasons(now: UsageNow) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield all reasons, so that the end of one cannot be mistaken for a series that stopped."""
    for at, name in enumerate(THROTTLE_REASONS if now.throttled != UNKNOWN else ()):
        yield now.throttled >> at & 1, (name,)


_FIGURES: Final[Mapping[Metric, _Figure]] = {
    semconv.CPU_TIME: _Figure(_times, NS),
    semconv.PROCESS_MEMORY: _Figure(_one(lambda now: now.process_memory)),
    semconv.MACHINE_CPU: _Figure(_one(lambda now: now.machine_cpu), WHOLE, of_machine=True),
    semconv.MACHINE_MEMORY: _Figure(_one(lambda now: now.machine_memory, semconv.MEMORY_USED), of_machine=True),
    semconv.MACHINE_MEMORY_LIMIT: _Figure(_one(lambda now: now.machine_memory_limit), of_machine=True),
    semconv.ACCELERATOR_BUSY: _Figure(_accelerators(lambda now: now.accelerator_busy), WHOLE),
    semconv.ACCELERATOR_MEMORY: _Figure(_accelerators(lambda now: now.accelerator_memory)),
    semconv.ACCELERATOR_MEMORY_LIMIT: _Figure(_accelerators(lambda now: now.accelerator_memory_limit)),
    semconv.ACCELERATOR_POWER: _Figure(_accelerators(lambda now: now.accelerator_power), _MILLI),
    semconv.THROTTLED: _Figure(_reasons),
}


class UsageRows:
    """Returns the rows of a metric at each call. Calls may come from any thread.

    If there are more than ``MOST`` ranks, those whose accelerators are throttled have series of their own first, then
    the lowest ones. A rank that has them keeps them, unless one that is throttled needs the place. Of counters, which
    must not fall, the lowest ranks have series, and all others have one together.
    """

    metrics: Final = tuple(_FIGURES)

    def __init__(self, usages: Callable[[], Usages]) -> None:
        self._usages = usages
        self._lock = threading.Lock()
        self._named: set[int] = set()  # ranks that have series
        self._counted: dict[tuple[str, ...], dict[int, int]] = {}  # by attributes and rank: the most so far

    def __call__(self, metric: Metric) -> Iterator[tuple[float | str, ...]]:
        usages = self._usages()
        if not usages:
            return iter(())
        with self._lock:
            self._choose(usages)
            return iter([*self._rows(metric, usages)])

    def _choose(self, usages: Usages) -> None:
        self._named &= usages.keys()
        held_down = {rank for rank, (_, now) in usages.items() if now.throttled > 0}

        def worth(rank: int) -> tuple[bool, bool, int]:
            return rank not in held_down, rank not in self._named, rank

        self._named = set(sorted(usages, key=worth)[:MOST])

    def _rows(self, metric: Metric, usages: Usages) -> Iterator[tuple[float | str, ...]]:
        figure = _FIGURES[metric]
        every = dict[tuple[str, ...], dict[int, int]]()
        for rank in _first_on_each(usages) if figure.of_machine else sorted(usages):
            for value, attributes in figure.read(usages[rank][1]):
                if value != UNKNOWN:
                    every.setdefault(attributes, {})[rank] = value
        for attributes, values in every.items():
            if metric.kind == semconv.COUNTER:
                counted = self._counted.setdefault(attributes, {})
                counted |= {rank: max(value, counted.get(rank, 0)) for rank, value in values.items()}
                for rank in counted.keys() & set(range(MOST)):
                    yield counted[rank] / figure.unit, str(rank), *attributes
                if others := [value for rank, value in counted.items() if rank >= MOST]:
                    yield sum(others) / figure.unit, semconv.OTHER_RANKS, *attributes
                continue
            for rank in values.keys() & self._named if len(values) > MOST else values:
                yield values[rank] / figure.unit, str(rank), *attributes
            if len(values) > MOST:
                of_all = min(values.values()), sum(values.values()) / len(values), max(values.values())
                for name, figure_of_all in zip(OF_ALL, of_all, strict=True):
                    yield figure_of_all / figure.unit, name, *attributes


def _first_on_each(usages: Usages) -> list[int]:
    """Return the lowest rank on each host."""
    first = dict[str, int]()
    for rank in sorted(usages):
        first.setdefault(usages[rank][0], rank)
    return sorted(first.values())
