"""Finds the runs that a command is to read, at a path or a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from otel_goodput import files
from otel_goodput.errors import JournalError
from otel_goodput.journal.mirror import Mirror, open_filesystem, plain
from otel_goodput.journal.rundir import RunDirectory, folder_name, runs
from otel_goodput.text.redact import redacting_logger, without_credentials

logger = redacting_logger(__name__)


class Found(NamedTuple):
    """A run, and the mirror it was copied from if it is at a URL."""

    run: RunDirectory
    mirror: Mirror | None


@contextmanager
def found_runs(place: str, run_id: str | None = None) -> Iterator[list[Found]]:
    """Yield the runs at `place`, or only the run `run_id`. Runs at a URL are copied to a temporary folder.

    Raises:
        JournalError: there is no such run, or the URL cannot be read.
    """
    if "://" not in place:
        yield _chosen([Found(run, None) for run in runs(Path(place))], run_id, place)
        return
    shown = without_credentials(place)
    with files.scratch() as copy:
        try:
            yield _chosen(list(_fetched(place.rstrip("/"), files.named(copy))), run_id, shown)
        except OSError as error:
            raise JournalError(f"{shown} cannot be read: {without_credentials(str(error))}") from error


def _fetched(url: str, copy: Path) -> Iterator[Found]:
    filesystem, base = open_filesystem(url)
    if filesystem.isdir(f"{base}/journal"):  # a run's own folder
        url, _, name = url.rpartition("/")
        names = [name]
    else:
        names = sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in filesystem.ls(base, detail=False))
    for name in names:
        if not plain(name):
            logger.warning("%s: %r is not the folder of a run, and is left out", without_credentials(url), name)
            continue
        found = Found(RunDirectory(copy / name), Mirror(url, RunDirectory(copy / name)))
        if found.mirror is not None and found.mirror.exists():
            try:
                found.mirror.fetch()
            except Exception as error:  # each fsspec filesystem raises its own errors
                if len(names) == 1:
                    raise
                why = without_credentials(str(error))
                logger.warning("%s: run %r cannot be read: %s", without_credentials(url), name, why)
            yield found


def _chosen(found: list[Found], run_id: str | None, place: str) -> list[Found]:
    if run_id is not None:
        known = found
        found = [
            one
            for one in found
            if one.run.identity().get("run_id") == run_id or one.run.path.name == folder_name(run_id)
        ]
        if not found:
            ids = ", ".join(str(one.run.identity().get("run_id", one.run.path.name)) for one in known)
            raise JournalError(f"{place} holds no run {run_id!r}; it holds {ids or 'none'}")
    if not found:
        raise JournalError(f"{place} holds no run")
    return found
