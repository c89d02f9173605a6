"""The job of `make demo`, killed and resumed, through the collector: what arrives is what its own files say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from emulators.demonstration import EXAMPLE, Arrived, checks, report
from exporters.google.jobs import inherited
from waits import until

from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT

from .collector import CONFIGS, PROJECT, Collector
from .prometheus import NATIVE, SCRAPED, Prometheus
from .sidecars import Sidecar

pytestmark = [pytest.mark.jax, pytest.mark.crash]


def trained(directory: Path, collector: Collector, exporters: str, **environ: str) -> dict[str, Any]:
    """The job exports through the collector; gives what ``otel-goodput report`` says of it."""
    pytest.importorskip("optax")
    command = [sys.executable, str(EXAMPLE), "--directory", str(directory), "--steps", "30", "--exporters", exporters]
    variables = {
        **inherited(),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}",
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",
    }
    done = warm.run(command, env={**variables, **environ}, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return report(directory)


@pytest.mark.parametrize(
    "over",
    [
        pytest.param(["classic-metrics.yaml"], id="classic metrics", marks=pytest.mark.release),
        pytest.param([], id="all over OTLP"),
    ],
)
def test_google_cloud_has_it(over: list[str], tmp_path: Path, compiled: dict[str, str]) -> None:
    with Sidecar(tmp_path, "gcp-sidecar", over=over) as sidecar:
        google = {
            OTEL_GOODPUT_GCP_ENDPOINT.name: sidecar.google.endpoint,
            OTEL_GOODPUT_GCP_PROJECT.name: PROJECT,
        }
        account = trained(tmp_path / "demo", sidecar.collector, "file,otlp,workload", **google, **compiled)

        def wrong() -> list[str]:
            results = checks(Arrived(sidecar.google), account, tmp_path / "demo")
            return [check.text for check in results if not check.holds]

        until(lambda: sidecar.google.otlp_spans and sidecar.series)
        until(lambda: not wrong(), lacking=wrong, pause=0.2)


def test_prometheus_has_it(tmp_path: Path, compiled: dict[str, str]) -> None:
    with (
        Collector(tmp_path / "collector", CONFIGS / "local.yaml", ports=[SCRAPED]) as collector,
        Prometheus(tmp_path / "prometheus", collector.addresses[SCRAPED], NATIVE) as prometheus,
    ):
        account = trained(tmp_path / "demo", collector, "file,otlp", **compiled)
        seconds = {
            name: sum(value.values()) if isinstance(value, dict) else value
            for name, value in account["seconds"].items()
        }
        seconds = {name: value for name, value in seconds.items() if value}
        last = 'instance=~".*/1/0@.*"'  # of the attempt that came to the end

        def shares() -> dict[str, float]:
            answer = prometheus.ask(f"sum by (goodput_category) (goodput_time_seconds{{{last}}})")
            return {one.labels["goodput_category"]: one.value for one in answer if one.value}

        prometheus.until(lambda: shares() == pytest.approx(seconds, abs=1e-9), shares)
        assert prometheus.one(f'goodput_ratio{{{last}, goodput_window="run"}}') == pytest.approx(
            seconds["productive"] / account["elapsed_s"], abs=1e-9
        )
        assert prometheus.one(f'goodput_step_count{{{last}, goodput_step_state="kept"}}') == account["steps"]["kept"]
        assert prometheus.one(f"sum(goodput_disruptions{{{last}}})") == 1
