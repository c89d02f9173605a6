"""Computes what the figures must be, from the witness's readings alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from everyday.witness import COMPILE, EVALUATION, LIFE, LOAD, PREPARE, RESTORE, SAVE, STEP

PRODUCTIVE, WASTED, RECOVERY, OTHER = "productive", "wasted_progress", "infrastructure_recovery", "other"
# What a chore counts as, if the program records it; otherwise its time is that of the chore around it.
COUNTS_AS: Mapping[str, str] = {
    LOAD: "data_loading",
    COMPILE: "program_startup",
    SAVE: "checkpoint_save",
    RESTORE: "checkpoint_restore",
    PREPARE: "training_prep",
    EVALUATION: "custom",
    LIFE: OTHER,
}
NEVER = 1 << 62


class Reading(NamedTuple):
    """A chore; times in Unix ns, `end` is NEVER if it had not ended when the process died.

    `left`: it was not completed; `device`: it ran on the device; `writing`: ns to write the lines before its own.
    """

    kind: str
    begin: int
    end: int
    step: int
    device: bool
    left: bool = True
    writing: int = 0


def written(path: Path) -> str:
    """The lines that the witness has written so far."""
    return path.read_bytes().partition(b"\0")[0].decode() if path.exists() else ""


def readings(path: Path) -> list[Reading]:
    """The readings of all processes, in the order of their begin."""
    by_key: dict[tuple[int, int], Reading] = {}
    for line in written(path).splitlines():
        fields = json.loads(line)
        key = tuple(fields.pop("key"))
        if "kind" in fields:
            by_key[key] = Reading(**{"end": NEVER, **fields})
        else:
            fields["writing"] += by_key[key].writing
            by_key[key] = by_key[key]._replace(**fields)
    return sorted(by_key.values(), key=lambda reading: reading.begin)


class Truth(NamedTuple):
    """Seconds by category."""

    elapsed: float
    seconds: Mapping[str, float]

    @property
    def goodput(self) -> float:
        return self.seconds.get(PRODUCTIVE, 0.0) / self.elapsed


def truth(
    taken: Iterable[Reading], unrecorded: Iterable[str] = (), *, left_is_done: bool = True, compiles: bool = True
) -> Truth:
    """Assign each moment to the device's work, else to the chore that began last, else to nothing.

    Args:
        taken: readings of one run.
        unrecorded: chores that the program does not record: their time is that of the chore around them.
        left_is_done: a step that was left early counts as done, as after a `break`.
        compiles: compilations are reported; otherwise start-up is the excess of a life's first step over the median of
            the others.
    """
    silent = set(unrecorded)
    taken = [reading for reading in taken if reading.kind not in silent]
    lives = [reading for reading in taken if reading.kind == LIFE]
    ends = [_end(life, taken, following) for life, following in zip(lives, [*lives[1:], None], strict=True)]
    spent: Counter[str] = Counter()
    for life, end, following in zip(lives, ends, [*lives[1:], None], strict=True):
        inside = [reading for reading in taken if life.begin <= reading.begin < end]
        later = [reading for reading in taken if reading.kind == STEP and not reading.device]
        steps: Counter[int] = Counter()
        for owner, duration in _owners(inside, end):
            if owner.kind == STEP:
                steps[owner.step] += duration
                gone_back = any(other.step <= owner.step and other.begin > owner.begin for other in later)
                done = left_is_done or not owner.left
                spent[WASTED if gone_back or not done else PRODUCTIVE] += duration
            else:
                spent[COUNTS_AS[owner.kind]] += duration
        if not compiles and len(steps) > 1:
            first, *others = steps.values()
            excess = max(0, first - round(median(others)))
            spent[PRODUCTIVE] -= excess
            spent[COUNTS_AS[COMPILE]] += excess
        if following is not None:
            spent[RECOVERY] += following.begin - end
    elapsed = ends[-1] - lives[0].begin
    return Truth(elapsed / 1e9, {name: duration / 1e9 for name, duration in spent.items()})


def _end(life: Reading, taken: Iterable[Reading], following: Reading | None) -> int:
    """When a life ended: a killed one at its last reading."""
    if life.end < NEVER:
        return life.end
    until = following.begin if following is not None else NEVER
    moments = [moment for reading in taken for moment in (reading.begin, reading.end)]
    return max(moment for moment in moments if life.begin <= moment < until)


def _owners(inside: list[Reading], end: int) -> Iterable[tuple[Reading, int]]:
    """Yield the owner and the length in ns of each interval in which nothing begins or ends."""
    moments = sorted({moment for each in inside for moment in (each.begin, min(each.end, end))})
    for begin, until in pairwise(moments):
        open_now = [each for each in inside if each.begin <= begin < each.end]
        device = [each for each in open_now if each.device]
        if open_now:
            yield (device[0] if device else open_now[-1]), until - begin
