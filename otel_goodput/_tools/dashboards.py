"""``otel-goodput dashboards``: dashboards and alerts as files.

They are made of the templates beside this file, which ``collector/generator`` writes: slots are filled, panels about a
rolling window repeated for each, and panels placed one after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from otel_goodput._runtime import files
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS, parse_duration, window_name
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import above_zero, named_as
from otel_goodput.semconv import Category

PLACES: Final = {
    "grafana": "Grafana's dashboards, and rules for Prometheus or for Grafana's own alerting",
    "gcp": "Cloud Monitoring, for metrics of the exporter gcp and the configurations classic and fleet",
    "gcp-otlp": "Cloud Monitoring, for metrics of the exporter gcp-otlp and the configuration sidecar",
    "workload": "Cloud Monitoring, for Google's own series of the exporter workload: a dashboard, no alerts",
}

_PACKAGE: Final = "otel_goodput._tools"
_TEMPLATES: Final = "templates"
_SLOT: Final = re.compile(r"<<(\w+)(?::([^>]+))?>>")
_EACH: Final = "<<each"  # in a line of a text: the line is there for each rolling window
_REPEATED: Final = "repeated"  # marks a panel that is there for each rolling window
_WINDOWS: Final = "windows"  # among the values: those of a repeated panel's slots, for each rolling window
_CLOUD_COLUMNS: Final = 12
_GRAFANA_COLUMNS: Final = 24


def windows(text: str = Settings.windows.usual) -> tuple[str, ...]:
    """Return rolling windows, given as in OTEL_GOODPUT_WINDOWS, by the names that they have in metrics."""
    return tuple(window_name(parse_duration(part)) for part in text.split(","))


class Threshold(NamedTuple):
    """What an alert goes by, an option of the command: its default, in seconds if it is a time, and its help."""

    default: float
    help: str
    share: bool = False  # between 0 and 1


THRESHOLDS: Final = {
    "goodput_target": Threshold(0.8, "alert if goodput of the first rolling window is below this", share=True),
    "hang_multiple": Threshold(10.0, "in a step, a job hangs after this many ideal step times ..."),
    "hang_least": Threshold(300.0, "... and at least this many seconds"),
    "hang_other": Threshold(
        1800.0, "the same for loads, saves, evaluations, between steps, and before step times are known"
    ),
    "gone": Threshold(300.0, "seconds of silence after which a running run counts as gone"),
    "restarts": Threshold(3.0, "disruptions within an hour that count as a restart loop"),
    "at_risk": Threshold(3600.0, "seconds of progress that a crash may lose"),
    "rank_wait": Threshold(
        0.05,
        "share of ten minutes for which the job may wait for one rank, or by which it may be faster without it",
        share=True,
    ),
    Category.DATA_LOADING: Threshold(0.1, "share of time that may be spent waiting for data", share=True),
}


def slots(
    spans: Sequence[str] = windows(), limits: Mapping[str, float] | None = None, datasource: str = "prometheus"
) -> dict[str, Any]:
    """Return the values of all slots by name: of rolling windows, thresholds, and Prometheus' uid in Grafana."""
    limits = {name: each.default for name, each in THRESHOLDS.items()} | dict(limits or {})
    return {
        **limits,
        "goodput_target_percent": 100 * limits["goodput_target"],
        "gone_whole_minutes": 60 * math.ceil(limits["gone"] / 60),
        "window": spans[0],
        "window_s": _seconds(spans[0]),
        "last_window": spans[-1],
        "datasource": datasource,
        _WINDOWS: [{"each": span, "each_s": _seconds(span)} for span in spans],
    }


def _seconds(window: str) -> int:
    return parse_duration(window) // NS


def _paths(*folders: str) -> Iterator[list[str]]:
    """Yield the paths of all files in a folder of templates, relative to it; only files have a dot in their names."""
    for name in files.resources(_PACKAGE, *folders):
        if "." in name:
            yield [name]
        else:
            yield from ([name, *path] for path in _paths(*folders, name))


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a template, JSON or other, with its slots filled."""
    if not template.startswith("{"):
        return str(_value(template, values))
    document = _value(json.loads(template), values)
    if "mosaicLayout" in document:
        tiles = document["mosaicLayout"]["tiles"]
        corners = _corners(((tile["width"], tile["height"]) for tile in tiles), _CLOUD_COLUMNS)
        placed = [{"xPos": x, "yPos": y, **tile} for tile, (x, y) in zip(tiles, corners, strict=True)]
        document["mosaicLayout"]["tiles"] = placed
    elif "panels" in document:
        document["panels"] = _in_grid(document["panels"])
    return json.dumps(document, indent=2) + "\n"


def _value(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with its slots filled. A text that is one slot becomes its value, of any type."""
    if isinstance(node, dict):
        return {key: _value(each, values) for key, each in node.items() if key != _REPEATED}
    if isinstance(node, list):
        return [
            _value(item, {**values, **more})
            for item in node
            for more in (values[_WINDOWS] if isinstance(item, dict) and _REPEATED in item else [{}])
        ]
    if not isinstance(node, str):
        return node
    if (whole := _SLOT.fullmatch(node)) and not whole[2]:
        return values[whole[1]]
    if _EACH in node and "each" not in values:
        return "\n".join(
            _value(line, {**values, **more})
            for line in node.split("\n")
            for more in (values[_WINDOWS] if _EACH in line else [{"each": None}])
        )
    return _SLOT.sub(lambda slot: format(values[slot[1]], slot[2] or ""), node)


def _corners(sizes: Iterable[tuple[int, int]], columns: int) -> Iterator[tuple[int, int]]:
    """Yield the upper left corner of each panel, given as width and height: as many in a row as fit."""
    x = y = tallest = 0
    for width, height in sizes:
        if x + width > columns:
            x, y, tallest = 0, y + tallest, 0
        yield x, y
        x, tallest = x + width, max(tallest, height)


def _in_grid(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Grafana's panels with their numbers and corners; those in a closed row follow it."""
    numbers = iter(range(1, 10**6))

    def panel(of: dict[str, Any], x: int, y: int) -> dict[str, Any]:
        number = next(numbers)
        placed = {"id": number, **of, "gridPos": {"x": x, "y": y, **of["gridPos"]}}
        if "panels" in of:
            placed["panels"] = [panel(inner, 0, y + 1) for inner in of["panels"]]
        return placed

    corners = _corners(((one["gridPos"]["w"], one["gridPos"]["h"]) for one in panels), _GRAFANA_COLUMNS)
    return [panel(one, *corner) for one, corner in zip(panels, corners, strict=True)]


def add_dashboards_arguments(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, PLACES))
    rows = (f"  {name:<{width}}  {brief}" for name, brief in PLACES.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    purpose = "Write dashboards and alerts as files into DIR/dashboards and DIR/alerts."
    parser.description = "\n".join([purpose, "", "PLACE is where the metrics are stored:", *rows])
    parser.add_argument("place", choices=tuple(PLACES), metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("target", metavar="DIR", help="created if missing; files of the same names are replaced")
    parser.add_argument(
        "--windows",
        type=named_as("list of rolling windows", windows),
        default=windows(),
        metavar="LIST",
        help=f"the rolling windows of the jobs ({Settings.windows.variable}); alerts use the first one "
        f"(default: {','.join(windows())})",
    )
    for name, one in THRESHOLDS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=above_zero("share above 0, at most 1", 1) if one.share else above_zero("positive number"),
            default=one.default,
            metavar="SHARE" if one.share else "X",
            help=f"{one.help} (default: {one.default:g})",
        )
    words = "grafana: uid of Prometheus, for Grafana's alerts (default: prometheus)"
    parser.add_argument("--datasource", metavar="UID", help=words)
    parser.set_defaults(parser=parser)


def run_dashboards(options: argparse.Namespace) -> int:
    """Write the files, print their paths and return 0."""
    if options.datasource is not None and options.place != "grafana":
        options.parser.error(f"{options.place} has no --datasource")
    values = slots(
        options.windows, {name: getattr(options, name) for name in THRESHOLDS}, options.datasource or "prometheus"
    )
    folder = files.named(options.target)
    for path in _paths(_TEMPLATES, options.place):
        text = filled(files.resource(_PACKAGE, _TEMPLATES, options.place, *path), values)
        place = folder.joinpath(*path)
        files.make_folders(place.parent, folder, shared=True)
        files.write_named(place, text.encode())
        print(shown(str(PurePosixPath(options.target, *path))))
    return 0
