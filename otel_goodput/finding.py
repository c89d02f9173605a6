"""Finds the runs that a command was asked about, at a path or a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_goodput.errors import JournalError
from otel_goodput.mirror import Mirror, open_filesystem
from otel_goodput.printable import without_credentials
from otel_goodput.rundir import RunDirectory, folder_name, runs


@contextmanager
def found_runs(place: str, run_id: str | None = None) -> Iterator[list[RunDirectory]]:
    """The runs at `place`, or the one of them called `run_id`; those at a URL are copied down for the time being.

    Raises:
        JournalError: there is none.
    """
    if "://" not in place:
        yield _chosen(list(runs(Path(place).expanduser())), run_id, place)
        return
    with tempfile.TemporaryDirectory(prefix="otel-goodput-") as copy:
        filesystem, base = open_filesystem(place)
        shown = without_credentials(place)
        try:
            names = [str(name).rstrip("/").rsplit("/", 1)[-1] for name in filesystem.ls(base, detail=False)]
        except OSError as error:
            raise JournalError(f"{shown} cannot be read: {without_credentials(str(error))}") from error
        if run_id is not None:
            names = [name for name in names if name == folder_name(run_id)]
        for name in names:
            Mirror(place, RunDirectory(Path(copy) / name)).fetch()
        yield _chosen(
            [run for run in map(RunDirectory, sorted(Path(copy).iterdir())) if run.journal.is_dir()], run_id, shown
        )


def _chosen(found: list[RunDirectory], run_id: str | None, place: str) -> list[RunDirectory]:
    if run_id is not None:
        known = found
        found = [run for run in found if run.identity().get("run_id") == run_id or run.path.name == folder_name(run_id)]
        if not found:
            ids = ", ".join(str(run.identity().get("run_id", run.path.name)) for run in known)
            raise JournalError(f"{place} holds no run {run_id!r}; it holds {ids or 'none'}")
    if not found:
        raise JournalError(f"{place} holds no run")
    return found
