"""The arguments of ``otel-goodput send``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="file of OTLP JSON lines, or a folder of a run, of all runs or of a collector",
    )
    parser.add_argument(
        "--endpoint", default=None, metavar="URL", help="receiver to send to (default: OTEL_EXPORTER_OTLP_ENDPOINT)"
    )
    parser.add_argument(
        "--protocol",
        default=None,
        choices=tuple(EXPORTER_MODULES),
        help="protocol to use (default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="total seconds to spend on a receiver that does not accept data (default 60)",
    )
    parser.add_argument("--again", action="store_true", help="from the beginning, including data sent there before")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent where, and send nothing")
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(text)
    return seconds


_seconds.__name__ = "positive number of seconds"  # the name that argparse shows in its error message
