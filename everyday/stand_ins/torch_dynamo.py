"""``torch._dynamo.callback``: who is called when a compilation begins and ends."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class CallbackTrigger(enum.Enum):
    DYNAMO = 1
    LAZY_BACKWARD = 2


@dataclass
class CallbackArgs:
    callback_trigger: CallbackTrigger
    compile_id: str


@dataclass
class CompilationCallbackHandler:
    start_callbacks: list[Callable[[CallbackArgs], None]] = field(default_factory=list)
    end_callbacks: list[Callable[[CallbackArgs], None]] = field(default_factory=list)
    pending = 0

    def register_start_callback(self, callback: Callable[[CallbackArgs], None]) -> Any:
        self.start_callbacks.append(callback)

    def register_end_callback(self, callback: Callable[[CallbackArgs], None]) -> Any:
        self.end_callbacks.append(callback)

    def remove_start_callback(self, callback: Callable[[CallbackArgs], None]) -> None:
        self.start_callbacks.remove(callback)

    def remove_end_callback(self, callback: Callable[[CallbackArgs], None]) -> None:
        self.end_callbacks.remove(callback)

    @contextmanager
    def install_callbacks(self, trigger: CallbackTrigger, compile_id: str) -> Iterator[None]:
        self.pending += 1
        for callback in self.start_callbacks if self.pending == 1 else ():
            callback(CallbackArgs(trigger, compile_id))
        try:
            yield
        finally:
            for callback in self.end_callbacks if self.pending == 1 else ():
                callback(CallbackArgs(trigger, compile_id))
            self.pending -= 1

    def clear(self) -> None:
        self.start_callbacks.clear()
        self.end_callbacks.clear()
