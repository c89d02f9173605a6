"""A run's folder as it is at one moment, for who asks about hundreds of processes or attempts: it is listed once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_goodput.journal.rundir import RunDirectory, log_left_out
from otel_goodput.journal.segment_file import NAME, SegmentFile

_OF_PROCESS: Final = re.compile(r"(?:a\d{4,10}-)?p(\d{4,9})[-.].*")
MOST: Final = 65_536  # processes


class ListedRun(RunDirectory):
    """A run's folder whose names do not change. The segments of a process are looked at when they are first asked for.

    Attributes:
        there: indices of the processes that left files.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._listed = super()._all_names()
        self._known = frozenset(self._listed)
        self._segments: dict[int, dict[int, list[str]]] = {}  # by process and attempt
        self._looked: dict[int, tuple[list[SegmentFile], list[tuple[Path, Exception]]]] = {}
        self.there: set[int] = set()
        for name in self._listed:
            if match := NAME.fullmatch(name):
                self._segments.setdefault(int(match[2]), {}).setdefault(int(match[1]), []).append(name)
            if (match := _OF_PROCESS.fullmatch(name)) and int(match[1]) < MOST:
                self.there.add(int(match[1]))

    def _names(self, process: int, attempt: int | None = None) -> list[str]:
        found = self._segments.get(process, {})
        return [name for names in found.values() for name in names] if attempt is None else found.get(attempt, [])

    def segments(
        self,
        process: int = 0,
        attempt: int | None = None,
        left_out: Callable[[Path, Exception], None] | None = None,
        known: dict[str, SegmentFile] | None = None,
    ) -> list[SegmentFile]:
        if attempt is not None:
            return super().segments(process, attempt, left_out, known)
        if process not in self._looked:
            unread: list[tuple[Path, Exception]] = []
            found = super().segments(process, None, lambda path, error: unread.append((path, error)), known)
            self._looked[process] = found, unread
        found, unread = self._looked[process]
        for path, error in unread:
            (left_out or log_left_out)(path, error)
        return list(found)

    def _all_names(self) -> list[str]:
        return self._listed

    def recorded(self, process: int) -> bool:
        """Whether a process left a part of a journal, or a summary of one."""
        summaries = self.snapshot_path(process), self.digest_path(process)
        return process in self._segments or any(path.name in self._known for path in summaries)
