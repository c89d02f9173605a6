"""Arguments that several commands take, and the runs that they name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from otel_goodput._settings.options import DIRECTORY, Settings
from otel_goodput._text.durations import asked_moment, parse_duration

T = TypeVar("T")

DEFAULT: Final = f"(default: {Settings.directory.variable}, else ./{DIRECTORY})"  # of a directory, for help


def add_run(parser: argparse.ArgumentParser, *, process: bool = True) -> None:
    """Add the arguments that name a run; `process`: and whose journal."""
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        help=f"folder of a run, or folder or URL of all runs {DEFAULT}",
    )
    parser.add_argument(
        "--run",
        dest="run_id",
        default=None,
        metavar="ID",
        help="id of the run to use, if there are several (default: the newest for report)",
    )
    if process:
        parser.add_argument(
            "--process", type=int, default=0, metavar="K", help="use the journal of process K (default: 0, the leader)"
        )


def add_questions(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what the account is asked."""
    parser.epilog = (
        "Times (T, A, B) are Unix seconds (for replay: seconds of the timeline), RFC 3339 such as "
        "2026-11-22T11:25:00Z, '1h' or '1h30m' after the start, '1h ago', or 'now'."
    )
    parser.add_argument(
        "--at", type=moment, default=None, metavar="T", help="report the state at time T (default: now)"
    )
    parser.add_argument(
        "--window",
        nargs=2,
        type=moment,
        action="append",
        default=[],
        metavar=("A", "B"),
        help="also report the time from A to B by itself; may be repeated",
    )
    parser.add_argument(
        "--exclude",
        nargs=2,
        type=moment,
        action="append",
        default=[],
        metavar=("A", "B"),
        help="leave out the time from A to B; may be repeated",
    )
    parser.add_argument(
        "--ideal-step-time",
        type=length,
        default=None,
        metavar="T",
        help="use T as ideal step time instead of the estimate: seconds, or with a unit (350ms)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def named_as(name: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` under the `name` that argparse shows in its error messages."""

    def named(text: str) -> T:
        return parse(text)

    named.__name__ = name
    return named


def _natural(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError("it is negative")
    return number


number = named_as("number", _natural)
moment = named_as("time", asked_moment)
length = named_as("length of time", parse_duration)


def found_in(options: argparse.Namespace) -> Any:
    """Return a context manager that gives the runs that the arguments name. Raises JournalError as it is entered."""
    from otel_goodput.reports.run import found_runs

    return found_runs(place(options), options.run_id)


def place(options: argparse.Namespace) -> str:
    """Return the folder or URL that the arguments name."""
    return options.directory or os.environ.get(Settings.directory.variable) or DIRECTORY
