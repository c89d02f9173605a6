"""A board as a dashboard of Cloud Monitoring."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_goodput import workload_series
from otel_goodput.semconv import Metric
from otel_goodput.workload_series import WorkloadSeries
from views.alerts import GONE_WINDOW
from views.board import COLUMNS, Across, Board, Panel, Query, Read, Unit, View, places
from views.naming import CLOUD_JOB, CLOUD_RESOURCE, CLOUD_RUN, cloud_metric, label
from views.promql import RANGE, cloud_selector, grouped

PERIOD: Final = "60s"  # what is exported once a minute is not there more often
_REDUCERS: Final = {
    Across.SUM: "REDUCE_SUM",
    Across.MEAN: "REDUCE_MEAN",
    Across.MAX: "REDUCE_MAX",
    Across.MIN: "REDUCE_MIN",
}
_ALIGNERS: Final = {Read.LATEST: "ALIGN_NEXT_OLDER", Read.RATE: "ALIGN_RATE"}  # ALIGN_DELTA for what piles up
_QUANTILES: Final = {Read.P50: "REDUCE_PERCENTILE_50", Read.P99: "REDUCE_PERCENTILE_99"}
_PLOTS: Final = {View.LINES: "LINE", View.STACK: "STACKED_AREA", View.HEATMAP: "HEATMAP"}
_UNITS: Final = {Unit.SHARE: "10^2.%", Unit.PERCENT: "%", Unit.SECONDS: "s", Unit.COUNT: "1", Unit.FACTOR: "1"}


class Scope(NamedTuple):
    """Whose series a board shows.

    Attributes:
        resource: type of the monitored resource.
        pinned: labels of the resource that can be chosen above the dashboard.
    """

    resource: str
    pinned: tuple[str, ...]


OURS: Final = Scope(CLOUD_RESOURCE, (CLOUD_JOB, CLOUD_RUN))
GOOGLES: Final = Scope(workload_series.RESOURCE, (workload_series.ID, workload_series.REPLICA_ID))


def dashboard(board: Board, scope: Scope) -> str:
    """The JSON that ``gcloud monitoring dashboards create --config-from-file`` takes."""
    tiles = list(_tiles(board, scope))
    bottom = max(tile["yPos"] + tile["height"] for tile in tiles)
    tiles.append(_tile(0, bottom, COLUMNS, 6, {"title": "What the panels say", "text": _explanation(board)}))
    return json.dumps(
        {
            "displayName": board.title,
            "dashboardFilters": [{"filterType": "RESOURCE_LABEL", "labelKey": key} for key in scope.pinned],
            "mosaicLayout": {"columns": COLUMNS, "tiles": tiles},
        },
        indent=2,
    )


def _tiles(board: Board, scope: Scope) -> Iterator[dict[str, Any]]:
    for x, y, width, height, section, panel in places(board):
        if panel is None:
            widget: dict[str, Any] = {"title": section.title, "sectionHeader": {"subtitle": "", "dividerBelow": True}}
        else:
            widget = {"title": panel.title, **_CONTENTS.get(panel.view, _chart)(panel, scope)}
        yield _tile(x, y, width, height, widget)


def _tile(x: int, y: int, width: int, height: int, widget: dict[str, Any]) -> dict[str, Any]:
    return {"xPos": x, "yPos": y, "width": width, "height": height, "widget": widget}


def _explanation(board: Board) -> dict[str, Any]:
    lines = [
        " ".join(filter(None, [f"- **{panel.title}**: {panel.brief}", panel.several]))
        for section in board.sections
        for panel in section.panels
    ]
    return {"format": "MARKDOWN", "content": "\n".join([board.brief, "", *lines])}


def _figure(panel: Panel, scope: Scope) -> dict[str, Any]:
    (query,) = panel.queries
    card: dict[str, Any] = {"timeSeriesQuery": _query(panel, query, scope)}
    if panel.bound is not None:
        direction = "BELOW" if panel.bound.below else "ABOVE"
        card["thresholds"] = [{"value": panel.bound.value, "color": "RED", "direction": direction}]
    return {"scorecard": card}


def _table(panel: Panel, scope: Scope) -> dict[str, Any]:
    sets = [
        {"timeSeriesQuery": _query(panel, query, scope), "minAlignmentPeriod": PERIOD} for query in panel.queries
    ]  # fmt: skip
    return {"timeSeriesTable": {"dataSets": sets, "metricVisualization": "BAR"}}


def _chart(panel: Panel, scope: Scope) -> dict[str, Any]:
    chart: dict[str, Any] = {
        "dataSets": [
            {
                "timeSeriesQuery": _query(panel, query, scope),
                "plotType": "STACKED_BAR" if query.read is Read.EVENTS else _PLOTS[panel.view],
                "legendTemplate": _legend(query),
                "minAlignmentPeriod": PERIOD,
                "targetAxis": "Y1",
            }
            for query in panel.queries
        ],
        "yAxis": {"scale": "LINEAR"},
        "chartOptions": {"mode": "COLOR"},
    }
    if panel.bound is not None:
        chart["thresholds"] = [{"value": panel.bound.value, "targetAxis": "Y1"}]
    return {"xyChart": chart}


_CONTENTS: Final = {View.FIGURE: _figure, View.TABLE: _table}


def _legend(query: Query) -> str:
    return " ".join(filter(None, [query.text, *(f"${{metric.labels.{label(key)}}}" for key in query.by)]))


def _query(panel: Panel, query: Query, scope: Scope) -> dict[str, Any]:
    part = {"filter": monitoring_filter(query, scope), "aggregation": _aggregation(query)}
    if query.share_of is not None:
        below = {"filter": monitoring_filter(query.share_of, scope), "aggregation": _aggregation(query.share_of)}
        asked: dict[str, Any] = {"timeSeriesFilterRatio": {"numerator": part, "denominator": below}}
    elif query.read is Read.PER_MINUTE:
        # Filters reach the values of a distribution, not how many there are.
        asked = {"prometheusQuery": _per_minute(query)}
    elif query.read is Read.AGE:
        asked = {"prometheusQuery": _age(query)}
    else:
        asked = {"timeSeriesFilter": part}
    return {**asked, "unitOverride": _UNITS[panel.unit]}


def _per_minute(query: Query) -> str:
    if isinstance(query.source, WorkloadSeries):
        raise TypeError(f"no distribution: {query}")
    rate = f"rate({cloud_selector(query.source, query.only, '_count')}[{RANGE}])"
    return f"60 * {grouped('sum', [CLOUD_JOB, CLOUD_RUN, *map(label, query.by)], rate)}"


def _age(query: Query) -> str:
    """Filters show what there is, and the question is for how long there has been nothing."""
    if isinstance(query.source, WorkloadSeries):
        raise TypeError(f"no moment: {query}")
    heard = f"last_over_time({cloud_selector(query.source, query.only)}[{GONE_WINDOW}])"
    return f"time() - {grouped('max', [CLOUD_JOB, CLOUD_RUN, *map(label, query.by)], heard)}"


def monitoring_filter(query: Query, scope: Scope) -> str:
    """Which series: a filter of Cloud Monitoring."""
    source = query.source
    terms = [
        f'metric.type="{cloud_metric(source) if isinstance(source, Metric) else source.type}"',
        f'resource.type="{scope.resource}"',
        *_labels(query.only, "="),
        *_labels(query.but, "!="),
    ]
    return " ".join(terms)


def _labels(values: Mapping[str, str], relation: str) -> Iterator[str]:
    return (f'metric.label."{label(key)}"{relation}"{value}"' for key, value in values.items())


def _aggregation(query: Query) -> dict[str, Any]:
    aggregation: dict[str, Any] = {
        "alignmentPeriod": PERIOD,
        "perSeriesAligner": _ALIGNERS.get(query.read, "ALIGN_DELTA"),
        "crossSeriesReducer": _QUANTILES.get(query.read, _REDUCERS[query.across]),
    }
    groups = [f'metric.label."{label(key)}"' for key in query.by]
    groups += [f'resource.label."{key}"' for key in (CLOUD_JOB, CLOUD_RUN) if query.by_run]
    if groups:
        aggregation["groupByFields"] = groups
    return aggregation
