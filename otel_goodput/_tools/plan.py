"""``otel-goodput plan``: how often to save, from a run's figures or by hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_goodput._journal import notes
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS, parse_duration
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.damage import Damages
from otel_goodput._timeline.reader import all_events
from otel_goodput._tools.arguments import add_directory, add_json, add_rank, add_run, named_as, named_runs
from otel_goodput._tools.commands import DAMAGED
from otel_goodput.reports.plan import QUANTITIES, Figures, completed, from_report, make_plan

logger = redacting_logger(__name__)

_REPORT: Final = 16 * files.MIB  # bytes; a larger report file is refused


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(
        parser,
        "folder of a run, folder or URL of all runs, or a report as .json file; not needed with --mtbf and --save",
    )
    add_run(parser)
    add_rank(parser)
    for name, what in QUANTITIES.items():
        words = f"{what} (default: the run's)"
        parser.add_argument(f"--{name}", type=named_as("length of time", _seconds), metavar="T", help=words)
    add_json(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Print the plan of each run and return the exit status."""
    by_hand = {name: getattr(options, name) for name in QUANTITIES}
    damaged: list[str] = []
    for number, figures in enumerate(_figures(options, damaged)):
        plan = make_plan(figures.given(**by_hand))
        if options.json:
            sys.stdout.write(json.dumps(plan.to_json()) + "\n")
        else:
            sys.stdout.write("\n" * (number > 0) + str(plan))
    for text in damaged:
        logger.warning("%s", text)
    return DAMAGED if damaged else 0


def _figures(options: argparse.Namespace, damaged: list[str]) -> Sequence[Figures]:
    """Return the figures of the requested runs; append to `damaged` what is wrong with their journals."""
    if options.directory is None and options.mtbf is not None and options.save is not None:
        return [Figures()]
    if options.directory is not None and options.directory.endswith(".json"):
        return [from_report(json.loads(files.read_named(Path(options.directory), _REPORT)))]
    figures = []
    with named_runs(options) as runs:
        for one in runs:
            process = one.first() if options.process is None else options.process
            # The report notes the damages too.
            saves, restores = completed(all_events(one.folder, process, Damages()))
            report = one.report(process=options.process, others=False)
            damaged += [note.text for note in report.notes if note.kind.startswith(notes.DAMAGED)]
            figures.append(from_report(report.to_json(), saves=saves, restores=restores))
    return figures


def _seconds(text: str) -> float:
    return 0.0 if text.strip() == "0" else parse_duration(text) / NS
