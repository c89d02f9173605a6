"""What survives which fault, as ``docs/collector/faults.md`` tells it: each row belongs to the tests that show it.

``docs/tables.py`` makes the tables there of this.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class AtSidecar(NamedTuple):
    """What becomes of a job's telemetry next to a collector.

    Attributes:
        more: of the fault, where its name does not say all.
        otlp, classic: the outcome with ``gcp-sidecar`` and with ``gcp-sidecar-classic``.
    """

    more: str
    otlp: str
    classic: str = "the same"


class Outcome(NamedTuple):
    """What becomes of it in other places; `shown` by these tests of this folder, by hand where there are none."""

    fault: str
    outcome: str
    shown: tuple[str, ...] = ()


# By the scenario of test_losses.py.
AT_SIDECAR: Final[dict[str, AtSidecar]] = {
    "nothing": AtSidecar(
        "",
        "all, once",
        "all, once",
    ),
    "a last export soon after the one before": AtSidecar(
        "",
        "all, once",
        "all, once",
    ),
    "a backend away for a minute": AtSidecar(
        ", in which the job begins and ends",
        "all, once; within 15 s after it is back",
    ),
    "a backend that fails for a while": AtSidecar(
        "",
        "all, once",
        "all, once",
    ),
    "answers that are lost": AtSidecar(
        "",
        "all; some spans are written again with the same ids, no point twice",
    ),
    "sigterm at the end of the job": AtSidecar(
        "",
        "all, once: the next collector on that disk sends what is left",
    ),
    "sigkill at the end of the job": AtSidecar(
        "",
        "all; requests in flight may be sent again",
    ),
    "sigterm while the backend is away": AtSidecar(
        "",
        "all, once; ends at once",
        "all, once; ends within 12 s, the timeout of Google's client",
    ),
    "sigkill while the backend is away": AtSidecar(
        "",
        "all; requests in flight may be sent again",
    ),
    "a collector that crashes while the job trains": AtSidecar(
        ", and is away for ten seconds",
        "all: the job buffers 4,096 spans, and values go with the next export",
    ),
}

ELSEWHERE: Final = (
    Outcome(
        "a backend that accepts requests but does not respond; SIGTERM",
        "`gcp-sidecar` ended after 18 s, `-classic` when it was killed; everything arrived after a restart",
    ),
    Outcome(
        "missing credentials, a missing role, an exhausted quota",
        "data sent then is refused and dropped, with an error in the log, with or without a queue; it is in the "
        "[spool](#the-spool), if there is one. Check the account first (`otel-goodput doctor --gcp`, run as the job)",
    ),
    Outcome(
        "a full disk, in any configuration with a queue; later the disk grows, or the backend accepts the queued data",
        "the sender gets `UNAVAILABLE` and retries; accepted data arrives, even after a SIGKILL; the collector keeps "
        "running",
        (
            "test_full_disk.py::test_what_was_accepted_arrives_once_there_is_room",
            "test_full_disk.py::test_killed_on_a_full_disk_it_starts_again",
        ),
    ),
    Outcome(
        "… and the collector starts while the disk is full",
        "it starts; a few requests in flight are lost, the rest arrives",
        ("test_full_disk.py::test_started_on_a_full_disk_it_loses_what_was_under_way_and_no_more",),
    ),
    Outcome(
        "… and other programs have filled the disk while the backend accepts data",
        "an occasional request is lost because the queue cannot record that it is in flight. Give the queue its own "
        "disk, three times as large as `queue_size`",
        ("test_full_disk.py::test_a_disk_that_others_have_filled_keeps_nobody_from_going_on",),
    ),
    Outcome(
        "a broken queue file",
        "moved aside (`*.broken.*`, a few `*.backup`) before the collector starts, or starts again, by "
        "`configs/move-broken-queues.sh`; the other signal's queue continues. The script checks 4,000 "
        "pages of a queue (some 250 MB of spans), but not their contents",
        (
            "test_full_disk.py::test_a_broken_queue_is_moved_aside_before_it_starts",
            "test_full_disk.py::test_what_is_a_queue_is_left_alone",
        ),
    ),
    Outcome(
        "a full queue (1 GB)",
        "the job buffers up to 4,096 spans; metrics derived from spans of other clients count such a request once per "
        "attempt to send it",
    ),
    Outcome(
        "metrics of another library (any OpenTelemetry SDK with its default cumulative temporality), exported at exit, "
        "milliseconds after the previous export",
        "the last value, once, if the collector runs 10 s longer, because it collects them for that long. At SIGTERM "
        "they are sent or stay on disk, but Cloud Monitoring refuses a point within 5 s of the previous one; a SIGKILL "
        "loses up to 10 s of them",
        (
            "test_unpaced.py::test_the_last_value_arrives",
            "test_unpaced.py::test_a_collector_that_is_stopped_at_once_sends_what_it_holds_or_keeps_it_on_disk",
        ),
    ),
    Outcome(
        "metrics made from [spans of other clients](clients.md), SIGTERM or SIGKILL",
        "data since the last flush (at most 10 s) is lost; nothing is lost after a wait like that of `preStop`",
        ("test_span_metrics.py::test_the_end_loses_what_came_since_the_last_flush",),
    ),
    Outcome(
        "fleet: gateway down, or its name unknown; sidecar killed meanwhile",
        "all, once",
        ("test_fleet.py::test_spans_wait_on_disk_for_a_gateway_that_is_not_there",),
    ),
    Outcome(
        "fleet: gateway SIGKILLed",
        "spans of slow, failed and compiling steps and all other phases: all. Routine spans that waited for a "
        "decision (30 s) are lost",
        ("test_fleet.py::test_a_gateway_that_is_killed_loses_what_waits_for_a_decision_and_no_more",),
    ),
    Outcome(
        "fleet: gateway SIGTERM, restart on its disk",
        "all",
        ("test_fleet.py::test_a_gateway_that_is_killed_loses_what_waits_for_a_decision_and_no_more",),
    ),
    Outcome(
        "fleet: the gateway's queue full",
        "spans of slow, failed and compiling steps wait in the sidecars; some of the chosen routine steps are lost",
    ),
    Outcome(
        "fleet: more traces than the gateway can hold, or spans that arrive after the decision",
        "slow, failed and compiling steps are kept; other spans of their traces may be missing",
        ("test_fleet.py::test_more_traces_than_memory_cost_nothing_worth_seeing",),
    ),
    Outcome(
        "fleet: one of two gateways down for seconds",
        "all, each trace at one of them; after longer outages, spans arrived twice, or stayed on the disk of the "
        "gateway that did not come back (by hand)",
        ("test_fleet.py::test_a_trace_is_with_one_of_two_gateways",),
    ),
    Outcome(
        "`otel-goodput send` is killed, or the collector is down or crashes",
        "all; at most one request twice, which the command reports",
        (
            "test_send.py::test_killed_in_the_middle_it_goes_on",
            "test_send.py::test_a_collector_that_comes_late_and_crashes",
        ),
    ),
    Outcome(
        "`local.yaml`: SIGTERM and restart",
        "all spans in the file, the values with the job's next export",
        (
            "test_local.py::test_the_file_has_the_spans_that_the_library_s_own_file_has",
            "test_local.py::test_metrics_are_in_the_same_file",
        ),
    ),
)

# What a backend's answer does, by its gRPC code: test_refusals.py.
RETRIED: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "OUT_OF_RANGE", "DATA_LOSS")
THROTTLED: Final = "the code of a quota with `RetryInfo`"
REFUSED: Final = (
    "INTERNAL", "UNKNOWN", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT",
    "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "UNIMPLEMENTED",
)  # fmt: skip
THEN_RETRIED: Final = "the data waits on disk and is retried until accepted"
THEN_REFUSED: Final = (
    "permanently refused: dropped, with an error in the log; the data is in the spool, if there is one"
)
