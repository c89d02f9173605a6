"""Compilations of real jax as phases: against an account of the test's own, from the same events.

Longer than other files: jax is loaded and its compiler started once for all its tests.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warm
from crash.exported import read_spans
from exported import Spans, spans_of
from opentelemetry.sdk.trace import ReadableSpan
from waits import until

import otel_goodput
from otel_goodput import Recorder
from otel_goodput._integrations import jax as integration

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

NS = 1e9
REMOVABLE = hasattr(jax.monitoring, "unregister_event_time_span_listener")  # from jax 0.9 on


class Watched:
    """A recorder with its spans, and what jax says to everybody."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.exporter = Spans()
        self.recorder = Recorder(
            "jax",
            directory=directory,
            exporters="none",
            span_processors=[self.exporter.processor],
            **options,
        )
        self.stages: list[tuple[float, float]] = []
        jax.monitoring.register_event_time_span_listener(self._hear)

    def _hear(self, event: str, start: float, end: float, fun_name: str = "", **_: object) -> None:
        if event.startswith("/jax/core/compile/") and "goodput_marker" not in fun_name:
            self.stages.append((start, end))

    def union(self) -> float:
        """Seconds of the recorded stages, overlaps counted once."""
        total, until = 0.0, 0.0
        for start, end in sorted(self.stages):
            total += max(0.0, end - max(start, until))
            until = max(until, end)
        return total

    def compiles(self) -> list[ReadableSpan]:
        self.recorder.flush()
        return self.exporter.named("compile")

    def close(self) -> None:
        if REMOVABLE:
            jax.monitoring.unregister_event_time_span_listener(self._hear)
        self.recorder.shutdown()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.close()


def function(name: str, layers: int = 10) -> Any:
    """A function that jax has not met yet."""

    def body(a: Any) -> Any:
        for _ in range(layers):
            a = jax.numpy.tanh(a @ a)
        return a.sum()

    body.__name__ = name
    return jax.jit(body)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_the_time_is_that_of_the_stages(watched: Watched) -> None:
    goodput = watched.recorder
    with goodput.job():
        with goodput.training_prep():
            a = jax.numpy.ones((48, 48)).block_until_ready()
        watched.recorder.flush()
        before = watched.recorder.totals().run.categories["program_startup"]
        watched.stages.clear()
        train = function("train_step")
        took = []
        for number in range(3):
            began = time.perf_counter()
            with goodput.step(number):
                train(a).block_until_ready()
            took.append(time.perf_counter() - began)
        spent = (goodput.totals().run.categories["program_startup"] - before) / NS
        assert watched.union() <= spent + 0.002
        assert spent <= max(watched.union() * 1.2 + 0.02, took[0])  # a busy machine interrupts between the stages
    mine = [span for span in watched.compiles() if attributes(span)["goodput.compile.function"] == "train_step"]
    span = mine[-1]
    recorded = attributes(span)
    assert recorded["goodput.phase"] == "compile" and recorded["goodput.step"] == 0
    assert "goodput.compile.recompilation" not in recorded
    for stage in ("trace", "lower", "backend"):
        assert any(f"goodput.compile.{stage}_duration" in attributes(span) for span in mine)
    assert span.end_time is not None and span.start_time is not None
    stages = [recorded.get(f"goodput.compile.{stage}_duration", 0) for stage in ("trace", "lower", "backend")]
    assert 0 < sum(stages) <= span.end_time - span.start_time
    step = watched.exporter.named("step")[0]
    assert span.parent is not None and span.parent.span_id == step.get_span_context().span_id
    assert span.get_span_context().trace_id == step.get_span_context().trace_id


def test_a_slow_first_execution_is_startup(watched: Watched) -> None:
    """What jax compiled is loaded, and what it needs is initialized, when it is executed for the first time."""
    np = pytest.importorskip("numpy")
    initialized = False

    def initialize(x: Any) -> Any:
        nonlocal initialized
        if not initialized:
            initialized = True
            time.sleep(0.3)
        return np.asarray(x)

    @jax.jit
    def train_step(w: Any) -> Any:
        return jax.pure_callback(initialize, jax.ShapeDtypeStruct(w.shape, w.dtype), w).sum()

    w = jax.numpy.ones(8)
    begins = []
    with watched.recorder.job():
        for _ in watched.recorder.steps(range(100)):
            begins.append(time.perf_counter())
            float(train_step(w))
        end = time.perf_counter()
    over = time.perf_counter()  # on a busy machine, the last step may be seen to end as late as this
    watched.recorder.flush()
    totals = watched.recorder.totals()
    categories = totals.run.categories
    least, most = (moment - begins[1] - categories["data_loading"] / NS for moment in (end, over))
    # So much of the first step is its own. On a busy machine, steps are seen to end later than the loop goes on.
    assert totals.step_time is not None
    paces = statistics.median(after - before for before, after in pairwise(begins[1:])), totals.step_time.median / NS
    usual = 10 * max(paces)
    assert least * 0.95 - 0.01 <= categories["productive"] / NS <= most * 1.05 + 0.01 + usual
    assert categories["program_startup"] / NS > 0.29 - usual


def test_a_changed_shape_compiles_again_and_is_flagged(watched: Watched) -> None:
    goodput = watched.recorder
    train = function("train_again")
    inputs = [jax.numpy.ones((size, size)) for size in (31, 31, 33)]
    with goodput.job():
        for number, a in enumerate(inputs):
            with goodput.step(number):
                train(a).block_until_ready()
    # On a busy machine the stages may be so far apart that tracing has a span of its own.
    mine = [
        span
        for span in watched.compiles()
        if attributes(span)["goodput.compile.function"] == "train_again"
        and "goodput.compile.backend_duration" in attributes(span)
    ]
    assert [attributes(span).get("goodput.compile.recompilation", False) for span in mine] == [False, True]
    assert [attributes(span)["goodput.step"] for span in mine] == [0, 2]
    assert goodput.totals().recompilations >= 1


def test_recompilations_are_listed_by_function_without_jaxs_own(watched: Watched) -> None:
    """What is computed outside of a compiled function is compiled for each new shape, by jax for itself."""
    goodput, numpy = watched.recorder, jax.numpy
    train, evaluate = function("train_by_name"), function("evaluate_by_name")
    with goodput.job():
        for number, size in enumerate((41, 42, 43)):
            with goodput.step(number):
                inputs = numpy.ones((size, size)) * 2 - numpy.arange(size)
                train(inputs).block_until_ready()
                halves = numpy.where(inputs > 1, inputs, 0.0)[: size // 2] @ inputs
                numpy.einsum("ij,kj->ik", halves, jax.nn.relu(inputs)).mean().block_until_ready()
                jax.random.normal(jax.random.key(0), (size,)).block_until_ready()
                if number:
                    evaluate(inputs).block_until_ready()
    report = goodput.report()
    # 2 of the one, 1 of the other; what else was compiled in three shapes each counts as none.
    assert report.totals.recompiled == {"train_by_name": 2, "evaluate_by_name": 1}
    assert report.totals.recompilations == 3 and report.totals.compilations_seen
    assert "3 recompilations: train_by_name 2, evaluate_by_name 1" in str(report)
    again = [span for span in watched.compiles() if "goodput.compile.recompilation" in attributes(span)]
    assert {attributes(span)["goodput.compile.function"] for span in again} == set(report.totals.recompiled)
    assert len(watched.compiles()) > 2 * len(again), "they are seen, and are start-up, all the same"


def test_functions_of_one_name_are_told_apart(watched: Watched) -> None:
    """By what they are bound to, also where they are compiled later than traced; one that is made anew is the same."""
    ones, more = jax.numpy.ones, [2, 3]

    def make(power: int) -> Any:
        @jax.jit
        def alike(a: Any) -> Any:
            return a**power

        return alike

    def scale(k: int, a: Any) -> Any:
        return a * k

    with watched.recorder.job():
        made = [make(power) for power in range(2, 6)]
        bound = [jax.jit(lambda a, k=k: a * k) for k in range(4)]
        partials = [jax.jit(functools.partial(scale, k)) for k in range(4)]
        for each in (*made, *bound, *partials):
            each(ones(5))
        later = [jax.jit(lambda a, k=k: a + k).lower(ones(5)) for k in range(3)]
        for lowered in later:
            lowered.compile()
        assert watched.recorder.totals().recompilations == 0
        made[1](ones(6))
        for _ in more:
            jax.jit(lambda a: a - 1)(ones(5))
    totals = watched.recorder.totals()
    assert totals.recompiled == {"alike #2": 1, "<lambda> #8": 1}


def test_a_compilation_while_other_threads_import(watched: Watched) -> None:
    """They get their turn wherever garbage is collected, as in the middle of a list of all modules."""
    goodput, numbers = watched.recorder, count()
    names = (f"imported_meanwhile_{number}" for number in numbers)
    imported: list[str] = []

    def another_thread(*_: object) -> None:
        imported.append(next(names))
        sys.modules[imported[-1]] = ModuleType(imported[-1])

    with goodput.job():
        a = jax.numpy.ones((19, 19))
        train = function("train_while_others_import", layers=1)
        thresholds = gc.get_threshold()
        gc.callbacks.append(another_thread)
        gc.set_threshold(1)
        try:
            with goodput.step(0):
                train(a).block_until_ready()
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(another_thread)
            for name in imported:
                del sys.modules[name]
    assert "train_while_others_import" in {attributes(span)["goodput.compile.function"] for span in watched.compiles()}


def test_tracing_alone_is_startup_but_compiles_nothing(watched: Watched) -> None:
    goodput = watched.recorder
    a = jax.numpy.ones((17, 17))
    train = function("traced_first")
    with goodput.job(), goodput.training_prep():
        watched.stages.clear()
        moments = [time.perf_counter()]
        lowered = train.lower(a)
        moments.append(time.perf_counter())
        time.sleep(0.5)  # a person between the two
        moments.append(time.perf_counter())
        lowered.compile()
        moments.append(time.perf_counter())
    mine = [span for span in watched.compiles() if attributes(span)["goodput.compile.function"] == "traced_first"]
    assert len(mine) >= 2, "lowering and compiling are apart, what is between them is no compilation"
    assert not any("goodput.compile.recompilation" in attributes(span) for span in mine)
    assert goodput.totals().recompilations == 0
    covered = sum((span.end_time or 0) - (span.start_time or 0) for span in mine) / NS
    # What jax tells of is in it, and nothing of what is around the two calls.
    assert watched.union() - 0.002 <= covered <= moments[1] - moments[0] + moments[3] - moments[2]


def test_what_comes_from_a_cache_leaves_nothing_open(watched: Watched) -> None:
    """Of a function that was compiled for the same arguments already jax tells the end of a trace, and no more."""
    goodput = watched.recorder
    like = jax.ShapeDtypeStruct((4,), "float32")

    def twice(x: Any) -> Any:
        return x * 2

    with goodput.job():
        with goodput.training_prep():
            for _ in range(3):
                jax.jit(twice).lower(like).compile()
        for number in range(5):
            with goodput.step(number):
                time.sleep(0.01)
        categories = goodput.totals().run.categories
        assert categories["productive"] >= 50_000_000
        assert goodput.totals().recompilations == 0


def test_none_is_lost_between_those_who_close_them(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper and whoever asks close traces that nothing came of, while their threads go on with others."""
    monkeypatch.setattr(integration, "AT_ONCE", -(10**12))
    goodput = watched.recorder
    begun = threading.Barrier(5)
    event = "/jax/core/compile/jaxpr_trace_duration"

    def trace(mark: int) -> None:
        begun.wait(30)
        for number in range(500):
            jax.monitoring.record_scalar(event, 0.0, fun_name=f"f{mark}-{number}")
            jax.monitoring.record_event_duration_secs(event, 0.0, fun_name=f"f{mark}-{number}")

    threads = [threading.Thread(target=trace, args=(mark,)) for mark in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with goodput.job():
            for thread in threads:
                thread.start()
            begun.wait(30)
            while any(thread.is_alive() for thread in threads):
                assert goodput.tracer is not None and goodput.tracer.hooks.settle is not None
                goodput.tracer.hooks.settle()
    finally:
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join(30)
    goodput.shutdown()
    functions = {(span.attributes or {})["goodput.compile.function"] for span in watched.compiles()}
    sums = [dict(span.attributes or {}) for span in watched.exporter.named("phases")]
    left_out = sum(summary["goodput.phases.count"] for summary in sums)  # so many are a flood
    assert len(functions) == len(watched.compiles()) and len(functions) + left_out == 2000


def test_a_compilation_is_seen_while_it_lasts(watched: Watched) -> None:
    """A compiler that hangs is program_startup already."""
    goodput = watched.recorder
    seen: list[int] = []

    def slow(a: Any) -> Any:
        until(lambda: goodput.totals().run.categories["program_startup"] >= 50_000_000)
        seen.append(goodput.totals().run.categories["program_startup"])
        return a + 1

    a = jax.numpy.ones(3)
    with goodput.job():
        jax.jit(slow)(a).block_until_ready()
    assert seen and seen[0] >= 50_000_000


def test_compilations_of_other_threads_hold_up_nothing(watched: Watched) -> None:
    goodput = watched.recorder
    a = jax.numpy.ones((19, 19))
    train = function("elsewhere")
    with goodput.job():
        thread = threading.Thread(target=lambda: train(a).block_until_ready())
        thread.start()
        thread.join()
    assert goodput.totals().run.categories["program_startup"] == 0
    mine = [span for span in watched.compiles() if attributes(span)["goodput.compile.function"] == "elsewhere"]
    assert mine and all(attributes(span)["goodput.blocking"] is False for span in mine)


def test_an_error_in_the_traced_function_passes_untouched(watched: Watched) -> None:
    goodput = watched.recorder

    def wrong(a: Any) -> Any:
        raise ZeroDivisionError("in the model")

    with goodput.job():
        with pytest.raises(ZeroDivisionError, match="in the model"):
            jax.jit(wrong)(1.0)
        watched.recorder.flush()
        with goodput.custom("after"):
            time.sleep(0.3)
    assert goodput.totals().run.custom["after"] > 100_000_000, "the compilation that failed is over"


def test_it_is_taken_back(tmp_path: Path) -> None:
    before = [len(listeners) for listeners in _listeners()]
    made = Recorder("jax", directory=tmp_path, exporters="none")
    assert [len(listeners) for listeners in _listeners()] != before
    made.shutdown()
    if REMOVABLE:
        assert [len(listeners) for listeners in _listeners()] == before
    else:
        jax.jit(lambda a: a + 2)(1.0)  # none of ours listens
        assert made.totals().recompilations == 0


def test_none_is_none(tmp_path: Path) -> None:
    before = [len(listeners) for listeners in _listeners()]
    made = Recorder("jax", directory=tmp_path, exporters="none", integrations="none")
    assert [len(listeners) for listeners in _listeners()] == before
    made.shutdown()


def _listeners() -> list[Any]:
    monitoring = jax._src.monitoring
    return [
        monitoring.get_event_duration_listeners(),
        monitoring.get_event_listeners(),
        monitoring.get_scalar_listeners(),
    ]


def test_somebody_clears_all_listeners(tmp_path: Path) -> None:
    """jax's own clear_event_listeners(): ours are deaf then, and taking them back is no error. In a process apart."""
    code = """
import jax, sys
import otel_goodput as goodput
goodput.configure("cleared", directory=sys.argv[1], exporters="none")
jax.monitoring.clear_event_listeners()
with goodput.job():
    jax.jit(lambda a: a + 1)(1.0)
goodput.shutdown()
"""
    warm.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True, timeout=120, jax=True)


LATER = """
import json, sys
import otel_goodput as goodput
recorder = goodput.configure("later", directory=sys.argv[1], exporters="none")
with goodput.job():
    with goodput.training_prep():
        assert "jax" not in sys.modules
        import jax
        import jax.numpy as jnp
    import time
    until = time.monotonic() + 30
    while not jax._src.monitoring.get_scalar_listeners() and time.monotonic() < until:
        time.sleep(0.01)
    with goodput.step(0):
        jax.jit(lambda a: jnp.tanh(a @ a))(jnp.ones((8, 8))).block_until_ready()
print(json.dumps(goodput.report().to_json()))
"""


def test_jax_may_be_imported_later(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LATER, str(tmp_path)],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["seconds"]["program_startup"] > 0.01


COUNTED = "goodput.compile.cache"
CACHED = """
import json, sys
import otel_goodput as goodput
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
goodput.configure("cached", run_id="cached", directory=sys.argv[1], exporters="file")
def cached_step(a):
    return jnp.tanh(a @ a).sum()
with goodput.job(), goodput.step(0):
    jax.jit(cached_step)(jnp.ones((8, 8))).block_until_ready()
goodput.shutdown()
"""


def test_the_persistent_cache_is_reported(tmp_path: Path) -> None:
    of_attempts = []
    for attempt in range(2):
        command = [sys.executable, "-W", "error", "-c", CACHED, str(tmp_path / "runs"), str(tmp_path / "cache")]
        warm.run(command, check=True, timeout=120, jax=True)
        lines = (tmp_path / f"runs/cached/traces-attempt{attempt:04d}-p0000.jsonl").read_text().splitlines()
        listed = [
            {entry["key"]: next(iter(entry["value"].values())) for entry in span.get("attributes", ())}
            for span in spans_of(lines)
            if span["name"] == "compile"
        ]
        *_, mine = [one for one in listed if one["goodput.compile.function"] == "cached_step"]
        of_attempts.append(mine)
    assert [one.get("goodput.compile.cache_hit") for one in of_attempts] == [False, True]
    assert "goodput.compile.cache_retrieval_duration" not in of_attempts[0]
    assert int(of_attempts[1]["goodput.compile.cache_retrieval_duration"]) > 0


def test_what_the_persistent_cache_did_is_counted(tmp_path: Path) -> None:
    """The first process stores what it compiles, the second has it all; each begins at 0."""
    results, saved = [], []
    for attempt in range(2):
        command = [sys.executable, "-W", "error", "-c", CACHED, str(tmp_path / "runs"), str(tmp_path / "cache")]
        warm.run(command, check=True, timeout=120, jax=True)
        lines = (tmp_path / f"runs/cached/metrics-attempt{attempt:04d}-p0000.jsonl").read_text().splitlines()
        last = {
            metric["name"]: next(metric[kind] for kind in ("sum", "gauge") if kind in metric)["dataPoints"]
            for resource in json.loads(lines[-1])["resourceMetrics"]
            for scope in resource["scopeMetrics"]
            for metric in scope["metrics"]
            if metric["name"].startswith("goodput.compile.")
        }
        results.append({point["attributes"][0]["value"]["stringValue"]: int(point["asInt"]) for point in last[COUNTED]})
        saved.append(last["goodput.compile.time_saved"][0]["asDouble"])
    stored = results[0]["miss"]
    assert stored > 0, "no function was stored"
    assert results == [{"hit": 0, "miss": stored}, {"hit": stored, "miss": 0}]
    assert saved[0] == 0.0 != saved[1]


def test_without_a_persistent_cache_nothing_is_counted(watched: Watched) -> None:
    train = function("not_cached")
    with watched.recorder.job(), watched.recorder.step(0):
        train(jax.numpy.ones((4, 4))).block_until_ready()
    assert watched.compiles()
    assert watched.recorder.tracer is not None
    assert watched.recorder.tracer.hooks.compile_cache.figures() is None


def test_listeners_of_ours_never_raise(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in them, the user's compilation goes on."""
    monkeypatch.delenv("OTEL_GOODPUT_STRICT")
    goodput = watched.recorder
    with goodput.job():
        monkeypatch.setattr(goodput.tracer.spans, "hold", None)
        assert float(function("unharmed")(jax.numpy.ones((5, 5)))) == pytest.approx(25.0, rel=1e-3)
    assert otel_goodput._runtime.guard.contained["compile listener"] >= 1  # type: ignore[attr-defined]


KILLED = """
import os, sys
import jax, jax.numpy as jnp
import otel_goodput as goodput
recorder = goodput.configure("killed", run_id="run", directory=sys.argv[1], exporters="file")

def fatal(a):
    os.kill(os.getpid(), 9)

with goodput.job():
    with goodput.step(7):
        if not recorder.attempt:
            jax.jit(fatal)(jnp.ones(3))
goodput.shutdown()
"""


def test_what_a_killed_process_was_compiling_is_in_its_step(tmp_path: Path) -> None:
    for status in (-9, 0):
        done = warm.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=120, check=False, jax=True)
        assert done.returncode == status
    spans = read_spans(tmp_path / "run")
    (step,) = [span for span in spans if span.name == "step" and span.interrupted]
    compiling = [span for span in spans if span.name == "compile" and span.interrupted]
    assert [span.attributes["goodput.compile.function"] for span in compiling] == ["fatal"]
    assert [(span.parent, span.attributes["goodput.step"]) for span in compiling] == [(step.key, 7)]


OLD = """
import json, logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stderr)
import jax, jax.numpy as jnp
del jax.monitoring.register_scalar_listener  # not there before jax 0.6
import otel_goodput as goodput
goodput.configure("old", directory=sys.argv[1], exporters="none")

@jax.jit
def layers(a):
    for _ in range(20):
        a = jnp.tanh(a @ a)
    return a.sum()

with goodput.job():
    for number in range(3):
        with goodput.step(number):
            layers(jnp.ones((8, 8))).block_until_ready()
goodput.shutdown()
print(json.dumps(goodput.report().to_json()))
"""
ABSENT = """
import json, logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stderr)
sys.modules["jax"] = None
import otel_goodput as goodput
goodput.configure("absent", directory=sys.argv[1], exporters="none", flops_per_step=1e9)
with goodput.job():
    assert goodput.count_flops(len, "x") is None
    for number in range(3):
        with goodput.step(number) as step:
            step.observe({"loss": 1.0})
goodput.shutdown()
print(json.dumps(goodput.report().to_json()))
"""


@pytest.mark.parametrize(
    ("code", "warning"), [(OLD, "reports fewer details of compilations"), (ABSENT, "contains no jax array")]
)
def test_a_jax_that_is_too_old_or_absent_is_one_warning(code: str, warning: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OTEL_GOODPUT_STRICT"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )
    assert done.stderr.count(warning) == 1
    report = json.loads(done.stdout)
    assert report["steps"]["kept"] == 3
    if code is OLD:
        assert report["seconds"]["program_startup"] > 0.01
