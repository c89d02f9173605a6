"""Grafana takes the dashboard: its own types hold all of it, and its panels lie well."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any
from urllib.parse import parse_qs

import promql_parser
import pytest

from .written import filled, load

NAME = "dashboards/goodput.grafana.json"
RUNS = "dashboards/runs.grafana.json"
ALERTS = "alerts/grafana.yaml"
COLUMNS = 24
OLD = "Grafana's types are for Python 3.11 and later"  # .ci/run knows this ending
OF_PROMETHEUS = tuple(  # of an annotation: what its datasource reads, which the types of the dashboard do not know
    f".annotations.list.{number}.{key}"
    for number in range(2)
    for key in ("step", "titleFormat", "textFormat", "tagKeys", "useValueForTime")
)

# Newer than the types: see TempoQuery in @grafana/schema.
OF_TEMPO = (".tableType", ".spss")


def lost(content: Any, back: Any, path: str = "") -> Iterator[str]:
    """Paths in `content` that are not in `back`, or not the same."""
    if isinstance(content, dict) and isinstance(back, dict):
        for key, each in content.items():
            yield from lost(each, back[key], f"{path}.{key}") if key in back else [f"{path}.{key}"]
    elif isinstance(content, list) and isinstance(back, list) and len(content) == len(back):
        for number, each in enumerate(content):
            yield from lost(each, back[number], f"{path}.{number}")
    elif content != back:
        yield path


def typed(content: Any) -> Any:
    """`content` after Grafana's types have read and written it: what they do not know is gone."""
    if sys.version_info < (3, 11):
        pytest.skip(OLD)
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    return json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(content)))


def unknown(content: Any) -> set[str]:
    """Paths that Grafana's types do not know, but for what is left to datasources."""
    paths = lost(content, typed(content))
    return {path for path in paths if not path.startswith(OF_PROMETHEUS) and not path.endswith(OF_TEMPO)}


@pytest.mark.parametrize("name", [NAME, RUNS])
def test_grafana_s_types_hold_all_of_it(name: str) -> None:
    content = load(name)
    assert unknown(content) == set()


@pytest.mark.parametrize(
    "path",
    [("titel",), ("panels", 2, "heigth"), ("panels", 1, "options", "colourMode"), ("panels", 2, "targets", 0, "query"),
     ("panels", 2, "fieldConfig", "defaults", "colour"), ("templating", "list", 1, "all")],
)  # fmt: skip
def test_what_grafana_does_not_know_is_found(path: tuple[Any, ...]) -> None:
    content = copy.deepcopy(load(NAME))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "x"
    assert {path.rpartition(".")[2] for path in unknown(content)} == {path[-1]}


def rules() -> list[dict[str, Any]]:
    (group,) = load(ALERTS)["groups"]
    assert group["interval"] == "60s" and group["folder"] and group["orgId"] == 1
    rules_of_group: list[dict[str, Any]] = group["rules"]
    return rules_of_group


def test_grafana_s_types_hold_all_of_the_alerts() -> None:
    if sys.version_info < (3, 11):
        pytest.skip(OLD)
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models.alerting import Rule

    plugins.register_default_plugins()
    for rule in rules():
        assert list(lost(rule, json.loads(encoder.JSONEncoder().encode(Rule.from_json(rule))))) == []


def test_an_alert_fires_for_every_series_of_its_query() -> None:
    assert len({rule["uid"] for rule in rules()}) == len({rule["title"] for rule in rules()}) == len(rules())
    for rule in rules():
        query, condition = rule["data"]
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", rule["uid"])
        assert (query["model"]["instant"], query["model"]["range"]) == (True, False)
        assert rule["condition"] == condition["refId"] and condition["datasourceUid"] == "__expr__"
        assert condition["model"]["expression"] == query["refId"]
        assert condition["model"]["conditions"] == [{"evaluator": {"type": "gt", "params": [-1]}}]
        assert rule["noDataState"] == "OK", "no run is in trouble"
        # Grafana's provisioning fills in ${NAME} from the environment.
        assert "${" not in json.dumps(rule)


def test_the_alerts_are_prometheus_s() -> None:
    (theirs,) = load("alerts/prometheus.yaml")["groups"]
    written = [(rule["data"][0]["model"]["expr"], rule["for"], rule["labels"]) for rule in rules()]
    assert written == [(rule["expr"], rule["for"], rule["labels"]) for rule in theirs["rules"]]


@pytest.mark.parametrize("name", [NAME, RUNS])
def test_panels_lie_in_the_grid_and_beside_each_other(name: str) -> None:
    panels = load(name)["panels"]
    everything = panels + [inner for panel in panels for inner in panel.get("panels", [])]
    assert len({panel["id"] for panel in everything}) == len(everything)
    grids = [panel["gridPos"] for panel in panels]
    assert all(grid["x"] + grid["w"] <= COLUMNS for grid in grids)
    for one, other in combinations(grids, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_goodput_is_on_top_and_every_query_is_of_the_chosen_run() -> None:
    content = load(NAME)
    assert [panel["title"] for panel in content["panels"][:4]] == [
        "How much of the time makes progress?", "Goodput, whole run", "Goodput, last 1h", "Goodput, last 24h",
    ]  # fmt: skip
    variables = {variable["name"]: variable.get("hide", 0) for variable in content["templating"]["list"]}
    assert variables == {"datasource": 0, "job": 0, "run": 0, "tempo": 2, "jaeger": 2}
    targets = [target for panel in content["panels"] for target in panel.get("targets", [])]
    targets += content["annotations"]["list"]
    assert len(targets) > 30
    for target in targets:
        assert target["datasource"]["uid"] == "${datasource}"
        for selector in selectors(target["expr"]):
            matchers = {(one.name, one.value) for one in selector.matchers.matchers}
            assert {("job", "$job"), ("instance", "${run:regex}/.*")} <= matchers, target["expr"]


@pytest.mark.parametrize("name", [NAME, RUNS])
def test_figures_are_the_last_within_the_time_that_is_shown(name: str) -> None:
    """At its end a run that is over has none."""
    looked_back = 0
    for panel in load(name)["panels"]:
        for target in panel.get("targets", []):
            single = panel["type"] in ("stat", "table")
            assert (target["instant"], target["range"]) == (single, not single)
            if single:
                expected = len(selectors(target["expr"]))
                assert target["expr"].count("last_over_time(") == target["expr"].count("[$__range]") == expected
                looked_back += expected
        if panel["type"] == "stat":
            assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
    assert looked_back > 15


def test_a_short_run_does_not_fall_between_two_steps_of_a_week() -> None:
    """Grafana asks for no more points than a panel wants, and Prometheus sees a point for five minutes."""
    week = re.fullmatch(r"now-(\d+)d", load(RUNS)["time"]["from"])
    assert week is not None
    lines = [panel for panel in load(NAME)["panels"] if panel["type"] == "timeseries"]
    assert len(lines) > 15
    for panel in lines:
        assert int(week[1]) * 86_400 / panel["maxDataPoints"] <= 300, panel["title"]


def test_what_is_zero_all_the_time_is_hidden_where_there_are_many() -> None:
    """Of a window's goodput, or of slices, 0 says a lot."""
    hidden = set()
    for panel in load(NAME)["panels"]:
        matchers = [one["matcher"] for one in panel.get("fieldConfig", {}).get("overrides", [])]
        zero = {"id": "byValue", "options": {"op": "gte", "reducer": "allIsZero", "value": 0}} in matchers
        if zero or any(target["expr"].endswith(" > 0") for target in panel.get("targets", [])):
            assert panel["fieldConfig"]["defaults"]["noValue"] == "none"
            hidden.add(panel["title"])
    assert hidden == {
        "Where did the last 1h go?", "Where did the whole run go?", "What share of the run is lost?",
        "Which incidents are open?", "How many incidents were there?", "What did they cost?",
        "Is it running, or has it ended?", "Why was it disrupted?", "How often was it disrupted in the last 24h?",
        "Is telemetry lost?", "By which clock are steps measured?", "Does it make progress?",
        "Which rank does it wait for?",
        "Do steps stall?", "Does the compilation cache hit?", "What did an attempt wait for?",
            "Are their clocks held down?",
    }  # fmt: skip


def test_attempts_are_linked_to_their_traces() -> None:
    content = load(NAME)
    (table,) = (panel for panel in content["panels"] if panel["title"] == "Attempts")
    overrides = {one["matcher"]["options"]: one["properties"] for one in table["fieldConfig"]["overrides"]}
    columns = table["transformations"][0]["options"]["renameByName"]
    assert columns["goodput_trace_id"] == "trace" and set(overrides) <= set(columns.values())
    (links,) = (one["value"] for one in overrides["trace"])
    urls = {link["title"]: link["url"].replace("${__value.raw}", "4f" * 16) for link in links}
    assert urls["Cloud Trace"] == f"https://console.cloud.google.com/traces/list?tid={'4f' * 16}"
    for name in ("Tempo", "Jaeger"):
        path, _, query = urls[name].partition("?")
        parameters = parse_qs(query, strict_parsing=True)
        (pane,) = json.loads(parameters["panes"][0]).values()
        assert (path, parameters["schemaVersion"]) == ("/explore", ["1"])
        assert pane["datasource"] == f"${{{name.lower()}}}" and pane["queries"][0]["query"] == "4f" * 16


def test_slow_steps_are_searched_for_where_traces_are() -> None:
    content = load(NAME)
    rows = {panel["title"]: panel for panel in content["panels"] if panel.get("collapsed")}
    assert [*rows] == ["Which steps were slow? In Tempo", "Which steps were slow? In Jaeger"]
    queries = {}
    for row in rows.values():
        (table,) = row["panels"]  # which is not loaded before the row is opened
        (target,) = table["targets"]
        kind = table["datasource"]["type"]
        assert target["datasource"] == table["datasource"] == {"type": kind, "uid": f"${{{kind}}}"}
        queries[kind] = target
    assert queries["jaeger"]["service"] == "$job" and queries["jaeger"]["operation"] == "step"
    assert queries["jaeger"]["tags"] == 'goodput.step.outlier=true goodput.run.id="$run"'
    assert queries["tempo"]["query"] == (
        '{ resource.goodput.run.id = "$run" && span.goodput.step.outlier = true } | select(span.goodput.step)'
    )
    linked = [panel for panel in content["panels"] if "links" in panel.get("fieldConfig", {}).get("defaults", {})]
    assert {panel["title"] for panel in linked} == {
        "How many steps per minute?", "How long does a step take?", "How are step times distributed?",
    }  # fmt: skip
    for panel in linked:
        for link in panel["fieldConfig"]["defaults"]["links"]:
            kind = link["title"].rpartition(" ")[2].lower()
            address = link["url"].replace("${job:percentencode}", "%24job").replace("${run:percentencode}", "%24run")
            (pane,) = json.loads(parse_qs(address.partition("?")[2], strict_parsing=True)["panes"][0]).values()
            query = {key: value for key, value in queries[kind].items() if key != "datasource"}
            assert pane["queries"] == [query] and pane["range"] == {"from": "${__from}", "to": "${__to}"}


def test_the_texts_are_of_one_run() -> None:
    """A run is chosen above the dashboard, one: nothing here is of several."""
    content = load(NAME)
    assert not any(variable.get("multi") for variable in content["templating"]["list"])
    assert "several" not in json.dumps(content)


def test_a_run_of_the_overview_opens_its_dashboard() -> None:
    (panel,) = load(RUNS)["panels"]
    columns = panel["transformations"][-1]["options"]["renameByName"]
    letters = {f"Value #{target['refId']}" for target in panel["targets"]}
    assert set(columns) == {"job", "goodput_run_id"} | letters
    overrides = {one["matcher"]["options"]: one["properties"] for one in panel["fieldConfig"]["overrides"]}
    assert set(overrides) <= set(columns.values())
    (links,) = (one["value"] for one in overrides["run"])
    assert links[0]["url"].startswith(f"/d/{load(NAME)['uid']}?")
    used = set(re.findall(r"__data\.fields\.(\w+)", links[0]["url"]))
    variables = {one["name"] for one in load(NAME)["templating"]["list"]}
    assert used == {"job", "run"} <= variables & set(columns.values())


def selectors(expression: str) -> list[Any]:
    nodes: list[Any] = []
    promql_parser.walk(promql_parser.parse(filled(expression)), nodes.append)
    return [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
