"""A board as a dashboard of Grafana, over a Prometheus datasource."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from otel_goodput import semconv
from otel_goodput.semconv import Category, Metric
from views.board import Across, Board, Panel, Place, Query, Read, Unit, View, places
from views.naming import PROMETHEUS_INSTANCE, PROMETHEUS_JOB, label, prometheus_metric
from views.promql import RANGE, braces, equal, grouped

UID: Final = "otel-goodput"
SCALE: Final = 2  # Grafana's grid has 24 columns
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_JOB: Final = f'{PROMETHEUS_JOB}="$job"'
_RUN: Final = (_JOB, f'{PROMETHEUS_INSTANCE}=~"${{run:regex}}/.*"')

_FUNCTIONS: Final = {Across.SUM: "sum", Across.MEAN: "avg", Across.MAX: "max", Across.MIN: "min"}
_UNITS: Final = {Unit.SHARE: "percentunit", Unit.SECONDS: "s", Unit.COUNT: "short", Unit.FACTOR: "none"}
_TYPES: Final = {
    View.FIGURE: "stat",
    View.LINES: "timeseries",
    View.STACK: "timeseries",
    View.TABLE: "table",
    View.HEATMAP: "heatmap",
}
_COLOURS: Final = {
    Category.PRODUCTIVE: "green",
    Category.WASTED_PROGRESS: "red",
    Category.INFRASTRUCTURE_RECOVERY: "dark-red",
    Category.IN_FLIGHT: "purple",
    Category.DATA_LOADING: "orange",
    Category.OTHER: "text",
}


def dashboard(board: Board) -> str:
    """The JSON to import or provision."""
    return json.dumps(
        {
            "uid": UID,
            "title": board.title,
            "description": board.brief,
            "tags": ["otel_goodput"],
            "schemaVersion": 38,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "",
            "templating": {"list": _variables()},
            "panels": [_panel(number, place) for number, place in enumerate(places(board), 1)],
        },
        indent=2,
    )


def _variables() -> list[dict[str, Any]]:
    # Who exports spans alone has no account, but steps (a native histogram, or the count of a classic one).
    steps = prometheus_metric(semconv.STEP_DURATION)
    known = f'__name__=~"{prometheus_metric(semconv.TIME)}|{steps}|{steps}_count"'
    values = (
        ("job", "Job", f"label_values({braces(known)}, {PROMETHEUS_JOB})", ""),
        # Of RUN/ATTEMPT/PROCESS@HOST, all but the run's id changes with a restart.
        ("run", "Run", f"label_values({braces(known, _JOB)}, {PROMETHEUS_INSTANCE})", "/^(.*)\\/\\d+\\/\\d+@/"),
    )
    return [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
        *(
            {
                "type": "query",
                "name": name,
                "label": title,
                "datasource": _SOURCE,
                "query": {"query": query, "refId": name},
                "regex": regex,
                "refresh": 2,
                "sort": 2,
            }
            for name, title, query, regex in values
        ),
    ]


def _panel(number: int, place: Place) -> dict[str, Any]:
    grid = {"x": SCALE * place.x, "y": SCALE * place.y, "w": SCALE * place.width, "h": SCALE * place.height}
    panel = place.panel
    if panel is None:
        row = {**grid, "h": 1}
        return {
            "id": number, "type": "row", "title": place.section.title, "gridPos": row, "collapsed": False, "panels": [],
        }  # fmt: skip
    return {
        "id": number,
        "type": _TYPES[panel.view],
        "title": panel.title,
        "description": panel.brief,
        "gridPos": grid,
        "datasource": _SOURCE,
        "targets": [_target(letter, panel, query) for letter, query in zip("ABCDEFGH", panel.queries, strict=False)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        **_LOOKS[panel.view],
    }


def _target(letter: str, panel: Panel, query: Query) -> dict[str, Any]:
    once = panel.view in (View.FIGURE, View.TABLE)
    formats = {View.TABLE: "table", View.HEATMAP: "heatmap"}
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "expr": expression(query),
        "legendFormat": " ".join(filter(None, [query.text, *(f"{{{{{label(key)}}}}}" for key in query.by)])),
        "format": formats.get(panel.view, "time_series"),
        "instant": once,
        "range": not once,
    }


def expression(query: Query) -> str:
    """The query in PromQL, of the job and the run that are chosen above the dashboard."""
    metric = _ours(query)
    labels = [label(key) for key in query.by]
    name, matchers = prometheus_metric(metric), [*_RUN, *equal(query.only)]
    selector = f"{name}{braces(*matchers)}"
    if query.read is Read.RATE:
        return grouped("sum", labels, f"rate({selector}[{RANGE}])")
    if query.read in (Read.LATEST, Read.EVENTS):
        return grouped(_FUNCTIONS[query.across], labels, f"{selector} and on ({PROMETHEUS_INSTANCE}) {_newest()}")
    rates = grouped("sum", labels, f"rate({selector}[{RANGE}])")
    if query.read is Read.PER_MINUTE:
        classic = grouped("sum", labels, f"rate({name}_count{braces(*matchers)}[{RANGE}])")
        return f"60 * (histogram_count({rates}) or {classic})"
    # A histogram is native, or classic with buckets of its own: one of the two is empty.
    either = f"{rates} or {grouped('sum', [*labels, 'le'], f'rate({name}_bucket{braces(*matchers)}[{RANGE}])')}"
    return either if query.read is Read.BUCKETS else f"histogram_quantile({query.read.value}, {either})"


def _newest() -> str:
    """The instance of the newest attempt: the figures of the one before stay for minutes, and its time is shorter."""
    return f"topk(1, {grouped('sum', [PROMETHEUS_INSTANCE], f'{prometheus_metric(semconv.TIME)}{braces(*_RUN)}')})"


def _ours(query: Query) -> Metric:
    if not isinstance(query.source, Metric) or query.but or query.share_of:
        raise TypeError(f"not in Prometheus: {query}")
    return query.source


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
    if panel.bound is not None:
        colours = ("red", "green") if panel.bound.below else ("green", "red")
        steps = [{"value": None, "color": colours[0]}, {"value": panel.bound.value, "color": colours[1]}]
    custom: dict[str, Any] = {}
    if panel.view is View.STACK:
        custom = {"fillOpacity": 70, "lineWidth": 0, "stacking": {"group": "A", "mode": "normal"}}
    elif panel.view is View.LINES:
        custom = {"fillOpacity": 5, "lineWidth": 1, "spanNulls": False}
        if panel.bound is not None:
            custom["thresholdsStyle"] = {"mode": "dashed"}
    defaults: dict[str, Any] = {
        "unit": _UNITS[panel.unit],
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": custom,
    }
    if panel.unit is Unit.SHARE and panel.view is View.STACK:
        defaults |= {"min": 0, "max": 1}
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    if panel.view is not View.STACK:
        return []
    return [
        {
            # The label of custom phases' names leaves a space behind where it is empty.
            "matcher": {"id": "byRegexp", "options": f"/^{category} *$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for category, colour in _COLOURS.items()
        if _shows(panel.queries, category)
    ]


def _shows(queries: Iterable[Query], category: str) -> bool:
    return any(query.text == category or semconv.GOODPUT_CATEGORY in query.by for query in queries)


_LEGEND: Final = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_TOOLTIP: Final = {"mode": "multi", "sort": "desc"}
_LINES: Final = {"options": {"legend": _LEGEND, "tooltip": _TOOLTIP}}
_COLUMNS: Final = {label(semconv.GOODPUT_CATEGORY): "category", label(semconv.GOODPUT_CUSTOM_NAME): "custom phase"}
_LAST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LOOKS: Final[dict[View, dict[str, Any]]] = {
    View.FIGURE: {
        "options": {
            "colorMode": "background", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "textMode": "value", "reduceOptions": _LAST,
        }
    },
    View.LINES: _LINES,
    View.STACK: _LINES,
    View.TABLE: {
        "options": {"showHeader": True, "frameIndex": 0, "sortBy": [{"displayName": "Value", "desc": True}]},
        "transformations": [
            {
                "id": "organize",
                "options": {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": _COLUMNS},
            }
        ],
    },
    View.HEATMAP: {
        "options": {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
            "yAxis": {"unit": "s"},
            "cellGap": 1,
            "showValue": "never",
            "legend": {"show": True},
            "tooltip": {"show": True, "yHistogram": True},
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "rowsFrame": {"layout": "auto"},
        }
    },
}  # fmt: skip
