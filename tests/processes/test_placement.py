"""Each launcher's variables, as its source sets them: who knows the rank, and what makes a launch.

A row has the variables that all processes share, and those of rank 0, 1, …; where they were read is beside each.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from otel_goodput._settings import config


class Row(NamedTuple):
    """The variables of one launch. `same`: of all processes; `own`: of each, where {} is its rank."""

    same: dict[str, str]
    own: dict[str, str]
    size: int = 2
    identity: bool = True


PMIX = {"PMIX_NAMESPACE": "prterun-node1-4711@1", "PMIX_VERSION": "5.0.1", "PMIX_GDS_MODULE": "hash"}
LAUNCHERS = {
    # pytorch/pytorch: torch/distributed/elastic/agent/server/local_elastic_agent.py, _start_workers
    "torchrun": Row(
        {
            "GROUP_RANK": "0", "ROLE_NAME": "default", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "41203",
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
        },
        {"RANK": "{}", "LOCAL_RANK": "{}", "ROLE_RANK": "{}"},
    ),
    # deepspeedai/DeepSpeed: deepspeed/launcher/launch.py, main
    "deepspeed": Row(
        {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "CROSS_RANK": "0",
            "CROSS_SIZE": "1", "LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1",
        },
        {"RANK": "{}", "LOCAL_RANK": "{}"},
    ),
    # huggingface/accelerate: src/accelerate/launchers.py, notebook_launcher; utils/launch.py, PrepareForLaunch
    "accelerate's notebook_launcher": Row(
        {
            "NPROC": "2", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
            "ACCELERATE_MIXED_PRECISION": "no", "FORK_LAUNCHED": "1", "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        },
        {"RANK": "{}", "LOCAL_RANK": "{}"},
    ),
    # ray-project/ray: python/ray/train/torch/config.py, _set_torch_distributed_env_vars, and set_env_vars in on_start
    "Ray Train": Row(
        {
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "55345", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2",
            "ACCELERATE_TORCH_DEVICE": "cpu",
        },
        {"RANK": "{}", "LOCAL_RANK": "0", "NODE_RANK": "{}"},
    ),
    # Lightning-AI/pytorch-lightning: src/lightning/fabric/strategies/launchers/subprocess_script.py
    "Lightning": Row(
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "38121", "NODE_RANK": "0", "WORLD_SIZE": "2"},
        {"LOCAL_RANK": "{}"},
    ),
    # kubeflow/training-operator: pkg/controller.v1/pytorch/envvar.go, master.go
    "PyTorchJob": Row(
        {
            "PYTHONUNBUFFERED": "1", "MASTER_PORT": "23456", "MASTER_ADDR": "job-master-0", "WORLD_SIZE": "2",
            "PET_MASTER_PORT": "23456", "PET_MASTER_ADDR": "job-master-0", "PET_NPROC_PER_NODE": "auto",
            "PET_NNODES": "2",
        },
        {"RANK": "{}", "PET_NODE_RANK": "{}"},
    ),
    # kubeflow/training-operator: pkg/controller.v1/jax/envvar.go, setPodEnv
    "JAXJob": Row(
        {"COORDINATOR_PORT": "6666", "COORDINATOR_ADDRESS": "job-worker-0", "NUM_PROCESSES": "2"},
        {"PROCESS_ID": "{}"},
    ),
    # jax-ml/jax reads only the address (jax/_src/distributed.py); scripts pass the others to initialize()
    "JAX by hand": Row(
        {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "2"}, {"JAX_PROCESS_INDEX": "{}"}
    ),
    # horovod/horovod: horovod/runner/gloo_run.py, create_slot_env_vars, create_run_env_vars
    "horovodrun": Row(
        {
            "HOROVOD_HOSTNAME": "node1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "36001", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "eth0",
        },
        {"HOROVOD_RANK": "{}", "HOROVOD_LOCAL_RANK": "{}"},
    ),
    # openpmix/openpmix: src/mca/pmdl/ompi/pmdl_ompi.c, setup_fork; src/server/pmix_server.c, PMIx_server_setup_fork
    "Open MPI 5": Row(
        {
            **PMIX, "OMPI_UNIVERSE_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_WORLD_SIZE": "2",
            "OMPI_MCA_num_procs": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_WORLD_LOCAL_SIZE": "2",
        },
        {
            "PMIX_RANK": "{}", "OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_LOCAL_RANK": "{}",
            "OMPI_COMM_WORLD_NODE_RANK": "{}",
        },
    ),
    # open-mpi/ompi 4: orte/mca/odls/base/odls_base_default_fns.c, orte/mca/schizo/ompi/schizo_ompi.c
    "Open MPI 4": Row(
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_UNIVERSE_SIZE": "2", "OMPI_MCA_ess_base_jobid": "3221487617"},
        {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_LOCAL_RANK": "{}", "OMPI_MCA_ess_base_vpid": "{}"},
    ),
    # pmodels/mpich: src/pm/hydra/proxy/pmip_cb.c: of one launch nothing is the same but the size
    "MPICH": Row(
        {"PMI_SIZE": "2", "PMI_HOSTNAME": "node1", "MPI_LOCALNRANKS": "2"},
        {"PMI_RANK": "{}", "PMI_FD": "9", "MPI_LOCALRANKID": "{}"},
        identity=False,
    ),
    "MPICH with -pmi-port": Row({"PMI_PORT": "node1:40001", "PALS_SIZE": "2"}, {"PMI_ID": "{}"}),
    # flux-framework/flux-core: src/shell/task.c, shell.c, pmi/pmi.c
    "flux run": Row(
        {"FLUX_JOB_ID": "f2NKXqSDG", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "1", "PMI_SIZE": "2", "PMI_FD": "10"},
        {"FLUX_TASK_RANK": "{}", "FLUX_TASK_LOCAL_ID": "{}", "PMI_RANK": "{}"},
    ),
    # SchedMD/slurm: src/common/env.c, setup_env and env_array_for_step; slurmstepd sets those of the task
    "srun in a batch job": Row(
        {
            "SLURM_JOB_ID": "4711", "SLURM_JOBID": "4711", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0",
            "SLURM_STEPID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2",
            "SLURM_NPROCS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1",
            "SLURM_STEP_NODELIST": "node1", "SLURM_RESTART_COUNT": "0", "SLURM_SRUN_COMM_PORT": "38000",
        },
        {"SLURM_PROCID": "{}", "SLURM_LOCALID": "{}", "SLURM_GTIDS": "0,1", "SLURM_NODEID": "0"},
    ),
    "srun --mpi=pmix": Row(
        {
            "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8",
            "PMIX_NAMESPACE": "slurm.pmix.4711.1", "SLURM_PMIX_MAPPING_SERV": "(vector,(0,1,2))",
        },
        {"SLURM_PROCID": "{}", "PMIX_RANK": "{}"},
    ),
    # jsrun's source is not public; Lightning reads these: src/lightning/fabric/plugins/environments/lsf.py
    "jsrun": Row(
        {"LSB_JOBID": "998", "JSM_NAMESPACE_SIZE": "2"}, {"JSM_NAMESPACE_RANK": "{}", "JSM_NAMESPACE_LOCAL_RANK": "{}"}
    ),
    # kubernetes-sigs/lws: pkg/utils/pod/pod_utils.go, AddLWSVariables
    "LeaderWorkerSet": Row(
        {"LWS_LEADER_ADDRESS": "train-0.train.default", "LWS_GROUP_SIZE": "2"}, {"LWS_WORKER_INDEX": "{}"}
    ),
    # Kubernetes sets the index, and nothing else (batch.kubernetes.io/job-completion-index)
    "an indexed Job": Row({"JOB_COMPLETIONS": "2"}, {"JOB_COMPLETION_INDEX": "{}"}, identity=False),
    # kubernetes-sigs/jobset: api/jobset/v1alpha2/jobset_types.go: labels and annotations, which manifests pass on
    "two slices of one host": Row(
        {
            "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost", "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_COORDINATOR_ADDRESS": "train-slice-0-0.train", "JOB_COMPLETION_INDEX": "0",
        },
        {"MEGASCALE_SLICE_ID": "{}"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", LAUNCHERS.values(), ids=LAUNCHERS)
def test_each_process_knows_its_rank_and_all_know_their_launch(row: Row, caplog: pytest.LogCaptureFixture) -> None:
    launches = []
    for rank in range(row.size):
        own = {name: value.format(rank) for name, value in row.own.items()}
        settings = config.read("train", environ={**row.same, **own})
        assert (settings.process_index, settings.process_count) == (rank, row.size)
        launches.append(settings.launch)
    assert len(set(launches)) == 1
    assert (launches[0] is not None) == row.identity
    assert not caplog.records
