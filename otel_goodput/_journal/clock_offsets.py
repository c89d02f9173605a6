"""By how much the times of ranks were corrected, as a small file of the leader: reports do the same (rule R11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, NUMBER, Each, Row
from otel_goodput._accounting.rank_clocks import Offset, RankClock
from otel_goodput._journal.rundir import OFFSETS, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept

ROWS: Final = 8192  # the latest ones are kept


class KnownOffset(NamedTuple):
    """An offset of the process that is `rank` in an `attempt`."""

    rank: int
    attempt: int
    since: int
    ahead: int
    bound: int


_FILE: Final = Sidecar(
    "offsets of clocks",
    Members({"offsets": Each(Row(COUNT, COUNT, COUNT, NUMBER, COUNT, make=KnownOffset._make))}),
    OFFSETS,
)


def write_offsets(run: RunDirectory, leader: int, offsets: Sequence[KnownOffset]) -> bool:
    """Write the file of a `leader`; return whether that worked. An error is reported once."""
    data = _FILE.encode(offsets=[tuple(one) for one in offsets[-ROWS:]])
    return kept(run.file("offsets", leader), data, "offsets", "how far clocks of ranks are ahead cannot be saved: %s")


def read_offsets(run: RunDirectory) -> list[KnownOffset]:
    """Read those of all leaders; what cannot be read is left out."""
    known: list[KnownOffset] = []
    for path in run.offsets_paths():
        with suppress(OSError, ValueError):
            known += _FILE.read(path)["offsets"]
    return known


def clocks_of(known: Sequence[KnownOffset]) -> Mapping[int, Mapping[int, RankClock]]:
    """Return the clocks of ranks, by rank and attempt, as far as they differ."""
    clocks: dict[int, dict[int, RankClock]] = {}
    for one in sorted(set(known)):
        clock = clocks.setdefault(one.rank, {}).setdefault(one.attempt, RankClock())
        clock.set(Offset(one.since, one.ahead, one.bound))
    return clocks


def latest_offsets(known: Sequence[KnownOffset]) -> Mapping[int, Offset]:
    """Return the latest offset of each rank."""
    return {one.rank: Offset(one.since, one.ahead, one.bound) for one in sorted(set(known))}
