"""Count the FLOPs of one step of a PyTorch program, once, while it runs; the peak FLOP/s of its GPUs.

A step is counted by a dispatch mode that sees each operation below autograd, with the formulas of PyTorch's
``torch.utils.flop_counter``: it calls the operation as it is, changes no tensor and keeps none. That makes one step a
little slower (Python is called for each operation), so it is one step, not before the fourth.

PyTorch compiles nothing inside of such a mode. So no step is counted once ``torch.compile`` has compiled anything, and
what a CUDA graph replays is not seen: a step with a replay is not counted either. Then ``flops_per_step=`` is needed.

What a checkpointed function computes again in the backward pass does not count, as for jax. Operations of others (their
own kernels) have no formula: they count nothing, with a remark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import get_ident
from typing import Any, Final

from otel_goodput._integrations.flops import find_chip, hint
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import containing, report_once

FIRST: Final = 3  # the first number of a step that may be counted: by then, what is compiled has been
_COUNTER: Final = "torch.utils.flop_counter"
_KNOWN: Final = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler"})  # PyTorch's own


class StepFlops:
    """Counts one step.

    Args:
        tracer: of the steps.
        processes: in the job; all do as much as this one.
        wanted: returns whether the FLOPs of a step are of use, and not known.
        learn: is told the FLOPs of a step of all processes.
    """

    def __init__(
        self, tracer: PhaseTracer, processes: int, wanted: Callable[[], bool], learn: Callable[[float], None]
    ) -> None:
        self._tracer = tracer
        self._processes = processes
        self._wanted = wanted
        self._learn = learn
        self._mode: Any = None
        self._armed = False
        self._over = False
        self._counted: tuple[int, tuple[str, ...]] | None = None

    def tick(self) -> None:
        """Prepare to count the next step if it is time to, and hand over what was counted. Not on a training thread."""
        if self._over or (torch := sys.modules.get("torch")) is None:
            return
        if self._counted is not None:
            self._finish(*self._counted)
        elif not self._armed and self._tracer.begun >= FIRST - 1:
            why = self._hindrance(torch) if self._wanted() else None
            if why:
                report_once("torch flops", "the FLOPs of a step are not counted: %s; set flops_per_step=", why)
            if why != "":
                self._over = True
                return
            self._mode = _mode(torch, import_module(_COUNTER).flop_registry)
            self._armed = True
            self._tracer.hooks.profile(self._count)

    def close(self) -> None:
        """Count nothing more."""
        self._over = True
        if self._armed:
            self._armed = False
            if self._tracer.hooks.annotate == self._count:
                self._tracer.hooks.profile(None)

    def _hindrance(self, torch: Any) -> str:
        if self._tracer.hooks.annotate is not None:
            return "jax is in use, too"
        dynamo = sys.modules.get("torch._dynamo.utils")
        if getattr(dynamo, "counters", {}).get("frames"):
            return "torch.compile is in use, which compiles nothing while they are counted"
        dispatch = sys.modules.get("torch.utils._python_dispatch")
        if not hasattr(dispatch, "TorchDispatchMode") or not hasattr(torch._C, "_current_graph_task_id"):
            return "this version of PyTorch has no dispatch mode that is known"
        counter = import_module(_COUNTER)
        if not hasattr(counter, "flop_registry") or not hasattr(
            getattr(counter, "_FlopCounterMode", None), "supports_higher_order_operators"
        ):
            return "this version of PyTorch counts no operations that contain others"
        return ""

    @contextmanager
    def _count(self, name: str, step_num: int) -> Iterator[None]:
        """Count the step that is entered and left with this, if it is left on the same thread."""
        mode, thread = self._mode, get_ident()
        if not self._armed or mode.entered:
            yield
            return
        replays = _Replays(sys.modules["torch"])
        mode.entered = True
        mode.__enter__()
        try:
            yield
        finally:
            mode.active = False
            if get_ident() == thread:
                mode.__exit__(None, None, None)
            replays.close()
            graphs = ("CUDA graphs replay operations",) if replays.count else ()
            self._counted = (0 if graphs else mode.flops), (*graphs, *mode.remarks)

    def _finish(self, flops: int, remarks: tuple[str, ...]) -> None:
        self.close()
        for remark in remarks:
            report_once(f"torch flops {remark}", "the FLOPs of a step: %s, which are not counted", remark)
        if flops:
            self._learn(float(flops * self._processes))


class _Replays:
    """Counts replays of CUDA graphs."""

    def __init__(self, torch: Any) -> None:
        self.count = 0
        self._graph = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
        self._own = vars(self._graph).get("replay") if self._graph is not None else None
        original = getattr(self._graph, "replay", None)
        if original is None:
            return

        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(graph, *args, **kwargs)

        setattr(self._graph, "replay", replay)  # noqa: B010

    def close(self) -> None:
        if self._own is not None:
            setattr(self._graph, "replay", self._own)  # noqa: B010
        elif self._graph is not None and "replay" in vars(self._graph):
            delattr(self._graph, "replay")


def _mode(torch: Any, registry: Any) -> Any:
    """Return a dispatch mode that counts what it sees; `torch` is PyTorch."""
    plain = {torch.Tensor, torch.nn.Parameter}
    kind = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode
    higher = getattr(sys.modules.get("torch._ops"), "HigherOrderOperator", ())

    class Counting(kind):  # type: ignore[misc, valid-type]
        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()
            self.flops = 0
            self.remarks: dict[str, None] = {}
            self.entered = False
            self.active = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not self.active:
                return func(*args, **kwargs)
            operator = isinstance(func, higher)
            if not operator and any(each not in plain for each in types):
                return NotImplemented  # a tensor of another kind: what it is made of comes here next
            result = func(*args, **kwargs)
            with containing("torch flops"):
                self._add(func if operator else func._overloadpacket, func, result, args, kwargs)
            return result

        def _add(self, key: Any, func: Any, result: Any, args: Any, kwargs: Any) -> None:
            if key in registry:
                again = torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()
                if not again:
                    self.flops += int(registry[key](*args, **kwargs, out_val=result))
            elif getattr(func, "namespace", "aten") not in _KNOWN:
                self.remarks[f"{key} has operations that are not known"] = None

    return Counting()


def peak(processes: int) -> float | None:
    """Return the peak FLOP/s of the GPUs of all processes, of which each has one; None if it is not known (yet)."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    name = str(cuda.get_device_name())
    chip = find_chip(name)
    if chip is None:
        report_once("peak flops", "%s", hint(name))
        return None
    return chip.flops * processes
