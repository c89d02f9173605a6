"""What a rank does itself inside its steps, and how long it waits there for others, by samples of its training thread.

In a synchronous job, all ranks' steps take equally long, because the others wait inside them for the slowest one. What
differs is the rank's own time: that of its steps, without such waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OwnTime(NamedTuple):
    """What the samples of a rank's training thread say, so far in the life of its process.

    Attributes:
        samples: how many were taken.
        inside: of these, in a step, and in no other phase;
        waiting: of these, where it waits for other ranks or for its device;
        unclear: of those inside, in calls that may compute or wait: how much processor time the thread took says which.
        lasted: the time between the samples, ns.
        computed: processor time of the thread in that time, ns.
    """

    samples: int = 0
    inside: int = 0
    waiting: int = 0
    unclear: int = 0
    lasted: int = 0
    computed: int = 0

    def since(self, before: OwnTime) -> OwnTime:
        """Return what was added since; everything if this is another process than `before`."""
        if any(mine < earlier for mine, earlier in zip(self, before, strict=True)):
            return self
        return OwnTime(*(mine - earlier for mine, earlier in zip(self, before, strict=True)))

    def shares(self) -> tuple[float, float]:
        """Return which share of all time is the rank's own time in steps, and which it waits there.

        Time outside of steps, such as loading, is in neither: the account of the job has it.
        """
        if not self.samples:
            return 0.0, 0.0
        inside = self.inside / self.samples
        clear = (self.inside - self.waiting - self.unclear) / self.samples
        own = clear
        if self.unclear and self.lasted:
            computed = self.computed / self.lasted - (1.0 - inside)  # outside of steps, it may have computed all along
            own = min(clear + self.unclear / self.samples, max(clear, computed))
        return own, inside - own


class RankTime(NamedTuple):
    """What a rank's turns of the loop took in a window, ns: its own time in the step, and its waits in it."""

    rank: int
    own: int
    waiting: int


class OwnWindow(NamedTuple):
    """The ranks' own times in one stretch of time.

    Attributes:
        begin, end: of the window, ns.
        steps: that were completed in it.
        turn: what a turn of the loop took, ns.
        usual: the own time of a usual rank in a turn, ns.
        waiting: how long a usual rank, which is not slow, waits in a turn, ns.
        without: what a turn would have taken without those that are slow, ns.
        slow: the ranks that the others waited for, slowest first.
        ranks: the times of ranks: of all if they are few, else of those that stand out.
        compared: how many ranks there were.
        bands: own times, ns, that so many of these (``BANDS``) do not exceed.
    """

    begin: int
    end: int
    steps: int
    turn: int
    usual: int
    waiting: int
    without: int
    slow: tuple[int, ...]
    ranks: tuple[RankTime, ...]
    compared: int = 0
    bands: tuple[int, ...] = ()

    @property
    def of(self) -> Mapping[int, RankTime]:
        """The times by rank."""
        return {one.rank: one for one in self.ranks}

    def saved(self, rank: int) -> int:
        """Return by how much a turn would have been shorter without one of the slow ranks, ns; 0 of another one.

        Without it, the job waits for the next slowest one.
        """
        times = self.of
        if rank not in self.slow or rank not in times:
            return 0
        others = (times[one].own for one in self.slow if one != rank and one in times)
        return max(0, min(times[rank].own - max((self.usual, *others)), self.waiting))

    def gain(self, rank: int) -> float:
        """Return by which share the job would have been faster without one of the slow ranks; 0 of another one."""
        saved = self.saved(rank)
        return saved / max(1, self.turn - saved)


class SlowRank(NamedTuple):
    """A rank that was slow inside of steps.

    Attributes:
        windows: in how many windows the others waited for it, of so many `seen` since the first of these.
        pattern: one of ``PATTERNS``.
        since, until: when the first of these windows began, and the latest ended, ns.
        own, usual: its own time in a turn, and that of a usual rank, in these windows, ns.
        lost: for how long the job waited for it in all, ns.
        gain: by how much (a share) the job would have been faster in these windows without it.
    """

    rank: int
    windows: int
    seen: int
    pattern: str
    since: int
    until: int
    own: int
    usual: int
    lost: int
    gain: float


class OwnTimes(NamedTuple):
    """The own times of the ranks of a job.

    Attributes:
        pattern: who is slow: always the same, or different ones; one of ``PATTERNS``; empty if nobody was.
        slow: those that were slow, the one that cost most first.
        windows: in the order of time.
    """

    pattern: str = ""
    slow: tuple[SlowRank, ...] = ()
    windows: tuple[OwnWindow, ...] = ()


ONCE, CHRONIC, WANDERING, RECURRING = "once", "chronic", "wandering", "recurring"
PATTERNS = (ONCE, CHRONIC, WANDERING, RECURRING)
BANDS = (0.9, 0.99)
