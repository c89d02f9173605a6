"""The alerts as files: Prometheus' rules, Cloud Monitoring's policies, and what is said of them in Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from otel_goodput.semconv import RUN_ID
from views.alerts import Rule
from views.naming import PROMETHEUS_JOB, label
from views.promql import CLOUD, PROMETHEUS

GROUP: Final = "otel_goodput"
INTERVAL_S: Final = 60
CLOSED_AFTER_S: Final = 1800  # a run that has ended is silent


def policy(rule: Rule) -> str:
    """The JSON that ``gcloud monitoring policies create --policy-from-file`` takes."""
    condition = {
        "query": rule.expression(CLOUD),
        "duration": f"{60 * rule.hold_min}s",
        "evaluationInterval": f"{INTERVAL_S}s",
        "ruleGroup": GROUP,
        "alertRule": rule.name,
        # The metrics come into being with the first run, which may be after the policy.
        "disableMetricValidation": True,
    }
    content: dict[str, Any] = {
        "displayName": f"otel_goodput: {rule.title}",
        "documentation": {"content": _markdown(rule), "mimeType": "text/markdown"},
        "severity": rule.severity.upper(),
        "combiner": "OR",
        "conditions": [{"displayName": rule.title, "conditionPrometheusQueryLanguage": condition}],
        "alertStrategy": {"autoClose": f"{CLOSED_AFTER_S}s"},
        "userLabels": {"group": GROUP},
    }
    return json.dumps(content, indent=2)


def _markdown(rule: Rule) -> str:
    return "\n".join([rule.means, "", "Look at:", "", *_numbered(rule.look)])


def _numbered(lines: Iterable[str]) -> Iterator[str]:
    return (f"{number}. {line}" for number, line in enumerate(lines, 1))


def policy_file(rule: Rule) -> str:
    """``goodput-below-target.json`` and the like."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", rule.name).lower() + ".json"


def prometheus_rules(rules: Sequence[Rule]) -> str:
    """A file for ``rule_files`` of Prometheus, in YAML."""
    return "\n".join(
        [
            "# Written by collector/generate.py; change it there.",
            "groups:",
            f"  - name: {GROUP}",
            f"    interval: {INTERVAL_S}s",
            "    rules:",
            *(line for rule in rules for line in _yaml(rule)),
        ]
    )


def _yaml(rule: Rule) -> Iterator[str]:
    job, run = (f"{{{{ $labels.{name} }}}}" for name in (PROMETHEUS_JOB, label(RUN_ID)))
    yield f"      - alert: {rule.name}"
    yield from _block("        expr", rule.expression(PROMETHEUS))
    yield f"        for: {rule.hold_min}m"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    yield from _block("          summary", f"{rule.title}: {job}, run {run}: {rule.value}")
    yield from _block("          description", _markdown(rule))


def _block(key: str, text: str) -> Iterator[str]:
    """A block scalar, so that nothing of the text needs to be escaped."""
    indent = " " * (len(key) - len(key.lstrip()) + 2)
    yield f"{key}: |-"
    yield from (f"{indent}{line}" if line else "" for line in text.splitlines())


def markdown(rules: Sequence[Rule]) -> str:
    """What each alert means and what to do when it comes, for README.md."""
    return "\n".join(
        f"### {rule.title}\n\n"
        f"`{rule.name}`, {rule.severity}, after {rule.hold_min} min; `alerts/{policy_file(rule)}`.\n\n"
        f"{_markdown(rule)}\n"
        for rule in rules
    )
