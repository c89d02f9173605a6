"""A run's folder as it is at one moment, for who asks about hundreds of processes: its names are read once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.journal.segment_file import NAME

_OF_PROCESS: Final = re.compile(r"(?:a\d{4,10}-)?p(\d{4,9})[-.].*")
MOST: Final = 65_536  # processes


class ListedRun(RunDirectory):
    """A run's folder whose names do not change.

    Attributes:
        there: indices of the processes that left files.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._listed = super()._all_names()
        self._known = frozenset(self._listed)
        self._segments: dict[int, list[str]] = {}
        self.there: set[int] = set()
        for name in self._listed:
            if match := NAME.fullmatch(name):
                self._segments.setdefault(int(match[2]), []).append(name)
            if (match := _OF_PROCESS.fullmatch(name)) and int(match[1]) < MOST:
                self.there.add(int(match[1]))

    def _names(self, process: int) -> list[str]:
        return self._segments.get(process, [])

    def _all_names(self) -> list[str]:
        return self._listed

    def recorded(self, process: int) -> bool:
        """Whether a process left a part of a journal, or a summary of one."""
        summaries = self.snapshot_path(process), self.digest_path(process)
        return process in self._segments or any(path.name in self._known for path in summaries)
