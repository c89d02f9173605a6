"""Whatever a call raises is an answer that is understood, or one that is not and may be asked for again."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from emulators.google import GoogleEmulator
from google.api_core import exceptions
from hypothesis import given
from hypothesis import strategies as st

from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.exporters.google.connection import MONITORING, Connection
from otel_goodput.exporters.google.delivery import PERMANENT, TRANSIENT, Delivery, Outcome, failure_of


class Odd(Exception):
    """An error whose parts are as they are made."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__ |= parts


def _raises(*_: object) -> Any:
    raise RuntimeError("no")


PARTS = st.sampled_from(
    [None, 7, "text", b"\xff", [], [None], _raises, lambda: None, lambda: 7, lambda: grpc.StatusCode.ABORTED, object()]
)


@given(parts=st.dictionaries(st.sampled_from(["code", "details", "errors", "args", "trailing_metadata"]), PARTS))
def test_no_error_is_too_odd(parts: dict[str, Any]) -> None:
    failure = failure_of(Odd(**parts))
    assert isinstance(failure.code, str) and isinstance(failure.text, str) and failure.cause


@pytest.mark.parametrize("error", [ValueError("Code in Status proto (3) doesn't match status code (8)"), KeyError(1)])
def test_what_cannot_be_read_may_be_tried_again(error: Exception) -> None:
    failure = failure_of(error)
    assert failure.code == "UNKNOWN" and failure.code in TRANSIENT and str(error) in failure.text


def test_a_package_that_is_missing_is_no_items_fault() -> None:
    failure = failure_of(ImportError("no module named 'grpc'"))
    assert failure.code in PERMANENT and "grpc" in failure.text


def test_what_googles_client_wraps_is_known_by_its_code() -> None:
    failure = failure_of(exceptions.PermissionDenied("not you"))
    assert failure.text


def test_a_service_that_is_known_to_be_away_is_not_complained_of_for_being_late(google: GoogleEmulator) -> None:
    connection = Connection(
        {OTEL_GOODPUT_GCP_ENDPOINT.name: google.endpoint, OTEL_GOODPUT_GCP_PROJECT.name: "test-project"}
    )
    logged, stopping = list[str](), ShutdownSignal()

    def report(_: str, text: str, *words: object) -> None:
        logged.append(text % words)

    metrics, others = (Delivery(MONITORING, "points", connection, stopping, 0.5, report) for _ in range(2))

    def send(seconds: float) -> None:
        connection.client(MONITORING).create_time_series(
            name="projects/test-project", time_series=[], timeout=seconds, retry=None
        )

    google.fail("CreateTimeSeries", "UNAVAILABLE", None)
    assert metrics(send, 0.4).outcome is Outcome.TIMED_OUT
    google.heal()
    google.hang("CreateTimeSeries")
    for delivery in (metrics, others):
        assert delivery(send, 0.4).outcome is Outcome.TIMED_OUT
    [line] = logged
    assert line.startswith("Cloud Monitoring cannot be reached: UNAVAILABLE")
    assert metrics(lambda _: None, 0.4).outcome is Outcome.DELIVERED  # it is there again
    assert others(send, 0.4).outcome is Outcome.TIMED_OUT
    assert logged[-1].startswith("Cloud Monitoring does not accept points: DEADLINE_EXCEEDED")
    google.heal()
