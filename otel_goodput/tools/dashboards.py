"""``otel-goodput dashboards``: dashboards and alerts as files."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Final

from otel_goodput import files
from otel_goodput.dashboards.thresholds import SHARE, Thresholds, windows
from otel_goodput.text.redact import shown
from otel_goodput.tools.arguments import named_as

PLACES: Final = {
    "grafana": "Grafana's dashboards, and rules for Prometheus or for Grafana's own alerting",
    "gcp": "Cloud Monitoring, for metrics of the exporter gcp and the configurations classic and fleet",
    "gcp-otlp": "Cloud Monitoring, for metrics of the exporter gcp-otlp and the configuration sidecar",
    "workload": "Cloud Monitoring, for Google's own series of the exporter workload: a dashboard, no alerts",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`."""
    width = max(map(len, PLACES))
    rows = (f"  {name:<{width}}  {brief}" for name, brief in PLACES.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "\n".join(
        [
            "Write dashboards and alerts as files into DIR/dashboards and DIR/alerts.",
            "",
            "PLACE is where the metrics are stored:",
            *rows,
        ]
    )
    parser.add_argument("place", choices=tuple(PLACES), metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("target", metavar="DIR", help="created if missing; files of the same names are replaced")
    parser.add_argument(
        "--windows",
        type=named_as("list of rolling windows", windows),
        default=windows(),
        metavar="LIST",
        help="the rolling windows of the jobs (OTEL_GOODPUT_WINDOWS); alerts use the first one "
        f"(default: {','.join(windows())})",
    )
    for one in fields(Thresholds):
        share = one.metadata.get("kind") == SHARE
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=_share if share else _positive,
            default=one.default,
            metavar="SHARE" if share else "X",
            help=f"{one.metadata['help']} (default: {one.default:g})",
        )
    parser.add_argument(
        "--datasource", metavar="UID", help="grafana: uid of Prometheus, for Grafana's alerts (default: prometheus)"
    )
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Write the files, print their paths and return 0.

    Raises:
        SystemExit: with 2, an option does not belong to the place.
        OSError: a folder or a file cannot be written.
    """
    from otel_goodput.dashboards.written import Choices, files_for

    if options.datasource is not None and options.place != "grafana":
        options.parser.error(f"{options.place} has no --datasource")
    limits = Thresholds(**{one.name: getattr(options, one.name) for one in fields(Thresholds)})
    chosen = Choices(options.windows, limits, options.datasource or "prometheus")
    folder = files.named(options.target)
    for path, text in files_for(options.place, chosen).items():
        place = folder / PurePosixPath(path)
        files.make_folders(place.parent, folder, shared=True)
        files.write_named(place, text.encode())
        print(shown(str(PurePosixPath(options.target) / path)))
    return 0


def _between(name: str, most: float) -> Callable[[str], float]:
    """Return a type for argparse: a number above 0, `most` at most, which errors call `name`."""

    def parse(text: str) -> float:
        if not 0 < (number := float(text)) <= most or math.isinf(number):
            raise ValueError(text)
        return number

    return named_as(name, parse)


_share = _between("share above 0, at most 1", 1)
_positive = _between("positive number", math.inf)
