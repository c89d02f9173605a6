"""What Cloud Monitoring asks of a point: its times, its value, and how it follows the one before."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from emulators.series_case import Kind, SeriesCase, ValueType, value_of

SECOND = 10**9
PAST, FUTURE, SPACING, RESET = 25 * 3600 * SECOND, 300 * SECOND, 5 * SECOND, SECOND // 1000
BUCKETS = 200


def end_time(case: SeriesCase) -> str | None:
    field = f"Field timeSeries[{case.position}].points[0].interval.end_time had an invalid value"
    if not case.interval.HasField("end_time"):
        return f"{field}: The end time is required."
    of = f'{field} of "{case.interval.end_time.ToJsonString()}"'
    if case.end < case.now - PAST:
        return f"{of}: Data points cannot be written more than 25h in the past."
    if case.end > case.now + FUTURE:
        return f"{of}: Data points cannot be written more than 5m in the future."
    return None


def interval_gauge(case: SeriesCase) -> str | None:
    if case.kind != Kind.GAUGE or case.start in (None, case.end):
        return None
    return (
        f"Field timeSeries[{case.position}].points[0].interval.start_time had an invalid value of "
        f'"{case.interval.start_time.ToJsonString()}": The start time must be equal to the end time '
        f"({case.interval.end_time.ToJsonString()}) for the gauge metric '{case.type}'."
    )


def interval_cumulative(case: SeriesCase) -> str | None:
    if case.kind != Kind.CUMULATIVE or (case.start is not None and case.start < case.end):
        return None
    return (
        f"Field timeSeries[{case.position}].points[0].interval.start_time had an invalid value of "
        f'"{case.interval.start_time.ToJsonString()}": The start time must be before the end time '
        f"({case.interval.end_time.ToJsonString()}) for the non-gauge metric '{case.type}'."
    )


def value(case: SeriesCase) -> str | None:
    if not case.value_type:
        return "The point has no value."
    if case.value_type == ValueType.STRING:
        return "String values are not supported."
    if case.value_type == ValueType.DOUBLE and not math.isfinite(case.value.double_value):
        return f"The value {case.value.double_value} is not finite."
    if case.value_type == ValueType.BOOL and case.kind != Kind.GAUGE:
        return "Boolean values are for gauges only."
    return None


def _finite_buckets(options: Any) -> tuple[int, str | None]:
    """How many buckets the options make, without the two at the ends, and what is wrong with them."""
    match options.WhichOneof("options"):
        case "explicit_buckets":
            bounds = options.explicit_buckets.bounds
            grows = bool(bounds) and all(math.isfinite(bound) for bound in bounds)
            grows = grows and all(low < high for low, high in pairwise(bounds))
            return len(bounds) - 1, None if grows else "The bounds of the buckets must increase."
        case "exponential_buckets":
            exponential = options.exponential_buckets
            good = exponential.num_finite_buckets > 0 and exponential.growth_factor > 1 and exponential.scale > 0
            return exponential.num_finite_buckets, None if good else "The exponential buckets are not valid."
        case "linear_buckets":
            linear = options.linear_buckets
            good = linear.num_finite_buckets > 0 and linear.width > 0
            return linear.num_finite_buckets, None if good else "The linear buckets are not valid."
    return 0, "The distribution has counts but no buckets."


def distribution(case: SeriesCase) -> str | None:
    if case.value_type != ValueType.DISTRIBUTION:
        return None
    distribution = case.value.distribution_value
    if not math.isfinite(distribution.mean):
        return "The mean of the distribution is not finite."
    if not distribution.bucket_counts and not distribution.HasField("bucket_options"):
        return None
    finite, complaint = _finite_buckets(distribution.bucket_options)
    if complaint is not None:
        return complaint
    if finite + 2 > BUCKETS or len(distribution.bucket_counts) > finite + 2:
        return f"The distribution has {max(finite + 2, len(distribution.bucket_counts))} buckets; at most {BUCKETS}."
    total = sum(distribution.bucket_counts)
    if min(distribution.bucket_counts, default=0) < 0 or total != distribution.count:
        return f"The counts of the buckets sum to {total}, the distribution's count is {distribution.count}."
    return None


def duplicate(case: SeriesCase) -> str | None:
    if not case.repeated:
        return None
    return (
        f"Field timeSeries[{case.position}] had an invalid value: Duplicate TimeSeries encountered. Only one point can "
        "be written per TimeSeries per request."
    )


def order(case: SeriesCase) -> str | None:
    if case.last is None:
        return None
    in_order = "Points must be written in order. One or more of the points specified had an older {} time than the most"
    if case.end <= case.last.end:
        return f"{in_order.format('end')} recent point."
    if case.kind == Kind.CUMULATIVE and (case.start or 0) < (case.last.start or 0):
        return f"{in_order.format('start')} recent point."
    return None


def _restarted(case: SeriesCase) -> bool:
    return case.kind == Kind.CUMULATIVE and case.last is not None and case.start != case.last.start


def reset_start(case: SeriesCase) -> str | None:
    if case.last is None or not _restarted(case) or (case.start or 0) >= case.last.end + RESET:
        return None
    return "A new start time must be at least a millisecond after the end time of the most recent point."


def sampling(case: SeriesCase) -> str | None:
    if case.last is None or case.end - case.last.end >= SPACING:
        return None
    return "One or more points were written more frequently than the maximum sampling period configured for the metric."


def decrease(case: SeriesCase) -> str | None:
    if case.last is None or case.kind != Kind.CUMULATIVE or _restarted(case):
        return None
    before, now = (getattr(value, "count", value) for value in (case.last.value, value_of(case.value)))
    return f"The cumulative value fell from {before} to {now}." if now < before else None
