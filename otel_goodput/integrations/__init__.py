"""Libraries whose doings are seen without the user's help, each from the moment on that it is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, NamedTuple

from otel_goodput.guard import contain
from otel_goodput.spans.tracer import PhaseTracer

Remove = Callable[[], None]


class Integration(NamedTuple):
    """`library` is the module to wait for, `install` is ``module:function``: given the tracer, it returns what takes it
    back, or None while the library is not ready."""

    library: str
    install: str


INTEGRATIONS: Final[dict[str, Integration]] = {
    "jax": Integration("jax", "otel_goodput.integrations.jax:install"),
    "orbax": Integration("orbax.checkpoint", "otel_goodput.integrations.orbax:install"),
}


class Integrations:
    """The integrations of one recorder.

    Args:
        names: those of ``INTEGRATIONS`` to install; others are not ours.
        tracer: what they record with.
    """

    def __init__(self, names: Sequence[str], tracer: PhaseTracer) -> None:
        self._waiting = [name for name in names if name in INTEGRATIONS]
        self._tracer = tracer
        self._removers: list[Remove] = []

    def poll(self) -> None:
        """Install those whose library has been imported meanwhile. Never imports a library."""
        for name in tuple(self._waiting):
            library, place = INTEGRATIONS[name]
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
                self._waiting.remove(name)
                self._removers.append(remove)

    def remove(self) -> None:
        """Take everything back."""
        self._waiting.clear()
        while self._removers:
            try:
                self._removers.pop()()
            except Exception as error:
                contain("removing integrations", error)
