"""``otel-goodput runs``: the table of the runs of a folder or URL."""

from __future__ import annotations

import argparse
import json

from otel_goodput._tools.arguments import DEFAULT, place
from otel_goodput._tools.manual import DAMAGED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        metavar="DIR",
        help=f"folder or URL of all runs {DEFAULT}",
    )
    parser.add_argument(
        "--process", type=int, default=0, metavar="K", help="use the journals of process K (default: 0, the leader)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the runs of a place, and return 0, or 3 if one of them, or a part of it, cannot be read.

    Raises:
        JournalError: there is no run.
    """
    from otel_goodput._text.redact import shown
    from otel_goodput._tools.progress import ProgressLine
    from otel_goodput.reports import listing
    from otel_goodput.reports.run import found_runs

    there = place(options)
    with ProgressLine() as progress, found_runs(there) as found:
        progress(0, 0, f"reading {there}")
        rows = listing.rows(found, options.process, progress)
    if not rows:
        from otel_goodput.errors import JournalError

        raise JournalError(f"{shown(there)} holds no run that can be read")
    if options.json:
        print(json.dumps({"runs": [row.to_json() for row in rows]}))
    else:
        print(listing.render(rows, shown(there)), end="")
    return DAMAGED if any(row.error or row.damaged for row in rows) else 0
