"""``torch.compile``: its compilations are phases, as jax's are. Against a stand-in for the callbacks of TorchDynamo."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, CodeType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from exported import Spans

from everyday.stand_ins.torch_dynamo import CallbackTrigger, CompilationCallbackHandler
from otel_goodput import Recorder

COMPILING_S = 0.05
# What TorchDynamo calls them from.
FRAMES = """
def _compile(code, frame, handler, trigger, work):
    def compile_inner(code):
        with handler.install_callbacks(trigger, "0/0"):
            work()

    compile_inner(code)
"""


class Dynamo:
    """TorchDynamo, and the time that it took, as its own clock says."""

    def __init__(self) -> None:
        self.handler = CompilationCallbackHandler()
        self.took = 0.0
        frames: dict[str, Any] = {}
        exec(compile(FRAMES, "torch/_dynamo/convert_frame.py", "exec"), frames)
        self._compile = frames["_compile"]

    def compile(
        self,
        code: CodeType,
        trigger: CallbackTrigger = CallbackTrigger.DYNAMO,
        within: Callable[[], None] = lambda: None,
        closure: Any = (),
    ) -> None:
        def work() -> None:
            time.sleep(COMPILING_S)
            within()

        began = time.perf_counter()
        self._compile(code, SimpleNamespace(f_locals={}, closure=closure), self.handler, trigger, work)
        self.took += time.perf_counter() - began


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Dynamo:
    made = Dynamo()
    module: Any = ModuleType("torch._dynamo.callback")
    module.callback_handler = made.handler
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", module)
    return made


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def recorder(dynamo: Dynamo, spans: Spans, tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder("compiled", directory=tmp_path, exporters="none", span_processors=[spans.processor])
    yield made
    made.shutdown()


def train() -> None: ...
def evaluate() -> None: ...


def spent(recorder: Recorder) -> dict[str, Any]:
    return recorder.report().to_json()["seconds"]  # type: ignore[no-any-return]


def near(recorded: float, took: float) -> bool:
    """Whether the account has what the witness read, which is a little longer."""
    return 0.8 * took <= recorded <= took + 0.005


def test_a_compilation_is_startup_wherever_it_happens(recorder: Recorder, dynamo: Dynamo) -> None:
    with recorder.job():
        for number in range(12):
            with recorder.step(number):
                if number in (0, 10):
                    dynamo.compile(train.__code__)
                time.sleep(0.002)
        with recorder.custom("evaluation"):
            dynamo.compile(evaluate.__code__)
    assert near(spent(recorder)["program_startup"], dynamo.took)
    totals = recorder.totals()
    assert totals.recompilations == 1 and totals.recompiled == {"train": 1}


def test_one_is_a_span_under_its_step(recorder: Recorder, dynamo: Dynamo, spans: Spans) -> None:
    with recorder.job(), recorder.step(0):
        for _ in range(2):
            dynamo.compile(train.__code__)
    recorder.shutdown()
    compiles = [span for span in spans.all() if span.name == "compile"]
    listed = [(span.attributes or {}) for span in compiles]
    assert sorted(each.get("goodput.compile.recompilation", False) for each in listed) == [False, True]
    assert {(each["goodput.compile.function"], each["goodput.step"]) for each in listed} == {("train", 0)}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What TorchDynamo counts, and why guards failed."""
    module: Any = ModuleType("torch._dynamo.utils")
    module.guard_failures, module.counters = defaultdict(list), defaultdict(Counter)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", module)
    return module


def test_why_it_is_compiled_again(recorder: Recorder, dynamo: Dynamo, spans: Spans, known: Any) -> None:
    size = "tensor 'x' size mismatch at index 0. expected 256, actual 192"
    with recorder.job(), recorder.step(0):
        dynamo.compile(train.__code__)
        for reasons in ([f"0/0: {size}  # y = f(x)\nUser stack trace:\n  …"], ["0/1: scale == 2", f"0/0: {size}"]):
            known.guard_failures[train.__code__] += reasons
            dynamo.compile(train.__code__)
        known.guard_failures.clear()  # by torch._dynamo.reset()
        dynamo.compile(train.__code__)
    assert recorder._line.hooks.recompiled == {"train": "scale == 2"}
    assert "train was compiled again: scale == 2" in str(recorder.report())
    recorder.shutdown()
    listed = [(span.attributes or {}) for span in spans.named("compile")]
    reasons = Counter(each.get("goodput.compile.recompilation_reason") for each in listed)
    assert reasons == {None: 2, size: 1, "scale == 2": 1}


def test_what_caches_had(recorder: Recorder, dynamo: Dynamo, spans: Spans, known: Any) -> None:
    def count(cache: str, what: str) -> Callable[[], None]:
        return lambda: known.counters[cache].update([what])

    with recorder.job(), recorder.step(0):
        dynamo.compile(train.__code__)  # no cache
        dynamo.compile(train.__code__, within=count("aot_autograd", "autograd_cache_miss"))
        dynamo.compile(train.__code__, within=count("aot_autograd", "autograd_cache_hit"))
        dynamo.compile(train.__code__, within=count("inductor", "fxgraph_cache_hit"))
        dynamo.compile(train.__code__, within=known.counters.clear)
    assert recorder._line.hooks.compile_cache.to_json() == {"hits": 2, "misses": 1, "saved_s": 0}
    recorder.shutdown()
    hits = [(span.attributes or {}).get("goodput.compile.cache_hit") for span in spans.named("compile")]
    assert Counter(hits) == {None: 2, False: 1, True: 2}


def test_two_functions_of_one_name_are_two(recorder: Recorder, dynamo: Dynamo) -> None:
    others: dict[str, Any] = {}
    exec("def train(): return 1", others)
    with recorder.job():
        for code in (train.__code__, others["train"].__code__, train.__code__):
            dynamo.compile(code)
    assert recorder.totals().recompiled == {"train": 1}


def test_modules_are_told_apart_by_what_calls_them(recorder: Recorder, dynamo: Dynamo) -> None:
    """TorchDynamo compiles one function of its own for all of them, bound to each or to its ``forward``."""

    class Encoder:
        def forward(self) -> None: ...
        def __call__(self) -> None: ...

    class Decoder(Encoder): ...

    wrapper = compile("def inner(): ...", "torch/_dynamo/external_utils.py", "exec").co_consts[0]
    modules = [Encoder(), Decoder(), Encoder()]
    with recorder.job():
        for module in (*modules, modules[1]):
            dynamo.compile(wrapper, closure=(CellType(module),))
        for module in modules:
            dynamo.compile(wrapper, closure=(CellType(module.forward),))
    assert recorder.totals().recompiled == {"Decoder": 1}


def test_a_backward_pass_is_compiled_by_a_thread_of_autograd(recorder: Recorder, dynamo: Dynamo) -> None:
    """The thread that trains waits for it. It is work for a function that was compiled: none is compiled again."""
    with recorder.job(), recorder.step(0):
        dynamo.compile(train.__code__)
        thread = threading.Thread(target=dynamo.compile, args=(train.__code__, CallbackTrigger.LAZY_BACKWARD))
        thread.start()
        thread.join()
    assert near(spent(recorder)["program_startup"], dynamo.took)
    assert recorder.totals().recompilations == 0


def test_other_threads_that_compile_hold_up_nothing(recorder: Recorder, dynamo: Dynamo) -> None:
    with recorder.job(), recorder.step(0):
        thread = threading.Thread(target=dynamo.compile, args=(train.__code__,))
        thread.start()
        thread.join()
    assert spent(recorder)["productive"] >= dynamo.took


def test_one_in_another_is_one(recorder: Recorder, dynamo: Dynamo) -> None:
    with recorder.job(), recorder.step(0):
        dynamo.compile(train.__code__, within=lambda: dynamo.compile(evaluate.__code__))
    assert recorder.totals().run.categories["program_startup"] > 0
    assert recorder.totals().recompilations == 0


def test_a_reset_of_dynamo_leaves_us(recorder: Recorder, dynamo: Dynamo) -> None:
    theirs: list[object] = []
    dynamo.handler.register_start_callback(theirs.append)
    dynamo.handler.clear()
    with recorder.job(), recorder.step(0):
        dynamo.compile(train.__code__)
    assert near(spent(recorder)["program_startup"], dynamo.took) and not theirs


def test_an_error_in_the_compiler_passes(recorder: Recorder, dynamo: Dynamo) -> None:
    def fail() -> None:
        raise RuntimeError("unsupported")

    with recorder.job(), recorder.step(0):
        with pytest.raises(RuntimeError, match="unsupported"):
            dynamo.compile(train.__code__, within=fail)
        time.sleep(0.01)
    assert spent(recorder)["productive"] >= 0.009


def test_nothing_of_ours_stays(recorder: Recorder, dynamo: Dynamo) -> None:
    recorder.shutdown()
    handler = dynamo.handler
    assert not handler.start_callbacks and not handler.end_callbacks and "clear" not in vars(handler)


def test_a_torch_without_callbacks_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback", raising=False)
    recorder = Recorder("old", directory=tmp_path, exporters="none")
    with recorder.job(), recorder.step(0):
        pass
    recorder.shutdown()
    assert recorder.totals().kept == 1


def test_older_callbacks_are_given_nothing(recorder: Recorder, dynamo: Dynamo) -> None:
    (begin,), (end,) = dynamo.handler.start_callbacks, dynamo.handler.end_callbacks
    with recorder.job(), recorder.step(0):
        begin()  # type: ignore[call-arg]
        time.sleep(COMPILING_S)
        end()  # type: ignore[call-arg]
    assert spent(recorder)["program_startup"] >= 0.8 * COMPILING_S
