"""``otel-goodput replay``: the account of a timeline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_goodput._text.durations import Moment
from otel_goodput._tools import report
from otel_goodput._tools.arguments import add_questions

NEUTRAL: Final = "timeline"
ML_GOODPUT: Final = "ml-goodput"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    parser.add_argument(
        "file", type=Path, help="JSON-lines file (- for standard input), or the folder of a run (times in Unix seconds)"
    )
    parser.add_argument(
        "--format",
        choices=(NEUTRAL, ML_GOODPUT),
        default=NEUTRAL,
        help=f"{NEUTRAL}: see docs/accounting.md; {ML_GOODPUT}: what ml-goodput-measurement wrote to Cloud Logging (as "
        "`gcloud logging read --format=json` prints it), or its *_timeline.jsonl",
    )
    parser.add_argument("--job", metavar="NAME", help=f"the job, if a file of {ML_GOODPUT} holds several")
    add_questions(parser)


def run(options: argparse.Namespace) -> int:
    """Print the account of a timeline and return 0; of a run's folder, as ``report`` does.

    Raises:
        GoodputError: the timeline is wrong.
        OSError: it cannot be read.
    """
    from otel_goodput.reports.replay import account_timeline
    from otel_goodput.reports.report import Report
    from otel_goodput.reports.timeline import Timeline, read_timeline

    if options.file.is_dir():
        options.directory, options.run_id, options.process = str(options.file), None, 0
        options.html, options.slowest = None, 0
        return report.run(options)
    file = None if str(options.file) == "-" else options.file
    if options.format == ML_GOODPUT:
        from otel_goodput.reports.ml_goodput_entries import read_entries, rows

        timeline = Timeline(rows(read_entries(file), options.job))
    else:
        timeline = Timeline(read_timeline(file))
    start = timeline.earliest
    totals = account_timeline(
        timeline,
        at=None if options.at is None else options.at.since(start),
        windows=_spans(options.window, start),
        exclusions=_spans(options.exclude, start),
        ideal_step_time=options.ideal_step_time,
    )
    report.print_one(totals if options.json else Report(totals, {}), options.json)
    return 0


def _spans(asked: Sequence[tuple[Moment, Moment]], start: int | None) -> list[tuple[int, int]]:
    return [(begin.since(start), end.since(start)) for begin, end in asked]
