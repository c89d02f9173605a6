"""A machine's metrics arrive along with the jobs' metrics, wherever those go."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from emulators.google import GoogleEmulator
from emulators.records import SeriesKey
from waits import until

from .collector import COLLECTOR, CONFIGS, OVERLAYS, Collector

HOST = OVERLAYS / "host-metrics.yaml"
NAMES = ("cpu.time", "cpu.load_average.1m", "memory.usage", "disk.io", "network.io")
SOON = (
    "receivers::host_metrics::initial_delay: 0s",
    "processors::resource_detection/host::detectors: [env, system]",  # the tests may run on Google Cloud
)


def documented(exporter: str) -> str:
    """What the page says is to be laid over the overlay, where it is not for this exporter."""
    text = (COLLECTOR.parent / "docs/collector/vm.md").read_text(encoding="utf-8")
    (setting,) = re.findall(rf"--config='yaml:(service::pipelines::metrics/host.*\[{exporter}\].*)'", text)
    return str(setting)


def to_google(directory: Path, google: GoogleEmulator, config: str, *settings: str) -> Collector:
    return Collector(
        directory, CONFIGS / config, OVERLAYS / "emulator.yaml", HOST, settings=(*SOON, *settings),
        environ={"GOOGLE_EMULATOR": google.endpoint.removeprefix("http://")},
    )  # fmt: skip


def devices(path: str, column: int, but: str) -> set[str]:
    rows = [row.split() for row in Path(path).read_text(encoding="ascii").splitlines()]
    names = {row[column].rstrip(":") for row in rows if len(row) > 10 and "|" not in row[column + 1]}
    return {name for name in names if not re.fullmatch(but, name)}


def total_memory() -> int:
    (size,) = re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    return int(size) * 1024


def labelled(series: dict[SeriesKey, list[float]], name: str, label: str) -> dict[str, float]:
    return {dict(key.labels).get(label, ""): of[-1] for key, of in series.items() if key.type == f"system.{name}"}


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator() as emulator:
        yield emulator


def test_google_takes_it(google: GoogleEmulator, tmp_path: Path) -> None:
    """Twice, so not only the first point of each series; none is refused."""
    every = "receivers::host_metrics::collection_interval: 5500ms"
    with to_google(tmp_path, google, "gcp-sidecar.yaml", every) as collector:
        until(lambda: any(len(points) > 1 for points in google.otlp_series.values()))
    assert google.refusals == [] and "error" not in collector.log
    series = {key: [point.value for point in points] for key, points in google.otlp_series.items()}
    resources = {tuple(sorted(dict(key.resource_labels).items())) for key in series}
    place = {"cluster": "", "namespace": "", "location": "global", "project_id": "test-project"}
    assert resources == {tuple(sorted({**place, "job": "host", "instance": socket.gethostname()}.items()))}
    assert {f"system.{name}" for name in NAMES} <= {key.type for key in series}
    assert {*labelled(series, "disk.io", "device")} == devices("/proc/diskstats", 2, r"(loop|ram|zram)\d+")
    assert {*labelled(series, "network.io", "device")} == devices("/proc/net/dev", 0, r"lo|veth.*")
    memory = labelled(series, "memory.usage", "state")
    assert 0 < memory["used"] < memory["used"] + memory["free"] <= total_memory()
    counts = Counter(key.type for key in series)
    assert counts["system.cpu.time"] == 8 and "system.network.connections" not in counts


def test_google_s_classic_api_takes_it(google: GoogleEmulator, tmp_path: Path) -> None:
    with to_google(tmp_path, google, "gcp-sidecar-classic.yaml", documented("otlp_grpc/behind")):
        expected = {f"workload.googleapis.com/system.{name}" for name in NAMES}
        until(lambda: expected <= {key.type for key in google.series})
    assert google.refusals == []
    (resource,) = {(key.resource, dict(key.resource_labels)["task_id"]) for key in google.series}
    assert resource == ("generic_task", socket.gethostname())


def test_prometheus_finds_it(tmp_path: Path) -> None:
    port = "exporters::prometheus::endpoint"
    settings = (*SOON, documented("prometheus"))
    with Collector(tmp_path, CONFIGS / "local.yaml", HOST, settings=settings, ports=[port]) as collector:

        def scraped() -> str:
            with urllib.request.urlopen(f"http://{collector.addresses[port]}/metrics", timeout=5) as answer:
                return str(answer.read().decode())

        until(lambda: "system_cpu_time_seconds_total{" in scraped())
        idle = next(line for line in scraped().splitlines() if line.startswith("system_cpu_time") and "idle" in line)
    assert f'instance="{socket.gethostname()}"' in idle and 'job="host"' in idle


@pytest.mark.parametrize("config", ["gcp-sidecar.yaml", "gcp-sidecar-classic.yaml", "fleet-sidecar.yaml", "local.yaml"])
def test_the_jobs_pipelines_are_left_as_they_are(config: str) -> None:
    below, above = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CONFIGS / config, HOST))
    for kind, parts in {**above, **above["service"]}.items():
        assert kind == "service" or not {*parts} & {*below.get(kind, {}), *below["service"].get(kind, {})}, kind
