"""Summarizes steps that are not sampled: each series of them becomes one ``steps`` span."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from operator import sub
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import NUMBER, Blobs, Each, Row, State, Whole, field
from otel_goodput._accounting.stats import median, quantile

SUMMARY: Final = 1000  # steps in one summary at most


class Summary(NamedTuple):
    """A summary of unsampled steps; times in ns."""

    first: int
    last: int
    steps: int
    start: int
    end: int
    total: int
    min: int
    median: int
    p90: int
    max: int


SUMMARY_ENTRY: Final = Row(*[NUMBER] * 10, make=Summary._make)
# Number, start and end of a step. A loop makes one a turn: unlike a tuple, it is nothing for the garbage collector.
_STEP: Final = struct.Struct("<qqq")
pack: Final = _STEP.pack


class _Packed(Row):
    """A step as bytes, in memory only."""

    def __init__(self) -> None:
        super().__init__(*[NUMBER] * 3, make=lambda step: pack(*step))
        self.plain = False

    def dump(self, value: Any, blobs: Blobs) -> Any:
        return _STEP.unpack(value)


def _columns(steps: Sequence[bytes]) -> tuple[tuple[int, ...], ...]:
    """Numbers, starts and ends (ns) of packed steps."""
    flat = struct.unpack(f"<{3 * len(steps)}q", b"".join(steps))
    return flat[::3], flat[1::3], flat[2::3]


class Thinner(State):
    """Collects unsampled steps on the training thread and summarizes them on another thread."""

    most: int = field(Whole(1), SUMMARY)  # steps in one summary
    _volume: int = field(Whole(1), 1 << 62)  # steps in one trace; a summary never spans two traces
    # What was added and is not summarized yet: number, start and end (ns), packed.
    waiting: deque[bytes] = field(Each(_Packed(), make=deque), make=deque, key="thinned")
    _held: list[bytes] = field(Each(_Packed()), make=list)  # of the series in progress

    _CUT: Final = pack(-1, 0, 0)

    def __init__(self, most: int = SUMMARY, volume: int = 1 << 62) -> None:
        super().__init__()
        self.most, self._volume = most, volume

    def add(self, number: int, start: int, end: int) -> None:
        self.waiting.append(pack(number, start, end))

    def cut(self) -> None:
        """End the current series of steps, because a checkpoint begins."""
        self.waiting.append(self._CUT)

    def summaries(self, *, final: bool = False) -> list[Summary]:
        """Return summaries of the complete series; with `final`, also of the one in progress."""
        done: list[Summary] = []
        while self.waiting:
            room = max(1, self.most - len(self._held))
            steps = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
            numbers = _columns([*self._held[:1], *steps])[0]
            least, greatest = min(numbers), max(numbers)
            if least >= 0 and least // self._volume == greatest // self._volume:  # one series: none of them is a cut
                self._held += steps
                if len(self._held) >= self.most:
                    done.append(self._sum_up())
                continue
            for step in steps:
                if self._held and step != self._CUT and self._trace(step) != self._trace(self._held[0]):
                    done.append(self._sum_up())
                if step != self._CUT:
                    self._held.append(step)
                if self._held and (step == self._CUT or len(self._held) >= self.most):
                    done.append(self._sum_up())
        if final and self._held:
            done.append(self._sum_up())
        return done

    def _trace(self, step: bytes) -> int:
        """The number of the trace that a step is in."""
        number: int = _STEP.unpack(step)[0]
        return number // self._volume

    def _sum_up(self) -> Summary:
        held, self._held = self._held, []
        numbers, starts, ends = _columns(held)
        rising = sorted(map(sub, ends, starts))
        return Summary(
            first=numbers[0],
            last=numbers[-1],
            steps=len(held),
            start=min(starts),
            end=max(ends),
            total=sum(rising),
            min=rising[0],
            median=median(rising, ordered=True),
            p90=round(quantile(rising, 0.9)),
            max=rising[-1],
        )
