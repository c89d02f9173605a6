"""``otel-goodput dashboards``: dashboards and alerts as files.

They are made of the templates beside this file, which ``collector/generator`` writes: slots are filled, panels about a
rolling window repeated for each, and panels placed one after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any, Final

from otel_goodput._runtime import files
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import parse_duration, window_name
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import above_zero, named_as

PLACES: Final = {
    "grafana": "Grafana's dashboards, and rules for Prometheus or for Grafana's own alerting",
    "gcp": "Cloud Monitoring, for metrics of the exporter gcp and the configurations classic and fleet",
    "gcp-otlp": "Cloud Monitoring, for metrics of the exporter gcp-otlp and the configuration sidecar",
    "workload": "Cloud Monitoring, for Google's own series of the exporter workload: a dashboard, no alerts",
}

_TEMPLATES: Final = ("otel_goodput._tools", "templates")
_SLOT: Final = re.compile(r"<<(\w+)(?::([^>]+))?>>")
_EACH: Final = "<<each"  # in a line of a text: the line is there for each rolling window
_REPEATED: Final = "repeated"  # marks a panel that is there for each rolling window
_SHARE: Final = "share"  # between 0 and 1
_CLOUD_COLUMNS: Final = 12
_GRAFANA_COLUMNS: Final = 24


def windows(text: str = Settings.windows.usual) -> tuple[str, ...]:
    """Return rolling windows, given as in OTEL_GOODPUT_WINDOWS, by the names that they have in metrics.

    Raises:
        ValueError: one of them is not a duration.
    """
    return tuple(window_name(parse_duration(part)) for part in text.split(","))


@dataclass(frozen=True)
class Thresholds:
    """What the alerts go by, each an option of the command. Times are in seconds, shares between 0 and 1."""

    goodput_target: float = field(
        default=0.8, metadata={"kind": _SHARE, "help": "alert if goodput of the first rolling window is below this"}
    )
    hang_multiple: float = field(
        default=10.0, metadata={"help": "in a step, a job hangs after this many ideal step times ..."}
    )
    hang_least: float = field(default=300.0, metadata={"help": "... and at least this many seconds"})
    hang_other: float = field(
        default=1800.0,
        metadata={"help": "the same for loads, saves, evaluations, between steps, and before step times are known"},
    )
    gone: float = field(default=300.0, metadata={"help": "seconds of silence after which a running run counts as gone"})
    restarts: float = field(default=3.0, metadata={"help": "disruptions within an hour that count as a restart loop"})
    at_risk: float = field(default=3600.0, metadata={"help": "seconds of progress that a crash may lose"})
    data_loading: float = field(
        default=0.1, metadata={"kind": _SHARE, "help": "share of time that may be spent waiting for data"}
    )


@dataclass(frozen=True)
class Choices:
    """What templates are filled with.

    Attributes:
        windows: rolling windows; the first one is looked at closely.
        limits: thresholds.
        datasource: uid of Prometheus in Grafana.
    """

    windows: tuple[str, ...] = windows()
    limits: Thresholds = Thresholds()
    datasource: str = "prometheus"

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of all slots by name, except those of a repeated panel."""
        limits, first = self.limits, self.windows[0]
        return {
            **{one.name: getattr(limits, one.name) for one in fields(limits)},
            "goodput_target_percent": 100 * limits.goodput_target,
            "gone_whole_minutes": 60 * math.ceil(limits.gone / 60),
            "window": first,
            "window_s": _seconds(first),
            "last_window": self.windows[-1],
            "datasource": self.datasource,
        }

    @property
    def each(self) -> list[dict[str, Any]]:
        """Return the values of the slots of a repeated panel, for each rolling window."""
        return [{"each": window, "each_s": _seconds(window)} for window in self.windows]


def _seconds(window: str) -> int:
    return parse_duration(window) // 10**9


def files_for(place: str, chosen: Choices) -> dict[str, str]:
    """Return the contents of the files for `place`, one of :data:`PLACES`, by their paths."""
    package, folder = _TEMPLATES
    return {
        "/".join(path): filled(files.resource(package, folder, place, *path), chosen) for path in _paths(folder, place)
    }


def _paths(*folders: str) -> Iterator[list[str]]:
    """Yield the paths of all files in a folder of templates, relative to it; only files have a dot in their names."""
    for name in files.resources(_TEMPLATES[0], *folders):
        if "." in name:
            yield [name]
        else:
            yield from ([name, *path] for path in _paths(*folders, name))


def filled(template: str, chosen: Choices) -> str:
    """Return the text of a template, JSON or other, with its slots filled."""
    if not template.startswith("{"):
        return str(_value(template, chosen.values, chosen))
    document = _value(json.loads(template), chosen.values, chosen)
    if "mosaicLayout" in document:
        tiles = document["mosaicLayout"]["tiles"]
        corners = _corners(((tile["width"], tile["height"]) for tile in tiles), _CLOUD_COLUMNS)
        placed = [{"xPos": x, "yPos": y, **tile} for tile, (x, y) in zip(tiles, corners, strict=True)]
        document["mosaicLayout"]["tiles"] = placed
    elif "panels" in document:
        document["panels"] = _in_grid(document["panels"])
    return json.dumps(document, indent=2) + "\n"


def _value(node: Any, values: Mapping[str, Any], chosen: Choices) -> Any:
    """Return a part of a template with its slots filled. A text that is one slot becomes its value, of any type."""
    if isinstance(node, dict):
        return {key: _value(each, values, chosen) for key, each in node.items() if key != _REPEATED}
    if isinstance(node, list):
        return [
            _value(item, {**values, **more}, chosen)
            for item in node
            for more in (chosen.each if isinstance(item, dict) and _REPEATED in item else [{}])
        ]
    if not isinstance(node, str):
        return node
    if (whole := _SLOT.fullmatch(node)) and not whole[2]:
        return values[whole[1]]
    if _EACH in node and "each" not in values:
        return "\n".join(
            _value(line, {**values, **more}, chosen)
            for line in node.split("\n")
            for more in (chosen.each if _EACH in line else [{"each": None}])
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
        help=f"the rolling windows of the jobs ({Settings.windows.variable}); alerts use the first one "
        f"(default: {','.join(windows())})",
    )
    for one in fields(Thresholds):
        share = one.metadata.get("kind") == _SHARE
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=above_zero("share above 0, at most 1", 1) if share else above_zero("positive number"),
            default=one.default,
            metavar="SHARE" if share else "X",
            help=f"{one.metadata['help']} (default: {one.default:g})",
        )
    parser.add_argument(
        "--datasource", metavar="UID", help="grafana: uid of Prometheus, for Grafana's alerts (default: prometheus)"
    )
    parser.set_defaults(parser=parser)


def run_dashboards(options: argparse.Namespace) -> int:
    """Write the files, print their paths and return 0."""
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
