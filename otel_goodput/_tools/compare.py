"""``otel-goodput compare``: two runs side by side, and conditions for CI on what changed."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._runtime import files
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import add_directory, add_json, add_rank, place
from otel_goodput._tools.commands import DAMAGED, HOLDS, UNKNOWN
from otel_goodput._tools.waiting import ProgressLine
from otel_goodput._viewer import page
from otel_goodput.errors import JournalError
from otel_goodput.reports import comparison, comparison_text
from otel_goodput.reports.comparison_text import GRAMMAR, NAMES, Condition, Outcome, parse
from otel_goodput.reports.run import RecordedRun, runs_at


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "A and B are ids of runs in DIR, or paths or URLs of run folders (./NAME is always a path).\n\n"
        f"{GRAMMAR}\n{textwrap.fill(f'Figures: {NAMES};', 100)}\n"
        "CATEGORY_per_step is the time of a category per kept step. step_time is the median net step\n"
        "time, at_risk what a crash would lose now; a category is its share of the elapsed time."
    )
    parser.add_argument("a", metavar="A", help="baseline run")
    parser.add_argument("b", metavar="B", help="run to compare with A")
    add_directory(parser, "folder or URL of all runs", metavar="DIR", name="--dir", dest="directory")
    add_rank(parser)
    words = f"exit with status {HOLDS} if COND holds; may be repeated"
    parser.add_argument("--fail-if", type=_condition, action="append", default=[], metavar="COND", help=words)
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the comparison as one HTML file")


def _condition(text: str) -> Condition:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run_compare(options: argparse.Namespace) -> int:
    """Compare two runs, print the result, and return the exit status as ``--help`` explains it."""
    there = place(options)
    with ProgressLine() as progress, _opened(options.a, there) as a, _opened(options.b, there) as b:
        sides = []
        for at, one in enumerate((a, b)):
            progress(at, 2, f"reading run {one.run_id}")
            sides.append(comparison.side_of(one, options.process))
        progress(1, 1, "comparing")
        compared = comparison.Comparison(*sides)
    outcomes = [condition.check(compared.figures) for condition in options.fail_if]
    if options.html is not None:
        files.write_named(options.html, page.html(None, comparison=compared).encode("utf-8", "replace"))
    if options.json:
        conditions = [{"text": outcome.text, "holds": outcome.holds} for outcome in outcomes]
        print(json.dumps({**compared.to_json(), "conditions": conditions}))
    else:
        print(comparison_text.render(compared), end="")
    return _status(outcomes, damaged=compared.damaged)


def _status(outcomes: list[Outcome], *, damaged: bool) -> int:
    for outcome in outcomes:
        print(f"otel-goodput: {shown(outcome.text)}", file=sys.stderr)
    if any(outcome.holds for outcome in outcomes):
        return HOLDS
    if any(outcome.holds is None for outcome in outcomes):
        return UNKNOWN
    return DAMAGED if damaged else 0


@contextmanager
def _opened(name: str, place: str) -> Iterator[RecordedRun]:
    """Yield the run called `name` at `place`, else the run whose folder `name` is."""
    where, run_id = _where(name, place)
    with runs_at(where, run_id) as runs:
        if len(runs) > 1:
            ids = ", ".join(one.run_id for one in runs)
            raise JournalError(f"{name} holds {len(runs)} runs; name one of them: {ids}")
        yield runs[0]


def _where(name: str, place: str) -> tuple[str, str | None]:
    """Return where to look for the run `name`, and its id there (None: it is the run's own folder)."""
    if "://" in name or name.startswith(("./", "../", "/", "~")):
        return name, None
    if "://" in place:
        return place, name
    local: Any = RunDirectory(Path(place).expanduser() / folder_name(name))
    if not local.journal.is_dir() and (Path(name).expanduser() / "journal").is_dir():
        return name, None
    return place, name
