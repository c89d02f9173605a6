"""``otel-goodput report``: the account of a run, from its journal."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_goodput._runtime import files
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import add_questions, add_run, found_in, number, place
from otel_goodput._tools.manual import DAMAGED
from otel_goodput._tools.progress import ProgressLine
from otel_goodput._viewer.document import document
from otel_goodput._viewer.page import html
from otel_goodput.errors import ConfigurationError
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.session import SPANS, Session

if TYPE_CHECKING:
    from otel_goodput.reports.records import Slowest
    from otel_goodput.reports.report import Report
    from otel_goodput.reports.run import RecordedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    add_run(parser)
    add_questions(parser)
    words = "also list the N slowest steps (reads the whole journal)"
    parser.add_argument("--slowest", type=number, default=0, metavar="N", help=words)
    page = parser.add_argument_group("as a page", "one HTML file with charts and a timeline; works offline")
    page.add_argument("--html", default=None, metavar="FILE", help="write the page to FILE (- for standard output)")
    words = "show up to N steps and phases individually (default: 200000); of a longer run, those around its events"
    page.add_argument("--spans", type=number, default=None, metavar="N", help=words)


def print_one(report: Any, as_json: bool, slowest: Slowest | None = None) -> None:
    """Print a report or totals, as text or JSON, and the `slowest` steps if they were asked for."""
    if as_json:
        more = {} if slowest is None else {"slowest_steps": slowest.to_json()}
        print(json.dumps({**report.to_json(), **more}))
    else:
        print(report, end="")
        for line in () if slowest is None else slowest.lines():
            print(line)


def run(options: argparse.Namespace) -> int:
    """Print the report of a run, or of several, or write its page; returns the exit status.

    Raises:
        JournalError: there is no such run, or it left no journal.
        ConfigurationError: options do not go with each other.
        OSError: the page cannot be written.
    """
    from otel_goodput.errors import JournalError
    from otel_goodput.reports import listing

    with found_in(options) as found:
        entries = listing.entries(found, options.process)
        newest = entries[0].run if entries else found[0]
        if options.html is not None:
            from otel_goodput._tools.report import write

            return write(newest, options)
        if len(found) == 1 or len(entries) == 1:
            one = _report_of(newest, options)
            print_one(one, options.json, _slowest(newest, options))
            return _status([one])
        if not entries:
            raise JournalError(f"none of {len(found)} runs has a journal of process {options.process}")
        if options.json:
            reports = [_attempted(entry.run, options) for entry in entries]
            print(json.dumps({"runs": [one if isinstance(one, dict) else one.to_json() for one in reports]}))
            return _status(reports)
        print(listing.choice(entries, shown(place(options))))
        reports = []
        for entry in entries:
            one = _attempted(entry.run, options)
            reports.append(one)
            if not isinstance(one, dict):  # otherwise show the next newest run
                print_one(one, False, _slowest(entry.run, options))
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


def _slowest(run: RecordedRun, options: argparse.Namespace) -> Slowest | None:
    """Return the slowest steps; None if they were not asked for."""
    if not options.slowest:
        return None
    from otel_goodput.reports.records import slowest

    return slowest(run.detail(options.process), options.slowest)


def _report_of(run: RecordedRun, options: argparse.Namespace) -> Report:
    return run.report(
        at=options.at,
        windows=options.window,
        exclusions=options.exclude,
        ideal_step_time=options.ideal_step_time,
        process=options.process,
    )


_MB: Final = 1e6


def write(run: RecordedRun, options: argparse.Namespace) -> int:
    """Write the page of a run to ``options.html``; prints where it is. Returns the exit status.

    Raises:
        ConfigurationError: the file is a directory, or an option does not go with a page.
        OSError: the file cannot be written.
    """
    for name in ("window", "exclude", "ideal_step_time", "json"):
        if getattr(options, name):
            raise ConfigurationError(
                f"--html always shows the whole run: it cannot be combined with --{name.replace('_', '-')}"
            )
    if options.process:
        raise ConfigurationError("--html always shows all processes: it cannot be combined with --process")
    to_stdout = options.html == "-"
    place = files.named(options.html)
    if not to_stdout and files.is_folder(place):
        raise ConfigurationError(f"{options.html} is a directory: name a file, such as {options.html}/report.html")
    spans = SPANS if options.spans is None else options.spans
    with ProgressLine() as progress:
        session = Session.open(run, spans=spans, progress=progress, at=options.at)
        progress(0, 0, "writing the page")
        page = html(document(session)).encode()
    if to_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
    else:
        files.write_for_owner(place, page)
        print(f"{shown(str(place))}: {len(page) / _MB:.1f} MB")
    return DAMAGED if session.report.damaged else 0
