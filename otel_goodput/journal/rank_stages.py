"""How long the stages of checkpoints take on each process of a run, from what every process left of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_goodput.accounting.checkpoints import RankStages, StageSums
from otel_goodput.journal.digest import read_digest
from otel_goodput.journal.listed_run import ListedRun
from otel_goodput.journal.overviews import overview_of
from otel_goodput.journal.rundir import RunDirectory

READ_ANEW: Final = 16  # processes without a digest whose journals are read; those of more would take too long


def rank_stages(run: RunDirectory, process: int, own: Mapping[str, StageSums]) -> list[RankStages]:
    """Return the stages of all processes of a run that tell of any, by process.

    A process that is alive tells them up to half a minute late. Processes whose files cannot be read are left out.

    Args:
        run: the run's folder.
        process: the one whose stages are known already.
        own: its stages.
    """
    listed, found, unread = ListedRun(run.path), {process: own}, READ_ANEW
    for index in listed.there:
        if index == process:
            continue
        try:
            found[index] = read_digest(listed, index, only=()).overview.stages
        except (OSError, ValueError):  # there is none if it was killed early
            if unread > 0:
                unread -= 1
                found[index] = _recorded(listed, index)
    return [RankStages(index, sums) for index, sums in sorted(found.items()) if sums]


def _recorded(run: RunDirectory, process: int) -> Mapping[str, StageSums]:
    """Return the stages that a journal tells; none if it cannot be read."""
    try:
        told = overview_of(run, process)
    except Exception:  # whatever one process left must not hide the others
        return {}
    return {} if told is None else told.overview.stages
