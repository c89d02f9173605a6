"""``torch.optim.optimizer``: optimizers that call the hooks of all optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_global_optimizer_pre_hooks: dict[int, Callable[..., None]] = {}
_global_optimizer_post_hooks: dict[int, Callable[..., None]] = {}


class Registered:
    def __init__(self, hooks: dict[int, Callable[..., None]], hook: Callable[..., None]) -> None:
        hooks[id(self)] = hook
        self.remove = lambda: hooks.pop(id(self), None)


def register_optimizer_step_pre_hook(hook: Callable[..., None]) -> Registered:
    return Registered(_global_optimizer_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> Registered:
    return Registered(_global_optimizer_post_hooks, hook)


class Optimizer:
    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.param_groups = [{**defaults, "params": list(params)}]

    def step(self, closure: Callable[[], float] | None = None) -> None:
        for hook in [*_global_optimizer_pre_hooks.values()]:
            hook(self, (), {})
        if closure is not None:
            closure()
        for hook in [*_global_optimizer_post_hooks.values()]:
            hook(self, (), {})
