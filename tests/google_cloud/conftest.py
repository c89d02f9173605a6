"""An emulator of Google's services and outlets that write to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from emulators.google import GoogleEmulator

from otel_goodput.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.exporters import Outlet, Surroundings, open_outlet

Open = Callable[..., Outlet]


@pytest.fixture(autouse=True)
def _google_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GCLOUD_", "GCP_", "TPU_", "MEGASCALE_", "CLOUD_TPU_")):
            monkeypatch.delenv(name)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleEmulator]:
    """Every recorder and outlet of the test writes to it."""
    with GoogleEmulator() as emulator:
        monkeypatch.setenv(OTEL_GOODPUT_GCP_ENDPOINT.name, emulator.endpoint)
        monkeypatch.setenv(OTEL_GOODPUT_GCP_PROJECT.name, "test-project")
        yield emulator


@pytest.fixture
def opened(google: GoogleEmulator) -> Iterator[Open]:
    """Opens outlets; what they export is at `google`."""
    outlets: list[Outlet] = []

    def opener(name: str, **surroundings: object) -> Outlet:
        outlets.append(open_outlet(name, Surroundings("llama", **{"run_id": "run", **surroundings})))  # type: ignore[arg-type]
        return outlets[-1]

    yield opener
    google.heal()
    for outlet in outlets:
        if outlet.span_exporter is not None:
            outlet.span_exporter.shutdown()
        if outlet.metric_exporter is not None:
            outlet.metric_exporter.shutdown(timeout_millis=1)
