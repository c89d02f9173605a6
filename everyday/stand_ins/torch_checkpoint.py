"""``torch.distributed.checkpoint``: a folder with a file of metadata, which is alike for all checkpoints of a model."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

METADATA = ".metadata"


def save(state_dict: dict[str, Any], *, checkpoint_id: Any = None, storage_writer: Any = None) -> str:
    folder = Path(checkpoint_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__0_0.distcp").write_bytes(pickle.dumps(state_dict))
    (folder / METADATA).write_bytes(pickle.dumps(sorted(state_dict)))
    return METADATA


def async_save(state_dict: dict[str, Any], *, checkpoint_id: Any = None, storage_writer: Any = None) -> Future[str]:
    executor = ThreadPoolExecutor(1)
    upload = executor.submit(save, dict(state_dict), checkpoint_id=checkpoint_id)
    upload.add_done_callback(lambda _: executor.shutdown(wait=False))
    return upload


def load(state_dict: dict[str, Any], *, checkpoint_id: Any = None, storage_reader: Any = None) -> None:
    state_dict.update(pickle.loads((Path(checkpoint_id) / "__0_0.distcp").read_bytes()))
