"""A board as a dashboard of Cloud Monitoring."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from boards.alerts import GONE_WINDOW
from boards.board import COLUMNS, Across, Board, Panel, Query, Read, Unit, View
from boards.naming import (
    CLOUD_JOB,
    CLOUD_RESOURCE,
    CLOUD_RUN,
    PROMETHEUS_INSTANCE,
    PROMETHEUS_JOB,
    TARGET_RESOURCE,
    cloud_metric,
    label,
    target_metric,
)
from boards.promql import CLOUD, RANGE, TARGET, Dialect, grouped, quoted
from boards.slots import REPEATED
from boards.standing import GONE, STATES, Standing
from otel_goodput import semconv
from otel_goodput._metrics import workload_series
from otel_goodput.semconv import Metric

RECALLED: Final = "7d"  # how far back from the end of what is shown the last word of a run is looked for
PERIOD: Final = "60s"  # what is exported once a minute is not there more often
_REDUCERS: Final = {
    Across.SUM: "REDUCE_SUM",
    Across.MEAN: "REDUCE_MEAN",
    Across.MAX: "REDUCE_MAX",
    Across.MIN: "REDUCE_MIN",
}
_ALIGNERS: Final = {Read.LATEST: "ALIGN_NEXT_OLDER", Read.RATE: "ALIGN_RATE"}  # ALIGN_DELTA for what piles up
_FUNCTIONS: Final = {Across.SUM: "sum", Across.MEAN: "avg", Across.MAX: "max", Across.MIN: "min"}
_QUANTILES: Final = {Read.P50: "REDUCE_PERCENTILE_50", Read.P99: "REDUCE_PERCENTILE_99"}
_PLOTS: Final = {View.LINES: "LINE", View.STACK: "STACKED_AREA", View.HEATMAP: "HEATMAP"}
_UNITS: Final = {
    Unit.SHARE: "10^2.%",
    Unit.PERCENT: "%",
    Unit.SECONDS: "s",
    Unit.COUNT: "1",
    Unit.FACTOR: "1",
    Unit.BYTES: "By",
    Unit.WATTS: "W",
}


class Scope(NamedTuple):
    """Whose series a board shows.

    Attributes:
        resource: type of the monitored resource.
        pinned: labels of the resource that can be chosen above the dashboard.
        metric: the type of a metric of ours.
        words: how our metrics are queried in PromQL.
        apart: whether each attempt has series of its own. No filter takes the newest of them, so all is PromQL.
        choice: what to choose above the dashboard.
        suffix: of the dashboards' titles.
    """

    resource: str
    pinned: tuple[str, ...]
    metric: Callable[[Metric], str] = cloud_metric
    words: Dialect = CLOUD
    apart: bool = False
    choice: str = ""
    suffix: str = ""

    @property
    def runs(self) -> Standing:
        return Standing(self.words, RECALLED)


OURS: Final = Scope(
    CLOUD_RESOURCE,
    (CLOUD_JOB, CLOUD_RUN),
    choice="Choose one run above: if you choose several, a figure may be that of any of them.",
)
BY_OTLP: Final = Scope(
    TARGET_RESOURCE,
    (PROMETHEUS_JOB, PROMETHEUS_INSTANCE),
    target_metric,
    TARGET,
    apart=True,
    choice="Choose the instance of a run's newest attempt above (`RUN/ATTEMPT/PROCESS@HOST`): if you choose several "
    "runs, a figure may be that of any of them.",
    suffix=" (OTLP)",
)
GOOGLES: Final = Scope(workload_series.RESOURCE, (workload_series.ID, workload_series.REPLICA_ID))
LAST: Final = (
    f"Figures and tables show what a run last reported within the {RECALLED} before the end of the selected time, "
    "so they also show runs that have ended. Charts are empty after the end of a run: select a time in which it ran."
)
EXPLORER: Final = "https://console.cloud.google.com/traces/explorer"
TRACES: Final = (
    f"[Trace explorer]({EXPLORER}): filter by the attribute `{semconv.RUN_ID}` for the spans of a run, and by "
    f"`{semconv.GOODPUT_STEP_OUTLIER}` with the value `true` for slow steps. A span called `attempt` is the root of an "
    f"attempt's trace; the link to a trace is `{EXPLORER};traceId=TRACE`."
)


def dashboard(board: Board, scope: Scope) -> str:
    """The JSON that ``gcloud monitoring dashboards create --config-from-file`` takes."""
    tiles = list(_tiles(board, scope))
    texts = {"What the panels say": (6, _explanation(board, scope))}
    if scope is not GOOGLES:
        texts = {"Traces of a run": (2, TRACES), **texts}
    return laid_out(f"{board.title}{scope.suffix}", scope.pinned, tiles, texts)


def laid_out(
    title: str, pinned: Iterable[str], tiles: list[dict[str, Any]], texts: Mapping[str, tuple[int, str]]
) -> str:
    """The JSON of a dashboard, with texts of so many rows below what it shows; `pinned` are chosen above it."""
    for name, (height, text) in texts.items():
        widget = {"title": name, "text": {"format": "MARKDOWN", "content": text}}
        tiles.append(tile(COLUMNS, height, widget))
    return json.dumps(
        {
            "displayName": title,
            "dashboardFilters": [{"filterType": "RESOURCE_LABEL", "labelKey": key} for key in pinned],
            "mosaicLayout": {"columns": COLUMNS, "tiles": tiles},
        },
        indent=2,
    )


def _tiles(board: Board, scope: Scope) -> Iterator[dict[str, Any]]:
    for section in board.sections:
        yield tile(COLUMNS, 1, heading(section.title))
        for panel in section.panels:
            if panel.words:
                yield tile(panel.width, panel.height, _state(scope))
                continue
            widget = {"title": panel.title, **_CONTENTS.get(panel.view, _chart)(panel, scope)}
            yield {**tile(panel.width, panel.height, widget), **({REPEATED: True} if panel.repeated else {})}


def tile(width: int, height: int, widget: dict[str, Any]) -> dict[str, Any]:
    return {"width": width, "height": height, "widget": widget}


def heading(title: str) -> dict[str, Any]:
    return {"title": title, "sectionHeader": {"subtitle": "", "dividerBelow": True}}


def _explanation(board: Board, scope: Scope) -> str:
    """The explanations of all panels: a scorecard cannot show its own."""
    lines = [f"- **{panel.title}**: {panel.brief}" for section in board.sections for panel in section.panels]
    return "\n".join([" ".join(filter(None, [board.brief, LAST, scope.choice])), "", *lines])


def _state(scope: Scope) -> dict[str, Any]:
    """As a number, because a scorecard cannot show text."""
    state = last({"prometheusQuery": scope.runs.state()}, Unit.COUNT)
    gone = {"value": STATES.index(GONE) - 0.5, "color": "RED", "direction": "ABOVE"}
    words = ", ".join(f"{value} {word}" for value, word in enumerate(STATES))
    return {"title": f"Has it ended? {words}", "scorecard": {"timeSeriesQuery": state, "thresholds": [gone]}}


def last(query: Mapping[str, Any], unit: Unit) -> dict[str, Any]:
    """One value for the selected time: the last one."""
    return {**query, "unitOverride": _UNITS[unit], "outputFullDuration": True}


def _figure(panel: Panel, scope: Scope) -> dict[str, Any]:
    (query,) = panel.queries
    card: dict[str, Any] = {"timeSeriesQuery": last(_query(panel, query, scope), panel.unit)}
    if panel.bound is not None:
        direction = "BELOW" if panel.bound.below else "ABOVE"
        card["thresholds"] = [{"value": panel.bound.value, "color": "RED", "direction": direction}]
    return {"scorecard": card}


def _table(panel: Panel, scope: Scope) -> dict[str, Any]:
    return table(last(_query(panel, query, scope), panel.unit) for query in panel.queries)


def table(queries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    sets = [{"timeSeriesQuery": query, "minAlignmentPeriod": PERIOD} for query in queries]
    return {"timeSeriesTable": {"dataSets": sets, "metricVisualization": "BAR"}}


def _chart(panel: Panel, scope: Scope) -> dict[str, Any]:
    chart: dict[str, Any] = {
        "dataSets": [
            {
                "timeSeriesQuery": {**_query(panel, query, scope), "unitOverride": _UNITS[panel.unit]},
                "plotType": _PLOTS[panel.view],
                **_legend(query, scope),
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


def _legend(query: Query, scope: Scope) -> dict[str, str]:
    """Empty if the labels of a series have dots, which a template may not support: all labels are shown then."""
    if scope.apart and query.by:
        return {}
    labels = (f"${{metric.labels.{label(key)}}}" for key in query.by)
    return {"legendTemplate": " ".join(filter(None, [query.text, *labels]))}


def _query(panel: Panel, query: Query, scope: Scope) -> dict[str, Any]:
    """A filter if one is enough. It cannot express the newest attempt, zeros, counts of a distribution or times."""
    single = panel.view in (View.FIGURE, View.TABLE)
    beyond = single or scope.apart or not panel.zeros or query.read in (Read.PER_MINUTE, Read.AGE)
    if isinstance(query.source, Metric) and beyond and query.read is not Read.BUCKETS:
        text = _promql(query, query.source, scope, single=single)
        text = text if panel.zeros else f"{text} > 0"
        if scope.apart and query.by and query.text:
            text = f'label_replace({text}, "series", {quoted(query.text)}, "", "")'
        return {"prometheusQuery": text}
    part = {"filter": monitoring_filter(query, scope), "aggregation": _aggregation(query)}
    if query.share_of is None:
        return {"timeSeriesFilter": part}
    below = {"filter": monitoring_filter(query.share_of, scope), "aggregation": _aggregation(query.share_of)}
    return {"timeSeriesFilterRatio": {"numerator": part, "denominator": below}}


def _promql(query: Query, metric: Metric, scope: Scope, *, single: bool) -> str:
    """`single`: the last figures of a run's newest attempt. Runs stay separate, because they are chosen above."""
    if query.but or query.share_of:
        raise TypeError(f"not in PromQL: {query}")
    words = scope.words
    run, function = [*words.run, *map(words.key, query.by)], _FUNCTIONS[query.across]
    rate = f"rate({{}}[{RANGE}])"
    if query.read is Read.AGE:
        last_sign = words.select(metric, query.only, f"last_over_time({{}}[{RECALLED if single else GONE_WINDOW}])")
        return f"time() - {grouped('max', run, last_sign)}"
    if query.read is Read.PER_MINUTE:
        return f"60 * {grouped('sum', run, words.select(metric, query.only, rate, '_count'))}"
    if query.read is Read.RATE:
        return grouped("sum", run, words.select(metric, query.only, rate))
    if query.read in _QUANTILES:
        buckets = grouped("sum", [*run, "le"], words.select(metric, query.only, rate, "_bucket"))
        return f"histogram_quantile({query.read.value}, {buckets}) >= 0"  # not of what did not happen
    if single:
        return scope.runs.of_run(function, metric, query.only, query.by)
    # Every attempt counts on from where the one before it was, and stays for some minutes.
    if query.read is Read.EVENTS:
        return grouped("max", run, words.select(metric, query.only))
    if scope.apart:
        return Standing(words, "").of_run(function, metric, query.only, query.by)
    return grouped(function, run, words.select(metric, query.only))


def monitoring_filter(query: Query, scope: Scope) -> str:
    """Which series: a filter of Cloud Monitoring."""
    source = query.source
    terms = [
        f'metric.type="{scope.metric(source) if isinstance(source, Metric) else source.type}"',
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
    if groups:
        aggregation["groupByFields"] = groups
    return aggregation
