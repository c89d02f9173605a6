"""Summarizes steps that are not sampled: each series of them becomes one ``steps`` span."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import starmap
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
# Number, start and end of a step. Steps are kept one behind the other in one object, because a loop that runs ahead of
# its account leaves a million of them.
_STEP: Final = struct.Struct("<qqq")
pack: Final = _STEP.pack


def _joined(steps: Iterable[tuple[int, int, int]]) -> bytearray:
    return bytearray(b"".join(starmap(pack, steps)))


class _Packed(Each):
    """Packed steps, which are a list of their numbers elsewhere."""

    def __init__(self) -> None:
        super().__init__(Row(NUMBER, NUMBER, NUMBER), make=_joined)

    def dump(self, value: bytearray, blobs: Blobs) -> Any:
        return list(_STEP.iter_unpack(value))

    def copy(self, value: bytearray) -> bytearray:
        return bytearray(value)


def _columns(steps: bytes | bytearray) -> tuple[tuple[int, ...], ...]:
    """Numbers, starts and ends (ns) of packed steps."""
    flat = struct.unpack(f"<{len(steps) // 8}q", steps)
    return flat[::3], flat[1::3], flat[2::3]


class Thinner(State):
    """Collects unsampled steps on the training thread and summarizes them on another thread."""

    most: int = field(Whole(1), SUMMARY)  # steps in one summary
    _volume: int = field(Whole(1), 1 << 62)  # steps in one trace; a summary never spans two traces
    waiting: bytearray = field(_Packed(), make=bytearray, key="thinned")  # packed steps that are not summarized yet
    _held: bytearray = field(_Packed(), make=bytearray)  # those of the series in progress

    _CUT: Final = pack(-1, 0, 0)

    def __init__(self, most: int = SUMMARY, volume: int = 1 << 62) -> None:
        super().__init__()
        self.most, self._volume = most, volume

    def add(self, number: int, start: int, end: int) -> None:
        self.waiting.extend(pack(number, start, end))

    def cut(self) -> None:
        """End the current series of steps, because a checkpoint begins."""
        self.waiting.extend(self._CUT)

    def summaries(self, *, final: bool = False) -> list[Summary]:
        """Return summaries of the complete series; with `final`, also of the one in progress."""
        done: list[Summary] = []
        waiting, held = self.waiting, self._held
        while waiting:
            room = max(1, self.most - len(held) // _STEP.size)
            steps = bytes(waiting[: room * _STEP.size])
            del waiting[: len(steps)]
            numbers = _columns(held[: _STEP.size] + steps)[0]
            least, greatest = min(numbers), max(numbers)
            if least >= 0 and least // self._volume == greatest // self._volume:  # one series: none of them is a cut
                held += steps
                if len(held) >= self.most * _STEP.size:
                    done.append(self._sum_up())
                continue
            for number, start, end in _STEP.iter_unpack(steps):
                cut = (number, start, end) == (-1, 0, 0)
                if held and (cut or number // self._volume != _STEP.unpack_from(held)[0] // self._volume):
                    done.append(self._sum_up())
                if not cut:
                    held += pack(number, start, end)
                    if len(held) >= self.most * _STEP.size:
                        done.append(self._sum_up())
        if final and held:
            done.append(self._sum_up())
        return done

    def _sum_up(self) -> Summary:
        numbers, starts, ends = _columns(self._held)
        self._held.clear()
        rising = sorted(map(sub, ends, starts))
        return Summary(
            first=numbers[0],
            last=numbers[-1],
            steps=len(numbers),
            start=min(starts),
            end=max(ends),
            total=sum(rising),
            min=rising[0],
            median=median(rising, ordered=True),
            p90=round(quantile(rising, 0.9)),
            max=rising[-1],
        )
