"""The fields of a report's JSON, as types: what ``Report.to_json()`` returns and ``otel-goodput report --json`` prints.

Names ending in ``_s`` are lengths in seconds; ``started_at`` and other moments are seconds since the epoch. If nothing
tells when steps are done, figures that depend on the fate of steps are None, in the run and in each window; `reason`
says why.

Longer than other files: every field of the JSON is described here, and nowhere else.
"""

from __future__ import annotations

from typing import TypedDict


class SliceEfficiencyFields(TypedDict, total=False):
    """Slices of an elastic job, as shares from 0 to 1 over the time in which slice counts are known.

    Attributes:
        stepping: slices that did steps / all slices.
        available: slices that were up / all slices.
    """

    stepping: float
    available: float


class PartitionFields(TypedDict):
    """Where the time of a run, or of a window, went.

    Attributes:
        elapsed_s: the whole time; equals the sum of `seconds`.
        goodput: productive share, 0 to 1; None if no time has passed or it is unknown.
        reason: why figures are None; None if they are known.
        seconds: by category; ``custom``, if present, has seconds by name of the custom phase.
        max_productive_step: highest kept step; None if there is none.
        slice_efficiency: None unless slices were counted.
    """

    elapsed_s: float
    goodput: float | None
    reason: str | None
    seconds: dict[str, float | dict[str, float]]
    max_productive_step: int | None
    slice_efficiency: SliceEfficiencyFields | None


class WindowFields(PartitionFields):
    """Where the time of a window went.

    Attributes:
        start, end: of the window, in seconds since the epoch.
    """

    start: float
    end: float


class DisruptionFields(TypedDict):
    """A disruption.

    Attributes:
        attempt: number of the attempt that began with it, from 1; None for a rollback within an attempt.
        reason: ``crash``, ``preemption``, ``maintenance``, ``signal``, ``restart`` or ``rollback``.
        time: when training resumed: the start of the job, or of the step that went back, in seconds since the epoch;
            None if unknown.
        died_at: last sign of life before it, in seconds since the epoch; None for a rollback, or if unknown.
        error_type, error_message: the exception that ended the previous job, redacted; None if none did, or if the
            process was killed.
        ended_by: the signals and the exit status of the previous process, such as ``SIGTERM, exit
            status 1``; None if neither is known.
        recovery_s: from the last sign of life to the next job start.
        wasted_s: own time of the steps that were lost.
        startup_s, restored_s: time of start-up (accelerators, preparation, compilation) and of restoring checkpoints,
            from the job's start to the end of its first completed step; None until then, and for a rollback.
        cost_s: what it cost so far: `recovery_s` + `wasted_s` + `startup_s` + `restored_s`.
        from_step, to_step: last step before it; first step after it.
        first_reason: the reason in the journal; `reason` differs if it was corrected.
        said_by: who corrected `reason` with ``otel-goodput reason``; None if nobody did.
        note: their note; None if there is none.
        process: index of the process that ended first, by all journals; None if there is only one, if all of them were
            ended from outside, or if unknown.
        process_known: False if several processes ended and their journals do not show which was first.
        kept_step: highest step kept before it; None if there is none.
        first_step_s: from the job's start to the end of its first completed step; None until then, for a rollback
            within an attempt, or if the job ended before.
        regained_s: from the job's start, or the rollback, to the end of the first kept step with the number `kept_step`
            or higher; None until then, or if the job ended before.
    """

    attempt: int | None
    reason: str
    time: float | None
    died_at: float | None
    error_type: str | None
    error_message: str | None
    ended_by: str | None
    recovery_s: float
    wasted_s: float
    startup_s: float | None
    restored_s: float | None
    cost_s: float
    from_step: int | None
    to_step: int | None
    first_reason: str
    said_by: str | None
    note: str | None
    process: int | None
    process_known: bool
    kept_step: int | None
    first_step_s: float | None
    regained_s: float | None


class StepsFields(TypedDict):
    """Executions of steps.

    Attributes:
        executed, kept: completed ones, including those lost later; those that count as productive.
        lost: those that were repeated after a restart or rollback, failed, or were open when the process died.
    """

    executed: int
    kept: int
    lost: int


class LongPhaseFields(TypedDict):
    """Phases of one name (loads, saves, restores or custom phases) that took far longer than usual (rule R10).

    Attributes:
        phase, name: which; `name` is that of a custom phase.
        count: how many.
        excess_s, longest_s: their time beyond the limit; duration of the longest.
    """

    phase: str
    name: str
    count: int
    excess_s: float
    longest_s: float


class LongStepsFields(TypedDict):
    """Long steps that recur (rule R10).

    Attributes:
        every: one step in this many is long.
        long_s, usual_s: median time of the long steps, and of all steps.
    """

    every: int
    long_s: float
    usual_s: float


class StepTimeFields(TypedDict):
    """Net times of the latest kept steps, up to 1,000.

    Attributes:
        count: how many steps.
        mean_s, min_s, median_s, p90_s, max_s: of their net times; `p90_s` is the 90th percentile.
    """

    count: int
    mean_s: float
    min_s: float
    median_s: float
    p90_s: float
    max_s: float


class PaceFields(TypedDict):
    """Step times of one process.

    Attributes:
        steps: number of recent steps covered.
        median_s, p90_s: median and 90th percentile of their net times.
        outside_s: median time from one step's start to the next one's, minus the median step.
    """

    steps: int
    median_s: float
    p90_s: float
    outside_s: float


class StragglerFields(TypedDict):
    """The slowest process.

    Attributes:
        process, ratio: its index; its median step time / the median of all processes.
    """

    process: int
    ratio: float


class LateFields(TypedDict):
    """The process that spends the most time between steps.

    Attributes:
        process: its index.
        share: that time / the time from one step's start to the next one's, 0 to 1.
    """

    process: int
    share: float


class ProcessesFields(TypedDict):
    """All processes of the run.

    Attributes:
        count: how many there are.
        paces: of each process that reported one, by its index.
        straggler: the slowest process; None if fewer than two processes reported.
        late: the process that spends most time between steps; None in the same case.
    """

    count: int
    paces: dict[str, PaceFields]
    straggler: StragglerFields | None
    late: LateFields | None


class SlowestFields(TypedDict):
    """The process with the longest mean time of a stage.

    Attributes:
        process, mean_s: its index and mean.
        median_s: median of the means of all processes.
    """

    process: int
    mean_s: float
    median_s: float


class StageFields(TypedDict):
    """How long one checkpoint stage took on the report's process.

    Attributes:
        count: how often it ended, in all attempts.
        min_s, mean_s, max_s: of its lengths.
        deviation_s: sample standard deviation (divided by count - 1); 0 if `count` is 1.
        slowest: the slowest process; None if only one reports the stage, and always in a job's own report.
    """

    count: int
    min_s: float
    mean_s: float
    max_s: float
    deviation_s: float
    slowest: SlowestFields | None


class SchedulingFields(TypedDict):
    """How long the attempts waited on Kubernetes, for the report's process.

    Attributes:
        reschedules: attempts that ran in another pod than the previous attempt; None if the pods are unknown.
        first_s: seconds that the first attempt waited before its program ran, by stage: `queued`, `image_pull`,
            `container_start`, `program_start`.
        later_s: seconds that all later attempts waited, by stage.
    """

    reschedules: int | None
    first_s: dict[str, float]
    later_s: dict[str, float]


class CompileCacheFields(TypedDict):
    """Use of JAX's persistent compilation cache in all attempts.

    Attributes:
        hits: functions found in it.
        misses: functions compiled and stored in it.
        saved_s: compile time saved by the hits, minus the time to fetch them; may be negative.
    """

    hits: int
    misses: int
    saved_s: float


class SettingFields(TypedDict):
    """A setting of this package.

    Attributes:
        value: as text; credentials in it are hidden.
        source: ``configure()``, ``environment`` or ``default``.
    """

    value: str
    source: str


class ConfigurationFields(TypedDict):
    """What attempts of the report's process ran with; consecutive attempts that ran with the same are one entry.

    Attributes:
        first_attempt, last_attempt: their numbers, from 1.
        settings: of this package, by name of the variable.
        versions: of Python, this package and libraries in use, by name.
        hyperparameters: given to ``configure()``, nested names joined by dots; secrets are hidden.
    """

    first_attempt: int
    last_attempt: int
    settings: dict[str, SettingFields]
    versions: dict[str, str]
    hyperparameters: dict[str, str | bool | int | float | None]


class WarningFields(TypedDict):
    """A warning that qualifies the figures.

    Attributes:
        kind: which warning it is.
        text: the warning.
        doubts: categories that may be inaccurate.
    """

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
DamageFields.__doc__ = """A part of a journal that could not be read.

    Attributes:
        where: the file, and the place in it.
        what: what is wrong.
        from, to: start and end of the affected time, in seconds since the epoch; None if unknown.
        uncertain_s: how much time is in doubt; None if unknown.
        newer_version: whether it is intact, but a newer version of this package wrote it.
"""


class _AlwaysFields(PartitionFields):
    run_id: str
    job_name: str
    started_at: float | None
    ended: bool
    state: str
    last_sign_of_life: float | None
    last_step_open_s: float | None
    excluded_s: float
    suspended_s: float
    last_step: int | None
    last_step_given: int | None
    in_flight_step: int | None
    in_flight_step_s: float | None
    disruptions: int
    disruption_reasons: dict[str, int]
    disruption_list: list[DisruptionFields]
    error_type: str | None
    error_message: str | None
    attempts: int
    first_step_s: float | None
    clock: str
    steps: StepsFields
    pending_steps: int | None
    started_steps: int
    skipped_batches: int
    doubtful_steps: int
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
        run_id, job_name: id of the run; name of the job.
        started_at: first job start; None if no job has begun.
        ended: whether the latest job is over.
        state: ``running``, ``ended``, ``failed`` (an exception ended the job), ``died``, or ``silent`` (no recent sign
            of life from another machine).
        error_type, error_message: the exception that ended the latest job, redacted; None if none did.
        last_sign_of_life, last_step_open_s: of a run that died or is silent; how long its last step had been open.
        excluded_s: time that you excluded; it is in no category.
        suspended_s: how long the machine was suspended; it is in no category.
        last_step, last_step_given: number of the latest step that began; the number its loop gave it.
        in_flight_step, in_flight_step_s: number of the open step; how long it has been open.
        disruptions, disruption_reasons, disruption_list: how many; how many by reason; the latest ones.
        attempts: job starts.
        first_step_s: from the start of the latest job to the end of its first completed step; None until then.
        clock: where the end of the latest step came from: ``device``, ``host`` or ``unknown``.
        steps, pending_steps, started_steps: executions by fate; those whose fate is open; all that began.
        skipped_batches, doubtful_steps: iterations after a restore that were not steps; those that may not have been.
        ideal_step_time_s, step_time_deviation_s: ideal net time of a step; how much longer recent ones take.
        at_risk_s: productive time that no durable checkpoint covers.
        overlapped_data_loading_s: data loading that did not block training.
        recompilations, recompiled: functions compiled again in an attempt: how often; by function.
        compilations_seen: whether start-up is measured from compilations, not estimated.
        step_cadence_s: median time from the start of one step to the start of the next, of recent steps.
        observed_steps: whether the device reported the end of at least one step.
        skewed_clocks: whether the clocks of hosts differ.
        behind_s: how far the account lags behind the requested time.
        windows: the requested windows.
        damage, warnings: what could not be read; what you must know to read the figures.
        scheduling_goodput, program_goodput, productivity_goodput: two factors; their product with `goodput`.
        processes: if processes reported their paces.
        step_time: None if no step is kept.
        long_steps: if some recur in the latest loop.
        long_phases: if some took far longer than usual; their time keeps its category.
        checkpoints: by operation (``save``, ``restore``, ``emergency_restore``) and stage, if Orbax reported any.
        scheduling: if Kubernetes reported it.
        compile_cache: if it is in use.
        configurations: what the attempts ran with, the latest 100; missing if unknown.
    """

    scheduling_goodput: float
    program_goodput: float | None
    productivity_goodput: float | None
    processes: ProcessesFields
    step_time: StepTimeFields | None
    long_steps: LongStepsFields
    long_phases: list[LongPhaseFields]
    checkpoints: dict[str, dict[str, StageFields]]
    scheduling: SchedulingFields
    compile_cache: CompileCacheFields
    configurations: list[ConfigurationFields]
