"""Jobs that are killed and resumed, through the collector: what arrives is what their own files say."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import warm
from emulators.demonstration import EXAMPLE, Arrived, checks, report
from exporters.google.jobs import inherited
from waits import until

from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT

from .collector import CONFIGS, PROJECT, Collector
from .prometheus import NATIVE, SCRAPED, Prometheus
from .sidecars import Sidecar

pytestmark = pytest.mark.crash

# argv: directory, exporters, "first" or "second"; the first one is killed.
SMALL = """
import os, signal, sys, time
import otel_goodput as goodput
goodput.configure("small", run_id="small", directory=sys.argv[1] + "/goodput", exporters=sys.argv[2])
second = sys.argv[3] == "second"
with goodput.job():
    with goodput.training_prep():
        time.sleep(0.01)
    if second:
        with goodput.checkpoint_restore(9):
            time.sleep(0.01)
    for step, _ in goodput.steps(range(10 if second else 0, 30), start=10 if second else 0):
        time.sleep(0.002)
        if step % 10 == 9:
            with goodput.checkpoint_save(step):
                time.sleep(0.01)
            with goodput.custom("eval"):
                time.sleep(0.01)
        if not second and step == 15:
            os.kill(os.getpid(), signal.SIGKILL)
goodput.shutdown(60)  # importing Google's libraries takes longer than the job
"""


def through(collector: Collector) -> dict[str, str]:
    """The environment of a job that exports through a collector."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}", "OTEL_METRIC_EXPORT_INTERVAL": "2000"}
    return inherited() | endpoint


def killed_and_resumed(directory: Path, exporters: str, environ: dict[str, str]) -> None:
    for attempt, status in (("first", -signal.SIGKILL), ("second", 0)):
        command = [sys.executable, "-c", SMALL, str(directory), exporters, attempt]
        done = warm.run(command, env=environ, capture_output=True, text=True, timeout=120, extras=True)
        assert done.returncode == status, done.stderr


def google_has_all(sidecar: Sidecar, directory: Path) -> None:
    account = report(directory)

    def wrong() -> list[str]:
        results = checks(Arrived(sidecar.google), account, directory)
        return [check.text for check in results if not check.holds]

    until(lambda: sidecar.google.otlp_spans and sidecar.series)
    until(lambda: not wrong(), lacking=wrong, pause=0.2)


def into(sidecar: Sidecar) -> dict[str, str]:
    """The environment of a job that exports through a sidecar, and Google's own metrics past it."""
    google = {OTEL_GOODPUT_GCP_ENDPOINT.name: sidecar.google.endpoint, OTEL_GOODPUT_GCP_PROJECT.name: PROJECT}
    return through(sidecar.collector) | google


OVER = [
    pytest.param(["classic-metrics.yaml"], id="classic metrics", marks=pytest.mark.release),
    pytest.param([], id="all over OTLP"),
]


@pytest.mark.parametrize("over", OVER)
def test_google_cloud_has_it(over: list[str], tmp_path: Path) -> None:
    with Sidecar(tmp_path, "gcp-sidecar", over=over) as sidecar:
        killed_and_resumed(tmp_path / "small", "file,otlp,workload", into(sidecar))
        google_has_all(sidecar, tmp_path / "small")


@pytest.mark.jax
@pytest.mark.release
@pytest.mark.parametrize("over", OVER)
def test_google_cloud_has_the_job_of_the_demonstration(
    over: list[str], tmp_path: Path, compiled: dict[str, str]
) -> None:
    """The job of `make demo`."""
    pytest.importorskip("optax")
    command = [sys.executable, str(EXAMPLE), "--directory", str(tmp_path / "demo"), "--steps", "30"]
    with Sidecar(tmp_path, "gcp-sidecar", over=over) as sidecar:
        done = warm.run(
            [*command, "--exporters", "file,otlp,workload"],
            env=into(sidecar) | compiled,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        google_has_all(sidecar, tmp_path / "demo")


def test_prometheus_has_it(tmp_path: Path) -> None:
    with (
        Collector(tmp_path / "collector", CONFIGS / "local.yaml", ports=[SCRAPED]) as collector,
        Prometheus(tmp_path / "prometheus", collector.addresses[SCRAPED], NATIVE) as prometheus,
    ):
        killed_and_resumed(tmp_path, "file,otlp", through(collector))
        account = report(tmp_path)
        assert account["steps"]["lost"] == 6 and {"wasted_progress", "checkpoint_restore"} < account["seconds"].keys()
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
