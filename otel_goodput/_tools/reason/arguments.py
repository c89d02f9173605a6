"""The arguments of ``otel-goodput reason``."""

from __future__ import annotations

import argparse
from typing import Final

from otel_goodput._text.durations import NS
from otel_goodput._tools.arguments import DEFAULT, length, number
from otel_goodput.semconv import REASONS, Reason

MARGIN_S: Final = 60  # twice the 30 s that a Spot VM and, unless told otherwise, a pod get; and clocks differ


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    parser.description = (
        "Record later why a run was disrupted. Without ATTEMPT, list the disruptions with the reasons recorded "
        "for them. A recorded reason is stored next to the journal and applies whenever the journal is read; a live "
        "job's metrics keep the original reason. The latest record wins, but one by a person wins over an imported one."
    )
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        metavar="PLACE",
        help=f"folder of a run, or folder or URL of all runs {DEFAULT}",
    )
    parser.add_argument(
        "attempt",
        nargs="?",
        type=number,
        default=None,
        metavar="ATTEMPT",
        help="number of the attempt that began after the disruption, as in reports",
    )
    parser.add_argument("reason", nargs="?", type=_reason, default=None, metavar="REASON", help=f"one of {_sayable()}")
    parser.add_argument(
        "--run", dest="run_id", default=None, metavar="ID", help="id of the run to use, if there are several"
    )
    parser.add_argument("--note", default=None, metavar="TEXT", help="a note for readers of the report")
    parser.add_argument("--by", default=None, metavar="NAME", help="name to record as the source (default: USER@HOST)")
    imported = parser.add_argument_group("from a log")
    imported.add_argument(
        "--import",
        dest="log",
        default=None,
        metavar="FILE",
        help="what `gcloud logging read --format=json` (audit log entries) or `kubectl get events -A -o json` printed; "
        "- for standard input. Without --run, it is imported into every run at PLACE",
    )
    imported.add_argument(
        "--margin",
        type=length,
        default=None,
        metavar="T",
        help=f"how long before the last sign of life an entry still matches: the time a job has after a notice "
        f"(default: {MARGIN_S}s)",
    )
    imported.add_argument(
        "--named",
        action="store_true",
        help="only entries that name what the attempt ran on, not those that match by time only",
    )
    imported.add_argument("--dry-run", action="store_true", help="print what would be recorded, but record nothing")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def margin(options: argparse.Namespace) -> int:
    """Return the margin that was asked for, ns."""
    return MARGIN_S * NS if options.margin is None else int(options.margin)


def _sayable() -> str:
    return ", ".join(reason for reason in REASONS if reason != Reason.ROLLBACK)


def _reason(text: str) -> str:
    if text == Reason.ROLLBACK:
        raise argparse.ArgumentTypeError(
            f"a rollback is what steps within a process do, not why an attempt began; expected one of {_sayable()}"
        )
    if text not in REASONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a reason; expected one of {_sayable()}")
    return text
