"""The programs, and how each is run."""

from __future__ import annotations

import signal

from everyday.trial import Program
from everyday.witness import EVALUATION, LOAD, PREPARE

# Compilations during the setup of a library cannot be separated from the rest of the setup.
SETTING_UP = ("program_startup", "other", "training_prep")

PROGRAMS: dict[str, Program] = {
    "plain": Program("programs/plain.py", unrecorded=(LOAD, PREPARE)),
    "epochs": Program("programs/epochs.py", unrecorded=(PREPARE, EVALUATION)),
    "counted": Program("programs/counted.py", unrecorded=(LOAD,)),
    "max steps": Program("programs/max_steps.py", unrecorded=(EVALUATION,)),
    "left at the head": Program("programs/left_at_the_head.py"),
    "evaluated": Program("programs/evaluated.py"),
    "killed and resumed": Program("programs/resumed.py", endings=((signal.SIGKILL, 50),)),
    "interrupted": Program("programs/interrupted.py", endings=((signal.SIGINT, 40),), left_is_done=False),
    "notebook": Program("programs/notebook.py", unrecorded=(PREPARE,), apart=True),
    "prefetched": Program("programs/prefetched.py"),
    "spawned workers": Program("programs/spawned.py"),
    "donated, loss never read": Program("programs/donated.py", ("0",)),
    "donated, loss read every 50": Program("programs/donated.py", ("50",)),
    "donated, loss read each step": Program("programs/donated.py", ("1",)),
    "one behind": Program("programs/one_behind.py", unrecorded=(LOAD,)),
    "dispatched evaluation": Program("programs/dispatched_evaluation.py"),
    "slow loader": Program("programs/slow_loader.py"),
    "changed in place": Program("programs/mutated.py", unrecorded=(LOAD,)),
    "flax NNX": Program("third_party/flax_nnx.py", ("200",), merged=SETTING_UP, needs=("flax",)),
    "Equinox": Program("third_party/equinox_cnn.py", ("150",), merged=SETTING_UP, needs=("equinox",)),
    "Keras on JAX, killed": Program(
        "third_party/keras_resumed.py",
        ("jax", "epoch"),
        endings=((signal.SIGKILL, 46),),
        merged=SETTING_UP,
        needs=("keras", "torch"),
    ),
    "Keras on PyTorch, killed": Program(
        "third_party/keras_resumed.py",
        ("torch", "7"),
        endings=((signal.SIGKILL, 46),),
        merged=SETTING_UP,
        compiles=False,
        needs=("keras", "torch"),
    ),
    "Lightning, killed": Program(
        "third_party/lightning_resumed.py",
        ("lightning.pytorch", "hand", "4"),
        endings=((signal.SIGKILL, 17),),
        merged=SETTING_UP,
        compiles=False,
        needs=("lightning",),
    ),
    "PyTorch Lightning by its door, killed": Program(
        "third_party/lightning_resumed.py",
        ("pytorch_lightning", "door", "1"),
        endings=((signal.SIGKILL, 43),),
        merged=SETTING_UP,
        compiles=False,
        needs=("pytorch_lightning",),
    ),
    "Orbax, asynchronous, killed": Program(
        "third_party/orbax_async.py", endings=((signal.SIGKILL, 90),), merged=SETTING_UP, needs=("orbax.checkpoint",)
    ),
    "PyTorch on the CPU": Program("third_party/torch_loop.py", compiles=False, needs=("torch",)),
    "torch.save, killed and resumed": Program(
        "third_party/torch_saved.py",
        endings=((signal.SIGKILL, 50), (signal.SIGKILL, 70)),
        compiles=False,
        merged=SETTING_UP,
        needs=("torch",),
    ),
    "PyTorch, without a line": Program(
        "third_party/torch_unaltered.py",
        endings=((signal.SIGKILL, 50),),
        compiles=False,
        merged=SETTING_UP,
        needs=("torch",),
    ),
    "PyTorch, FLOPs of a step": Program(
        "third_party/torch_flops.py", compiles=False, merged=SETTING_UP, needs=("torch",)
    ),
    "DDP, a rank killed": Program(
        "third_party/torch_ranks.py", ("ddp",), compiles=False, merged=SETTING_UP, needs=("torch",)
    ),
    "FSDP, a rank killed": Program(
        "third_party/torch_ranks.py", ("fsdp",), compiles=False, merged=SETTING_UP, needs=("torch",)
    ),
    "PyTorch, a DataLoader, without a line": Program(
        "third_party/torch_unchanged.py", compiles=False, needs=("torch", "wrapt"), whole=True
    ),
    "PyTorch, only an optimizer, without a line, killed": Program(
        "third_party/torch_optimizer_only.py",
        endings=((signal.SIGKILL, 47),),
        compiles=False,
        needs=("torch", "wrapt"),
        whole=True,
    ),
    "torchrun, launched twice": Program(
        "third_party/torchrun.py", apart=True, compiles=False, merged=SETTING_UP, needs=("torch",)
    ),
    "Accelerate, skipped batches": Program(
        "third_party/accelerate_resumed.py", compiles=False, merged=SETTING_UP, needs=("torch", "accelerate")
    ),
    "Hugging Face Trainer, killed": Program(
        "third_party/hf_trainer.py",
        ("callback",),
        endings=((signal.SIGKILL, 14),),
        compiles=False,
        merged=SETTING_UP,
        needs=("transformers", "accelerate"),
    ),
    "Hugging Face Trainer, no line, killed": Program(
        "third_party/hf_trainer.py",
        ("none",),
        endings=((signal.SIGKILL, 14),),
        compiles=False,
        merged=SETTING_UP,
        needs=("transformers", "accelerate"),
    ),
    "TRL, fine-tuning, killed": Program(
        "third_party/trl_trainers.py",
        ("sft",),
        endings=((signal.SIGKILL, 10),),
        compiles=False,
        merged=SETTING_UP,
        needs=("trl", "datasets"),
    ),
    "TRL, with rollouts": Program(
        "third_party/trl_trainers.py", ("grpo",), compiles=False, merged=SETTING_UP, needs=("trl", "datasets")
    ),
    "Accelerate, a loop by hand, killed": Program(
        "third_party/accelerate_loop.py",
        endings=((signal.SIGKILL, 10),),
        compiles=False,
        merged=SETTING_UP,
        needs=("torch", "accelerate"),
    ),
    "PyTorch, a device of another package": Program(
        "third_party/torch_registered.py", compiles=False, needs=("torch",), clock="unknown"
    ),
    "Ray": Program("third_party/with_ray.py", compiles=False, needs=("ray",)),
    "Ray Train, a worker killed": Program(
        "third_party/ray_train.py", compiles=False, merged=SETTING_UP, needs=("ray", "torch")
    ),
    "Logfire": Program("third_party/with_logfire.py", ("separate",), needs=("logfire",)),
    "Logfire, one provider": Program("third_party/with_logfire.py", ("shared",), needs=("logfire",)),
    "wandb": Program("third_party/with_tracker.py", ("wandb",), needs=("wandb",)),
    "MLflow": Program("third_party/with_tracker.py", ("mlflow",), needs=("mlflow",)),
    "trackio": Program("third_party/with_tracker.py", ("trackio",), needs=("trackio",)),
    "TensorBoard": Program("third_party/with_tracker.py", ("tensorboard",), needs=("tensorboard", "torch")),
    "ddtrace": Program("third_party/with_ddtrace.py", needs=("ddtrace",)),
    "torch.compile, a new shape": Program("third_party/torch_compiled.py", merged=SETTING_UP, needs=("torch",)),
}
