"""Writes the dashboards and alerts beside this file: ``python collector/generate.py``; ``--check`` compares only.

They come from the tables of ``otel_goodput.semconv`` and the thresholds, each of which is an option here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from views import cloud, cloud_runs, goodput, grafana, rulefiles, runs, workload
from views.alerts import GONE, rules
from views.thresholds import Thresholds, windows

HERE = Path(__file__).resolve().parent
PAGE = "../docs/collector/alerts.md"
BEGIN, END = "<!-- begin: alerts -->\n", "<!-- end: alerts -->\n"
WRITTEN = ("dashboards/*.json", "alerts/**/*")


def written(kept: Sequence[str], limits: Thresholds, datasource: str) -> dict[str, str]:
    """What every file is to hold, by its path from here; `kept` are the rolling windows."""
    ours, googles = goodput.board(kept, limits), workload.board(kept, limits)
    alerts = rules(kept[0], limits)
    return {
        "dashboards/goodput.cloud-monitoring.json": cloud.dashboard(ours, cloud.OURS, limits),
        "dashboards/runs.cloud-monitoring.json": cloud_runs.dashboard(cloud.OURS, kept[0], limits),
        "dashboards/goodput-otlp.cloud-monitoring.json": cloud.dashboard(ours, cloud.BY_OTLP, limits),
        "dashboards/runs-otlp.cloud-monitoring.json": cloud_runs.dashboard(cloud.BY_OTLP, kept[0], limits),
        "dashboards/workload.cloud-monitoring.json": cloud.dashboard(googles, cloud.GOOGLES, limits),
        "dashboards/goodput.grafana.json": grafana.dashboard(ours),
        "dashboards/runs.grafana.json": runs.dashboard(kept[0], limits),
        "alerts/prometheus.yaml": rulefiles.prometheus_rules(alerts),
        "alerts/grafana.yaml": rulefiles.grafana_rules(alerts, datasource),
        **{
            f"{rulefiles.BY_ABSENCE}{rulefiles.policy_file(rule)}": rulefiles.absence(rule, limits.gone)
            for rule in alerts
            if rule.name == GONE
        },
        **{f"alerts/{rulefiles.policy_file(rule)}": rulefiles.policy(rule) for rule in alerts},
    }


def explained(text: str, alerts: str) -> str:
    """The page about the alerts with its generated part as it is to be.

    Raises:
        ValueError: the markers of that part are missing, or there more than once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{PAGE} needs the markers of the alerts once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{alerts}\n{END}{rest.partition(END)[2]}"


def different(directory: Path, contents: Mapping[str, str]) -> list[str]:
    """Paths whose files are not what they are to be, and of files that nothing here writes."""
    found = {
        str(path.relative_to(directory)) for pattern in WRITTEN for path in directory.glob(pattern) if path.is_file()
    }
    stale = [path for path, text in contents.items() if _read(directory / path) != text]
    return sorted(stale + list(found - set(contents)))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is out of date")
    parser.add_argument("--directory", type=Path, default=HERE, help="where to write, or what to compare with")
    parser.add_argument(
        "--windows",
        type=windows,
        default=",".join(windows()),
        help="the rolling windows that the jobs keep (OTEL_GOODPUT_WINDOWS), the most telling first",
    )
    parser.add_argument("--datasource", default="prometheus", help="uid of Prometheus in Grafana, for its alerts")
    for one in fields(Thresholds):
        option = f"--{one.name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=one.default, help=one.metadata["help"])
    return parser


def main() -> int:
    given = arguments().parse_args()
    limits = Thresholds(**{one.name: getattr(given, one.name) for one in fields(Thresholds)})
    contents = {path: f"{text}\n" for path, text in written(given.windows, limits, given.datasource).items()}
    # Files written elsewhere have no page beside them, and what lies there may be somebody's.
    page = _read(HERE / PAGE) if given.directory.resolve() == HERE else None
    if page is not None:
        contents[PAGE] = explained(page, rulefiles.markdown(rules(given.windows[0], limits)))
    stale = different(given.directory, contents)
    if given.check:
        for path in stale:
            sys.stderr.write(f"{path} is not what the tables say; run python collector/generate.py\n")
        return 1 if stale else 0
    for path in stale:
        target = given.directory / path
        if path not in contents:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(contents[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
