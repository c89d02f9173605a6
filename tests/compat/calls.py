"""Calls of a recorder with times of their own, and the entries that ml-goodput-measurement would write for them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from otel_goodput.compat.goodput import ElasticGoodputRecorder, GoodputCalculator

JOB, LOGGER = "job", "goodput_job"
BEGIN = 1_700_000_000  # s

Call = tuple[str, float, Any]  # the method's name without record_ and _time, seconds since BEGIN, name or number

_ENTRIES = {
    "training_preparation_start": "training_prep_start_time",
    "training_preparation_end": "training_prep_end_time",
}
_NAMES = {
    "step": "step_count",
    "custom_badput_event": "custom_badput_event_type",
    "elastic_wait": "elastic_wait_event_type",
}


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGIN + seconds, timezone.utc)


def recorder() -> ElasticGoodputRecorder:
    return ElasticGoodputRecorder(JOB, LOGGER, True)


def calculator() -> GoodputCalculator:
    return GoodputCalculator(JOB, LOGGER)


def tell(of: ElasticGoodputRecorder, call: Call) -> None:
    """Call the recorder."""
    method, seconds, name = call
    kind = method.rpartition("_")[0]
    function = getattr(of, f"record_{method}_time")
    if kind in ("step", "elastic_wait"):
        function(name, utc(seconds))
    elif kind == "custom_badput_event":
        function(utc(seconds), name)
    else:
        function(utc(seconds))


def entry(call: Call) -> dict[str, Any]:
    """What ml-goodput-measurement writes for the same call."""
    method, seconds, name = call
    kind = method.rpartition("_")[0]
    arguments: dict[str, Any] = {"job_name": JOB}
    if kind in _NAMES:
        arguments[_NAMES[kind]] = name
    arguments[_ENTRIES.get(method, f"{method}_time")] = utc(seconds).timestamp()
    return arguments
