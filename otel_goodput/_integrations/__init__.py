"""Integrations record what libraries do, without the user's help, from the moment each library is imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from otel_goodput._journal.account import nothing
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing

Remove = Callable[[], None]
TRAINERS: Final = "otel_goodput.integrations"

# By the names of integrations: the module to wait for, and ours. Its `install` gets the tracer and returns what removes
# the integration, or None while the library is not ready.
LIBRARIES: Final = {
    "jax": ("jax", f"{__name__}.jax"),
    "torch": ("torch._dynamo", f"{__name__}.torch_compile"),
    "torch_save": ("torch.serialization", f"{__name__}.torch_save"),
    "torch_checkpoint": ("torch.distributed.checkpoint", f"{__name__}.torch_checkpoint"),
    "safetensors": ("safetensors.torch", f"{__name__}.safetensors"),
    "grain_loader": ("grain._src.python.dataset.transformations.process_prefetch", f"{__name__}.grain_loader"),
    "torch_loader": ("torch.utils.data.dataloader", f"{__name__}.torch_loader"),
    "torch_data": ("torch", f"{__name__}.torch_data"),
    "orbax": ("orbax.checkpoint", f"{__name__}.orbax"),
    "torchtitan": ("torchtitan.trainer", f"{TRAINERS}.torchtitan"),
    "transformers": ("transformers.trainer", f"{TRAINERS}.transformers"),
    "accelerate": ("accelerate.accelerator", f"{TRAINERS}.accelerate"),
    "ray": ("ray.train", f"{TRAINERS}.ray"),
    "keras": ("keras", f"{TRAINERS}.keras"),
    "lightning": ("lightning.pytorch", f"{TRAINERS}.lightning"),
    "pytorch_lightning": ("pytorch_lightning", f"{TRAINERS}.lightning"),
}
INSTALLING_S: Final = 1.0  # s that remove() waits for an installation under way


class Integrations:
    """The integrations of one recorder; `names` that are not in ``LIBRARIES`` are ignored."""

    def __init__(self, names: Sequence[str], tracer: PhaseTracer) -> None:
        self._waiting = [name for name in names if name in LIBRARIES]
        self._tracer = tracer
        self._removers: list[Remove] = []
        self._installing = threading.Lock()
        tracer.hooks.look_around(self.poll)

    def poll(self) -> None:
        """Install the integrations whose library has been imported since. Never imports a library.

        Called at every tick of the keeper and at the start of phases, because a first save may come before a tick.
        """
        if not self._installing.acquire(blocking=False):
            return
        try:
            for name, (library, module) in LIBRARIES.items():
                if name not in self._waiting or library not in sys.modules:
                    continue
                remove: Remove | None = nothing  # an installation that fails is not tried again
                with containing(f"integration {name}"):
                    remove = import_module(module).install(self._tracer)
                if remove is not None:
                    self._removers.append(remove)
                    self._waiting = [one for one in self._waiting if one != name]
            if not self._waiting:
                self._tracer.hooks.look_around(nothing)
        finally:
            self._installing.release()

    def remove(self) -> None:
        """Remove all integrations."""
        held = self._installing.acquire(timeout=INSTALLING_S)
        self._tracer.hooks.look_around(nothing)
        self._waiting.clear()
        if held:
            self._installing.release()
        while self._removers:
            with containing("removing integrations"):
                self._removers.pop()()
