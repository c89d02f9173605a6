"""Record what ``torch.save`` and ``torch.load`` save and load, from 1 MB on, as saves and restores of checkpoints.

Whether a save is large enough is seen in the tensors that it is given, or else in the file when it is written. What is
saved in memory is not durable: it is not known what becomes of it.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from otel_goodput._integrations.plain_checkpoints import LEAST, Checkpoints, Saving
from otel_goodput._integrations.wrapping import Done
from otel_goodput._journal.saved_files import Identity, identified, of_bytes, of_file
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import report_once

MOST: Final = 10_000  # objects in what is saved that are looked at
_ARGUMENTS: Final = {"save": ("obj", "f"), "load": ("f",)}


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record what PyTorch saves and loads from now on. Return what ends it, or None while it is being imported."""
    torch, serialization = sys.modules.get("torch"), sys.modules.get("torch.serialization")
    if not (hasattr(torch, "save") and hasattr(torch, "load") and hasattr(serialization, "load")):
        return None
    checkpoints = Checkpoints(tracer, "torch", "torch.")
    for name, arguments in _ARGUMENTS.items():
        if tuple(inspect.signature(getattr(torch, name)).parameters)[: len(arguments)] != arguments:
            report_once(
                "torch.save", "this version of PyTorch has another torch.%s: its checkpoints are not recorded", name
            )
            return lambda: None
    hook = Hook(checkpoints)
    checkpoints.wrap([serialization, torch], "save", hook.save)
    checkpoints.wrap([serialization, torch], "load", hook.load)
    return checkpoints.remove


class Hook:
    """What is done before and after ``torch.save`` and ``torch.load``."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        given = dict(zip(_ARGUMENTS["save"], args, strict=False)) | kwargs
        file = given.get("f")
        saving = Saving(self._checkpoints, durable=not isinstance(file, BytesIO))
        if large(given.get("obj")):
            saving.begin()
        before = file.tell() if isinstance(file, BytesIO) else 0

        def done(_: Any, error: BaseException | None) -> None:
            saving.end(error, None if error is not None else identity_of(file, before))

        return done

    def load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        file = args[0] if args else kwargs.get("f")
        identity = identity_of(file)
        return None if identity is None else self._checkpoints.restoring(identity)


def identity_of(file: Any, begin: int = 0) -> Identity | None:
    """Return what identifies a file of at least ``LEAST`` bytes, by its path or open; None if that is not known.

    `begin`: what is meant begins at this position of a file in memory.
    """
    try:
        if isinstance(file, BytesIO):
            with file.getbuffer() as content:
                return of_bytes(content[begin:]) if len(content) - begin >= LEAST else None
        if isinstance(file, (str, os.PathLike)):
            path = os.fsdecode(os.fspath(file))
            return identified(path) if Path(path).stat().st_size >= LEAST else None
        if os.fstat(file.fileno()).st_size < LEAST:
            return None
        path = file.name if isinstance(getattr(file, "name", None), str) else ""
        return identified(path) if path else of_file(file)
    except (OSError, ValueError, TypeError, AttributeError):  # a file of another kind, or one that is not there
        return None


def large(thing: Any) -> bool:
    """Return whether there are tensors of at least ``LEAST`` bytes in what is to be saved. Waits for no device."""
    size = 0
    for count, one in enumerate(_leaves(thing)):
        size += _bytes(one)
        if size >= LEAST or count >= MOST:
            break
    return size >= LEAST


def _bytes(thing: Any) -> int:
    try:
        return int(getattr(thing, "nbytes", 0))
    except (TypeError, ValueError, RuntimeError, NotImplementedError):  # a sparse tensor, among others
        return 0


def _leaves(thing: Any) -> Iterator[Any]:
    waiting: list[Any] = [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif hasattr(one, "named_parameters") and callable(getattr(one, "parameters", None)):
            waiting.extend(one.parameters())
        else:
            yield one
