"""What ``otel-goodput collector config`` writes, and the same from several files, as the collector takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tools.commands import goodput, succeeded

from .collector import CONFIGS

# What each place is made of; what is under `overlays` stands with its folder.
LAYERS = {
    "local": ["local.yaml"],
    "sidecar": ["gcp-sidecar.yaml", "google-auth.yaml"],
    "classic": ["gcp-sidecar.yaml", "google-auth.yaml", "classic-metrics.yaml"],
    "fleet": ["fleet-sidecar.yaml", "google-auth.yaml", "classic-metrics.yaml"],
    "gateway": ["gateway.yaml", "google-auth.yaml"],
}


def written(place: str, *options: str) -> str:
    """The configuration that the command prints."""
    return succeeded(goodput("collector", "config", place, *options))


def parsed(text: str) -> Any:
    return yaml.safe_load(text)


def merged(*names: str) -> Any:
    """Configurations laid over each other as the collector does it: mappings are merged, all else is replaced."""
    config: Any = {}
    for name in names:
        _merge(config, yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8")))
    return config


def _merge(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(below.get(key), dict) and isinstance(value, dict):
            _merge(below[key], value)
        else:
            below[key] = value


def without_credentials(config: Any) -> Any:
    """The configuration without the one extension that a collector of ``make collector`` does not have."""
    config["extensions"].pop("googleclientauth", None)
    config["exporters"].get("otlp_grpc/google", {}).pop("auth", None)
    service = config["service"]
    service["extensions"] = [each for each in service["extensions"] if each != "googleclientauth"]
    return config


def runnable(directory: Path, place: str, *options: str) -> Path:
    """The written configuration as a file; the tests' collector has no credentials for Google Cloud."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{place}.yaml"
    text = written(place, *options)
    path.write_text(text if place == "local" else yaml.safe_dump(without_credentials(parsed(text))), encoding="utf-8")
    return path
