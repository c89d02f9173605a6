"""``torch.utils.data.dataloader``: a DataLoader with worker processes, which are forked, or without."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from collections.abc import Iterator
from queue import Empty
from typing import Any

from everyday.stand_ins.torch_data import BatchSampler

_POLL_S = 0.2
_OWN = "torch.utils.data._utils.worker"


class _Fetcher:
    def __init__(self, dataset: Any, auto_collation: bool, collate_fn: Any) -> None:
        self.dataset, self.auto_collation, self.collate_fn = dataset, auto_collation, collate_fn

    def fetch(self, index: Any) -> Any:
        data = [self.dataset[at] for at in index] if self.auto_collation else self.dataset[index]
        return self.collate_fn(data)


create_fetcher = _Fetcher
create_fetcher.__module__ = _OWN  # PyTorch has it in another module


class _BaseDataLoaderIter:
    def __init__(self, loader: DataLoader) -> None:
        self._dataset, self._collate_fn, self._num_workers = loader.dataset, loader.collate_fn, loader.num_workers
        self._sampler_iter = iter(loader.batch_sampler)

    def __iter__(self) -> _BaseDataLoaderIter:
        return self

    def __next__(self) -> Any:
        return self._next_data()

    def _next_data(self) -> Any:
        raise NotImplementedError


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        self._dataset_fetcher: Any = _Fetcher(self._dataset, True, self._collate_fn)

    def _next_data(self) -> Any:
        return self._dataset_fetcher.fetch(next(self._sampler_iter))


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        self._prefetch_factor, self._in_order = loader.prefetch_factor, loader.in_order
        context = multiprocessing.get_context("fork")
        self._data_queue, self._workers_done_event = context.Queue(), context.Event()
        self._index_queues, self._workers = [], []
        for number in range(self._num_workers):
            index_queue = context.Queue()
            index_queue.cancel_join_thread()
            worker = context.Process(
                target=sys.modules[_OWN]._worker_loop,
                args=(
                    *(0, [self._dataset], index_queue, self._data_queue, self._workers_done_event, True),
                    *(self._collate_fn, False, 0, None, number, self._num_workers, False, None),
                ),
                daemon=True,
            )
            worker.start()
            self._index_queues.append(index_queue)
            self._workers.append(worker)
        self._send_idx = self._rcvd_idx = 0
        self._task_info: dict[int, Any] = {}
        self._cycle = itertools.cycle(range(self._num_workers))
        for _ in range(self._prefetch_factor * self._num_workers):
            self._try_put_index()

    def _try_put_index(self) -> None:
        try:
            index = next(self._sampler_iter)
        except StopIteration:
            return
        worker = next(self._cycle)
        self._index_queues[worker].put((self._send_idx, index))
        self._task_info[self._send_idx] = (worker,)
        self._send_idx += 1

    def _get_data(self) -> Any:
        while True:
            try:
                return self._data_queue.get(timeout=_POLL_S)
            except Empty:
                if dead := [worker.pid for worker in self._workers if not worker.is_alive()]:
                    raise RuntimeError(f"DataLoader worker (pid(s) {dead}) exited unexpectedly") from None

    def _next_data(self) -> Any:
        while True:
            if self._rcvd_idx >= self._send_idx:
                self._shutdown_workers()
                raise StopIteration
            if len(self._task_info.get(self._rcvd_idx, ())) == 2:
                _, data = self._task_info.pop(self._rcvd_idx)
                self._rcvd_idx += 1
                self._try_put_index()
                return data
            number, data = self._get_data()
            if number != self._rcvd_idx and self._in_order:
                self._task_info[number] += (data,)
                continue
            self._task_info.pop(number)
            self._rcvd_idx += 1
            self._try_put_index()
            return data

    def _shutdown_workers(self) -> None:
        self._workers_done_event.set()
        for queue in self._index_queues:
            queue.put(None)
        for worker in self._workers:
            worker.join(timeout=5.0)


class DataLoader:
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        self.dataset, self.num_workers, self.in_order = dataset, num_workers, in_order
        self.batch_sampler = batch_sampler or BatchSampler(range(len(dataset)), batch_size or 1, False)
        self.collate_fn = collate_fn or list
        self.prefetch_factor = prefetch_factor or 2

    def __iter__(self) -> Iterator[Any]:
        return _MultiProcessingDataLoaderIter(self) if self.num_workers else _SingleProcessDataLoaderIter(self)

    def __len__(self) -> int:
        return len(self.batch_sampler)
