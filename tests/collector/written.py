"""What the committed dashboards and alerts name: metrics, labels and values in their filters, queries and legends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml

COLLECTOR = Path(__file__).resolve().parents[2] / "collector"
FILES = sorted(
    str(path.relative_to(COLLECTOR))
    for folder in ("alerts", "dashboards")
    for path in (COLLECTOR / folder).rglob("*")
    if path.is_file() and path.name != "alertmanager.yaml"
)
ROUTING = "alerts/alertmanager.yaml"  # which asks for no metrics
ABSENCE = "alerts/absence/run-gone.json"
# Each with one condition, in PromQL.
POLICIES = [name for name in FILES if re.fullmatch(r"alerts/[\w-]+\.json", name)]
OTLP_POLICIES = [name for name in FILES if name.startswith("alerts/otlp/")]

_TERM = re.compile(r'(metric\.type|resource\.type|metric\.label\."\w+")(!?=)"([^"]*)" ?')
_LABEL = re.compile(r'metric\.label\."(\w+)"')
_GROUP = re.compile(r'(?:metric|resource)\.label\."(\w+)"')
_LEGEND = re.compile(r"\$\{metric\.labels\.(\w+)\}|\{\{(\w+)\}\}")
_VALUES = re.compile(r"label_values\((?P<of>.+), (?P<label>\w+)\)")
_TEMPLATE = re.compile(r"\$labels\.(\w+)")
_LABEL_CALLS = {"label_replace": (1, 3)}  # which of a function's arguments are labels


class Selection(NamedTuple):
    """Series that a file asks for: `wanted` are values of labels, `labels` are used as well."""

    metric: str
    resource: str
    wanted: dict[str, str]
    labels: frozenset[str]


def load(name: str, root: Path = COLLECTOR) -> Any:
    text = (root / name).read_text(encoding="utf-8")
    return yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)


def selections(content: Any, labels: frozenset[str] = frozenset()) -> Iterator[Selection]:
    """All that `content` asks for; what is asked for must have `labels`.

    Raises:
        ValueError: a filter or a query that this does not understand.
    """
    if isinstance(content, list):
        for each in content:
            yield from selections(each)
    if not isinstance(content, dict) or _asks_for_traces(content):
        return
    siblings = labels | set(_sibling_labels(content))
    for key, each in content.items():
        if key in _READERS and isinstance(each, str):
            yield from _READERS[key](each, siblings)
        else:
            yield from selections(each, siblings if key in _OF_ONE_QUERY else frozenset())


def _asks_for_traces(content: dict[str, Any]) -> bool:
    """Whether it is a query of a datasource that has no metrics."""
    datasource = content.get("datasource")
    return "refId" in content and isinstance(datasource, dict) and datasource.get("type") in ("tempo", "jaeger")


def _sibling_labels(content: dict[str, Any]) -> Iterator[str]:
    """Labels in the groups of an aggregation, in a legend and in a rule's texts."""
    aggregations = [content.get("aggregation", {}), *content.get("aggregations", [])]
    for field in (field for each in aggregations for field in each.get("groupByFields", [])):
        match = _GROUP.fullmatch(field)
        if match is None:
            raise ValueError(f"not a label to group by: {field}")
        yield match[1]
    for key in ("legendTemplate", "legendFormat"):
        for groups in _LEGEND.findall(content.get(key, "")):
            yield from filter(None, groups)
    for text in content.get("annotations", {}).values():  # a rule's texts, or a dashboard's queries
        yield from _TEMPLATE.findall(text) if isinstance(text, str) else []


def _filter(text: str, siblings: frozenset[str]) -> Iterator[Selection]:
    terms = _TERM.findall(text)
    if _TERM.sub("", text):
        raise ValueError(f"not understood in a filter: {_TERM.sub('', text)!r}")
    named = {key: value for key, _, value in terms if not key.startswith("metric.label")}
    labels = [(match[1], sign, value) for key, sign, value in terms for match in [_LABEL.fullmatch(key)] if match]
    wanted = {label: value for label, sign, value in labels if sign == "="}
    used = siblings | {label for label, _, _ in labels}
    yield Selection(named["metric.type"], named["resource.type"], wanted, used)


def filled(query: str, seconds: float = 3600, to: float = 0.0) -> str:
    """A query with what Grafana fills in for the time that is shown: so many seconds until `to` (unix)."""
    macros = {"$__range": f"{seconds:.0f}s", "$__from": f"{1000 * (to - seconds):.0f}", "$__to": f"{1000 * to:.0f}"}
    for macro, text in macros.items():
        query = query.replace(macro, text)
    return query


def _promql(text: str, siblings: frozenset[str]) -> Iterator[Selection]:
    return _below(promql_parser.parse(filled(text)), siblings)


def _below(node: Any, labels: frozenset[str]) -> Iterator[Selection]:
    """`labels` are those that the expressions around this one expect of it."""
    match node:
        case promql_parser.VectorSelector():
            yield from _selected(node, labels)
        case promql_parser.MatrixSelector():
            yield from _selected(node.vector_selector, labels)
        case promql_parser.AggregateExpr():
            yield from _below(node.expr, labels | set(node.modifier.labels if node.modifier else ()))
        case promql_parser.BinaryExpr():
            matching = node.modifier.matching if node.modifier else None
            common = frozenset(matching.labels) if matching else labels
            yield from _below(node.lhs, labels | common)
            yield from _below(node.rhs, common)
        case promql_parser.Call():
            own = {node.args[place].val for place in _LABEL_CALLS.get(node.func.name, ())}
            own = set() if "" in own else own  # a label with a text of its own, made of none
            for argument in node.args:
                yield from _below(argument, labels | own)
        case promql_parser.ParenExpr():
            yield from _below(node.expr, labels)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            pass
        case _:
            raise ValueError(f"not understood in a query: {type(node).__name__}")


def _selected(node: Any, labels: frozenset[str]) -> Iterator[Selection]:
    """One for each name, where there are several to choose from."""
    matchers = {one.name: (one.op, one.value) for one in node.matchers.matchers}
    names = node.name or matchers.pop("__name__")[1]
    resource = matchers.pop("monitored_resource", ("", ""))[1]
    wanted = {key: value for key, (op, value) in matchers.items() if op == promql_parser.MatchOp.Equal}
    for name in names.split("|"):
        yield Selection(name, resource, wanted, labels | frozenset(matchers))


def _variable(text: str, siblings: frozenset[str]) -> Iterator[Selection]:
    """A query, or what a variable of Grafana's takes its values from."""
    if text in ("prometheus", "tempo", "jaeger"):  # kinds of datasources
        return
    match = _VALUES.fullmatch(text)
    yield from _promql(match["of"], siblings | {match["label"]}) if match else _promql(text, siblings)


_OF_ONE_QUERY = (
    "timeSeriesQuery", "timeSeriesFilter", "timeSeriesFilterRatio", "numerator", "denominator", "data", "model",
)  # fmt: skip
_READERS = {"filter": _filter, "prometheusQuery": _promql, "expr": _promql, "query": _variable}
