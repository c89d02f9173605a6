"""``otel-goodput stacks``: where each rank of a job stands still."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from otel_goodput._incidents.collectives import RAS_S, RECORDER, ras_port, ras_status
from otel_goodput._incidents.watchdog import STACKS_REQUEST
from otel_goodput._journal import requests
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_moment
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import add_directory, add_json, add_run, named_as, named_runs, only, place
from otel_goodput._tools.commands import DAMAGED
from otel_goodput._tools.profile import awaited, chosen
from otel_goodput.errors import ConfigurationError
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import Standstill, standstill

NOW_S: Final = 5.0  # processes look for requests once a second
PORTS: Final = 4  # on which NCCL is looked for; all ranks of a machine usually share one


def _attempt(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def add_stacks_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder of a run, or folder or URL of all runs")
    add_run(parser)
    words = "attempt N, counted from 1 (default: the latest)"
    parser.add_argument("--attempt", type=named_as("number", _attempt), metavar="N", help=words)
    parser.add_argument("--all", action="store_true", help="print the stacks of all threads of all ranks")
    words = "have all ranks of a living job write their stacks now, whether they stand still or not"
    parser.add_argument("--now", action="store_true", help=words)
    add_json(parser)


def run_stacks(options: argparse.Namespace) -> int:
    """Print where the ranks of a run stand still, and return 0, or 3 if a file of theirs cannot be read."""
    if options.now and options.attempt is not None:
        raise ConfigurationError("--now is about the attempt that runs: it cannot be combined with --attempt")
    if options.now:
        run, still = _now(options)
    else:
        with named_runs(options) as runs:
            run = only(runs)
            still = standstill(run, None if options.attempt is None else options.attempt - 1)
    traces = _recorders(still)
    if options.json:
        status = _ras(run, still)
        traced = [{"rank": rank, "path": path, "bytes": size, "written": at} for rank, path, size, at in traces]
        print(json.dumps({**still.to_json(every=options.all), "flight_recorder": traced, "ras": status}))
    else:
        for line in still.lines(every=options.all):
            print(line)
        for rank, path, size, at in traces:
            print(f"\nflight recorder of rank {rank}: {path}, {size:,} bytes, written {format_moment(at)}")
        sys.stdout.flush()  # NCCL may not answer, and these are here
        if (status := _ras(run, still)) is not None:
            print("\n".join(["", "NCCL says of its ranks (RAS):", *(f"    {line}" for line in status.splitlines())]))
    for name, error in still.unread:
        print(f"otel-goodput: {shown(name)} cannot be read: {shown(str(error))}", file=sys.stderr)
    return DAMAGED if still.unread else 0


def _now(options: argparse.Namespace) -> tuple[RecordedRun, Standstill]:
    """Have all ranks write their stacks; those that do not answer in time are named."""
    folder, attempt, alive = chosen(place(options), options.run_id)
    request = requests.make(STACKS_REQUEST, attempt)
    requests.post(folder, request)
    awaited(folder, request, alive, NOW_S, "waiting for stacks")
    run = RecordedRun(folder)
    return run, standstill(run, attempt, request=request.id)


def _recorders(still: Standstill) -> list[tuple[int, str, int, float]]:
    """Return rank, path, size and time (s) of the dumps of PyTorch's flight recorder that are here.

    They are pickles, which may run anything when they are read, so they are not: ``torchfrtrace`` does that.
    """
    there = []
    for rank, dump in sorted(still.dumps.items()):
        for path in filter(None, dump.about.get(RECORDER, "").split(os.pathsep)):
            size, changed = files.version(Path(path))
            if changed >= dump.since:  # that of an earlier job is of no use
                there.append((rank, shown(path), size, changed / NS))
    return there


def _ras(run: RecordedRun, still: Standstill) -> str | None:
    """Return what NCCL says of a job that lives on this machine; None if it cannot be asked."""
    here = (dump.about for rank, dump in sorted(still.dumps.items()) if run.folder.lock(still.attempt, rank).here())
    ports = dict.fromkeys(filter(None, map(ras_port, here)))
    statuses = (ras_status(port, RAS_S) for port in list(ports)[:PORTS])
    return next((status for status in statuses if status is not None), None)
