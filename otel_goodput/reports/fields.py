"""The fields of a report's JSON, as types: what ``Report.to_json()`` returns and ``otel-goodput report --json`` prints.

Times ending in ``_s`` are lengths in seconds; ``started_at`` and the like are seconds since the epoch. Figures that
rest on the fate of steps are None, in the run and in each window, while nothing tells when steps were done; `reason`
says so.
"""

from __future__ import annotations

from typing import TypedDict


class SliceEfficiencyFields(TypedDict, total=False):
    """Of an elastic job: shares of the time in which slice counts are known.

    Attributes:
        stepping: slices that did steps, of all.
        available: slices that were there, of all.
    """

    stepping: float
    available: float


class PartitionFields(TypedDict):
    """An account of some time.

    Attributes:
        elapsed_s: all of it; the sum of `seconds`.
        goodput: the productive share, 0 to 1; None if nothing has elapsed or it is not known.
        reason: why figures are None; None if they are known.
        seconds: by category; ``custom`` has the seconds of each custom phase by name, if there is one.
        max_productive_step: the highest step that is kept.
        slice_efficiency: None for a job whose slices nobody counted.
    """

    elapsed_s: float
    goodput: float | None
    reason: str | None
    seconds: dict[str, float | dict[str, float]]
    max_productive_step: int | None
    slice_efficiency: SliceEfficiencyFields | None


class WindowFields(PartitionFields):
    """An account of a window; `start` and `end` are seconds since the epoch."""

    start: float
    end: float


class DisruptionFields(TypedDict):
    """A disruption.

    Attributes:
        attempt: number of the attempt that it began, from 1; None for a rollback within an attempt.
        reason: why, such as ``crash``, ``preemption``, ``maintenance`` or ``rollback``.
        recovery_s: from the last sign of life to the next job start.
        wasted_s: own time of the steps that were lost.
        from_step, to_step: the last step before it, and the first one after it.
        first_reason: the reason in the journal; `reason` is another one if somebody corrected it.
        said_by: who said `reason` afterwards, with ``otel-goodput reason``; None if nobody did.
        note: what they added; None if nothing.
        kept_step: the highest step that was kept before it; None if none was.
        first_step_s: from the job's start to the end of its first completed step; None before that, for a rollback
            within an attempt, and if the job ended before.
        regained_s: from the job's start, or the rollback, to the end of the first step after it that is kept and has
            the number `kept_step` or a higher one; None before that, and if the job ended before.
    """

    attempt: int | None
    reason: str
    recovery_s: float
    wasted_s: float
    from_step: int | None
    to_step: int | None
    first_reason: str
    said_by: str | None
    note: str | None
    kept_step: int | None
    first_step_s: float | None
    regained_s: float | None


class StepsFields(TypedDict):
    """Executions of steps: completed ones, and of those and of failed ones, what became of them."""

    executed: int
    kept: int
    lost: int


class StepTimeFields(TypedDict):
    """Net times of the latest kept steps, up to 1,000."""

    count: int
    mean_s: float
    min_s: float
    median_s: float
    p90_s: float
    max_s: float


class PaceFields(TypedDict):
    """How fast one process steps: number of steps, median and 90th percentile of their times, time outside of steps."""

    steps: int
    median_s: float
    p90_s: float
    outside_s: float


class StragglerFields(TypedDict):
    """The slowest process, and its median step time relative to the median of all processes."""

    process: int
    ratio: float


class LateFields(TypedDict):
    """The process that spends most outside of steps, and the share of its cadence that it spends there."""

    process: int
    share: float


class ProcessesFields(TypedDict):
    """All processes of the run: how many, the paces of those that told one by process index, and who stands out."""

    count: int
    paces: dict[str, PaceFields]
    straggler: StragglerFields | None
    late: LateFields | None


class SlowestFields(TypedDict):
    """The process on which a stage takes longest on average: that mean, and the median of the means of all."""

    process: int
    mean_s: float
    median_s: float


class StageFields(TypedDict):
    """Lengths of one stage of checkpoints on the process of the report.

    Attributes:
        count: how often it has ended, in all attempts.
        deviation_s: sample standard deviation (divided by count - 1); 0 for a single one.
        slowest: None unless at least two processes tell of the stage. A job asked for its own report does not know it.
    """

    count: int
    min_s: float
    mean_s: float
    max_s: float
    deviation_s: float
    slowest: SlowestFields | None


class SchedulingFields(TypedDict):
    """What the attempts of a run waited for, where Kubernetes tells; of the process of the report.

    Attributes:
        reschedules: attempts that ran in another pod than the attempt before; None if nothing tells of pods.
        first_s: seconds that the first attempt waited before its program ran, by stage: `queued`, `image_pull`,
            `container_start`, `program_start`.
        later_s: seconds that all later attempts waited, by stage.
    """

    reschedules: int | None
    first_s: dict[str, float]
    later_s: dict[str, float]


class CompileCacheFields(TypedDict):
    """What jax's persistent compilation cache did in all attempts.

    Attributes:
        hits: functions that it had.
        misses: functions that were compiled, and stored in it.
        saved_s: seconds of compiling that the hits saved, less the time to fetch them; may be negative.
    """

    hits: int
    misses: int
    saved_s: float


class WarningFields(TypedDict):
    """What a person must know to read the figures; `doubts` names the categories that may be wrong."""

    kind: str
    text: str
    doubts: list[str]


# "from" is a keyword.
DamageFields = TypedDict(
    "DamageFields",
    {
        "where": str,
        "what": str,
        "from": float | None,
        "to": float | None,
        "uncertain_s": float | None,
        "newer_version": bool,
    },
)


class _AlwaysFields(PartitionFields):
    run_id: str
    job_name: str
    started_at: float | None
    ended: bool
    state: str
    last_sign_of_life: float | None
    last_step_open_s: float | None
    excluded_s: float
    last_step: int | None
    in_flight_step: int | None
    in_flight_step_s: float | None
    disruptions: int
    disruption_reasons: dict[str, int]
    disruption_list: list[DisruptionFields]
    attempts: int
    first_step_s: float | None
    clock: str
    steps: StepsFields
    pending_steps: int | None
    started_steps: int
    ideal_step_time_s: float | None
    step_time_deviation_s: float | None
    at_risk_s: float | None
    overlapped_data_loading_s: float
    recompilations: int
    recompiled: dict[str, int]
    compilations_seen: bool
    step_cadence_s: float | None
    observed_steps: bool
    skewed_clocks: bool
    behind_s: float
    windows: list[WindowFields]
    damage: list[DamageFields]
    warnings: list[WarningFields]


class ReportFields(_AlwaysFields, total=False):
    """The account of a run.

    Attributes:
        run_id, job_name: which run.
        started_at: the first job start; None if no job has begun.
        ended: the latest job is over.
        state: ``running``, ``ended``, ``died``, or ``silent``: no recent sign of life of a process elsewhere.
        last_sign_of_life, last_step_open_s: of a run that died or is silent, and how long its last step had been open.
        excluded_s: time that is in no category.
        last_step: number of the latest step that began.
        in_flight_step, in_flight_step_s: the open step, and for how long it has been.
        disruptions, disruption_reasons, disruption_list: how many, how many by reason, and the latest of them.
        attempts: job starts.
        first_step_s: from the start of the latest job to the end of its first completed step; None before that.
        clock: what told the end of the latest step: ``device``, ``host`` or ``unknown``.
        steps, pending_steps, started_steps: executions by fate; those whose fate is open; all.
        ideal_step_time_s, step_time_deviation_s: the ideal net time of a step, and how much longer recent ones take.
        at_risk_s: productive time that no durable checkpoint covers.
        overlapped_data_loading_s: data loading beside the training thread.
        recompilations, recompiled: functions compiled again in an attempt: how often, and by function.
        compilations_seen: start-up is measured from compilations.
        step_cadence_s: from one step's begin to the next one's, median of recent ones.
        observed_steps: the end of at least one step was told by the device.
        skewed_clocks: clocks of hosts differ.
        behind_s: how far the account is behind the moment that was asked for.
        windows: accounts of the windows that were asked for.
        damage, warnings: what could not be read, and what a person must know.
        scheduling_goodput, program_goodput, productivity_goodput: factors of ML productivity goodput, 0 to 1.
        processes: if processes told their paces.
        step_time: if there are kept steps.
        checkpoints: by operation (``save``, ``restore``, ``emergency_restore``) and stage, if Orbax told any.
        scheduling: if Kubernetes told of it. A job asked for its own report does not know it.
        compile_cache: if it is in use. A job asked for its own report does not know it.
    """

    scheduling_goodput: float
    program_goodput: float | None
    productivity_goodput: float | None
    processes: ProcessesFields
    step_time: StepTimeFields | None
    checkpoints: dict[str, dict[str, StageFields]]
    scheduling: SchedulingFields
    compile_cache: CompileCacheFields
