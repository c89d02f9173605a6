"""List the runs of a folder, the latest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from otel_goodput.journal.rundir import RunDirectory
from otel_goodput.text.durations import NS
from otel_goodput.text.quantities import format_moment, plural
from otel_goodput.text.redact import shown

SHOWN: Final = 20


class Entry(NamedTuple):
    """One run: its folder, its id, when its latest attempt began (ns; None: not known), and the number of attempts."""

    run: RunDirectory
    run_id: str
    began: int | None
    attempts: int


def entries(runs: Iterable[RunDirectory], process: int = 0) -> list[Entry]:
    """Return the runs with a journal of `process`, the latest first; only the beginning of a journal is read."""
    found = []
    for run in runs:
        attempts = run.attempts(process)
        if attempts:
            found.append(Entry(run, run.called(), run.began(process), attempts[-1] + 1))
    return sorted(found, key=lambda entry: (-(entry.began or 0), entry.run_id))


def render(found: list[Entry], place: str) -> str:
    """Return the list as text; `place` says where the runs are."""
    return "".join(f"{shown(line)}\n" for line in _lines(found, place))


def _lines(found: list[Entry], place: str) -> Iterator[str]:
    yield f"{len(found)} runs in {place}; the newest is shown, --run ID shows another:"
    width = max(len(entry.run_id) for entry in found[:SHOWN])
    for entry in found[:SHOWN]:
        began = "" if entry.began is None else f"  since {format_moment(entry.began / NS)}"
        yield f"  {entry.run_id:<{width}}  {plural(entry.attempts, 'attempt'):<11}{began}"
    if len(found) > SHOWN:
        yield f"  and {len(found) - SHOWN} older ones"
