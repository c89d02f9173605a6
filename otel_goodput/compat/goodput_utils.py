"""``goodput_utils`` and ``checkpoint_badput_calculator``; our account is translated into their types here."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
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


class SliceShares(TypedDict, total=False):
    """Shares of slices, from 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class ElasticWorkloadMetricDetails(WorkloadMetricDetails, SliceShares):
    """Figures of an elastic run."""


class IntervalWorkloadMetricDetails(TypedDict):
    """Figures of a window: percent, and its length in seconds."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: dict[BadputType, float | dict[str, float]]
    interval_size: int


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails, SliceShares):
    """Figures of a window of an elastic run."""


ACTIVITY_EXCLUSION_LIST: Final = ["DATA_LOADING_ASYNC"]  # it overlaps training, and is no part of the time


@dataclass
class GCPOptions:
    """Where the monitor's series go, and their labels. What is None is found out from the machine.

    `project_id` is the project; `location` (zone or region), `replica_id`, `acc_type` (the accelerator) and
    `cluster_name` are labels. The others say whether the series of goodput and of the step deviation are written.
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
    """Return a percentile of how far the latest steps deviate, less the median of those before them, in seconds.

    Raises ValueError if the mode is unknown.
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


PERCENT: Final = 100.0
_ELASTIC: Final = (BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION)


def badput_seconds(partition: Partition, overlapped: int = 0, *, elastic: bool = False) -> Badput:
    """Seconds by type; custom events by name. With the productive time, all but ASYNC add up to the elapsed time.

    `overlapped` is data loading that overlapped steps, ns; with `elastic` there are the elastic types also if they are
    0. Stalled time is that of its steps, as in the original.
    """
    seconds = {kind: 0.0 for kind in BadputType if elastic or kind not in _ELASTIC}
    seconds[BadputType.DATA_LOADING_ASYNC] = overlapped / NS
    for category, duration in partition.whole_steps.items():
        if category != Category.PRODUCTIVE and duration:
            kind = BadputType[BADPUT_SOURCES[category]]
            seconds[kind] = seconds.get(kind, 0.0) + duration / NS
    custom = {name: duration / NS for name, duration in partition.custom.items()}
    return {**seconds, BadputType.CUSTOM_BADPUT_EVENTS: custom}


def badput_percent(partition: Partition, overlapped: int = 0, *, elastic: bool = False) -> Badput:
    """The same as shares of the elapsed time, in percent."""
    share = PERCENT * NS / partition.elapsed
    return {
        kind: {name: part * share for name, part in value.items()} if isinstance(value, dict) else value * share
        for kind, value in badput_seconds(partition, overlapped, elastic=elastic).items()
    }


def goodput_percent(partition: Partition) -> float:
    """The productive share in percent; by the host's clock where no other is known."""
    return PERCENT * partition.whole_steps[Category.PRODUCTIVE] / partition.elapsed


# An operation counts once for each step and kind of storage, with the mean of all entries about it: every process
# writes one. The deviation is that of a sample.
OPERATION_TYPE_SAVE: Final = "save"
OPERATION_TYPE_RESTORE: Final = "restore"
OPERATION_TYPE_EMERGENCY_RESTORE: Final = "emergency_restore"
OPERATION_TYPE_LOCAL: Final = "local"
OPERATION_TYPE_PERSISTENT: Final = "persistent"
OPERATION_TYPE_PERSISTENT_AND_LOCAL: Final = "persistent_and_local"
_EITHER: Final = OPERATION_TYPE_PERSISTENT_AND_LOCAL

# What the statistics call a stage, and what Orbax's entries call its length in seconds.
_SAVE: Final = {
    "checkpoint_manager_blocking_time": "checkpoint_manager_blocking_duration_secs",
    "checkpointer_blocking_time": "checkpointer_blocking_duration_secs",
    "wait_for_prev_time": "wait_for_prev_duration_secs",
    "get_old_steps_time": "get_old_steps_duration_secs",
}
_RESTORE: Final = {
    "checkpoint_manager_time": "checkpoint_manager_duration_secs",
    "restore_time": "checkpointer_duration_secs",
    "broadcast_time": "broadcast_duration_secs",
}


_FIGURES: Final = ("total", "average", "minimum", "maximum", "standard_deviation")


def _statistics_class(name: str, stages: Mapping[str, str]) -> Any:
    """Return a dataclass with the figures of each stage in seconds, such as ``total_restore_time``; all are 0."""
    fields = [(f"{figure}_{stage}", float, 0.0) for stage in stages for figure in _FIGURES]
    return make_dataclass(name, fields, namespace={"__module__": __name__})


SaveCheckpointManagerVerticalStepStats = _statistics_class("SaveCheckpointManagerVerticalStepStats", _SAVE)
RestoreCheckpointManagerVerticalStepStats = _statistics_class("RestoreCheckpointManagerVerticalStepStats", _RESTORE)


@dataclass
class CheckpointLoggerOptions:
    """Options of no effect here; the caller fills ``CheckpointBadputCalculator.entries``."""

    job_name: str = "checkpoint_job"
    logger_name: str = "checkpoint_logger"
    client: object = None
    use_goodput_logger: bool = False


@dataclass
class CheckpointBadputCalculator:
    """Statistics of ``entries``: what Orbax's checkpoint logger is called with, as dictionaries. Fill it yourself."""

    options: CheckpointLoggerOptions = field(default_factory=CheckpointLoggerOptions)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def read_entries(self) -> list[dict[str, Any]]:
        """The entries."""
        return self.entries

    def is_valid_save_stats(self, step_stats: Mapping[str, Any], operation_type: str | None = _EITHER) -> bool:
        """Whether the entry is of a save to this kind of storage."""
        other = OPERATION_TYPE_PERSISTENT if _is_local(step_stats) else OPERATION_TYPE_LOCAL
        return step_stats.get("event_type") == OPERATION_TYPE_SAVE and operation_type != other

    def is_valid_restore_stats(self, step_stats: Mapping[str, Any], operation_type: str | None = _EITHER) -> bool:
        """Whether the entry is of a restore of this kind: an emergency restore is local."""
        both = OPERATION_TYPE_RESTORE, OPERATION_TYPE_EMERGENCY_RESTORE
        wanted = {OPERATION_TYPE_PERSISTENT: both[:1], OPERATION_TYPE_LOCAL: both[1:]}
        return step_stats.get("event_type") in wanted.get(operation_type or "", both)

    def calculate_save_operation_checkpoint_manager_blocking_time(self, operation_type: str | None = _EITHER) -> Any:
        """Statistics of the stages of saves, a ``SaveCheckpointManagerVerticalStepStats``."""
        saves = [entry for entry in self.read_entries() if self.is_valid_save_stats(entry, operation_type)]
        return SaveCheckpointManagerVerticalStepStats(**_statistics(saves, _SAVE))

    def calculate_restore_operation_checkpoint_manager_blocking_time(self, operation_type: str | None = _EITHER) -> Any:
        """Statistics of the stages of restores, a ``RestoreCheckpointManagerVerticalStepStats``."""
        restores = [entry for entry in self.read_entries() if self.is_valid_restore_stats(entry, operation_type)]
        return RestoreCheckpointManagerVerticalStepStats(**_statistics(restores, _RESTORE))


def _is_local(step_stats: Mapping[str, Any]) -> bool:
    return not str(step_stats.get("directory", "")).startswith("gs://")


def _statistics(entries: Sequence[Mapping[str, Any]], stages: Mapping[str, str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for stage, key in stages.items():
        lengths: dict[tuple[str, bool], list[float]] = {}
        for entry in entries:
            if entry.get(key) is not None:
                lengths.setdefault((str(entry.get("step")), _is_local(entry)), []).append(float(entry[key]))
        means = [statistics.fmean(each) for each in lengths.values()]
        if means:
            deviation = statistics.stdev(means) if len(means) > 1 else 0.0
            values = sum(means), statistics.fmean(means), min(means), max(means), deviation
            figures |= {f"{figure}_{stage}": value for figure, value in zip(_FIGURES, values, strict=True)}
    return figures
