"""Where Grafana finds traces: links to one, to the slow steps of a run, and tables of these.

A slow step's span is always exported and has the attribute ``goodput.step.outlier``. Histograms have no exemplars, as
they are filled in once an interval and away from any span, so slow steps are searched for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from otel_goodput import semconv
from otel_goodput.semconv import Phase

CLOUD_TRACE: Final = "https://console.cloud.google.com/traces/list?tid=${__value.raw}"
MOST: Final = 50  # steps, or traces with some
# What stands for the trace, the job and the run, until what Grafana puts in place of them.
_TRACE, _JOB, _RUN = "TRACE", "JOB", "RUN"
_STEP: Final = f"span.{semconv.GOODPUT_STEP}"


class Source(NamedTuple):
    """A kind of datasource that has traces.

    Attributes:
        variable: of the dashboard, the first datasource of that kind.
        rows: what a row of its search is.
        one: the query for a trace.
        slow: the query for the slow steps of a run.
    """

    title: str
    variable: str
    rows: str
    one: Mapping[str, Any]
    slow: Mapping[str, Any]


SOURCES: Final = (
    Source(
        "Tempo",
        "tempo",
        "Each line is a slow step.",
        {"queryType": "traceql", "query": _TRACE},
        {
            "queryType": "traceql",
            "query": f'{{ resource.{semconv.RUN_ID} = "{_RUN}" && span.{semconv.GOODPUT_STEP_OUTLIER} = true }} '
            f"| select({_STEP})",
            "filters": [],
            "tableType": "spans",
            "limit": MOST,
            "spss": MOST,  # of a trace; without it three
        },
    ),
    Source(
        "Jaeger",
        "jaeger",
        "Each line is a trace with at least one of them, for Jaeger searches for traces.",
        {"query": _TRACE},
        {
            "queryType": "search",
            "service": _JOB,
            "operation": str(Phase.STEP),
            "tags": f'{semconv.GOODPUT_STEP_OUTLIER}=true {semconv.RUN_ID}="{_RUN}"',
            "limit": MOST,
        },
    ),
)


def variables() -> list[dict[str, Any]]:
    """Hidden ones of the dashboard: the first datasource of each kind, where there is one."""
    return [{"type": "datasource", "name": source.variable, "query": source.variable, "hide": 2} for source in SOURCES]


def trace_links() -> list[dict[str, Any]]:
    """Of a trace's id."""
    links = [_link(one.title, _explore(one, one.one, "now-30d", "now")) for one in SOURCES]
    return [_link("Cloud Trace", CLOUD_TRACE), *links]


def slow_step_links() -> list[dict[str, Any]]:
    """Of a panel about steps: the slow ones in the time that is shown."""
    return [_link(f"Slow steps in {one.title}", _explore(one, one.slow, "${__from}", "${__to}")) for one in SOURCES]


def slow_step_rows(width: int) -> list[dict[str, Any]]:
    """For each kind of datasource, a row with the slow steps of the run. It is closed: not everybody has all kinds."""
    rows = []
    for source in SOURCES:
        datasource = {"type": source.variable, "uid": f"${{{source.variable}}}"}
        query = {key: _filled(value, "$job", "$run") for key, value in source.slow.items()}
        table = {
            "type": "table",
            "title": "Slow steps",
            "description": f"Steps of the run that took far longer than those before them. {source.rows} "
            "Click on its id to see the trace.",
            "gridPos": {"w": width, "h": 8},
            "datasource": datasource,
            "targets": [{"refId": "A", "datasource": datasource, **query}],
            "fieldConfig": {"defaults": {"custom": {}, "noValue": "none"}, "overrides": []},
            "options": {"showHeader": True},
        }
        row = {"w": width, "h": 1}
        title = f"Which steps were slow? In {source.title}"
        rows.append({"type": "row", "title": title, "gridPos": row, "collapsed": True, "panels": [table]})
    return rows


def _filled(value: Any, job: str, run: str) -> Any:
    return value.replace(_JOB, job).replace(_RUN, run) if isinstance(value, str) else value


def _explore(source: Source, query: Mapping[str, Any], begin: str, end: str) -> str:
    """The address of a query; what Grafana puts into it is not encoded."""
    search = {"refId": "A", **query}
    pane = {"goodput": {"datasource": "SOURCE", "queries": [search], "range": {"from": "BEGIN", "to": "END"}}}
    text = quote(json.dumps(pane, separators=(",", ":")), safe="")
    text = _filled(text, "${job:percentencode}", "${run:percentencode}").replace(_TRACE, "${__value.raw}")
    text = text.replace("SOURCE", f"${{{source.variable}}}").replace("BEGIN", begin).replace("END", end)
    return f"/explore?schemaVersion=1&panes={text}"


def _link(title: str, url: str) -> dict[str, Any]:
    return {"title": title, "url": url, "targetBlank": True}
