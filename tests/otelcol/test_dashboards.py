"""What dashboards and alerts select of metrics that came by OTLP is there, behind a real collector."""

from __future__ import annotations

from pathlib import Path

from collector.test_exported import OF_PROMQL, missing
from collector.written import FILES, load, selections
from waits import until

from boards import naming
from otel_goodput import semconv

from .sidecars import Sidecar


def test_what_is_selected_is_stored_by_the_sidecar(tmp_path: Path) -> None:
    with Sidecar(tmp_path, "gcp-sidecar") as sidecar, sidecar.job({"OTEL_GOODPUT_OBJECTIVE": "90%"}) as job:
        account = job.end().account
        until(lambda: not sidecar.missing(account), 60.0, lambda: sidecar.missing(account))
        stored = sidecar.google.target_series
    series: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for key in stored:
        labels = {**dict(key.labels), **dict(key.resource_labels)}
        assert labels.keys() >= {"job", "instance", "location"}
        series.setdefault(key.type, []).append((key.resource, labels))
        for part in ("", "_count", "_bucket"):
            series.setdefault(key.type.split("/")[1] + part, []).append(("", labels))
    known = {metric for metric in semconv.METRICS if metric.name in series}
    assert len(known) > 15
    assert {key.type for key in stored} == {naming.target_metric(metric) for metric in known}
    names = [name for name in FILES if "otlp" in name]
    assert {"dashboards/runs-otlp.cloud-monitoring.json", "alerts/otlp/training-hang.json"} < {*names}
    for name in names:
        silent = [metric for metric in semconv.METRICS if metric not in known]
        lacking = [one for one in missing(name, series, OF_PROMQL) if not any(m.name in one.metric for m in silent)]
        assert lacking == []
        metrics = {one.metric for one in selections(load(name))} & series.keys()
        in_trouble = [f"alerts/otlp/job-{what}.json" for what in ("waits-for-rank", "incident", "slowdown")]
        in_trouble.append("alerts/otlp/slow-rank.json")
        assert len(metrics) > (4 if name.startswith("dashboards/") else 0) or name in in_trouble
