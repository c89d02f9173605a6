"""``otel-goodput doctor --gcp``: packages, the metadata server, the clock, and a terminal."""

from __future__ import annotations

import functools
import json
import os
import pty
import ssl
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme
import warm
from disruption.metadata_server import MetadataServer
from emulators.google import GoogleEmulator
from emulators.html_proxy import HtmlProxy
from exporters.backends import silent_backend
from http_server import HttpServer, Request, Response
from resources.machines import GKE, GPU_VM, SECRET, serve

from otel_goodput._runtime.installation import install_command

from ...commands import PATIENCE_S, Answer, environment
from ..examined import doctor, findings
from .words import DEAD, MONITORING, PROJECT, TRACE, Examined, garbage

# --- metadata server --------------------------------------------------------------------------------------------------


def test_a_machine_of_google_cloud(metadata: MetadataServer, google: GoogleEmulator, examined: Examined) -> None:
    variables = {"OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint, "GCE_METADATA_HOST": metadata.host, **PROJECT}
    done = examined(**variables)
    finding = findings(done, "metadata server", "ok")
    assert f"{metadata.host} answered in " in finding
    assert "project my-project, zone us-central1-a, machine trainer-1, type a3-highgpu-8g" in finding
    assert "test-project, from OTEL_GOODPUT_GCP_PROJECT; but my-project from the metadata server" in findings(
        done, "project", "warning"
    )
    assert "the metadata server's, within the tolerance" in findings(done, "clock", "ok")
    assert SECRET not in done.stdout
    serve(metadata, GKE)
    assert "cluster pretraining in us-central1-a" in findings(examined(**variables), "metadata server", "ok")


def test_a_metadata_server_that_is_none(google: GoogleEmulator, examined: Examined) -> None:
    variables = {"OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint, **PROJECT}
    began = time.monotonic()
    with HtmlProxy() as proxy, silent_backend() as silent:
        for host, problem in (
            (proxy.endpoint.removeprefix("http://"), "is not Google's: no Metadata-Flavor"),
            (silent.removeprefix("http://"), "did not answer within 0.3 s"),
            (DEAD, "cannot be reached"),
            ("no address", "is not Google's: its address is not valid"),
        ):
            done = examined(timeout_s=0.3, GCE_METADATA_HOST=host, **variables)
            finding = findings(done, "metadata server", "warning")
            assert problem in finding and "GCE_METADATA_HOST" in finding
            assert "accepts BatchWriteSpans" in findings(done, TRACE, "ok")
    assert time.monotonic() - began < 10


# --- clock ------------------------------------------------------------------------------------------------------------

OFF = [
    (-1, "ok", "within the tolerance"),
    (-130, "warning", "2 min"),
    (120, "warning", "behind the metadata server's"),
    (-600, "problem", "points from more than 5 min ahead are refused -> correct this machine's clock"),
    (600, "warning", "behind the metadata server's"),
    (7200, "problem", "2 h 00 min behind the metadata server's: tokens signed with a key expire at once"),
]


@pytest.mark.parametrize(("seconds", "level", "problem"), OFF)
def test_a_clock_that_is_off(
    seconds: float, level: str, problem: str, metadata: MetadataServer, google: GoogleEmulator, examined: Examined
) -> None:
    """`seconds` are how far Google's is ahead."""

    def otherwise(_: Request) -> Response:
        date = formatdate(time.time() + seconds + 0.5, usegmt=True)
        return Response(200, json.dumps(GPU_VM).encode(), {"Date": date, "Metadata-Flavor": "Google"})

    metadata.misbehave = otherwise
    done = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, GCE_METADATA_HOST=metadata.host, **PROJECT)
    assert problem in findings(done, "clock", level)


def test_the_time_of_the_services(metadata: MetadataServer, examined: Examined, tmp_path: Path) -> None:
    """Google's front ends speak HTTP too, and their clock goes before that of a metadata server."""

    def ahead(_: Request) -> Response:
        return Response(501, headers={"Date": formatdate(time.time() - 1000, usegmt=True)})

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with HttpServer(ahead, tls=context) as server:
        target = f"127.0.0.1:{server.port}"
        done = examined(
            OTEL_GOODPUT_GCP_ENDPOINT=target, GOOGLE_APPLICATION_CREDENTIALS=garbage(tmp_path),
            GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=tmp_path / "authority.pem", GCE_METADATA_HOST=metadata.host,
        )  # fmt: skip
    assert f"ahead of {target}'s: points from more than 5 min ahead are refused" in findings(done, "clock", "problem")


# --- packages, terminal -----------------------------------------------------------------------------------------------

WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from otel_goodput._runtime.installation import install_command
from otel_goodput._tools.cli import main
sys.exit(main(["doctor", "--json", "--gcp", "--timeout", "2"]))
"""


def without(modules: str, place: Path, **variables: str) -> Answer:
    """`doctor --gcp` where these modules are not installed."""
    return warm.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, modules],
        capture_output=True, text=True, cwd=place, timeout=PATIENCE_S, check=False,
        env=environment(TMPDIR=place.parent / "tmp", **variables),
    )  # fmt: skip


def test_nothing_is_installed(google: GoogleEmulator, place: Path) -> None:
    modules = (
        "grpc,google.auth,google.cloud.trace_v2,google.cloud.monitoring_v3,opentelemetry.exporter.cloud_trace,"
        "opentelemetry.exporter.cloud_monitoring"
    )
    done = without(modules, place, OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    finding = findings(done, "google cloud", "problem")
    assert f"what exporter gcp needs is not installed -> {install_command('gcp')}" in finding
    other = "what exporter gcp-otlp needs is not installed; no active exporter needs it"
    assert other in findings(done, "google cloud", "ok")
    assert "no request was sent: the packages for it are missing" in findings(done, TRACE, "ok")
    assert google.requests == []


@pytest.mark.parametrize(("exporter", "status"), [("workload", 0), ("gcp", 1)])
def test_some_is_installed(exporter: str, status: int, google: GoogleEmulator, place: Path) -> None:
    variables = {"OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint, "OTEL_GOODPUT_EXPORTERS": exporter, **PROJECT}
    done = without("google.cloud.trace_v2,opentelemetry.exporter.cloud_trace", place, **variables)
    assert done.returncode == status, done.stdout
    assert (install_command("gcp") in findings(done, "exporter gcp", "problem")) == bool(status)
    assert "accepts CreateTimeSeries" in findings(done, MONITORING, "ok")
    assert TRACE not in {one["about"] for one in json.loads(done.stdout)["findings"]}


def test_packages_that_do_not_go_together(
    google: GoogleEmulator, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken" / "grpc").mkdir(parents=True)
    (tmp_path / "broken" / "grpc" / "__init__.py").write_text("raise TypeError('Descriptors cannot be created')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    done = doctor(place, "--gcp", OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    finding = findings(done, "google cloud", "problem")
    assert "grpc cannot be imported: TypeError: Descriptors cannot be created -> reinstall them" in finding


def test_no_exporter_goes_there(google: GoogleEmulator, examined: Examined) -> None:
    done = examined(OTEL_GOODPUT_EXPORTERS="file", OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    assert "OTEL_GOODPUT_EXPORTERS=gcp,workload" in findings(done, "google cloud", "warning")
    assert "accepts BatchWriteSpans" in findings(done, TRACE, "ok")


def read(terminal: int) -> bytes:
    """What was written there; nothing once all of it was read and nobody writes any more."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_on_a_terminal_it_says_what_it_waits_for(google: GoogleEmulator, place: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "otel_goodput", "doctor", "--gcp"],
            stdout=subprocess.DEVNULL, stderr=theirs, stdin=subprocess.DEVNULL, cwd=place, check=False,
            env=environment(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT), timeout=PATIENCE_S,
        )  # fmt: skip
        os.close(theirs)
        seen = "".join(part.decode() for part in iter(functools.partial(read, ours), b""))
    finally:
        os.close(ours)
    for thing in ("metadata server", "credentials", "project", "services", "clock"):
        assert f"looking at Google's {thing}" in seen
    assert seen.rstrip("\r").rpartition("\r")[2].strip() == ""
