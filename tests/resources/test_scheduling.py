"""What an attempt waited for before its program ran, asked of a real server that stands in for Kubernetes'."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_server import HttpServer, Response, hang
from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._resources.kubernetes import (
    QUESTIONS_S,
    Cluster,
    Starts,
    Submission,
    read_pod,
    seek,
    waited,
    waits_of,
)
from otel_goodput.semconv import SCHEDULING_STAGES

from .api_server import ApiServer, break_off, drip, flood, serving
from .test_submission import JOBSET, POD, SET, T0, TOKEN, made

NS = 10**9
EVENTS = (
    "/api/v1/namespaces/ml/events"
    "?fieldSelector=involvedObject.kind%3DPod%2CinvolvedObject.uid%3Du-1%2F%26%20x&limit=200"
)
BEGAN = T0 + 100 * NS


def at(seconds: int) -> str:
    """A moment as Kubernetes writes it, seconds after ten o'clock."""
    return f"2024-05-01T10:{seconds // 60:02}:{seconds % 60:02}Z"


def event(reason: str, first: str | None, container: str = "trainer", precise: str | None = None) -> dict[str, Any]:
    place = f"spec.containers{{{container}}}" if container else ""
    return {
        "reason": reason,
        "involvedObject": {"kind": "Pod", "uid": "u-1/& x", **({"fieldPath": place} if place else {})},
        "firstTimestamp": first,
        "lastTimestamp": first,
        "eventTime": precise,
    }


# As a pod says it that was made at 0 s, scheduled at 30 s, and whose container runs since 90 s.
RUNNING: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"creationTimestamp": at(0), "uid": "u-1/& x", "name": "llama-0-0-x7k2p"},
    "status": {
        "phase": "Running",
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": at(40)},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": at(91)},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(30)},
        ],
        "containerStatuses": [
            {"name": "trainer", "restartCount": 0, "state": {"running": {"startedAt": at(90)}}, "lastState": {}}
        ],
    },
}
PULLED = {
    "kind": "EventList",
    "items": [
        event("Scheduled", None, "", "2024-05-01T10:00:30.250000Z"),
        event("Pulling", at(41), "sidecar"),
        event("Pulled", at(44), "sidecar"),
        event("Pulling", at(45)),
        event("Pulled", at(85)),
        event("Created", at(86)),
        event("Started", at(90)),
    ],
}


def pod(**changes: Any) -> dict[str, Any]:
    """The running pod, with another status of its container."""
    changed = copy.deepcopy(RUNNING)
    changed["status"]["containerStatuses"][0] |= changes
    return changed


@pytest.fixture
def api(http_server: HttpServer) -> ApiServer:
    return ApiServer(http_server, {})


@pytest.fixture
def cluster(api: ApiServer) -> Cluster:
    return Cluster("127.0.0.1", api.port, "ml", "llama-0-0-x7k2p", "", TOKEN, None)


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever happens, the token is in no log and on no terminal, and nothing is complained of."""
    caplog.set_level(logging.DEBUG)
    yield
    out, err = capfd.readouterr()
    assert "secret" not in caplog.text + out + err
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTAINER_NAME", raising=False)


def seconds(cluster: Cluster) -> dict[str, float]:
    return {stage: duration / NS for stage, duration in waits_of(cluster, BEGAN, timeout_s=20).items()}


def test_every_stage(cluster: Cluster, api: ApiServer) -> None:
    api.answers |= {POD: RUNNING, EVENTS: PULLED}
    assert seconds(cluster) == {"queued": 30, "image_pull": 40, "container_start": 20, "program_start": 10}
    assert api.paths == [POD, EVENTS]
    assert {request.headers["Accept"] for request in api.requests} == {"application/json"}
    assert {request.headers["Authorization"] for request in api.requests} == {f"Bearer {TOKEN}"}


def test_over_tls(cluster: Cluster, tmp_path: Path) -> None:
    with serving({POD: RUNNING, EVENTS: PULLED}, secured_in=tmp_path) as api:
        trusting = replace(cluster, port=api.port, authority=tmp_path / "cert.pem")
        assert sum(seconds(trusting).values()) == 100
        assert api.paths == [POD, EVENTS]


@pytest.mark.parametrize(
    "events",
    [(403, b'{"kind": "Status"}'), {"items": []}, {"items": None}, {"items": [None, 17, {}]}, (200, b"{"), break_off],
    ids=lambda answer: getattr(answer, "__name__", str(answer)[:40]),
)
def test_without_events_the_pull_is_part_of_the_start(cluster: Cluster, api: ApiServer, events: Any) -> None:
    api.answers |= {POD: RUNNING, EVENTS: events}
    assert seconds(cluster) == {"queued": 30, "container_start": 60, "program_start": 10}


def test_an_image_that_the_node_has_already(cluster: Cluster, api: ApiServer) -> None:
    api.answers |= {POD: RUNNING, EVENTS: {"items": [event("Pulled", at(41))]}}
    assert "image_pull" not in seconds(cluster)


def test_a_container_that_is_started_again_waits_since_its_end(cluster: Cluster, api: ApiServer) -> None:
    """It waited for no node and no image: that was the attempt before."""
    again = pod(restartCount=2, lastState={"terminated": {"finishedAt": at(50), "exitCode": 1}})
    api.answers |= {POD: again, EVENTS: PULLED}
    assert seconds(cluster) == {"container_start": 40, "program_start": 10}
    assert api.paths == [POD]


def test_a_program_that_is_started_again_in_its_container_has_waited_for_nothing(
    cluster: Cluster, api: ApiServer
) -> None:
    """As `while ! python train.py; do sleep 5; done` does: the pod still says how it waited the first time."""
    api.answers |= {POD: RUNNING, EVENTS: PULLED}
    assert waits_of(cluster, BEGAN, timeout_s=20, before=T0 + 95 * NS) == {}
    assert api.paths == [POD]
    waits = waits_of(cluster, BEGAN, timeout_s=20, before=T0 + 89 * NS)
    assert sum(waits.values()) == 100 * NS


def test_with_several_containers_the_name_is_required(
    cluster: Cluster, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = pod()
    other = {"name": "sidecar", "restartCount": 0, "state": {"running": {"startedAt": at(50)}}}
    several["status"]["containerStatuses"].insert(0, other)
    api.answers |= {POD: several, EVENTS: PULLED}
    assert read_pod(several).container == ""
    several["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "trainer"}
    assert seconds(cluster)["container_start"] == 20
    monkeypatch.setenv("CONTAINER_NAME", "sidecar")
    assert seconds(cluster) == {"queued": 30, "image_pull": 3, "container_start": 17, "program_start": 50}


def test_it_asks_again_until_the_node_has_reported_the_start(cluster: Cluster, api: ApiServer) -> None:
    creating = pod(state={"waiting": {"reason": "ContainerCreating"}})
    answers, slept = [creating, creating, RUNNING], []
    api.answers |= {POD: lambda _: whole(answers.pop(0)), EVENTS: PULLED}
    assert waits_of(cluster, BEGAN, slept.append, 20)["program_start"] == 10 * NS
    assert (api.paths, slept) == ([POD, POD, POD, EVENTS], [0.0, 2.0, 8.0])


def test_it_asks_no_more_than_three_times(cluster: Cluster, api: ApiServer) -> None:
    api.answers |= {POD: pod(state={"waiting": {}})}
    slept: list[float] = []
    assert waits_of(cluster, BEGAN, slept.append, 20) == {"queued": 30 * NS}
    assert len(api.paths) == len(QUESTIONS_S) and sum(slept) == QUESTIONS_S[-1]


def test_a_busy_server_is_asked_again(cluster: Cluster, api: ApiServer) -> None:
    """It may have to answer all that were started at once."""
    answers = [hang, lambda _: whole(RUNNING)]
    api.answers |= {POD: lambda request: answers.pop(0)(request), EVENTS: PULLED}
    slept: list[float] = []
    assert waits_of(cluster, BEGAN, slept.append, 2)["container_start"] == 20 * NS
    assert (api.paths, slept) == ([POD, POD, EVENTS], [0.0, 2.0])


def test_nobody_listens(cluster: Cluster, port: int) -> None:
    slept: list[float] = []
    assert waits_of(replace(cluster, port=port), BEGAN, slept.append) == {}
    assert len(slept) == len(QUESTIONS_S)


def test_who_is_refused_does_not_ask_again(cluster: Cluster, api: ApiServer) -> None:
    api.answers |= {POD: (403, b'{"kind": "Status", "message": "secret"}')}
    assert waits_of(cluster, BEGAN, timeout_s=20) == {}
    assert api.paths == [POD]


@pytest.mark.parametrize("fault", [hang, drip, flood, break_off])
@pytest.mark.parametrize("where", [POD, EVENTS])
def test_an_answer_that_does_not_come(cluster: Cluster, api: ApiServer, fault: Any, where: str) -> None:
    api.answers |= {POD: RUNNING, EVENTS: PULLED, where: fault}
    begin = time.monotonic()
    waits = waits_of(cluster, BEGAN, lambda _: None, 1.5)
    assert time.monotonic() - begin < 15
    without_pull = {"queued": 30 * NS, "container_start": 60 * NS, "program_start": 10 * NS}
    assert waits == ({} if where == POD else without_pull)


@pytest.mark.parametrize(
    "status",
    [
        None,
        [],
        {"conditions": 1, "containerStatuses": {"a": 1}},
        {"conditions": [None, {"type": "PodScheduled", "status": "True", "lastTransitionTime": 17}]},
        {"conditions": [{"type": "PodScheduled", "status": "False", "lastTransitionTime": at(30)}]},
        {"containerStatuses": [{"name": ["x"], "state": []}, 3, {"state": {"running": []}}]},
        {"containerStatuses": [{"name": "trainer", "restartCount": "many", "state": {"running": {"startedAt": "x"}}}]},
    ],
)
def test_an_odd_status_says_nothing(cluster: Cluster, api: ApiServer, status: Any) -> None:
    api.answers |= {POD: {**RUNNING, "status": status}}
    assert waits_of(cluster, BEGAN, lambda _: None, 20) == {}


MOMENT = st.none() | st.integers(-(10**18), 2 * 10**18)
STARTS = st.builds(Starts, st.just("u"), st.just("c"), MOMENT, MOMENT, MOMENT, MOMENT, st.integers(0, 2))


@given(STARTS, st.none() | st.tuples(st.integers(0, 10**18), st.integers(0, 10**18)), st.integers(0, 2 * 10**18))
def test_no_wait_is_negative_and_none_counts_twice(starts: Starts, pulled: tuple[int, int] | None, began: int) -> None:
    waits = waited(starts, pulled, began)
    assert set(waits) <= set(SCHEDULING_STAGES)
    assert all(duration >= 0 for duration in waits.values())
    first = [moment for moment in (starts.made, starts.scheduled, starts.started, began) if moment is not None]
    if len(first) == 4 and first == sorted(first) and not starts.restarts:
        assert sum(waits.values()) == began - first[0]


def whole(answer: dict[str, Any]) -> Any:
    return Response(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


# --- in the background, after the submission --------------------------------------------------------------------------


def test_it_is_asked_after_the_submission(cluster: Cluster, api: ApiServer) -> None:
    api.answers |= {JOBSET: made(SET), POD: RUNNING, EVENTS: PULLED}
    received: list[Any] = []
    named = replace(cluster, jobset="llama")
    thread = seek(
        received.append, lambda: named, 20, then=lambda one: received.append(waits_of(one, BEGAN, timeout_s=20))
    )
    assert thread is not None
    thread.join(60)
    assert received[0] == Submission(T0, "JobSet")
    assert sum(received[1].values()) == 100 * NS
    assert api.paths == [JOBSET, POD, EVENTS]


def test_a_known_submission_is_not_requested(cluster: Cluster, api: ApiServer) -> None:
    api.answers |= {POD: RUNNING, EVENTS: PULLED}
    received: list[Any] = []
    thread = seek(None, lambda: cluster, then=lambda one: received.append(waits_of(one, BEGAN, timeout_s=20)))
    assert thread is not None
    thread.join(60)
    assert len(received) == 1 and api.paths == [POD, EVENTS]
