"""A forked child exports nothing, says nothing and does not hang, whatever its parent is sending just then."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulators.google import GoogleEmulator

from .arrivals import check_whole, cloud_spans, differences, otlp_spans
from .jobs import Job, until

METHODS = {"BatchWriteSpans", "CreateTimeSeries", "OtlpTraces", "OtlpMetrics"}
# In the parent, where a call is under way at the fork. It is of no use: the child does not call.
SKIPPED = "Other threads are currently calling into gRPC, skipping fork() handlers"


@pytest.mark.parametrize(
    ("middle", "fork_support"),
    [
        ("a child that leaves", None),
        ("a child that ends", None),
        ("workers", None),
        ("a child that ends", "1"),
        ("workers", "1"),
    ],
)
def test_a_forked_child_is_silent(
    google: GoogleEmulator, tmp_path: Path, middle: str, fork_support: str | None
) -> None:
    """The fork comes amid calls over open channels; gRPC's own support of forks changes nothing."""
    environ = {
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "GRPC_ENABLE_FORK_SUPPORT": fork_support,
    }
    with Job(tmp_path, environ, middle=middle, pauses=["middle"], unit=0.01) as job:
        job.wait_for("middle")
        until(lambda: {request.method for request in google.requests if request.code == "OK"} >= METHODS)
        google.slow("*", 0.2)
        before = len(google.requests)
        job.go_on()
        assert job.wait_for("child") == 0
        google.heal()
        end = job.end()
    assert before < len(google.requests)
    check_whole(cloud_spans(google))
    check_whole(otlp_spans(google, "llama"))
    assert not differences(google, end.account)
    assert not google.refusals and not google.notes
    assert end.status == 0 and not end.told
    assert all(SKIPPED in line for line in end.errors.splitlines())
