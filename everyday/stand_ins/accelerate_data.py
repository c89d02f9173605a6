"""``accelerate.data_loader``: what it makes of a loader for one of several processes, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from everyday.stand_ins.torch_data import DataLoader


class BatchSamplerShard:
    def __init__(self, batch_sampler: Any, num_processes: int = 1, process_index: int = 0) -> None:
        self.batch_sampler, self.num_processes, self.process_index = batch_sampler, num_processes, process_index

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.batch_sampler, self.process_index, None, self.num_processes)

    def __len__(self) -> int:
        return len(self.batch_sampler) // self.num_processes


class SkipBatchSampler:
    def __init__(self, batch_sampler: Any, skip_batches: int = 0) -> None:
        self.batch_sampler, self.skip_batches = batch_sampler, skip_batches

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.batch_sampler, self.skip_batches, None)

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.skip_batches


class GradientState:
    sync_gradients = True
    end_of_dataloader = False  # the batch that was given last is the last one


class DataLoaderShard:
    gradient_state = GradientState()

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        self.base_dataloader = DataLoader(dataset, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":
            raise AttributeError
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self) -> type:
        return self.base_dataloader.__class__

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError

    def __iter__(self) -> Iterator[Any]:
        batches = self.base_dataloader.__iter__()
        self.gradient_state.end_of_dataloader = False
        current = next(batches)  # one ahead, to know the last
        for following in batches:
            yield current
            current = following
        self.gradient_state.end_of_dataloader = True
        yield current

    def __len__(self) -> int:
        return len(self.base_dataloader)


def prepare_data_loader(
    dataloader: Any, device: Any = None, num_processes: int | None = None, process_index: int | None = None
) -> Any:
    sampler = BatchSamplerShard(dataloader.batch_sampler, num_processes or 1, process_index or 0)
    return DataLoaderShard(dataloader.dataset, batch_sampler=sampler)


def prepare(loader: Any, processes: int, index: int) -> Any:
    """As ``Accelerator.prepare()``: what is no DataLoader is left as it is."""
    return prepare_data_loader(loader, None, processes, index) if isinstance(loader, DataLoader) else loader


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    kind = DataLoaderShard if type(dataloader) is DataLoaderShard else DataLoader
    return kind(dataloader.dataset, batch_sampler=SkipBatchSampler(dataloader.batch_sampler, num_batches))
