"""The FLOPs of one step of a PyTorch program. Against a stand-in for its dispatch modes and its formulas."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from waits import until

from otel_goodput import Recorder

PRODUCT = 2 * 4 * 4 * 4  # FLOPs of a product of two matrices of 4 by 4


class Tensor:
    pass


class Parameter(Tensor):
    pass


class Sharded(Tensor):
    """A tensor of another kind, whose operation is one on the tensor that it is made of."""


class Operation:
    def __init__(
        self, torch: Torch, name: str, namespace: str = "aten", work: Callable[[], None] | None = None
    ) -> None:
        self._torch, self._overloadpacket, self.namespace = torch, name, namespace
        self._work = work

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Runs below the modes, as in PyTorch while one handles it."""
        self._torch.ran.append(self._overloadpacket)
        return "result"

    def dispatch(self, *kinds: type) -> None:
        if not self._torch.modes:
            self(*kinds)
        elif self._torch.modes[-1].__torch_dispatch__(self, kinds, (1, 2)) is NotImplemented:
            self.dispatch()  # the tensor unwraps itself


class Torch:
    """What is known of PyTorch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.modes: list[Any] = []
        self.ran: list[str] = []
        self.recomputing = False
        torch = self

        class TorchDispatchMode:
            def __enter__(self) -> Any:
                torch.modes.append(self)
                return self

            def __exit__(self, *_: object) -> None:
                assert torch.modes.pop() is self

        class CUDAGraph:
            def replay(self) -> None:
                torch.ran.append("replay")

        self.graph = CUDAGraph
        module: Any = ModuleType("torch")
        module.Tensor, module.nn = Tensor, SimpleNamespace(Parameter=Parameter)
        module._C = SimpleNamespace(_current_graph_task_id=lambda: 0 if torch.recomputing else -1)
        module.is_grad_enabled = lambda: True
        module.cuda = SimpleNamespace(CUDAGraph=CUDAGraph)
        counter: Any = ModuleType("torch.utils.flop_counter")
        counter.flop_registry = {"mm": lambda left, right, out_val: PRODUCT}
        counter._FlopCounterMode = SimpleNamespace(supports_higher_order_operators=True)
        dispatch: Any = ModuleType("torch.utils._python_dispatch")
        dispatch.TorchDispatchMode = TorchDispatchMode
        self.dynamo: Any = ModuleType("torch._dynamo.utils")
        self.dynamo.counters = {}
        for each in (module, counter, dispatch, self.dynamo):
            monkeypatch.setitem(sys.modules, each.__name__, each)
        monkeypatch.delitem(sys.modules, "torch._ops", raising=False)
        monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
        self.product, self.sum = Operation(self, "mm"), Operation(self, "sum")
        self.kernel = Operation(self, "their_kernel", "theirs")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax"]:
        monkeypatch.delitem(sys.modules, name)
    return Torch(monkeypatch)


@pytest.fixture
def recorder(torch: Torch, tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder("flops", directory=tmp_path, exporters="none", integrations="torch_flops", peak_flops=1e12)
    yield made
    made.shutdown()


def train(recorder: Recorder, torch: Torch, work: Callable[[], object]) -> float | None:
    """Train until a step was counted, or will not be; return what is known of the FLOPs of one."""
    flops = recorder._observers._flops
    assert flops is not None

    def loop() -> Iterator[int]:
        end = time.monotonic() + 20
        number = 0
        while (number < 8 or not flops._over) and time.monotonic() < end:
            yield number
            number += 1

    with recorder.job():
        for _ in recorder.steps(loop()):
            work()
            time.sleep(0.005)
    until(lambda: flops._over)
    assert not torch.modes
    return recorder._productivity.inputs.flops_per_step


def test_one_step_is_counted(recorder: Recorder, torch: Torch) -> None:
    counted: list[bool] = []

    def work() -> None:
        counted.append(bool(torch.modes))
        for _ in range(3):
            torch.product.dispatch()
        torch.sum.dispatch(Parameter)

    assert train(recorder, torch, work) == 3 * PRODUCT
    assert counted.count(True) == 1 and not any(counted[:3])
    assert torch.ran == ["mm", "mm", "mm", "sum"] * len(counted)
    assert recorder._line.hooks.annotate is None


def test_what_is_computed_again_does_not_count(recorder: Recorder, torch: Torch) -> None:
    def work() -> None:
        torch.product.dispatch()
        torch.recomputing = True
        torch.product.dispatch()
        torch.recomputing = False

    assert train(recorder, torch, work) == PRODUCT


def test_a_sharded_tensor_counts_as_its_shard(recorder: Recorder, torch: Torch) -> None:
    assert train(recorder, torch, lambda: torch.product.dispatch(Sharded)) == PRODUCT


def test_other_kernels_are_a_remark(recorder: Recorder, torch: Torch, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        torch.product.dispatch()
        torch.kernel.dispatch()

    assert train(recorder, torch, work) == PRODUCT
    assert "their_kernel has operations that are not known" in caplog.text


def test_a_step_that_replays_a_graph_is_not_counted(recorder: Recorder, torch: Torch) -> None:
    replay = torch.graph.replay

    def work() -> None:
        torch.product.dispatch()
        torch.graph().replay()

    assert train(recorder, torch, work) is None
    assert torch.graph.replay is replay


def test_with_compiled_code_nothing_is_counted(
    recorder: Recorder, torch: Torch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.dynamo.counters["frames"] = {"total": 1}
    modes: list[int] = []
    assert train(recorder, torch, lambda: modes.append(len(torch.modes))) is None
    assert not any(modes) and "torch.compile is in use" in caplog.text


def test_an_error_in_the_counted_step_passes(recorder: Recorder, torch: Torch) -> None:
    def work() -> None:
        torch.product.dispatch()
        if torch.modes:
            raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        train(recorder, torch, work)
    assert not torch.modes


def test_a_formula_that_fails_disturbs_nothing(
    recorder: Recorder, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GOODPUT_STRICT", "0")
    sys.modules["torch.utils.flop_counter"].flop_registry = {"mm": lambda: 0}  # type: ignore[attr-defined]
    assert train(recorder, torch, torch.product.dispatch) is None
    assert set(torch.ran) == {"mm"}


@pytest.mark.parametrize("more", [{}, {"flops_per_step": 7.0, "peak_flops": 1e12}], ids=["no peak", "known"])
def test_it_is_counted_only_if_it_is_of_use(torch: Torch, tmp_path: Path, more: dict[str, float]) -> None:
    made: Any = Recorder("flops", directory=tmp_path, exporters="none", integrations="torch_flops", **more)
    modes: list[int] = []
    assert train(made, torch, lambda: modes.append(len(torch.modes))) == more.get("flops_per_step")
    assert not any(modes)
    made.shutdown()
