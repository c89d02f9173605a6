"""How many spans of ours a trace may hold, and which process may put how many there.

Processes do not talk about it: what each may is a function of how many they are. Half of a trace is the leader's, and
more where the others need less; the rest is shared by the others. Where they are more than that has spans, so many of
them have a trace of their own: each may say that something failed.
"""

from __future__ import annotations

from itertools import count
from typing import Final

# How much of its share a process uses for what. The rest is left for what is worth more.
ROUTINE: Final = 0  # steps that stand for others, with their loads and parts
NOTABLE: Final = 1  # what is slow, or has a name
VITAL: Final = 2  # jobs, failures, sums of what is left out
_TENTHS: Final = (6, 8, 10)

ENDLESS: Final = 1 << 62
SMALL: Final = 8  # below, a share is for failures alone
DETAILED: Final = 10  # a process whose share is this part of a trace shows single steps as the leader does
RESERVED: Final = 8  # of every trace, for what holds it together: its root, and where it goes on
TRACES: Final = 10_000  # counted at a time


def _followers(limit: int) -> int:
    """Spans of a trace of `limit` that are not the leader's; so many followers have room in one."""
    return max(1, (limit - RESERVED) // 2)


def groups(limit: int, processes: int) -> int:
    """How many groups of processes there are, each with traces of its own; the leader is in group 0."""
    return -(-processes // _followers(limit)) if limit and processes - 1 > _followers(limit) else 1


def group(limit: int, processes: int, process: int, *, leads: bool = True) -> int:
    """The group of a process."""
    return 0 if leads or groups(limit, processes) == 1 else process // _followers(limit)


def share(limit: int, processes: int, *, leads: bool = True) -> int:
    """Spans that a process may put into a trace of its group, of `limit` that all of them may.

    Args:
        processes: how many there are.
        leads: whether it is the leader.
    """
    followers = min(processes - 1, _followers(limit))
    each = max(1, _followers(limit) // followers) if followers else 0
    return max(1, limit - RESERVED - each * followers) if leads else each


class _Spent:
    """Spans that have gone into one trace."""

    __slots__ = ("_next", "spans")

    def __init__(self) -> None:
        self._next = count(1)
        self.spans = 0

    def add(self) -> None:
        self.spans = next(self._next)  # counted by one instruction, whatever the thread


class Budget:
    """What one process may put into each trace.

    Args:
        limit: spans of ours in a trace, of all processes together; 0: as many as there are.
        processes, process, leads: as of :func:`group`.

    Attributes:
        limit: as given.
        groups, group: how many there are, and which one is its own.
        most: its spans that one trace has room for.
        small: its share is for failures alone; it has no job of its own there.
        detailed: it shows single steps as the leader does.
        phases: what a phase that is no step is worth.
        refused: spans that there was no room for.
    """

    def __init__(self, limit: int = 0, processes: int = 1, process: int = 0, *, leads: bool = True) -> None:
        self.limit = limit
        self.groups = groups(limit, processes)
        self.group = group(limit, processes, process, leads=leads)
        self._spent: dict[int, _Spent] = {}
        self.most = share(limit, processes, leads=leads) if limit else ENDLESS
        self.small = self.most < SMALL
        self.detailed = leads or self.most >= limit // DETAILED
        # Of a small share all is for failures; of others some is for what turns out to belong to what is exported.
        room = self.most if self.small else self.most - min(64, max(4, self.most // 16))
        self._limits = (0, 0, room) if self.small else tuple(room * tenths // 10 for tenths in _TENTHS)
        # Who shows no single steps has none that would leave phases no room.
        self.phases = NOTABLE if self.detailed else ROUTINE
        self.refused = 0

    def summaries(self) -> int:
        """How many summaries of steps one trace has room for."""
        return max(1, self.most // 8)

    def take(self, trace_id: int, worth: int) -> bool:
        """Whether one more span `worth` that much goes into the trace: then it is counted."""
        if not self.limit:
            return True
        spent = self._spent.get(trace_id) or self._open(trace_id)
        if spent.spans >= self._limits[worth]:
            self.refused += 1
            return False
        spent.add()
        return True

    def spend(self, trace_id: int) -> None:
        """One more span goes into the trace, for something in it does."""
        if self.limit:
            (self._spent.get(trace_id) or self._open(trace_id)).add()

    def _open(self, trace_id: int) -> _Spent:
        if len(self._spent) >= TRACES:
            self._spent.pop(next(iter(self._spent)), None)
        return self._spent.setdefault(trace_id, _Spent())
