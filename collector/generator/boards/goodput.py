"""The dashboard of our own metrics, in the order in which somebody who was woken by an alert needs it.

Longer than other files: it is a list of panels.
"""

from __future__ import annotations

from typing import Final

from boards.board import Across, Board, Bound, Panel, Query, Read, Section, Unit, View
from boards.slots import AT_RISK, EACH, HANG_LEAST, LAST_WINDOW, RANK_WAIT, SILENCE, TARGET, WINDOW
from otel_goodput import semconv
from otel_goodput.semconv import Category, JobState

UNEVEN: Final = 1.1  # slowest process over the median of all


def board() -> Board:
    return Board(
        "otel_goodput: goodput",
        "How much of a training job's time makes progress, and where the rest goes.",
        [
            Section("How much of the time makes progress?", _now()),
            Section("Where did the time go?", _losses()),
            Section("Is it hanging?", _life()),
            Section("What is wrong with it?", _incidents()),
            Section("How fast are the steps?", _steps()),
            Section("What interrupted it, and what would a crash cost?", _disruptions()),
            Section("How well is the fleet used?", _fleet()),
            Section("What do its ranks use?", usage()),
            Section("What does the telemetry cost?", _telemetry()),
        ],
    )


def _ratio(window: str) -> Query:
    return Query(semconv.RATIO, only={semconv.GOODPUT_WINDOW: window}, across=Across.MIN)


def _has_ended() -> Query:
    return Query(semconv.JOB_STATE, only={semconv.GOODPUT_JOB_STATE: JobState.ENDED}, across=Across.MIN)


def _step_age(text: str = "") -> Query:
    return Query(semconv.STEP_AGE, text, across=Across.MAX)


def _now() -> list[Panel]:
    target = Bound(TARGET, below=True)
    figures = [
        Panel(
            f"Goodput, {name}",
            "Productive time over elapsed time.",
            View.FIGURE,
            Unit.SHARE,
            [_ratio(window)],
            width=2,
            bound=target,
            repeated=window == EACH,
        )
        for window, name in ((semconv.WINDOW_RUN, "whole run"), (EACH, f"last {EACH}"))
    ]
    return [
        *figures,
        Panel(
            "Since a step was completed",
            "It resets with every step. If it only grows, the job hangs or is in a long save or evaluation.",
            View.FIGURE,
            Unit.SECONDS,
            [_step_age()],
            width=2,
            bound=Bound(HANG_LEAST),
        ),
        Panel(
            "At risk",
            "Progress since the last durable checkpoint: what a crash right now would cost.",
            View.FIGURE,
            Unit.SECONDS,
            [Query(semconv.AT_RISK, across=Across.MAX)],
            width=2,
            bound=Bound(AT_RISK),
        ),
        Panel(
            "Elapsed",
            "Since the run's first start, restarts included: the sum of all categories.",
            View.FIGURE,
            Unit.SECONDS,
            [Query(semconv.TIME)],
            width=2,
        ),
        Panel(
            "Has it ended?",
            "The state that the run last reported. A silent run that has not ended has died, or its metrics do "
            "not arrive.",
            View.FIGURE,
            Unit.COUNT,
            [_has_ended()],
            words={0: "not ended", 1: "ended"},
        ),
        Panel(
            "Last sign of life, ago",
            "Time since the run last reported anything.",
            View.FIGURE,
            Unit.SECONDS,
            [Query(semconv.LAST_SIGN, read=Read.AGE)],
        ),
        Panel(
            "Highest step",
            "The highest step kept.",
            View.FIGURE,
            Unit.COUNT,
            [Query(semconv.STEP_MAX, across=Across.MAX)],
        ),
    ]


def _losses() -> list[Panel]:
    window = {semconv.GOODPUT_WINDOW: WINDOW}
    sources = (semconv.GOODPUT_CATEGORY, semconv.GOODPUT_CUSTOM_NAME)
    return [
        Panel(
            f"Where did the last {WINDOW} go?",
            "Every moment belongs to exactly one category, so they add up to all the time. Custom phases are "
            "listed by name.",
            View.STACK,
            Unit.SHARE,
            [
                Query(semconv.RATIO, Category.PRODUCTIVE, only=window, across=Across.MEAN),
                Query(semconv.BADPUT_RATIO, only=window, by=sources, across=Across.MEAN),
            ],
            width=8,
            zeros=False,
        ),
        Panel(
            "Where did the whole run go?",
            "Where the run's time went; the largest share first.",
            View.TABLE,
            Unit.SECONDS,
            [Query(semconv.TIME, by=sources)],
            zeros=False,
        ),
        Panel(
            "Is goodput rising or falling?",
            "Goodput of the whole run and of rolling windows; short windows show a change first. And the objective, if "
            "the run has one.",
            View.LINES,
            Unit.SHARE,
            [
                Query(semconv.RATIO, by=(semconv.GOODPUT_WINDOW,), across=Across.MIN),
                Query(semconv.OBJECTIVE, "objective", across=Across.MAX),
            ],
            width=6,
            bound=Bound(TARGET, below=True),
        ),
        Panel(
            "What share of the run is lost?",
            "Badput by category, since the start of the run.",
            View.LINES,
            Unit.SHARE,
            [
                Query(
                    semconv.BADPUT_RATIO,
                    only={semconv.GOODPUT_WINDOW: semconv.WINDOW_RUN},
                    by=sources,
                    across=Across.MEAN,
                )
            ],
            width=6,
            zeros=False,
        ),
    ]


def _incidents() -> list[Panel]:
    kinds = (semconv.GOODPUT_INCIDENT_KIND, semconv.GOODPUT_INCIDENT_CAUSE)
    where = (semconv.GOODPUT_INCIDENT_PHASE, semconv.GOODPUT_RANK, semconv.GOODPUT_INCIDENT_LINE)
    return [
        Panel(
            "Which incidents are open?",
            "Kind, cause, phase, rank and line of each; 0 once it is over.",
            View.LINES,
            Unit.COUNT,
            [Query(semconv.INCIDENT_ACTIVE, by=(*kinds, *where), across=Across.MAX)],
            width=6,
            zeros=False,
        ),
        Panel(
            "How many incidents were there?",
            "Incidents of the latest attempts, by kind and cause.",
            View.LINES,
            Unit.COUNT,
            [Query(semconv.INCIDENT_COUNT, by=kinds, read=Read.EVENTS)],
            width=3,
            zeros=False,
        ),
        Panel(
            "What did they cost?",
            "Time lost by the incidents of the latest attempts, by kind and cause.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.INCIDENT_COST, by=kinds)],
            width=3,
            zeros=False,
        ),
    ]


def _life() -> list[Panel]:
    return [
        Panel(
            "How long has no step been completed?",
            "A sawtooth about one ideal step high is healthy; a ramp is a hang.",
            View.LINES,
            Unit.SECONDS,
            [_step_age("since a step"), Query(semconv.STEP_IDEAL, "ideal step time", across=Across.MAX)],
            width=6,
            bound=Bound(HANG_LEAST),
        ),
        Panel(
            "Do steps stall?",
            "Time that single steps took beyond their limit, as a share of the run, for kept and lost steps.",
            View.LINES,
            Unit.SHARE,
            [
                Query(
                    semconv.STALLED_RATIO,
                    only={semconv.GOODPUT_WINDOW: semconv.WINDOW_RUN},
                    by=(semconv.GOODPUT_STEP_STATE,),
                    across=Across.MAX,
                )
            ],
            width=6,
            zeros=False,
        ),
        Panel(
            "Does it make progress?",
            "The highest kept step must rise. Lost steps were repeated after a restart or a rollback.",
            View.LINES,
            Unit.COUNT,
            [
                Query(semconv.STEP_MAX, "highest step kept", across=Across.MAX),
                Query(semconv.STEP_COUNT, by=(semconv.GOODPUT_STEP_STATE,)),
            ],
            width=6,
            zeros=False,
        ),
        Panel(
            "Is it running, or has it ended?",
            "The state that the run reports. A run that is gone but has not ended has died, or its metrics do "
            "not arrive.",
            View.STACK,
            Unit.COUNT,
            [Query(semconv.JOB_STATE, by=(semconv.GOODPUT_JOB_STATE,), across=Across.MAX)],
            width=6,
            zeros=False,
        ),
        Panel(
            "Which rank does it wait for?",
            "Share of the time in which most other ranks wait for one, by rank and what it does meanwhile.",
            View.LINES,
            Unit.SHARE,
            [Query(semconv.RANK_WAIT, by=(semconv.GOODPUT_RANK, semconv.GOODPUT_CATEGORY), read=Read.RATE)],
            width=6,
            bound=Bound(RANK_WAIT),
            zeros=False,
        ),
        Panel(
            "Is it still alive?",
            "Rises only when a run is over or gone; the panel next to it shows which.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.LAST_SIGN, "silent for", read=Read.AGE)],
            width=6,
            bound=Bound(SILENCE),
        ),
    ]


def _steps() -> list[Panel]:
    return [
        Panel(
            "How many steps per minute?",
            "Steps that process 0 completed.",
            View.LINES,
            Unit.COUNT,
            [Query(semconv.STEP_DURATION, "steps", read=Read.PER_MINUTE)],
        ),
        Panel(
            "How long does a step take?",
            "Net: without compilations, saves, evaluations and loading inside the step. In process 0: if it waits "
            "there for other ranks, that is included, but not in the ideal step time, which is the job's.",
            View.LINES,
            Unit.SECONDS,
            [
                Query(semconv.STEP_DURATION, "p50", read=Read.P50),
                Query(semconv.STEP_DURATION, "p99", read=Read.P99),
                Query(semconv.STEP_IDEAL, "ideal", across=Across.MAX),
            ],
        ),
        Panel(
            "How are step times distributed?",
            "Distribution of net step times in process 0. A second band is often a straggler, or a save that blocks.",
            View.HEATMAP,
            Unit.SECONDS,
            [Query(semconv.STEP_DURATION, read=Read.BUCKETS)],
        ),
        Panel(
            "Which rank is slow inside of steps?",
            "What the slowest ranks themselves take in a turn of the loop, without their waits for others, and what a "
            "usual rank does (`other`). All steps take as long as those of the slowest rank.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.RANK_OWN, by=(semconv.GOODPUT_RANK,), across=Across.MAX)],
            width=6,
        ),
        Panel(
            "How much faster would the job be without it?",
            "By which share, without one of the ranks that are slow inside of steps; 0 once it is no longer slow.",
            View.LINES,
            Unit.SHARE,
            [Query(semconv.RANK_GAIN, by=(semconv.GOODPUT_RANK,), across=Across.MAX)],
            width=6,
        ),
        Panel(
            "Are recent steps slower than usual?",
            "How far the recent steps' 90th percentile is above the usual time.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.STEP_DEVIATION, "deviation", across=Across.MAX)],
            width=6,
        ),
        Panel(
            "How long do other phases take (p99)?",
            "Data loading, saves, restores, compilations and custom phases of process 0, by name.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.PHASE_DURATION, by=(semconv.GOODPUT_PHASE, semconv.GOODPUT_CUSTOM_NAME), read=Read.P99)],
            width=6,
        ),
        Panel(
            "What is a step made of (p50)?",
            "The median duration of each part in process 0, if the job uses part().",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.PART_DURATION, by=(semconv.GOODPUT_PART_NAME,), read=Read.P50)],
            width=6,
        ),
        Panel(
            "Are batches ready in time?",
            "For loaders that report it, in process 0. At 0, the step waits for data.",
            View.LINES,
            Unit.COUNT,
            [Query(semconv.QUEUE_DEPTH, "batches", across=Across.MIN)],
            width=6,
        ),
        Panel(
            "In which stage of loading does the time go?",
            "Seconds per second, summed over workers, of the loaders of process 0. Training waits for what is "
            "blocking; the rest is hidden behind steps.",
            View.LINES,
            Unit.COUNT,
            [
                Query(
                    semconv.LOADER_STAGE,
                    by=(semconv.GOODPUT_LOADER_STAGE, semconv.GOODPUT_BLOCKING),
                    read=Read.RATE,
                )
            ],
            width=6,
        ),
        Panel(
            "How much loading overlaps with steps?",
            "Data loading that ran in parallel with the steps of process 0, since the run began. It costs no goodput.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.OVERLAPPED_LOADING, "loading", across=Across.MAX)],
        ),
        Panel(
            "Does the compilation cache hit?",
            "Functions per second found in JAX's persistent cache, and functions compiled and stored in it.",
            View.LINES,
            Unit.COUNT,
            [Query(semconv.COMPILE_CACHE, by=(semconv.GOODPUT_COMPILE_CACHE_RESULT,), read=Read.RATE)],
            zeros=False,
        ),
        Panel(
            "What did the compilation cache save?",
            "Compile time that its hits saved an attempt, less the time to fetch them.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.COMPILE_TIME_SAVED, "saved", across=Across.MAX)],
        ),
    ]


def _disruptions() -> list[Panel]:
    return [
        Panel(
            "Why was it disrupted?",
            "Restarts and rollbacks of the run.",
            View.STACK,
            Unit.COUNT,
            [Query(semconv.DISRUPTIONS, by=(semconv.GOODPUT_DISRUPTION_REASON,), read=Read.EVENTS)],
            width=6,
            zeros=False,
        ),
        Panel(
            f"How often was it disrupted in the last {LAST_WINDOW}?",
            "Restarts and rollbacks in a rolling window. A reason is shown once it has occurred.",
            View.LINES,
            Unit.COUNT,
            [
                Query(
                    semconv.WINDOW_DISRUPTIONS,
                    only={semconv.GOODPUT_WINDOW: LAST_WINDOW},
                    by=(semconv.GOODPUT_DISRUPTION_REASON,),
                )
            ],
            width=6,
            zeros=False,
        ),
        Panel(
            "What would a crash cost?",
            "A sawtooth that falls with every durable checkpoint. If it only rises, no checkpoint becomes durable.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.AT_RISK, "at risk", across=Across.MAX)],
            width=6,
            bound=Bound(AT_RISK),
        ),
        Panel(
            "How long until it trains again?",
            "From the start of the latest job to the end of its first step, and from the latest disruption until the "
            "highest step kept before it was reached again.",
            View.LINES,
            Unit.SECONDS,
            [
                Query(semconv.FIRST_STEP, "first step", across=Across.MAX),
                Query(semconv.REGAINED, "regained", across=Across.MAX),
            ],
            width=6,
        ),
    ]


def _fleet() -> list[Panel]:
    states = (semconv.GOODPUT_SLICE_STATE,)
    return [
        Panel(
            "What share of the slices is in use?",
            "Time-weighted share of the slices that were stepping, or available.",
            View.LINES,
            Unit.SHARE,
            [
                Query(semconv.SLICE_SHARE, "now", by=states, across=Across.MIN),
                Query(semconv.SLICE_EFFICIENCY, "whole run", by=states, across=Across.MIN),
                Query(
                    semconv.SLICE_WINDOW_EFFICIENCY,
                    f"last {WINDOW}",
                    only={semconv.GOODPUT_WINDOW: WINDOW},
                    by=states,
                    across=Across.MIN,
                ),
            ],
            width=6,
        ),
        Panel(
            "How productive is it?",
            "Scheduling x runtime x program goodput, and its factors.",
            View.LINES,
            Unit.SHARE,
            [
                Query(semconv.PRODUCTIVITY, "productivity", across=Across.MIN),
                Query(semconv.SCHEDULING_RATIO, "scheduling", across=Across.MIN),
                Query(semconv.PROGRAM_RATIO, "program (MFU)", across=Across.MIN),
                Query(semconv.RATIO, "runtime", only={semconv.GOODPUT_WINDOW: semconv.WINDOW_RUN}, across=Across.MIN),
            ],
            width=6,
        ),
        Panel(
            "What did an attempt wait for?",
            "What an attempt waited for before its program ran, if Kubernetes reports it: node, image, container.",
            View.LINES,
            Unit.SECONDS,
            [Query(semconv.SCHEDULING_DURATION, by=(semconv.GOODPUT_SCHEDULING_STAGE,), across=Across.MAX)],
            width=6,
            zeros=False,
        ),
        Panel(
            "Is one process slower than the rest?",
            "The slowest process's median step over the median of all processes; 1 is even.",
            View.LINES,
            Unit.FACTOR,
            [Query(semconv.STRAGGLER, "slowest over median", across=Across.MAX)],
            width=6,
            bound=Bound(UNEVEN),
        ),
    ]


def usage() -> list[Panel]:
    """What is known if the job samples usage. Of more than 16 ranks, there are also min, mean and max of all."""
    ranks = (semconv.GOODPUT_RANK,)
    reasons = (semconv.GOODPUT_RANK, semconv.GOODPUT_THROTTLE_REASON)

    def lines(title: str, brief: str, unit: Unit, *queries: Query, zeros: bool = True) -> Panel:
        return Panel(title, brief, View.LINES, unit, queries, zeros=zeros)

    return [
        lines(
            "Do the accelerators compute?",
            "Share of the time in which a rank's GPUs or TPUs are busy, even if they wait for each other.",
            Unit.SHARE,
            Query(semconv.ACCELERATOR_BUSY, by=ranks, across=Across.MAX),
        ),
        lines(
            "Are their clocks held down?",
            "1 while something slows a rank's accelerators: heat, a power cap, or the hardware.",
            Unit.COUNT,
            Query(semconv.THROTTLED, by=reasons, across=Across.MAX),
            zeros=False,
        ),
        lines(
            "What power do they take?",
            "Power of a rank's accelerators, together.",
            Unit.WATTS,
            Query(semconv.ACCELERATOR_POWER, by=ranks, across=Across.MAX),
        ),
        lines(
            "Does the accelerators' memory suffice?",
            "Memory in use on a rank's accelerators, together, and how much they have.",
            Unit.BYTES,
            Query(semconv.ACCELERATOR_MEMORY, "in use", by=ranks, across=Across.MAX),
            Query(semconv.ACCELERATOR_MEMORY_LIMIT, "there is", across=Across.MIN),
        ),
        lines(
            "Do the processors keep up?",
            "Share of all cores in use on a machine, by the lowest rank on it.",
            Unit.SHARE,
            Query(semconv.MACHINE_CPU, "machine", by=ranks, across=Across.MAX),
        ),
        lines(
            "How many cores does a rank use?",
            "Processor time per second of each rank's process.",
            Unit.FACTOR,
            Query(semconv.CPU_TIME, by=ranks, read=Read.RATE),
        ),
        lines(
            "Does the host's memory suffice?",
            "Memory in use on a machine, by the lowest rank on it, and how much it has.",
            Unit.BYTES,
            Query(semconv.MACHINE_MEMORY, "in use", by=ranks, across=Across.MAX),
            Query(semconv.MACHINE_MEMORY_LIMIT, "there is", across=Across.MIN),
        ),
        lines(
            "How much memory does a rank use?",
            "Resident memory of each rank's process.",
            Unit.BYTES,
            Query(semconv.PROCESS_MEMORY, by=ranks, across=Across.MAX),
        ),
    ]


def _telemetry() -> list[Panel]:
    return [
        Panel(
            "What does recording cost the training thread?",
            "Share of the training thread's time that recording takes (estimated from samples).",
            View.LINES,
            Unit.SHARE,
            [Query(semconv.OVERHEAD, "overhead", read=Read.RATE)],
        ),
        Panel(
            "Is telemetry lost?",
            "Spans and data points per second that were not delivered. The figures are not lost: the journal has them.",
            View.LINES,
            Unit.COUNT,
            [Query(semconv.DROPPED, by=(semconv.GOODPUT_SIGNAL,), read=Read.RATE)],
            zeros=False,
        ),
        Panel(
            "By which clock are steps measured?",
            "The clock that shows when steps end. While it is unknown, there is no goodput and no step time.",
            View.STACK,
            Unit.COUNT,
            [Query(semconv.CLOCK, by=(semconv.GOODPUT_CLOCK_STATE,))],
            zeros=False,
        ),
    ]
