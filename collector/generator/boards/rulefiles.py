"""The alerts as files: rules for Prometheus and Grafana, policies for Cloud Monitoring, and their explanations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from boards.alerts import Rule
from boards.naming import CLOUD_RESOURCE, PROMETHEUS_JOB, cloud_metric, label
from boards.promql import CLOUD, PROMETHEUS, Dialect
from boards.slots import DATASOURCE, SILENCE_WHOLE_MINUTES
from otel_goodput import semconv
from otel_goodput.semconv import RUN_ID, JobState, Metric

GROUP: Final = "otel_goodput"
INTERVAL_S: Final = 60
LOOKED_BACK_S: Final = 600  # what Grafana asks of a query; how far an instant one looks back is its own affair
_ALL_LABELS: Final = "Of: ${metric_or_resource.labels}"  # a list of keys with their values
_SUBJECT: Final = frozenset({"kind", "cause", "rank"})  # a subject has 255 characters at most
CLOSED_AFTER_S: Final = 1800  # a run that has ended is silent


def policy(rule: Rule, words: Dialect) -> str:
    """The JSON for ``gcloud monitoring policies create --policy-from-file``, over metrics as `words` has them."""
    condition = {
        "query": rule.expression(words),
        "duration": f"{60 * rule.hold_min}s",
        "evaluationInterval": f"{INTERVAL_S}s",
        "ruleGroup": GROUP,
        "alertRule": rule.name,
        # The metrics come into being with the first run, which may be after the policy.
        "disableMetricValidation": True,
    }
    return _policy(rule, "OR", [{"displayName": rule.title, "conditionPrometheusQueryLanguage": condition}], words)


def absence(rule: Rule) -> str:
    """`rule`, of a run that is gone without having ended, as a policy by absence.

    Absence alone cannot tell: the series of a run that has ended stop as well. So there is a second condition, which
    holds from the last word on: without data nothing is evaluated anew.
    """

    def of_run(metric: Metric, only: Mapping[str, str]) -> dict[str, Any]:
        terms = [f'metric.type="{cloud_metric(metric)}"', f'resource.type="{CLOUD_RESOURCE}"']
        terms += [f'metric.label."{label(key)}"="{value}"' for key, value in only.items()]
        aggregation = {
            "alignmentPeriod": f"{INTERVAL_S}s",
            "perSeriesAligner": "ALIGN_MIN",  # the last word may follow another one within the minute
            "crossSeriesReducer": "REDUCE_MAX",  # over the places where attempts have run
            "groupByFields": [f'resource.label."{key}"' for key in CLOUD.run],
        }
        return {"filter": " ".join(terms), "aggregations": [aggregation], "trigger": {"count": 1}}

    silent = {**of_run(semconv.LAST_SIGN, {}), "duration": f"{SILENCE_WHOLE_MINUTES}s"}
    goes_on = {
        **of_run(semconv.JOB_STATE, {semconv.GOODPUT_JOB_STATE: JobState.RUNNING}),
        "comparison": "COMPARISON_GT",
        "thresholdValue": 0,
        "duration": "60s",
        "evaluationMissingData": "EVALUATION_MISSING_DATA_NO_OP",
    }
    return _policy(
        rule,
        "AND_WITH_MATCHING_RESOURCE",
        [
            {"displayName": "The run is silent", "conditionAbsent": silent},
            {"displayName": "The run last reported that it was running", "conditionThreshold": goes_on},
        ],
    )


def _policy(rule: Rule, combiner: str, conditions: Sequence[Mapping[str, Any]], words: Dialect = CLOUD) -> str:
    content: dict[str, Any] = {
        "displayName": f"otel_goodput: {rule.title}",
        "documentation": {**_documentation(rule, words), "mimeType": "text/markdown"},
        "severity": rule.severity.upper(),
        "combiner": combiner,
        "conditions": conditions,
        "alertStrategy": {"autoClose": f"{CLOSED_AFTER_S}s"},
        "userLabels": {"group": GROUP},
    }
    return json.dumps(content, indent=2)


def _documentation(rule: Rule, words: Dialect) -> dict[str, str]:
    """The text of a policy, which names the labels of the series; a subject that does, if these have no dots.

    Cloud Monitoring fills in variables, and has no conditions: a label that is not known is empty in the subject. What
    it does with dots in ``${metric_or_resource.label.KEY}`` is not documented.
    """
    if not rule.labels:
        return {"content": _markdown(rule)}
    content = f"{_ALL_LABELS}\n\nValue: ${{metric.label.value}}\n\n{_markdown(rule)}"
    if words.key is not label:
        return {"content": content}
    known = {"run": words.run[1]} | {name: label(key) for name, key in rule.labels.items() if name in _SUBJECT}
    of = ", ".join(f"{name} ${{metric_or_resource.label.{key}}}" for name, key in known.items())
    return {"subject": f"{rule.title}: {of}", "content": content}


def _markdown(rule: Rule) -> str:
    return "\n".join([rule.means, "", "Look at:", "", *_numbered(rule.look)])


def _numbered(lines: Iterable[str]) -> Iterator[str]:
    return (f"{number}. {line}" for number, line in enumerate(lines, 1))


def policy_file(rule: Rule) -> str:
    """``goodput-below-target.json`` and the like."""
    return f"{_dashed(rule)}.json"


def _dashed(rule: Rule) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", rule.name).lower()


def prometheus_rules(rules: Sequence[Rule]) -> str:
    """A file for ``rule_files`` of Prometheus, in YAML."""
    return "\n".join(
        [
            "# As `otel-goodput dashboards grafana` writes it; its options are the thresholds.",
            "groups:",
            f"  - name: {GROUP}",
            f"    interval: {INTERVAL_S}s",
            "    rules:",
            *(line for rule in rules for line in _yaml(rule)),
        ]
    )


def grafana_rules(rules: Sequence[Rule]) -> str:
    """A file for Grafana's ``provisioning/alerting``, in YAML."""
    return "\n".join(
        [
            "# As `otel-goodput dashboards grafana` writes it; its options are the thresholds.",
            "apiVersion: 1",
            "groups:",
            "  - orgId: 1",
            f"    name: {GROUP}",
            f"    folder: {GROUP}",
            f"    interval: {INTERVAL_S}s",
            "    rules:",
            *(line for rule in rules for line in _grafana_yaml(rule)),
        ]
    )


def _grafana_yaml(rule: Rule) -> Iterator[str]:
    yield f"      - uid: otel-goodput-{_dashed(rule)}"
    yield f"        title: {rule.title}"
    yield "        condition: B"
    yield f"        for: {rule.hold_min}m"
    yield "        noDataState: OK # the query has a series for each run that is in trouble, and no other"
    yield "        execErrState: Error"
    yield f"        labels: {{severity: {rule.severity}}}"
    yield "        annotations:"
    yield from _block("          summary", _summary(rule).replace("$value", "$values.A.Value"))
    yield from _block("          description", _markdown(rule))
    yield "        data:"
    yield "          - refId: A"
    yield f"            relativeTimeRange: {{from: {LOOKED_BACK_S}, to: 0}}"
    yield f"            datasourceUid: {DATASOURCE}"
    yield "            model:"
    yield "              refId: A"
    yield f"              datasource: {{type: prometheus, uid: {DATASOURCE}}}"
    yield "              instant: true"
    yield "              range: false"
    yield from _block("              expr", rule.expression(PROMETHEUS))
    yield "          - refId: B # every series of A: its figures are never negative, and may be 0"
    yield f"            relativeTimeRange: {{from: {LOOKED_BACK_S}, to: 0}}"
    yield "            datasourceUid: __expr__"
    yield "            model:"
    yield "              refId: B"
    yield "              type: threshold"
    yield "              expression: A"
    yield "              datasource: {type: __expr__, uid: __expr__}"
    yield "              conditions: [{evaluator: {type: gt, params: [-1]}}]"


def _summary(rule: Rule) -> str:
    job, run = (f"{{{{ $labels.{name} }}}}" for name in (PROMETHEUS_JOB, label(RUN_ID)))
    return f"{rule.title}: {job}, run {run}: {rule.value}"


def _yaml(rule: Rule) -> Iterator[str]:
    yield f"      - alert: {rule.name}"
    yield from _block("        expr", rule.expression(PROMETHEUS))
    yield f"        for: {rule.hold_min}m"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    yield from _block("          summary", _summary(rule))
    yield from _block("          description", _markdown(rule))


def _block(key: str, text: str) -> Iterator[str]:
    """A block scalar, so that nothing of the text needs to be escaped."""
    indent = " " * (len(key) - len(key.lstrip()) + 2)
    yield f"{key}: |-"
    yield from (f"{indent}{line}" if line else "" for line in text.splitlines())


def markdown(rules: Sequence[Rule]) -> str:
    """What each alert means and what to do when it comes, for the documentation."""
    return "\n".join(
        f"### {rule.title}\n\n"
        f"`{rule.name}`, {rule.severity}, after {rule.hold_min} min; "
        f"`alerts/{policy_file(rule)}`, `alerts/otlp/{policy_file(rule)}`.\n\n"
        f"{_markdown(rule)}\n"
        for rule in rules
    )
