"""For which of its ranks a job waited, as a small file beside the job's own records, which have the time itself."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from otel_goodput._accounting.codec import COUNT, FLAG, NUMBER, TEXT, Blobs, Each, Row, Whole
from otel_goodput._accounting.job import Cause, Costs
from otel_goodput._accounting.rules import CATEGORY_INDEX, NAMES
from otel_goodput._journal.rundir import WAITS, RunDirectory
from otel_goodput._journal.sidecars import Members, Sidecar, kept
from otel_goodput._text.redact import encodable

CAUSES: Final = 1024  # of them, those with the longest waits are kept
BINS: Final = 8192  # rows

_FILE: Final = Sidecar(
    "waits of a job",
    Members(
        {
            "ranks": COUNT,
            "together": FLAG,
            "until": NUMBER,
            "causes": Each(Row(COUNT, TEXT, TEXT, COUNT, NUMBER, NUMBER)),
            "width": Whole(0, 64),
            "bins": Each(Row(NUMBER, COUNT, COUNT)),
        }
    ),
    WAITS,
)


class JobWaits(NamedTuple):
    """What a job of so many `ranks` waited for `until` a moment (ns).

    `together`: its ranks step together, else the job's own records do not have the job.
    """

    ranks: int
    together: bool
    until: int
    costs: Costs


def plain_waits(waits: JobWaits) -> dict[str, Any]:
    """Return them as the members of the file."""
    costs = waits.costs
    causes = sorted(costs.whole, key=lambda cause: (-costs.whole[cause], cause))[:CAUSES]
    numbers = {cause: number for number, cause in enumerate(causes)}
    rows = [
        (number, numbers[cause], spent)
        for number, held in costs.over_time.bins.items()
        for cause, spent in held.items()
        if cause in numbers
    ]
    return {
        "ranks": waits.ranks,
        "together": waits.together,
        "until": waits.until,
        "causes": [
            (one.rank, NAMES[one.category], encodable(one.name), costs.whole[one], *costs.latest[one]) for one in causes
        ],
        "width": costs.over_time.power,
        "bins": rows[-BINS:],
    }


def write_waits(folder: RunDirectory, waits: JobWaits) -> bool:
    """Write the file in the folder of the job's own records; return whether that worked. An error is reported once."""
    data = _FILE.encode(**plain_waits(waits))
    return kept(folder.file("waits", 0), data, "waits", "for which ranks the job waited cannot be saved: %s")


def read_waits(folder: RunDirectory) -> JobWaits:
    """Read the file. Raises OSError, or ValueError: it is damaged, or of a newer version."""
    return _waits_of(_FILE.read(folder.file("waits", 0)))


def waits_of(plain: Any) -> JobWaits:
    """Return what :func:`plain_waits` was given. Raises ValueError: it contradicts itself."""
    return _waits_of(_FILE.members.load(plain, Blobs()))


def _waits_of(members: dict[str, Any]) -> JobWaits:
    costs, causes = Costs(), list[Cause]()
    for rank, category, name, spent, since, until in members["causes"]:
        if category not in CATEGORY_INDEX:
            raise ValueError(f"there is no category {category!r:.40}")
        cause = Cause(rank, CATEGORY_INDEX[category], name)
        causes.append(cause)
        costs.whole[cause], costs.latest[cause] = spent, (since, until)
    bins: dict[int, dict[Cause, int]] = {}
    for number, which, spent in members["bins"]:
        if which >= len(causes):
            raise ValueError("a bin has a cause that there is none of")
        bins.setdefault(number, {})[causes[which]] = spent
    costs.over_time.restore(members["width"], bins)
    return JobWaits(members["ranks"], members["together"], members["until"], costs)
