"""Jobs with credentials that are good, run out, are revoked, refused, missing; and what stands between them and Google.

Each problem is reported once for each service with what to do about it, and never with a secret in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warm
from emulators.google import GoogleEmulator
from emulators.html_proxy import HtmlProxy
from emulators.token_server import TokenServer
from waits import until

from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT

from .arrivals import check_whole, cloud_spans, differences, otlp_spans
from .jobs import End, Job

SERVICES = ("Cloud Trace", "Cloud Monitoring", "Telemetry API")
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "100"}  # ms
METHODS = {"BatchWriteSpans", "CreateTimeSeries", "OtlpTraces", "OtlpMetrics"}


class Account:
    """A service account with its token server, and an emulator that takes its tokens only."""

    def __init__(self, tokens: TokenServer, google: GoogleEmulator, folder: Path) -> None:
        self.tokens, self.google, self.folder = tokens, google, folder
        self.key = tokens.key_file(folder / "key.json")
        tokens.tokens.signed = False  # those that the key signs itself: one could not revoke them

    def job(self, **options: object) -> Job:
        environ = {
            **OFTEN,
            OTEL_GOODPUT_GCP_ENDPOINT.name: self.google.endpoint,
            OTEL_GOODPUT_GCP_PROJECT.name: None,  # the key names it
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": self.google.certificate,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key),
        }
        return Job(self.folder / "job", environ, **options)

    def served(self) -> bool:
        """Whether every service has answered."""
        return {request.method for request in self.google.requests if request.code == "OK"} >= METHODS

    def check(self, end: End) -> None:
        """All has arrived, and no secret is logged."""
        check_whole(cloud_spans(self.google))
        check_whole(otlp_spans(self.google, "llama"))
        assert not differences(self.google, end.account)
        assert end.status == 0
        self.check_secrets(end)

    def check_secrets(self, end: End) -> None:
        key = json.loads(self.key.read_text())
        secrets = [*key["private_key"].splitlines()[1:-1], *self.tokens.tokens.expiries, "Bearer", "PRIVATE KEY"]
        assert not [secret for secret in secrets if secret in end.errors]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    with TokenServer() as tokens, GoogleEmulator(tls=True, tokens=tokens.tokens) as google:
        yield Account(tokens, google, tmp_path)


def check_warned_once(end: End, *words: str) -> None:
    """A line for each service that has these words, one where spans or the last metrics stay behind, and no other."""
    kept = [line for line in end.warnings if "have not reached every exporter" in line]
    assert all("otel-goodput recover" in line for line in kept)
    last = [line for line in end.warnings if "the last metrics of this attempt have not reached" in line]
    assert len(kept) <= 1 and len(last) <= 1 and len(end.warnings) == len(SERVICES) + len(kept) + len(last), end.errors
    for service in SERVICES:
        (line,) = (line for line in end.warnings if line.startswith(f"WARNING otel_goodput: {service} "))
        assert all(word in line for word in words), line


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_everything_arrives_over_tls(account: Account) -> None:
    with account.job() as job:
        end = job.end()
    account.check(end)
    assert not end.errors and not account.google.refusals


def test_everything_arrives_where_no_thread_can_be_started_at_exit(account: Account) -> None:
    with account.job(threadless=True) as job:
        end = job.end()
    account.check(end)
    assert not end.errors and not account.google.refusals


def test_a_token_that_expires_is_renewed_before_it_does(account: Account) -> None:
    account.tokens.lifetime = 1.0
    with account.job(unit=0.05) as job:
        end = job.end()
    account.check(end)
    assert not end.errors and not account.google.refusals
    assert account.tokens.issued > 2


def test_a_token_that_is_revoked_is_renewed(account: Account) -> None:
    with account.job(pauses=["middle"]) as job:
        job.wait_for("middle")
        until(account.served)
        account.tokens.tokens.clear()
        job.go_on()
        end = job.end()
    account.check(end)
    assert not end.errors
    assert {refusal.rule for refusal in account.google.refusals} == {"auth"}
    assert len(account.google.refusals) <= 5


def test_a_key_that_is_refused_for_a_while(account: Account) -> None:
    account.tokens.fail()
    with account.job(unit=0.02, pauses=["middle"]) as job:
        job.wait_for("middle")
        until(lambda: all(service in job.errors for service in SERVICES))
        account.tokens.heal()
        job.go_on()
        end = job.end()
    account.check(end)
    check_warned_once(end, "invalid_grant", "GOOGLE_APPLICATION_CREDENTIALS", "Training goes on")


IMPORTED_MEANWHILE = """
import threading, warnings
import google.auth
from otel_goodput.exporters.google.connection import Connection

looking, imported = threading.Event(), threading.Event()

def look(**_):
    with warnings.catch_warnings():  # as google.auth does
        looking.set()
        imported.wait(30)
    raise google.auth.exceptions.DefaultCredentialsError("none")

def import_meanwhile():
    looking.wait(30)
    import requests
    imported.set()

google.auth.default = look
thread = threading.Thread(target=import_meanwhile)
thread.start()
try:
    Connection({}).credentials()
except google.auth.exceptions.DefaultCredentialsError:
    thread.join()
    from urllib3.exceptions import DependencyWarning
    print(any(what == "ignore" and kind is DependencyWarning for what, _, kind, *_ in warnings.filters))
"""


def test_what_is_imported_while_credentials_are_looked_for() -> None:
    """What Google's libraries have silenced stays silent: nothing of theirs appears between the user's lines."""
    done = warm.run([sys.executable, "-c", IMPORTED_MEANWHILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


# --- none, or none for this project -----------------------------------------------------------------------------------


def test_no_credentials_at_all(tmp_path: Path) -> None:
    """Neither a file nor a metadata server; and one that is configured but does not exist."""
    home = tmp_path / "home"
    home.mkdir()
    absent = {"GCE_METADATA_HOST": "127.0.0.1:9", "GCE_METADATA_IP": "127.0.0.1:9", "HOME": str(home)}
    cases = {"known": {**absent, "NO_GCE_CHECK": "true"}, "looked for": absent}

    def live(case: str) -> End:
        with Job(tmp_path / case, {**OFTEN, **cases[case]}) as job:
            return job.end()

    with ThreadPoolExecutor(len(cases)) as pool:
        ends = dict(zip(cases, pool.map(live, cases), strict=True))
    for end in ends.values():
        check_warned_once(end, "default credentials were not found", "gcloud auth application-default login")
        assert end.status == 0
    assert ends["known"].seconds < 4
    assert ends["looked for"].seconds < 9


@pytest.mark.parametrize(
    ("code", "project", "words"),
    [
        ("", "other", ["PERMISSION_DENIED", "project other", "roles/"]),
        ("", None, ["no Google Cloud project is known", OTEL_GOODPUT_GCP_PROJECT.name]),
        ("NOT_FOUND", "test-project", ["NOT_FOUND", "'test-project'", OTEL_GOODPUT_GCP_PROJECT.name]),
    ],
)
def test_the_wrong_project(
    google: GoogleEmulator, tmp_path: Path, code: str, project: str | None, words: list[str]
) -> None:
    if code:
        google.fail("*", code, None)
    with Job(tmp_path, {OTEL_GOODPUT_GCP_PROJECT.name: project}) as job:
        end = job.end()
    check_warned_once(end, *words)
    assert end.status == 0 and end.seconds < 5
    assert len(google.requests) <= 10


@pytest.mark.parametrize("retry_after", [None, 0.8])
def test_a_quota_that_is_used_up_for_a_while(google: GoogleEmulator, tmp_path: Path, retry_after: float | None) -> None:
    google.fail("*", "RESOURCE_EXHAUSTED", 6, retry_after_s=retry_after)
    with Job(tmp_path) as job:
        end = job.end()
    check_whole(cloud_spans(google))
    check_whole(otlp_spans(google, "llama"))
    assert not differences(google, end.account)
    assert end.status == 0 and not end.errors


# --- a proxy ----------------------------------------------------------------------------------------------------------


def test_a_proxy_that_answers_in_their_place(account: Account, tmp_path: Path) -> None:
    """As the address of the services, without and with TLS, and as what HTTPS goes through."""
    with HtmlProxy() as proxy:
        key = {"GOOGLE_APPLICATION_CREDENTIALS": str(account.key), OTEL_GOODPUT_GCP_PROJECT.name: "test-project"}
        cases: dict[str, dict[str, str | None]] = {
            "plaintext": {**key, OTEL_GOODPUT_GCP_ENDPOINT.name: proxy.endpoint},
            "TLS": {**key, OTEL_GOODPUT_GCP_ENDPOINT.name: proxy.endpoint.removeprefix("http://")},
            "proxy": {**key, "https_proxy": proxy.endpoint, "no_proxy": "127.0.0.1"},
        }

        def live(case: str) -> End:
            with Job(tmp_path / case, {"OTEL_GOODPUT_GRACE_PERIOD": "3", **cases[case]}, warm=True) as job:
                return job.end()

        with ThreadPoolExecutor(len(cases)) as pool:
            ends = list(pool.map(live, cases))
        assert any(line.startswith("CONNECT monitoring.googleapis.com:443") for line in proxy.requests)
    for end in ends:
        check_warned_once(end, "UNAVAILABLE", "such as a proxy, answers instead")
        assert "<html" not in end.errors
        assert end.status == 0 and end.stopping <= 3.5
        account.check_secrets(end)
