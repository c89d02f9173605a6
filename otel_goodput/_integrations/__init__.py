"""Integrations record what libraries do, without the user's help, from the moment each library is imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain

Remove = Callable[[], None]


# By the names of integrations: the module to wait for, and the function that gets the tracer and returns what removes
# the integration, or None while the library is not ready.
LIBRARIES: Final = {
    "jax": ("jax", "otel_goodput._integrations.jax:install"),
    "torch": ("torch._dynamo", "otel_goodput._integrations.torch_compile:install"),
    "orbax": ("orbax.checkpoint", "otel_goodput._integrations.orbax:install"),
}
INSTALLING_S: Final = 1.0  # s that remove() waits for an installation under way


class Integrations:
    """The integrations of one recorder.

    Args:
        names: integrations to install; names that are not in ``LIBRARIES`` are ignored.
        tracer: what they record with.
    """

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
        if self._installing.acquire(blocking=False):
            try:
                self._poll()
            finally:
                self._installing.release()

    def _poll(self) -> None:
        for name in tuple(self._waiting):
            library, place = LIBRARIES[name]
            if library not in sys.modules:
                continue
            try:
                module, _, function = place.partition(":")
                remove = getattr(import_module(module), function)(self._tracer)
            except Exception as error:
                self._waiting.remove(name)
                contain(f"integration {name}", error)
                continue
            if remove is not None:
                self._removers.append(remove)
                self._waiting.remove(name)
        if not self._waiting:
            self._tracer.hooks.look_around(None)

    def remove(self) -> None:
        """Remove all integrations."""
        held = self._installing.acquire(timeout=INSTALLING_S)
        self._tracer.hooks.look_around(None)
        self._waiting.clear()
        if held:
            self._installing.release()
        while self._removers:
            try:
                self._removers.pop()()
            except Exception as error:
                contain("removing integrations", error)
