"""All names that this package exports: phases, categories, attributes, metrics, resource keys.

Names follow OpenTelemetry's semantic conventions and units follow UCUM. No other module may spell one of these names
as a literal. The tables of the documentation are generated from this module.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCOPE_NAME: Final = "otel_goodput"


def _names(cls: type) -> tuple[str, ...]:
    """Return the names that a class declares, in their order."""
    return tuple(value for key, value in vars(cls).items() if key.isupper())


# --- phases -----------------------------------------------------------------------------------------------------------


class Phase:
    """Names of the phases. They are also the span names, except that a custom phase's span has the user's name.

    The journal stores indices into this table: append, never reorder.
    """

    JOB: Final = "job"
    ACCELERATOR_INIT: Final = "accelerator_init"
    TRAINING_PREP: Final = "training_prep"
    DATA_LOADING: Final = "data_loading"
    STEP: Final = "step"
    CHECKPOINT_SAVE: Final = "checkpoint_save"
    CHECKPOINT_RESTORE: Final = "checkpoint_restore"
    CUSTOM: Final = "custom"
    COMPILE: Final = "compile"
    ELASTIC_WAIT: Final = "elastic_wait"
    ELASTIC_REINIT: Final = "elastic_reinit"
    # A time that the user excludes from the account (rule R7): neither badput nor elapsed time.
    EXCLUSION: Final = "exclusion"
    # A part of a step, such as the forward pass, or of a checkpoint: its time is accounted to what it is a part of.
    PART: Final = "part"


PHASES: Final = _names(Phase)


class CheckpointStage:
    """Names of the parts of saves and restores, as Orbax reports them: ``checkpoint.<operation>.<stage>``.

    ``total`` is the whole call; ``commit`` runs while training continues.
    """

    SAVE_TOTAL: Final = "checkpoint.save.total"
    SAVE_WAIT: Final = "checkpoint.save.wait_for_previous"
    SAVE_COPY: Final = "checkpoint.save.blocking_copy"
    SAVE_FIND_OLD: Final = "checkpoint.save.find_old"
    SAVE_COMMIT: Final = "checkpoint.save.commit"
    SAVE_DELETE_OLD: Final = "checkpoint.save.delete_old"
    RESTORE_TOTAL: Final = "checkpoint.restore.total"
    RESTORE_READ: Final = "checkpoint.restore.read"
    EMERGENCY_TOTAL: Final = "checkpoint.emergency_restore.total"
    EMERGENCY_READ: Final = "checkpoint.emergency_restore.read"
    EMERGENCY_BROADCAST: Final = "checkpoint.emergency_restore.broadcast"


# Name of the part -> (operation, stage), in the order of reports.
CHECKPOINT_STAGES: Final[dict[str, tuple[str, str]]] = {
    name: (operation, stage) for name in _names(CheckpointStage) for _, operation, stage in [name.split(".")]
}

# The root of an attempt's trace: zero duration, written when the first job begins; not a phase.
ATTEMPT_SPAN: Final = "attempt"
# A `steps` span summarizes consecutive steps that are not all exported; it is not a phase.
STEPS_SUMMARY_SPAN: Final = "steps"
# `continuation` is the root of a further trace of an attempt; `continued` points to it from the previous trace.
CONTINUATION_SPAN: Final = "continuation"
CONTINUED_SPAN: Final = "continued"
# A `phases` span summarizes many phases of one name, other than steps, that are not all exported.
PHASES_SUMMARY_SPAN: Final = "phases"

ELASTIC_SLICE_DOWN: Final = "slice_down"
ELASTIC_SCALE_UP: Final = "scale_up"
ELASTIC_WAITS: Final = (ELASTIC_SLICE_DOWN, ELASTIC_SCALE_UP)


# --- categories of the partition --------------------------------------------------------------------------------------


class Category:
    """Names of the categories: every nanosecond of a run belongs to exactly one."""

    PRODUCTIVE: Final = "productive"
    ACCELERATOR_INIT: Final = "accelerator_init"
    TRAINING_PREP: Final = "training_prep"
    PROGRAM_STARTUP: Final = "program_startup"
    DATA_LOADING: Final = "data_loading"
    CHECKPOINT_SAVE: Final = "checkpoint_save"
    CHECKPOINT_RESTORE: Final = "checkpoint_restore"
    CUSTOM: Final = "custom"
    WASTED_PROGRESS: Final = "wasted_progress"
    STALLED: Final = "stalled"
    INFRASTRUCTURE_RECOVERY: Final = "infrastructure_recovery"
    ELASTIC_SLICE_DOWN: Final = "elastic_slice_down"
    ELASTIC_SCALE_UP: Final = "elastic_scale_up"
    ELASTIC_REINITIALIZATION: Final = "elastic_reinitialization"
    IN_FLIGHT: Final = "in_flight"
    OTHER: Final = "other"


CATEGORIES: Final = _names(Category)


class Reason:
    """Why an attempt followed another (rule R6).

    The journal stores indices into this table: append, never reorder.
    """

    CRASH: Final = "crash"
    PREEMPTION: Final = "preemption"
    MAINTENANCE: Final = "maintenance"
    SIGNAL: Final = "signal"
    RESTART: Final = "restart"
    ROLLBACK: Final = "rollback"


REASONS: Final = _names(Reason)


class ClockState:
    """The clock that gives the end of a step."""

    DEVICE: Final = "device"  # from an observed output, or a marker dispatched right after the step
    HOST: Final = "host"  # no asynchronous runtime is in use
    UNKNOWN: Final = "unknown"  # an asynchronous runtime is in use, and the end on the device is not known


CLOCK_STATES: Final = _names(ClockState)

# Clocks of steps whose end on the device is not known. The journal stores indices into this table.
FALLBACK_CLOCKS: Final[tuple[str, ...]] = (ClockState.HOST, ClockState.UNKNOWN)


class JobState:
    """Whether a run is still going on."""

    RUNNING: Final = "running"
    ENDED: Final = "ended"  # the job ended by itself, without an error or a notice of its end


JOB_STATES: Final = _names(JobState)


class SchedulingStage:
    """What an attempt waits for before its program runs, in this order."""

    QUEUED: Final = "queued"  # from the creation of the pod until it is given a node
    IMAGE_PULL: Final = "image_pull"
    CONTAINER_START: Final = "container_start"  # until the container runs, without the pull of its image
    PROGRAM_START: Final = "program_start"  # from the start of the container until configure()


SCHEDULING_STAGES: Final = _names(SchedulingStage)


# --- span attributes --------------------------------------------------------------------------------------------------


class Attribute(NamedTuple):
    """One attribute key: its OpenTelemetry type, the spans or events that have it, and its meaning."""

    key: str
    type: str
    on: str
    brief: str


GOODPUT_PHASE: Final = "goodput.phase"
GOODPUT_STEP: Final = "goodput.step"
GOODPUT_CUSTOM_NAME: Final = "goodput.custom.name"
GOODPUT_PART_NAME: Final = "goodput.part.name"
GOODPUT_BLOCKING: Final = "goodput.blocking"
GOODPUT_STEP_COMPLETED: Final = "goodput.step.completed"
GOODPUT_STEP_DEVICE_DURATION: Final = "goodput.step.device_duration"
GOODPUT_STEP_OUTLIER: Final = "goodput.step.outlier"
GOODPUT_CHECKPOINT_DURABLE: Final = "goodput.checkpoint.durable"
GOODPUT_NOTICE_EVENT: Final = "goodput.notice"  # an event of the job span
GOODPUT_NOTICE_SOURCE: Final = "goodput.notice.source"
GOODPUT_NOTICE_VALUE: Final = "goodput.notice.value"
GOODPUT_INTERRUPTED: Final = "goodput.interrupted"
GOODPUT_COMPILE_FUNCTION: Final = "goodput.compile.function"
GOODPUT_COMPILE_RECOMPILATION: Final = "goodput.compile.recompilation"
GOODPUT_COMPILE_CACHE_HIT: Final = "goodput.compile.cache_hit"
GOODPUT_COMPILE_CACHE_RETRIEVAL: Final = "goodput.compile.cache_retrieval_duration"
GOODPUT_COMPILE_TRACE: Final = "goodput.compile.trace_duration"
GOODPUT_COMPILE_LOWER: Final = "goodput.compile.lower_duration"
GOODPUT_COMPILE_BACKEND: Final = "goodput.compile.backend_duration"
GOODPUT_COMPILE_STAGES: Final = (GOODPUT_COMPILE_TRACE, GOODPUT_COMPILE_LOWER, GOODPUT_COMPILE_BACKEND)
GOODPUT_ELASTIC_KIND: Final = "goodput.elastic.kind"
GOODPUT_STEPS_FIRST: Final = "goodput.steps.first"
GOODPUT_STEPS_LAST: Final = "goodput.steps.last"
GOODPUT_STEPS_COUNT: Final = "goodput.steps.count"
GOODPUT_STEPS_SUM: Final = "goodput.steps.duration.sum"
GOODPUT_STEPS_MIN: Final = "goodput.steps.duration.min"
GOODPUT_STEPS_MEDIAN: Final = "goodput.steps.duration.median"
GOODPUT_STEPS_P90: Final = "goodput.steps.duration.p90"
GOODPUT_STEPS_MAX: Final = "goodput.steps.duration.max"
GOODPUT_TRACE_NUMBER: Final = "goodput.trace.number"
GOODPUT_TRACE_GROUP: Final = "goodput.trace.group"
GOODPUT_PHASES_NAME: Final = "goodput.phases.name"
GOODPUT_PHASES_COUNT: Final = "goodput.phases.count"
GOODPUT_PHASES_SUM: Final = "goodput.phases.duration.sum"
GOODPUT_PHASES_MIN: Final = "goodput.phases.duration.min"
GOODPUT_PHASES_MEDIAN: Final = "goodput.phases.duration.median"
GOODPUT_PHASES_P90: Final = "goodput.phases.duration.p90"
GOODPUT_PHASES_MAX: Final = "goodput.phases.duration.max"
ERROR_TYPE: Final = "error.type"

SPAN_ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    Attribute(GOODPUT_PHASE, "string", "all but `attempt` and `steps`", "the phase; a span with it is accounted"),
    Attribute(
        GOODPUT_STEP,
        "int",
        "step; data_loading, checkpoint_*, compile inside or for a step",
        "the number that its loop gives the step; of a checkpoint, its label",
    ),
    Attribute(GOODPUT_CUSTOM_NAME, "string", "custom", "the user's name of the phase, of low cardinality"),
    Attribute(GOODPUT_PART_NAME, "string", "part", "the user's name of the part of a step, or a checkpoint's stage"),
    Attribute(GOODPUT_BLOCKING, "bool", "where it differs from the default", "whether the phase holds up training"),
    Attribute(GOODPUT_STEP_COMPLETED, "bool", "step", "false: left early (break, exception, death)"),
    Attribute(GOODPUT_STEP_DEVICE_DURATION, "int (ns)", "observed steps", "time on the device"),
    Attribute(GOODPUT_STEP_OUTLIER, "bool", "step", "exported because it was slow; at most 5 in 1,024 steps"),
    Attribute(GOODPUT_CHECKPOINT_DURABLE, "bool", "checkpoint_save", "whether the checkpoint is known to be durable"),
    Attribute(GOODPUT_INTERRUPTED, "bool", "any", "closed by recovery or shutdown, not by its owner"),
    Attribute(GOODPUT_NOTICE_SOURCE, "string", "event `goodput.notice` of job", "the signal, or the metadata key"),
    Attribute(GOODPUT_NOTICE_VALUE, "string", "event `goodput.notice` of job", "the metadata server's value"),
    Attribute(GOODPUT_COMPILE_FUNCTION, "string", "compile", "the function compiled"),
    Attribute(GOODPUT_COMPILE_RECOMPILATION, "bool", "compile", "true: the function had been compiled before"),
    Attribute(GOODPUT_COMPILE_CACHE_HIT, "bool", "compile", "whether the persistent cache had it"),
    Attribute(GOODPUT_COMPILE_CACHE_RETRIEVAL, "int (ns)", "compile", "time to get it from the persistent cache"),
    Attribute(GOODPUT_COMPILE_TRACE, "int (ns)", "compile", "time to trace the function"),
    Attribute(GOODPUT_COMPILE_LOWER, "int (ns)", "compile", "time to lower it"),
    Attribute(GOODPUT_COMPILE_BACKEND, "int (ns)", "compile", "time in the compiler"),
    Attribute(GOODPUT_ELASTIC_KIND, "string", "elastic_wait", "`slice_down` or `scale_up`"),
    Attribute(GOODPUT_STEPS_FIRST, "int", "steps", "first of the summarized steps"),
    Attribute(GOODPUT_STEPS_LAST, "int", "steps", "last of the summarized steps"),
    Attribute(GOODPUT_STEPS_COUNT, "int", "steps", "number of steps"),
    Attribute(GOODPUT_STEPS_SUM, "int (ns)", "steps", "sum of the steps' durations"),
    Attribute(GOODPUT_STEPS_MIN, "int (ns)", "steps", "shortest"),
    Attribute(GOODPUT_STEPS_MEDIAN, "int (ns)", "steps", "median"),
    Attribute(GOODPUT_STEPS_P90, "int (ns)", "steps", "90th percentile"),
    Attribute(GOODPUT_STEPS_MAX, "int (ns)", "steps", "longest"),
    Attribute(GOODPUT_TRACE_NUMBER, "int", "any in a further trace of an attempt", "which of its traces, from 1"),
    Attribute(
        GOODPUT_TRACE_GROUP, "int", "continuation, continued", "the group of processes whose trace it is, above 0"
    ),
    Attribute(GOODPUT_PHASES_NAME, "string", "phases", "name of the summarized phases: the phase, or the user's name"),
    Attribute(GOODPUT_PHASES_COUNT, "int", "phases", "number of phases"),
    Attribute(GOODPUT_PHASES_SUM, "int (ns)", "phases", "sum of the phases' durations"),
    Attribute(GOODPUT_PHASES_MIN, "int (ns)", "phases", "shortest"),
    Attribute(GOODPUT_PHASES_MEDIAN, "int (ns)", "phases", "median"),
    Attribute(GOODPUT_PHASES_P90, "int (ns)", "phases", "90th percentile"),
    Attribute(GOODPUT_PHASES_MAX, "int (ns)", "phases", "longest"),
    Attribute(ERROR_TYPE, "string", "any", "the exception that left the phase"),
)


# --- metrics ----------------------------------------------------------------------------------------------------------

GOODPUT_CATEGORY: Final = "goodput.category"
GOODPUT_WINDOW: Final = "goodput.window"
GOODPUT_STEP_STATE: Final = "goodput.step.state"
GOODPUT_DISRUPTION_REASON: Final = "goodput.disruption.reason"
GOODPUT_SLICE_STATE: Final = "goodput.slice.state"
GOODPUT_SIGNAL: Final = "goodput.signal"
GOODPUT_CLOCK_STATE: Final = "goodput.clock.state"
GOODPUT_JOB_STATE: Final = "goodput.job.state"
GOODPUT_COMPILE_CACHE_RESULT: Final = "goodput.compile.cache.result"
GOODPUT_SCHEDULING_STAGE: Final = "goodput.scheduling.stage"
GOODPUT_ACTIVITY: Final = "goodput.activity"

WINDOW_RUN: Final = "run"
STEP_KEPT: Final = "kept"
STEP_LOST: Final = "lost"
SLICE_STEPPING: Final = "stepping"
SLICE_AVAILABLE: Final = "available"
IN_STEP: Final = "step"
BETWEEN_STEPS: Final = "other"  # loading, a save, an evaluation, anything else, and before the first step
ACTIVITIES: Final = (IN_STEP, BETWEEN_STEPS)
CACHE_RESULTS: Final = ("hit", "miss")


class Metric(NamedTuple):
    """One instrument: its name, OpenTelemetry instrument kind, UCUM unit, closed set of attribute keys, description."""

    name: str
    kind: str
    unit: str
    attributes: tuple[str, ...]
    brief: str


# A figure of the run, which every attempt reports from the beginning of the run: read with max or last.
UP_DOWN: Final = "ObservableUpDownCounter"
# What begins at 0 with each process, and only grows: deltas and rates of it are right.
COUNTER: Final = "ObservableCounter"
GAUGE: Final = "ObservableGauge"
HISTOGRAM: Final = "Histogram"

TIME: Final = Metric(
    "goodput.time",
    UP_DOWN,
    "s",
    (GOODPUT_CATEGORY, GOODPUT_CUSTOM_NAME),
    "Wall time of the run by category; the categories sum to the elapsed time.",
)
RATIO: Final = Metric(
    "goodput.ratio",
    GAUGE,
    "1",
    (GOODPUT_WINDOW,),
    "Productive time as a share of elapsed time, run and rolling windows.",
)
BADPUT_RATIO: Final = Metric(
    "badput.ratio",
    GAUGE,
    "1",
    (GOODPUT_WINDOW, GOODPUT_CATEGORY, GOODPUT_CUSTOM_NAME),
    "Unproductive time as a share of elapsed time, by category.",
)
STALLED_RATIO: Final = Metric(
    "goodput.stalled.ratio",
    GAUGE,
    "1",
    (GOODPUT_WINDOW, GOODPUT_STEP_STATE),
    "Stalled time of kept and of lost steps as a share of elapsed time.",
)
STEP_DURATION: Final = Metric("goodput.step.duration", HISTOGRAM, "s", (), "Net time of completed steps.")
PHASE_DURATION: Final = Metric(
    "goodput.phase.duration",
    HISTOGRAM,
    "s",
    (GOODPUT_PHASE, GOODPUT_CUSTOM_NAME, GOODPUT_BLOCKING, ERROR_TYPE),
    "Duration of phases other than steps.",
)
PART_DURATION: Final = Metric(
    "goodput.part.duration", HISTOGRAM, "s", (GOODPUT_PART_NAME,), "Duration of the parts of steps and checkpoints."
)
QUEUE_DEPTH: Final = Metric(
    "goodput.loading.queue_depth", GAUGE, "{batch}", (), "Batches that are ready, if the loader reports them."
)
STEP_COUNT: Final = Metric(
    "goodput.step.count", UP_DOWN, "{step}", (GOODPUT_STEP_STATE,), "Executions of steps, by fate."
)
STEP_AGE: Final = Metric(
    "goodput.step.age",
    GAUGE,
    "s",
    (GOODPUT_ACTIVITY,),
    "Time since the last completed step, or since the job began; 0 for activities that are not current.",
)
STEP_MAX: Final = Metric("goodput.step.max_productive", GAUGE, "{step}", (), "Highest kept step.")
STEP_IDEAL: Final = Metric("goodput.step.ideal_time", GAUGE, "s", (), "Ideal step time.")
STEP_DEVIATION: Final = Metric("goodput.step.deviation", GAUGE, "s", (), "How far recent steps exceed the usual time.")
AT_RISK: Final = Metric("goodput.at_risk", GAUGE, "s", (), "Productive time that a crash right now would lose.")
DISRUPTIONS: Final = Metric(
    "goodput.disruptions", UP_DOWN, "{disruption}", (GOODPUT_DISRUPTION_REASON,), "Restarts and rollbacks of the run."
)
WINDOW_DISRUPTIONS: Final = Metric(
    "goodput.window.disruptions",
    GAUGE,
    "{disruption}",
    (GOODPUT_WINDOW, GOODPUT_DISRUPTION_REASON),
    "Restarts and rollbacks per rolling window, of the latest 100 at most; a reason appears once it has occurred.",
)
OVERLAPPED_LOADING: Final = Metric(
    "goodput.loading.overlapped", UP_DOWN, "s", (), "Data loading that did not block training; it costs no goodput."
)
FIRST_STEP: Final = Metric(
    "goodput.time_to_first_step", GAUGE, "s", (), "From the start of the latest job to the end of its first step."
)
REGAINED: Final = Metric(
    "goodput.disruption.time_to_regain",
    GAUGE,
    "s",
    (),
    "From the latest disruption until the highest step kept before it was regained.",
)
SCHEDULING_RATIO: Final = Metric(
    "goodput.scheduling.ratio", GAUGE, "1", (), "Elapsed time divided by elapsed plus queued time."
)
SCHEDULING_DURATION: Final = Metric(
    "goodput.scheduling.duration",
    GAUGE,
    "s",
    (GOODPUT_SCHEDULING_STAGE,),
    "How long this attempt waited before its program ran, by stage, if Kubernetes reports it.",
)
PROGRAM_RATIO: Final = Metric(
    "goodput.program.ratio", GAUGE, "1", (), "Model FLOPs utilization of the productive time."
)
PRODUCTIVITY: Final = Metric("goodput.productivity", GAUGE, "1", (), "Scheduling x runtime x program goodput.")
SLICE_EFFICIENCY: Final = Metric(
    "goodput.slice.efficiency",
    GAUGE,
    "1",
    (GOODPUT_SLICE_STATE,),
    "Time-weighted share of slices stepping or available.",
)
SLICE_SHARE: Final = Metric(
    "goodput.slice.share", GAUGE, "1", (GOODPUT_SLICE_STATE,), "Share of slices stepping or available now."
)
SLICE_WINDOW_EFFICIENCY: Final = Metric(
    "goodput.slice.window_efficiency",
    GAUGE,
    "1",
    (GOODPUT_WINDOW, GOODPUT_SLICE_STATE),
    "Time-weighted share of slices stepping or available, of rolling windows.",
)
CLOCK: Final = Metric(
    "goodput.clock",
    GAUGE,
    "1",
    (GOODPUT_CLOCK_STATE,),
    "1 for the clock by which the ends of steps are known: the device's, the host's, or unknown.",
)
JOB_STATE: Final = Metric(
    GOODPUT_JOB_STATE,
    GAUGE,
    "1",
    (GOODPUT_JOB_STATE,),
    "1 for the state of the run, 0 for the other: running, or ended cleanly.",
)
LAST_SIGN: Final = Metric(
    "goodput.job.last_sign_of_life",
    GAUGE,
    "s",
    (),
    "Unix time at which the run was last known to be alive; once it has ended, of its end.",
)
STRAGGLER: Final = Metric(
    "goodput.straggler.ratio", GAUGE, "1", (), "Median step time of the slowest process over the median of all."
)
COMPILE_CACHE: Final = Metric(
    "goodput.compile.cache",
    COUNTER,
    "{function}",
    (GOODPUT_COMPILE_CACHE_RESULT,),
    "Functions found in jax's persistent cache, or compiled and stored in it, in this attempt.",
)
# It falls where fetching took longer than compiling.
COMPILE_TIME_SAVED: Final = Metric(
    "goodput.compile.time_saved",
    UP_DOWN,
    "s",
    (),
    "Compile time saved by hits of the persistent cache, minus the time to fetch them, in this attempt.",
)
OVERHEAD: Final = Metric(
    "goodput.telemetry.overhead",
    COUNTER,
    "s",
    (),
    "Time this package took on the training thread (estimated from samples).",
)
DROPPED: Final = Metric(
    "goodput.telemetry.dropped", COUNTER, "{item}", (GOODPUT_SIGNAL,), "Telemetry items that were lost."
)

METRICS: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))


# --- resource ---------------------------------------------------------------------------------------------------------

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
# For collectors: the points of these metrics are already as far apart as Cloud Monitoring requires.
TELEMETRY_SPACED: Final = "goodput.telemetry.spaced"
TELEMETRY_DISTRO_NAME: Final = "telemetry.distro.name"
TELEMETRY_DISTRO_VERSION: Final = "telemetry.distro.version"
RUN_ID: Final = "goodput.run.id"
ATTEMPT: Final = "goodput.attempt"
TRACE_ID: Final = "goodput.trace.id"  # of the attempt, if this package's provider made it
PROCESS_INDEX: Final = "goodput.process.index"
PROCESS_COUNT: Final = "goodput.process.count"
LAUNCHER_NAME: Final = "goodput.launcher.name"
LAUNCHER_RESTARTS: Final = "goodput.launcher.restarts"
ACCELERATOR_TYPE: Final = "goodput.accelerator.type"
ACCELERATOR_COUNT: Final = "goodput.accelerator.count"
HOST_NAME: Final = "host.name"
HOST_ID: Final = "host.id"
HOST_TYPE: Final = "host.type"
PROCESS_PID: Final = "process.pid"

CLOUD_PROVIDER: Final = "cloud.provider"
CLOUD_PLATFORM: Final = "cloud.platform"
CLOUD_ACCOUNT_ID: Final = "cloud.account.id"
CLOUD_REGION: Final = "cloud.region"
CLOUD_AVAILABILITY_ZONE: Final = "cloud.availability_zone"
GCP_PROJECT_ID: Final = "gcp.project_id"
LOCATION: Final = "location"  # accepted by the Telemetry API instead of zone and region


class GoogleCloud:
    """Values of ``cloud.provider`` and ``cloud.platform``."""

    PROVIDER: Final = "gcp"
    COMPUTE_ENGINE: Final = "gcp_compute_engine"
    KUBERNETES_ENGINE: Final = "gcp_kubernetes_engine"


K8S_CLUSTER_NAME: Final = "k8s.cluster.name"
K8S_NAMESPACE_NAME: Final = "k8s.namespace.name"
K8S_NODE_NAME: Final = "k8s.node.name"
K8S_POD_NAME: Final = "k8s.pod.name"
K8S_POD_UID: Final = "k8s.pod.uid"
K8S_CONTAINER_NAME: Final = "k8s.container.name"
K8S_JOB_NAME: Final = "k8s.job.name"
# The semantic conventions have no names for these.
K8S_JOB_COMPLETION_INDEX: Final = "k8s.job.completion_index"
K8S_JOBSET_NAME: Final = "k8s.jobset.name"
K8S_JOBSET_REPLICATED_JOB_NAME: Final = "k8s.jobset.replicated_job.name"
K8S_JOBSET_JOB_INDEX: Final = "k8s.jobset.job.index"
K8S_JOBSET_JOB_GLOBAL_INDEX: Final = "k8s.jobset.job.global_index"
K8S_JOBSET_RESTART_ATTEMPT: Final = "k8s.jobset.restart_attempt"

# The TPU slice of this process. The type is Google's name (`v5p-512`), the worker is the index of the host within the
# slice; index and count refer to the slices of one job.
SLICE_NAME: Final = "goodput.slice.name"
SLICE_TYPE: Final = "goodput.slice.type"
SLICE_TOPOLOGY: Final = "goodput.slice.topology"
SLICE_WORKER: Final = "goodput.slice.worker"
SLICE_INDEX: Final = "goodput.slice.index"
SLICE_COUNT: Final = "goodput.slice.count"
SERVICE_NAMESPACE: Final = "service.namespace"
REPLICA_ID: Final = "goodput.replica.id"

_DRIVER: Final = "on Google Cloud, or with NVIDIA's driver"
_POD: Final = "in a pod"
_JOBSET: Final = "in a pod of a JobSet"
_SLICE: Final = "on a TPU slice"
_GOOGLE: Final = "on Google Cloud"

RESOURCE_ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    Attribute(SERVICE_NAME, "string", "always", "the job's name"),
    Attribute(SERVICE_INSTANCE_ID, "string", "always", "`RUN/ATTEMPT/PROCESS@HOST`"),
    Attribute(RUN_ID, "string", "always", "the run, the same over restarts"),
    Attribute(ATTEMPT, "int", "always", "number of the attempt, from 0"),
    Attribute(TRACE_ID, "string", "unless the tracer provider is yours", "the attempt's trace, 32 hexadecimal digits"),
    Attribute(PROCESS_INDEX, "int", "always", "index of the process, from 0"),
    Attribute(PROCESS_COUNT, "int", "always", "number of the job's processes"),
    Attribute(PROCESS_PID, "int", "always", "the process id"),
    Attribute(HOST_NAME, "string", "always", "name of the host"),
    Attribute(TELEMETRY_DISTRO_NAME, "string", "always", f"`{SCOPE_NAME}`"),
    Attribute(TELEMETRY_DISTRO_VERSION, "string", "always", "the version of this package"),
    Attribute(
        TELEMETRY_SPACED,
        "bool",
        "metrics of `otlp` and `file`",
        "true: points are as far apart as Cloud Monitoring requires",
    ),
    Attribute(LAUNCHER_NAME, "string", "if a launcher counts restarts", "the launcher: JobSet, SLURM or torchrun"),
    Attribute(LAUNCHER_RESTARTS, "int", "if a launcher counts restarts", "how often it has restarted the job"),
    Attribute(ACCELERATOR_TYPE, "string", _DRIVER, "the chips of this host"),
    Attribute(ACCELERATOR_COUNT, "int", _DRIVER, "how many chips this host has"),
    Attribute(SLICE_NAME, "string", _SLICE, "name of the slice"),
    Attribute(SLICE_TYPE, "string", _SLICE, "its type, such as `v5p-512`"),
    Attribute(SLICE_TOPOLOGY, "string", _SLICE, "how its chips are laid out"),
    Attribute(SLICE_WORKER, "int", _SLICE, "index of this host within the slice"),
    Attribute(SLICE_INDEX, "int", "with several slices", "index of the slice within the job"),
    Attribute(SLICE_COUNT, "int", "with several slices", "number of the job's slices"),
    Attribute(CLOUD_PROVIDER, "string", _GOOGLE, f"`{GoogleCloud.PROVIDER}`"),
    Attribute(
        CLOUD_PLATFORM, "string", _GOOGLE, f"`{GoogleCloud.COMPUTE_ENGINE}` or `{GoogleCloud.KUBERNETES_ENGINE}`"
    ),
    Attribute(CLOUD_ACCOUNT_ID, "string", _GOOGLE, "the machine's project"),
    Attribute(CLOUD_REGION, "string", _GOOGLE, "the machine's region; on GKE the cluster's"),
    Attribute(CLOUD_AVAILABILITY_ZONE, "string", _GOOGLE, "the machine's zone; on GKE the cluster's, if it has one"),
    Attribute(GCP_PROJECT_ID, "string", f"{_GOOGLE}, and with `gcp-otlp`", "the project"),
    Attribute(LOCATION, "string", "`gcp-otlp`, if neither zone nor region is known", "a substitute for them"),
    Attribute(HOST_ID, "string", _GOOGLE, "the machine's id"),
    Attribute(HOST_TYPE, "string", _GOOGLE, "the machine's type"),
    Attribute(K8S_CLUSTER_NAME, "string", "on GKE", "the cluster"),
    Attribute(K8S_NAMESPACE_NAME, "string", _POD, "the pod's namespace"),
    Attribute(K8S_NODE_NAME, "string", _POD, "the pod's node"),
    Attribute(K8S_POD_NAME, "string", _POD, "the pod; set `POD_NAME` in the manifest"),
    Attribute(K8S_POD_UID, "string", _POD, "the pod's UID, if `POD_UID` is set"),
    Attribute(K8S_CONTAINER_NAME, "string", _POD, "the container, if `CONTAINER_NAME` is set"),
    Attribute(K8S_JOB_NAME, "string", "in a pod of a Job", "the Job"),
    Attribute(K8S_JOB_COMPLETION_INDEX, "int", "in a pod of an indexed Job", "the pod's index"),
    Attribute(K8S_JOBSET_NAME, "string", _JOBSET, "the JobSet"),
    Attribute(K8S_JOBSET_REPLICATED_JOB_NAME, "string", _JOBSET, "the replicated Job"),
    Attribute(K8S_JOBSET_JOB_INDEX, "int", _JOBSET, "index of the Job among its replicas"),
    Attribute(K8S_JOBSET_JOB_GLOBAL_INDEX, "int", _JOBSET, "index of the Job in the JobSet"),
    Attribute(K8S_JOBSET_RESTART_ATTEMPT, "int", _JOBSET, "how often the JobSet has been restarted"),
)
