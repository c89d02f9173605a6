"""Grafana takes the dashboard: its own types hold all of it, and its panels lie well."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import promql_parser
import pytest

from .written import load

NAME = "dashboards/goodput.grafana.json"
COLUMNS = 24


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
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's types are for Python 3.11 and later")
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    return json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(content)))


def test_grafana_s_types_hold_all_of_it() -> None:
    content = load(NAME)
    assert list(lost(content, typed(content))) == []


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
    assert [found.rpartition(".")[2] for found in lost(content, typed(content))] == [path[-1]]


def test_panels_lie_in_the_grid_and_beside_each_other() -> None:
    panels = load(NAME)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    grids = [panel["gridPos"] for panel in panels]
    assert all(grid["x"] + grid["w"] <= COLUMNS for grid in grids)
    for one, other in combinations(grids, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_goodput_is_on_top_and_every_query_is_of_the_chosen_run() -> None:
    content = load(NAME)
    assert [panel["title"] for panel in content["panels"][:4]] == [
        "Goodput now", "Goodput, whole run", "Goodput, last 1h", "Goodput, last 24h",
    ]  # fmt: skip
    assert [variable["name"] for variable in content["templating"]["list"]] == ["datasource", "job", "run"]
    targets = [target for panel in content["panels"] for target in panel.get("targets", [])]
    assert len(targets) > 30
    for target in targets:
        assert target["datasource"]["uid"] == "${datasource}"
        for selector in selectors(target["expr"]):
            matchers = {(one.name, one.value) for one in selector.matchers.matchers}
            assert {("job", "$job"), ("instance", "${run:regex}/.*")} <= matchers, target["expr"]


def selectors(expression: str) -> list[Any]:
    nodes: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), nodes.append)
    return [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
