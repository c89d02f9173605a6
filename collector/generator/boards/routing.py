"""Alertmanager's configuration for the alerts: receivers, one message about a run, and which alert explains which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from boards.alerts import CRITICAL, EXPLAINS, Rule
from boards.naming import PROMETHEUS_JOB, label
from otel_goodput.semconv import RUN_ID

RUN: Final = label(RUN_ID)
# One message about a run, and not again before four days, which is less than what Alertmanager remembers (120 h).
TIMES: Final[Mapping[str, str]] = {"group_wait": "30s", "group_interval": "5m", "repeat_interval": "96h"}

TITLE: Final = (
    '{{ if eq .Status "resolved" }}over: {{ end }}{{ .CommonLabels.job }}, run {{ .CommonLabels.' + RUN + " }}: "
    "{{ range $at, $alert := .Alerts }}{{ if $at }}, {{ end }}{{ $alert.Labels.alertname }}{{ end }}"
)
TEXT: Final = (
    "{{ range .Alerts }}{{ .Annotations.summary }}",
    ('since {{ .StartsAt.UTC.Format "2006-01-02 15:04:05 UTC" }}'
     '{{ if eq .Status "resolved" }}, over since {{ .EndsAt.UTC.Format "15:04:05 UTC" }}{{ end }}'),
    "",
    "{{ .Annotations.description }}",
    "",
    "{{ end }}",
)  # fmt: skip


def alertmanager(rules: Sequence[Rule]) -> str:
    """The file ``alertmanager.yml``, with an example of each receiver."""
    return "\n".join([*_head(), *_route(), *_inhibitions(rules), *_receivers()])


def _head() -> Iterator[str]:
    yield "# As `otel-goodput dashboards grafana` writes it. Keep the receivers that you use, and set what stands in"
    yield "# CAPITALS. Secrets are in files that only Alertmanager can read."


def _route() -> Iterator[str]:
    yield "route:"
    yield "  receiver: slack"
    yield f"  group_by: [{PROMETHEUS_JOB}, {RUN}]"
    yield from (f"  {name}: {time}" for name, time in TIMES.items())
    yield "  routes:"
    yield f'    - matchers: [\'{RUN}=~".+"\', severity="{CRITICAL}"]'
    yield "      receiver: pagerduty"
    yield "      continue: true # to the next one as well"
    yield f"    - matchers: ['{RUN}=~\".+\"']"
    yield "      receiver: slack # or mail, or webhook"


def _inhibitions(rules: Sequence[Rule]) -> Iterator[str]:
    """What explains others is reported, and the others are not, as long as both are of one run."""
    known = {rule.name for rule in rules}
    if wrong := {name for cause, symptoms in EXPLAINS.items() for name in (cause, *symptoms)} - known:
        raise ValueError(f"no such alerts: {wrong}")
    yield "inhibit_rules:"
    for cause, symptoms in EXPLAINS.items():
        yield f'  - source_matchers: [alertname="{cause}"]'
        yield f'    target_matchers: [alertname=~"{"|".join(symptoms)}"]'
        yield f"    equal: [{PROMETHEUS_JOB}, {RUN}]"


def _receivers() -> Iterator[str]:
    yield "receivers:"
    yield "  - name: slack"
    yield "    slack_configs:"
    yield "      - api_url_file: /etc/alertmanager/slack-url # https://hooks.slack.com/services/…"
    yield "        channel: '#TRAINING'"
    yield "        send_resolved: true"
    yield from _text("        title", [TITLE])
    yield from _text("        text", TEXT)
    yield "  - name: pagerduty"
    yield "    pagerduty_configs:"
    yield "      - routing_key_file: /etc/alertmanager/pagerduty-key # of an Events API v2 integration"
    yield "        severity: '{{ .CommonLabels.severity }}'"
    yield from _text("        description", [TITLE])
    yield "        details: {summary: '{{ range .Alerts }}{{ .Annotations.summary }}; {{ end }}'}"
    yield "  - name: mail"
    yield "    email_configs:"
    yield "      - to: TEAM@EXAMPLE.ORG"
    yield "        from: ALERTMANAGER@EXAMPLE.ORG"
    yield "        smarthost: SMTP.EXAMPLE.ORG:587"
    yield "        auth_username: ALERTMANAGER@EXAMPLE.ORG"
    yield "        auth_password_file: /etc/alertmanager/mail-password"
    yield "        send_resolved: true"
    yield "        headers:"
    yield from _text("          subject", [TITLE])
    yield "        html: ''"
    yield from _text("        text", TEXT)
    yield "  - name: webhook"
    yield "    webhook_configs:"
    yield "      - url: http://127.0.0.1:9095/alerts"
    yield "        send_resolved: true"


def _text(key: str, lines: Sequence[str]) -> Iterator[str]:
    indent = " " * (len(key) - len(key.lstrip()) + 2)
    yield f"{key}: |-"
    yield from (f"{indent}{line}" if line else "" for line in lines)
