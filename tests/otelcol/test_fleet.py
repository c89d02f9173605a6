"""Four sidecars and a gateway, all of them real: which spans of a fleet are kept, and what outlives which of them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from crash.exported import check_tree
from emulators.google import GoogleEmulator
from exporters.google import arrivals
from exporters.google.training import Account
from waits import until

from otel_goodput.semconv import GOODPUT_STEP, STEP_DURATION, TIME

from .collector import COLLECTOR, CONFIGS, Collector, validated
from .fleet import RUN, Plan, Sent, arrived, drawn, gateway, identities, run, send, sidecar, start, worth_seeing

Identities = set[tuple[str, str]]


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator() as emulator:
        yield emulator


def arrive(google: GoogleEmulator, expected: Identities) -> None:
    """Wait until these are there."""
    until(
        lambda: expected <= {*identities(google)},
        lacking=lambda: f"{len(expected - {*identities(google)})} of {len(expected)} spans",
        pause=0.05,
    )


def once(google: GoogleEmulator, expected: Identities, *collectors: Collector) -> None:
    """These arrive, each once, and when the collectors have been stopped in this order, nothing else has."""
    arrive(google, expected)
    for each in collectors:
        each.stop()
    spans = identities(google)
    assert {*spans} == expected and max(spans.values()) == 1
    assert not google.refusals and not google.notes


def retried(collector: Collector, why: str) -> None:
    """Wait until it tries a request again that has failed for this."""
    words = ("Will retry the request", why)

    def all_exported() -> bool:
        return any(all(word in line for word in words) for line in collector.log.splitlines())

    until(all_exported, lacking=lambda: collector.log)


def of(sent: Iterable[Sent]) -> Identities:
    return {each.identity for each in sent}


def config(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


# --- the configurations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fleet-sidecar", "gateway"])
def test_it_is_valid_with_nothing_set_but_the_project(name: str) -> None:
    done = validated(CONFIGS / f"{name}.yaml")
    assert (done.returncode, done.stderr) == (0, "")


def test_all_but_the_way_of_the_spans_is_that_of_the_sidecar_alone() -> None:
    fleet, alone = config("fleet-sidecar"), config("gcp-sidecar")
    assert fleet["exporters"].pop("load_balancing")["sending_queue"]["storage"] == "file_storage"
    elsewhere = fleet["service"]["pipelines"]["traces"]["exporters"]
    elsewhere[elsewhere.index("load_balancing")] = "otlp_grpc/google"
    assert fleet == alone


def test_the_jobs_of_a_fleet_give_each_step_a_trace_and_thin_nothing() -> None:
    component = yaml.safe_load(
        (COLLECTOR / "kubernetes" / "gateway" / "kustomization.yaml").read_text(encoding="utf-8")
    )
    literals = [each for made in component["configMapGenerator"] for each in made["literals"]]
    assert {*literals} == {f"{'OTEL_GOODPUT_STEP_TRACES'}=own", f"{'OTEL_GOODPUT_STEP_SAMPLING'}=1"}


def test_the_gateway_does_not_take_its_own_host_for_the_jobs() -> None:
    assert not [each for each in config("gateway")["processors"] if "detection" in each]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_step_worth_seeing_is_kept_of_every_process(google: GoogleEmulator, exits: ExitStack, tmp_path: Path) -> None:
    behind = gateway(tmp_path / "gateway", google, routine=5, decision_s=600)
    sidecars = [sidecar(tmp_path / f"sidecar-{index}", google, behind.grpc) for index in range(4)]
    start(exits, behind, *sidecars)
    plans = [
        Plan(index, 4, slow=[80 + index], failed=[20 + index], compiling=[90] if index % 2 else [])
        for index in range(4)
    ]
    accounts, spans = run(tmp_path / "runs", [each.grpc for each in sidecars], plans)
    for index, account in enumerate(accounts):
        assert account[TIME.name] and account[STEP_DURATION.name][0][0] == 119
        until(partial(has_last_values, google, index, account), lacking=lambda: "some of the last values")
    seen = {span.trace for span in spans if worth_seeing(span)}
    # By themselves, and without a wait: the last to be sent are the jobs' spans, so that all is at the gateway then.
    arrive(google, {(span.trace, span.key) for span in spans if worth_seeing(span)})
    for each in (*sidecars, behind):
        each.stop()
    behind.start()
    routine = {span.trace for span in spans} - seen
    share = {trace for trace in routine if drawn(trace, 5)}
    assert 0 < len(share) < len(routine) / 5
    kept = [span for span in spans if span.trace in seen | share]
    once(google, {(span.trace, span.key) for span in kept}, behind)
    steps = Counter(span.attributes[GOODPUT_STEP] for span in kept if span.name == "step")
    assert {*steps} >= {*range(80, 84), *range(20, 24), 90} and {*steps.values()} == {4}
    sent = {(span.trace, span.key): span for span in kept}
    assert all(span.content == sent[span.trace, span.key].content for span in arrived(google))
    check_tree(kept)
    for points in google.otlp_series.values():
        assert max(Counter(point.end for point in points).values()) == 1


def has_last_values(google: GoogleEmulator, process: int, account: Account) -> bool:
    """Whether the last values of a process are there."""
    stored = arrivals.last(google.otlp_series, "", {("job", "llama")}, f"{RUN}/0/{process}@")
    return bool(stored) and not list(arrivals.missed(stored, arrivals.expected(account)))


def test_what_the_library_thins_itself_is_not_thinned_again(
    google: GoogleEmulator, exits: ExitStack, tmp_path: Path
) -> None:
    """The layout that it has by itself: an attempt is one trace. It waits for no decision."""
    behind = gateway(tmp_path / "gateway", google, decision_s=600)
    agent = sidecar(tmp_path / "sidecar", google, behind.grpc)
    start(exits, behind, agent)
    _, spans = run(tmp_path / "runs", [agent.grpc] * 2, [Plan(index, 2, "shared") for index in range(2)])
    assert len({span.trace for span in spans}) == 1
    once(google, {(span.trace, span.key) for span in spans}, agent, behind)


def test_the_steps_of_any_client_are_kept_and_thinned_alike(
    google: GoogleEmulator, exits: ExitStack, tmp_path: Path
) -> None:
    """Another language, another library: one trace for a step, of which two hosts have spans."""
    behind = gateway(tmp_path / "gateway", google)
    one, other = (sidecar(tmp_path / name, google, behind.grpc) for name in ("one", "other"))
    start(exits, behind, one, other)
    routine, slow, failed, compiling, apart, marked, late, later, epoch, left, broken, stretch, stalled = range(1, 14)
    flood, further = 14, 15
    of_step = {"goodput.phase": "step"}
    forward = {"parent": 11, "name": "forward", "length": 300, "attributes": {}}
    at_one = [
        Sent(routine, 11), Sent(routine, 12, **forward),
        Sent(slow, 11), Sent(slow, 12, **forward),
        Sent(failed, 11, failed=True),
        Sent(compiling, 11), Sent(compiling, 12, "compile", parent=11, attributes={"goodput.phase": "compile"}),
        Sent(apart, 11),
        Sent(marked, 11, attributes={**of_step, "goodput.step.outlier": True}),
        Sent(left, 11, attributes={**of_step, "goodput.step.completed": False}),
        Sent(broken, 11, attributes={**of_step, "goodput.interrupted": True}),
        Sent(stretch, 11, "steps", attributes={"goodput.steps.count": 100}),
        Sent(flood, 11, "phases", attributes={"goodput.phases.count": 100}),
        Sent(further, 11, attributes={**of_step, "goodput.trace.number": 1}),
        Sent(stalled, 11, "data_loading", length=5000, attributes={"goodput.phase": "data_loading"}), Sent(stalled, 12),
        Sent(late, 11),
        Sent(later, 11, failed=True), Sent(later, 12, **forward),
        Sent(epoch, 11, "epoch", length=3000, attributes={"goodput.phase": "custom"}), Sent(epoch, 12, parent=11),
    ]  # fmt: skip
    at_other = [
        Sent(routine, 21), Sent(slow, 21, length=5000), Sent(failed, 21), Sent(compiling, 21), Sent(marked, 21),
        Sent(apart, 21, start=4000),
    ]  # fmt: skip
    send(one.http, at_one)
    send(other.http, at_other)
    kept = [each for each in (*at_one, *at_other) if each.trace not in (routine, late)]
    arrive(google, of(kept))
    # Now all is decided. What comes later is kept with its trace, and by itself where that was not kept.
    afterwards = [Sent(later, 21), Sent(late, 21, length=5000), Sent(routine, 22)]
    send(other.http, afterwards)
    once(google, of(kept + afterwards[:2]), one, other, behind)


def test_more_traces_than_memory_cost_nothing_worth_seeing(
    google: GoogleEmulator, exits: ExitStack, tmp_path: Path
) -> None:
    behind = gateway(tmp_path / "gateway", google, traces=2)
    agent = sidecar(tmp_path / "sidecar", google, behind.grpc)
    start(exits, behind, agent)
    failed = [Sent(trace, 1, failed=True) for trace in range(1, 101)]
    send(agent.http, [*failed, *(Sent(each.trace, 2) for each in failed)])
    arrive(google, of(failed))
    assert max(identities(google).values()) == 1 and not google.notes


# --- what outlives what -----------------------------------------------------------------------------------------------


def test_spans_wait_on_disk_for_a_gateway_that_is_not_there(
    google: GoogleEmulator, exits: ExitStack, tmp_path: Path
) -> None:
    """Not even its name is, and the sidecar is killed meanwhile."""
    alone = sidecar(tmp_path / "sidecar", google)
    start(exits, alone)
    sent = [Sent(trace, 1, failed=True) for trace in range(1, 301)]
    for begin in range(0, 300, 100):
        send(alone.http, sent[begin : begin + 100])
    retried(alone, "couldn't find the exporter")
    alone.kill()
    behind = gateway(tmp_path / "gateway", google)
    agent = sidecar(tmp_path / "sidecar", google, behind.grpc)
    start(exits, behind, agent)
    once(google, of(sent), agent, behind)


def test_a_gateway_that_is_killed_loses_what_waits_for_a_decision_and_no_more(
    google: GoogleEmulator, exits: ExitStack, tmp_path: Path
) -> None:
    """Nor does it lose that when it is ended as systems do; and while it is away, nothing is lost."""
    behind = gateway(tmp_path / "gateway", google, decision_s=600)
    agent = sidecar(tmp_path / "sidecar", google, behind.grpc, patience_s=2)
    start(exits, behind, agent)
    google.fail("OtlpTraces", "UNAVAILABLE", None)
    on_disk, in_memory = Sent(1, 11, failed=True), Sent(1, 12)
    send(agent.http, [on_disk, in_memory])
    until(lambda: google.requests, lacking=lambda: "a request of the gateway's")
    behind.kill()
    meanwhile = [Sent(2, 11, failed=True), Sent(2, 12), Sent(3, 11)]
    send(agent.http, meanwhile)
    retried(agent, "no more retries left")
    google.heal()
    again = gateway(tmp_path / "gateway", google, decision_s=600, address=behind.grpc)
    start(exits, again)
    arrive(google, {on_disk.identity, meanwhile[0].identity})
    assert len(google.otlp_spans) == 2
    # SIGTERM decides at once; what is not sent then is on the disk.
    again.stop()
    again.start()
    once(google, of([on_disk, *meanwhile[:2]]), again, agent)


def test_a_trace_is_with_one_of_two_gateways(google: GoogleEmulator, exits: ExitStack, tmp_path: Path) -> None:
    googles = [google, exits.enter_context(GoogleEmulator())]
    gateways = [gateway(tmp_path / f"gateway-{at}", each, routine=100, decision_s=1) for at, each in enumerate(googles)]
    addresses = [each.grpc for each in gateways]
    sidecars = [sidecar(tmp_path / f"sidecar-{at}", google, *addresses) for at in range(2)]
    start(exits, *gateways, *sidecars)

    def sent_by_both(traces: range) -> Identities:
        sent = [[Sent(trace, key) for trace in traces] for key in (1, 2)]
        for each, spans in zip(sidecars, sent, strict=True):
            send(each.http, spans)
        return of(span for spans in sent for span in spans)

    def complete(expected: Identities, *, killed: bool = False) -> None:
        until(
            lambda: expected == {key for each in googles for key in identities(each)},
            lacking=lambda: f"there are {[len(each.otlp_spans) for each in googles]} of {len(expected)}",
            pause=0.05,
        )
        trace_counts = [Counter(trace for trace, _ in identities(each)) for each in googles]
        assert {*trace_counts[0].values(), *trace_counts[1].values()} == {2} and not {*trace_counts[0]} & {
            *trace_counts[1]
        }
        assert min(len(each) for each in trace_counts) > 5
        allowed = {"trace.duplicate"} if killed else set()
        # What a killed gateway had sent, and not yet taken off its queue, it sends again: at least once, not exactly.
        assert not googles[0].notes and {note.rule for note in googles[1].notes} <= allowed

    expected = sent_by_both(range(1, 41))
    complete(expected)
    gateways[1].kill()
    host, port = addresses[1].split(":")
    with socket.create_server((host, int(port))) as door:
        expected |= sent_by_both(range(41, 81))
        door.accept()[0].close()  # they have tried
    gateways[1].start()
    complete(expected, killed=True)
