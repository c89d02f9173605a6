"""Record what ``torch.distributed.checkpoint`` saves and loads.

``save`` and ``load`` are a save and a restore. Of ``async_save``, the call is a save that holds up training, and the
rest a second one that does not: it ends, and the checkpoint is durable, when the future is done without an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from otel_goodput._integrations.commits import Commit, promise_of
from otel_goodput._integrations.plain_checkpoints import Checkpoints, Saving
from otel_goodput._integrations.wrapping import Done
from otel_goodput._journal.saved_files import Identity, identified, placed

PACKAGE: Final = "torch.distributed.checkpoint"
DEFINED: Final = {"save": "state_dict_saver", "async_save": "state_dict_saver", "load": "state_dict_loader"}
METADATA: Final = ".metadata"  # the file that is written last, in the folder of a checkpoint


def install(tracer: Any) -> Callable[[], None] | None:
    """Record distributed checkpoints from now on. Return what ends it, or None while they are being imported."""
    package = sys.modules.get(PACKAGE)
    if not all(hasattr(package, name) for name in ("save", "load")):
        return None
    checkpoints = Checkpoints(tracer, "torch checkpoint", "torch.")
    hook = Hook(checkpoints)
    for name, before in (("save", hook.save), ("async_save", hook.async_save), ("load", hook.load)):
        modules = [sys.modules.get(f"{PACKAGE}.{DEFINED[name]}"), package]
        if hasattr(package, name):
            checkpoints.wrap([each for each in modules if hasattr(each, name)], name, before)
    return checkpoints.remove


class Hook:
    """What is done before and after the functions."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        saving = Saving(self._checkpoints)
        saving.begin()
        return lambda _, error: saving.end(error, None if error is not None else _identity(kwargs))

    def load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        return self._checkpoints.restoring(_identity(kwargs))

    def async_save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        saving, tracer = Saving(self._checkpoints, durable=False), self._checkpoints.tracer
        saving.begin()

        def done(result: Any, error: BaseException | None) -> None:
            future = getattr(result, "upload_completion", result)
            span = saving.span or saving.outer
            if error is None and span is not None and hasattr(future, "add_done_callback"):
                promise = promise_of(tracer, span)
                promise.begin(span)
                commit = Commit(tracer, span, promise, saving.label)
                commit.ask()
                future.add_done_callback(lambda future: _decide(commit, future))
                if saving.label is not None:
                    label = saving.label
                    future.add_done_callback(lambda future: self._note(label, future, kwargs))
            saving.end(error, None)

        return done

    def _note(self, label: int, future: Any, kwargs: dict[str, Any]) -> None:
        identity = None if future.cancelled() or future.exception() is not None else _identity(kwargs)
        if identity is not None and not self._checkpoints.tracer.closed:
            self._checkpoints.tracer.hooks.files.add(label, identity)


def _decide(commit: Commit, future: Any) -> None:
    if future.cancelled():
        commit.abandon()
    else:
        commit.answer(future.exception(), over=True)


def _identity(kwargs: dict[str, Any]) -> Identity | None:
    """Return what identifies a checkpoint: its place and the time of its metadata, which are alike for all."""
    given = kwargs.get("checkpoint_id")
    for name in ("storage_writer", "storage_reader"):
        store = kwargs.get(name)
        given = given or getattr(store, "checkpoint_id", None) or getattr(store, "path", None)
    if not isinstance(given, (str, os.PathLike)):
        return None
    path = os.fsdecode(os.fspath(given))
    metadata = None if "://" in path else identified(str(Path(path) / METADATA))
    if metadata is None:
        return Identity(0, 0, 0, placed(path))
    return metadata._replace(content=0, place=placed(path))
