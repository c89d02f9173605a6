"""A board as a dashboard of Grafana, over a Prometheus datasource.

Longer than other files: it is one document of Grafana's, from its outermost part to its innermost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from boards.alerts import GONE_WINDOW
from boards.board import COLUMNS, Across, Board, Panel, Query, Read, Section, Unit, View
from boards.naming import PROMETHEUS_INSTANCE, PROMETHEUS_JOB, label, prometheus_metric
from boards.promql import RANGE, braces, equal, grouped
from boards.slots import REPEATED
from boards.traces import slow_step_links, slow_step_rows, trace_links, variables
from otel_goodput import semconv
from otel_goodput.semconv import Category, JobState, Metric

UID: Final = "otel-goodput"
TAG: Final = "otel_goodput"
SCALE: Final = 2  # Grafana's grid has 24 columns
# A week in steps of five minutes, which is how long a point is seen: with longer steps, a short run could be missed.
POINTS: Final = 2100
MARKED: Final = "1h"  # how long an end can be marked afterwards, however coarse the steps of a long time are
OUTAGE: Final = "1d"  # after a longer outage, all earlier reasons of a run are marked again
TARGET: Final = "target_info"  # what Prometheus makes of a resource
DATASOURCE: Final = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
LINKS: Final = [
    {
        "title": "otel_goodput", "type": "dashboards", "tags": [TAG], "asDropdown": False, "includeVars": False,
        "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
    }
]  # fmt: skip
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_JOB: Final = f'{PROMETHEUS_JOB}="$job"'
_RUN: Final = (_JOB, f'{PROMETHEUS_INSTANCE}=~"${{run:regex}}/.*"')

_FUNCTIONS: Final = {Across.SUM: "sum", Across.MEAN: "avg", Across.MAX: "max", Across.MIN: "min"}
_UNITS: Final = {
    Unit.SHARE: "percentunit",
    Unit.SECONDS: "s",
    Unit.COUNT: "short",
    Unit.FACTOR: "none",
    Unit.BYTES: "bytes",
    Unit.WATTS: "watt",
}
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
    Category.STALLED: "dark-orange",
    Category.INFRASTRUCTURE_RECOVERY: "dark-red",
    Category.IN_FLIGHT: "purple",
    Category.DATA_LOADING: "orange",
    Category.OTHER: "text",
}


def dashboard(board: Board) -> str:
    """The JSON to import or provision."""
    panels = [each for section in board.sections for each in _section(section)]
    panels += _attempts()
    panels += slow_step_rows(SCALE * COLUMNS)
    return json.dumps(
        {
            "uid": UID,
            "title": board.title,
            "description": board.brief,
            "tags": [TAG],
            "schemaVersion": 38,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "",
            "links": LINKS,
            "annotations": {"list": [_ended(), _disrupted()]},
            "templating": {"list": _variables()},
            "panels": panels,
        },
        indent=2,
    )


def _ended() -> dict[str, Any]:
    """A mark at the moment at which an attempt ended the run, in all panels."""
    last_sign = f"last_over_time({prometheus_metric(semconv.LAST_SIGN)}{braces(*_RUN)}[{MARKED}])"
    ended = equal({semconv.GOODPUT_JOB_STATE: JobState.ENDED})
    state = f"last_over_time({prometheus_metric(semconv.JOB_STATE)}{braces(*_RUN, *ended)}[{MARKED}])"
    both = f"{last_sign} and on ({PROMETHEUS_INSTANCE}) {state} == 1"
    return {
        "name": "Ended",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "green",
        "expr": f"1000 * {grouped('max', [PROMETHEUS_INSTANCE], both)} > $__from < $__to",  # ms, as Grafana counts
        "step": "1m",
        "titleFormat": "Run ended",
        "textFormat": f"{{{{{PROMETHEUS_INSTANCE}}}}}",
        "tagKeys": "",
        "useValueForTime": "on",
    }


def _disrupted() -> dict[str, Any]:
    """A mark at each disruption, in all panels: a reason counts more than it did a few minutes before."""
    reason = label(semconv.GOODPUT_DISRUPTION_REASON)
    counted = f"{prometheus_metric(semconv.DISRUPTIONS)}{braces(*_RUN)}"
    now = grouped("max", [reason], counted)
    # Looks further back, because nothing is reported between two attempts.
    before = grouped("max", [reason], f"last_over_time({counted}[{OUTAGE}] offset {RANGE})")
    return {
        "name": "Disruptions",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        # The second half is for an attempt that died before its first export.
        "expr": f"{now} > {before} or ({now} > 0 unless {before})",
        "step": "1m",
        "titleFormat": "Disruption",
        "textFormat": f"{{{{{reason}}}}}",
        "tagKeys": reason,
        "useValueForTime": False,
    }


def _attempts() -> list[dict[str, Any]]:
    """The attempts of the run, with a link each to its trace."""
    attempt, trace = label(semconv.ATTEMPT), label(semconv.TRACE_ID)
    last_sign = f"last_over_time({prometheus_metric(semconv.LAST_SIGN)}{braces(*_RUN)}[$__range])"
    about = f"last_over_time({TARGET}{braces(*_RUN)}[$__range])"
    # The resource is detected after the start, so a target may have reported two versions of itself.
    traces = grouped("max", [PROMETHEUS_INSTANCE, attempt, trace], about)
    latest = grouped("max", [PROMETHEUS_INSTANCE], last_sign)
    table = {
        "type": "table",
        "title": "Attempts",
        "description": "Attempts within the selected time, and their traces: in Cloud Trace, or in Grafana's data "
        "sources. Steps in traces of their own link to these.",
        "gridPos": {"w": SCALE * COLUMNS, "h": 2 * SCALE * 2},
        "datasource": SOURCE,
        "targets": [
            {
                "refId": "A",
                "datasource": SOURCE,
                "expr": f"1000 * {latest} * on ({PROMETHEUS_INSTANCE}) group_left ({attempt}, {trace}) {traces}",
                "format": "table",
                "instant": True,
                "range": False,
            }
        ],
        "fieldConfig": {
            "defaults": {"custom": {}, "noValue": "none"},
            "overrides": [
                override("last sign of life", {"unit": "dateTimeAsIso"}),
                override("trace", {"links": trace_links()}),
            ],
        },
        "options": {"showHeader": True, "frameIndex": 0, "sortBy": [{"displayName": "attempt", "desc": True}]},
        "transformations": [
            organized(
                {attempt: "attempt", PROMETHEUS_INSTANCE: "process", trace: "trace", "Value": "last sign of life"},
            )
        ],
    }
    return [_heading("Which attempts were there?"), table]


def _heading(title: str) -> dict[str, Any]:
    grid = {"w": SCALE * COLUMNS, "h": 1}
    return {"type": "row", "title": title, "gridPos": grid, "collapsed": False, "panels": []}


def _section(section: Section) -> list[dict[str, Any]]:
    return [_heading(section.title), *map(_panel, section.panels)]


def override(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of the column of that name."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def organized(names: Mapping[str, str]) -> dict[str, Any]:
    """A table's columns in this order, under these names."""
    order = {name: at for at, name in enumerate(names)}
    options = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": dict(names)}
    return {"id": "organize", "options": options}


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
        DATASOURCE,
        *(
            {
                "type": "query",
                "name": name,
                "label": title,
                "datasource": SOURCE,
                "query": {"query": query, "refId": name},
                "regex": regex,
                "refresh": 2,
                "sort": 2,
            }
            for name, title, query, regex in values
        ),
        *variables(),
    ]


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": _TYPES[panel.view],
        "title": panel.title,
        "description": panel.brief,
        "gridPos": {"w": SCALE * panel.width, "h": SCALE * panel.height},
        "datasource": SOURCE,
        "targets": [_target(letter, panel, query) for letter, query in zip("ABCDEFGH", panel.queries, strict=False)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        **({"maxDataPoints": POINTS} if panel.view in (View.LINES, View.STACK) else {}),
        **_LOOKS[panel.view],
        **({REPEATED: True} if panel.repeated else {}),
    }


def _target(letter: str, panel: Panel, query: Query) -> dict[str, Any]:
    once = panel.view in (View.FIGURE, View.TABLE)
    formats = {View.TABLE: "table", View.HEATMAP: "heatmap"}
    above = "" if panel.zeros or not once else " > 0"
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": f"{expression(query, once=once)}{above}",
        "legendFormat": " ".join(filter(None, [query.text, *(f"{{{{{label(key)}}}}}" for key in query.by)])),
        "format": formats.get(panel.view, "time_series"),
        "instant": once,
        "range": not once,
    }


def expression(query: Query, *, once: bool = False) -> str:
    """The query in PromQL, of the job and the run that are chosen above the dashboard.

    `once`: the last figures within the selected time. A run that has ended has none at the end of it.
    """
    metric = _ours(query)
    labels = [label(key) for key in query.by]
    name, matchers = prometheus_metric(metric), [*_RUN, *equal(query.only)]
    selector = f"{name}{braces(*matchers)}"
    if query.read is Read.RATE:
        return grouped("sum", labels, f"rate({selector}[{RANGE}])")
    if query.read is Read.AGE:
        window = "$__range" if once else GONE_WINDOW
        return f"time() - {grouped('max', labels, f'last_over_time({selector}[{window}])')}"
    if query.read in (Read.LATEST, Read.EVENTS):
        newest = f"{_last(selector, once)} and on ({PROMETHEUS_INSTANCE}) {_newest(once)}"
        return grouped(_FUNCTIONS[query.across], labels, newest)
    rates = grouped("sum", labels, f"rate({selector}[{RANGE}])")
    if query.read is Read.PER_MINUTE:
        classic = grouped("sum", labels, f"rate({name}_count{braces(*matchers)}[{RANGE}])")
        return f"60 * (histogram_count({rates}) or {classic})"
    # A histogram is native, or classic with buckets of its own: one of the two is empty.
    either = f"{rates} or {grouped('sum', [*labels, 'le'], f'rate({name}_bucket{braces(*matchers)}[{RANGE}])')}"
    # The quantile of what did not happen is not a number, and would stand in the legend with no line.
    return either if query.read is Read.BUCKETS else f"histogram_quantile({query.read.value}, {either}) >= 0"


def _last(selector: str, once: bool) -> str:
    return f"last_over_time({selector}[$__range])" if once else selector


def _newest(once: bool) -> str:
    """The instance of the newest attempt: the figures of the one before stay for a while, and its time is shorter."""
    time = _last(f"{prometheus_metric(semconv.TIME)}{braces(*_RUN)}", once)
    return f"topk(1, {grouped('sum', [PROMETHEUS_INSTANCE], time)})"


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
    if panel.view is View.FIGURE or not panel.zeros:
        defaults["noValue"] = "none" if not panel.zeros else "not known"
    if any(query.source is semconv.STEP_DURATION for query in panel.queries):
        defaults["links"] = slow_step_links()
    if panel.words:
        defaults["mappings"] = [_words(panel.words)]
    return defaults


def _words(words: Mapping[int, str]) -> dict[str, Any]:
    """Text in place of values."""
    options = {str(value): {"text": text, "index": at} for at, (value, text) in enumerate(words.items())}
    return {"type": "value", "options": options}


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    hidden = [_ALL_ZERO] if not panel.zeros and panel.view in (View.LINES, View.STACK) else []
    if panel.view is not View.STACK:
        return hidden
    return hidden + [
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


# Series that are 0 in all of the time that is shown.
_ALL_ZERO: Final = {
    "matcher": {"id": "byValue", "options": {"op": "gte", "reducer": "allIsZero", "value": 0}},
    "properties": [{"id": "custom.hideFrom", "value": {"legend": True, "tooltip": True, "viz": True}}],
}
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
