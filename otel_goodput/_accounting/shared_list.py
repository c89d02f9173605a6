"""A list that is copied in constant time for what matters here: copies share all elements but the newest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, Generic, TypeVar

BLOCK: Final = 64

T = TypeVar("T")


class SharedList(Generic[T]):
    """A list that grows and shrinks at its end. Copies share its elements, which must be replaced, never changed."""

    __slots__ = ("_blocks", "_rest")

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._blocks: list[tuple[T, ...]] = []
        self._rest: list[T] = []  # fewer than two blocks, so that the newest elements are cheap to replace
        for element in elements:
            self.append(element)

    def copy(self) -> SharedList[T]:
        twin: SharedList[T] = SharedList.__new__(SharedList)
        twin._blocks, twin._rest = self._blocks.copy(), self._rest.copy()
        return twin

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK + len(self._rest)

    def _within(self, at: int) -> tuple[int, int]:
        """Block and place in it; the blocks' number stands for the rest."""
        blocks = len(self._blocks)
        at += len(self) if at < 0 else 0
        return (at // BLOCK, at % BLOCK) if at < blocks * BLOCK else (blocks, at - blocks * BLOCK)

    def __getitem__(self, at: int) -> T:
        block, place = self._within(at)
        return self._blocks[block][place] if block < len(self._blocks) else self._rest[place]

    def __setitem__(self, at: int, element: T) -> None:
        block, place = self._within(at)
        if block == len(self._blocks):
            self._rest[place] = element
        else:
            held = self._blocks[block]
            self._blocks[block] = (*held[:place], element, *held[place + 1 :])

    def __iter__(self) -> Iterator[T]:
        return chain(chain.from_iterable(self._blocks), self._rest)

    def __reversed__(self) -> Iterator[T]:
        return chain(reversed(self._rest), chain.from_iterable(map(reversed, reversed(self._blocks))))

    def append(self, element: T) -> None:
        self._rest.append(element)
        if len(self._rest) == 2 * BLOCK:
            self._blocks.append(tuple(self._rest[:BLOCK]))
            del self._rest[:BLOCK]

    def pop(self) -> T:
        """Remove the last element and return it. Raises IndexError if there is none."""
        if not self._rest and self._blocks:
            self._rest = list(self._blocks.pop())
        return self._rest.pop()

    def since(self, at: int) -> SharedList[T]:
        """Return a list of the elements from `at` on."""
        return SharedList(islice(self, at, None))
