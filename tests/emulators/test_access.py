"""Who gets in: tokens, certificates, service accounts; and a proxy in the way."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
import warm
from google.api_core.exceptions import NotFound, ServiceUnavailable, Unauthenticated
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.oauth2.service_account import Credentials

from emulators.clients import metric_client
from emulators.examples import PROJECT, series
from emulators.google import GoogleEmulator
from emulators.html_proxy import HtmlProxy
from emulators.token_server import TokenServer

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def test_a_token_must_be_known() -> None:
    tokens = {"one", "two"}
    with GoogleEmulator(tokens=tokens) as emulator, metric_client(emulator.endpoint) as client:

        def ask(*metadata: tuple[str, str]) -> None:
            client.get_metric_descriptor(name=f"{PROJECT}/metricDescriptors/m", metadata=metadata)

        for metadata in [(), (("authorization", "Bearer three"),), (("authorization", "one"),)]:
            with pytest.raises(Unauthenticated):
                ask(*metadata)
        with pytest.raises(NotFound):
            ask(("authorization", "Bearer one"))
        tokens.discard("one")
        with pytest.raises(Unauthenticated):
            ask(("authorization", "Bearer one"))
        assert [refusal.rule for refusal in emulator.refusals] == ["auth"] * 4


# A process of its own, since gRPC reads the roots that it trusts only once.
TRAINER = """
import sys
import google.auth
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport

endpoint, scope = sys.argv[1:]
credentials, project = google.auth.default(scopes=[scope] if scope else None)
channel = MetricServiceGrpcTransport.create_channel(endpoint, credentials=credentials)
client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
print(project, len(list(client.list_metric_descriptors(name=f"projects/{project}"))))
"""


@pytest.mark.parametrize("scope", ["", *SCOPES], ids=["signed", "exchanged"])
def test_a_service_account_gets_in(tmp_path: Path, scope: str) -> None:
    """With a token that its key signed or that it was exchanged for, over TLS, with a certificate that is trusted."""
    with TokenServer() as issuer, GoogleEmulator(tls=True, tokens=issuer.tokens) as emulator:
        environment = {
            **os.environ,
            "GOOGLE_APPLICATION_CREDENTIALS": str(issuer.key_file(tmp_path / "key.json")),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": emulator.certificate,
        }
        command = [sys.executable, "-c", TRAINER, emulator.endpoint, scope]
        done = warm.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.returncode) == ("test-project 11\n", 0), done.stderr
        assert issuer.issued == bool(scope)
        assert [request.code for request in emulator.requests] == ["OK"]
    assert not Path(emulator.certificate).exists()


def test_the_certificate_is_for_this_host() -> None:
    with GoogleEmulator(tls=True) as emulator:
        roots = Path(emulator.certificate).read_bytes()
        for host in ("localhost", "127.0.0.1"):
            target = f"{host}:{emulator.endpoint.rpartition(':')[2]}"
            with grpc.secure_channel(target, grpc.ssl_channel_credentials(roots)) as channel:
                grpc.channel_ready_future(channel).result(timeout=10)


def test_tokens_expire_and_are_revoked(tmp_path: Path) -> None:
    with TokenServer(lifetime=3600) as issuer:
        account = Credentials.from_service_account_file(str(issuer.key_file(tmp_path / "key")), scopes=SCOPES)
        account.refresh(Request())
        assert account.token in issuer.tokens
        issuer.tokens.clear()
        assert account.token not in issuer.tokens
        issuer.lifetime = 0
        account.refresh(Request())
        assert account.token not in issuer.tokens


def test_a_key_that_is_no_good_gets_no_token(tmp_path: Path) -> None:
    with TokenServer() as issuer, TokenServer() as other:
        account = Credentials.from_service_account_file(str(issuer.key_file(tmp_path / "key")), scopes=SCOPES)
        account._token_uri = other.endpoint
        with pytest.raises(RefreshError, match="invalid_grant: Invalid JWT"):
            account.refresh(Request())
        account._token_uri = issuer.endpoint
        issuer.fail()
        with pytest.raises(RefreshError, match="invalid_grant: Invalid JWT Signature"):
            account.refresh(Request())
        issuer.fail(400, "<html>busy</html>")
        with pytest.raises(RefreshError, match="busy"):
            account.refresh(Request())
        issuer.heal()
        account.refresh(Request())
        assert (issuer.issued, other.issued) == (1, 0)


def test_a_proxy_answers_in_html(monkeypatch: pytest.MonkeyPatch) -> None:
    with HtmlProxy() as proxy:
        with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(f"{proxy.endpoint}/v1/traces"):
            pass
        with caught.value as answer:
            assert (answer.code, answer.headers.get_content_type()) == (403, "text/html")
            assert b"Access denied" in answer.read()
        with metric_client(proxy.endpoint) as client, pytest.raises(ServiceUnavailable):
            client.create_time_series(name=PROJECT, time_series=[series()], timeout=5)
        monkeypatch.setenv("https_proxy", proxy.endpoint)
        monkeypatch.setenv("no_proxy", "")
        with metric_client("monitoring.googleapis.com:443") as client, pytest.raises(ServiceUnavailable):
            client.create_time_series(name=PROJECT, time_series=[series()], timeout=5)
    assert proxy.requests[0] == "GET /v1/traces HTTP/1.1"
    assert proxy.requests[1] == "PRI * HTTP/2.0"
    assert proxy.requests[-1] == "CONNECT monitoring.googleapis.com:443 HTTP/1.1"
