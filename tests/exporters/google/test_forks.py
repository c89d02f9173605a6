"""A forked child exports nothing, says nothing and does not hang, whatever its parent is sending just then."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from emulators.google import GoogleEmulator
from waits import until

from .arrivals import check_whole, cloud_spans, differences, otlp_spans
from .jobs import End, Job

METHODS = {"BatchWriteSpans", "CreateTimeSeries", "OtlpTraces", "OtlpMetrics"}
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "20"}  # ms
# What gRPC does about forks, in the parent and in the child, is turned on where this is set to 1.
FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"


def fork_amid_calls(google: GoogleEmulator, folder: Path, middle: str, fork_support: str | None) -> tuple[int, End]:
    """Over channels that are open; the child's exit status, and how the job ended."""
    with Job(folder, {**OFTEN, FORK_SUPPORT: fork_support}, middle=middle, pauses=["middle"], unit=0.01) as job:
        job.wait_for("middle")
        until(lambda: {request.method for request in google.requests if request.code == "OK"} >= METHODS)
        google.slow("*", 0.2)
        before = len(google.requests)
        job.go_on()
        status = job.wait_for("child")
        google.heal()
        end = job.end()
    assert before < len(google.requests)
    check_whole(cloud_spans(google))
    check_whole(otlp_spans(google, "llama"))
    assert not differences(google, end.account)
    assert not google.refusals and not google.notes
    assert end.status == 0 and not end.warnings
    return status, end


@pytest.mark.parametrize("middle", ["a child that leaves", "a child that ends", "workers"])
def test_a_forked_child_is_silent(google: GoogleEmulator, tmp_path: Path, middle: str) -> None:
    status, end = fork_amid_calls(google, tmp_path, middle, None)
    assert status == 0
    assert not end.errors


def test_a_forked_child_does_not_wait_for_its_parents_calls(google: GoogleEmulator, tmp_path: Path) -> None:
    """Where gRPC's support of forks is asked for, which says so on stderr and crashes one such child in a hundred."""
    status, end = fork_amid_calls(google, tmp_path, "a child that leaves", "1")
    assert status in (0, -signal.SIGSEGV)
    assert all("skipping fork() handlers" in line for line in end.errors.splitlines())
