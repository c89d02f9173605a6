"""The rules of time as tables: which category a phase's time belongs to, and which open phase owns an instant (R3)."""

from __future__ import annotations

from typing import Final

from otel_goodput.semconv import CATEGORIES, ELASTIC_SCALE_UP, ELASTIC_SLICE_DOWN, PHASES, Category, Phase, Reason

CATEGORY_INDEX: Final = {name: index for index, name in enumerate(CATEGORIES)}
PHASE_INDEX: Final = {name: index for index, name in enumerate(PHASES)}

PRODUCTIVE: Final = CATEGORY_INDEX[Category.PRODUCTIVE]
PROGRAM_STARTUP: Final = CATEGORY_INDEX[Category.PROGRAM_STARTUP]
CUSTOM: Final = CATEGORY_INDEX[Category.CUSTOM]
WASTED_PROGRESS: Final = CATEGORY_INDEX[Category.WASTED_PROGRESS]
RECOVERY: Final = CATEGORY_INDEX[Category.INFRASTRUCTURE_RECOVERY]
IN_FLIGHT: Final = CATEGORY_INDEX[Category.IN_FLIGHT]
OTHER: Final = CATEGORY_INDEX[Category.OTHER]
FIXED: Final = len(CATEGORIES)  # custom names are numbered from here on

JOB: Final = PHASE_INDEX[Phase.JOB]
STEP: Final = PHASE_INDEX[Phase.STEP]
DATA_LOADING: Final = PHASE_INDEX[Phase.DATA_LOADING]
SAVE: Final = PHASE_INDEX[Phase.CHECKPOINT_SAVE]
CUSTOM_PHASE: Final = PHASE_INDEX[Phase.CUSTOM]
COMPILE: Final = PHASE_INDEX[Phase.COMPILE]
ELASTIC_WAIT: Final = PHASE_INDEX[Phase.ELASTIC_WAIT]
ELASTIC_REINIT: Final = PHASE_INDEX[Phase.ELASTIC_REINIT]
EXCLUSION: Final = PHASE_INDEX[Phase.EXCLUSION]
PART: Final = PHASE_INDEX[Phase.PART]

# R3.1 and R3.3: phases that own time by being open, and the category they own it for. `custom` is numbered by its name.
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
# R3.2: phases whose work on the device has their name.
MARKABLE: Final = frozenset(
    PHASE_INDEX[phase]
    for phase in (Phase.STEP, Phase.CUSTOM, Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_RESTORE, Phase.TRAINING_PREP)
)
# Of the owners, the ones with nothing more to them than a category.
SIMPLE: Final[dict[int, int]] = {
    phase: category for phase, category in OWNERS.items() if phase not in (SAVE, CUSTOM_PHASE, COMPILE, ELASTIC_REINIT)
}
ELASTIC_CATEGORY: Final = {
    ELASTIC_SLICE_DOWN: CATEGORY_INDEX[Category.ELASTIC_SLICE_DOWN],
    ELASTIC_SCALE_UP: CATEGORY_INDEX[Category.ELASTIC_SCALE_UP],
}

# R3: rank of an owning phase; the highest open rank wins and within it the latest started. A step executing on the
# device stands between ORDINARY and WAITING, the open step on the host below all of them.
ORDINARY: Final = 0
WAITING: Final = 1
REINITIALIZING: Final = 2
RANK: Final[dict[int, int]] = {ELASTIC_WAIT: WAITING, ELASTIC_REINIT: REINITIALIZING}

# R6: which of several notices is the reason of the disruption that follows.
PRECEDENCE: Final = (Reason.PREEMPTION, Reason.MAINTENANCE, Reason.SIGNAL)

STARTUP_SAMPLE: Final = 1000  # R5: the first this many steps make the median
RECOMPILED_NAMES: Final = 100  # functions whose recompilations are counted one by one
IDEAL_SAMPLE: Final = 1000  # ideal step time: the last this many steps
DEVIATION_SAMPLE: Final = 100  # step time deviation: the recent steps
USUAL_SAMPLE: Final = 1000  # R4: a step left by a break is held against the last this many kept steps
