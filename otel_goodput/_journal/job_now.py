"""What each rank of a job does, and for whom they wait, as a small file beside the job's own records."""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, FLAG, NUMBER, TEXT, Each, Row
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.rank_updates import DOING, Opened
from otel_goodput._journal.rundir import NOW, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept
from otel_goodput._text.redact import encodable

_CATEGORIES: Final = {name: category for category, name in reversed(DOING.items())}

RANKS: Final = 1024  # at most: the one that the others wait for, those that are silent, and the first ones

_FILE: Final = Sidecar(
    "what the ranks of a job do",
    Members(
        {
            "at": NUMBER,
            "expected": COUNT,
            # The rank, host, process id, last sign of life, whether it is silent; what is open, or nothing.
            "ranks": Each(Row(COUNT, TEXT, COUNT, NUMBER, FLAG, TEXT, TEXT, NUMBER, NUMBER)),
            "waiting": Each(Row(COUNT, TEXT, TEXT, NUMBER), most=1),
        }
    ),
    NOW,
)


class RankDoing(NamedTuple):
    """What one rank does.

    Attributes:
        host, pid: of its process; empty and 0 if that is not known.
        at, silent: its last sign of life, ns; others have given theirs since, so that nothing of it is known.
        opened: what it does; None if no phase is open.
    """

    rank: int
    host: str
    pid: int
    at: int
    silent: bool
    opened: Opened | None


class JobNow(NamedTuple):
    """What the ranks of a job do at a moment (ns), of which there are so many as `expected`.

    `cause`: for which rank they wait, if that is known, and `since` when (ns).
    """

    at: int
    expected: int
    ranks: list[RankDoing]
    cause: Cause | None = None
    since: int = 0


def write_now(folder: RunDirectory, now: JobNow) -> bool:
    """Write the file in the folder of the job's own records; return whether that worked. An error is reported once."""
    waited = None if now.cause is None else now.cause.rank
    first = sorted(now.ranks, key=lambda one: (one.rank != waited, not one.silent, one.rank))[:RANKS]
    cause = now.cause
    data = _FILE.encode(
        at=now.at,
        expected=now.expected,
        ranks=[(one.rank, encodable(one.host), one.pid, one.at, one.silent, *_opened(one.opened)) for one in first],
        waiting=[] if cause is None else [(cause.rank, DOING[cause.category], encodable(cause.name), now.since)],
    )
    return kept(folder.file("now", 0), data, "now", "what the ranks of the job do cannot be saved: %s")


def _opened(opened: Opened | None) -> tuple[str, str, int, int]:
    if opened is None:
        return "", "", 0, 0
    return opened.phase, encodable(opened.name), opened.number, opened.since


def read_now(folder: RunDirectory) -> JobNow:
    """Read the file. Raises OSError, or ValueError: it is damaged, or of a newer version."""
    members = _FILE.read(folder.file("now", 0))
    ranks = [
        RankDoing(rank, host, pid, at, silent, Opened(_category(category), name, number, since) if category else None)
        for rank, host, pid, at, silent, category, name, number, since in members["ranks"]
    ]
    waiting = [(Cause(rank, _category(category), name), since) for rank, category, name, since in members["waiting"]]
    cause, since = waiting[0] if waiting else (None, 0)
    return JobNow(members["at"], members["expected"], sorted(ranks), cause, since)


def _category(name: str) -> int:
    if name not in _CATEGORIES:
        raise ValueError(f"there is no category {name!r:.40}")
    return _CATEGORIES[name]
