"""Steps in a profile of jax: each is there once, whoever annotates it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from otel_goodput import Recorder
from otel_goodput._journal.records import HEADER_SIZE, LOADING, SIZE, STEPPING
from otel_goodput._journal.rundir import RunDirectory, folder_name

jax = pytest.importorskip("jax")
# jaxlib makes types that Python from 3.12 on warns of; an error in their place aborts the process.
pytestmark = [
    pytest.mark.jax,
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning"),
]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder("profiled", directory=tmp_path / "goodput", exporters="none")
    yield made
    made.shutdown()


@contextmanager
def profiled(folder: Path, annotations: list[tuple[str, int]]) -> Iterator[None]:
    """Add the annotations that a profiler shows as steps: name and number of each."""
    jax.profiler.start_trace(folder)
    try:
        yield
    finally:
        jax.profiler.stop_trace()
    (file,) = folder.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    steps = [(each["name"], int(each["args"]["step_num"])) for each in events if "step_num" in each.get("args", {})]
    annotations += sorted(steps, key=lambda each: each[1])


def theirs(number: int) -> Any:
    return jax.profiler.StepTraceAnnotation("train", step_num=number)


@pytest.mark.parametrize("order", ["within", "around"])
def test_the_programs_own_are_the_only_ones(order: str, recorder: Recorder, tmp_path: Path) -> None:
    steps: list[tuple[str, int]] = []
    with recorder.job(), profiled(tmp_path / "profile", steps):
        for number in range(5):
            first, second = (recorder.step(number), theirs(number))[:: 1 if order == "within" else -1]
            with first, second:
                pass
    assert steps == [("train", number) for number in range(5)]


def test_a_program_without_has_ours(recorder: Recorder, tmp_path: Path) -> None:
    steps: list[tuple[str, int]] = []
    with recorder.job(), profiled(tmp_path / "profile", steps):
        for number, _ in recorder.steps(range(3)):
            with jax.profiler.TraceAnnotation("a part of it"):
                jax.numpy.ones(number + 1).block_until_ready()
    assert steps == [("step", number) for number in range(3)]


def test_without_a_profiler_a_loop_takes_the_short_way(recorder: Recorder, tmp_path: Path) -> None:
    steps: list[tuple[str, int]] = []
    with recorder.job():
        jax.numpy.ones(1).block_until_ready()
        recorder.flush()
        for number, _ in recorder.steps(range(300)):
            if number == 100:
                profile = profiled(tmp_path / "profile", steps)
                profile.__enter__()
            if number == 110:
                profile.__exit__(None, None, None)
    recorder.shutdown()
    assert steps == [("step", number) for number in range(101, 110)]
    (segment,) = RunDirectory(tmp_path / "goodput" / folder_name("profiled")).segments(0)
    data = segment.contents()[0]
    kinds = [data[at] for at in range(HEADER_SIZE, len(data), SIZE)]
    assert kinds.count(LOADING) > 250 and kinds.count(STEPPING) > 250


def test_those_of_an_evaluation_are_no_steps(recorder: Recorder, tmp_path: Path) -> None:
    steps: list[tuple[str, int]] = []
    with recorder.job(), profiled(tmp_path / "profile", steps):
        for number in range(3):
            with recorder.step(number):
                pass
            with recorder.custom("evaluation"), jax.profiler.StepTraceAnnotation("evaluate", step_num=10 + number):
                pass
    assert steps == [("step", 0), ("step", 1), ("step", 2)] + [("evaluate", 10 + number) for number in range(3)]


@pytest.mark.parametrize("annotate", [theirs, lambda _: nullcontext()])
def test_nothing_of_ours_stays(annotate: Callable[[int], Any], recorder: Recorder) -> None:
    with recorder.job(), recorder.step(0), annotate(0):
        pass
    recorder.shutdown()
    kind = jax.profiler.StepTraceAnnotation
    assert "__enter__" not in vars(kind) and "__exit__" not in vars(kind)
