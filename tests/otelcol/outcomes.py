"""What survives which fault, as ``docs/collector/faults.md`` tells it: each row belongs to the tests that show it.

``docs/tables.py`` makes the tables there of this.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Beside(NamedTuple):
    """What becomes of a job's telemetry beside a collector.

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
BESIDE: Final[dict[str, Beside]] = {
    "nothing": Beside(
        "",
        "all, once",
        "all, once",
    ),
    "a last export soon after the one before": Beside(
        "",
        "all, once",
        "all, once",
    ),
    "a backend away for a minute": Beside(
        ", in which the job begins and ends",
        "all, once; a quarter of a minute after it is back at the latest",
    ),
    "a backend that fails for a while": Beside(
        "",
        "all, once",
        "all, once",
    ),
    "answers that are lost": Beside(
        "",
        "all; spans written again under the same ids, no point twice",
    ),
    "sigterm at the end of the job": Beside(
        "",
        "all, once: what is not sent yet is sent by the next collector on that disk",
    ),
    "sigkill at the end of the job": Beside(
        "",
        "all; what was under way may be sent again",
    ),
    "sigterm while the backend is away": Beside(
        "",
        "all, once; ends at once",
        "all, once; ends within 12 s, Google's client's patience",
    ),
    "sigkill while the backend is away": Beside(
        "",
        "all; what was under way may be sent again",
    ),
    "a collector that crashes while the job trains": Beside(
        ", and is away for ten seconds",
        "all: spans wait in the job (4,096), values go with the next export",
    ),
}

ELSEWHERE: Final = (
    Outcome(
        "a backend that takes requests and does not answer, SIGTERM",
        "`gcp-sidecar` ended after 18 s, `-classic` when it was killed; everything arrived after a restart",
    ),
    Outcome(
        "credentials that are missing, a role that is not granted, a quota that is used up",
        "what is sent then is refused and dropped, with an error in the log, queue or not; it is in the "
        "[spool](#the-spool), if there is one. Check the account first (`otel-goodput doctor --gcp`, run as the job)",
    ),
    Outcome(
        "a disk that is full, in any configuration with a queue; then it grows, or the backend takes what is there",
        "the sender is told `UNAVAILABLE` and tries again; what was accepted arrives, after a SIGKILL too; the "
        "collector runs on",
        (
            "test_full_disk.py::test_what_was_accepted_arrives_once_there_is_room",
            "test_full_disk.py::test_killed_on_a_full_disk_it_starts_again",
        ),
    ),
    Outcome(
        "… and the collector starts while the disk is full",
        "it starts; what was under way (some requests) is lost, the rest arrives",
        ("test_full_disk.py::test_started_on_a_full_disk_it_loses_what_was_under_way_and_no_more",),
    ),
    Outcome(
        "… and others have filled the disk while the backend takes what comes",
        "a request now and then is lost where its queue cannot note that it is under way. Give it a disk of its own, "
        "three times as large as `queue_size`",
        ("test_full_disk.py::test_a_disk_that_others_have_filled_keeps_nobody_from_going_on",),
    ),
    Outcome(
        "a queue's file that is broken",
        "moved aside (`*.broken.*`, a few `*.backup`) before the collector starts, or starts again, by "
        "`configs/move-broken-queues.sh`; the other signal's queue goes on. It looks at 4,000 pages of a queue (some "
        "250 MB of spans), and not at what they hold",
        (
            "test_full_disk.py::test_a_broken_queue_is_moved_aside_before_it_starts",
            "test_full_disk.py::test_what_is_a_queue_is_left_alone",
        ),
    ),
    Outcome(
        "a queue that is full (1 GB)",
        "the job's spans wait in the job, up to 4,096; metrics made from spans of other clients count such a request "
        "once for each try",
    ),
    Outcome(
        "metrics of another library (any OpenTelemetry SDK with its default cumulative temporality), exported at exit "
        "milliseconds after the export before",
        "the last value, once, if the collector runs for 10 s longer, because it gathers them for that long. At "
        "SIGTERM they leave or stay on the disk, but Cloud Monitoring refuses a point within 5 s of the one before; "
        "a SIGKILL loses up to 10 s of them",
        (
            "test_unpaced.py::test_the_last_value_arrives",
            "test_unpaced.py::test_a_collector_that_is_stopped_at_once_sends_what_it_holds_or_keeps_it_on_disk",
        ),
    ),
    Outcome(
        "metrics made from [spans of other clients](clients.md), SIGTERM or SIGKILL",
        "what came since the last flush, 10 s at most, is lost; nothing after a wait as `preStop`'s",
        ("test_span_metrics.py::test_the_end_loses_what_came_since_the_last_flush",),
    ),
    Outcome(
        "fleet: gateway away, or its name unknown; sidecar killed meanwhile",
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
        "spans of slow, failed and compiling steps wait in the sidecars; of the routine ones that were chosen some "
        "are lost",
    ),
    Outcome(
        "fleet: more traces than the gateway holds, or spans that come after the decision",
        "what is worth seeing is there; what is around it may not be",
        ("test_fleet.py::test_more_traces_than_memory_cost_nothing_worth_seeing",),
    ),
    Outcome(
        "fleet: one of two gateways away for seconds",
        "all, each trace at one of them; after longer absences spans were seen twice, or stayed on the disk of the "
        "gateway that did not come back (by hand)",
        ("test_fleet.py::test_a_trace_is_with_one_of_two_gateways",),
    ),
    Outcome(
        "`otel-goodput send` killed, the collector away, crashing",
        "all; at most one request twice, and then it says so",
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
THEN_RETRIED: Final = "it waits on the disk and is tried again until it is taken"
THEN_REFUSED: Final = "refused for good: dropped, with an error in the log; it is in the spool, where there is one"
