"""The series that Google's goodput dashboards read: names, labels and units, as ml-goodput-measurement writes them.

All are gauges of one monitored resource. Its labels are the location, the job's name and the replica that writes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_goodput.semconv import Category

PREFIX: Final = "compute.googleapis.com/workload/"
RESOURCE: Final = "compute.googleapis.com/Workload"
LOCATION: Final = "location"
ID: Final = "workload_id"
REPLICA_ID: Final = "replica_id"
RESOURCE_LABELS: Final[tuple[str, ...]] = (LOCATION, ID, REPLICA_ID)

GOODPUT_SOURCE: Final = "goodput_source"
BADPUT_SOURCE: Final = "badput_source"
ACCELERATOR_TYPE: Final = "accelerator_type"
WINDOW_TYPE: Final = "window_type"
WINDOW_SIZE: Final = "rolling_window_size"  # seconds, in decimal digits
CLUSTER_NAME: Final = "cluster_name"  # the only optional label

TOTAL: Final = "TOTAL"
CUMULATIVE: Final = "cumulative"
# Values of WINDOW_TYPE for the slice efficiencies, which differ from those of other series.
SLICES_CUMULATIVE: Final = "CUMULATIVE"
SLICES_INTERVAL: Final = "INTERVAL"

INT64: Final = "INT64"
DOUBLE: Final = "DOUBLE"


class WorkloadSeries(NamedTuple):
    """One of Google's series.

    Attributes:
        type: metric type.
        value_type: ``INT64`` or ``DOUBLE``.
        labels: label keys of the metric.
        brief: description.
    """

    type: str
    value_type: str
    labels: tuple[str, ...]
    brief: str


GOODPUT_TIME: Final = WorkloadSeries(
    f"{PREFIX}goodput_time", DOUBLE, (GOODPUT_SOURCE, ACCELERATOR_TYPE, CLUSTER_NAME), "Productive seconds of the run."
)
BADPUT_TIME: Final = WorkloadSeries(
    f"{PREFIX}badput_time",
    DOUBLE,
    (BADPUT_SOURCE, ACCELERATOR_TYPE, CLUSTER_NAME),
    "Unproductive seconds of the run, by source.",
)
ELAPSED_TIME: Final = WorkloadSeries(
    f"{PREFIX}total_elapsed_time", DOUBLE, (ACCELERATOR_TYPE, WINDOW_TYPE, CLUSTER_NAME), "Elapsed seconds of the run."
)
DISRUPTIONS: Final = WorkloadSeries(
    f"{PREFIX}disruptions", INT64, (ACCELERATOR_TYPE, WINDOW_TYPE, CLUSTER_NAME), "Restarts and rollbacks of the run."
)
MAX_STEP: Final = WorkloadSeries(
    f"{PREFIX}max_productive_steps", INT64, (ACCELERATOR_TYPE, CLUSTER_NAME), "Highest step kept."
)
STEP_DEVIATION: Final = WorkloadSeries(
    f"{PREFIX}step_time_deviation",
    DOUBLE,
    (ACCELERATOR_TYPE, CLUSTER_NAME),
    "Seconds that recent steps are above the usual time.",
)
PERFORMANCE: Final = WorkloadSeries(f"{PREFIX}performance", DOUBLE, (), "Ideal step time in seconds.")
INTERVAL_GOODPUT: Final = WorkloadSeries(
    f"{PREFIX}interval_goodput",
    DOUBLE,
    (GOODPUT_SOURCE, ACCELERATOR_TYPE, WINDOW_SIZE, CLUSTER_NAME),
    "Productive time of a rolling window, percent.",
)
INTERVAL_BADPUT: Final = WorkloadSeries(
    f"{PREFIX}interval_badput",
    DOUBLE,
    (BADPUT_SOURCE, ACCELERATOR_TYPE, WINDOW_SIZE, CLUSTER_NAME),
    "Unproductive time of a rolling window by source, percent.",
)
STEPPING_SLICES: Final = WorkloadSeries(
    f"{PREFIX}stepping_slice_efficiency",
    DOUBLE,
    (ACCELERATOR_TYPE, WINDOW_TYPE, WINDOW_SIZE, CLUSTER_NAME),
    "Time-weighted share of slices stepping.",
)
AVAILABLE_SLICES: Final = WorkloadSeries(
    f"{PREFIX}available_slice_efficiency",
    DOUBLE,
    (ACCELERATOR_TYPE, WINDOW_TYPE, WINDOW_SIZE, CLUSTER_NAME),
    "Time-weighted share of slices available.",
)

SERIES: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, WorkloadSeries))

# Google's names for the sources of badput, by our category. A custom phase's name is appended after a dot.
BADPUT_SOURCES: Final[dict[str, str]] = {
    Category.ACCELERATOR_INIT: "TPU_INITIALIZATION",
    Category.TRAINING_PREP: "TRAINING_PREP",
    Category.PROGRAM_STARTUP: "PROGRAM_STARTUP",
    Category.DATA_LOADING: "DATA_LOADING_SYNC",
    Category.CHECKPOINT_SAVE: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    Category.CHECKPOINT_RESTORE: "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    Category.CUSTOM: "CUSTOM_BADPUT_EVENTS",
    Category.WASTED_PROGRESS: "WASTED_PROGRESS_FROM_DISRUPTION",
    Category.STALLED: "OTHER",  # what stalled of kept and lost steps is not badput of its own, see `rows`
    Category.INFRASTRUCTURE_RECOVERY: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Category.ELASTIC_SLICE_DOWN: "ELASTIC_SLICE_DOWN",
    Category.ELASTIC_SCALE_UP: "ELASTIC_SCALE_UP",
    Category.ELASTIC_REINITIALIZATION: "ELASTIC_REINITIALIZATION",
    Category.IN_FLIGHT: "OTHER",
    Category.OTHER: "OTHER",
}
# Data loading that overlaps steps: reported in addition to the partition of time, never part of it.
OVERLAPPED_LOADING_SOURCE: Final = "DATA_LOADING_ASYNC"
