"""Who asks for a span's identity: a tracer that opens a child, a propagator, or a log record.

OpenTelemetry's API does not say what an identity is wanted for, so the frames of the callers are looked at.
"""

from __future__ import annotations

import sys
from enum import Enum
from functools import lru_cache
from typing import Final

from opentelemetry.sdk.resources import Resource


class Requester(Enum):
    """Who asks."""

    NOTE = "a log record or a measurement, which only notes the identity"
    OURS = "a tracer or a processor of the recorder's provider"
    THEIRS = "a tracer of another provider"
    OTHER = "a propagator, or code of the user's"


_DEPTH: Final = 24  # frames looked at
# By the module of a frame, and modules inside it. The first frame that is found decides.
_MODULES: Final = {
    "logging": Requester.NOTE,
    "structlog": Requester.NOTE,
    "loguru": Requester.NOTE,
    "opentelemetry._logs": Requester.NOTE,
    "opentelemetry.sdk._logs": Requester.NOTE,
    "opentelemetry.sdk.metrics": Requester.NOTE,  # whether an exemplar is kept
    "opentelemetry.instrumentation.logging": Requester.NOTE,
    "opentelemetry.propagate": Requester.OTHER,
    "opentelemetry.propagators": Requester.OTHER,
    "opentelemetry.trace.propagation": Requester.OTHER,
    "otel_goodput._recording.emitter": Requester.OURS,
}
_SDK: Final = "opentelemetry.sdk.trace"


@lru_cache(maxsize=4096)
def _by_module(name: str) -> Requester | None:
    while name:
        if name in _MODULES:
            return _MODULES[name]
        name = name.rpartition(".")[0]
    return None


def requester(resource: Resource) -> Requester:
    """Return who asks the caller's caller; `resource` is that of the recorder's provider, and of its tracers."""
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        name = frame.f_globals.get("__name__")
        if name == _SDK and frame.f_code.co_name == "start_span":
            tracer = frame.f_locals.get("self")
            return Requester.OURS if getattr(tracer, "resource", None) is resource else Requester.THEIRS
        found = _by_module(name) if type(name) is str else None
        if found is not None:
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return Requester.OTHER
