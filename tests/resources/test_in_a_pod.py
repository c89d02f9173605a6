"""A recorder in a pod: it asks the cluster how it was started, and its report tells."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from waits import until

import otel_goodput
from otel_goodput._journal.facts import read_facts
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._resources import kubernetes
from otel_goodput.testing import metrics

from .api_server import ApiServer, certificate, serving
from .test_scheduling import EVENTS, pod
from .test_submission import POD, TOKEN


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert TOKEN not in caplog.text + "".join(capfd.readouterr())


def ago(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


@contextmanager
def in_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The server of this pod's cluster, with a mounted account; made 100 s ago, scheduled 70 s, started 10 s ago."""
    account = folder / "account"
    account.mkdir()
    certificate(account / "ca.crt")
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text("ml")
    running = pod(state={"running": {"startedAt": ago(10)}})
    running["metadata"]["creationTimestamp"] = ago(100)
    running["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(70)}]
    with serving({POD: running, EVENTS: {"items": []}}, secured_in=folder) as api:
        monkeypatch.setattr(kubernetes, "ACCOUNT", account)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        monkeypatch.setenv("POD_NAME", "llama-0-0-x7k2p")
        monkeypatch.delenv("CONTAINER_NAME", raising=False)
        yield api


@pytest.mark.parametrize("submitted", [None, 1e9])
def test_a_recorder_in_a_pod_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: float | None) -> None:
    """Over TLS, with the mounted token: metric, facts of the attempt, and the token nowhere."""
    runs = tmp_path / "runs"
    with in_a_pod(tmp_path, monkeypatch) as api:
        reader = InMemoryMetricReader()
        recorder = otel_goodput.Recorder(
            "job", run_id="run", directory=runs, exporters="none", metric_readers=[reader], submitted_at=submitted
        )
        tracer = recorder.tracer
        assert tracer is not None
        with recorder.job(), recorder.step(0):
            until(lambda: bool(tracer.hooks.waits))
        measured = metrics(reader)
        recorder.shutdown()
    waits = {
        point.attributes["goodput.scheduling.stage"]: point.value
        for point in measured["goodput.scheduling.duration"].data.data_points
    }
    assert waits.keys() == {"queued", "container_start", "program_start"}
    assert abs(waits["queued"] - 30) <= 1 and abs(waits["container_start"] - 60) <= 1 and waits["program_start"] >= 9
    assert read_facts(RunDirectory(runs / "run"), 0, 0).scheduling == waits
    assert "goodput.scheduling.ratio" in measured
    assert set(api.paths) == {POD, EVENTS}
    # Who knows when it was submitted does not ask for that: only metadata is asked for then.
    assert any("PartialObjectMetadata" in one.headers["Accept"] for one in api.requests) == (submitted is None)
    for path in (path for path in runs.rglob("*") if path.is_file()):
        assert TOKEN.encode() not in path.read_bytes()


def test_a_cluster_that_answers_before_the_recorder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seek = kubernetes.seek

    def answered(*args: Any, **options: Any) -> None:
        thread = seek(*args, **options)
        assert thread is not None
        thread.join(30)

    monkeypatch.setattr(kubernetes, "seek", answered)
    with in_a_pod(tmp_path, monkeypatch):
        recorder = otel_goodput.Recorder("job", run_id="run", directory=tmp_path / "runs", exporters="none")
        with recorder.job(), recorder.step(0):
            pass
        recorder.shutdown()
    assert "scheduling" in recorder.report().to_json()


def test_a_recorder_that_is_started_again_in_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a loop of a shell: the pod is the same, and so is what Kubernetes tells of it."""
    runs = tmp_path / "runs"
    with in_a_pod(tmp_path, monkeypatch) as api:
        for attempt in range(2):
            requests_before = len(api.requests)
            recorder = otel_goodput.Recorder("job", run_id="run", directory=runs, exporters="none", submitted_at=1e9)
            tracer = recorder.tracer
            assert tracer is not None
            with recorder.job(), recorder.step(attempt):
                until(lambda: len(api.requests) > requests_before)  # noqa: B023
                until(lambda: not any(one.name == "otel-goodput-submission" for one in threading.enumerate()))
            assert bool(tracer.hooks.waits) == (attempt == 0)
            recorder.shutdown()
    scheduling = otel_goodput.open_run(runs, "run").report().to_json()["scheduling"]
    assert scheduling["reschedules"] == 0 and scheduling["first_s"]["queued"] >= 29 and scheduling["later_s"] == {}
