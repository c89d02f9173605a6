"""The index of this process in its job, and the number of processes: who knows them, and whom to believe.

What is initialized in this process (:mod:`~otel_goodput.placement.initialized`) knows more than the variables of the
launchers (:mod:`~otel_goodput.placement.variables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otel_goodput.placement import initialized
from otel_goodput.placement.kinds import LARGEST, Place, Told, number
from otel_goodput.placement.variables import (
    HOSTS,
    LAUNCHERS,
    NUMBERS,
    of_environment,
    several_hosts,
)

__all__ = ["HOSTS", "LARGEST", "LAUNCHERS", "NUMBERS", "Place", "Told", "contradiction", "number", "place", "places",
           "several_hosts"]  # fmt: skip


def places(environ: Mapping[str, str]) -> list[Place]:
    """Return what each source says about this process, the one that knows most first."""
    return [*initialized.places(), *of_environment(environ)]


def place(environ: Mapping[str, str]) -> Place:
    """Return the place to use: the first with a rank. If that has no size, the first size of any source is taken."""
    found = places(environ)
    unknown = next((each for each in found if each.doubt), Place(None, None))
    own = next((each for each in found if each.rank is not None), unknown)
    return own if own.size else own._replace(size=next((each.size for each in found if each.size), None))


def contradiction(found: Sequence[Place]) -> str:
    """Return which sources contradict each other, as text; empty if none do.

    Sources of different sizes do not: a launcher of hosts and the launcher of several processes on each host are both
    right.
    """
    known = [(each.rank, each.size) for each in found if each.rank is not None and each.size is not None]
    for at, (rank, size) in enumerate(known):
        for other, of in known[at + 1 :]:
            if size.number == of.number > 1 and rank.number != other.number:
                return f"{rank} and {other} contradict each other, both of {size.number} processes"
    return ""
