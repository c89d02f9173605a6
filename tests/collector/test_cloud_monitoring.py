"""Cloud Monitoring takes the dashboards and the policies: they are what its API's messages can hold, and lie well."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict, ParseError

from .written import ABSENCE, FILES, OTLP_POLICIES, POLICIES, load

DASHBOARDS = [name for name in FILES if name.endswith(".cloud-monitoring.json")]
RUNS = {"dashboards/runs.cloud-monitoring.json", "dashboards/runs-otlp.cloud-monitoring.json"}
IN_PROMQL = {*RUNS, "dashboards/goodput-otlp.cloud-monitoring.json"}  # but for a heatmap

# What the API says of the text of a policy, and of the grid of a dashboard.
LONGEST = 8192
WIDEST = 12


_SPOILT = {
    "Dashboard": [("displayName", "name_of"), ("ALIGN_NEXT_OLDER", "ALIGN_LATEST"), ("groupByFields", "groupBy")],
    "AlertPolicy": [("documentation", "document"), ('"60s"', '"a minute"'), ('"combiner": "', '"combiner": "ANY')],
}
_OF_FILTERS = ("ALIGN_NEXT_OLDER", "groupByFields")


@pytest.fixture(scope="module")
def kinds() -> dict[str, Any]:
    """Imported here: it takes long, and each process of a run collects all tests."""
    from google.cloud.monitoring_dashboard_v1 import Dashboard
    from google.cloud.monitoring_v3 import AlertPolicy

    return {"Dashboard": Dashboard, "AlertPolicy": AlertPolicy}


def message(kind: Any, content: Any) -> Any:
    return ParseDict(content, kind.pb(kind()), ignore_unknown_fields=False)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Dashboard", each) for each in DASHBOARDS]
    + [("AlertPolicy", each) for each in (*POLICIES, *OTLP_POLICIES, ABSENCE)],
)
def test_the_api_s_messages_hold_all_of_it(kind: str, name: str, kinds: dict[str, Any]) -> None:
    content = load(name)
    assert message(kinds[kind], content).display_name == content["displayName"]
    for old, new in _SPOILT[kind]:
        if name in IN_PROMQL and old in _OF_FILTERS:
            continue
        with pytest.raises(ParseError):
            message(kinds[kind], json.loads(json.dumps(content).replace(old, new)))


def test_there_are_five_dashboards() -> None:
    assert len(DASHBOARDS) == 5


@pytest.mark.parametrize("policies", [POLICIES, OTLP_POLICIES])
def test_there_is_a_policy_for_each_rule(policies: list[str]) -> None:
    (group,) = load("alerts/prometheus.yaml")["groups"]
    alerts = [load(name)["conditions"][0]["conditionPrometheusQueryLanguage"]["alertRule"] for name in policies]
    assert sorted(rule["alert"] for rule in group["rules"]) == sorted(alerts)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_tiles_lie_in_the_grid_and_beside_each_other(name: str) -> None:
    layout = load(name)["mosaicLayout"]
    assert layout["columns"] <= WIDEST
    for one in layout["tiles"]:
        assert one["width"] >= 1 and one["height"] >= 1
        assert one["xPos"] + one["width"] <= layout["columns"]
    for one, other in combinations(layout["tiles"], 2):
        apart = one["xPos"] + one["width"] <= other["xPos"] or other["xPos"] + other["width"] <= one["xPos"]
        above = one["yPos"] + one["height"] <= other["yPos"] or other["yPos"] + other["height"] <= one["yPos"]
        assert apart or above, (one["widget"]["title"], other["widget"]["title"])


def test_no_two_dashboards_have_the_same_name() -> None:
    assert len({load(name)["displayName"] for name in DASHBOARDS}) == len(DASHBOARDS)


@pytest.mark.parametrize("name", sorted({*DASHBOARDS} - RUNS))
def test_goodput_is_on_top_and_runs_can_be_chosen(name: str) -> None:
    content = load(name)
    tiles = sorted(content["mosaicLayout"]["tiles"], key=lambda tile: (tile["yPos"], tile["xPos"]))
    assert [tile["widget"]["title"] for tile in tiles[:4]] == [
        "How much of the time makes progress?", "Goodput, whole run", "Goodput, last 1h", "Goodput, last 24h",
    ]  # fmt: skip
    assert all("scorecard" in tile["widget"] for tile in tiles[1:4])
    assert all(one["filterType"] == "RESOURCE_LABEL" for one in content["dashboardFilters"])


@pytest.mark.parametrize("name", sorted({*DASHBOARDS} - RUNS))
def test_aligners_fit_what_they_align(name: str) -> None:
    """Counters and distributions pile up, which ALIGN_NEXT_OLDER does not take; gauges have no rate and no delta."""
    from boards import naming
    from otel_goodput import semconv
    from otel_goodput._metrics import workload_series

    kinds = {naming.cloud_metric(metric): metric.kind for metric in semconv.METRICS}
    kinds |= {naming.target_metric(metric): metric.kind for metric in semconv.METRICS}
    kinds |= {one.type: semconv.GAUGE for one in workload_series.SERIES}
    texts = list(filters(load(name)))
    assert texts
    for one in texts:
        metric = one["filter"].split('"')[1]
        piles = kinds[metric] in (semconv.COUNTER, semconv.HISTOGRAM)
        aligner, reducer = one["aggregation"]["perSeriesAligner"], one["aggregation"]["crossSeriesReducer"]
        assert (aligner in ("ALIGN_DELTA", "ALIGN_RATE")) == piles, metric
        assert aligner != "ALIGN_RATE" or kinds[metric] == semconv.COUNTER, metric
        assert "PERCENTILE" not in reducer or kinds[metric] == semconv.HISTOGRAM, metric


def filters(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return [one for each in content for one in filters(each)]
    if not isinstance(content, dict):
        return []
    mine = [content] if "filter" in content and "aggregation" in content else []
    return mine + [one for each in content.values() for one in filters(each)]


@pytest.mark.parametrize("name", [*POLICIES, *OTLP_POLICIES])
def test_a_policy_says_what_to_do(name: str) -> None:
    policy = load(name)
    text = policy["documentation"]["content"]
    assert len(text) <= LONGEST and "Look at:" in text and "1. " in text
    condition = policy["conditions"][0]["conditionPrometheusQueryLanguage"]
    assert int(condition["evaluationInterval"].removesuffix("s")) % 30 == 0
    assert policy["severity"] in ("CRITICAL", "WARNING")
