"""A dashboard of Grafana with all runs there were, a line each, whether they go on, have ended, or are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from boards.board import COLUMNS
from boards.grafana import DATASOURCE, LINKS, SCALE, SOURCE, TAG, UID, organized, override
from boards.naming import PROMETHEUS_JOB, label
from boards.promql import PROMETHEUS
from boards.slots import SILENCE, WINDOW
from boards.slots import TARGET as GOODPUT_TARGET
from boards.standing import ENDED, GONE, RUNNING, STATES, Standing
from otel_goodput import semconv

RUN: Final = label(semconv.RUN_ID)


class Column(NamedTuple):
    """A figure of every run: its query, and how it is shown."""

    title: str
    expression: str
    shown: Mapping[str, Any]


def columns() -> list[Column]:
    runs = Standing(PROMETHEUS, "$__range")
    target = [{"value": None, "color": "red"}, {"value": GOODPUT_TARGET, "color": "green"}]
    states = {RUNNING: "blue", ENDED: "green", GONE: "red"}
    words = {str(value): {"text": text, "color": states[text], "index": value} for value, text in enumerate(STATES)}
    seconds = {"unit": "s"}
    share = {
        "unit": "percentunit",
        "thresholds": {"mode": "absolute", "steps": target},
        "custom.cellOptions": {"type": "color-text"},
    }
    ratios = {f"goodput, last {WINDOW}": WINDOW, "goodput, whole run": semconv.WINDOW_RUN}
    return [
        Column(
            "state",
            runs.state(),
            {"mappings": [{"type": "value", "options": words}], "custom.cellOptions": {"type": "color-text"}},
        ),
        Column("last sign of life, ago", runs.silent(), seconds),
        *(
            Column(title, runs.of_run("min", semconv.RATIO, {semconv.GOODPUT_WINDOW: of}), share)
            for title, of in ratios.items()
        ),
        Column("elapsed", runs.elapsed(), seconds),
        Column("highest step", runs.of_run("max", semconv.STEP_MAX), {"unit": "short"}),
        Column("disruptions", runs.disruptions(), {"unit": "short"}),
        Column("at risk", runs.of_run("max", semconv.AT_RISK), seconds),
    ]


def dashboard() -> str:
    """The JSON to import or provision."""
    shown = columns()
    letters = dict(zip("ABCDEFGH", shown, strict=False))
    names = {PROMETHEUS_JOB: "job", RUN: "run", **{f"Value #{letter}": one.title for letter, one in letters.items()}}
    link = (
        f"/d/{UID}?var-datasource=${{datasource}}&var-job=${{__data.fields.job:percentencode}}"
        "&var-run=${__data.fields.run:percentencode}&${__url_time_range}"
    )
    table = {
        "type": "table",
        "title": "Which runs were there, and what is their state?",
        "description": "All runs that reported within the selected time, with their last figures. A run is "
        f"{GONE} if it has reported nothing for {SILENCE:g} s and had not ended. Click a run to open its dashboard.",
        "gridPos": {"w": SCALE * COLUMNS, "h": 20},
        "datasource": SOURCE,
        "targets": [
            {
                "refId": letter,
                "datasource": SOURCE,
                "expr": one.expression,
                "format": "table",
                "instant": True,
                "range": False,
            }
            for letter, one in letters.items()
        ],
        "fieldConfig": {
            "defaults": {"custom": {"filterable": True}, "noValue": "none"},
            "overrides": [
                override("run", {"links": [{"title": "Show this run", "url": link, "targetBlank": False}]}),
                *(override(one.title, one.shown) for one in shown),
            ],
        },
        "options": {
            "showHeader": True,
            "frameIndex": 0,
            "sortBy": [{"displayName": "last sign of life, ago", "desc": False}],
        },
        "transformations": [{"id": "merge", "options": {}}, organized(names)],
    }
    return json.dumps(
        {
            "uid": f"{UID}-runs",
            "title": "otel_goodput: all runs",
            "description": "All runs, their state, and how well each used its time.",
            "tags": [TAG],
            "schemaVersion": 38,
            "editable": True,
            "refresh": "1m",
            "time": {"from": "now-7d", "to": "now"},
            "timezone": "",
            "links": LINKS,
            "templating": {"list": [DATASOURCE]},
            "panels": [table],
        },
        indent=2,
    )
