"""The index of this process in its job, and the number of processes, from variables of launchers, Kubernetes, TPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

LARGEST: Final = 1 << 40  # largest number accepted in a variable


class Told(NamedTuple):
    """A number, and the name of the variable that it is from, or the formula."""

    number: int
    by: str

    def __str__(self) -> str:
        return f"{self.by}={self.number}"


class Place(NamedTuple):
    """What one source (a launcher or the platform) says about this process.

    Attributes:
        rank: index of this process, from 0; None if unknown.
        size: number of processes; None if unknown.
        doubt: why another process may have the same rank; empty if nothing is wrong.
        advice: how to correct that.
    """

    rank: Told | None
    size: Told | None
    doubt: str = ""
    advice: str = ""


class Launcher(NamedTuple):
    """The variables in which a launcher gives a process its rank and the number of processes."""

    rank: Sequence[str]
    size: Sequence[str]


# From the innermost to the outermost: a launcher of several processes on a host knows more than the one of the hosts.
LAUNCHERS: Final = (
    Launcher(("JAX_PROCESS_ID",), ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")),
    Launcher(("RANK",), ("WORLD_SIZE",)),
    Launcher(("SLURM_PROCID",), ("SLURM_NTASKS",)),
)

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
    *(name for launcher in LAUNCHERS for names in launcher for name in names),
    *(*POD, *PODS, *JOB, *JOBS),
)
"""Every variable that has to be a number."""


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return the number that a variable holds, from 0; None if it holds anything else."""
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        return None
    return int(text) if int(text) <= LARGEST else None


def places(environ: Mapping[str, str]) -> list[Place]:
    """Return what each source says about this process, the innermost first."""
    found = [Place(_first(environ, each.rank), _first(environ, each.size)) for each in LAUNCHERS]
    return [place for place in (*found, across_jobs(environ)) if place.rank or place.size]


def place(environ: Mapping[str, str]) -> Place:
    """Return the place to use: the first with a rank. If that has no size, the first size of any source is taken."""
    found = places(environ)
    own = next((each for each in found if each.rank is not None), Place(None, None))
    return own if own.size else own._replace(size=next((each.size for each in found if each.size), None))


def across_jobs(environ: Mapping[str, str]) -> Place:
    """Return the place of this pod among the pods of all Jobs of its JobSet, or of all slices.

    Empty outside an indexed Job.
    """
    pod = _first(environ, POD)
    if pod is None:
        return Place(None, None)
    pods, job, jobs = _first(environ, PODS) or _hosts(environ), _first(environ, JOB), _first(environ, JOBS)
    if pods is not None and pod.number >= pods.number:
        return Place(pod, None, f"{pod} and {pods} contradict each other", _COMPLETIONS)
    if job is not None and jobs is not None and job.number >= jobs.number:
        return Place(
            pod, None, f"{job} and {jobs} contradict each other", "check where the manifest sets these variables"
        )
    if job is None:
        if jobs is not None and jobs.number > 1:
            return Place(pod, None, f"{jobs}, but the index of this Job is not set", _INDEX)
        return Place(pod, pods)
    if pods is None:
        if job.number > 0 or (jobs is not None and jobs.number > 1):
            return Place(pod, None, f"{job}, but the number of pods per Job is not set", _COMPLETIONS)
        return Place(pod, None)
    rank = Told(job.number * pods.number + pod.number, f"{job.by} × {pods.by} + {pod.by}")
    return Place(rank, None if jobs is None else Told(jobs.number * pods.number, f"{jobs.by} × {pods.by}"))


def several_hosts(environ: Mapping[str, str]) -> bool:
    """Whether the platform's variables name more than one host or more than one Job."""
    return any("," in environ.get(name, "") for name in HOSTS) or any((number(environ, name) or 0) > 1 for name in JOBS)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> Told | None:
    found = ((number(environ, name), name) for name in names)
    return next((Told(value, name) for value, name in found if value is not None), None)


def _hosts(environ: Mapping[str, str]) -> Told | None:
    counts = ((sum(bool(host.strip()) for host in environ.get(name, "").split(",")), name) for name in HOSTS)
    return next((Told(count, name) for count, name in counts if count), None)
