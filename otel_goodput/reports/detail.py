"""What a process's journal tells: every step with its fate, every phase, and who owned each moment.

Times are ns since the epoch by the account's clock, which never goes back; ``NOT_KNOWN`` where something has not
happened or was not observed. Attempts are counted from 1, as reports do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.overview import Loss, Save
from otel_goodput._accounting.resuming import Stretch

# Flags of steps and phases, as the page has them.
NONBLOCKING: Final = 1
FAILED: Final = 2
IN_TRACE: Final = 4  # it has a span of its own in the trace
OUTLIER: Final = 8
INTERRUPTED: Final = 16
RECOMPILATION: Final = 32
SUMMED_UP: Final = 64  # too many of its name: the trace has a summary

UNREAD: Final = -1  # in place of a trace: the span's records were not read


class Step(NamedTuple):
    """One execution of a step; `end` is that of its phase on the host, `net` its own time (rule R3).

    `given`: the number that its loop gave it. `trace`: id of the trace if somebody else has chosen it, else 0;
    ``UNREAD``.
    """

    attempt: int
    number: int
    begin: int
    end: int
    net: int
    device_begin: int
    device_end: int
    fate: int
    clock: int
    flags: int
    key: int
    given: int = NO_STEP
    trace: int = UNREAD


@dataclass
class Phase:
    """One phase other than a step; `parent` is the key of the phase around it, 0 if that is the job or not told.

    `step`: the step that it belongs to, or the label of a checkpoint; ``NO_STEP``. `given`: the number that it was
    recorded with. `trace` is as that of a step.
    """

    attempt: int
    phase: int
    name: str
    begin: int
    end: int
    step: int
    flags: int
    key: int
    parent: int = 0
    given: int = NO_STEP
    trace: int = UNREAD


@dataclass
class Attempt:
    """One attempt: from its first job start to its end or last sign of life; `reached` is that moment.

    `ended`: its job has ended; `clean`: without an error. `shift`: what is added to its times, as its clock is behind
    that of the account, ns.
    """

    number: int
    begin: int
    reached: int
    ended: bool = False
    clean: bool = False
    shift: int = 0


@dataclass
class Detail:
    """What a journal tells.

    Attributes:
        begin: first job start, None if there was none.
        reached: the moment of the account.
        names: names of custom phases, in order of their category numbers.
        owners: (begin, end, category number), in order.
        work: (begin, end, index in `steps` or -1 - index in `phases`): what was on the device.
        numbering: where steps are not those whose numbers their loops gave them.
    """

    begin: int | None = None
    reached: int = 0
    names: Sequence[str] = ()
    attempts: list[Attempt] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    owners: list[tuple[int, int, int]] = field(default_factory=list)
    excluded: list[tuple[int, int]] = field(default_factory=list)
    work: list[tuple[int, int, int]] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    at_risk: list[tuple[int, int]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notices: list[tuple[int, str, bool]] = field(default_factory=list)
    slices: list[tuple[int, int, int, int]] = field(default_factory=list)
    numbering: Sequence[Stretch] = ()

    def partition(self, begin: int, end: int) -> Counter[int]:
        """Return the time in [`begin`, `end`] by category number, ns."""
        found: Counter[int] = Counter()
        at = bisect_right(self.owners, begin, key=lambda owner: owner[1])
        for start, stop, category in self.owners[at:]:
            if start >= end:
                break
            found[category] += min(stop, end) - max(start, begin)
        return found
