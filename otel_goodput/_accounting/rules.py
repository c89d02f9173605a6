"""The accounting rules as tables: the category of each phase's time, and which open phase owns an instant (R3)."""

from __future__ import annotations

from typing import Final

from otel_goodput.semconv import CATEGORIES, ELASTIC_SCALE_UP, ELASTIC_SLICE_DOWN, PHASES, Category, Phase, Reason

NS: Final = 1_000_000_000  # here too: the pure core imports nothing but the words on the wire

CATEGORY_INDEX: Final = {name: index for index, name in enumerate(CATEGORIES)}
PHASE_INDEX: Final = {name: index for index, name in enumerate(PHASES)}

PRODUCTIVE: Final = CATEGORY_INDEX[Category.PRODUCTIVE]
PROGRAM_STARTUP: Final = CATEGORY_INDEX[Category.PROGRAM_STARTUP]
RESTORE_TIME: Final = CATEGORY_INDEX[Category.CHECKPOINT_RESTORE]
# What a restart costs before its first step, without the restore.
STARTING: Final = (
    CATEGORY_INDEX[Category.ACCELERATOR_INIT],
    CATEGORY_INDEX[Category.TRAINING_PREP],
    PROGRAM_STARTUP,
)
CUSTOM: Final = CATEGORY_INDEX[Category.CUSTOM]
WASTED_PROGRESS: Final = CATEGORY_INDEX[Category.WASTED_PROGRESS]
STALLED: Final = CATEGORY_INDEX[Category.STALLED]
RECOVERY: Final = CATEGORY_INDEX[Category.INFRASTRUCTURE_RECOVERY]
IN_FLIGHT: Final = CATEGORY_INDEX[Category.IN_FLIGHT]
OTHER: Final = CATEGORY_INDEX[Category.OTHER]
DATA_LOADING_TIME: Final = CATEGORY_INDEX[Category.DATA_LOADING]
# Stalled time of steps that are kept, and of those that are lost; STALLED is that of the others. Answers add them up.
STALLED_KEPT: Final = len(CATEGORIES)
STALLED_LOST: Final = STALLED_KEPT + 1
# Names by category number; custom phases are numbered from FIXED on.
NAMES: Final = (*CATEGORIES, Category.STALLED, Category.STALLED)
FIXED: Final = len(NAMES)

JOB: Final = PHASE_INDEX[Phase.JOB]
STEP: Final = PHASE_INDEX[Phase.STEP]
DATA_LOADING: Final = PHASE_INDEX[Phase.DATA_LOADING]
SAVE: Final = PHASE_INDEX[Phase.CHECKPOINT_SAVE]
RESTORE: Final = PHASE_INDEX[Phase.CHECKPOINT_RESTORE]
CUSTOM_PHASE: Final = PHASE_INDEX[Phase.CUSTOM]
COMPILE: Final = PHASE_INDEX[Phase.COMPILE]
ELASTIC_WAIT: Final = PHASE_INDEX[Phase.ELASTIC_WAIT]
ELASTIC_REINIT: Final = PHASE_INDEX[Phase.ELASTIC_REINIT]
EXCLUSION: Final = PHASE_INDEX[Phase.EXCLUSION]
PART: Final = PHASE_INDEX[Phase.PART]

# R3.1 and R3.3: phases that own time while they are open, and its category. `custom` phases are numbered by name.
OWNERS: Final[dict[int, int]] = {
    PHASE_INDEX[phase]: CATEGORY_INDEX[category]
    for phase, category in {
        Phase.ACCELERATOR_INIT: Category.ACCELERATOR_INIT,
        Phase.TRAINING_PREP: Category.TRAINING_PREP,
        Phase.DATA_LOADING: Category.DATA_LOADING,
        Phase.CHECKPOINT_SAVE: Category.CHECKPOINT_SAVE,
        Phase.CHECKPOINT_RESTORE: Category.CHECKPOINT_RESTORE,
        Phase.CUSTOM: Category.CUSTOM,
        Phase.COMPILE: Category.PROGRAM_STARTUP,
        Phase.ELASTIC_REINIT: Category.ELASTIC_REINITIALIZATION,
    }.items()
}
# R3.2: phases whose work on the device is accounted to them.
MARKABLE: Final = frozenset(
    PHASE_INDEX[phase]
    for phase in (Phase.STEP, Phase.CUSTOM, Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_RESTORE, Phase.TRAINING_PREP)
)
# The owner that needs no handling beyond its category; steps of a loop have one of it between them.
SIMPLE: Final[dict[int, int]] = {DATA_LOADING: OWNERS[DATA_LOADING]}
ELASTIC_CATEGORY: Final = {
    ELASTIC_SLICE_DOWN: CATEGORY_INDEX[Category.ELASTIC_SLICE_DOWN],
    ELASTIC_SCALE_UP: CATEGORY_INDEX[Category.ELASTIC_SCALE_UP],
}

# R3: rank of an owning phase. The highest open rank wins; within a rank, the latest started phase. A step executing on
# the device ranks above the phases that are not listed, and below WAITING; the open step on the host below all.
WAITING: Final = 1
REINITIALIZING: Final = 2
RANK: Final[dict[int, int]] = {ELASTIC_WAIT: WAITING, ELASTIC_REINIT: REINITIALIZING}

# R6: which of several notices gives the reason of the disruption that follows; the first in this order.
PRECEDENCE: Final = (Reason.PREEMPTION, Reason.MAINTENANCE, Reason.SIGNAL)

EXCLUDED: Final = 1  # R7: bit of the window of excluded time; while it is open, all others count as closed
# R7, R11: in place of a category number, where the time of a rank is cut out: excluded by the user, or suspended.
EXCLUDED_TIME: Final = -2
SUSPENDED_TIME: Final = -3
CUT_OUT: Final = frozenset({EXCLUDED_TIME, SUSPENDED_TIME})
STARTUP_SAMPLE: Final = 1000  # R5: the median is over this many first steps
FIRST_EXECUTION: Final = 10  # times the usual step: what a first step takes longer, if it compiles, is start-up
RECOMPILED_NAMES: Final = 100  # functions whose recompilations are counted one by one
IDEAL_SAMPLE: Final = 1000  # ideal step time: over this many latest steps
CADENCE_SAMPLE: Final = 100  # cadence: over this many latest intervals between the starts of two steps
DEVIATION_SAMPLE: Final = 100  # step time deviation: this many steps count as recent
STALLED_SLACK: Final = 10_000_000_000  # R10: a step may take this much longer than the usual one, ns,
STALLED_FACTOR: Final = 10  # or this many times as long
STALLED_FROM: Final = 8  # R10: the first step of a loop that is judged; so many long ones in a row are the usual
STALLED_RECURRING: Final = 3  # R10: so many long ones at equal distances are long steps
PROFILED: Final = "profiling"  # R12: the custom phase that takes what a profiler costs
PROFILED_SAMPLE: Final = 20  # R12: the longest of this many latest steps before a profile is the usual one
USUAL_SAMPLE: Final = 1000  # R4: a step left by a break is compared with this many latest kept steps
