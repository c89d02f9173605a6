"""A key-value store of which the ranks are in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Shared:
    """A store in this process, which may fail."""

    name = "jax"

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.calls = 0
        self.error: Exception | None = None

    def _call(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def get(self, key: str) -> bytes:
        self._call()
        return self.contents.get(key, b"")

    def set(self, key: str, data: bytes) -> None:
        self._call()
        self.contents[key] = data

    def several(self, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        self._call()
        keys = {f"{folder}/{name}": name for name in names}
        yield from ((name, self.contents[key]) for key, name in keys.items() if key in self.contents)
