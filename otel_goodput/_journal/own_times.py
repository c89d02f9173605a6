"""What the ranks of a job did themselves inside of steps, as a small file beside the job's own records."""

from __future__ import annotations

from typing import Final

from otel_goodput._accounting.codec import COUNT, Each, Row, Text
from otel_goodput._accounting.own_time import BANDS, PATTERNS, OwnTimes, OwnWindow, RankTime, SlowRank
from otel_goodput._accounting.stragglers import ALL, KEPT, NAMED, REMEMBERED
from otel_goodput._journal.rundir import OWN, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept

_MILLION: Final = 1_000_000  # parts of a share
_PATTERN: Final = Text("", *PATTERNS)

_FILE: Final = Sidecar(
    "own times of the ranks of a job",
    Members(
        {
            "pattern": _PATTERN,
            "slow": Each(Row(COUNT, COUNT, COUNT, _PATTERN, *[COUNT] * 6), REMEMBERED),
            # The window, the slow ranks, the times of ranks, how many were compared, and bands of all.
            "windows": Each(
                Row(*[COUNT] * 7, Each(COUNT, NAMED), Each(Row(*[COUNT] * 3), ALL), COUNT, Each(COUNT, len(BANDS))),
                KEPT,
            ),
        }
    ),
    OWN,
)


def write_own_times(folder: RunDirectory, own: OwnTimes) -> bool:
    """Write the file in the folder of the job's own records; return whether that worked. An error is reported once."""
    data = _FILE.encode(
        pattern=own.pattern,
        slow=[[*one[:-1], round(_MILLION * one.gain)] for one in own.slow],
        windows=list(own.windows),
    )
    return kept(folder.file("own", 0), data, "own times", "who was slow inside of steps cannot be saved: %s")


def read_own_times(folder: RunDirectory) -> OwnTimes:
    """Read the file. Raises OSError, or ValueError: it is damaged, or of a newer version."""
    members = _FILE.read(folder.file("own", 0))
    windows = [
        OwnWindow._make([*row, tuple(slow), tuple(RankTime(*one) for one in ranks), compared, tuple(bands)])
        for *row, slow, ranks, compared, bands in members["windows"]
    ]
    if any(one.end < one.begin for one in windows):
        raise ValueError("a window ends before it begins")
    slow = (SlowRank._make([*row, gain / _MILLION]) for *row, gain in members["slow"])
    return OwnTimes(members["pattern"], tuple(slow), tuple(windows))
