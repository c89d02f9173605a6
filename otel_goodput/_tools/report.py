"""``otel-goodput report``, ``runs`` and ``replay``: the account of a run, of several, and of a timeline."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from otel_goodput._runtime import files
from otel_goodput._settings.options import parse_windows
from otel_goodput._text.durations import Moment
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import (
    add_account,
    add_directory,
    add_json,
    add_rank,
    add_run,
    named_as,
    named_runs,
    number,
    place,
)
from otel_goodput._tools.commands import DAMAGED
from otel_goodput._tools.waiting import ProgressLine
from otel_goodput.errors import ConfigurationError, JournalError
from otel_goodput.reports import SPANS, listing
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

_MB: Final = 1e6


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder of a run, or folder or URL of all runs")
    add_run(parser, " (default: the newest)")
    add_rank(parser)
    add_account(parser)
    words = "rolling windows, such as 15m,1h; may be repeated (default: those that the run was configured with)"
    lengths = named_as("list of lengths", parse_windows)
    parser.add_argument("--rolling", type=lengths, action="extend", default=[], metavar="LIST", help=words)
    words = "read the journals of all ranks for the account of the job (R11), however long that takes"
    parser.add_argument("--exact", action="store_true", help=words)
    words = "also list the N slowest steps (reads the whole journal)"
    parser.add_argument("--slowest", type=number, default=0, metavar="N", help=words)
    page = parser.add_argument_group("as a page", "one HTML file with charts and a timeline; works offline")
    page.add_argument("--html", metavar="FILE", help="write the page to FILE (- for standard output)")
    words = "show up to N steps and phases individually (default: 200000); of a longer run, those around its events"
    page.add_argument("--spans", type=number, metavar="N", help=words)


def run_report(options: argparse.Namespace) -> int:
    """Print the report of a run, or of several, or write its page; returns the exit status."""
    for name in ("process", "html", "slowest"):
        if options.exact and getattr(options, name) not in (None, 0):
            raise ConfigurationError(f"--exact reports the job of all ranks: it cannot be combined with --{name}")
    with named_runs(options) as runs:
        entries = listing.entries(runs, options.process)
        newest = entries[0].run if entries else runs[0]
        if options.html is not None:
            return _write_page(newest, options)
        if len(runs) == 1 or len(entries) == 1:
            report = _report_of(newest, options)
            _print(report, options.json, newest, options)
            return _status([report])
        if not entries:
            whose = "" if options.process is None else f" of process {options.process}"
            raise JournalError(f"none of {len(runs)} runs has a journal{whose}")
        if options.json:
            reports = [_attempted(entry.run, options) for entry in entries]
            print(json.dumps({"runs": [one if isinstance(one, dict) else one.to_json() for one in reports]}))
            return _status(reports)
        print(listing.choice(entries, shown(place(options))))
        reports = []
        for entry in entries:
            reports.append(_attempted(entry.run, options))
            if not isinstance(reports[-1], dict):  # otherwise show the next newest run
                _print(reports[-1], False, entry.run, options)
                break
        return _status(reports)


def _status(reports: Sequence[Any]) -> int:
    """Return 3 if one of the reports is missing or incomplete, else 0."""
    return DAMAGED if any(isinstance(one, dict) or one.damaged for one in reports) else 0


def _attempted(run: RecordedRun, options: argparse.Namespace) -> Any:
    """Return the report of one run of several; if that fails, the error as a JSON object."""
    try:
        return _report_of(run, options)
    except Exception as error:  # an error in one run must not prevent the reports of the others
        why = shown(str(error) or type(error).__name__)
        logging.getLogger(__name__).warning("run %s cannot be reported: %s", shown(repr(run.run_id)), why)
        return {"run_id": run.run_id, "error": why}


def _report_of(run: RecordedRun, options: argparse.Namespace) -> Report:
    return run.report(
        at=options.at,
        windows=options.window,
        exclusions=options.exclude,
        ideal_step_time=options.ideal_step_time,
        process=options.process,
        exact=options.exact,
        rolling=options.rolling,
    )


def _print(report: Any, as_json: bool, run: RecordedRun | None, options: argparse.Namespace) -> None:
    """Print a report or totals, as text or JSON, and the slowest steps of `run` if `options` ask for them."""
    slowest = None
    if run is not None and options.slowest:
        from otel_goodput.reports.records import slowest as slowest_of

        slowest = slowest_of(run.detail(run.first() if options.process is None else options.process), options.slowest)
    if as_json:
        more = {} if slowest is None else {"slowest_steps": slowest.to_json()}
        print(json.dumps({**report.to_json(), **more}))
    else:
        print(report, end="")
        for line in () if slowest is None else slowest.lines():
            print(line)


def _write_page(run: RecordedRun, options: argparse.Namespace) -> int:
    """Write the page of a run to ``options.html``; prints where it is. Returns the exit status."""
    from otel_goodput._viewer.document import document
    from otel_goodput._viewer.page import html

    for name in ("window", "exclude", "ideal_step_time", "rolling", "json"):
        if getattr(options, name):
            raise ConfigurationError(
                f"--html always shows the whole run: it cannot be combined with --{name.replace('_', '-')}"
            )
    if options.process:
        raise ConfigurationError("--html always shows all processes: it cannot be combined with --process")
    to_stdout = options.html == "-"
    path = files.named(options.html)
    if not to_stdout and files.is_folder(path):
        raise ConfigurationError(f"{options.html} is a directory: name a file, such as {options.html}/report.html")
    spans = SPANS if options.spans is None else options.spans
    with ProgressLine() as progress:
        session = RunView.open(run, spans=spans, progress=progress, at=options.at)
        progress(0, 0, "writing the page")
        page = html(document(session)).encode()
    if to_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
    else:
        files.write_for_owner(path, page)
        print(f"{shown(str(path))}: {len(page) / _MB:.1f} MB")
    return DAMAGED if session.report.damaged else 0


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder or URL of all runs", metavar="DIR")
    add_rank(parser)
    add_json(parser)


def run_runs(options: argparse.Namespace) -> int:
    """Print the runs of a place, and return 0, or 3 if one of them, or a part of it, cannot be read."""
    options.run_id, where = None, place(options)
    with ProgressLine() as progress, named_runs(options) as runs:
        progress(0, 0, f"reading {where}")
        rows = listing.rows(runs, options.process, progress)
    if not rows:
        raise JournalError(f"{shown(where)} holds no run that can be read")
    if options.json:
        print(json.dumps({"runs": [row.to_json() for row in rows]}))
    else:
        print(listing.render(rows, shown(where)), end="")
    return DAMAGED if any(row.error or row.damaged for row in rows) else 0


_NEUTRAL: Final = "timeline"
_ML_GOODPUT: Final = "ml-goodput"


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    words = "JSON-lines file (- for standard input), or the folder of a run (times in Unix seconds)"
    parser.add_argument("file", type=Path, help=words)
    words = (
        f"{_NEUTRAL}: see docs/accounting.md; {_ML_GOODPUT}: what ml-goodput-measurement wrote to Cloud Logging "
        "(as `gcloud logging read --format=json` prints it), or its *_timeline.jsonl"
    )
    parser.add_argument("--format", choices=(_NEUTRAL, _ML_GOODPUT), default=_NEUTRAL, help=words)
    parser.add_argument("--job", metavar="NAME", help=f"the job, if a file of {_ML_GOODPUT} holds several")
    add_account(parser)


def run_replay(options: argparse.Namespace) -> int:
    """Print the account of a timeline and return 0; of a run's folder, as ``report`` does."""
    from otel_goodput.reports.ml_goodput_entries import read_entries, rows_of
    from otel_goodput.reports.timeline import Timeline, account_timeline, read_timeline

    if options.file.is_dir():
        options.directory, options.run_id, options.process = str(options.file), None, None
        options.html, options.slowest, options.exact, options.rolling = None, 0, False, ()
        return run_report(options)
    file = None if str(options.file) == "-" else options.file
    if options.format == _ML_GOODPUT:
        timeline = Timeline(rows_of(read_entries(file), options.job))
    else:
        timeline = Timeline(read_timeline(file))
    start = timeline.earliest
    totals = account_timeline(
        timeline,
        at=None if options.at is None else options.at.since(start),
        windows=_intervals(options.window, start),
        exclusions=_intervals(options.exclude, start),
        ideal_step_time=options.ideal_step_time,
    )
    _print(totals if options.json else Report(totals, {}), options.json, None, options)
    return 0


def _intervals(moments: Sequence[tuple[Moment, Moment]], start: int | None) -> list[tuple[int, int]]:
    return [(begin.since(start), end.since(start)) for begin, end in moments]
