"""Holds the signatures of stand-ins against those of the packages that they stand for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Each with what it stands for.
STAND_INS = {
    "everyday.stand_ins.torch_data": "torch.utils.data.dataloader",
    "everyday.stand_ins.torch_dynamo": "torch._dynamo.callback",
    "everyday.stand_ins.accelerate_data": "accelerate.data_loader",
    "everyday.stand_ins.logfire_tracer": "logfire._internal.tracer",
    "everyday.stand_ins.ddtrace_context": "ddtrace.internal.opentelemetry.context",
}
# Of ours alone.
OWN = frozenset({"prepare"})


def differences(stand_in: ModuleType, real: Any) -> Iterator[str]:
    """What the stand-in has that the real one has not, or takes otherwise."""
    for name, thing in vars(stand_in).items():
        if getattr(thing, "__module__", None) != stand_in.__name__ or name in OWN:
            continue
        if inspect.isclass(thing):
            for method, function in vars(thing).items():
                if inspect.isfunction(function):
                    yield from _differs(f"{name}.{method}", function, getattr(getattr(real, name, None), method, None))
        elif inspect.isfunction(thing):
            yield from _differs(name, thing, getattr(real, name, None))


def _differs(name: str, ours: Any, theirs: Any) -> Iterator[str]:
    if theirs is None:
        yield f"there is no {name}"
        return
    taken = list(inspect.signature(theirs).parameters)
    named = [each.name for each in inspect.signature(ours).parameters.values() if each.kind is not each.VAR_KEYWORD]
    if taken[: len(named)] != named:
        yield f"{name} takes {taken}, and not {named}"


def compare(name: str) -> str:
    """How a stand-in compares with what it stands for: "as the real one", or what differs."""
    try:
        real = importlib.import_module(STAND_INS[name])
    except ImportError as error:
        return f"not compared: {error.name} is not installed"
    return "; ".join(differences(importlib.import_module(name), real)) or "as the real one"
