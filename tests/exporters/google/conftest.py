"""An emulator of Google's services and exporters that write to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from emulators.google import GoogleEmulator

from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.exporters.registry import open_exporter
from otel_goodput.exporters.spec import ExporterContext, Exporters

Open = Callable[..., Exporters]


@pytest.fixture(autouse=True)
def _google_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GCLOUD_", "GCP_", "TPU_", "MEGASCALE_", "CLOUD_TPU_")):
            monkeypatch.delenv(name)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleEmulator]:
    """Every recorder and exporter of the test writes to it."""
    with GoogleEmulator() as emulator:
        monkeypatch.setenv(OTEL_GOODPUT_GCP_ENDPOINT.name, emulator.endpoint)
        monkeypatch.setenv(OTEL_GOODPUT_GCP_PROJECT.name, "test-project")
        yield emulator


@pytest.fixture
def opened(google: GoogleEmulator) -> Iterator[Open]:
    """Opens exporters; what they export is at `google`."""
    exporters: list[Exporters] = []

    def opener(name: str, **context: object) -> Exporters:
        exporters.append(open_exporter(name, ExporterContext("llama", **{"run_id": "run", **context})))  # type: ignore[arg-type]
        return exporters[-1]

    yield opener
    google.heal()
    for opened in exporters:
        if opened.span_exporter is not None:
            opened.span_exporter.shutdown()
        if opened.metric_exporter is not None:
            opened.metric_exporter.shutdown(timeout_millis=1)
