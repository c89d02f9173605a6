"""The turns of a loop as columns, because of nearly all events of nearly all runs thousands can be taken at once.

In a turn a step ends as the data load of the next one begins, and that load ends as its step begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import le, lt, sub
from typing import Final, NamedTuple, TypeAlias

from otel_goodput._accounting.events import END, START, Event
from otel_goodput._accounting.rules import DATA_LOADING, STEP

STRIDE: Final = 0x9E3779B97F4A7C15  # between successive keys of a loop; odd, so that they repeat after 2**64 phases
KEYS: Final = (1 << 64) - 1
_make: Final = tuple.__new__  # a third of the time of a named tuple's constructor
_STRIDES: Final = frozenset({STRIDE, STRIDE - KEYS - 1})

Column: TypeAlias = "tuple[int, ...]"


def following(key: int) -> int:
    """Return the key of the phase that a loop begins in the moment in which the phase `key` ends."""
    return (key + STRIDE) & KEYS


def preceding(key: int) -> int:
    """Return the key of the phase that ends in the moment in which a loop begins the phase `key`."""
    return (key - STRIDE) & KEYS


class Turns(NamedTuple):
    """Successive moments in which a phase of a loop ends and the next one begins: loads and steps alternate.

    Attributes:
        loaded: in the first moment, a load ends and its step begins.
        times: ns.
        keys: of what ends.
        numbers: of the steps that begin, or whose loads begin.
        flags: of the ENDs.
    """

    loaded: bool
    times: Column
    keys: Column
    numbers: Column
    flags: Column

    @property
    def time(self) -> int:
        """The last moment, ns."""
        return self.times[-1]

    @property
    def steady(self) -> bool:
        """Whether time and numbers go on, what begins is what ends next, and nothing fails."""
        _, times, keys, numbers, flags = self
        return not (
            any(flags)
            or not all(map(le, times, islice(times, 1, None)))
            or not _STRIDES.issuperset(map(sub, islice(keys, 1, None), keys))
            or not all(map(lt, numbers[not self.loaded :: 2], numbers[2 + (not self.loaded) :: 2]))
        )

    def slice(self, begin: int, end: int | None = None) -> Turns:
        """Return those at the places from `begin` up to, not including, `end`."""
        _, times, keys, numbers, flags = self
        part = slice(begin, end)
        return Turns(self.loaded is (begin % 2 == 0), times[part], keys[part], numbers[part], flags[part])

    def followed(self, turns: Turns) -> Turns:
        """Return these and those that follow."""
        return Turns(self.loaded, *(mine + theirs for mine, theirs in zip(self[1:], turns[1:], strict=True)))

    def events(self) -> Iterator[Event]:
        """Yield the events of each moment."""
        loaded, *columns = self
        for time, key, number, flags in zip(*columns, strict=True):
            ended, begun = (DATA_LOADING, STEP) if loaded else (STEP, DATA_LOADING)
            yield _make(Event, (time, END, ended, key, number, flags, 0, ""))
            yield _make(Event, (time, START, begun, following(key), number, 0, 0, ""))
            loaded = not loaded


def events_of(items: Iterable[Event | Turns]) -> Iterator[Event]:
    """Yield events, with those of turns one by one."""
    for item in items:
        if isinstance(item, Turns):
            yield from item.events()
        else:
            yield item
