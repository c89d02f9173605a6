"""Tells a sample timeline to the live API, with the times that it says.

As a script it tells one attempt that dies at its end:
``python -m backfill CASE ATTEMPT BASE DIRECTORY ORDER``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import otel_goodput as goodput

NS = 1_000_000_000
CASES = Path(__file__).parent / "accounting" / "cases"

Row = dict[str, Any]


def read_case(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())
    return case


def rows_of(case: dict[str, Any], attempt: int) -> list[Row]:
    return [row for row in case["events"] if row.get("attempt", 1) == attempt]


def dies(case: dict[str, Any], attempt: int) -> bool:
    return any(row["kind"] == "job" and row["end"] is None for row in rows_of(case, attempt))


def _ns(base: int, seconds: float) -> int:
    return base + round(seconds * NS)


def _phase(row: Row, base: int, rows: Iterable[Row]) -> AbstractContextManager[Any]:
    times: dict[str, Any] = {"start_time": _ns(base, row["start"])}
    if row["end"] is not None:
        times["end_time"] = _ns(base, row["end"])
    kind = row["kind"]
    if kind == "job":
        return goodput.job(**times)
    if "blocking" in row:
        times["blocking"] = row["blocking"]
    elif kind == "data_loading":
        # A timeline has no threads: what lies inside a step is taken for a prefetch.
        end = float("inf") if row["end"] is None else row["end"]
        for other in rows:
            over = float("inf") if other["kind"] == "step" and other["end"] is None else other["end"]
            if other["kind"] == "step" and other["start"] <= row["start"] and end <= over:
                times["blocking"] = False
    named: dict[str, Callable[..., AbstractContextManager[Any]]] = {
        "step": goodput.step,
        "checkpoint_save": goodput.checkpoint_save,
        "checkpoint_restore": goodput.checkpoint_restore,
        "custom": goodput.custom,
        "elastic_wait": goodput.elastic_wait,
    }
    if kind in ("step", "checkpoint_save", "checkpoint_restore"):
        return named[kind](row.get("step"), **times)
    if kind in ("custom", "elastic_wait"):
        return named[kind](row["name"], **times)
    phase: AbstractContextManager[Any] = getattr(goodput, kind)(**times)
    return phase


def _slices(row: Row, base: int) -> None:
    goodput.slice_counts(row["active"], row["available"], row["total"], time=_ns(base, row["start"]))


def tell_in_start_order(rows: list[Row], base: int) -> None:
    """One phase after the other in the order of their starts, each whole; the job stays open around them."""
    (job,) = (row for row in rows if row["kind"] == "job")
    whole = _phase(job, base, rows)
    whole.__enter__()
    for row in sorted(rows, key=lambda row: row["start"]):
        if row["kind"] == "slice_counts":
            _slices(row, base)
        elif row is not job:
            phase = _phase(row, base, rows)
            phase.__enter__()
            if row["end"] is not None:
                phase.__exit__(None, None, None)
    if job["end"] is not None:
        whole.__exit__(None, None, None)


def tell_as_it_happened(rows: list[Row], base: int) -> None:
    """Every boundary in the order of time, phases nested in one another; ends before starts, inner ends first."""
    boundaries: list[tuple[float, int, float, int, Row]] = []
    for at, row in enumerate(rows):
        end = float("inf") if row["end"] is None else row["end"]
        boundaries.append((row["start"], 1, -end, at, row))
        if row["end"] is not None and row["kind"] != "slice_counts":
            boundaries.append((row["end"], 0 if row["end"] > row["start"] else 2, -row["start"], -at, row))
    opened: dict[int, AbstractContextManager[Any]] = {}
    for _, order, _, _, row in sorted(boundaries, key=lambda boundary: boundary[:4]):
        if row["kind"] == "slice_counts":
            _slices(row, base)
        elif order == 1:
            opened[id(row)] = phase = _phase(row, base, rows)
            phase.__enter__()
        else:
            opened.pop(id(row)).__exit__(None, None, None)


ORDERS = {"in start order": tell_in_start_order, "as it happened": tell_as_it_happened}


def main() -> None:
    name, attempt, base, directory, order = sys.argv[1:]
    goodput.configure("backfill", run_id="run", directory=directory, exporters="none")
    ORDERS[order](rows_of(read_case(name), int(attempt)), int(base))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
