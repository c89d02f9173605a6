"""The overview of a process's run, from its smallest complete file: digest, or snapshot and segments."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from otel_goodput._accounting.checkpoints import RankStages, StageSums
from otel_goodput._accounting.overview import NOT_KNOWN, Overview
from otel_goodput._journal import records
from otel_goodput._journal.digest import Digest, decode
from otel_goodput._journal.rundir import DIGEST as LONGEST
from otel_goodput._journal.rundir import ListedRun, RunDirectory
from otel_goodput._runtime import files
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.recovery import restore

logger = redacting_logger(__name__)

DIGEST: Final = "digest"
SNAPSHOT: Final = "snapshot"
READ_ANEW: Final = 16  # processes without a digest whose journals are read; those of more would take too long


class FiledOverview(NamedTuple):
    """An overview and where it is from."""

    overview: Overview
    source: str  # ``DIGEST``, or ``SNAPSHOT`` and the records after it
    attempt: int  # number of the last one
    at: int  # the moment of the overview, ns
    dropped: dict[str, int]  # what a digest had to leave out, see :class:`Digest`
    damages: Damages  # what could not be read


def overview_of(
    run: RunDirectory,
    process: int = 0,
    *,
    within_s: float = 0.0,
    only: Container[str] | None = None,
) -> FiledOverview | None:
    """The overview of a process's run; None if it has left no journal that can be read.

    A process that has died has nothing in flight. The moment is now for one that is alive on this machine, else its
    last sign of life. The digest of a living process may be `within_s` seconds old; by default it is taken only if
    nothing has been recorded since. Tables `only` are enough, if there is a digest, by name of the overview's field;
    ``jobs`` is one of them.
    """
    digest: Digest | None = None
    try:
        digest = read_digest(run, process, only)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, MemoryError) as error:
        logger.warning("journal: %s is not used: %s", run.file("digest", process), error)
    if digest is not None and _tells_all(run, process, digest, within_s):
        return FiledOverview(digest.overview, DIGEST, digest.attempt, digest.written_at, digest.dropped, Damages())
    restored = restore(run, process)
    if restored.attempt < 0:
        return None
    dead = run.writing(restored.attempt, process) is False
    at = time.time_ns() if run.alive(restored.attempt, process) else restored.last_sign
    overview = restored.ledger.overview(at, dead=dead)
    return FiledOverview(overview, SNAPSHOT, restored.attempt, at, {}, restored.damages)


def read_digest(run: RunDirectory, process: int, only: Container[str] | None = None) -> Digest:
    """Read the digest of a process, or of its tables those in `only`. Raises OSError, NewerVersion, ValueError."""
    return decode(files.read(run.file("digest", process), LONGEST), only)


def _tells_all(run: RunDirectory, process: int, digest: Digest, within_s: float) -> bool:
    """Whether a digest has all that the journal has, or is young enough."""
    attempts = run.attempts(process)
    if attempts and attempts[-1] > digest.attempt and any(run.segments(process, attempts[-1])):
        return False
    open_life = bool(digest.overview.jobs) and digest.overview.jobs[-1].end == NOT_KNOWN
    alive = run.alive(digest.attempt, process)
    if alive and time.time_ns() - digest.written_at <= within_s * 1e9:
        return True
    if open_life and (alive or run.writing(digest.attempt, process) is False):
        return False  # its time goes on, or what was in flight is lost
    segments = run.segments(process, digest.attempt)
    if not segments:
        return True
    attempt, number, record = digest.position
    last = segments[-1]
    if (last.attempt, last.number) != (attempt, number):
        return (last.attempt, last.number) < (attempt, number)
    try:
        data = last.contents().data
        return records.used(data) <= record and records.decode_header(data).heartbeat <= digest.written_at
    except (OSError, EOFError, ValueError):
        return False


def rank_stages(run: RunDirectory, process: int, own: Mapping[str, StageSums]) -> list[RankStages]:
    """Return the stages of all processes of a run that recorded any, by process; those of `process` are `own`.

    A living process writes them up to half a minute late. Processes whose files cannot be read are left out.
    """
    listed, stages, unread = ListedRun(run.path), {process: own}, READ_ANEW
    for index in sorted(listed.there - {process}):
        try:
            stages[index] = read_digest(listed, index, only=()).overview.stages
        except (OSError, ValueError):  # there is none if it was killed early
            if not unread:
                continue
            unread -= 1
            with suppress(Exception):  # whatever one process left must not hide the others
                if (known := overview_of(listed, index)) is not None:
                    stages[index] = known.overview.stages
    return [RankStages(index, sums) for index, sums in sorted(stages.items()) if sums]
