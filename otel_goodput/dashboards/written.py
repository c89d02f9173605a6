"""The files with dashboards and alerts, by the place where metrics are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from otel_goodput.dashboards import cloud, cloud_runs, goodput, grafana, rulefiles, runs, workload
from otel_goodput.dashboards.alerts import GONE, Rule, rules
from otel_goodput.dashboards.board import Board
from otel_goodput.dashboards.promql import CLOUD, TARGET, Dialect
from otel_goodput.dashboards.thresholds import Thresholds

_WITHOUT_PROMQL: Final = "alerts/absence/"
_BY_OTLP: Final = "alerts/otlp/"


class Choices(NamedTuple):
    """What the files go by: rolling windows, the most telling first, thresholds, and Prometheus' uid in Grafana."""

    windows: Sequence[str]
    limits: Thresholds
    datasource: str = "prometheus"

    @property
    def board(self) -> Board:
        return goodput.board(self.windows, self.limits)

    @property
    def rules(self) -> list[Rule]:
        return rules(self.windows[0], self.limits)


def files_for(place: str, chosen: Choices) -> dict[str, str]:
    """Return the contents of the files for `place`, one of ``PLACES``, by their paths.

    Raises:
        KeyError: there is no such place.
    """
    return {path: f"{text}\n" for path, text in _WRITERS[place](chosen).items()}


def _policies(folder: str, chosen: Choices, words: Dialect) -> dict[str, str]:
    return {f"{folder}{rulefiles.policy_file(rule)}": rulefiles.policy(rule, words) for rule in chosen.rules}


def _grafana(chosen: Choices) -> dict[str, str]:
    return {
        "dashboards/goodput.grafana.json": grafana.dashboard(chosen.board),
        "dashboards/runs.grafana.json": runs.dashboard(chosen.windows[0], chosen.limits),
        "alerts/prometheus.yaml": rulefiles.prometheus_rules(chosen.rules),
        "alerts/grafana.yaml": rulefiles.grafana_rules(chosen.rules, chosen.datasource),
    }


def _gcp(chosen: Choices) -> dict[str, str]:
    (gone,) = (rule for rule in chosen.rules if rule.name == GONE)
    return {
        "dashboards/goodput.cloud-monitoring.json": cloud.dashboard(chosen.board, cloud.OURS, chosen.limits),
        "dashboards/runs.cloud-monitoring.json": cloud_runs.dashboard(cloud.OURS, chosen.windows[0], chosen.limits),
        **_policies("alerts/", chosen, CLOUD),
        f"{_WITHOUT_PROMQL}{rulefiles.policy_file(gone)}": rulefiles.absence(gone, chosen.limits.gone),
    }


def _gcp_otlp(chosen: Choices) -> dict[str, str]:
    by_otlp = cloud.BY_OTLP
    return {
        "dashboards/goodput-otlp.cloud-monitoring.json": cloud.dashboard(chosen.board, by_otlp, chosen.limits),
        "dashboards/runs-otlp.cloud-monitoring.json": cloud_runs.dashboard(by_otlp, chosen.windows[0], chosen.limits),
        **_policies(_BY_OTLP, chosen, TARGET),
    }


def _workload(chosen: Choices) -> dict[str, str]:
    board = workload.board(chosen.windows, chosen.limits)
    return {"dashboards/workload.cloud-monitoring.json": cloud.dashboard(board, cloud.GOOGLES, chosen.limits)}


_WRITERS: Final[Mapping[str, Callable[[Choices], dict[str, str]]]] = {
    "grafana": _grafana,
    "gcp": _gcp,
    "gcp-otlp": _gcp_otlp,
    "workload": _workload,
}
PLACES: Final = tuple(_WRITERS)
