"""What happens in a run, as the ledger is told it: one flat, immutable record per happening.

An event says *when* (integer ns since the epoch) and *what*; which attempt it belongs to follows from the last
:data:`ATTEMPT` event before it. The journal stores exactly these fields, so that live, replayed and recovered runs go
through one ledger.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Kinds. The numbers are the journal's wire format: append, never renumber. 0 is what an unwritten record reads as.
ATTEMPT: Final = 1  # a new life of the process begins; `step` is its number from 0
START: Final = 2  # a phase opens
END: Final = 3  # the phase `key` closes
HEARTBEAT: Final = 4  # a sign of life
SLICES: Final = 5  # `step`, `key`, `arg` are the active, available and total slices from now on
NOTICE: Final = 6  # the platform announced the end; `phase` indexes semconv.REASONS
OBSERVED: Final = 7  # the device end of the step `key` will be told
DEVICE_END: Final = 8  # the step `key` left the device at `time`
UNOBSERVED: Final = 9  # the device end of the step `key` will never be known: fall back to the host clock
DURABLE: Final = 10  # the checkpoint saved in phase `key` is durable
CLOCK: Final = 11  # `phase` indexes semconv.FALLBACK_CLOCKS: what a step is whose end on the device is never told
MARK: Final = 12  # what the open phase `step` (a key, signed) dispatched since `time` is on the device until `key` ends


# Flags of START and END.
NONBLOCKING: Final = 1  # START: the phase holds up nothing
FAILED: Final = 2  # END: left early, by an exception or a break
PENDING: Final = 4  # END of a save: its checkpoint is not durable yet, DURABLE will tell
ON_DEVICE: Final = 16  # END of a step: as OBSERVED, for a step of which nobody has said so while it was open

LEFT: Final = 32  # END of a step, beside FAILED: its loop was left by a break, not by an exception
IDLE: Final = 64  # END of a step, beside LEFT: at the head of the loop, before anything was done in it

WITHDRAWN: Final = 8  # NOTICE: what was announced will not happen

NO_STEP: Final = -1


class Event(NamedTuple):
    """One happening.

    Attributes:
        time: ns since the epoch.
        kind: one of the constants of this module.
        phase: index into ``semconv.PHASES`` (START), into ``semconv.REASONS`` (NOTICE), else 0.
        key: identity of the phase within its attempt; ties a START to its END.
        step: step number, or ``NO_STEP``.
        flags: ``NONBLOCKING | FAILED | PENDING | ON_DEVICE | LEFT | IDLE``, of a notice ``WITHDRAWN``.
        arg: START of a step: its device end in ns if it is known beforehand, else 0; SLICES: total slices.
        name: name of a custom phase, kind of an elastic wait, function of a compile; END of a compile: the function if
            one was compiled, for it may have been traced only.
    """

    time: int
    kind: int
    phase: int = 0
    key: int = 0
    step: int = NO_STEP
    flags: int = 0
    arg: int = 0
    name: str = ""
