"""A disk that is full: senders get an error, what was accepted is not lost, and the collector continues as soon as
there is room. And a queue that it finds broken."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from waits import until

from . import flood
from .collector import COLLECTOR
from .disk import SmallDisk
from .sidecars import Sidecar

MB = 10**6
SMALL = 4 * MB
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


def flooded(sidecar: Sidecar, mode: str) -> set[str]:
    """What it accepted of more than there is room for, and is to arrive at Google from here: in a fleet the points."""
    address = sidecar.collector.grpc
    points = [flood.send_points(address, requests=20)] if mode != "gateway" else []
    spans = flood.send_spans(address)
    assert len(spans.refused) == flood.REFUSALS and spans.accepted
    points += [flood.send_points(address)] if points else []
    assert {*spans.refused, *(code for each in points for code in each.refused)} == {grpc.StatusCode.UNAVAILABLE}
    return set().union(*(each.accepted for each in (*points, *([] if mode.startswith("fleet") else [spans]))))


def arrives(sidecar: Sidecar, names: set[str]) -> None:
    def lacking() -> str:
        return (
            f"{len(flood.missing(sidecar.google, names))} of {len(names)} are missing; {sidecar.collector.log[-3000:]}"
        )

    until(lambda: not flood.missing(sidecar.google, names), 90.0, lacking, pause=0.1)


def goes_on(sidecar: Sidecar, mode: str) -> None:
    """What is sent from now on arrives."""
    send = flood.send_points if mode.startswith("fleet") else flood.send_spans
    outcome = send(sidecar.collector.grpc, requests=3)
    assert not outcome.refused
    arrives(sidecar, outcome.accepted)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "collector" / "state", SMALL) as small_disk:
        yield small_disk


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.release] * ("classic-metrics" in mode)) for mode in MODES]
)
@pytest.mark.release
def test_what_was_accepted_arrives_once_there_is_room(mode: str, disk: SmallDisk, tmp_path: Path) -> None:
    """And before: the backend takes what is there, which makes room."""
    with opened(tmp_path, mode, disk) as sidecar:
        accepted = flooded(sidecar, mode)
        assert disk.free < MB
        sidecar.rise()
        arrives(sidecar, accepted)
        goes_on(sidecar, mode)
        assert "panic" not in sidecar.collector.log
        assert sidecar.collector.stop() < 30


@pytest.mark.parametrize(
    "mode", ["gcp-sidecar", pytest.param("gcp-sidecar-classic", marks=pytest.mark.release), "gateway"]
)
def test_killed_on_a_full_disk_it_starts_again(mode: str, disk: SmallDisk, tmp_path: Path) -> None:
    """With room again nothing is lost."""
    with opened(tmp_path, mode, disk) as sidecar:
        accepted = flooded(sidecar, mode)
        sidecar.collector.kill()
        disk.grow(16 * SMALL)
        sidecar.rise()
        sidecar.collector.start()
        arrives(sidecar, accepted)
        goes_on(sidecar, mode)
        assert "panic" not in sidecar.collector.log


def test_started_on_a_full_disk_it_loses_what_was_under_way_and_no_more(disk: SmallDisk, tmp_path: Path) -> None:
    """A queue begins by moving that to its end, for which there is no room."""
    mode = "gcp-sidecar-classic"
    with opened(tmp_path, mode, disk) as sidecar:
        accepted = flooded(sidecar, mode)
        sidecar.collector.kill()
        sidecar.collector.start()
        disk.grow(16 * SMALL)
        sidecar.rise()
        few = 4 * flood.SPANS + flood.POINTS  # requests that the consumers of its queues hold at most (num_consumers)
        until(lambda: len(flood.missing(sidecar.google, accepted)) <= few, 60.0, lambda: sidecar.collector.log[-3000:])
        goes_on(sidecar, mode)
        assert "panic" not in sidecar.collector.log


def test_a_disk_that_others_have_filled_keeps_nobody_from_going_on(disk: SmallDisk, tmp_path: Path) -> None:
    mode = "gcp-sidecar-classic"
    with opened(tmp_path, mode, disk) as sidecar:
        sidecar.rise()
        disk.fill(leaving=MB // 2)
        outcome = flood.send_spans(sidecar.collector.grpc, requests=60)
        assert len(outcome.refused) == flood.REFUSALS
        disk.clear()
        sidecar.collector.kill()
        sidecar.collector.start()
        goes_on(sidecar, mode)
        assert "panic" not in sidecar.collector.log


BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "begun on a full disk": lambda content: content[:4096],
    "cut in the middle": lambda content: content[: len(content) // 2],
    "empty pages at its head": lambda content: bytes(8192) + content[8192:],
    "something else": lambda _: b"not a database\n" * 10_000,
    "cut behind its head": lambda content: content[:12288],
    "zeros behind its head": lambda content: content[:8192] + bytes(len(content) - 8192),
    "noise behind its head": lambda content: content[:8192] + random.Random(1).randbytes(len(content) - 8192),
    "noise in its heads": lambda content: (
        b"".join(
            content[at : at + 32] + random.Random(at).randbytes(16) + content[at + 48 : at + 4096] for at in (0, 4096)
        )
        + content[8192:]
    ),
    "nothing but zeros": lambda content: bytes(len(content)),
    "nothing": lambda _: b"",
}
CHECK = COLLECTOR / "configs" / "move-broken-queues.sh"


# Broken as another is: nothing but zeros, noise behind its head, begun on a full disk.
ALIKE = {"empty pages at its head", "zeros behind its head", "cut behind its head"}
EACH = [pytest.param(how, marks=[pytest.mark.release] * (how in ALIKE)) for how in BREAKS]
BY_ITSELF = {"nothing", "cut in the middle"}  # the collector starts with these: it begins a new queue, or reads on


class Queues(NamedTuple):
    """What a collector that was killed left on its disk, and what of that is to arrive."""

    state: Path
    spans: set[str]

    def copied(self, directory: Path, how: str = "") -> Path:
        """To where the collector of a sidecar in `directory` finds it, with the queue of the points broken."""
        state = directory / "collector" / "state"
        shutil.copytree(self.state, state)
        if how:
            (file,) = state.glob("exporter_*behind_metrics")
            file.write_bytes(BREAKS[how](file.read_bytes()))
        return state


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Queues:
    directory = tmp_path_factory.mktemp("queues")
    with Sidecar(directory, "gcp-sidecar-classic", up=False, settings=[BEHIND]) as sidecar:
        points = flood.send_points(sidecar.collector.grpc, requests=3)
        spans = flood.send_spans(sidecar.collector.grpc, requests=3)
        assert points.accepted and spans.accepted and not points.refused + spans.refused
        sidecar.collector.kill()
    return Queues(directory / "collector" / "state", spans.accepted)


def check(state: Path) -> None:
    environ = {**os.environ, "OTELCOL_GOODPUT_STATE": str(state)}
    assert subprocess.run(["sh", str(CHECK)], env=environ, timeout=30, check=False).returncode == 0


@pytest.mark.parametrize("how", EACH)
def test_a_broken_queue_is_moved_aside_before_it_starts(how: str, queues: Queues, tmp_path: Path) -> None:
    """Broken is that of the points here; the spans' own is left as it is."""
    state = queues.copied(tmp_path, how)
    check(state)
    with Sidecar(tmp_path, "gcp-sidecar-classic", settings=[BEHIND]) as sidecar:
        arrives(sidecar, queues.spans)
        again = flood.send_points(sidecar.collector.grpc, requests=3)
        assert not again.refused
        arrives(sidecar, again.accepted)
        aside = [path for path in state.iterdir() if ".backup" in path.name or ".broken" in path.name]
        assert len(aside) == (0 if how == "nothing" else 1)


@pytest.mark.parametrize("how", [how for how in EACH if how.values[0] not in BY_ITSELF])
def test_by_itself_the_collector_does_not_start_with_it(how: str, queues: Queues, tmp_path: Path) -> None:
    """Its option `recreate` catches few of them: should this fail one day, what looks before it starts may go."""
    state = queues.copied(tmp_path, how)
    with pytest.raises(AssertionError, match="the collector ended"):
        Sidecar(tmp_path, "gcp-sidecar-classic", up=False, settings=[BEHIND]).__enter__()
    assert [path.name for path in state.glob("*.backup")] == []


def test_what_is_a_queue_is_left_alone(queues: Queues, tmp_path: Path) -> None:
    state = queues.copied(tmp_path)
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    check(state)
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before and len(before) == 2
