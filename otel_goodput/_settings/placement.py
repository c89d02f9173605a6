"""The index of this process in its job, and the number of processes: the sources, and which of them counts.

A runtime that is initialized in this process knows more than the variables of launchers, Kubernetes and TPUs. No
runtime is imported, initialized or waited for here: a runtime counts only if the program has initialized it, with
several processes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

LARGEST: Final = 1 << 40  # largest number accepted in a variable


class Reading(NamedTuple):
    """A number, and the name of the variable or function that it is from, or the formula."""

    number: int
    by: str

    def __str__(self) -> str:
        return f"{self.by}={self.number}"


class Place(NamedTuple):
    """What one source (a runtime, a launcher or the platform) says about this process; None is unknown."""

    rank: Reading | None  # from 0
    size: Reading | None  # number of processes
    doubt: str = ""  # why another process may have the same rank; empty if nothing is wrong
    advice: str = ""  # how to correct that


def whole(text: str) -> int | None:
    """Return the number from 0 to ``LARGEST`` that `text` is; None if it is anything else."""
    digits = text.isascii() and text.isdecimal() and len(text) < 16
    return int(text) if digits and int(text) <= LARGEST else None


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return the number that a variable holds, from 0; None if it holds anything else."""
    return whole(environ.get(name, "").strip())


# --- variables --------------------------------------------------------------------------------------------------------


class RankVariables(NamedTuple):
    """The variables in which a launcher gives a process its rank and the number of processes; the first set one counts.

    `applies`: whether they mean this process; they may be inherited from a shell.
    """

    name: str
    rank: Sequence[str]
    size: Sequence[str]
    applies: Callable[[Mapping[str, str]], bool] = lambda _: True


# The highest 16 step ids of Slurm are no steps: the batch script, an interactive shell, the node's own.
_NO_STEP: Final = 0xFFFF_FFF0
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "interactive"})  # `srun --pty bash` names its step so


def _in_a_step(environ: Mapping[str, str]) -> bool:
    """Whether ``srun`` started this process as a task. A shell has SLURM_PROCID=0 and SLURM_NTASKS, but no rank."""
    step = number(environ, "SLURM_STEP_ID" if environ.get("SLURM_STEP_ID") else "SLURM_STEPID")
    if step is None:
        return (number(environ, "SLURM_PROCID") or 0) > 0
    shell = environ.get("SLURM_JOB_NAME", "") in _SHELLS and (number(environ, "SLURM_STEP_NUM_TASKS") or 1) == 1
    return step < _NO_STEP and not shell


# From the innermost to the outermost: a launcher of several processes on a host knows more than the one of the hosts.
# torchrun's variables are also set by accelerate, DeepSpeed, Ray Train, Kubeflow's PyTorchJob and SageMaker.
RANK_VARIABLES: Final = (
    RankVariables("JAX", ("JAX_PROCESS_ID", "JAX_PROCESS_INDEX"), ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")),
    RankVariables("JAXJob", ("PROCESS_ID",), ("NUM_PROCESSES",), lambda environ: "COORDINATOR_ADDRESS" in environ),
    RankVariables("torchrun", ("RANK",), ("WORLD_SIZE",)),
    RankVariables("Horovod", ("HOROVOD_RANK",), ("HOROVOD_SIZE",)),
    RankVariables("Open MPI", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    RankVariables(
        "MVAPICH", ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"), ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE")
    ),
    # Hydra sets PMI_ID instead of PMI_RANK, and no size, if it was started with -pmi-port.
    RankVariables("PMI: MPICH, Intel MPI, Cray", ("PMI_RANK", "PALS_RANKID", "PMI_ID"), ("PMI_SIZE", "PALS_SIZE")),
    RankVariables("jsrun", ("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_SIZE",)),
    RankVariables("Flux", ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",)),
    RankVariables("PMIx", ("PMIX_RANK",), ()),
    RankVariables("Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), _in_a_step),
    RankVariables("LeaderWorkerSet", ("LWS_WORKER_INDEX",), ("LWS_GROUP_SIZE",)),
)

# Lightning's own launcher (and Fabric's) gives its children their rank on the node, and the node's.
LOCAL_RANK: Final = "LOCAL_RANK"
NODE: Final = ("NODE_RANK", "GROUP_RANK")
ON_A_NODE: Final = "LOCAL_WORLD_SIZE"

TF_CONFIG: Final = "TF_CONFIG"  # of TensorFlow, Vertex AI and Kubeflow's TFJob

# A pod has an index within its Job (a TPU slice, or a group of hosts such as a rack), and the Job has an index within
# its replicated job. JobSet sets these as annotations; the names here are the variables that manifests usually pass
# them in. JOB_GLOBAL_INDEX counts the Jobs of all replicated jobs of a JobSet; if there is only one, it is the same as
# JOB_INDEX. GKE itself sets TPU_* and MEGASCALE_*.
POD: Final = ("JOB_COMPLETION_INDEX", "TPU_WORKER_ID", "CLOUD_TPU_TASK_ID")
PODS: Final = ("JOB_COMPLETIONS", "PROCESSES_IN_JOB")
JOB: Final = ("JOB_INDEX", "JOB_GLOBAL_INDEX", "MEGASCALE_SLICE_ID")
JOBS: Final = ("REPLICATED_JOB_REPLICAS", "MEGASCALE_NUM_SLICES")
# Names of a slice's hosts, separated by commas.
HOSTS: Final = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
_COMPLETIONS: Final = f"set {PODS[0]} in the manifest to the Job's completions"
_INDEX: Final = f"set {JOB[0]} in the manifest to the annotation jobset.sigs.k8s.io/job-index"

NUMBERS: Final = (
    *(name for each in RANK_VARIABLES for names in (each.rank, each.size) for name in names),
    *(LOCAL_RANK, *NODE, ON_A_NODE),
    *(*POD, *PODS, *JOB, *JOBS),
)
"""Every variable that has to be a number."""


def of_environment(environ: Mapping[str, str]) -> list[Place]:
    """Return what each source among the variables says about this process, the innermost first."""
    places = [
        Place(_first(environ, each.rank), _first(environ, each.size))
        for each in RANK_VARIABLES
        if each.applies(environ)
    ]
    every = (*places[:2], on_a_node(environ), *places[2:], of_tensorflow(environ), across_jobs(environ))
    return [place for place in every if place.rank or place.size or place.doubt]


def on_a_node(environ: Mapping[str, str]) -> Place:
    """Return the place of a process that knows its rank on its node, and the node's. Empty if its rank is given."""
    local = _first(environ, (LOCAL_RANK,))
    if local is None or number(environ, "RANK") is not None:
        return Place(None, None)
    size, node, each = _first(environ, ("WORLD_SIZE",)), _first(environ, NODE), _first(environ, (ON_A_NODE,))
    if node is None or node.number == 0:
        return Place(local, size)
    if each is None:
        doubt = f"{local} and {node}, but the number of processes on a node is not set"
        return Place(None, size, doubt, f"set RANK, or {ON_A_NODE} to the number of processes on each node")
    return Place(Reading(node.number * each.number + local.number, f"{node.by} × {each.by} + {local.by}"), size)


def of_tensorflow(environ: Mapping[str, str]) -> Place:
    """Return the place that ``TF_CONFIG`` gives: the chief first, then the workers. Empty for other tasks."""
    try:
        config: Any = json.loads(environ.get(TF_CONFIG) or "{}")
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        chiefs, workers = (len(cluster.get(kind) or ()) for kind in ("chief", "worker"))
        index = int(task.get("index", 0)) + (chiefs if task.get("type") == "worker" else 0)
        if task.get("type") in ("chief", "worker") and 0 <= index < chiefs + workers:
            return Place(Reading(index, TF_CONFIG), Reading(chiefs + workers, TF_CONFIG))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        pass
    return Place(None, None)


def across_jobs(environ: Mapping[str, str]) -> Place:
    """Return the place of this pod among the pods of all Jobs of its JobSet, or of all slices.

    Empty outside an indexed Job.
    """
    pod = _first(environ, POD)
    if pod is None:
        return Place(None, None)
    pods, job, jobs = _first(environ, PODS) or _hosts(environ), _first(environ, JOB), _first(environ, JOBS)
    for index, of, advice in ((pod, pods, _COMPLETIONS), (job, jobs, "check where the manifest sets these variables")):
        if index is not None and of is not None and index.number >= of.number:
            return Place(pod, None, f"{index} and {of} contradict each other", advice)
    if job is None:
        if jobs is not None and jobs.number > 1:
            return Place(pod, None, f"{jobs}, but the index of this Job is not set", _INDEX)
        return Place(pod, pods)
    if pods is None:
        if job.number > 0 or (jobs is not None and jobs.number > 1):
            return Place(pod, None, f"{job}, but the number of pods per Job is not set", _COMPLETIONS)
        return Place(pod, None)
    rank = Reading(job.number * pods.number + pod.number, f"{job.by} × {pods.by} + {pod.by}")
    return Place(rank, None if jobs is None else Reading(jobs.number * pods.number, f"{jobs.by} × {pods.by}"))


def several_hosts(environ: Mapping[str, str]) -> bool:
    """Whether the platform's variables name more than one host or more than one Job."""
    return any("," in environ.get(name, "") for name in HOSTS) or any((number(environ, name) or 0) > 1 for name in JOBS)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> Reading | None:
    numbers = ((number(environ, name), name) for name in names)
    return next((Reading(value, name) for value, name in numbers if value is not None), None)


def _hosts(environ: Mapping[str, str]) -> Reading | None:
    counts = ((sum(bool(host.strip()) for host in environ.get(name, "").split(",")), name) for name in HOSTS)
    return next((Reading(count, name) for count, name in counts if count), None)


# --- initialized runtimes ---------------------------------------------------------------------------------------------


_Answer = tuple[int, int] | None  # rank and size


def _jax() -> _Answer:
    module: Any = sys.modules.get("jax")
    if module is None:
        return None
    # jax.process_index() would start the backend, if nothing has so far. The distributed state is known before that.
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is not None:
        return state.process_id, state.num_processes
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", bool)
    return (module.process_index(), module.process_count()) if started() else None


def _torch() -> _Answer:
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not (module.is_available() and module.is_initialized()):
        return None
    return module.get_rank(), module.get_world_size()


def _mpi4py() -> _Answer:
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    return module.COMM_WORLD.Get_rank(), module.COMM_WORLD.Get_size()


# Name of the rank and of the size in messages, and which runtime answers.
RUNTIMES: Final[tuple[tuple[str, str, Callable[[], _Answer]], ...]] = (
    ("jax.process_index()", "jax.process_count()", _jax),
    ("torch.distributed.get_rank()", "torch.distributed.get_world_size()", _torch),
    ("MPI.COMM_WORLD.Get_rank()", "MPI.COMM_WORLD.Get_size()", _mpi4py),
)


def initialized() -> list[Place]:
    """Return the place of this process according to each initialized runtime of several processes. Cheap."""
    places = []
    for rank_by, size_by, ask in RUNTIMES:
        try:
            rank, size = map(int, ask() or (0, 1))
            if 0 <= rank < size and size > 1:
                places.append(Place(Reading(rank, rank_by), Reading(size, size_by)))
        except Exception:  # a runtime that is just being initialized or shut down, or a stand-in for it
            continue
    return places


# --- all of them ------------------------------------------------------------------------------------------------------


def places(environ: Mapping[str, str]) -> list[Place]:
    """Return what each source says about this process, the most reliable first."""
    return [*initialized(), *of_environment(environ)]


def place(environ: Mapping[str, str]) -> Place:
    """Return the place to use: the first with a rank. If that has no size, the first size of any source is taken."""
    sources = places(environ)
    unknown = next((each for each in sources if each.doubt), Place(None, None))
    own = next((each for each in sources if each.rank is not None), unknown)
    return own if own.size else own._replace(size=next((each.size for each in sources if each.size), None))


def contradiction(sources: Sequence[Place]) -> str:
    """Return which sources contradict each other, as text; empty if none do.

    Sources of different sizes do not: a launcher of hosts and the launcher of several processes on each host are both
    right.
    """
    known = [(each.rank, each.size) for each in sources if each.rank is not None and each.size is not None]
    for at, (rank, size) in enumerate(known):
        for other, of in known[at + 1 :]:
            if size.number == of.number > 1 and rank.number != other.number:
                return f"{rank} and {other} contradict each other, both of {size.number} processes"
    return ""


class Launcher(NamedTuple):
    """The names of a launcher's variables, the first set one counts; those that begin with `prefix` tell of it."""

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
    """The identity of one launch of a job. It may return: a port is used again by the next launch."""

    text: str  # the variables, the same in all processes of the launch
    restarts: tuple[int, ...]  # how often each launcher had restarted the job, the outermost first
    label: str  # a short name
    addressed: bool  # it includes an address at which its processes meet, so there are probably several


def launch_key(environ: Mapping[str, str]) -> LaunchKey | None:
    """Return the identity of the launch that this process belongs to; None if no launcher gives one."""

    def value(name: str) -> str:
        return environ.get(name, "").strip()

    given = [names for names in KEYS if all(value(name) not in NOBODYS for name in names)]
    if not given:
        return None
    text = ";".join(sorted({f"{name}={value(name)}" for names in given for name in names}))
    label = value("SLURM_JOB_ID") or value("MASTER_PORT") or hashlib.sha256(text.encode()).hexdigest()[:8]
    counts = (_first(environ, launcher.restarts) for launcher in LAUNCHERS)
    restarts = tuple(count.number if count else 0 for count in counts)
    return LaunchKey(text, restarts, label, any("ADDR" in name for names in given for name in names))
