"""``otel-goodput reason PLACE --import FILE``: audit log entries and events, over runs that were really killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_goodput._journal.sidecars import checked_json, read_json

from ..commands import failed, finished, goodput, killed, succeeded
from .logs import NS, audit, event, listed, losses, middle, new_event, written

# What detection finds on a machine of Compute Engine, and in a pod.
MACHINE = (
    "host.id=184448819,host.name=vm-1,cloud.provider=gcp,cloud.account.id=p,cloud.availability_zone=europe-west1-c"
)
POD = "k8s.pod.name=train-0,k8s.namespace.name=team,k8s.node.name=n-1,k8s.pod.uid=uid-of-train-0"
MINUTE = 60 * NS


def made(place: Path, resource: str) -> Path:
    """A run of three attempts; the first two, which were killed, ran on what `resource` says."""
    variables = {"OTEL_RESOURCE_ATTRIBUTES": resource} if resource else {}
    killed("job", place, **variables)
    killed("job", place, 6, 12, **variables)
    finished("job", place, 8, 14, **variables)
    return place / "job"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("machine"), MACHINE)


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pod"), POD)


@pytest.fixture(scope="module")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("nameless"), "")


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Gives a copy of one of those runs, to be written to."""
    return lambda name: Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "runs" / "job"))


def reported(folder: Path) -> dict[int, tuple[str, str | None]]:
    report = json.loads(succeeded(goodput("report", folder, "--json")))
    return {one["attempt"]: (one["reason"], one["said_by"]) for one in report["disruption_list"]}


def imported(folder: Path, text: str, *arguments: str) -> str:
    return succeeded(goodput("reason", folder, "--import", "-", *arguments, text=text))


def test_an_audit_log(own: Callable[[str], Path], tmp_path: Path) -> None:
    folder = own("machine")
    second, third = losses(folder)[2], losses(folder)[3]
    log = tmp_path / "audit.json"
    log.write_text(
        json.dumps(
            [
                audit("compute.instances.preempted", middle(second)),
                audit("compute.instances.automaticRestart", middle(second)),
                audit("compute.instances.terminateOnHostMaintenance", middle(third)),
                audit("v1.compute.instances.delete", middle(third), status={"code": 7, "message": "PERMISSION_DENIED"}),
                audit("compute.instances.hostError", third.time + NS),  # the job ran
                {"textPayload": "hello", "logName": "projects/p/logs/syslog", "timestamp": written(middle(second))},
            ]
        )
    )
    would = succeeded(goodput("reason", folder, "--import", log, "--dry-run"))
    assert "would be recorded" in would
    assert reported(folder) == {2: ("crash", None), 3: ("crash", None)}

    output = succeeded(goodput("reason", folder, "--import", log))
    assert output.splitlines()[-1] == (
        "Google Cloud audit log: 6 entries, 2 matched, 1 matched no disruption, 2 that give no reason, 1 "
        "unreadable or from another log"
    )
    assert output.count("matched by name; originally crash") == 2
    expected = {
        2: ("preemption", "cloud audit log: compute.instances.preempted, system@google.com"),
        3: ("maintenance", "cloud audit log: compute.instances.terminateOnHostMaintenance, system@google.com"),
    }
    assert reported(folder) == expected
    path = folder / "journal" / "disruptions.reasons"
    before = path.read_bytes()
    assert succeeded(goodput("reason", folder, "--import", log)).count("nothing new") == 2
    assert (path.read_bytes(), reported(folder)) == (before, expected)


def test_events_of_a_cluster(own: Callable[[str], Path]) -> None:
    folder = own("pod")
    second, third = losses(folder)[2], losses(folder)[3]
    text = listed(
        event("Killing", middle(second)),
        event("NodeNotReady", middle(second), "Node", "n-1"),
        event("BackOff", middle(second)),
        new_event("Preempted", middle(second)),
        event("Preempted", middle(third), name="train-1"),  # of another pod
        event("Shutdown", middle(third), "Node", "n-1"),
        event("FailedScheduling", middle(third)),
    )
    output = imported(folder, text)
    assert "7 entries, 3 matched, 1 matched no disruption, 3 that give no reason" in output
    assert reported(folder) == {
        2: ("preemption", "kubernetes event: Preempted Pod/team/train-0"),
        3: ("signal", "kubernetes event: Shutdown Node/n-1"),
    }
    # A log that tells less changes nothing, one that tells more does.
    imported(folder, listed(event("NodeNotReady", middle(second), "Node", "n-1")))
    imported(folder, listed(event("OOMKilling", middle(third), "Node", "n-1")))
    assert {at: reason for at, (reason, _) in reported(folder).items()} == {2: "preemption", 3: "crash"}


@pytest.mark.parametrize(
    ("instance", "number", "counts"),
    [
        ("vm-1", "184448819", True),
        ("vm-2", "99", False),
        ("vm-1", "99", False),
        ("vm-1", "", True),
        ("vm-2", "", False),
    ],
)
def test_of_another_machine(own: Callable[[str], Path], instance: str, number: str, counts: bool) -> None:
    folder = own("machine")
    at = middle(losses(folder)[2])
    output = imported(folder, json.dumps([audit("compute.instances.preempted", at, instance, number)]))
    assert ("matched by name" in output) is counts
    assert reported(folder)[2][0] == ("preemption" if counts else "crash")


def test_where_no_names_are_known(own: Callable[[str], Path]) -> None:
    folder = own("nameless")
    text = json.dumps([audit("compute.instances.preempted", middle(losses(folder)[2]))])
    assert "0 matched, 1 matched no disruption" in imported(folder, text, "--named")
    assert reported(folder)[2] == ("crash", None)
    assert "matched by time only" in imported(folder, text)
    assert reported(folder)[2][0] == "preemption"
    assert "matched by time only" in succeeded(goodput("report", folder))


def test_of_several_processes_one_is_enough(own: Callable[[str], Path]) -> None:
    folder = own("machine")
    at = middle(losses(folder)[2])
    about = json.dumps([audit("compute.instances.preempted", at, "vm-2", "99")])
    for path in folder.glob("journal/*-p0000.facts"):
        facts = read_json(path)
        facts["resource"]["goodput.process.count"] = 2
        path.write_bytes(checked_json(facts))
    # Process 1 left nothing: it may have run there.
    assert "matched by time only" in imported(folder, about, "--dry-run")
    for attempt, machine in ((0, "vm-2"), (1, "vm-3")):
        facts = read_json(folder / f"journal/a{attempt:04d}-p0000.facts")
        facts["process"] = 1
        facts["resource"] |= {"host.id": {"vm-2": "99", "vm-3": "98"}[machine], "host.name": machine}
        (folder / f"journal/a{attempt:04d}-p0001.facts").write_bytes(checked_json(facts))
    assert "matched by name" in imported(folder, about)
    assert reported(folder)[2][0] == "preemption"
    late = json.dumps([audit("compute.instances.preempted", middle(losses(folder)[3]), "vm-2", "99")])
    assert "0 matched" in imported(folder, late)  # the second attempt ran elsewhere


@pytest.mark.parametrize(
    ("before_s", "arguments", "counts"),
    [(1, (), True), (59, (), True), (70, (), False), (70, ("--margin", "2m"), True), (1, ("--margin", "500ms"), False)],
)
def test_a_notice_comes_before_the_end(
    own: Callable[[str], Path], before_s: int, arguments: tuple[str, ...], counts: bool
) -> None:
    folder = own("machine")
    at = losses(folder)[2].died - before_s * NS
    output = imported(folder, json.dumps([audit("compute.instances.preempted", at)]), *arguments)
    assert ("1 matched, 0 matched no disruption" in output) is counts
    # It counts for the first of the outages in whose margin it is.
    assert {at for at, (reason, _) in reported(folder).items() if reason == "preemption"} == ({2} if counts else set())


def test_a_machine_that_is_stopped_after_its_job_has_died(own: Callable[[str], Path]) -> None:
    folder = own("machine")
    loss = losses(folder)[2]
    margin = f"{(loss.time - loss.died) / 4e6}ms"  # less than there is between the last sign of life and `at`
    at = middle(loss)
    log = json.dumps([audit("v1.compute.instances.stop", at)])
    assert "0 matched, 1 matched no disruption" in imported(folder, log, "--margin", margin)
    assert "1 matched" in imported(folder, log, "--dry-run")
    assert "1 matched" in imported(folder, json.dumps([audit("compute.instances.hostError", at)]), "--margin", margin)
    assert reported(folder)[2][0] == "crash"


def test_a_person_takes_precedence_over_a_log(own: Callable[[str], Path]) -> None:
    folder = own("machine")
    at = middle(losses(folder)[2])
    succeeded(goodput("reason", folder, 2, "maintenance", "--by", "alice"))
    output = imported(folder, json.dumps([audit("compute.instances.preempted", at)]))
    assert "maintenance still applies, because alice recorded it by hand" in output
    assert reported(folder)[2] == ("maintenance", "alice")
    statements = json.loads(succeeded(goodput("reason", folder, "--json")))["runs"][0]["statements"]
    assert [(one["reason"], one["person"], one["in_force"]) for one in statements] == [
        ("maintenance", True, True),
        ("preemption", False, False),
    ]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (lambda at: audit("compute.instances.hostError", at), "crash"),
        (lambda at: audit("compute.instances.guestTerminate", at), "signal"),
        (lambda at: audit("compute.instances.migrateOnHostMaintenance", at), "maintenance"),
        (lambda at: _stop_requested("v1.compute.instances.stop", at, "alice@example.com"), "restart"),
        (
            lambda at: _stop_requested(
                "v1.compute.instances.delete", at, "service-1@container-engine-robot.iam.gserviceaccount.com"
            ),
            "maintenance",
        ),
        (lambda at: _tpu("google.cloud.tpu.v2alpha1.Tpu.DeleteNode", at, ""), "restart"),
        (lambda at: _tpu("tpu.nodes.terminate", at, "PREEMPTED"), "preemption"),
        (lambda at: _tpu("tpu.nodes.terminate", at, "HOST_MAINTENANCE"), "maintenance"),
        (lambda at: _tpu("tpu.nodes.terminate", at, ""), None),
        (lambda at: audit("v1.compute.instances.setMetadata", at), None),
    ],
)
def test_what_each_method_tells(
    own: Callable[[str], Path], entry: Callable[[int], dict[str, Any]], reason: str | None
) -> None:
    folder = own("machine")
    imported(folder, json.dumps([entry(middle(losses(folder)[2]))]))
    reason_given, by = reported(folder)[2]
    assert (reason_given, by is None) == ((reason or "crash"), reason is None)


def _stop_requested(method: str, at: int, who: str) -> dict[str, Any]:
    return audit(method, at, authenticationInfo={"principalEmail": who})


def _tpu(method: str, at: int, why: str) -> dict[str, Any]:
    name = "projects/p/locations/europe-west1-c/nodes/slice-a"
    return audit(method, at, number="", resourceName=name, metadata={"terminateReason": why}, status={})


def test_into_every_run_of_a_folder(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, machine in (("one", MACHINE), ("two", MACHINE.replace("184448819", "7").replace("vm-1", "vm-7"))):
        killed(name, runs, OTEL_RESOURCE_ATTRIBUTES=machine)
        finished(name, runs, 6, 9, OTEL_RESOURCE_ATTRIBUTES=machine)
    at = middle(losses(runs / "one")[2])
    at_two = middle(losses(runs / "two")[2])
    text = json.dumps(
        [audit("compute.instances.preempted", at), audit("compute.instances.hostError", at_two, "vm-7", "7")]
    )
    assert "2 entries, 2 matched" in imported(runs, text)
    assert reported(runs / "one")[2][0] == "preemption"
    assert reported(runs / "two")[2] == ("crash", "cloud audit log: compute.instances.hostError, system@google.com")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "standard input is empty"),
        ("nonsense", "standard input is not JSON"),
        ("[]", "standard input holds no entries"),
        ("[1, 2]", "standard input holds no entries"),
        ('{"a": 1}', "has the wrong format"),
        ('{"kind": "List", "items": [{"kind": "Pod"}]}', "has the wrong format"),
        ("[" * 100_000, "standard input is not JSON"),
    ],
)
def test_files_that_are_no_log(nameless: Path, text: str, message: str) -> None:
    assert message in failed(goodput("reason", nameless, "--import", "-", text=text))
    assert not (nameless / "journal" / "disruptions.reasons").exists()


def test_a_file_that_is_not_there(nameless: Path, tmp_path: Path) -> None:
    assert "No such file" in failed(goodput("reason", nameless, "--import", tmp_path / "missing.json"))


def test_lines_of_entries(own: Callable[[str], Path]) -> None:
    """As a sink to a bucket writes them, and ``jq -c`` does."""
    folder = own("machine")
    text = "".join(json.dumps(audit("compute.instances.preempted", middle(losses(folder)[at]))) + "\n" for at in (2, 3))
    assert "2 entries, 2 matched" in imported(folder, text)
