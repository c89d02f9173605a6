"""Ray Train: each worker is a process of the job, and a run goes on over all restarts of ``FailureConfig``.

In the function that the workers run::

    from otel_goodput.integrations.ray import configure

    def train(config):
        configure()
        for step, batch in goodput.steps(shard.iter_torch_batches(batch_size=32)):
            ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_goodput import api
from otel_goodput._integrations.wrapping import Done, within, wrap_function
from otel_goodput._recording.phases import Phases
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing, report_once
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.options import DIRECTORY, Options, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["configure"]


def configure(job_name: str | None = None, **options: Unpack[Options]) -> Recorder | None:
    """Start recording in a worker of Ray Train, as ``goodput.configure()`` does.

    By default, the job has the name of Ray's run, the process its rank among the workers, and the run its folder in
    Ray's storage, if that is a local or a shared file system. (A worker's working directory is a temporary one.)

    Args:
        job_name: name of the job; by default, that of ``RunConfig``.
        options: as of ``goodput.configure()``.

    Raises:
        ConfigurationError: an argument is wrong.
        TypeError: an argument is unknown.
    """
    with containing("the context of Ray Train"):
        job_name, options = _of_worker(job_name, options)
    return api.configure(job_name, **options)


def _of_worker(job_name: str | None, options: Options) -> tuple[str | None, Options]:
    """Return the name and the options with what the context of this worker says."""
    train: Any = sys.modules.get("ray.train")
    try:
        context = None if train is None else train.get_context()
        size, rank = (1, 0) if context is None else (context.get_world_size(), context.get_world_rank())
    except Exception:  # which of them it is differs by version
        context = None
    if context is None:
        report_once("ray", "configure() of Ray Train was called outside of a worker: nothing is known of Ray's run")
        return job_name, options
    known: Options = {"process_index": rank, "process_count": size}
    if not os.environ.get(Settings.directory.variable) and (folder := _storage(context)) is not None:
        known["directory"] = os.path.join(folder, DIRECTORY)  # noqa: PTH118
    given: Any = {name: value for name, value in options.items() if value is not None}
    return job_name or os.environ.get("OTEL_SERVICE_NAME") or context.get_experiment_name(), {**known, **given}


def _storage(context: Any) -> str | None:
    """Return the folder of Ray's run; None if it is in no file system that this process can write to."""
    try:
        storage = context.get_storage()
        kind, folder = type(storage.storage_filesystem).__name__, str(storage.experiment_fs_path)
    except Exception:  # an interface that may change between versions, and that a local run lacks
        return None
    if kind == "LocalFileSystem" and os.path.isabs(folder):  # noqa: PTH117
        return folder
    variable = Settings.directory.variable
    report_once(
        "ray storage",
        f"Ray's storage is no folder ({kind}), so the run is recorded in the working directory of each worker, which "
        f"Ray may remove: set {variable} to a folder that all workers share",
    )
    return None


def install(tracer: PhaseTracer) -> Callable[[], None] | None:
    """Record ``ray.train.report(checkpoint=…)`` as saves. Return what ends that, or None while Ray is not imported."""
    train: Any = sys.modules.get("ray.train")
    if not hasattr(train, "report"):
        return None
    phases = Phases(lambda: None if tracer.closed else tracer)

    def before(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done | None:
        checkpoint = args[1] if len(args) > 1 else kwargs.get("checkpoint")
        if checkpoint is None:
            return None  # the barrier of the workers without a checkpoint belongs to no category of its own
        mode = getattr(kwargs.get("checkpoint_upload_mode"), "name", "SYNC")
        return within(phases.checkpoint_save(durable=mode == "SYNC"))

    return wrap_function([train], "report", before, "ray.train")
