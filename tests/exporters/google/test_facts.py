"""What an attempt ran on and with tells the project that its spans go to, whichever exporters `auto` chose."""

from __future__ import annotations

from pathlib import Path

import pytest

import otel_goodput
from benchmarks.container import Container
from otel_goodput._journal.facts import read_facts
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.document import document
from otel_goodput.exporters import registry
from otel_goodput.exporters.google.connection import Connection
from otel_goodput.exporters.spec import ExporterContext
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView


def test_what_auto_chose_is_recorded_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "reason", lambda name, _: name if name in ("gcp", "file") else "")
    monkeypatch.setenv("OTEL_GOODPUT_GCP_PROJECT", "my-project")
    monkeypatch.setenv("OTEL_GOODPUT_GCP_ENDPOINT", "https://localhost:1")
    monkeypatch.delenv("OTEL_GOODPUT_EXPORTERS", raising=False)
    monkeypatch.setenv("OTEL_GOODPUT_GRACE_PERIOD", "0.1")
    recorder = otel_goodput.Recorder("told", run_id="told", directory=tmp_path, integrations="none")
    with recorder.job():
        pass
    recorder.shutdown()
    run = RunDirectory(tmp_path / "told")
    facts = read_facts(run, 0, 0)
    assert facts.settings["OTEL_GOODPUT_EXPORTERS"][0] == "auto"
    assert facts.exporters == {"gcp": "my-project", "file": ""}
    address = Container(document(RunView.open(RecordedRun(run)))).head["traces"]["cloud_trace"]
    assert address.startswith("https://console.cloud.google.com/") and address.endswith("?project=my-project")


def test_the_project_of_the_credentials_is_logged_once_they_are_found() -> None:
    connection = Connection({})
    assert connection.known_project() == ""
    connection._default = object(), "of-the-credentials"
    assert connection.known_project() == connection.project == "of-the-credentials"
    assert Connection({"GOOGLE_CLOUD_PROJECT": "given"}).known_project() == "given"


@pytest.mark.parametrize("name", ["gcp", "gcp-otlp", "workload"])
def test_an_emulators_project_is_nobodys(name: str) -> None:
    environ = {"OTEL_GOODPUT_GCP_PROJECT": "mine", "OTEL_GOODPUT_GCP_ENDPOINT": "http://localhost:1"}
    opened = registry.open_exporter(name, ExporterContext("told", "told", environ=environ))
    assert opened.project() == ""
    registry.shut_down(opened, 1)
