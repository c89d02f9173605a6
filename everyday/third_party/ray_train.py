"""Ray Train: two workers, of which one is killed; Ray starts both again, from the checkpoint that was reported last."""

import os
import signal
import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train():
    rank = ray.train.get_context().get_world_rank()
    if rank:
        os.environ["EVERYDAY_READINGS"] = os.devnull  # the account is that of process 0

    import otel_goodput as goodput
    from everyday.chores import Batches, prepare
    from everyday.chores import train as train_one
    from everyday.witness import SAVE, witness
    from otel_goodput.integrations.ray import configure

    configure()
    with witness.life(), goodput.job():
        with goodput.training_prep():
            prepare()
        start, held = 0, ray.train.get_checkpoint()
        if held:
            with held.as_directory() as folder:
                start = int(Path(folder, "steps").read_text())
        for step, batch in goodput.steps(Batches(120 - start, first=start), start=start):
            train_one(batch)
            if step % 30 == 29:
                with tempfile.TemporaryDirectory() as folder:
                    Path(folder, "steps").write_text(str(step + 1))
                    checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
                    with witness.of(SAVE):
                        ray.train.report({"step": step}, checkpoint)
            if step == 70 and rank == 1 and not start:
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        print(goodput.report())


ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": dict(os.environ)})
storage = RunConfig(
    name="ray-train", storage_path=str(Path("storage").resolve()), failure_config=FailureConfig(max_failures=1)
)
print(TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=storage).fit())
ray.shutdown()
