"""``otel-goodput plan``: how often to save, from a run's figures or by hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_goodput._runtime import files
from otel_goodput._text.durations import NS, parse_duration
from otel_goodput._text.redact import redacting_logger
from otel_goodput._tools.arguments import DEFAULT, found_in, named_as
from otel_goodput._tools.manual import DAMAGED
from otel_goodput.reports.renewal import QUANTITIES

if TYPE_CHECKING:
    from otel_goodput.reports.plan import Figures

logger = redacting_logger(__name__)

_REPORT: Final = 16 * files.MIB  # bytes; a larger report file is refused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``otel-goodput plan`` to `parser`."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        help="folder of a run, folder or URL of all runs, or a report as .json file; "
        f"not needed with --mtbf and --save {DEFAULT}",
    )
    parser.add_argument(
        "--run", dest="run_id", default=None, metavar="ID", help="id of the run to use, if there are several"
    )
    parser.add_argument(
        "--process", type=int, default=0, metavar="K", help="use the journal of process K (default: 0, the leader)"
    )
    for name, words in QUANTITIES.items():
        parser.add_argument(f"--{name}", type=_seconds, default=None, metavar="T", help=f"{words} (default: the run's)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command ``otel-goodput plan`` and return its exit status.

    Raises:
        ConfigurationError, JournalError: a figure is missing or out of range, or there is no run.
    """
    from otel_goodput.reports.plan import make_plan

    by_hand = {name: getattr(options, name) for name in QUANTITIES}
    damaged: list[str] = []
    for number, figures in enumerate(_found(options, damaged)):
        plan = make_plan(figures.given(**by_hand))
        if options.json:
            sys.stdout.write(json.dumps(plan.to_json()) + "\n")
        else:
            sys.stdout.write("\n" * (number > 0) + str(plan))
    for text in damaged:
        logger.warning("%s", text)
    return DAMAGED if damaged else 0


def _found(options: argparse.Namespace, damaged: list[str]) -> Sequence[Figures]:
    """Return the figures of the requested runs; append to `damaged` what is wrong with their journals."""
    from otel_goodput.reports.plan import Figures, completed, from_report

    if options.directory is None and options.mtbf is not None and options.save is not None:
        return [Figures()]
    if options.directory is not None and options.directory.endswith(".json"):
        return [from_report(json.loads(files.read_named(Path(options.directory), _REPORT)))]
    from otel_goodput._journal.notes import DAMAGED
    from otel_goodput._timeline.damage import Damages
    from otel_goodput._timeline.reader import all_events

    figures = []
    with found_in(options) as found:
        for one in found:
            # The report notes the damages too.
            saves, restores = completed(all_events(one.folder, options.process, Damages()))
            report = one.report(process=options.process, ranks=False)
            damaged += [note.text for note in report.notes if note.kind.startswith(DAMAGED)]
            figures.append(from_report(report.to_json(), saves=saves, restores=restores))
    return figures


def _in_seconds(text: str) -> float:
    return 0.0 if text.strip() == "0" else parse_duration(text) / NS


_seconds = named_as("length of time", _in_seconds)
