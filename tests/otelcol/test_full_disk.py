"""A disk that is full: senders are turned away and told so, what was accepted is not lost, and the collector goes on as
soon as there is room. And a queue that it finds broken."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from waits import until

from . import flood
from .collector import COLLECTOR
from .disk import SmallDisk
from .sidecars import Sidecar

MB = 10**6
SMALL = 8 * MB
# What is laid over each other, wherever there is a queue on a disk.
MODES: dict[str, tuple[str, ...]] = {
    "gcp-sidecar": (),
    "gcp-sidecar, classic-metrics": ("classic-metrics.yaml",),
    "gcp-sidecar-classic": (),
    "fleet-sidecar": (),
    "fleet-sidecar, classic-metrics": ("classic-metrics.yaml",),
    "gateway": (),
}
GOOGLE = "exporters::otlp_grpc/google::retry_on_failure::max_interval: 1s"
BEHIND = "exporters::otlp_grpc/behind::retry_on_failure::max_interval: 1s"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


def opened(directory: Path, mode: str, disk: SmallDisk) -> Sidecar:
    """A collector whose backend is away, on that disk."""
    config = mode.partition(",")[0]
    settings = ["processors::resource_detection::detectors: [env]"] if config != "gateway" else []
    settings.append(BEHIND if "classic" in mode else GOOGLE)
    return Sidecar(directory, config, up=False, over=MODES[mode], within=disk.within, settings=settings)


def flooded(beside: Sidecar, mode: str) -> set[str]:
    """What it accepted of more than there is room for, and is to arrive at Google from here: in a fleet the points."""
    address = beside.collector.grpc
    points = [flood.send_points(address, requests=20)] if mode != "gateway" else []
    spans = flood.send_spans(address)
    assert len(spans.refused) == flood.REFUSALS and spans.accepted
    points += [flood.send_points(address)] if points else []
    assert {*spans.refused, *(code for each in points for code in each.refused)} == {grpc.StatusCode.UNAVAILABLE}
    return set().union(*(each.accepted for each in (*points, *([] if mode.startswith("fleet") else [spans]))))


def arrives(beside: Sidecar, names: set[str]) -> None:
    def lacking() -> str:
        return f"{len(flood.missing(beside.google, names))} of {len(names)} are missing; {beside.collector.log[-3000:]}"

    until(lambda: not flood.missing(beside.google, names), 90.0, lacking, pause=0.1)


def goes_on(beside: Sidecar, mode: str) -> None:
    """What is sent from now on arrives."""
    send = flood.send_points if mode.startswith("fleet") else flood.send_spans
    outcome = send(beside.collector.grpc, requests=3)
    assert not outcome.refused
    arrives(beside, outcome.accepted)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "collector" / "state", SMALL) as found:
        yield found


@pytest.mark.parametrize("mode", MODES)
def test_what_was_accepted_arrives_once_there_is_room(mode: str, disk: SmallDisk, tmp_path: Path) -> None:
    """And before: the backend takes what is there, which makes room."""
    with opened(tmp_path, mode, disk) as beside:
        accepted = flooded(beside, mode)
        assert disk.free < MB
        beside.rise()
        arrives(beside, accepted)
        goes_on(beside, mode)
        assert "panic" not in beside.collector.log
        assert beside.collector.stop() < 30


@pytest.mark.parametrize("mode", ["gcp-sidecar", "gcp-sidecar-classic", "gateway"])
def test_killed_on_a_full_disk_it_starts_again(mode: str, disk: SmallDisk, tmp_path: Path) -> None:
    """With room again nothing is lost."""
    with opened(tmp_path, mode, disk) as beside:
        accepted = flooded(beside, mode)
        beside.collector.kill()
        disk.grow(16 * SMALL)
        beside.rise()
        beside.collector.start()
        arrives(beside, accepted)
        goes_on(beside, mode)
        assert "panic" not in beside.collector.log


def test_started_on_a_full_disk_it_loses_what_was_under_way_and_no_more(disk: SmallDisk, tmp_path: Path) -> None:
    """A queue begins by moving that to its end, for which there is no room."""
    mode = "gcp-sidecar-classic"
    with opened(tmp_path, mode, disk) as beside:
        accepted = flooded(beside, mode)
        beside.collector.kill()
        beside.collector.start()
        disk.grow(16 * SMALL)
        beside.rise()
        few = len(accepted) // 10
        until(lambda: len(flood.missing(beside.google, accepted)) <= few, 60.0, lambda: beside.collector.log[-3000:])
        goes_on(beside, mode)
        assert "panic" not in beside.collector.log


def test_a_disk_that_others_have_filled_keeps_nobody_from_going_on(disk: SmallDisk, tmp_path: Path) -> None:
    mode = "gcp-sidecar-classic"
    with opened(tmp_path, mode, disk) as beside:
        beside.rise()
        disk.fill(leaving=MB // 2)
        found = flood.send_spans(beside.collector.grpc, requests=20)
        assert len(found.refused) == flood.REFUSALS
        disk.clear()
        beside.collector.kill()
        beside.collector.start()
        goes_on(beside, mode)
        assert "panic" not in beside.collector.log


BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "begun on a full disk": lambda found: found[:4096],
    "cut in the middle": lambda found: found[: len(found) // 2],
    "empty pages at its head": lambda found: bytes(8192) + found[8192:],
    "something else": lambda _: b"not a database\n" * 10_000,
    "cut behind its head": lambda found: found[:12288],
    "zeros behind its head": lambda found: found[:8192] + bytes(len(found) - 8192),
    "noise behind its head": lambda found: found[:8192] + random.Random(1).randbytes(len(found) - 8192),
    "noise in its heads": lambda found: (
        b"".join(found[at : at + 32] + random.Random(at).randbytes(16) + found[at + 48 : at + 4096] for at in (0, 4096))
        + found[8192:]
    ),
    "nothing but zeros": lambda found: bytes(len(found)),
    "nothing": lambda _: b"",
}
CHECK = COLLECTOR / "configs" / "move-broken-queues.sh"


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_queue_is_moved_aside_before_it_starts(how: str, tmp_path: Path) -> None:
    """Broken is that of the points here; the spans' own is left as it is."""
    state = tmp_path / "collector" / "state"
    with Sidecar(tmp_path, "gcp-sidecar-classic", up=False, settings=[BEHIND]) as beside:
        points = flood.send_points(beside.collector.grpc, requests=3)
        spans = flood.send_spans(beside.collector.grpc, requests=3)
        assert points.accepted and spans.accepted and not points.refused + spans.refused
        beside.collector.kill()
        (file,) = state.glob("exporter_*behind_metrics")
        file.write_bytes(BREAKS[how](file.read_bytes()))
        environ = {**os.environ, "OTELCOL_GOODPUT_STATE": str(state)}
        assert subprocess.run(["sh", str(CHECK)], env=environ, timeout=30, check=False).returncode == 0
        beside.rise()
        beside.collector.start()
        arrives(beside, spans.accepted)
        again = flood.send_points(beside.collector.grpc, requests=3)
        assert not again.refused
        arrives(beside, again.accepted)
        aside = [path for path in state.iterdir() if ".backup" in path.name or ".broken" in path.name]
        assert len(aside) == (0 if how == "nothing" else 1)


@pytest.mark.parametrize("how", sorted(BREAKS.keys() - {"nothing", "cut in the middle"}))
def test_by_itself_the_collector_does_not_start_with_it(how: str, tmp_path: Path) -> None:
    """Its option `recreate` catches few of them: should this fail one day, what looks before it starts may go."""
    state = tmp_path / "collector" / "state"
    with Sidecar(tmp_path, "gcp-sidecar-classic", up=False, settings=[BEHIND]) as beside:
        flood.send_points(beside.collector.grpc, requests=3)
        beside.collector.kill()
        (file,) = state.glob("exporter_*behind_metrics")
        file.write_bytes(BREAKS[how](file.read_bytes()))
        with pytest.raises(AssertionError, match="the collector ended"):
            beside.collector.start()
        assert [path.name for path in state.glob("*.backup")] == []


def test_what_is_a_queue_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "collector" / "state"
    with Sidecar(tmp_path, "gcp-sidecar-classic", up=False, settings=[BEHIND]) as beside:
        spans = flood.send_spans(beside.collector.grpc, requests=3)
        beside.collector.kill()
        before = {path.name: path.read_bytes() for path in state.iterdir()}
        environ = {**os.environ, "OTELCOL_GOODPUT_STATE": str(state)}
        subprocess.run(["sh", str(CHECK)], env=environ, timeout=30, check=True)
        assert {path.name: path.read_bytes() for path in state.iterdir()} == before and len(before) == 2
        assert spans.accepted
