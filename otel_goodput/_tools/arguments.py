"""Arguments that several commands take, and the runs that they name."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from otel_goodput._settings.options import DIRECTORY, Settings
from otel_goodput._text.durations import parse_duration, parse_requested_moment
from otel_goodput._text.redact import shown
from otel_goodput.errors import JournalError
from otel_goodput.reports.run import RecordedRun, runs_at

T = TypeVar("T")


def add_directory(
    parser: argparse.ArgumentParser, what: str, *, metavar: str | None = None, name: str = "directory", **more: Any
) -> None:
    """Add the argument for the folder or URL of runs; `what` it may be, for the help."""
    if name == "directory":
        more["nargs"] = "?"
    help_ = f"{what} (default: {Settings.directory.variable}, else ./{DIRECTORY})"
    parser.add_argument(name, metavar=metavar, help=help_, **more)


def add_run(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the argument that names one of several runs."""
    parser.add_argument("--run", dest="run_id", metavar="ID", help=f"id of the run to use, if there are several{more}")


def add_rank(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says whose account it is."""
    words = "the account of process K (default: the job of all ranks)"
    parser.add_argument("--process", type=number, metavar="K", help=words)


def add_json(parser: argparse.ArgumentParser, help_: str = "print JSON") -> None:
    """Add the argument for JSON output."""
    parser.add_argument("--json", action="store_true", help=help_)


def add_account(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which account to print."""
    parser.epilog = (
        "Times (T, A, B) are Unix seconds (for replay: seconds of the timeline), RFC 3339 such as "
        "2026-11-22T11:25:00Z, '1h' or '1h30m' after the start, '1h ago', or 'now'."
    )
    parser.add_argument("--at", type=moment, metavar="T", help="report the state at time T (default: now)")
    for name, words in (
        ("--window", "also report the time from A to B by itself; may be repeated"),
        ("--exclude", "leave out the time from A to B; may be repeated"),
    ):
        parser.add_argument(name, nargs=2, type=moment, action="append", default=[], metavar=("A", "B"), help=words)
    words = "use T as ideal step time instead of the estimate: seconds, or with a unit (350ms)"
    parser.add_argument("--ideal-step-time", type=length, metavar="T", help=words)
    add_json(parser)


def named_as(name: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` under the `name` that argparse shows in its error messages."""

    def named(text: str) -> T:
        return parse(text)

    named.__name__ = name
    return named


def above_zero(name: str, most: float = math.inf) -> Callable[[str], float]:
    """Return a type for argparse: a number above 0, `most` at most, which errors call `name`."""

    def parse(text: str) -> float:
        if not 0 < (number := float(text)) <= most or math.isinf(number):
            raise ValueError(text)
        return number

    return named_as(name, parse)


def _natural(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError("it is negative")
    return number


number = named_as("number", _natural)
moment = named_as("time", parse_requested_moment)
length: Final = named_as("length of time", parse_duration)


def named_runs(options: argparse.Namespace) -> AbstractContextManager[list[RecordedRun]]:
    """Return a context manager that gives the runs that the arguments name. Raises JournalError as it is entered."""
    return runs_at(place(options), options.run_id)


def only(runs: Sequence[RecordedRun]) -> RecordedRun:
    """Return the one run. Raises JournalError if there are several."""
    if len(runs) > 1:
        ids = ", ".join(shown(one.run_id) for one in runs)
        raise JournalError(f"there are {len(runs)} runs; choose one with --run: {ids}")
    return runs[0]


def place(options: argparse.Namespace) -> str:
    """Return the folder or URL that the arguments name."""
    return options.directory or os.environ.get(Settings.directory.variable) or DIRECTORY
