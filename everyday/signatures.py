"""Compares the signatures of stand-ins with those of the packages that they replace."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Each with the module that it replaces.
STAND_INS = {
    "everyday.stand_ins.torch_data": "torch.utils.data.dataloader",
    "everyday.stand_ins.torch_workers": "torch.utils.data.dataloader",
    "everyday.stand_ins.torch_worker": "torch.utils.data._utils.worker",
    "everyday.stand_ins.torch_dynamo": "torch._dynamo.callback",
    "everyday.stand_ins.torch_module": "torch.nn.modules.module",
    "everyday.stand_ins.torch_optimizer": "torch.optim.optimizer",
    "everyday.stand_ins.torch_serialization": "torch.serialization",
    "everyday.stand_ins.torch_checkpoint": "torch.distributed.checkpoint",
    "everyday.stand_ins.accelerate_data": "accelerate.data_loader",
    "everyday.stand_ins.accelerate_accelerator": "accelerate.accelerator",
    "everyday.stand_ins.transformers_trainer": "transformers.trainer",
    "everyday.stand_ins.ray_train": "ray.train",
    "everyday.stand_ins.torchtitan_trainer": "torchtitan.trainer",
    "everyday.stand_ins.keras_trainer": "keras.src.backend.jax.trainer",
    "everyday.stand_ins.lightning_trainer": "lightning.pytorch.trainer.trainer",
    "everyday.stand_ins.logfire_tracer": "logfire._internal.tracer",
    "everyday.stand_ins.ddtrace_context": "ddtrace.internal.opentelemetry.context",
}
# Only in stand-ins.
OWN = frozenset({"prepare", "Registered", "tell", "run_epoch", "Storage", "LocalFileSystem"})


def differences(stand_in: ModuleType, real: Any) -> Iterator[str]:
    """Yield what the real module does not have, or with other arguments."""
    for name, thing in vars(stand_in).items():
        if getattr(thing, "__module__", None) != stand_in.__name__ or name in OWN:
            continue
        if inspect.isclass(thing):
            for method, function in vars(thing).items():
                if inspect.isfunction(function):
                    yield from _differs(f"{name}.{method}", function, getattr(getattr(real, name, None), method, None))
        elif inspect.isfunction(thing):
            yield from _differs(name, thing, getattr(real, name, None))


def _differs(name: str, ours: Any, theirs: Any) -> Iterator[str]:
    if theirs is None:
        yield f"there is no {name}"
        return
    taken = list(inspect.signature(theirs).parameters)
    named = [each.name for each in inspect.signature(ours).parameters.values() if each.kind is not each.VAR_KEYWORD]
    if taken[: len(named)] != named:
        yield f"{name} takes {taken}, and not {named}"


def compare(name: str) -> str:
    """Compare a stand-in with the module that it replaces; returns "as the real one", or what differs."""
    os.environ.setdefault("KERAS_BACKEND", "jax")  # by default it is TensorFlow, which is not installed
    try:
        real = importlib.import_module(STAND_INS[name])
    except ImportError as error:
        return f"not compared: {error.name} is not installed"
    return "; ".join(differences(importlib.import_module(name), real)) or "as the real one"
