"""Record what ``safetensors.torch`` saves and loads, from 1 MB on, as saves and restores of checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from otel_goodput._integrations.plain_checkpoints import LEAST, Checkpoints, Saving
from otel_goodput._integrations.torch_save import large
from otel_goodput._integrations.wrapping import Done
from otel_goodput._journal.saved_files import Identity, identified
from otel_goodput._recording.tracer import PhaseTracer

PARTS: Final = 4  # of a file that are looked at: it has no checksums


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record what safetensors saves and loads from now on. Return what ends it, or None while it is being imported."""
    module = sys.modules.get("safetensors.torch")
    if not (hasattr(module, "save_file") and hasattr(module, "load_file")):
        return None
    checkpoints = Checkpoints(tracer, "safetensors", "safetensors.")

    def save(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        given = dict(zip(("tensors", "filename"), args, strict=False)) | kwargs
        saving = Saving(checkpoints)
        if large(given.get("tensors")):
            saving.begin()
        return lambda _, error: saving.end(error, None if error is not None else _identity(given.get("filename")))

    def load(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        identity = _identity(args[0] if args else kwargs.get("filename"))
        return None if identity is None else checkpoints.restoring(identity)

    checkpoints.wrap([module], "save_file", save)
    checkpoints.wrap([module], "load_file", load)
    return checkpoints.remove


def _identity(name: Any) -> Identity | None:
    """Return what identifies a file of at least ``LEAST`` bytes."""
    try:
        path = os.fsdecode(os.fspath(name))
        return identified(path, parts=PARTS) if Path(path).stat().st_size >= LEAST else None
    except (OSError, ValueError, TypeError):
        return None
