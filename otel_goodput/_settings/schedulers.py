"""The variables in which schedulers and launchers report the run: which job it is, how often it was started before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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

# What identifies one launch, in all of its processes alike. Each row is one identity, whose variables must all be set.
KEYS: Final = (
    ("TORCHELASTIC_RUN_ID",),
    ("MASTER_ADDR", "MASTER_PORT"),  # torchrun, accelerate, DeepSpeed, Lightning, Ray Train, PyTorchJob
    ("JAX_COORDINATOR_ADDRESS",),
    ("COORDINATOR_ADDRESS", "COORDINATOR_PORT"),  # JAXJob
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ("MEGASCALE_COORDINATOR_ADDRESS",),
    ("LWS_LEADER_ADDRESS",),
    ("SLURM_JOB_ID",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("OMPI_MCA_ess_base_jobid",),  # Open MPI 4
    ("PMIX_NAMESPACE",),  # Open MPI 5, and whoever has a PMIx server: Slurm, jsrun
    ("PMI_PORT",),  # Hydra with -pmi-port; without it there is no identity in its variables
    ("PALS_APID",),
    ("FLUX_JOB_ID",),
    ("LSB_JOBID",),
    ("PBS_JOBID",),
)
NOBODYS: Final = frozenset({"", "none"})  # torchrun's default run id


class LaunchKey(NamedTuple):
    """The identity of one launch of a job. It may return: a port is used again by the next launch.

    Attributes:
        text: the variables, the same in all processes of the launch.
        restarts: how often each launcher had restarted the job, the outermost first.
        label: a short name for it.
        addressed: it includes an address at which its processes meet, so there are probably several.
    """

    text: str
    restarts: tuple[int, ...]
    label: str
    addressed: bool


def launch_key(environ: Mapping[str, str]) -> LaunchKey | None:
    """Return the identity of the launch that this process belongs to; None if no launcher gives one."""

    def value(name: str) -> str:
        return environ.get(name, "").strip()

    given = [names for names in KEYS if all(value(name) not in NOBODYS for name in names)]
    if not given:
        return None
    text = ";".join(sorted({f"{name}={value(name)}" for names in given for name in names}))
    label = value("SLURM_JOB_ID") or value("MASTER_PORT") or hashlib.sha256(text.encode()).hexdigest()[:8]
    restarts = tuple(_count(environ, launcher.restarts) for launcher in LAUNCHERS)
    return LaunchKey(text, restarts, label, any("ADDR" in name for names in given for name in names))


def _count(environ: Mapping[str, str], names: Sequence[str]) -> int:
    counts = (environ.get(name, "").strip() for name in names)
    return next((int(count) for count in counts if count.isascii() and count.isdecimal() and len(count) < 16), 0)
