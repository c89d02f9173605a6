"""Writes the dashboards and alerts: ``python collector/generator/generate.py``. ``--check`` compares only.

The tables of ``boards`` become templates in ``otel_goodput/_tools/templates``, which the package ships. Filled with the
default thresholds, these become the files in ``collector/dashboards`` and ``collector/alerts``, and the page about
alerts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from boards import alerts, cloud, cloud_runs, goodput, grafana, routing, rulefiles, runs, workload
from boards.promql import CLOUD, TARGET, Dialect
from otel_goodput._tools.dashboards import PLACES, filled, slots

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/collector/alerts.md"
TEMPLATES = "otel_goodput/_tools/templates"
BEGIN, END = "<!-- begin: alerts -->\n", "<!-- end: alerts -->\n"
WRITTEN = ("collector/dashboards/*.json", "collector/alerts/**/*", f"{TEMPLATES}/**/*")


def templates() -> dict[str, str]:
    """All templates by their paths, the first part of which is the place where metrics are stored."""
    board, rules = goodput.board(), alerts.rules()
    (gone,) = (rule for rule in rules if rule.name == alerts.GONE)

    def policies(folder: str, words: Dialect) -> dict[str, str]:
        return {f"{folder}/{rulefiles.policy_file(rule)}": rulefiles.policy(rule, words) for rule in rules}

    texts = {
        "grafana/dashboards/goodput.grafana.json": grafana.dashboard(board),
        "grafana/dashboards/runs.grafana.json": runs.dashboard(),
        "grafana/alerts/prometheus.yaml": rulefiles.prometheus_rules(rules),
        "grafana/alerts/grafana.yaml": rulefiles.grafana_rules(rules),
        "grafana/alerts/alertmanager.yaml": routing.alertmanager(rules),
        "gcp/dashboards/goodput.cloud-monitoring.json": cloud.dashboard(board, cloud.OURS),
        "gcp/dashboards/runs.cloud-monitoring.json": cloud_runs.dashboard(cloud.OURS),
        **policies("gcp/alerts", CLOUD),
        f"gcp/alerts/absence/{rulefiles.policy_file(gone)}": rulefiles.absence(gone),
        "gcp-otlp/dashboards/goodput-otlp.cloud-monitoring.json": cloud.dashboard(board, cloud.BY_OTLP),
        "gcp-otlp/dashboards/runs-otlp.cloud-monitoring.json": cloud_runs.dashboard(cloud.BY_OTLP),
        **policies("gcp-otlp/alerts/otlp", TARGET),
        "workload/dashboards/workload.cloud-monitoring.json": cloud.dashboard(workload.board(), cloud.GOOGLES),
    }
    return {path: f"{text}\n" for path, text in texts.items()}


def contents(page: str) -> dict[str, str]:
    """All files by their paths; `page` is the text of the page about the alerts.

    Raises:
        ValueError: the markers of that page's generated part are missing, or there more than once.
    """
    values, made = slots(), templates()
    if {path.partition("/")[0] for path in made} != set(PLACES):
        raise ValueError("a place without templates, or templates without a place")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{PAGE} needs the markers of the alerts once each")
    before, _, rest = page.partition(BEGIN)
    explained = filled(rulefiles.markdown(alerts.rules()), values)
    return {
        **{f"{TEMPLATES}/{path}": text for path, text in made.items()},
        **{f"collector/{path.partition('/')[2]}": filled(text, values) for path, text in made.items()},
        PAGE: f"{before}{BEGIN}\n{explained}\n{END}{rest.partition(END)[2]}",
    }


def different(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """Paths whose files differ from `wanted`, and of files that nothing here writes."""
    present = {str(path.relative_to(root)) for pattern in WRITTEN for path in root.glob(pattern) if path.is_file()}
    stale = [path for path, text in wanted.items() if _read(root / path) != text]
    return sorted(stale + list(present - set(wanted)))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is out of date")
    given = parser.parse_args()
    wanted = contents(_read(ROOT / PAGE) or "")
    stale = different(ROOT, wanted)
    if given.check:
        for path in stale:
            sys.stderr.write(f"{path} is out of date; run python collector/generator/generate.py\n")
        return 1 if stale else 0
    for path in stale:
        target = ROOT / path
        if path not in wanted:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
