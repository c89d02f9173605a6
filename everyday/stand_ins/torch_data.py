"""``torch.utils.data``: a DataLoader without workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class _BaseDataLoaderIter:
    def __init__(self, loader: DataLoader) -> None:
        self._dataset, self._indices = loader.dataset, iter(loader.batch_sampler)

    def __iter__(self) -> _BaseDataLoaderIter:
        return self

    def __next__(self) -> list[Any]:
        return self._next_data()

    def _next_data(self) -> list[Any]:
        return [self._dataset[index] for index in next(self._indices)]


class BatchSampler:
    def __init__(self, sampler: Sequence[int], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size = sampler, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, len(self.sampler), self.batch_size):
            yield list(self.sampler[begin : begin + self.batch_size])

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)


class DataLoader:
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.batch_sampler = batch_sampler or BatchSampler(range(len(dataset)), batch_size or 1, False)
        self._iterator = None

    def __setattr__(self, attr: str, val: Any) -> None:
        if "_iterator" in vars(self) and attr in ("dataset", "batch_sampler"):
            raise ValueError(attr)
        super().__setattr__(attr, val)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return _BaseDataLoaderIter(self)

    def __iter__(self) -> _BaseDataLoaderIter:
        return self._get_iterator()

    def __len__(self) -> int:
        return len(self.batch_sampler)
