"""When the job was submitted, asked of a real server that stands in for Kubernetes'."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_server import HttpServer, hang

from otel_goodput._resources.kubernetes import Cluster, Submission, seek, submission_of, this_cluster
from otel_goodput._runtime import guard

from .api_server import STRANGER, ApiServer, break_off, certificate, drip, flood, serving

POD = "/api/v1/namespaces/ml/pods/llama-0-0-x7k2p"
JOBSET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/llama"
JOB = "/apis/batch/v1/namespaces/ml/jobs/llama-workers-0"
TOKEN = "eyJhbGciOi.very.secret"
T0 = 1_714_557_600 * 10**9  # 2024-05-01T10:00:00Z
SET, POD_MADE, JOB_MADE = "2024-05-01T10:00:00Z", "2024-05-01T11:00:00Z", "2024-05-01T10:30:00Z"
HOUR = 3600 * 10**9


def made(when: Any) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "metadata": {"creationTimestamp": when}}


OF_JOBSET = {"metadata": {"creationTimestamp": POD_MADE, "labels": {"jobset.sigs.k8s.io/jobset-name": "llama"}}}
OF_JOB = {"metadata": {"creationTimestamp": POD_MADE, "labels": {"batch.kubernetes.io/job-name": "llama-workers-0"}}}


@pytest.fixture
def api(http_server: HttpServer) -> ApiServer:
    return ApiServer(http_server, {})


@pytest.fixture
def cluster(api: ApiServer) -> Cluster:
    return Cluster("127.0.0.1", api.port, "ml", "llama-0-0-x7k2p", "", TOKEN, None)


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever happens, the token is in no log and on no terminal."""
    caplog.set_level(logging.DEBUG)
    yield
    out, err = capfd.readouterr()
    assert "secret" not in caplog.text + out + err


# --- which object -----------------------------------------------------------------------------------------------------


def test_the_jobset_of_the_pod(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: OF_JOBSET, JOBSET: made(SET)}
    assert submission_of(cluster) == Submission(T0, "JobSet")
    assert api.paths == [POD, JOBSET]
    for request in api.requests:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        assert request.headers["Host"] == f"127.0.0.1:{api.port}"


def test_the_jobset_that_the_environment_names(api: ApiServer, cluster: Cluster) -> None:
    """A pod of an indexed Job has another host name than its own: it could not be asked."""
    api.answers |= {JOBSET: made(SET)}
    assert submission_of(replace(cluster, jobset="llama")) == Submission(T0, "JobSet")
    assert api.paths == [JOBSET]


def test_the_job_of_the_pod(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: OF_JOB, JOB: made(JOB_MADE)}
    assert submission_of(cluster) == Submission(T0 + HOUR // 2, "Job")


def test_a_jobset_that_may_not_be_read_leaves_the_pod(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: OF_JOBSET, JOBSET: (403, b'{"kind": "Status"}')}
    assert submission_of(replace(cluster, jobset="llama")) == Submission(T0 + HOUR, "Pod")
    assert api.paths == [JOBSET, POD]  # and is not asked for twice


def test_a_pod_alone(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: made(POD_MADE)}
    assert submission_of(cluster) == Submission(T0 + HOUR, "Pod")


def test_names_stay_in_their_place(api: ApiServer, cluster: Cluster) -> None:
    assert submission_of(replace(cluster, pod="../../../secrets?x#y", jobset="a b\r\nX: y")) is None
    assert api.paths == [
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/a%20b%0D%0AX%3A%20y",
        "/api/v1/namespaces/ml/pods/..%2F..%2F..%2Fsecrets%3Fx%23y",
    ]


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        (401, b"Unauthorized"),
        (403, b'{"metadata": {"creationTimestamp": "2024-05-01T10:00:00Z"}}'),
        (404, b""),
        (500, b"oops"),
        (302, b""),
        (200, b"<html><body>Sign in</body></html>"),
        (200, b""),
        (200, b"\xff\xfe"),
        (200, b"[" * 100_000),
        (200, b'["metadata"]'),
        (200, b'{"metadata": []}'),
        (200, b'{"metadata": {"labels": [], "creationTimestamp": null}}'),
        made(None),
        made(17),
        made("yesterday"),
        made("2024-05-01T10:00:00"),
        made("inf"),
        made("9" * 400),
        break_off,
        flood,
    ],
    ids=lambda answer: getattr(answer, "__name__", str(answer)[:40]),
)
def test_a_useless_answer_says_nothing(
    api: ApiServer, cluster: Cluster, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    api.answers |= {POD: answer}
    assert submission_of(cluster, 5) is None
    assert caplog.records == []


def test_odd_labels_do_no_harm(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: {"metadata": {"creationTimestamp": SET, "labels": {"job-name": 17}}}}
    assert submission_of(cluster) == Submission(T0, "Pod")


@pytest.mark.parametrize("fault", [hang, drip])
@pytest.mark.parametrize("where", [POD, JOBSET])
def test_an_answer_that_does_not_come(api: ApiServer, cluster: Cluster, fault: Any, where: str) -> None:
    """One limit over all questions, for reads that each are quick too."""
    api.answers |= {POD: OF_JOBSET, JOBSET: made(SET), where: fault}
    begin = time.monotonic()
    submission = submission_of(cluster, 0.3)
    assert 0.25 < time.monotonic() - begin < 2
    assert submission == (None if where == POD else Submission(T0 + HOUR, "Pod"))


def test_nobody_listens(cluster: Cluster, port: int) -> None:
    assert submission_of(replace(cluster, port=port)) is None


def test_somebody_listens_who_never_accepts(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as deaf:
        begin = time.monotonic()
        assert submission_of(replace(cluster, port=deaf.getsockname()[1]), 0.2) is None
        assert time.monotonic() - begin < 2


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_over_tls(cluster: Cluster, tmp_path: Path) -> None:
    with serving({POD: made(SET)}, secured_in=tmp_path) as api:
        trusting = replace(cluster, port=api.port, authority=tmp_path / "cert.pem")
        assert submission_of(trusting, 5) == Submission(T0, "Pod")


def test_the_token_is_for_nobody_else(cluster: Cluster, tmp_path: Path) -> None:
    """Neither for whom another authority vouches for, nor for another host, nor without encryption."""
    with serving({POD: made(SET)}, secured_in=tmp_path) as api:
        stranger, certified = certificate(tmp_path / "stranger.pem", STRANGER), tmp_path / "cert.pem"
        assert submission_of(replace(cluster, port=api.port, authority=stranger), 5) is None
        assert submission_of(replace(cluster, port=api.port, host="localhost", authority=certified), 5) is None
        (tmp_path / "broken.pem").write_text("no certificate")
        assert submission_of(replace(cluster, port=api.port, authority=tmp_path / "broken.pem"), 5) is None
        assert api.requests == []
    with serving({POD: made(SET)}) as plain:
        assert submission_of(replace(cluster, port=plain.port, authority=tmp_path / "cert.pem"), 0.5) is None
        assert plain.requests == []


# --- where this process is --------------------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "namespace").write_text("ml")
    certificate(folder / "ca.crt")
    return folder


INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443", "HOSTNAME": "llama-0"}


def test_inside_a_pod(account: Path) -> None:
    named = this_cluster(INSIDE, account)
    assert named == Cluster("10.0.0.1", 6443, "ml", "llama-0", "", TOKEN, account / "ca.crt")
    assert "secret" not in repr(named) and "secret" not in str(named)
    elsewhere = {"POD_NAME": "llama-0-x", "POD_NAMESPACE": "other", "JOBSET_NAME": "llama"}
    more = this_cluster({**INSIDE, **elsewhere}, account)
    assert more is not None and (more.pod, more.namespace, more.jobset) == ("llama-0-x", "other", "llama")


def test_outside_of_one(account: Path, tmp_path: Path) -> None:
    assert this_cluster({}, account) is None
    assert this_cluster({**INSIDE, "KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"}, account) is None
    assert this_cluster(INSIDE, tmp_path) is None


@pytest.mark.parametrize("token", [b"", b"a\r\nX-Evil: b", b"\xff\xfe", "tökén".encode()])
def test_a_token_that_is_none(account: Path, token: bytes) -> None:
    (account / "token").write_bytes(token)
    assert this_cluster(INSIDE, account) is None


def test_no_authority_no_question(account: Path) -> None:
    (account / "ca.crt").unlink()
    assert this_cluster(INSIDE, account) is None


# --- in the background ------------------------------------------------------------------------------------------------


def test_nobody_waits_for_it(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: hang}
    received: list[Submission] = []
    begin = time.monotonic()
    thread = seek(received.append, lambda: cluster, 0.3)
    assert time.monotonic() - begin < 0.2
    assert thread is not None and thread.daemon
    thread.join(5)
    assert not thread.is_alive() and received == []


def test_what_is_found_is_handed_over(api: ApiServer, cluster: Cluster) -> None:
    api.answers |= {POD: OF_JOBSET, JOBSET: made(SET)}
    received: list[tuple[Submission, str]] = []
    thread = seek(lambda one: received.append((one, threading.current_thread().name)), lambda: cluster)
    assert thread is not None
    thread.join(5)
    assert received == [(Submission(T0, "JobSet"), "otel-goodput-submission")]


def test_outside_of_kubernetes_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    before = threading.active_count()
    assert seek(lambda _: None) is None
    assert threading.active_count() == before


def test_in_a_pod_without_an_account(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    received: list[Submission] = []
    thread = seek(received.append, lambda: this_cluster(account=Path("/nowhere")))
    assert thread is not None
    thread.join(5)
    assert received == [] and caplog.records == []


def test_a_failing_callback_is_contained(
    api: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "0")
    monkeypatch.setattr(guard, "contained", guard.contained.copy())
    guard.contained.pop("submission time", None)
    api.answers |= {POD: made(SET)}

    def fail(_: Submission) -> None:
        raise RuntimeError("no more")

    thread = seek(fail, lambda: cluster)
    assert thread is not None
    thread.join(5)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "submission time failed; training goes on: no more"
    ]


def test_where_no_thread_can_be_started_nobody_is_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", fail)
        assert seek(lambda _: None, lambda: cluster) is None
    assert "can't start new thread" in caplog.text
