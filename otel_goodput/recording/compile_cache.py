"""Counts what a compiler's persistent cache reports: in this process, and since the recorder was made."""

from __future__ import annotations

from threading import get_ident
from typing import NamedTuple


class CacheFigures(NamedTuple):
    """What the cache did so far.

    Attributes:
        hits: compiled functions that it had.
        misses: functions that had to be compiled and were then stored in it.
        saved: what the hits took to compile at the time, less what it took to fetch them, s; may be negative.
    """

    hits: int
    misses: int
    saved: float


class CompileCache:
    """The counts of one recorder. Compiling threads add to them without a lock: each has counts of its own."""

    def __init__(self) -> None:
        # By thread ident. A thread that reuses the ident of an ended one goes on with its counts.
        self._lookups: tuple[dict[int, int], dict[int, int]] = ({}, {})  # misses, hits
        self._saved: dict[int, float] = {}
        self._used = False

    def use(self) -> None:
        """Note that the cache is in use, before it has had or missed anything."""
        self._used = True

    def add(self, *, hit: bool) -> None:
        """Count a function that the cache had, or that was compiled and stored."""
        counts, thread = self._lookups[hit], get_ident()
        counts[thread] = counts.get(thread, 0) + 1
        self._used = True

    def save(self, seconds: float) -> None:
        """Add what a hit saved; negative if compiling would have been quicker."""
        thread = get_ident()
        self._saved[thread] = self._saved.get(thread, 0.0) + seconds
        self._used = True

    def to_json(self) -> dict[str, float]:
        """Return hits, misses and seconds saved, ``saved_s``; empty if no cache is in use."""
        figures = self.figures()
        if figures is None:
            return {}
        return {"hits": figures.hits, "misses": figures.misses, "saved_s": figures.saved}

    def figures(self) -> CacheFigures | None:
        """Return the counts of all threads; None if no cache is in use."""
        if not self._used:
            return None
        misses, hits = (sum(counts.copy().values()) for counts in self._lookups)  # copy() is atomic
        return CacheFigures(hits, misses, sum(self._saved.copy().values(), 0.0))
