"""``ray.train`` as a worker sees it: the context, and the report of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class LocalFileSystem:
    """As that of pyarrow, by name."""


class Storage:
    def __init__(self, folder: Path, filesystem: Any) -> None:
        self.experiment_fs_path, self.storage_filesystem = str(folder), filesystem


class TrainContext:
    def __init__(self, storage: Storage | None, rank: int = 1, size: int = 2) -> None:
        self._storage, self._rank, self._size = storage, rank, size

    def get_experiment_name(self) -> str:
        return "ray-run"

    def get_world_size(self) -> int:
        return self._size

    def get_world_rank(self) -> int:
        return self._rank

    def get_storage(self) -> Storage:
        if self._storage is None:
            raise NotImplementedError("Local storage context not yet implemented. ")
        return self._storage


context: TrainContext | None = None  # of this process; None: it is no worker
reported: list[tuple[Any, Any]] = []


def get_context() -> TrainContext:
    if context is None:
        raise RuntimeError("`get_context` cannot be used outside the Ray Train training function.")
    return context


def report(metrics: dict[str, Any], checkpoint: Any = None, **more: Any) -> None:
    reported.append((metrics, checkpoint))
