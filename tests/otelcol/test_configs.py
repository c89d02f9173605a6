"""The configurations agree with each other and with the library's names, and start as they are."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulators.google import GoogleEmulator
from exporters.google.arrivals import CUSTOM, Values, expected, last, missed
from ports import kept_address
from waits import until

from otel_goodput import semconv

from .collector import CONFIGS, OVERLAYS, Collector
from .sidecars import JOB, Sidecar
from .span_only import send, step

KINDS = ("extensions", "receivers", "processors", "connectors", "exporters")
CONFIGURATIONS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in CONFIGS.glob("*.yaml")}
WHOLE = ("local", "gcp-sidecar", "gcp-sidecar-classic", "fleet-sidecar", "gateway")
# What is not the same wherever it is called the same, and where.
OTHERS = {
    ("extensions", "googleclientauth"): {"google-auth"},
    ("receivers", "otlp"): {"gateway"},  # gRPC only
    ("processors", "memory_limiter"): {"gateway"},  # has a machine of its own size
    ("processors", "resource_detection"): {"local"},  # is on no cloud
    ("processors", "transform/google"): {"gcp-sidecar-classic", "classic-metrics"},  # these two: below
    ("exporters", "otlp_grpc/google"): {"gateway", "google-auth"},  # spans alone; credentials alone
}


def blocks() -> Iterator[tuple[tuple[str, str], str, Any]]:
    """Kind and name, the configuration, and what stands there."""
    for config, content in CONFIGURATIONS.items():
        for kind in KINDS:
            for name, block in content.get(kind, {}).items():
                yield (kind, name), config, block


def test_what_is_called_the_same_is_the_same() -> None:
    seen: dict[tuple[str, str], tuple[str, Any]] = {}
    for key, config, block in blocks():
        if config not in OTHERS.get(key, ()):
            first, wanted = seen.setdefault(key, (config, block))
            assert block == wanted, f"{key} of {config} is not that of {first}"
    assert len(seen) > 20


def test_the_classic_metrics_are_the_same_alone_and_laid_over() -> None:
    alone, over = CONFIGURATIONS["gcp-sidecar-classic"], CONFIGURATIONS["classic-metrics"]
    assert over["processors"] == {"transform/google": alone["processors"]["transform/google"]}
    assert over["exporters"].items() <= alone["exporters"].items()
    assert set(over["service"]["pipelines"]) == {
        name for name in alone["service"]["pipelines"] if name.startswith("metrics")
    }


def test_the_names_of_spans_and_metrics_are_the_library_s() -> None:
    known = {metric.name for metric in semconv.METRICS} | {each.key for each in semconv.SPAN_ATTRIBUTES}
    known |= {semconv.RUN_ID, semconv.ATTEMPT, semconv.PROCESS_INDEX, semconv.TELEMETRY_SPACED}
    for path in CONFIGS.rglob("*.yaml"):
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        named = set(
            re.findall(r'attributes\["(goodput\.[a-z_.]+)"\]|- name: (goodput\.\S+)|name == "(goodput\.\S+)"', text)
        )
        assert {name for names in named for name in names if name} <= known, path.name


@pytest.mark.parametrize("name", WHOLE)
def test_two_of_them_fit_on_one_machine(name: str, tmp_path: Path) -> None:
    """With ports of its own for what is configured, and the variable for the collector's own figures."""
    configs = [CONFIGS / f"{name}.yaml", *([] if name == "local" else [OVERLAYS / "emulator.yaml"])]
    ports = ["exporters::prometheus::endpoint"] if name == "local" else []
    addresses = []
    with ExitStack() as running:
        for _ in range(2):
            addresses.append(kept_address())
            port = addresses[-1].rpartition(":")[2]
            environ = {"GOOGLE_EMULATOR": "127.0.0.1:1", "OTELCOL_GOODPUT_METRICS_PORT": port}
            settings = ["service::telemetry::metrics::level: normal"]
            collector = Collector(tmp_path / port, *configs, environ=environ, settings=settings, ports=ports)
            running.enter_context(collector)
        for address in addresses:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                assert b"otelcol_process_uptime" in answer.read()


def test_the_project_is_that_of_the_machine_where_none_is_named(tmp_path: Path) -> None:
    with GoogleEmulator() as google:
        environ = {
            "GOOGLE_EMULATOR": google.endpoint.removeprefix("http://"),
            "GOOGLE_CLOUD_PROJECT": "",
            "OTEL_RESOURCE_ATTRIBUTES": "cloud.account.id=test-project",
        }
        configs = (CONFIGS / "gcp-sidecar.yaml", OVERLAYS / "emulator.yaml")
        with Collector(tmp_path, *configs, environ=environ) as collector:
            send(collector.http, {"service.name": "go-trainer"}, step(1))
            until(lambda: google.otlp_spans)
        assert not google.refusals


@pytest.mark.parametrize("config", ["gcp-sidecar", "fleet-sidecar"])
def test_classic_metrics_are_those_of_the_dashboards(config: str, tmp_path: Path) -> None:
    with Sidecar(tmp_path, config, over=["classic-metrics.yaml"]) as sidecar, sidecar.job() as job:
        account = job.end().account

        def stored() -> Values:
            return last(sidecar.google.series, CUSTOM, {("job", JOB), ("namespace", JOB)})

        until(
            lambda: (spans := stored()) and not [*missed(spans, expected(account))],
            lacking=lambda: [*missed(stored(), expected(account))][:3] if stored() else [*sidecar.google.series][:1],
        )
        assert not sidecar.google.refusals and not sidecar.google.otlp_series
