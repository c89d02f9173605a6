"""All names that this package exports: phases, categories, attributes, metrics, resource keys.

Names follow OpenTelemetry's semantic conventions, units UCUM. No other module may spell one of them as a literal. The
documentation's tables are generated from this module.

Longer than other files: it is a list of names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
# An `incident` span lasts as long as something was wrong with the job; it is not a phase.
INCIDENT_SPAN: Final = "incident"
# A `profiled` span lasts as long as a profile was taken. Spans of steps in that time link to it, and it to them.
PROFILE_SPAN: Final = "profiled"

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


class IncidentKind:
    """What is wrong with a job during an incident."""

    HANG: Final = "hang"  # no step is completed for far longer than usual
    SLOWDOWN: Final = "slowdown"  # steps, or what is between them, take longer than they did in this attempt
    RESTART_LOOP: Final = "restart_loop"  # attempt after attempt ends without progress


INCIDENT_KINDS: Final = _names(IncidentKind)


class Accelerator:
    """Kinds of accelerators, as values of ``hw.type``. What ranks publish has indices: append, never reorder."""

    NONE: Final = ""  # it is not known whether there are any
    GPU: Final = "gpu"
    TPU: Final = "tpu"


ACCELERATORS: Final = _names(Accelerator)


class ThrottleReason:
    """Why an accelerator's clocks are held down.

    The journal stores a bit for each of this table: append, never reorder.
    """

    POWER_CAP: Final = "power_cap"  # at the power limit; usual for a GPU that is fully used
    THERMAL: Final = "thermal"  # too hot
    POWER_BRAKE: Final = "power_brake"  # the power supply asks for it
    HARDWARE: Final = "hardware"  # the hardware does it for another reason
    UNKNOWN: Final = "unknown"  # the driver does not tell why


THROTTLE_REASONS: Final = _names(ThrottleReason)


class LoaderStage:
    """Stages of a batch of a data loader. Files beside the journal store indices: append, never reorder."""

    FETCH: Final = "fetch"
    TRANSFORM: Final = "transform"
    COLLATE: Final = "collate"
    TRANSFER: Final = "transfer"
    QUEUE: Final = "queue"


LOADER_STAGES: Final = _names(LoaderStage)


# --- span attributes --------------------------------------------------------------------------------------------------


class Attribute(NamedTuple):
    """One attribute key: its OpenTelemetry type, the spans or events that have it, and its meaning."""

    key: str
    type: str
    on: str
    brief: str


_SPANS: Final[list[Attribute]] = []
_RESOURCES: Final[list[Attribute]] = []


def _span(key: str, on: str, brief: str, type: str = "string") -> str:
    """Declare an attribute of spans or their events; returns its key."""
    _SPANS.append(Attribute(key, type, on, brief))
    return key


_int, _bool, _ns = (partial(_span, type=kind) for kind in ("int", "bool", "int (ns)"))


def _resource(key: str, on: str, brief: str, type: str = "string") -> str:
    """Declare an attribute of the resource; returns its key."""
    _RESOURCES.append(Attribute(key, type, on, brief))
    return key


# Events of the job span.
GOODPUT_NOTICE_EVENT: Final = "goodput.notice"
GOODPUT_PROFILE_EVENT: Final = "goodput.profile"

GOODPUT_PHASE: Final = _span("goodput.phase", "all but `attempt` and `steps`", "the phase; a span with it is accounted")
GOODPUT_STEP: Final = _int(
    "goodput.step",
    "step; data_loading, checkpoint_*, compile inside or for a step",
    "the number that its loop gives the step; of a checkpoint, its label",
)
GOODPUT_CUSTOM_NAME: Final = _span("goodput.custom.name", "custom", "the user's name of the phase, of low cardinality")
GOODPUT_PART_NAME: Final = _span(
    "goodput.part.name", "part", "the user's name of the part of a step, or a checkpoint's stage"
)
GOODPUT_BLOCKING: Final = _bool(
    "goodput.blocking", "where it differs from the default", "whether the phase holds up training"
)
GOODPUT_STEP_COMPLETED: Final = _bool("goodput.step.completed", "step", "false: left early (break, exception, death)")
GOODPUT_STEP_DEVICE_DURATION: Final = _ns("goodput.step.device_duration", "observed steps", "time on the device")
GOODPUT_STEP_OUTLIER: Final = _bool(
    "goodput.step.outlier", "step", "exported because it was slow; at most 5 in 1,024 steps"
)
GOODPUT_CHECKPOINT_DURABLE: Final = _bool(
    "goodput.checkpoint.durable", "checkpoint_save", "whether the checkpoint is known to be durable"
)
GOODPUT_INTERRUPTED: Final = _bool("goodput.interrupted", "any", "closed by recovery or shutdown, not by its owner")
GOODPUT_NOTICE_SOURCE: Final = _span(
    "goodput.notice.source", "event `goodput.notice` of job", "the signal, or the metadata key"
)
GOODPUT_NOTICE_VALUE: Final = _span(
    "goodput.notice.value", "event `goodput.notice` of job", "the metadata server's value"
)
_PROFILE: Final = "profiled; event `goodput.profile` of job"
GOODPUT_PROFILE_CAUSE: Final = _span("goodput.profile.cause", _PROFILE, "why it was taken")
GOODPUT_PROFILE_PATH: Final = _span(
    "goodput.profile.path", f"{_PROFILE}; incident, of the latest", "its file, within the run's folder"
)
GOODPUT_PROFILE_FUNCTION: Final = _span(
    "goodput.profile.function", f"{_PROFILE}, if one grew", "the function whose share of the time grew most"
)
GOODPUT_PROFILE_LINE: Final = _span("goodput.profile.line", f"{_PROFILE}, if one grew", "its file and line")
GOODPUT_PROFILE_TRACE: Final = _span(
    "goodput.profile.trace", f"{_PROFILE}, if there is one", "folder of the trace, within the run's folder"
)
GOODPUT_COMPILE_FUNCTION: Final = _span("goodput.compile.function", "compile", "the function compiled")
GOODPUT_COMPILE_RECOMPILATION: Final = _bool(
    "goodput.compile.recompilation", "compile", "true: the function had been compiled before"
)
GOODPUT_COMPILE_REASON: Final = _span(
    "goodput.compile.recompilation_reason", "compile", "why it was compiled again, in the compiler's words"
)
GOODPUT_COMPILE_CACHE_HIT: Final = _bool("goodput.compile.cache_hit", "compile", "whether the persistent cache had it")
GOODPUT_COMPILE_CACHE_RETRIEVAL: Final = _ns(
    "goodput.compile.cache_retrieval_duration", "compile", "time to get it from the persistent cache"
)
GOODPUT_COMPILE_TRACE: Final = _ns("goodput.compile.trace_duration", "compile", "time to trace the function")
GOODPUT_COMPILE_LOWER: Final = _ns("goodput.compile.lower_duration", "compile", "time to lower it")
GOODPUT_COMPILE_BACKEND: Final = _ns("goodput.compile.backend_duration", "compile", "time in the compiler")
GOODPUT_COMPILE_STAGES: Final = (GOODPUT_COMPILE_TRACE, GOODPUT_COMPILE_LOWER, GOODPUT_COMPILE_BACKEND)
GOODPUT_ELASTIC_KIND: Final = _span("goodput.elastic.kind", "elastic_wait", "`slice_down` or `scale_up`")
GOODPUT_STEPS_FIRST: Final = _int("goodput.steps.first", "steps", "first of the summarized steps")
GOODPUT_STEPS_LAST: Final = _int("goodput.steps.last", "steps", "last of the summarized steps")
GOODPUT_STEPS_COUNT: Final = _int("goodput.steps.count", "steps", "number of steps")
GOODPUT_STEPS_SUM: Final = _ns("goodput.steps.duration.sum", "steps", "sum of the steps' durations")
GOODPUT_STEPS_MIN: Final = _ns("goodput.steps.duration.min", "steps", "shortest")
GOODPUT_STEPS_MEDIAN: Final = _ns("goodput.steps.duration.median", "steps", "median")
GOODPUT_STEPS_P90: Final = _ns("goodput.steps.duration.p90", "steps", "90th percentile")
GOODPUT_STEPS_MAX: Final = _ns("goodput.steps.duration.max", "steps", "longest")
GOODPUT_TRACE_NUMBER: Final = _int(
    "goodput.trace.number", "any in a further trace of an attempt", "which of its traces, from 1"
)
GOODPUT_PHASES_NAME: Final = _span(
    "goodput.phases.name", "phases", "name of the summarized phases: the phase, or the user's name"
)
GOODPUT_PHASES_COUNT: Final = _int("goodput.phases.count", "phases", "number of phases")
GOODPUT_PHASES_SUM: Final = _ns("goodput.phases.duration.sum", "phases", "sum of the phases' durations")
GOODPUT_PHASES_MIN: Final = _ns("goodput.phases.duration.min", "phases", "shortest")
GOODPUT_PHASES_MEDIAN: Final = _ns("goodput.phases.duration.median", "phases", "median")
GOODPUT_PHASES_P90: Final = _ns("goodput.phases.duration.p90", "phases", "90th percentile")
GOODPUT_PHASES_MAX: Final = _ns("goodput.phases.duration.max", "phases", "longest")
GOODPUT_INCIDENT_EVENT: Final = "goodput.incident"  # an event of the job span, when an incident opens
_INCIDENT: Final = "incident; event `goodput.incident` of job"
GOODPUT_INCIDENT_KIND: Final = _span("goodput.incident.kind", _INCIDENT, "`hang`, `slowdown` or `restart_loop`")
GOODPUT_INCIDENT_CAUSE: Final = _span(
    "goodput.incident.cause", _INCIDENT, "what most of the lost time went to: a category, or `step`"
)
GOODPUT_RANK: Final = _int("goodput.rank", _INCIDENT, "the rank that causes it, if it is one")
GOODPUT_INCIDENT_PHASE: Final = _span("goodput.incident.phase", _INCIDENT, "name of a custom phase that is the cause")
GOODPUT_INCIDENT_LINE: Final = _span(
    "goodput.incident.line", _INCIDENT, "line of the program at which the rank stands, such as `train.py:88`"
)
GOODPUT_INCIDENT_COST: Final = _ns("goodput.incident.cost", "incident", "time lost by it")
GOODPUT_INCIDENT_EVIDENCE: Final = _span(
    "goodput.incident.evidence", _INCIDENT, "what speaks for the cause, one sentence each", "string[]"
)
ERROR_TYPE: Final = _span("error.type", "any", "the exception that left the phase")

SPAN_ATTRIBUTES: Final = tuple(_SPANS)


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
GOODPUT_THROTTLE_REASON: Final = "goodput.accelerator.throttle.reason"
GOODPUT_LOADER_STAGE: Final = "goodput.loader.stage"
HW_TYPE: Final = "hw.type"
CPU_MODE: Final = "cpu.mode"
SYSTEM_MEMORY_STATE: Final = "system.memory.state"

WINDOW_RUN: Final = "run"
STEP_KEPT: Final = "kept"
STEP_LOST: Final = "lost"
SLICE_STEPPING: Final = "stepping"
SLICE_AVAILABLE: Final = "available"
IN_STEP: Final = "step"
BETWEEN_STEPS: Final = "other"  # loading, a save, an evaluation, anything else, and before the first step
ACTIVITIES: Final = (IN_STEP, BETWEEN_STEPS)
CACHE_RESULTS: Final = ("hit", "miss")
OTHER_RANKS: Final = "other"  # ranks that have no series of their own, together
CPU_MODES: Final = ("user", "system")
MEMORY_USED: Final = "used"


class Metric(NamedTuple):
    """One instrument: its name, OpenTelemetry instrument kind, UCUM unit, closed set of attribute keys, description."""

    name: str
    kind: str
    unit: str
    attributes: tuple[str, ...]
    brief: str = ""

    def described(self, brief: str) -> Metric:
        return self._replace(brief=brief)


# A figure of the run, which every attempt reports from the beginning of the run: read with max or last.
UP_DOWN: Final = "ObservableUpDownCounter"
# What begins at 0 with each process, and only grows: deltas and rates of it are right.
COUNTER: Final = "ObservableCounter"
GAUGE: Final = "ObservableGauge"
HISTOGRAM: Final = "Histogram"


def _kind(kind: str) -> Callable[..., Metric]:
    return lambda name, unit, *attributes: Metric(name, kind, unit, attributes)


_up_down, _counter, _gauge, _histogram = map(_kind, (UP_DOWN, COUNTER, GAUGE, HISTOGRAM))

TIME: Final = _up_down("goodput.time", "s", GOODPUT_CATEGORY, GOODPUT_CUSTOM_NAME).described(
    "Wall time of the run by category; the categories sum to the elapsed time."
)
RATIO: Final = _gauge("goodput.ratio", "1", GOODPUT_WINDOW).described(
    "Productive time as a share of elapsed time, run and rolling windows."
)
OBJECTIVE: Final = _gauge("goodput.objective", "1").described(
    "The goodput that the run should have, if one was set; alerts about the error budget need it."
)
BADPUT_RATIO: Final = _gauge("badput.ratio", "1", GOODPUT_WINDOW, GOODPUT_CATEGORY, GOODPUT_CUSTOM_NAME).described(
    "Unproductive time as a share of elapsed time, by category."
)
STALLED_RATIO: Final = _gauge("goodput.stalled.ratio", "1", GOODPUT_WINDOW, GOODPUT_STEP_STATE).described(
    "Stalled time of kept and of lost steps as a share of elapsed time."
)
STEP_DURATION: Final = _histogram("goodput.step.duration", "s").described("Net time of completed steps.")
PHASE_DURATION: Final = _histogram(
    "goodput.phase.duration", "s", GOODPUT_PHASE, GOODPUT_CUSTOM_NAME, GOODPUT_BLOCKING, ERROR_TYPE
).described("Duration of phases other than steps.")
PART_DURATION: Final = _histogram("goodput.part.duration", "s", GOODPUT_PART_NAME).described(
    "Duration of the parts of steps and checkpoints."
)
QUEUE_DEPTH: Final = _gauge("goodput.loading.queue_depth", "{batch}").described(
    "Batches that are ready, if the loader reports them, or is PyTorch's or Grain's with workers."
)
LOADER_STAGE: Final = _counter("goodput.loader.stage.duration", "s", GOODPUT_LOADER_STAGE, GOODPUT_BLOCKING).described(
    "Time of data loaders by stage of a batch, of the leader's: blocking if training waited for it, else hidden behind "
    "steps; summed over workers."
)
STEP_COUNT: Final = _up_down("goodput.step.count", "{step}", GOODPUT_STEP_STATE).described(
    "Executions of steps, by fate."
)
STEP_AGE: Final = _gauge("goodput.step.age", "s", GOODPUT_ACTIVITY).described(
    "Time since the last completed step, or since the job began; 0 for activities that are not current."
)
STEP_MAX: Final = _gauge("goodput.step.max_productive", "{step}").described("Highest kept step.")
STEP_IDEAL: Final = _gauge("goodput.step.ideal_time", "s").described("Ideal step time.")
STEP_DEVIATION: Final = _gauge("goodput.step.deviation", "s").described("How far recent steps exceed the usual time.")
AT_RISK: Final = _gauge("goodput.at_risk", "s").described("Productive time that a crash right now would lose.")
DISRUPTIONS: Final = _up_down("goodput.disruptions", "{disruption}", GOODPUT_DISRUPTION_REASON).described(
    "Restarts and rollbacks of the run."
)
WINDOW_DISRUPTIONS: Final = _gauge(
    "goodput.window.disruptions", "{disruption}", GOODPUT_WINDOW, GOODPUT_DISRUPTION_REASON
).described(
    "Restarts and rollbacks per rolling window, of the latest 100 at most; a reason appears once it has occurred."
)
OVERLAPPED_LOADING: Final = _up_down("goodput.loading.overlapped", "s").described(
    "Data loading that did not block training; it costs no goodput."
)
FIRST_STEP: Final = _gauge("goodput.time_to_first_step", "s").described(
    "From the start of the latest job to the end of its first step."
)
REGAINED: Final = _gauge("goodput.disruption.time_to_regain", "s").described(
    "From the latest disruption until the highest step kept before it was regained."
)
SCHEDULING_RATIO: Final = _gauge("goodput.scheduling.ratio", "1").described(
    "Elapsed time divided by elapsed plus queued time."
)
SCHEDULING_DURATION: Final = _gauge("goodput.scheduling.duration", "s", GOODPUT_SCHEDULING_STAGE).described(
    "How long this attempt waited before its program ran, by stage, if Kubernetes reports it."
)
PROGRAM_RATIO: Final = _gauge("goodput.program.ratio", "1").described("Model FLOPs utilization of the productive time.")
PRODUCTIVITY: Final = _gauge("goodput.productivity", "1").described("Scheduling x runtime x program goodput.")
SLICE_EFFICIENCY: Final = _gauge("goodput.slice.efficiency", "1", GOODPUT_SLICE_STATE).described(
    "Time-weighted share of slices stepping or available."
)
SLICE_SHARE: Final = _gauge("goodput.slice.share", "1", GOODPUT_SLICE_STATE).described(
    "Share of slices stepping or available now."
)
SLICE_WINDOW_EFFICIENCY: Final = _gauge(
    "goodput.slice.window_efficiency", "1", GOODPUT_WINDOW, GOODPUT_SLICE_STATE
).described("Time-weighted share of slices stepping or available, of rolling windows.")
CLOCK: Final = _gauge("goodput.clock", "1", GOODPUT_CLOCK_STATE).described(
    "1 for the clock by which the ends of steps are known: the device's, the host's, or unknown."
)
JOB_STATE: Final = _gauge(GOODPUT_JOB_STATE, "1", GOODPUT_JOB_STATE).described(
    "1 for the state of the run, 0 for the other: running, or ended cleanly."
)
LAST_SIGN: Final = _gauge("goodput.job.last_sign_of_life", "s").described(
    "Unix time at which the run was last known to be alive; once it has ended, of its end."
)
STRAGGLER: Final = _gauge("goodput.straggler.ratio", "1").described(
    "Median step time of the slowest process over the median of all."
)
RANK_WAIT: Final = _counter("goodput.rank.wait.time", "s", GOODPUT_RANK, GOODPUT_CATEGORY).described(
    "Time for which the job waited for one rank, by rank and what that did; of 16 ranks at most, and of all others."
)
RANK_OWN: Final = _gauge("goodput.rank.own.time", "s", GOODPUT_RANK).described(
    "Time that a rank itself takes in a turn of the loop inside of the step, without its waits for others, lately; of "
    "16 ranks at most, the slowest ones, and (`other`) of a usual rank."
)
RANK_GAIN: Final = _gauge("goodput.rank.gain", "1", GOODPUT_RANK).described(
    "By which share the job would be faster lately without a rank that is slow inside of steps; 0 for one that was; of "
    "16 ranks at most."
)
INCIDENT_ACTIVE: Final = _gauge(
    "goodput.incident.active",
    "{incident}",
    GOODPUT_INCIDENT_KIND,
    GOODPUT_INCIDENT_CAUSE,
    GOODPUT_INCIDENT_PHASE,
    GOODPUT_RANK,
    GOODPUT_INCIDENT_LINE,
).described("1 for each incident that is open.")
INCIDENT_COUNT: Final = _counter(
    "goodput.incident.count", "{incident}", GOODPUT_INCIDENT_KIND, GOODPUT_INCIDENT_CAUSE
).described("Incidents of this attempt.")
INCIDENT_COST: Final = _up_down(
    "goodput.incident.cost.time", "s", GOODPUT_INCIDENT_KIND, GOODPUT_INCIDENT_CAUSE
).described("Time lost by the incidents of this attempt.")
_OF_RANKS: Final = "By rank, of 16 at most, else also min, mean and max of all."
CPU_TIME: Final = _counter("process.cpu.time", "s", GOODPUT_RANK, CPU_MODE).described(
    "Processor time of each rank's process, of 16 ranks at most, and of all others."
)
PROCESS_MEMORY: Final = _up_down("process.memory.usage", "By", GOODPUT_RANK).described(
    f"Resident memory of each rank's process. {_OF_RANKS}"
)
MACHINE_CPU: Final = _gauge("system.cpu.utilization", "1", GOODPUT_RANK).described(
    "Share of all cores in use on a machine, by the lowest rank on it."
)
MACHINE_MEMORY: Final = _up_down("system.memory.usage", "By", GOODPUT_RANK, SYSTEM_MEMORY_STATE).described(
    "Memory in use on a machine, by the lowest rank on it."
)
MACHINE_MEMORY_LIMIT: Final = _up_down("system.memory.limit", "By", GOODPUT_RANK).described(
    "Memory of a machine, by the lowest rank on it."
)
ACCELERATOR_BUSY: Final = _gauge("hw.gpu.utilization", "1", GOODPUT_RANK, HW_TYPE).described(
    f"Share of the time in which a rank's accelerators compute, GPUs or TPUs, their mean. {_OF_RANKS}"
)
ACCELERATOR_MEMORY: Final = _up_down("hw.gpu.memory.usage", "By", GOODPUT_RANK, HW_TYPE).described(
    f"Memory in use on a rank's accelerators, together. {_OF_RANKS}"
)
ACCELERATOR_MEMORY_LIMIT: Final = _up_down("hw.gpu.memory.limit", "By", GOODPUT_RANK, HW_TYPE).described(
    f"Memory of a rank's accelerators, together. {_OF_RANKS}"
)
ACCELERATOR_POWER: Final = _gauge("hw.power", "W", GOODPUT_RANK, HW_TYPE).described(
    f"Power that a rank's accelerators take, together. {_OF_RANKS}"
)
THROTTLED: Final = _gauge("goodput.accelerator.throttled", "1", GOODPUT_RANK, GOODPUT_THROTTLE_REASON).described(
    f"1 while clocks of a rank's accelerators are held down for this reason, else 0. {_OF_RANKS}"
)
COMPILE_CACHE: Final = _counter("goodput.compile.cache", "{function}", GOODPUT_COMPILE_CACHE_RESULT).described(
    "Functions found in jax's persistent cache, or compiled and stored in it, in this attempt."
)
# It falls where fetching took longer than compiling.
COMPILE_TIME_SAVED: Final = _up_down("goodput.compile.time_saved", "s").described(
    "Compile time saved by hits of the persistent cache, minus the time to fetch them, in this attempt."
)
OVERHEAD: Final = _counter("goodput.telemetry.overhead", "s").described(
    "Time this package took on the training thread (estimated from samples)."
)
DROPPED: Final = _counter("goodput.telemetry.dropped", "{item}", GOODPUT_SIGNAL).described(
    "Telemetry items that were lost."
)

METRICS: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))


# --- resource ---------------------------------------------------------------------------------------------------------


class GoogleCloud:
    """Values of ``cloud.provider`` and ``cloud.platform``."""

    PROVIDER: Final = "gcp"
    COMPUTE_ENGINE: Final = "gcp_compute_engine"
    KUBERNETES_ENGINE: Final = "gcp_kubernetes_engine"


SERVICE_NAMESPACE: Final = "service.namespace"
REPLICA_ID: Final = "goodput.replica.id"

_DRIVER: Final = "on Google Cloud, or with NVIDIA's driver"
_POD: Final = "in a pod"
_JOBSET: Final = "in a pod of a JobSet"
_SLICE: Final = "on a TPU slice"
_GOOGLE: Final = "on Google Cloud"

SERVICE_NAME: Final = _resource("service.name", "always", "the job's name")
SERVICE_INSTANCE_ID: Final = _resource("service.instance.id", "always", "`RUN/ATTEMPT/PROCESS@HOST`")
RUN_ID: Final = _resource("goodput.run.id", "always", "the run, the same over restarts")
ATTEMPT: Final = _resource("goodput.attempt", "always", "number of the attempt, from 0", "int")
TRACE_ID: Final = _resource(
    "goodput.trace.id", "unless the tracer provider is yours", "the attempt's trace, 32 hexadecimal digits"
)
PROCESS_INDEX: Final = _resource("goodput.process.index", "always", "index of the process, from 0", "int")
PROCESS_COUNT: Final = _resource("goodput.process.count", "always", "number of the job's processes", "int")
PUBLISHER: Final = _resource(
    "goodput.publisher",
    "metrics that a deputy of the leader publishes",
    "index of the process that publishes the job's metrics in place of the leader",
    "int",
)
ROLE: Final = _resource("goodput.role", "if it is set", "what the process does in a job of several roles")
PROCESS_PID: Final = _resource("process.pid", "always", "the process id", "int")
HOST_NAME: Final = _resource("host.name", "always", "name of the host")
TELEMETRY_DISTRO_NAME: Final = _resource("telemetry.distro.name", "always", f"`{SCOPE_NAME}`")
TELEMETRY_DISTRO_VERSION: Final = _resource("telemetry.distro.version", "always", "the version of this package")
# For collectors.
TELEMETRY_SPACED: Final = _resource(
    "goodput.telemetry.spaced",
    "metrics of `otlp` and `file`",
    "true: points are as far apart as Cloud Monitoring requires",
    "bool",
)
LAUNCHER_NAME: Final = _resource(
    "goodput.launcher.name", "if a launcher counts restarts", "the launcher: JobSet, SLURM or torchrun"
)
LAUNCHER_RESTARTS: Final = _resource(
    "goodput.launcher.restarts", "if a launcher counts restarts", "how often it has restarted the job", "int"
)
ACCELERATOR_TYPE: Final = _resource("goodput.accelerator.type", _DRIVER, "the chips of this host")
ACCELERATOR_COUNT: Final = _resource("goodput.accelerator.count", _DRIVER, "how many chips this host has", "int")
SLICE_NAME: Final = _resource("goodput.slice.name", _SLICE, "name of the slice")
SLICE_TYPE: Final = _resource("goodput.slice.type", _SLICE, "its type, such as `v5p-512`")
SLICE_TOPOLOGY: Final = _resource("goodput.slice.topology", _SLICE, "how its chips are laid out")
SLICE_WORKER: Final = _resource("goodput.slice.worker", _SLICE, "index of this host within the slice", "int")
SLICE_INDEX: Final = _resource("goodput.slice.index", "with several slices", "index of the slice within the job", "int")
SLICE_COUNT: Final = _resource("goodput.slice.count", "with several slices", "number of the job's slices", "int")
CLOUD_PROVIDER: Final = _resource("cloud.provider", _GOOGLE, f"`{GoogleCloud.PROVIDER}`")
CLOUD_PLATFORM: Final = _resource(
    "cloud.platform", _GOOGLE, f"`{GoogleCloud.COMPUTE_ENGINE}` or `{GoogleCloud.KUBERNETES_ENGINE}`"
)
CLOUD_ACCOUNT_ID: Final = _resource("cloud.account.id", _GOOGLE, "the machine's project")
CLOUD_REGION: Final = _resource("cloud.region", _GOOGLE, "the machine's region; on GKE the cluster's")
CLOUD_AVAILABILITY_ZONE: Final = _resource(
    "cloud.availability_zone", _GOOGLE, "the machine's zone; on GKE the cluster's, if it has one"
)
GCP_PROJECT_ID: Final = _resource("gcp.project_id", f"{_GOOGLE}, and with `gcp-otlp`", "the project")
LOCATION: Final = _resource("location", "`gcp-otlp`, if neither zone nor region is known", "a substitute for them")
HOST_ID: Final = _resource("host.id", _GOOGLE, "the machine's id")
HOST_TYPE: Final = _resource("host.type", _GOOGLE, "the machine's type")
K8S_CLUSTER_NAME: Final = _resource("k8s.cluster.name", "on GKE", "the cluster")
K8S_NAMESPACE_NAME: Final = _resource("k8s.namespace.name", _POD, "the pod's namespace")
K8S_NODE_NAME: Final = _resource("k8s.node.name", _POD, "the pod's node")
K8S_POD_NAME: Final = _resource("k8s.pod.name", _POD, "the pod; set `POD_NAME` in the manifest")
K8S_POD_UID: Final = _resource("k8s.pod.uid", _POD, "the pod's UID, if `POD_UID` is set")
K8S_CONTAINER_NAME: Final = _resource("k8s.container.name", _POD, "the container, if `CONTAINER_NAME` is set")
K8S_JOB_NAME: Final = _resource("k8s.job.name", "in a pod of a Job", "the Job")
# The semantic conventions have no names for these.
K8S_JOB_COMPLETION_INDEX: Final = _resource(
    "k8s.job.completion_index", "in a pod of an indexed Job", "the pod's index", "int"
)
K8S_JOBSET_NAME: Final = _resource("k8s.jobset.name", _JOBSET, "the JobSet")
K8S_JOBSET_REPLICATED_JOB_NAME: Final = _resource("k8s.jobset.replicated_job.name", _JOBSET, "the replicated Job")
K8S_JOBSET_JOB_INDEX: Final = _resource("k8s.jobset.job.index", _JOBSET, "index of the Job among its replicas", "int")
K8S_JOBSET_JOB_GLOBAL_INDEX: Final = _resource(
    "k8s.jobset.job.global_index", _JOBSET, "index of the Job in the JobSet", "int"
)
K8S_JOBSET_RESTART_ATTEMPT: Final = _resource(
    "k8s.jobset.restart_attempt", _JOBSET, "how often the JobSet has been restarted", "int"
)

RESOURCE_ATTRIBUTES: Final = tuple(_RESOURCES)
