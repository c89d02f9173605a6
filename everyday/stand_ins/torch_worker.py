"""``torch.utils.data._utils.worker``: what a worker process of a DataLoader does."""

from __future__ import annotations

from queue import Empty
from typing import Any

from everyday.stand_ins.torch_workers import create_fetcher


def _worker_loop(
    dataset_kind: Any,
    dataset_holder: list[Any],
    index_queue: Any,
    data_queue: Any,
    done_event: Any,
    auto_collation: bool,
    collate_fn: Any,
    drop_last: bool,
    base_seed: int,
    init_fn: Any,
    worker_id: int,
    num_workers: int,
    persistent_workers: bool,
    shared_seed: int | None,
) -> None:
    fetcher = create_fetcher(dataset_holder.pop(), auto_collation, collate_fn)
    while True:
        try:
            task = index_queue.get(timeout=5.0)
        except Empty:
            return
        if task is None or done_event.is_set():
            break
        number, index = task
        data_queue.put((number, fetcher.fetch(index)))
        del task, index
    if done_event.is_set():
        data_queue.cancel_join_thread()
        data_queue.close()
