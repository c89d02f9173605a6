"""``torch.nn.modules.module``: models with a mode, in which their parts are, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Module:
    def __init__(self, *args: Any) -> None:
        self.training = True
        self._parts = args

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        for part in self._parts:
            yield from part.parameters() if isinstance(part, Module) else [part]

    def train(self, mode: bool = True) -> Module:
        self.training = mode
        for part in self._parts:
            if isinstance(part, Module):
                part.train(mode)
        return self

    def eval(self) -> Module:
        return self.train(False)
