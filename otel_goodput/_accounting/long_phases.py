"""Loads, saves, restores and custom phases that took far longer than usual (rule R10).

Their time keeps its category, because a phase says what it was for. It is only reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, NUMBER, PHASE, TEXT, Each, Pairs, Row, State, field
from otel_goodput._accounting.rules import CUSTOM_PHASE, DATA_LOADING, PHASE_INDEX, SAVE, STALLED_FROM, STALLED_SLACK
from otel_goodput._accounting.stalls import limit_of
from otel_goodput.semconv import PHASES, Phase

COMPARED: Final = frozenset({DATA_LOADING, SAVE, PHASE_INDEX[Phase.CHECKPOINT_RESTORE], CUSTOM_PHASE})
GROUPS: Final = 64  # of phases by name; those of further names are not compared
SAMPLE: Final = 100  # latest phases of a group that are compared with; up to twice as many are held


class LongPhase(NamedTuple):
    """Phases of one name that took longer than their limit: how many, by how much in sum, and the longest, ns."""

    number: int
    excess: int
    longest: int


_NAMED: Final = Row(PHASE, TEXT)


class LongPhases(State):
    """Compares each phase that held up training with the latest ones of its name.

    Attributes:
        too_long: those that took too long, by phase and name.
    """

    too_long: dict[tuple[int, str], LongPhase] = field(
        Pairs(_NAMED, Row(COUNT, COUNT, COUNT, make=LongPhase._make), GROUPS), make=dict, key="too_long"
    )
    _times: dict[tuple[int, str], list[int]] = field(Pairs(_NAMED, Each(NUMBER, 2 * SAMPLE), GROUPS), make=dict)

    def add(self, phase: int, name: str, lengths: Sequence[int]) -> None:
        """Take successive phases of one name that ended, and how long each took, ns."""
        key = phase, name
        times = self._times.get(key)
        if times is None:
            if len(self._times) >= GROUPS:
                return
            times = self._times[key] = []
        if max(lengths) <= STALLED_SLACK:
            times += lengths
        else:
            for length in lengths:
                if length > STALLED_SLACK and len(times) >= STALLED_FROM - 1:
                    self._judge(key, length, limit_of(times[-SAMPLE:]))
                times.append(length)
        if len(times) > 2 * SAMPLE:
            del times[:-SAMPLE]

    def _judge(self, key: tuple[int, str], length: int, limit: int) -> None:
        if length > limit:
            number, excess, longest = self.too_long.get(key, (0, 0, 0))
            self.too_long[key] = LongPhase(number + 1, excess + length - limit, max(longest, length))


def to_json(phases: Mapping[tuple[int, str], LongPhase]) -> list[dict[str, Any]]:
    """What a report has of them; lengths in seconds."""
    return [
        {
            "phase": PHASES[phase],
            "name": name,
            "count": one.number,
            "excess_s": one.excess / 1e9,
            "longest_s": one.longest / 1e9,
        }
        for (phase, name), one in sorted(phases.items(), key=lambda item: -item[1].excess)
    ]
