"""Google's goodput series: names, labels and units, as ml-goodput-measurement writes them; all are gauges."""

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
    """One of Google's series: metric type, ``INT64`` or ``DOUBLE``, label keys of the metric, description."""

    type: str
    value_type: str
    labels: tuple[str, ...]
    brief: str


def _series(name: str, brief: str, *labels: str, whole: bool = False) -> WorkloadSeries:
    """Return a series, of integers if `whole`. Almost all have these two labels besides their own."""
    return WorkloadSeries(
        f"{PREFIX}{name}", INT64 if whole else DOUBLE, (*labels, ACCELERATOR_TYPE, CLUSTER_NAME), brief
    )


GOODPUT_TIME: Final = _series("goodput_time", "Productive seconds of the run.", GOODPUT_SOURCE)
BADPUT_TIME: Final = _series("badput_time", "Unproductive seconds of the run, by source.", BADPUT_SOURCE)
ELAPSED_TIME: Final = _series("total_elapsed_time", "Elapsed seconds of the run.", WINDOW_TYPE)
DISRUPTIONS: Final = _series("disruptions", "Restarts and rollbacks of the run.", WINDOW_TYPE, whole=True)
MAX_STEP: Final = _series("max_productive_steps", "Highest step kept.", whole=True)
STEP_DEVIATION: Final = _series("step_time_deviation", "Seconds that recent steps are above the usual time.")
PERFORMANCE: Final = WorkloadSeries(f"{PREFIX}performance", DOUBLE, (), "Ideal step time in seconds.")
INTERVAL_GOODPUT: Final = _series(
    "interval_goodput", "Productive time of a rolling window, percent.", GOODPUT_SOURCE, WINDOW_SIZE
)
INTERVAL_BADPUT: Final = _series(
    "interval_badput", "Unproductive time of a rolling window by source, percent.", BADPUT_SOURCE, WINDOW_SIZE
)
STEPPING_SLICES: Final = _series(
    "stepping_slice_efficiency", "Time-weighted share of slices stepping.", WINDOW_TYPE, WINDOW_SIZE
)
AVAILABLE_SLICES: Final = _series(
    "available_slice_efficiency", "Time-weighted share of slices available.", WINDOW_TYPE, WINDOW_SIZE
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
