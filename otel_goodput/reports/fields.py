"""The fields of a report's JSON, as types: what ``Report.to_json()`` returns and ``otel-goodput report --json`` prints.

Names ending in ``_s`` are lengths in seconds; ``started_at`` and other moments are seconds since the epoch. If nothing
tells when steps are done, figures that depend on the fate of steps are None, in the run and in each window; `reason`
says why. A field without a comment shares that of the field above it; docs/tables.py reads these comments.
"""

from __future__ import annotations

from typing import TypedDict


class SliceEfficiencyFields(TypedDict, total=False):
    """Slices of an elastic job, as shares from 0 to 1 over the time in which slice counts are known."""

    stepping: float  # slices that did steps / all slices
    available: float  # slices that were up / all slices


class PartitionFields(TypedDict):
    """Where the time of a run, or of a window, went."""

    elapsed_s: float  # the whole time; equals the sum of `seconds`
    goodput: float | None  # productive share, 0 to 1; None if no time has passed or it is unknown
    reason: str | None  # why figures are None; None if they are known
    seconds: dict[str, float | dict[str, float]]  # by category; of ``custom``, if present, by name of the phase
    max_productive_step: int | None  # highest kept step; None if there is none
    slice_efficiency: SliceEfficiencyFields | None  # None unless slices were counted


class WindowFields(PartitionFields):
    """Where the time of a window went."""

    start: float  # of the window, in seconds since the epoch
    end: float


class RollingFields(WindowFields):
    """A rolling window. It ends with the run: now, or with its latest job."""

    window: str  # its length, as in the metrics: ``1h``, ``24h``, ``90s``


class IncidentShareFields(TypedDict):
    """How much of the time that an incident lost went to what."""

    cause: str  # a category, or ``step``
    phase: str  # of the ``custom`` phase; else empty
    rank: int | None  # whose time it was; None: of all
    seconds: float


class IncidentFields(TypedDict):
    """Something was wrong with the job."""

    attempt: int  # from 1
    number: int  # in its attempt, from 1
    kind: str  # ``hang``, ``slowdown`` or ``restart_loop``
    cause: str  # what most of the lost time went to: a category, or ``step``
    phase: str  # of the ``custom`` phase; of a restart loop, the reason of the latest restart; else empty
    rank: int | None  # the rank that causes it; None if it is not one
    line: str  # of the program at which the rank stands, such as ``train.py:88``; empty if unknown
    began: float  # in seconds since the epoch
    opened: float  # when it was noticed
    ended: float | None  # None while it is not over
    cost_s: float  # time lost so far
    before_s: float | None  # what a turn of the loop, or a phase, took before; None if it is no slowdown
    after_s: float | None  # and takes during it
    shares: list[IncidentShareFields]  # what the lost time went to, most first
    evidence: list[str]  # what speaks for the cause


class DisruptionFields(TypedDict):
    """A disruption."""

    attempt: int | None  # number of the attempt that began with it, from 1; None for a rollback within an attempt
    reason: str  # ``crash``, ``preemption``, ``maintenance``, ``signal``, ``restart`` or ``rollback``
    time: float | None  # when training resumed: the start of the job, or of the step that went back; None if unknown
    died_at: float | None  # last sign of life before it, in seconds since the epoch; None for a rollback, or if unknown
    # the exception that ended the previous job, redacted; None if none did, or if the process was killed
    error_type: str | None
    error_message: str | None
    ended_by: str | None  # signals and exit status of the previous process: ``SIGTERM, exit status 1``; None if unknown
    recovery_s: float  # from the last sign of life to the next job start
    wasted_s: float  # own time of the steps that were lost
    # time of start-up (accelerators, preparation, compilation) and of restoring checkpoints, from the job's start to
    # the end of its first completed step; None until then, and for a rollback
    startup_s: float | None
    restored_s: float | None
    cost_s: float  # what it cost so far: `recovery_s` + `wasted_s` + `startup_s` + `restored_s`
    from_step: int | None  # last step before it
    to_step: int | None  # first step after it
    first_reason: str  # the reason in the journal; `reason` differs if it was corrected
    said_by: str | None  # who corrected `reason` with ``otel-goodput reason``; None if nobody did
    note: str | None  # their note; None if there is none
    # index of the process that ended first, by all journals, or that all others had waited for until then; None if
    # there is only one, if all of them were ended from outside, or if unknown
    process: int | None
    process_known: bool  # False if several processes ended and their journals do not show which was first
    kept_step: int | None  # highest step kept before it; None if there is none
    # from the job's start to the end of its first completed step; None until then, for a rollback within an attempt, or
    # if the job ended before
    first_step_s: float | None
    # from the job's start, or the rollback, to the end of the first kept step with the number `kept_step` or higher;
    # None until then, or if the job ended before
    regained_s: float | None


class StepsFields(TypedDict):
    """Executions of steps."""

    executed: int  # completed ones, including those lost later
    kept: int  # those that count as productive
    lost: int  # those that were repeated after a restart or rollback, failed, or were open when the process died


class KeptByRankFields(TypedDict):
    """How many steps each rank has kept."""

    fewest: int  # of the rank with the fewest
    most: int  # of the rank with the most


class LongPhaseFields(TypedDict):
    """Phases of one name (loads, saves, restores or custom phases) that took far longer than usual (rule R10)."""

    phase: str  # which phase
    name: str  # that of a custom phase
    count: int  # how many
    excess_s: float  # their time beyond the limit
    longest_s: float  # duration of the longest


class LongStepsFields(TypedDict):
    """Long steps that recur (rule R10)."""

    every: int  # one step in this many is long
    long_s: float  # median time of the long steps
    usual_s: float  # median time of all steps


class StepTimeFields(TypedDict):
    """Net times of the latest kept steps, up to 1,000."""

    count: int  # how many steps
    mean_s: float  # of their net times; `p90_s` is the 90th percentile
    min_s: float
    median_s: float
    p90_s: float
    max_s: float


class UsageFields(TypedDict):
    """What the sampled processes used, all attempts together."""

    processes: int  # how many sampled
    cores: float  # processor time of one of them per second, the mean
    memory_bytes: int  # resident memory of one of them, the most
    machine_cpu: float  # share of all cores of its machine in use, by all processes, the mean
    machine_memory_bytes: int  # memory in use on a machine, the most
    accelerator_memory_bytes: int | None  # memory in use on the accelerators of one of them, the most; None if unknown
    accelerator_busy: float | None  # share of the time in which accelerators computed, the mean; None if unknown
    accelerator_watts: float | None  # power of one accelerator, the mean; None if unknown
    throttled: float | None  # share of the time in which an accelerator's clocks were held down; None if unknown
    throttle_reasons: list[str]  # why: ``power_cap``, ``thermal``, ``power_brake``, ``hardware``, ``unknown``
    throttled_processes: list[int]  # those whose clocks were held down at all


class PaceFields(TypedDict):
    """Step times of one process."""

    steps: int  # number of recent steps covered
    median_s: float  # median of their net times
    p90_s: float  # 90th percentile of their net times
    outside_s: float  # median time from one step's start to the next one's, minus the median step


class StragglerFields(TypedDict):
    """The slowest process."""

    process: int  # its index
    ratio: float  # its median step time / the median of all processes


class LateFields(TypedDict):
    """The process that spends the most time between steps."""

    process: int  # its index
    share: float  # that time / the time from one step's start to the next one's, 0 to 1


class ProcessesFields(TypedDict):
    """All processes of the run."""

    count: int  # how many there are
    paces: dict[str, PaceFields]  # of each process that reported one, by its index
    # the slowest process; None if fewer than two processes reported, and in a job whose ranks waited for one of them
    # for more than 5 % of the time of their loops: see `ranks`
    straggler: StragglerFields | None
    # the process that spends most time between steps; None if fewer than two reported, and in the account of all ranks
    late: LateFields | None


class SlowestFields(TypedDict):
    """The process with the longest mean time of a stage."""

    process: int  # its index
    mean_s: float  # its mean
    median_s: float  # median of the means of all processes


class StageFields(TypedDict):
    """How long one checkpoint stage took on the report's process."""

    count: int  # how often it ended, in all attempts
    min_s: float  # of its lengths
    mean_s: float
    max_s: float
    deviation_s: float  # sample standard deviation (divided by count - 1); 0 if `count` is 1
    slowest: SlowestFields | None  # None if only one process reports the stage, and always in a job's own report


class SchedulingFields(TypedDict):
    """How long the attempts waited on Kubernetes, for the report's process."""

    reschedules: int | None  # attempts that ran in another pod than the previous attempt; None if the pods are unknown
    # seconds that the first attempt waited before its program ran, by stage: `queued`, `image_pull`, `container_start`,
    # `program_start`
    first_s: dict[str, float]
    later_s: dict[str, float]  # seconds that all later attempts waited, by stage


class CompileCacheFields(TypedDict):
    """Use of JAX's persistent compilation cache in all attempts."""

    hits: int  # functions found in it
    misses: int  # functions compiled and stored in it
    saved_s: float  # compile time saved by the hits, minus the time to fetch them; may be negative


class SettingFields(TypedDict):
    """A setting of this package."""

    value: str  # as text; credentials in it are hidden
    source: str  # ``configure()``, ``environment`` or ``default``


class ConfigurationFields(TypedDict):
    """What attempts of the report's process ran with; consecutive attempts that ran with the same are one entry."""

    first_attempt: int  # number of the first and the last of them, from 1
    last_attempt: int
    settings: dict[str, SettingFields]  # of this package, by name of the variable
    versions: dict[str, str]  # of Python, this package and libraries in use, by name
    hyperparameters: dict[str, str | bool | int | float | None]  # nested names joined by dots; secrets are hidden


class WarningFields(TypedDict):
    """A warning that qualifies the figures."""

    kind: str  # which warning it is
    text: str  # the warning
    doubts: list[str]  # categories that may be inaccurate


# "from" is a keyword.
DamageFields = TypedDict(
    "DamageFields",
    {
        "where": str,  # the file, and the place in it
        "what": str,  # what is wrong
        "from": float | None,  # start and end of the affected time, in seconds since the epoch; None if unknown
        "to": float | None,
        "uncertain_s": float | None,  # how much time is in doubt; None if unknown
        "newer_version": bool,  # whether it is intact, but a newer version of this package wrote it
    },
)
DamageFields.__doc__ = "A part of a journal that could not be read."


class _AlwaysFields(PartitionFields):
    run_id: str  # id of the run
    job_name: str  # name of the job
    started_at: float | None  # first job start; None if no job has begun
    ended: bool  # whether the latest job is over
    # ``running``, ``ended``, ``failed`` (by an exception), ``died``, or ``silent`` (no news from another machine)
    state: str
    last_sign_of_life: float | None  # of a run that died or is silent
    last_step_open_s: float | None  # how long the last step of such a run had been open
    excluded_s: float  # time that you excluded; it is in no category
    suspended_s: float  # how long the machine was suspended; it is in no category
    last_step: int | None  # number of the latest step that began
    last_step_given: int | None  # the number that its loop gave it
    in_flight_step: int | None  # number of the open step
    in_flight_step_s: float | None  # how long it has been open
    disruptions: int  # how many there were
    disruption_reasons: dict[str, int]  # how many there were, by reason
    disruption_list: list[DisruptionFields]  # the latest ones
    error_type: str | None  # the exception that ended the latest job, redacted; None if none did
    error_message: str | None
    attempts: int  # job starts
    first_step_s: float | None  # from the latest job's start to the end of its first completed step; None until then
    clock: str  # where the end of the latest step came from: ``device``, ``host`` or ``unknown``
    steps: StepsFields  # executions by fate
    pending_steps: int | None  # executions whose fate is open
    started_steps: int  # all executions that began
    skipped_batches: int  # iterations after a restore that were not steps
    doubtful_steps: int  # steps after a restore that may have been none
    ideal_step_time_s: float | None  # ideal net time of a step
    step_time_deviation_s: float | None  # how much longer recent steps take
    at_risk_s: float | None  # productive time that no durable checkpoint covers
    overlapped_data_loading_s: float  # data loading that did not block training
    recompilations: int  # functions compiled again in an attempt: how often
    recompiled: dict[str, int]  # the same by function
    compilations_seen: bool  # whether start-up is measured from compilations, not estimated
    step_cadence_s: float | None  # median time from the start of one step to the start of the next, of recent steps
    observed_steps: bool  # whether the device reported the end of at least one step
    skewed_clocks: bool  # whether the clocks of hosts differ
    behind_s: float  # how far the account lags behind the requested time
    windows: list[WindowFields]  # the requested windows
    rolling: list[RollingFields]  # the rolling windows; one that is longer than the run has all of it
    incidents: list[IncidentFields]  # what was wrong with the job, in the order of its attempts
    damage: list[DamageFields]  # what could not be read
    warnings: list[WarningFields]  # what you must know to read the figures


class RankWaitFields(TypedDict):
    """Time for which the job waited for one rank (rule R11)."""

    rank: int  # for which the job waited
    host: str | None  # where it runs; None if unknown
    category: str  # what the rank did meanwhile
    name: str  # of the ``custom`` phase; else empty
    seconds: float
    since: float  # when it last began to wait for this, in seconds since the epoch
    until: float  # when that was over
    goodput_without: float | None  # what goodput would be without this time: productive time / (elapsed time - it)


class WaitingForFields(TypedDict):
    """The rank that the job waits for at the end of the account."""

    rank: int  # its index
    host: str | None  # where it runs; None if unknown
    category: str  # what the rank does
    name: str  # of the ``custom`` phase; else empty
    since: float  # when the job began to wait, in seconds since the epoch


class OpenRankFields(TypedDict):
    """What a rank was doing at its last sign of life."""

    rank: int  # its index
    host: str | None  # where its latest process runs or ran; None if unknown
    pid: int | None  # of that process
    state: str  # of the rank: ``running``, ``ended``, ``failed``, ``died`` or ``silent``
    phase: str | None  # category of the innermost open phase, ``step`` or ``exclusion``; None if none is open
    name: str  # of the ``custom`` phase; else empty
    step: int | None  # number of the step that is open; None if none is
    since: float | None  # when the phase began, in seconds since the epoch
    last_sign_of_life: float  # in seconds since the epoch


class RankClockFields(TypedDict):
    """A clock by which times were corrected."""

    rank: int  # its index
    ahead: float  # of the leader's clock, s; negative: it is behind
    bound: float  # how wrong that may be, s


class SlowRankFields(TypedDict):
    """A rank that was slow inside of steps, so that the others waited for it there."""

    rank: int  # its index
    host: str | None  # where its latest process runs or ran; None if unknown
    pattern: str  # ``once``, ``chronic``, ``recurring``, or ``wandering``: one of many, in turn
    windows: int  # of time in which it was slow,
    seen: int  # of so many since the first of these
    since: float  # when the first of these began, in seconds since the epoch
    until: float  # when the latest of these ended
    own_s: float  # its own time in a turn of the loop, in these windows
    usual_s: float  # the same of a usual rank
    lost_s: float  # how long the job waited for it
    gain_without: float  # by which share the job would have been faster without it, in these windows


class RankTimeFields(TypedDict):
    """A rank's turns of the loop in a window."""

    rank: int  # its index
    own_s: float  # its own time inside of the step
    waiting_s: float  # for how long it waited there


class OwnWindowFields(TypedDict):
    """What ranks did inside of steps in a window of time; the times are those of one turn of the loop."""

    begin: float  # in seconds since the epoch
    end: float
    steps: int  # that were completed
    turn_s: float  # all of it
    usual_s: float  # own time of a usual rank
    waiting_s: float  # for how long a rank waited that was not slow
    without_s: float  # what a turn would have taken without the slow ranks
    slow: list[int]  # indices of these, the slowest first
    ranks: list[RankTimeFields]  # of all ranks if there are up to 64, else of those that stand out
    compared: int  # how many ranks there were
    bands_s: list[float]  # own times that 90 and 99 % of these do not exceed


class OwnTimesFields(TypedDict):
    """What ranks did themselves inside of steps, which take equally long on all ranks."""

    pattern: str  # who was slow: as of a rank; empty if nobody was
    slow: list[SlowRankFields]  # the one that cost most first
    windows: list[OwnWindowFields]  # in the order of time; if there were many, each stands for several


class RanksFields(TypedDict):
    """The ranks of a job."""

    count: int  # how many are in the account
    expected: int  # how many the job has
    missing: list[int]  # indices of those that left no journal here that can be read; the first 16
    # whether they step together; if not, the account is the sum of the accounts of all ranks, weighted by devices
    together: bool
    waits: list[RankWaitFields]  # for which the job waited, the longest first
    open: list[OpenRankFields]  # what each rank is doing; empty if the job is over
    waiting_for: WaitingForFields | None  # None if the job is over, or waits for nobody, or if that is not known
    roles: dict[str, PartitionFields]  # where the time of the ranks of each role went, if there are several roles
    clocks: list[RankClockFields]  # those that are ahead or behind by 50 ms or more, for which times are corrected
    clock_spread: float  # how far two corrected clocks may still be apart, s; 0 if none is corrected
    own: OwnTimesFields | None  # of the latest attempt; None if that is not known


class LoaderStageFields(TypedDict):
    """Time of one stage of the batches of data loaders."""

    exposed_s: float  # in which training waited for it
    hidden_s: float  # behind steps


class LoaderWorkerFields(TypedDict):
    """What one worker of a data loader did."""

    rank: int  # whose worker it is
    worker: int | None  # its index; None: no worker, but the process that trains made the batches
    batches: int  # that it made
    stages: dict[str, LoaderStageFields]  # by stage


class LoaderFields(TypedDict):
    """What training waited for in its data loaders, of all ranks together."""

    batches: int  # that training took
    waited_s: float  # for how long it waited for them
    stages: dict[str, LoaderStageFields]  # ``fetch``, ``transform``, ``collate``, ``transfer`` and ``queue``
    workers: list[LoaderWorkerFields]  # those that training waited for most, at most 64
    waits_in: str | None  # the stage that it waited for most of the time; None if there is none
    slow_rank: int | None  # of a worker that is slower in this stage than the others; None if no worker is
    slow_worker: int | None  # its index
    slow_batch_s: float | None  # what this stage takes it for a batch
    usual_batch_s: float | None  # and takes others
    merged: bool  # some transforms could not be timed apart: their time is in ``fetch``
    ideal_goodput: float | None  # the goodput if training had not waited for data


class ProcessFields(TypedDict):
    """Whose account it is, if it is that of one process of several."""

    index: int  # of the process
    count: int  # how many processes there are
    reason: str | None  # why it is not the account of all of them; None if that of a process was requested


class ReportFields(_AlwaysFields, total=False):
    """The account of a run."""

    scheduling_goodput: float  # a factor of productivity goodput
    program_goodput: float | None  # another factor
    productivity_goodput: float | None  # the product of both and `goodput`
    objective: float  # the goodput that the run should have, if one was set
    error_budget_used: float | None  # unproductive time over what the objective allows; above 1: more than that
    processes: ProcessesFields  # if processes reported their paces
    usage: UsageFields  # if it was sampled; of a job that goes on in this process, only that of this process
    loader: LoaderFields  # if data loaders were timed; of a job that goes on in this process, only that of this process
    ranks: RanksFields  # in the account of a job of several ranks
    process: ProcessFields  # in the account of one process of several
    # in the account of ranks that do not step together; `steps` are those of the rank that has completed most
    kept_by_rank: KeptByRankFields
    step_time: StepTimeFields | None  # None if no step is kept
    long_steps: LongStepsFields  # if some recur in the latest loop
    long_phases: list[LongPhaseFields]  # if some took far longer than usual; their time keeps its category
    # by operation (``save``, ``restore``, ``emergency_restore``) and stage, if Orbax reported any
    checkpoints: dict[str, dict[str, StageFields]]
    scheduling: SchedulingFields  # if Kubernetes reported it
    compile_cache: CompileCacheFields  # if it is in use
    configurations: list[ConfigurationFields]  # what the attempts ran with, the latest 100; missing if unknown
