"""The configurations in one file: equal to those they are made of, valid, and what a job sends gets through them."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulators.google import GoogleEmulator
from exporters.google.jobs import Job
from waits import until

from .collector import CONFIGS, OVERLAYS, PROJECT, Collector, binary, validated
from .flat import LAYERS, merged, parsed, runnable, written
from .prometheus import SCRAPED
from .sidecars import JOB, Sidecar

SPOOL = (("--spool",), ("overlays/spool.yaml",))
VARIANTS = [
    *((place, (), ()) for place in LAYERS),
    *((place, *SPOOL) for place in ("sidecar", "classic", "fleet")),
    *(
        (place, ("--tls", tls), (f"overlays/{place}-{tls}.yaml",))
        for place in ("fleet", "gateway")
        for tls in ("mtls", "token")
    ),
    ("fleet", ("--tls", "mtls", "--spool"), ("overlays/fleet-mtls.yaml", "overlays/spool.yaml")),
]


@pytest.mark.parametrize(("place", "options", "over"), VARIANTS)
def test_it_is_equal_to_the_files_it_is_made_of(place: str, options: tuple[str, ...], over: tuple[str, ...]) -> None:
    assert parsed(written(place, *options)) == merged(*LAYERS[place], *over)


def effective(*configs: str | Path) -> Any:
    """The whole configuration, as the collector itself sees it."""
    done = subprocess.run(
        [binary(), "print-config", *(f"--config={each}" for each in configs)],
        capture_output=True, text=True, timeout=60, check=False, env={"GOOGLE_CLOUD_PROJECT": PROJECT},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


@pytest.mark.parametrize("place", LAYERS)
def test_the_collector_sees_the_same_in_one_file(place: str, tmp_path: Path) -> None:
    layers = [CONFIGS / name for name in LAYERS[place] if name != "google-auth.yaml"]
    assert effective(runnable(tmp_path, place)) == effective(*layers)


@pytest.mark.parametrize(("place", "options", "over"), VARIANTS)
def test_it_is_valid(place: str, options: tuple[str, ...], over: tuple[str, ...], tmp_path: Path) -> None:
    config = runnable(tmp_path, place, *options)
    if "--tls" in options:  # certificates are looked for where the settings say
        text = config.read_text(encoding="utf-8")
        assert "/etc/otelcol-tls" in text
    done = validated(config)
    assert done.returncode == 0 or ("--tls" in options and "/etc/otelcol-" in done.stderr), done.stderr


@pytest.mark.parametrize("place", [place for place in LAYERS if place != "local"])
def test_all_that_the_tests_collector_lacks_is_the_credentials(place: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(written(place), encoding="utf-8")
    done = validated(config)
    assert done.returncode != 0
    complaints = [line for line in done.stderr.splitlines() if "unknown type" in line]
    assert complaints and all('unknown type: "googleclientauth"' in line for line in complaints), done.stderr


def test_options_stand_where_variables_did(tmp_path: Path) -> None:
    text = written("fleet", "--project", "my-project", "--queue-dir", "/q", "--spool", "--gateway", "gw.internal:9")
    config = parsed(text)
    assert "GOOGLE_CLOUD_PROJECT" not in text
    assert config["extensions"]["googleclientauth"]["project"] == "my-project"
    assert config["extensions"]["file_storage"]["directory"] == "/q"
    assert config["extensions"]["file_storage"]["compaction"]["directory"] == "/q"
    assert config["exporters"]["file/spool"]["path"] == "/q/spool/goodput.otlp.json"
    resolver = config["exporters"]["load_balancing"]["resolver"]["dns"]
    assert (resolver["hostname"], resolver["port"]) == ("gw.internal", "9")
    elsewhere = parsed(written("sidecar", "--spool", "/s"))
    assert elsewhere["exporters"]["file/spool"]["path"] == "/s/goodput.otlp.json"
    gateway = parsed(written("gateway", "--listen", "0.0.0.0:4317"))
    assert gateway["receivers"]["otlp"]["protocols"]["grpc"] == {"endpoint": "0.0.0.0:4317"}
    wanted = merged(*LAYERS["gateway"])
    wanted["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] = "0.0.0.0:4317"
    assert gateway == wanted


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("sidecar", ("--project", "example.com:my-project", "--queue-dir", "/q", "--spool", "/s")),
        ("classic", ("--project", "my-project", "--spool")),
        ("fleet", ("--gateway", "10.0.0.7:14317")),
        ("fleet", ("--gateway", "7")),
        ("gateway", ("--listen", "[::]:4317")),
    ],
)
def test_with_options_it_is_valid(place: str, options: tuple[str, ...], tmp_path: Path) -> None:
    done = validated(runnable(tmp_path, place, *options))
    assert done.returncode == 0, done.stderr


def test_a_job_goes_through_local(tmp_path: Path) -> None:
    with Collector(tmp_path / "collector", runnable(tmp_path, "local"), ports=[SCRAPED]) as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}"}
        with Job(tmp_path / "job", environ, exporters=["otlp", "file"]) as job:
            assert job.end().status == 0
        file = tmp_path / "collector" / "goodput.otlp.json"
        wanted = names(*(tmp_path / "job").rglob("traces-*.jsonl"))
        assert len(wanted) > 5
        until(lambda: names(file) == wanted, lacking=lambda: names(file))
        with urllib.request.urlopen(f"http://{collector.addresses[SCRAPED]}/metrics", timeout=10) as answer:
            assert b"goodput_ratio{" in answer.read()


def names(*files: Path) -> list[str]:
    """The names of all spans in the files, sorted."""
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text("utf-8").splitlines()]
    resources = (resource for line in lines for resource in line.get("resourceSpans", ()))
    return sorted(span["name"] for resource in resources for scope in resource["scopeSpans"] for span in scope["spans"])


@pytest.mark.parametrize("place", ["sidecar", "classic"])
def test_a_job_goes_through_to_google_cloud(place: str, tmp_path: Path) -> None:
    config = runnable(tmp_path, place, "--project", PROJECT)
    with Sidecar(tmp_path, str(config.with_suffix("")), classic_metrics=place == "classic") as sidecar:
        with sidecar.job() as job:
            account = job.end().account
        sidecar.complete(account)
        assert not sidecar.google.refusals
        assert {dict(key.resource_labels)["job"] for key in sidecar.series} == {JOB}


def test_a_job_goes_through_a_fleet_s_collector_and_the_gateway(tmp_path: Path) -> None:
    with GoogleEmulator() as google:
        environ = {"GOOGLE_EMULATOR": google.endpoint.removeprefix("http://")}
        config = runnable(tmp_path, "gateway", "--project", PROJECT)
        with Collector(tmp_path / "gateway", config, OVERLAYS / "emulator.yaml", environ=environ) as gateway:
            config = runnable(tmp_path, "fleet", "--project", PROJECT, "--gateway", gateway.grpc)
            with Collector(tmp_path / "fleet", config, OVERLAYS / "emulator.yaml", environ=environ) as sidecar:
                variables = {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{sidecar.grpc}",
                    "OTEL_GOODPUT_STEP_TRACES": "own",
                    "OTEL_GOODPUT_STEP_SAMPLING": "1",
                }
                with Job(tmp_path / "job", variables, exporters=["otlp"]) as job:
                    assert job.end().status == 0
                until(lambda: "job" in {span.name for span in google.otlp_spans} and google.series)
        assert not google.refusals and not google.otlp_series
        assert {dict(key.resource_labels)["job"] for key in google.series} == {JOB}
