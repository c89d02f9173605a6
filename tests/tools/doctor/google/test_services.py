"""``otel-goodput doctor --gcp``: the services and the way to them, and the project."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from emulators.google import GoogleEmulator
from emulators.html_proxy import HtmlProxy
from emulators.token_server import ACCOUNT, TokenServer
from exporters.backends import silent_backend

from ..examined import checked, findings
from .words import DEAD, MARKER, MONITORING, PROJECT, SERVICES, TELEMETRY, TRACE, Examined, garbage


def test_all_is_well(google: GoogleEmulator, examined: Examined) -> None:
    done = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    assert done.returncode == 0, done.stdout
    assert "installed for gcp, workload, gcp-otlp: google-auth " in findings(done, "google cloud", "ok")
    assert "does not appear to run on Google Cloud" in findings(done, "metadata server", "ok")
    assert "none are needed" in findings(done, "credentials", "ok")
    assert findings(done, "project", "ok").startswith("test-project, from OTEL_GOODPUT_GCP_PROJECT")
    for service, method in zip(SERVICES, ("BatchWriteSpans in", "CreateTimeSeries in", "metrics in"), strict=True):
        finding = findings(done, service, "ok")
        assert " is reached (DNS " in finding and method in finding, finding
    assert "no server reported a time" in findings(done, "clock", "ok")
    methods = {"BatchWriteSpans", "CreateTimeSeries", "OtlpTraces", "OtlpMetrics"}
    assert {one.method for one in google.requests} == methods
    assert {(one.code, one.items) for one in google.requests} == {("OK", 0)}
    assert not any("authorization" in one.metadata for one in google.requests)
    assert (google.spans, google.series, google.otlp_spans, google.otlp_series) == ([], {}, [], {})


def test_no_service_is_called_without_the_option(google: GoogleEmulator, examined: Examined, tmp_path: Path) -> None:
    done = examined(gcp=False, OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    where = f"({google.endpoint}), project test-project"
    assert f"traces to {TRACE} {where}; metrics to {MONITORING} {where}" in findings(done, "exporter gcp", "ok")
    assert f"metrics to {MONITORING} {where}" in findings(done, "exporter workload", "ok")
    assert "none are needed" in findings(done, "credentials", "ok")
    assert findings(done, "project", "ok").startswith("test-project, from ")
    assert "`otel-goodput doctor --gcp`" in findings(done, "google cloud", "ok")
    exports = {(one["exporter"], one["signal"]): one["where"] for one in json.loads(done.stdout)["exports"]}
    assert exports["gcp", "traces"] == f"{TRACE} {where}"
    assert exports["workload", "metrics"] == f"{MONITORING} {where}"
    assert checked(done)["verdict"].endswith("(`--gcp` also asks Google Cloud)")
    unknown = examined(gcp=False, OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, OTEL_GOODPUT_EXPORTERS="gcp-otlp")
    assert "traces and metrics to Telemetry API" in findings(unknown, "exporter gcp-otlp", "ok")
    assert "set OTEL_GOODPUT_GCP_PROJECT" in findings(unknown, "project", "problem")
    assert checked(unknown)["verdict"] == "1 problem: no Google Cloud project is known"
    with TokenServer() as tokens:
        key = tokens.key_file(tmp_path / "key.json")
        real = examined(gcp=False, OTEL_GOODPUT_EXPORTERS="gcp", GOOGLE_APPLICATION_CREDENTIALS=key)
        assert tokens.issued == 0
    assert f"the key of a service account, {ACCOUNT}, ({key}, from " in findings(real, "credentials", "ok")
    assert "test-project, from the credentials file" in findings(real, "project", "ok")
    assert f"traces to {TRACE} (cloudtrace.googleapis.com:443); metrics to" in findings(real, "exporter gcp", "ok")
    nobody = examined(gcp=False, OTEL_GOODPUT_EXPORTERS="gcp")
    assert "gcloud auth application-default login" in findings(nobody, "credentials", "warning")
    assert "google cloud" not in examined(gcp=False, OTEL_GOODPUT_EXPORTERS="file").stdout
    assert google.requests == []


# --- project ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "level", "problem"),
    [
        ({}, "problem", "no Google Cloud project is known -> set OTEL_GOODPUT_GCP_PROJECT"),
        ({"GCLOUD_PROJECT": "test-project"}, "ok", "test-project, from GCLOUD_PROJECT"),
        ({"GOOGLE_CLOUD_PROJECT": "other-project", **PROJECT}, "warning", "but other-project from GOOGLE_CLOUD"),
        ({"GOOGLE_CLOUD_PROJECT": "123456789012", **PROJECT}, "ok", "test-project, from OTEL_GOODPUT_GCP_PROJECT"),
        ({"OTEL_GOODPUT_GCP_PROJECT": "My Project"}, "warning", "'My Project', from OTEL_GOODPUT_GCP_PROJECT, does"),
    ],
)  # fmt: skip
def test_which_project(
    variables: dict[str, str], level: str, problem: str, google: GoogleEmulator, examined: Examined
) -> None:
    done = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **variables)
    assert problem in findings(done, "project", level)
    if level == "problem":
        assert "no request was sent: no project is known" in findings(done, TRACE, "ok")
        assert google.requests == []


def test_the_wrong_project(google: GoogleEmulator, examined: Examined) -> None:
    done = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, OTEL_GOODPUT_GCP_PROJECT="other-project",
                    OTEL_GOODPUT_EXPORTERS="gcp,gcp-otlp")  # fmt: skip
    for service in SERVICES:
        finding = findings(done, service, "problem")
        assert "PERMISSION_DENIED" in finding and "if 'other-project' is the right project" in finding
    assert "traces, metrics: PERMISSION_DENIED" in findings(done, TELEMETRY, "problem"), "told once of both"


# --- services ---------------------------------------------------------------------------------------------------------

DISABLED = "Cloud Monitoring API has not been used in project 123 before or it is disabled."


@pytest.mark.parametrize(
    ("code", "text", "level", "problem", "do"),
    [
        (
            "PERMISSION_DENIED", "", "problem", "the role or the project is missing: CreateTimeSeries: PERM",
            "gcloud projects add-iam-policy-binding test-project --member=serviceAccount:EMAIL --role=roles/monitor",
        ),
        (
            "PERMISSION_DENIED", DISABLED, "problem", f"disabled: CreateTimeSeries: PERMISSION_DENIED: {DISABLED}",
            "gcloud services enable monitoring.googleapis.com --project test-project",
        ),
        (
            "PERMISSION_DENIED", "Request had insufficient authentication scopes.", "problem", "access scopes",
            "--scopes=cloud-platform",
        ),
        (
            "PERMISSION_DENIED", "Caller lacks serviceusage.services.use", "problem", "no usable quota project",
            "set-quota-project test-project",
        ),
        ("NOT_FOUND", "Not found", "problem", "there is no such project", "is 'test-project' the right project?"),
        (
            "INVALID_ARGUMENT", 'Field name had an invalid value of "projects/x"', "problem",
            "there is no such project: CreateTimeSeries: INVALID_ARGUMENT", "is 'test-project' the right project?",
        ),
        ("INVALID_ARGUMENT", "timeSeries must not be empty.", "ok", "grants access; it answers an empty", ""),
        ("UNAUTHENTICATED", "", "problem", "the credentials are not accepted", "renew them"),
        ("UNIMPLEMENTED", "", "problem", "the address belongs to another service", "OTEL_GOODPUT_GCP_ENDPOINT"),
        ("UNAVAILABLE", "", "problem", "nothing answers", "check what is behind that address"),
        ("RESOURCE_EXHAUSTED", "", "warning", "the quota is used up", "ask for more quota"),
        ("INTERNAL", "", "warning", "it refuses: CreateTimeSeries: INTERNAL: ", "try again"),
    ],
)  # fmt: skip
def test_a_service_that_refuses(
    code: str, text: str, level: str, problem: str, do: str, google: GoogleEmulator, examined: Examined
) -> None:
    google.fail("CreateTimeSeries", code, times=None, text=text)
    done = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    what, _, help_ = findings(done, MONITORING, level).partition(" -> ")
    assert problem in what and do in help_, done.stdout
    assert "accepts BatchWriteSpans" in findings(done, TRACE, "ok")


def test_a_service_that_no_exporter_needs(google: GoogleEmulator, examined: Examined) -> None:
    google.fail("OtlpTraces", "PERMISSION_DENIED", times=None)
    unused = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    assert unused.returncode == 0
    assert "no active exporter needs it; " in findings(unused, TELEMETRY, "ok")
    used = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, OTEL_GOODPUT_EXPORTERS="gcp-otlp", **PROJECT)
    assert "--role=roles/telemetry.writer" in findings(used, TELEMETRY, "problem")


def test_services_that_never_answer(google: GoogleEmulator, examined: Examined) -> None:
    google.hang()
    began = time.monotonic()
    done = examined(timeout_s=0.3, OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint, **PROJECT)
    for service in SERVICES[:2]:
        assert "there is no answer in time" in findings(done, service, "problem")
    assert time.monotonic() - began < 5


def test_a_listener_that_never_says_a_word(examined: Examined, tmp_path: Path) -> None:
    began = time.monotonic()
    with silent_backend() as endpoint:
        plain = examined(timeout_s=0.2, OTEL_GOODPUT_GCP_ENDPOINT=endpoint, **PROJECT)
        target = endpoint.removeprefix("http://")
        variables = {"GOOGLE_APPLICATION_CREDENTIALS": garbage(tmp_path), "OTEL_GOODPUT_GCP_ENDPOINT": target}
        tls = examined(timeout_s=0.2, **variables)
        proxied = examined(
            timeout_s=0.2, https_proxy=endpoint, **(variables | {"OTEL_GOODPUT_GCP_ENDPOINT": "trace.invalid:443"})
        )
    assert "there is no answer in time" in findings(plain, TRACE, "problem")
    assert f"{target} does not answer within 0.2 s" in findings(tls, TRACE, "problem")
    assert f"the proxy {target} does not answer within 0.2 s" in findings(proxied, TRACE, "problem")
    assert time.monotonic() - began < 10


def test_a_proxy_that_answers_in_html(examined: Examined, tmp_path: Path) -> None:
    with HtmlProxy() as proxy:
        there = examined(OTEL_GOODPUT_GCP_ENDPOINT=proxy.endpoint, **PROJECT)
        target = proxy.endpoint.removeprefix("http://")
        between = examined(
            https_proxy=f"http://me:{MARKER}@{target}", GOOGLE_APPLICATION_CREDENTIALS=garbage(tmp_path),
            OTEL_GOODPUT_EXPORTERS="gcp",
        )  # fmt: skip
        assert any(one.startswith("CONNECT monitoring.googleapis.com:443 ") for one in proxy.requests)
    finding = findings(there, TRACE, "problem")
    assert "something other than the service answers: " in finding and "check https_proxy and no_proxy" in finding
    finding = findings(between, MONITORING, "problem")
    assert f"the proxy {target} refuses to connect to it (403 Forbidden)" in finding and "no_proxy" in finding
    assert MARKER not in between.stdout


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OTEL_GOODPUT_GCP_ENDPOINT": DEAD}, f"nothing listens at {DEAD}"),
        ({"OTEL_GOODPUT_GCP_ENDPOINT": "nosuch.invalid"}, "the name of nosuch.invalid:443 cannot be resolved"),
        ({"OTEL_GOODPUT_GCP_ENDPOINT": "https://nosuch.invalid:443/v1"}, "'nosuch.invalid:443/v1' is not an address"),
        ({"OTEL_GOODPUT_GCP_ENDPOINT": "host:x"}, "'host:x' is not an address"),
        ({"OTEL_GOODPUT_GCP_ENDPOINT": DEAD, "https_proxy": f"http://{DEAD}"}, f"nothing listens at the proxy {DEAD}"),
        ({"OTEL_GOODPUT_GCP_ENDPOINT": DEAD, "https_proxy": f"http://{MARKER}:x"}, "has no valid host and port"),
    ],
)
def test_addresses_that_lead_nowhere(
    variables: dict[str, str], problem: str, examined: Examined, tmp_path: Path
) -> None:
    done = examined(GOOGLE_APPLICATION_CREDENTIALS=garbage(tmp_path), **variables)
    assert problem in findings(done, TRACE, "problem")
    assert MARKER not in done.stdout


def test_tls_that_is_not_as_it_should_be(google: GoogleEmulator, examined: Examined, tmp_path: Path) -> None:
    key = {"GOOGLE_APPLICATION_CREDENTIALS": garbage(tmp_path)}
    plain = examined(OTEL_GOODPUT_GCP_ENDPOINT=google.endpoint.removeprefix("http://"), **key)
    assert "does not speak TLS" in findings(plain, TRACE, "problem")
    with GoogleEmulator(tls=True) as encrypted:
        unknown = examined(OTEL_GOODPUT_GCP_ENDPOINT=encrypted.endpoint, **key)
        unread = examined(
            OTEL_GOODPUT_GCP_ENDPOINT=encrypted.endpoint, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=tmp_path / "no", **key
        )
    finding = findings(unknown, TRACE, "problem")
    assert "is not trusted: " in finding and "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in finding
    assert "the certificates of GRPC_DEFAULT_SSL_ROOTS_FILE_PATH cannot be read" in findings(unread, TRACE, "problem")
