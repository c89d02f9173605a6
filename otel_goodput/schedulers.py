"""The variables in which schedulers and launchers report the run: which job it is, how often it was started before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Launcher(NamedTuple):
    """The names of a launcher's variables, by meaning; of several names the first one that is set counts.

    The launcher is detected only by variables whose name begins with `prefix`.
    """

    name: str
    prefix: str
    restarts: Sequence[str] = ()
    job_id: Sequence[str] = ()
    max_restarts: Sequence[str] = ()
    ends_at: Sequence[str] = ()  # s since the epoch


# From the outermost to the innermost: torchrun may run within either of the others. JobSet itself sets only labels and
# annotations; these are the variables in which manifests usually pass them on, through the downward API.
LAUNCHERS: Final = (
    Launcher(
        "jobset",
        "JOBSET_",
        restarts=("JOBSET_RESTART_ATTEMPT", "RESTART_ATTEMPT"),
        job_id=("JOBSET_NAME",),
        max_restarts=("JOBSET_MAX_RESTARTS",),
    ),
    Launcher(
        "slurm",
        "SLURM_",
        restarts=("SLURM_RESTART_COUNT",),
        job_id=("SLURM_JOB_ID", "SLURM_JOBID"),
        ends_at=("SLURM_JOB_END_TIME",),
    ),
    Launcher(
        "torchrun",
        "TORCHELASTIC_",
        restarts=("TORCHELASTIC_RESTART_COUNT",),
        job_id=("TORCHELASTIC_RUN_ID",),
        max_restarts=("TORCHELASTIC_MAX_RESTARTS",),
    ),
)
