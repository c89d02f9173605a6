"""What is in ``ml_goodput_measurement.goodput_utils``: types of goodput and badput, and options for Google Cloud.

Our account is translated into them here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, TypedDict

from otel_goodput._accounting import stats
from otel_goodput._accounting.totals import Partition
from otel_goodput._metrics import workload_series
from otel_goodput._metrics.workload_series import BADPUT_SOURCES
from otel_goodput._text.durations import NS
from otel_goodput.semconv import Category


class BadputType(enum.Enum):
    """Why time was not productive."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14


class GoodputType(enum.Enum):
    """Productive time has one type."""

    TOTAL = 1


class MetricType(enum.Enum):
    """Keys of what ``get_job_goodput_details()`` returns."""

    GOODPUT_TIME = "goodput_time"
    BADPUT_TIME = "badput_time"
    MAX_PRODUCTIVE_STEP = "max_productive_step"
    TOTAL_ELAPSED_TIME = "total_elapsed_time"
    DISRUPTION_COUNT = "disruption_count"
    STEP_TIME_DEVIATION = "step_time_deviation"
    IDEAL_STEP_TIME = "ideal_step_time"
    TOTAL_EXCLUDED_TIME = "total_excluded_time"


class IntervalMetricType(enum.Enum):
    """Keys of what ``get_interval_metric_details()`` returns."""

    INTERVAL_GOODPUT = "interval_goodput"
    INTERVAL_BADPUT = "interval_badput"
    INTERVAL_SIZE = "interval_size"


class MonitoringWindowType(enum.Enum):
    """What a figure is about: the whole run, or a window."""

    CUMULATIVE = workload_series.CUMULATIVE
    INTERVAL = "interval"


Badput = dict[BadputType, "float | dict[str, float]"]
UnproductiveTimeDict = Badput


class WorkloadMetricDetails(TypedDict):
    """Figures of the whole run; times in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: dict[BadputType, float | dict[str, float]]
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: dict[int, float]
    ideal_step_time: float
    total_excluded_time: float


class ElasticWorkloadMetricDetails(WorkloadMetricDetails, total=False):
    """Figures of an elastic run; shares of slices from 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class IntervalWorkloadMetricDetails(TypedDict):
    """Figures of a window: percent, and its length in seconds."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: dict[BadputType, float | dict[str, float]]
    interval_size: int


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails, total=False):
    """Figures of a window of an elastic run; shares of slices from 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


ACTIVITY_EXCLUSION_LIST: Final = ["DATA_LOADING_ASYNC"]  # it overlaps training, and is no part of the time


@dataclass
class GCPOptions:
    """Where the monitor's series go. What is None is found out from the machine.

    Attributes:
        project_id: the project.
        location: zone or region, a label of the series.
        replica_id: a label of the series.
        acc_type: the accelerator, a label of the series.
        cluster_name: a label of the series.
        enable_gcp_goodput_metrics, enable_gcp_step_deviation_metrics: whether to write these.
    """

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


def compute_ideal_step_time(step_times: list[float]) -> float | None:
    """The usual time of a step: the mean of those that are no outliers, in seconds as they are given; None of none."""
    ideal = stats.ideal_step_time(sorted(round(seconds * NS) for seconds in step_times))
    return None if ideal is None else ideal / NS


def compute_step_deviation_from_baseline(
    step_time_deviation: dict[int, float],
    mode: MonitoringWindowType = MonitoringWindowType.CUMULATIVE,
    recent_window_size: int = 100,
    baseline_window_size: int = 1000,
    spike_percentile: int = 90,
) -> float:
    """How far the latest steps deviate, in seconds: a percentile of theirs, less the median of those before them.

    Raises:
        ValueError: the mode is unknown.
    """
    if mode not in (MonitoringWindowType.CUMULATIVE, MonitoringWindowType.INTERVAL):
        raise ValueError(f"mode {mode!r} is neither CUMULATIVE nor INTERVAL")
    deviations = [round(abs(seconds) * NS) for seconds in step_time_deviation.values()]
    if not deviations:
        return 0.0
    if len(deviations) < recent_window_size:
        return sum(deviations) / len(deviations) / NS
    spike = stats.quantile(sorted(deviations[-recent_window_size:]), spike_percentile / 100)
    before = deviations[:-recent_window_size][-baseline_window_size:]
    if mode is MonitoringWindowType.INTERVAL or len(before) < baseline_window_size:
        return spike / NS
    return (spike - stats.median(before)) / NS


def get_timestamp_from_log_entry(entry: dict[str, Any]) -> Any:
    """The time of an entry of ml-goodput-measurement as a datetime in UTC; None if it has none."""
    timestamp = next((value for name, value in entry.items() if "time" in name), None)
    return None if timestamp is None else datetime.fromtimestamp(timestamp, timezone.utc)


# --- the account in these words ---------------------------------------------------------------------------------------

PERCENT: Final = 100.0
_ELASTIC: Final = (BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION)


def badput_seconds(partition: Partition, overlapped: int = 0, *, elastic: bool = False) -> Badput:
    """Seconds by type; custom events by name. With the productive time, all but ASYNC add up to the elapsed time.

    Args:
        partition: the account; stalled time is that of its steps, as in the original.
        overlapped: data loading that overlapped steps, ns.
        elastic: whether to have the elastic types also if they are 0.
    """
    seconds: dict[BadputType, float] = {
        kind: 0.0 for kind in BadputType if kind is not BadputType.CUSTOM_BADPUT_EVENTS and kind not in _ELASTIC
    }
    if elastic:
        seconds |= dict.fromkeys(_ELASTIC, 0.0)
    seconds[BadputType.DATA_LOADING_ASYNC] = overlapped / NS
    for category, duration in partition.whole_steps.items():
        if category != Category.PRODUCTIVE and duration:
            kind = BadputType[BADPUT_SOURCES[category]]
            seconds[kind] = seconds.get(kind, 0.0) + duration / NS
    custom = {name: duration / NS for name, duration in partition.custom.items()}
    return {**seconds, BadputType.CUSTOM_BADPUT_EVENTS: custom}


def badput_percent(seconds: Mapping[BadputType, float | dict[str, float]], elapsed: int) -> Badput:
    """The same as shares of `elapsed` (ns), in percent."""
    share = PERCENT * NS / elapsed
    return {
        kind: {name: part * share for name, part in value.items()} if isinstance(value, dict) else value * share
        for kind, value in seconds.items()
    }


def goodput_percent(partition: Partition) -> float:
    """The productive share in percent; by the host's clock where no other is known."""
    return PERCENT * partition.whole_steps[Category.PRODUCTIVE] / partition.elapsed
