"""``otel-goodput doctor --gcp``: credentials, and that nothing secret of them is shown."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from disruption.metadata_server import MetadataServer, answer
from emulators.google import GoogleEmulator
from emulators.token_server import ACCOUNT, TokenServer
from exporters.backends import silent_backend
from http_server import Request, Response
from resources.machines import GPU_VM

from otel_goodput._tools.doctor.google import find

from ...commands import goodput
from ..examined import doctor, findings
from .words import DEAD, MARKER, MONITORING, SERVICES, TRACE, Encrypted, Examined, Variables


def secrets(variables: Variables) -> list[str]:
    """Texts that nobody may be shown."""
    key = json.loads(Path(variables["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())["private_key"]
    return [MARKER, "ya29.", *filter(None, key.splitlines())]


def test_with_a_key(encrypted: Encrypted, place: Path) -> None:
    google, variables = encrypted
    google.fail("CreateTimeSeries", "PERMISSION_DENIED", times=None, text=f"not with ya29.1 nor {MARKER}")
    done = doctor(place, "--gcp", **variables)
    finding = findings(done, "credentials", "ok")
    assert f"a service account, {ACCOUNT}, " in finding
    assert "a token was issued in " in finding and "good for 59 min" in finding
    assert "test-project, from the credentials file" in findings(done, "project", "ok")
    assert "against other-project, where trainer@" in findings(done, "quota project", "ok")
    assert ", TLS " in findings(done, TRACE, "ok")
    finding = findings(done, MONITORING, "problem")
    assert "PERMISSION_DENIED: not with (hidden) nor (hidden)" in finding
    assert f"test-project --member=serviceAccount:{ACCOUNT} --role=roles/monitoring.metricWriter`" in finding
    assert {one.metadata["authorization"] for one in google.requests} == {"Bearer ya29.1"}
    assert not [one for one in secrets(variables) if one in done.stdout]


def test_text_for_people(encrypted: Encrypted, place: Path) -> None:
    google, variables = encrypted
    google.fail("BatchWriteSpans", "PERMISSION_DENIED", times=None, text=f"not with ya29.1 nor {MARKER}")
    done = goodput("doctor", "--gcp", "--timeout", "5", cwd=place, **variables)
    assert done.returncode == 1 and done.stderr == ""
    assert f"\nok       credentials: the key of a service account, {ACCOUNT}, " in done.stdout
    assert "\n         if 'test-project' is the right project, grant the role: `gcloud " in done.stdout
    assert not [one for one in secrets(variables) if one in done.stdout]


def test_a_key_that_is_no_good_any_more(encrypted: Encrypted, tokens: TokenServer, place: Path) -> None:
    google, variables = encrypted
    tokens.fail()
    done = doctor(place, "--gcp", **variables)
    finding = findings(done, "credentials", "problem")
    assert f"{ACCOUNT}" in finding and "invalid_grant: Invalid JWT Signature." in finding
    assert "gcloud iam service-accounts keys create" in finding
    for service in SERVICES:
        assert "no request was sent: there are no credentials" in findings(done, service, "ok")
    assert google.requests == []


def test_a_token_server_that_is_none(encrypted: Encrypted, tokens: TokenServer, place: Path) -> None:
    tokens.fail(403, f"<html><body>{MARKER} denied</body></html>")
    done = doctor(place, "--gcp", **encrypted[1])
    finding = findings(done, "credentials", "problem")
    assert "the answer is an HTML page" in finding and "https_proxy and no_proxy" in finding
    assert MARKER not in done.stdout


def test_tokens_that_are_revoked(encrypted: Encrypted, tokens: TokenServer, tmp_path: Path, place: Path) -> None:
    with GoogleEmulator(tls=True, tokens=set()) as elsewhere:
        there = {
            "OTEL_GOODPUT_GCP_ENDPOINT": elsewhere.endpoint,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": elsewhere.certificate,
        }
        done = doctor(place, "--gcp", **(encrypted[1] | there))
    for service in SERVICES[:2]:
        finding = findings(done, service, "problem")
        assert (
            "the credentials are not accepted" in finding and "UNAUTHENTICATED" in finding and "renew them" in finding
        )
    assert len({one.metadata["authorization"] for one in elsewhere.requests}) > 1, "another token is tried"
    assert "ya29." not in done.stdout


def test_a_token_server_that_never_answers(encrypted: Encrypted, place: Path) -> None:
    _, variables = encrypted
    key = Path(variables["GOOGLE_APPLICATION_CREDENTIALS"])
    began = time.monotonic()
    with silent_backend() as endpoint:
        key.write_text(json.dumps(json.loads(key.read_text()) | {"token_uri": endpoint}))
        done = doctor(place, "--gcp", "--timeout", "0.2", **variables)
    assert "no token is issued: no answer within 1.4 s" in findings(done, "credentials", "problem")
    assert time.monotonic() - began < 10


FILES = [
    (f"{MARKER} {MARKER}", "it is not JSON"),
    (json.dumps({"type": MARKER, "private_key": MARKER}), "its type is not one of service_account, "),
    (json.dumps({"installed": {"client_secret": MARKER}}), "its type is not one of"),
    (json.dumps([MARKER]), "its type is not one of"),
    ("[" * 100_000, "it is not JSON"),
    ("\x00\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "it is not JSON"),
]


@pytest.mark.parametrize(("content", "problem"), FILES)
@pytest.mark.parametrize("gcp", [False, True])
def test_a_file_that_holds_no_credentials(
    gcp: bool, content: str, problem: str, google: GoogleEmulator, examined: Examined, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    path.write_text(content, "latin-1")
    done = examined(
        gcp=gcp, OTEL_GOODPUT_EXPORTERS="gcp", GOOGLE_APPLICATION_CREDENTIALS=path, OTEL_GOODPUT_GCP_ENDPOINT=DEAD
    )
    finding = findings(done, "credentials", "problem")
    assert f"{path}, from GOOGLE_APPLICATION_CREDENTIALS: holds no credentials: {problem}" in finding
    assert MARKER not in done.stdout


def test_files_that_cannot_be_read(examined: Examined, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for given, problem in (
        (str(tmp_path / "nowhere"), "cannot be read: No such file"),
        (str(tmp_path / "folder"), "is not a file"),
        (f'{{"private_key": "{MARKER}"}}', "GOOGLE_APPLICATION_CREDENTIALS: holds credentials instead of a path"),
        (f"ya29.{MARKER}", "holds credentials instead of a path"),
        (MARKER * 100, "holds credentials instead of a path"),
    ):
        done = examined(
            gcp=False, OTEL_GOODPUT_EXPORTERS="gcp", GOOGLE_APPLICATION_CREDENTIALS=given,
            OTEL_GOODPUT_GCP_ENDPOINT=DEAD,
        )  # fmt: skip
        assert problem in findings(done, "credentials", "problem")
        assert MARKER not in done.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"type": "authorized_user", "account": "me@example.com", "refresh_token": MARKER}, "a user's credentials, me"),
        ({"type": "authorized_user", "account": MARKER}, "a user's credentials ("),
        (
            {
                "type": "external_account",
                "service_account_impersonation_url": f"https://iam/v1/serviceAccounts/{ACCOUNT}:generateAccessToken",
                "credential_source": {"headers": {"Authorization": MARKER}, "more": [MARKER]},
            },
            f"workload identity federation, {ACCOUNT},",
        ),
        ({"type": "impersonated_service_account", "source_credentials": {"refresh_token": MARKER}}, "an impersonated"),
        ({"type": "service_account", "client_email": MARKER, "project_id": f"{MARKER}!"}, "the key of a service"),
    ],
)  # fmt: skip
def test_kinds_of_credentials(content: dict[str, Any], words: str, examined: Examined, tmp_path: Path) -> None:
    path = tmp_path / "home" / ".config" / "gcloud" / "application_default_credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    done = examined(gcp=False, OTEL_GOODPUT_EXPORTERS="gcp", OTEL_GOODPUT_GCP_ENDPOINT=DEAD)
    finding = findings(done, "credentials", "ok")
    assert finding.startswith(words) and str(path) in finding
    assert MARKER not in done.stdout


def test_nowhere_any_credentials(place: Path) -> None:
    done = doctor(place, "--gcp", OTEL_GOODPUT_EXPORTERS="gcp", OTEL_GOODPUT_GCP_ENDPOINT=DEAD)
    finding = findings(done, "credentials", "problem")
    assert "Your default credentials were not found. ->" in finding
    assert "point GOOGLE_APPLICATION_CREDENTIALS to a key" in finding


def test_credentials_of_the_machine(metadata: MetadataServer, place: Path) -> None:
    accounts = "/computeMetadata/v1/instance/service-accounts"
    token = json.dumps({"access_token": MARKER, "expires_in": 1800, "token_type": "Bearer"})

    def as_json(request: Request) -> Response:
        path = request.path.partition("?")[0]
        body = {
            "/": "", f"{accounts}/default/": json.dumps({"email": ACCOUNT, "scopes": []}),
            # As metadata servers answer to both names: which one Google's library asks by is a matter of its version.
            f"{accounts}/default/token": token, f"{accounts}/{ACCOUNT}/token": token,
            "/computeMetadata/v1/project/project-id": "test-project", "/computeMetadata/v1/": json.dumps(GPU_VM),
        }.get(path)  # fmt: skip
        kind = "application/json" if body and body.startswith("{") else "application/text"
        return answer(body or "", status=404 if body is None else 200, kind=kind)

    metadata.misbehave = as_json
    with GoogleEmulator(tls=True, tokens={MARKER}) as google:
        variables: dict[str, str] = {
            "OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": google.certificate,
            "GCE_METADATA_HOST": metadata.host, "GCE_METADATA_IP": metadata.host, "NO_GCE_CHECK": "",
        }  # fmt: skip
        done = doctor(place, "--gcp", **variables)
    finding = findings(done, "credentials", "ok")
    assert f"those of the machine or pod, {ACCOUNT}, from the metadata server: a token was issued" in finding
    assert "good for 29 min" in finding
    assert "test-project, from Google's library; but my-project from the" in findings(done, "project", "warning")
    assert "accepts BatchWriteSpans" in findings(done, TRACE, "ok")
    assert MARKER not in done.stdout


def test_credentials_of_a_machine_that_does_not_answer(place: Path) -> None:
    began = time.monotonic()
    with silent_backend() as silent:
        host = silent.removeprefix("http://")
        done = doctor(
            place, "--gcp", "--timeout", "0.2", OTEL_GOODPUT_EXPORTERS="gcp", OTEL_GOODPUT_GCP_ENDPOINT=DEAD,
            GCE_METADATA_HOST=host, GCE_METADATA_IP=host, NO_GCE_CHECK="",
        )  # fmt: skip
    assert "the search for them has not ended after 1.4 s" in findings(done, "credentials", "problem")
    assert time.monotonic() - began < 10


def test_a_user_who_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a random user id."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_123)
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    assert find({}) is None
