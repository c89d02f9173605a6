"""The report of refused descriptions: what the last try met, not an earlier one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_goodput.exporters.google.delivery import Delivery, Outcome, RequestResult
from otel_goodput.exporters.google.monitoring import HEAD_START_S, Descriptions

REQUEST = SimpleNamespace(metric_descriptor=SimpleNamespace(type="workload.googleapis.com/g"))


@dataclass
class Refusing:
    """A delivery that is refused once, and whose circuit is then open."""

    report: Callable[..., object] = print
    tries: int = 0

    def __call__(self, send: Callable[[float], object], budget_s: float) -> RequestResult:
        self.tries += 1
        if self.tries == 1:
            self.report("site", "refuses descriptions: %s", "PERMISSION_DENIED")
        return RequestResult(Outcome.CIRCUIT_OPEN)


@contextmanager
def refusing() -> Iterator[Descriptions]:
    descriptions = Descriptions(cast(Delivery, Refusing()), lambda request, seconds: None)
    try:
        yield descriptions
    finally:
        descriptions.close()


def ask(descriptions: Descriptions, request: Any = REQUEST) -> None:
    descriptions.want([request])
    descriptions.wait(HEAD_START_S)


def test_a_refusal_is_reported_when_points_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with refusing() as descriptions:
        ask(descriptions)
        with caplog.at_level(logging.WARNING):
            descriptions.report()
    assert [record.getMessage() for record in caplog.records] == [
        "refuses descriptions: PERMISSION_DENIED. Points are written without it"
    ]


def test_an_old_refusal_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The points went through just after the service let everything through, but no description was tried by then."""
    with refusing() as descriptions:
        ask(descriptions)
        ask(descriptions)
        with caplog.at_level(logging.WARNING):
            descriptions.report()
    assert not caplog.records
